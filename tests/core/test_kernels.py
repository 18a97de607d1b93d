"""The kernels: right (in Triton's interpreter), compiled for a GPU that is not here, chosen where they can run."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from bayesvlm.core import passes
from bayesvlm.core.passes import PlainPasses, passes_for

ROOT = Path(__file__).parents[2]
needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is not installed (there is none but for Linux)"
)


@needs_triton
def test_in_the_interpreter() -> None:
    """A process of its own: Triton decides as it is imported whether kernels are interpreted."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "tests/core/interpreted.py",
    ]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


@needs_triton
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16", "half"])
@pytest.mark.parametrize("copies", [False, True])
def test_they_compile_for_a_hopper_gpu(
    precision: str, copies: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 16 bytes per access, whatever the number of columns: what passes move is all they cost."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from bayesvlm.core import kernels

    operand = {"bf16": "*bf16", "half": "*fp16"}.get(precision, "*fp32")
    types = {"anchor_target_ptr": "*i64", "slots_ptr": "*fp64", "slope": "fp32", "offset": "fp32", "scale": "fp32"}
    types |= dict.fromkeys(("drift_ptr", "share_ptr", "product_ptr"), operand)
    chosen = {
        "has_copies": copies,
        "operand": precision,
        "rounded": "tf32" if precision == "half" else precision,
        "lanes": 4096,
        "block_rows": kernels._ROWS,
        "step": kernels._STEP,
        "block_columns": kernels._COLUMNS,
    }
    for kernel in (kernels._anchor_kernel, kernels._softmax_kernel, kernels._crossed_kernel, kernels._sigmoid_kernel):
        listing, resources = compiled(kernel, types, chosen, tmp_path)
        assert "ld.global.v4" in listing
        assert kernel is kernels._anchor_kernel or "st.global.v4" in listing
        assert "atom" not in listing
        assert "STACK:0 " in resources, "nothing spills out of the registers"


def compiled(kernel: Any, types: dict[str, str], chosen: dict[str, Any], folder: Path) -> tuple[str, str]:
    """A kernel as PTX for compute capability 9.0, and what its machine code takes. No GPU is needed."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants = {name: chosen[name] for name in kernel.arg_names if name in chosen}
    signature = {
        name: "constexpr" if name in chosen else types.get(name, "*fp32" if name.endswith("_ptr") else "i32")
        for name in kernel.arg_names
    }
    aligned = [["tt.divisibility", 16]]
    attributes = {
        (place,): aligned
        for place, name in enumerate(kernel.arg_names)
        if name.endswith("_ptr") or name in ("pitch", "width")
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    built = triton.compile(
        source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 16 if "lanes" in constants else 4}
    )
    (folder / "kernel.cubin").write_bytes(built.asm["cubin"])
    command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(folder / "kernel.cubin")]
    return built.asm["ptx"], subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_cpu_takes_the_plain_form(dtype: torch.dtype) -> None:
    assert isinstance(passes_for(4, dtype, torch.device("cpu"), "float32", None), PlainPasses)


def test_without_triton_the_plain_form_serves_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    passes._fusable.cache_clear()
    with caplog.at_level(logging.INFO, logger="bayesvlm"):
        assert not passes._fusable(torch.device("cuda"))
        assert not passes._fusable(torch.device("cuda"))
    passes._fusable.cache_clear()
    assert [record.name for record in caplog.records] == ["bayesvlm.core.passes"]
    assert "Triton is not installed" in caplog.text


@needs_triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here: nothing fails")
def test_where_triton_fails_the_plain_form_serves_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    passes._fusable.cache_clear()
    with caplog.at_level(logging.WARNING, logger="bayesvlm"):
        assert not passes._fusable(torch.device("cuda"))
    passes._fusable.cache_clear()
    assert "cannot be used on cuda" in caplog.text


def test_merged_anchors_are_those_of_all_columns() -> None:
    """Parts of the columns, in any order, some with the anchor and some with copies."""
    generator = torch.Generator().manual_seed(0)
    logit = 5 * torch.randn(6, 40, generator=generator, dtype=torch.float64)
    log_copies = torch.randint(1, 5, (40,), generator=generator).double().log()

    def anchors(columns: slice) -> passes.Anchors:
        tile = torch.stack([logit[:, columns]] * 2)
        plain = PlainPasses(40, torch.float64, torch.device("cpu"), "float64", log_copies)
        return plain.anchors(passes.Tile(tile[0], tile), columns)

    expected = anchors(slice(0, 40))
    merged = anchors(slice(30, 40)).merge(anchors(slice(0, 7))).merge(anchors(slice(7, 30)))
    for name, found, wanted in zip(expected._fields, merged, expected, strict=True):
        assert torch.allclose(found.double(), wanted.double(), rtol=1e-13), name
