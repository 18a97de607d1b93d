"""The kernels against the plain form, in Triton's interpreter: `test_kernels.py` runs this with TRITON_INTERPRET=1.

The interpreter executes programs one by one in numpy: shapes are small, and timings say nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bayesvlm.core import contrast, curvature
from bayesvlm.core.passes import Anchors, Passes, PlainPasses, Tile
from bayesvlm.core.tiling import pitch

from .references import assert_close, autograd_ggn, contrastive_batch, normal, relative_error, shifted_ggn

CPU = torch.device("cpu")
SHAPES = [(1, 1), (1, 17), (9, 1), (70, 300), (5, 16), (2, 4100)]  # a row, a column, blocks of 64 x 256 and more, lanes
TOLERANCE = {"float32": 2e-6, "tf32": 6e-4, "bf16": 5e-3}  # of an operand rounded to so many bits, relative


def tile_of(logit: Tensor, operand: torch.dtype = torch.float32) -> Tile:
    """A tile as `ContrastBatch` lays it out: rows begin at multiples of 16 entries, with rubbish between."""
    rows, columns = logit.shape
    both = torch.full((2, rows, pitch(columns)), math.nan)
    both[0, :, :columns] = logit
    if operand == torch.float32:
        return Tile(both[0, :, :columns], both[:, :, :columns])
    return Tile(both[0, :, :columns], both.to(operand)[:, :, :columns])


def fused(columns: int, precision: str = "float32", log_copies: Tensor | None = None, halves: bool = False) -> Passes:
    from bayesvlm.core.kernels import FusedPasses  # here: who collects this file without the interpreter must not

    return FusedPasses(columns, CPU, precision, log_copies, halves)


def logits(rows: int, columns: int, kind: str) -> Tensor:
    """As of CLIP, saturated, all equal, or far below zero."""
    random = normal(rows, columns, seed=rows + columns).float()
    return {"clip": 12 + 4 * random, "saturated": 70 * random, "equal": torch.full_like(random, 3.25), "low": random - 1e4}[kind]  # fmt: skip  # noqa: E501


@pytest.mark.parametrize("kind", ["clip", "saturated", "equal", "low"])
@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_softmax_pass(shape: tuple[int, int], kind: str, copies: bool) -> None:
    """Against float64: anchors, what is left beside them, both operands and the column sums."""
    values = logits(*shape, kind)
    log_copies = torch.randint(1, 9, (shape[1],), generator=torch.Generator().manual_seed(1)).log() if copies else None
    weight = normal(shape[0], seed=3).float().abs()
    exact = PlainPasses(shape[1], torch.float64, CPU, "float64", None if log_copies is None else log_copies.double())
    double = Tile(values.double(), torch.stack([values.double()] * 2))
    double = Tile(double.operand[0], double.operand)
    expected, operand = exact.softmax(double, slice(0, shape[1]), weight.double(), None)
    for precision in TOLERANCE if kind == "clip" else ["float32"]:
        passes = fused(shape[1], precision, log_copies)
        tile = tile_of(values, passes.operand)
        found, written = passes.softmax(tile, slice(0, shape[1]), weight, None)
        assert torch.equal(found.target, expected.target) or kind == "equal"
        assert torch.equal(found.logit, expected.logit.float())
        assert_close(found.mass, expected.mass, 2e-6, "mass") if float(expected.mass.max()) > 1e-30 else None
        share = written[1].double()
        assert written.dtype == passes.operand
        if kind != "equal":  # there any target may be the anchor
            assert float((share - operand[1]).abs().max()) <= TOLERANCE[precision]
            differs = (written[0].double() - operand[0]).abs()
            assert float(differs.max()) <= TOLERANCE[precision] * max(1.0, float(operand[0].abs().max()))
            if shape[1] > 1:
                assert_close(passes.column_sums(), exact.column_sums(), 2e-6, "column sums")
        assert bool((share.gather(1, found.target[:, None]) == 0).all()), "anchors are out"


def test_a_tiny_mass_keeps_its_digits() -> None:
    """1e-20 beside an anchor of one: summed apart, in whichever order they come."""
    for order in (slice(None), slice(None, None, -1)):
        values = torch.full((1, 5000), -46.0)
        values[0, ::2500] = torch.tensor([0.0, -30.0])
        values = values.flip(1) if order.step else values
        found, _ = fused(5000).softmax(tile_of(values), slice(0, 5000), torch.ones(1), None)
        exact = 4998 * math.exp(-46) + math.exp(-30)
        assert float(found.rest[0]) == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("gap", [0.5, 20.0, 60.0, 75.0])
@pytest.mark.parametrize("shape", [(9, 1), (70, 300), (2, 4100)], ids=str)
def test_half_precision_keeps_ten_bits_of_any_share(shape: tuple[int, int], gap: float) -> None:
    """From a flat softmax to one whose rest is 1e-33: moments in units of the row's own rest, to the bits of tf32.

    The operand itself is in powers of two of nobody's concern: what `crossed` makes of its moments is compared.
    """
    values = normal(*shape, seed=2).float()
    values[:, 0] = values.max(dim=1).values + gap
    weight, width = normal(shape[0], seed=3).float().abs(), 16
    hhat, ghat = normal(shape[1], width, seed=4).float(), normal(shape[0], width, seed=5).float()
    rights = []
    for passes in (fused(shape[1], "tf32", halves=True), PlainPasses(shape[1], torch.float64, CPU, "float64", None)):
        exact = isinstance(passes, PlainPasses)
        kind = torch.float64 if exact else torch.float32
        both = torch.stack([values.to(kind)] * 2)
        tile = Tile(both[0], both) if exact else tile_of(values, passes.operand)
        anchors, operand = passes.softmax(tile, slice(0, shape[1]), weight.to(kind), None)
        assert bool(torch.isfinite(operand).all())
        moments = (operand.flatten(0, 1).to(kind) @ hhat.to(kind)).view(2, shape[0], width)
        h_anchor = hhat[anchors.target].to(kind)
        left, right = passes.crossed(ghat.to(kind), h_anchor, anchors, weight.to(kind), moments, 20.0)
        rights.append(torch.cat([left[: shape[0]], right[shape[0] :]]))
    assert passes.operand == torch.float64
    if shape[1] > 1:
        assert_close(rights[0], rights[1], 1e-3)
    else:
        assert not bool(rights[0].any())


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sigmoid_pass(shape: tuple[int, int], precision: str) -> None:
    cosine = (0.2 * normal(*shape, seed=4)).float()
    weight = normal(shape[0], seed=5).float().abs()
    exact = PlainPasses(shape[1], torch.float64, CPU, "float64", None)
    double = torch.stack([cosine.double()] * 2)
    expected = exact.sigmoid(Tile(double[0], double), slice(0, shape[1]), weight.double(), 50.0, -5.0)
    passes = fused(shape[1], precision)
    found = passes.sigmoid(tile_of(cosine, passes.operand), slice(0, shape[1]), weight, 50.0, -5.0)
    assert found.dtype == passes.operand
    assert float((found.double() - expected).abs().max()) <= TOLERANCE[precision] * float(expected.abs().max()) + 1e-9
    assert_close(passes.column_sums(), exact.column_sums(), 1e-5, "column sums")


def test_two_launches_give_the_same_bits() -> None:
    values, weight = logits(130, 300, "clip"), normal(130, seed=6).float().abs()
    sums = []
    for _ in range(2):
        passes = fused(300)
        for rows in (slice(0, 70), slice(70, 130)):  # tiles that share slots
            passes.softmax(tile_of(values[rows]), slice(0, 300), weight[rows], None)
        sums.append(passes.column_sums())
    assert torch.equal(*sums)


@pytest.fixture
def on_kernels(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Curvature through the kernels, on a CPU, tf32 (rounded as a GPU's operands are, products in float32) included."""

    def choose(
        columns: int, dtype: torch.dtype, device: object, precision: str, log_copies: Tensor | None, halves: bool
    ) -> Passes:
        assert dtype == torch.float32
        return fused(columns, precision, log_copies, halves)

    monkeypatch.setattr(contrast, "passes_for", choose)
    monkeypatch.setattr(contrast, "_resolve_precision", lambda precision, *_: precision or "float32")
    return choose


