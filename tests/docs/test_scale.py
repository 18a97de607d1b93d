"""docs/scale.md says what the kept results say: its tables are computed, and its arithmetic is that of the formats."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import save

from bayesvlm import BayesVLM, Features
from bayesvlm.core.estimation import TOWERS

SCRIPT = Path(__file__).parents[2] / "docs" / "figures" / "scale.py"


@pytest.fixture(scope="module")
def scale() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scale_figures", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_tables_of_the_kept_results(scale: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {name: (scale.DOCS / name).read_text(encoding="utf-8") for name in ("scale.md", "speed.md")}
    written: dict[str, str] = {}
    monkeypatch.setattr(Path, "write_text", lambda self, text, encoding: written.update({self.name: text}))
    scale.main()
    assert written == pages, "run python docs/figures/scale.py"


def test_a_page_without_a_place_for_a_table_is_an_error(scale: ModuleType) -> None:
    with pytest.raises(SystemExit, match="no place for rates"):
        scale.filled("nothing", {"rates": "| |"})


def test_the_sums_are_as_large_as_said(scale: ModuleType) -> None:
    """8 (p^2 + d^2) bytes per tower, whatever the number of pairs."""
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(12, width, generator=generator) for width in (20, 16)]
    vlm = BayesVLM.from_projections(*weights, 2.0)
    sizes = []
    for pairs in (50, 100):
        images, texts = (Features(torch.randn(pairs, width, generator=generator)) for width in (20, 16))
        vlm.fit([(images, texts)], progress=False)
        sums = {f"{t}.{n}": getattr(vlm.factors[t], f"{n}_sum") for t in TOWERS for n in "AB"}
        assert {tensor.dtype for tensor in sums.values()} == {torch.float64}
        sizes.append(sum(tensor.nbytes for tensor in sums.values()))
        assert len(save(sums)) == pytest.approx(sizes[-1], abs=1000)
    assert sizes == [8 * (20**2 + 12**2) + 8 * (16**2 + 12**2)] * 2


def test_numbers_as_people_read_them(scale: ModuleType) -> None:
    assert [scale.number(value) for value in (0.123, 7.89, 12.34, 387.4, 640_312.0)] == [
        "0.12", "7.9", "12", "387", "640,000",
    ]  # fmt: skip
    assert [scale.size(value) for value in (11_010_048, 2.5e9, 3.1e12, 4e15)] == ["11 MB", "2.5 GB", "3.1 TB", "4 PB"]
    assert scale.time(3.2e9) == "101 years"
    assert scale.time(7200) == "2.0 h"
    assert scale.median([3.0, 1.0, 2.0, 10.0]) == 2.5
