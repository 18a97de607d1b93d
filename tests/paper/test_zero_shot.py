"""The zero-shot tables: their numbers are those of the results, the paper's stand beside, claims are judged by them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from bayesvlm import BayesVLMError
from bayesvlm.experiments.scoring import Scores
from bayesvlm.experiments.zero_shot import Result
from bayesvlm.report.blocks import Table
from bayesvlm_paper.items import find_item
from bayesvlm_paper.items.zero_shot import (
    Judge,
    base_claims,
    large_claims,
    measure,
    printed_values,
    shift_claims,
    siglip_claims,
    tell_bayes,
    tell_predicted,
)
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.plans import CLIP_BASE
from paper.told import Told, told


def scores(confidence: float, right: int) -> Scores:
    """Ten answers among three classes, so many of them right, all as sure as that."""
    rest = (1 - confidence) / 2
    probs = torch.tensor([confidence, rest, rest]).repeat(10, 1)
    return Scores.of(probs, torch.tensor([0] * right + [1] * (10 - right)))


def result(data: str, **methods: Scores) -> Result:
    return Result({"model": {"name": "m"}, "data": {"name": data}}, {}, methods)


class Bench:
    """A lab whose results are given."""

    def __init__(self, model: str, results: list[Result], predicts: bool = False) -> None:
        self.models = (model,) if model else ()
        self.sets = tuple(str(place) for place in range(len(results)))
        self.results, self.predicts = results, predicts

    def vlm(self, model: str) -> SimpleNamespace:
        return SimpleNamespace(predicts_variance=self.predicts)

    def zero_shot(self, model: str, data: str) -> Result:
        return self.results[int(data)]


NAMES = {base_claims: "clip", large_claims: "clip_large", siglip_claims: "siglip"}


def bayes(results: list[Result], judge: Judge = base_claims, model: str = "m") -> Told:
    name = f"uq_results_{NAMES[judge]}" if judge in NAMES else "zero_shot_adversarial_imgnet"
    options = {"name": name, "published": CLIP_BASE, "judge": judge}
    return told(Bench(model, results), partial(measure, predicts=False), tell_bayes, **options)


def predicted(results: list[Result], consistently: bool, model: str = "m") -> Told:
    options = {"name": "uq_results_prolip", "published": "other", "family": "ProLIP", "consistently": consistently}
    return told(Bench(model, results, predicts=True), partial(measure, predicts=True), tell_predicted, **options)


GOOD = result("a", plain=scores(0.99, 6), temperature=scores(0.8, 6), Bayes=scores(0.6, 6))
BAD = result("b", plain=scores(0.6, 6), temperature=scores(0.6, 6), Bayes=scores(0.99, 4))


def test_cells_claims_and_the_printed_values() -> None:
    found = result("food101", plain=scores(0.99, 6), temperature=scores(0.8, 6), Bayes=scores(0.6, 6))
    finding = bayes([found], model=CLIP_BASE)
    (grid,) = finding.exhibits
    assert isinstance(grid, Table)
    cells = {row[0]: row[1] for row in grid.rows}
    assert cells["ACC Bayes"] == "60.0 | 80.4"  # the paper's: 80.43
    assert cells["ECE plain"] == "39.0 | 3.9"
    assert cells["ECE Bayes"] == "0.0 | 1.7"
    assert [claim.verdict for claim in finding.claims] == ["holds", "holds", "holds", "cannot be tested here"]
    assert not finding.remarks  # nothing stands for anything
    assert finding.numbers["food101"]["Bayes"]["top1"] == pytest.approx(0.6)


def test_claims_that_do_not_hold_say_where() -> None:
    finding = bayes([GOOD, BAD], model="emoji-clip")
    assert [claim.verdict for claim in finding.claims[:3]] == ["does not hold"] * 3
    assert "(not on b)" in finding.claims[2].figure
    assert "top-1 -20.0 points at worst" in finding.claims[0].figure
    assert finding.remarks == ["emoji-clip stands for CLIP-Base."]


def test_votes_are_judged_where_there_are_votes() -> None:
    found = result("a", plain=scores(0.9, 6), temperature=scores(0.8, 6), TTA=scores(0.99, 7), Bayes=scores(0.6, 6))
    finding = bayes([found])
    assert finding.claims[-1].verdict == "holds"
    assert "TTA more accurate on 1 of 1" in finding.claims[-1].figure


def test_each_table_has_the_claims_the_paper_makes_of_it() -> None:
    assert bayes([GOOD], large_claims).claims[0].verdict == "holds"
    worse = bayes([GOOD, BAD], large_claims).claims[0]
    assert worse.verdict == "does not hold"
    assert "ACC on 1 of 2 (not on b); NLPD on 1 of 2 (not on b); ECE on 1 of 2 (not on b)" in worse.figure
    assert bayes([GOOD], siglip_claims).claims[0].verdict == "holds"
    assert bayes([GOOD, BAD], siglip_claims).claims[0].verdict == "does not hold"  # several would be two of these


def test_sketches_are_judged_by_sketches() -> None:
    photo = replace(BAD, inputs={"model": {"name": "m"}, "data": {"name": "imagenet-a"}})
    sketch = replace(GOOD, inputs={"model": {"name": "m"}, "data": {"name": "imagenet-sketch"}})
    shift, best = bayes([photo, sketch], shift_claims).claims
    assert shift.verdict == "does not hold"
    assert best.verdict == "holds"
    assert best.figure == "smallest ECE on 1 of 1"
    assert bayes([photo], shift_claims).claims[1].verdict == "cannot be tested here"


def test_models_that_predict_their_variances() -> None:
    better = result("a", mean=scores(0.9, 6), native=scores(0.9, 6), ProbCosine=scores(0.6, 6))
    worse = result("b", mean=scores(0.6, 6), native=scores(0.9, 6), ProbCosine=scores(0.9, 6))
    assert predicted([better, worse], True).claims[0].verdict == "does not hold"
    assert predicted([better], True).claims[0].verdict == "holds"
    assert predicted([better, worse], False).claims[0].verdict == "does not hold"  # one of two is not most
    assert predicted([], True, model="").claims[0].verdict == "cannot be tested here"
    assert find_item("uq_results_pcmepp").world.models == ()


def test_what_a_table_is_not_for_is_refused() -> None:
    prolip, clip = cast(Lab, Bench("m", [GOOD], predicts=True)), cast(Lab, Bench("m", [GOOD]))
    with pytest.raises(BayesVLMError, match="run uq_results_prolip"):
        measure(prolip, predicts=False)
    with pytest.raises(BayesVLMError, match="run uq_results_clip"):
        measure(clip, predicts=True)
    with pytest.raises(BayesVLMError, match="--data"):
        bayes([])
    with pytest.raises(BayesVLMError, match="rename a folder"):
        bayes([GOOD, GOOD])


def test_fractions_are_printed_in_percent() -> None:
    printed = printed_values("zero_shot_adversarial_imgnet", CLIP_BASE, CLIP_BASE)
    assert printed is not None
    assert printed("plain", "ECE", "imagenet-a") == pytest.approx(33)
    assert printed("Bayes + TTA", "ECE", "imagenet-a") is None
    assert printed("plain", "ECE", "openmoji-black") is None
    assert printed_values("zero_shot_adversarial_imgnet", "emoji-clip", CLIP_BASE) is None