@pytest.mark.usefixtures("on_kernels")
@pytest.mark.parametrize("memory", [None, 12_000])
def test_infonce_equals_differentiation(memory: int | None) -> None:
    source, target = (normal(count, 4, seed=count).float() for count in (6, 21))
    target = torch.cat([target, target[:3], target[:1]])
    expected = autograd_ggn(source, target, 9.0).sum(dim=0)
    assert_close(curvature.infonce_curvature(source, target, 9.0, memory=memory), expected, 2e-6)


@pytest.mark.usefixtures("on_kernels")
def test_sigmoid_equals_differentiation() -> None:
    source, target = (normal(count, 4, seed=count).float() for count in (6, 21))
    expected = autograd_ggn(source, target, 9.0, -1.0, "sigmoid").sum(dim=0)
    for memory in (None, 6_000):
        assert_close(curvature.sigmoid_curvature(source, target, 9.0, -1.0, memory=memory), expected, 2e-6)


@pytest.mark.usefixtures("on_kernels")
@pytest.mark.parametrize(("precision", "bound"), [("float32", 1e-5), ("tf32", 2e-3), ("bf16", 2e-2)])
def test_infonce_at_clip_like_cosines(precision: str, bound: float) -> None:
    source, target = (rows.float() for rows in contrastive_batch(70, 300, 128, match=0.30, seed=0))
    expected = shifted_ggn(source, target, 100.0)
    found = curvature.infonce_curvature(source, target, 100.0, precision=precision)  # type: ignore[arg-type]
    print(precision, relative_error(found, expected))
    assert_close(found, expected, bound)


