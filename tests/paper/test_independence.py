"""The curvature ratio as an item: what is said of it, and when the claim holds."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.estimation import Loss
from bayesvlm.core.features import Features
from bayesvlm.core.projection import Projection
from bayesvlm.report.blocks import Table
from bayesvlm.vlm import BayesVLM
from bayesvlm_paper.exhibits import Lines
from bayesvlm_paper.items import ITEMS, independence
from bayesvlm_paper.items.independence import FISHER, judgement, measure, tell
from bayesvlm_paper.joint_curvature import Curvature, Norms
from bayesvlm_paper.plans import CLIP_BASE
from paper.told import Told, told


@dataclass
class FakeLab:
    """Projections and features from a generator; `text` times the text activations, Q smaller by as much."""

    models: tuple[str, ...] = ("a",)
    loss: Loss = "infonce"
    count: int = 300
    text: float = 1.0
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(0)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        concept = draw(self.count, 6)
        to_image, to_text = draw(6, 10), draw(6, 8)
        self.features = (
            Features(concept @ to_image + draw(self.count, 10)),
            Features(self.text * (concept @ to_text + draw(self.count, 8))),
        )
        image, text = Projection(torch.linalg.pinv(to_image).T), Projection(torch.linalg.pinv(to_text).T / self.text)
        self.model = BayesVLM(image, text, 2.0, -2.0 if self.loss == "sigmoid" else None, self.loss)

    def loaded(self, model: str) -> BayesVLM:
        return self.model

    def pairs(self, model: str) -> tuple[Features, Features]:
        return self.features

    def say(self, text: str) -> None:
        self.said.append(text)


def run(**changes: Any) -> Told:
    return told(FakeLab(**changes), measure, tell)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"ENTRIES": (5_000, 10_000), "GRAM_SIZES": (4, 8), "GRAM_LOGITS": 256, "PROBE_SIZES": (8, 32, 128)}
    for name, value in sizes.items():
        monkeypatch.setattr(independence, name, value)


@pytest.mark.parametrize("loss", ["infonce", "sigmoid"])
def test_every_way_gives_a_ratio_and_all_of_it_goes_to_json(loss: Loss) -> None:
    found = run(loss=loss)
    grid, lines = found.exhibits
    assert isinstance(grid, Table)
    assert isinstance(lines, Lines)
    names = [row[0] for row in grid.rows]
    assert [name for name in names if "K =" in name] == [
        *(f"(3) Gauss-Newton, K = {size}" for size in (4, 8)),
        *(f"(3) Gauss-Newton, random vectors, K = {size}" for size in (8, 32)),  # 128 leaves too few batches
    ]
    assert grid.columns == ["", "a"]
    assert all(len(row) == 2 and row[1] for row in grid.rows)
    assert [series.name for series in lines.panels[0].series if not series.dashed] == [
        "empirical Fisher",
        "Gauss-Newton",
        "Gauss-Newton, random vectors",
    ]
    ratios = found.numbers["a"]["empirical Fisher"][0]["R"]
    assert len(ratios) == 3
    assert all(0 < ratio <= 1 for ratio in ratios)


def test_sampled_entries_agree_with_the_exact_norms() -> None:
    numbers = run().numbers["a"]
    sampled = numbers["sampled entries"]["10000"]["R"]
    exact = next(each for each in numbers["empirical Fisher"] if each["pairs in a batch"] == 300 // 32)["R"]
    assert sampled == pytest.approx(exact, abs=0.1)


def test_the_claim_is_judged_by_the_ratio() -> None:
    strong, weak = run(), run(text=12.0)
    assert [claim.verdict for claim in strong.claims] == ["does not hold", "does not hold"]
    assert "not moderate" in strong.answer
    assert [claim.verdict for claim in weak.claims] == ["holds", "holds"]
    assert "leaves out is moderate" in weak.answer


def test_a_larger_text_tower_has_the_same_coupling() -> None:
    one, other = (run(text=text).numbers["a"]["Gauss-Newton, Gram matrices"][0] for text in (1.0, 12.0))
    assert one["coupling"] == pytest.approx(other["coupling"], rel=1e-3)
    assert other["R"][0] < 0.5 * one["R"][0]


@pytest.mark.parametrize("text", [1.0, 12.0])
def test_the_scale_at_which_r_is_the_printed_one(text: float) -> None:
    """Found by measuring again with activations that much larger; also where R is below it to begin with."""
    found = run(text=text)
    (remark,) = [each for each in found.remarks if each.startswith("R depends on the units")]
    scale = float(remark.split("it is 0.363 at c = ")[1].split(" ")[0])
    fishers = run(text=text * scale).numbers["a"]["empirical Fisher"]
    again = next(each["R"] for each in fishers if each["pairs in a batch"] == 300 // 32)
    assert sum(again) / 3 == pytest.approx(0.363, abs=0.01)
    assert "falls" not in remark
    assert "bias" not in remark


def test_the_constant_of_a_bias_is_scaled_too() -> None:
    lab = FakeLab()
    lab.model = BayesVLM(lab.model.image, Projection(lab.model.text.weight, torch.zeros(6)), 2.0, None, "infonce")
    (remark,) = [each for each in told(lab, measure, tell).remarks if each.startswith("R depends on")]
    assert "those of the text tower (for a, whose Q has a bias, also the constant that enters with it) by c" in remark


def test_no_verdict_where_batches_and_expectation_differ() -> None:
    curvature = Curvature(within=Norms(1.0, 1.0, 1.0), expected=Norms(0.5, 0.5, 0.001), batches=2)
    exact = {
        "pairs in a batch": 4,
        "R": [curvature.these.ratio] * 3,
        "squared norms": [asdict(curvature.these)] * 3,
        "expected squared norms": asdict(curvature.expected),
    }
    reports = {"a": {"pairs in a batch": 4, FISHER: [exact]}}
    holds, figure = judgement("R", reports, lambda norms: norms.ratio, lambda ratio: ratio < 0.5)
    assert holds is None
    assert "0.817 (a); expected: 0.045 (a)" in figure


def test_printed_values_stand_beside_the_papers_model_only() -> None:
    grid = run(models=(CLIP_BASE,)).exhibits[0]
    assert isinstance(grid, Table)
    assert grid.columns[-1] == "paper"
    assert [row[-1] for row in grid.rows[:3]] == ["0.363 ± 0.002", "0.374 ± 0.035", ""]


def test_too_few_pairs_are_refused() -> None:
    with pytest.raises(BayesVLMError, match="There are 63 pairs"):
        run(count=63)


def test_the_item_needs_pairs_and_no_labelled_sets() -> None:
    item = ITEMS["independence_ratio"]
    for plan in (item.world, item.paper):
        assert plan.pairs
        assert not plan.sets
