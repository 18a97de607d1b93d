"""The zero-shot tables: their numbers are those of the results, the paper's stand beside, claims are judged by them."""

from __future__ import annotations

import pytest
import torch

from bayesvlm.experiments.paper import published_table
from bayesvlm.experiments.reproduction import find_item
from bayesvlm.experiments.reproduction.findings import Grid
from bayesvlm.experiments.reproduction.plans import CLIP_BASE, Plan
from bayesvlm.experiments.reproduction.zero_shot_tables import bayes_table, predicted_table, printed_value
from bayesvlm.experiments.scoring import Scores
from bayesvlm.experiments.zero_shot import Result


def scores(confidence: float, right: int) -> Scores:
    """Ten answers among three classes, so many of them right, all as sure as that."""
    rest = (1 - confidence) / 2
    probs = torch.tensor([confidence, rest, rest]).repeat(10, 1)
    return Scores.of(probs, torch.tensor([0] * right + [1] * (10 - right)))


def result(data: str, **methods: Scores) -> Result:
    return Result({"model": {"name": "m"}, "data": {"name": data}}, {}, methods)


class Bench:
    """A lab whose results are given."""

    def __init__(self, model: str, results: list[Result]) -> None:
        self.models = (model,) if model else ()
        self.sets = tuple(each.data for each in results)
        self.results = {each.data: each for each in results}

    def zero_shot(self, model: str, data: str) -> Result:
        return self.results[data]


def test_cells_claims_and_the_printed_values() -> None:
    found = result("food101", plain=scores(0.99, 6), temperature=scores(0.8, 6), Bayes=scores(0.6, 6))
    bench = Bench(CLIP_BASE, [found])
    finding = bayes_table(bench, "uq_results_clip", CLIP_BASE, "a stand-in")  # type: ignore[arg-type]
    (grid,) = finding.exhibits
    assert isinstance(grid, Grid)
    cells = {row[0]: row[1] for row in grid.rows}
    assert cells["ACC Bayes"] == "60.0 | 80.4"  # the paper's: 80.43
    assert cells["ECE plain"] == "39.0 | 3.9"
    assert cells["ECE Bayes"] == "0.0 | 1.7"
    assert [claim.verdict for claim in finding.claims] == ["holds", "holds", "holds"]
    assert not finding.remarks  # nothing stands for anything
    assert finding.numbers["food101"]["Bayes"]["top1"] == pytest.approx(0.6)


def test_claims_that_do_not_hold_say_where() -> None:
    good = result("a", plain=scores(0.9, 6), temperature=scores(0.8, 6), Bayes=scores(0.6, 6))
    bad = result("b", plain=scores(0.6, 6), temperature=scores(0.6, 6), Bayes=scores(0.99, 4))
    finding = bayes_table(Bench("m", [good, bad]), "uq_results_clip", CLIP_BASE, "m stands for CLIP.")  # type: ignore[arg-type]
    assert [claim.verdict for claim in finding.claims] == ["does not hold"] * 3
    assert "not on b" in finding.claims[2].figure
    assert "not on a" not in finding.claims[2].figure
    assert finding.remarks == ("m stands for CLIP.",)


def test_votes_are_judged_where_there_are_votes() -> None:
    found = result("a", plain=scores(0.9, 6), temperature=scores(0.8, 6), TTA=scores(0.99, 7), Bayes=scores(0.6, 6))
    finding = bayes_table(Bench("m", [found]), "uq_results_clip", CLIP_BASE, "")  # type: ignore[arg-type]
    assert finding.claims[-1].verdict == "holds"
    assert "TTA more accurate on 1 of 1" in finding.claims[-1].figure


def test_models_that_predict_their_variances() -> None:
    better = result("a", mean=scores(0.9, 6), native=scores(0.9, 6), ProbCosine=scores(0.6, 6))
    worse = result("b", mean=scores(0.6, 6), native=scores(0.9, 6), ProbCosine=scores(0.9, 6))
    bench = Bench("m", [better, worse])
    options = {"name": "uq_results_prolip", "published": "other", "family": "ProLIP"}
    assert predicted_table(bench, **options, consistently=True).claims[0].verdict == "does not hold"  # type: ignore[arg-type]
    alone = Bench("m", [better])
    assert predicted_table(alone, **options, consistently=True).claims[0].verdict == "holds"  # type: ignore[arg-type]
    none = predicted_table(Bench("", []), **options, consistently=True)  # type: ignore[arg-type]
    assert none.claims[0].verdict == "cannot be tested here"
    assert find_item("uq_results_pcmepp").world == Plan()


def test_fractions_are_printed_in_percent() -> None:
    table = published_table("zero_shot_adversarial_imgnet")
    assert printed_value(table, "ECE", "plain", "imagenet-a") == pytest.approx(33)
    assert printed_value(table, "ECE", "Bayes + TTA", "imagenet-a") is None
    assert printed_value(table, "ECE", "plain", "openmoji-black") is None