@pytest.mark.usefixtures("on_kernels")
@pytest.mark.parametrize(("precision", "bound"), [("float32", 1e-3), ("tf32", 5e-3)])
def test_infonce_saturated(precision: str, bound: float) -> None:
    """Match near 0.7: e_i is about 1e-15; in tiles of whole rows, and with logits computed twice."""
    source, target = (rows.float() for rows in contrastive_batch(70, 260, 128, match=0.70, seed=0, spread=0.078))
    expected = shifted_ggn(source, target, 100.0)
    found = curvature.infonce_curvature(source, target, 100.0, precision=precision)  # type: ignore[arg-type]
    print(precision, relative_error(found, expected))
    assert_close(found, expected, bound)


@pytest.mark.usefixtures("on_kernels")
def test_tiles_do_not_change_the_result() -> None:
    source, target = (normal(count, 6, seed=count).float() for count in (40, 50))
    target = torch.cat([target, target[:9]])
    whole = curvature.infonce_curvature(source, target, 20.0)
    for memory in (12_000, 30_000):
        assert_close(curvature.infonce_curvature(source, target, 20.0, memory=memory), whole, 1e-6)


@pytest.mark.parametrize("precision", ["float32", "tf32"])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 5), (17, 32)])
def test_operands_of_what_is_taken_off(rows: int, width: int, precision: str) -> None:
    moments, ghat = normal(2, rows, width, seed=7), normal(rows, width, seed=8)
    h_anchor, weight, rest = normal(rows, width, seed=9), normal(rows, seed=10).abs(), normal(rows, seed=11).abs()
    anchors = Anchors(rest, torch.zeros(rows).long(), rest, rest)
    plain = PlainPasses(1, torch.float64, CPU, "float64", None)
    expected = plain.crossed(ghat, h_anchor, anchors, weight, moments, 20.0)
    single = [each.float() for each in (ghat, h_anchor, weight, moments)]
    found = fused(1, precision).crossed(
        single[0], single[1], Anchors(*(each.float() for each in anchors)), *single[2:], 20.0
    )
    for name, mine, theirs in zip(("left", "right"), found, expected, strict=True):
        assert_close(mine, theirs, 1e-6 if precision == "float32" else 5e-4, name)
    if precision == "tf32":
        assert all(bool(((each.view(torch.int32) & 0x1FFF) == 0).all()) for each in found), "ten bits of mantissa"
