"""Variants side by side: how each finds its tau, and what the comparison says, against loops and scipy."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy.stats import ttest_rel

from bayesvlm import BayesVLM
from bayesvlm.core.estimation import TOWERS
from bayesvlm.core.evidence import optimal_prior_precision
from bayesvlm.core.tuning import TauGrid, TauPoint
from bayesvlm.experiments.scoring import Scores
from bayesvlm.report.blocks import Table
from bayesvlm_paper import variants as module
from bayesvlm_paper.comparison import Compared, Versus
from bayesvlm_paper.exhibits import Lines
from bayesvlm_paper.items.evidence import lams, official, official_tuned
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.plans import Plan
from bayesvlm_paper.scoreboard import BEST
from bayesvlm_paper.variants import STEP, Variant, default_of, numbers_of, on_some, tuned, versus, walked
from paper.tiny_variants import TinyLab
from paper.told import kept

TAUS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)


@pytest.fixture(scope="module")
def lab() -> Lab:
    return cast(Lab, TinyLab())


@pytest.fixture(scope="module")
def variants(lab: Lab) -> dict[str, Variant]:
    default = default_of(lab, "one")

    def measure(vlm: BayesVLM, data: str) -> Scores:
        return lab.bayes("one", vlm, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WIDE_TAUS", TAUS)
        damped, exact = (tuned(lab, "one", default.replace(structure=each), measure) for each in ("damped", "exact"))
    return {
        "damped": damped,
        "exact": exact,
        "bad": Variant(default.replace(tau=1e-4), None, {d: measure(default.replace(tau=1e-4), d) for d in lab.sets}),
    }


def test_the_default_is_the_papers(lab: Lab) -> None:
    other = TinyLab()
    other._vlms["one"] = lab.vlm("one").replace(structure="exact", covariance="full", link="centred", tau=7.0)
    settings = default_of(cast(Lab, other), "one").settings
    assert (settings.structure, settings.covariance, settings.link) == ("damped", "diagonal", "probit")
    assert (settings.tau, settings.lam) == (7.0, None)


# tau -----------------------------------------------------------------------------------------------------------------


def test_a_variant_is_tuned_on_a_copy(lab: Lab, variants: dict[str, Variant]) -> None:
    vlm, before = lab.vlm("one"), lab.vlm("one").tau
    exact = variants["exact"]
    assert (vlm.tau, vlm.settings.structure) == (before, "damped")
    assert exact.grid is not None
    assert exact.vlm.tau == exact.grid.best.tau
    assert exact.vlm.settings.structure == "exact"
    _, expected = lab.tuned("one", vlm.replace(structure="exact"), TAUS)
    assert exact.grid == expected


def test_official_against_a_loop(lab: Lab) -> None:
    vlm, found, classes = lab.vlm("one"), lab.validation("one"), lab.classes("one", "validation")
    own, grid = official_tuned(lab, "one", vlm, TAUS, refine=False)
    expected = {}
    for tau in TAUS:
        lam = {}
        for tower in TOWERS:
            A, B, norm = vlm.factors[tower].A, vlm.factors[tower].B, float(getattr(vlm, tower).weight.square().sum())
            lam[tower] = optimal_prior_precision(A, B, norm, tau, objective="official")
        probs = vlm.replace(tau=tau, lam=lam).classify(found.features, classes).probs.numpy()
        nlpd = float(np.mean([-math.log(probs[row, label]) for row, label in enumerate(found.labels.tolist())]))
        expected[tau] = (nlpd, lam)
    assert [point.tau for point in grid] == list(TAUS)
    for point in grid:
        assert point.nlpd == pytest.approx(expected[point.tau][0])
        assert point.lam == pytest.approx(expected[point.tau][1])
    best = min(expected, key=lambda tau: expected[tau][0])
    assert (own.tau, own.lam) == (best, pytest.approx(expected[best][1]))
    assert official_tuned(lab, "one", vlm, TAUS)[1].best.nlpd <= grid.best.nlpd


def test_the_two_objectives_differ(lab: Lab) -> None:
    vlm = lab.vlm("one").replace(tau=2.0)
    assert lams(vlm, "evidence") == pytest.approx(vlm.lam)
    assert official(vlm, 2.0).lam == pytest.approx(lams(vlm, "official"))
    assert all(abs(math.log(lams(vlm, "official")[tower] / vlm.lam[tower])) > 0.05 for tower in TOWERS)


class Valley:
    """A lab whose validation NLPD is known, and which counts how often it was asked."""

    sets = ("near",)

    def __init__(self, lowest: float) -> None:
        self.lowest, self.asked = lowest, list[float]()

    def tuned(self, model: str, vlm: BayesVLM, taus: tuple[float, ...], refine: bool) -> tuple[BayesVLM, TauGrid]:
        assert not refine
        self.asked += taus
        return vlm, TauGrid(tuple(TauPoint(tau, math.log(tau / self.lowest) ** 2, {}) for tau in taus))


@pytest.mark.parametrize("place", [-5, -1, 0, 1, 4])
def test_walking_downhill(lab: Lab, place: int) -> None:
    valley = Valley(2.0 * STEP**place * 1.05)
    scored: list[tuple[float, str]] = []

    def measure(vlm: BayesVLM, data: str) -> Scores:
        scored.append((vlm.tau, data))
        return lab.bayes("one", vlm, data)

    found = walked(cast(Lab, valley), "one", lab.vlm("one"), measure, 2.0)
    assert found.vlm.tau == pytest.approx(2.0 * STEP**place)
    assert scored == [(found.vlm.tau, "near")]
    assert len(valley.asked) == len(set(valley.asked)) <= abs(place) + 3
    assert found.grid is not None
    assert not found.grid.at_edge
    assert [point.tau for point in found.grid] == sorted(valley.asked)


def test_walking_ends(lab: Lab) -> None:
    valley = Valley(1e30)
    found = walked(cast(Lab, valley), "one", lab.vlm("one"), lambda v, d: lab.bayes("one", v, d), 1.0, limit=4)
    assert found.vlm.tau == pytest.approx(STEP**4)
    assert found.grid is not None
    assert found.grid.at_edge


# Comparing -----------------------------------------------------------------------------------------------------------


def compared(variants: dict[str, Variant], **changes: dict[str, Any]) -> Compared:
    """As told from json, some of the numbers changed."""
    numbers: dict[str, Any] = numbers_of(variants)
    for name, change in changes.items():
        numbers[name] = {**numbers["damped"], **change}
    size = {"images": 20, "classes": 6}
    return Compared(kept({"one": {"variants": numbers, "truth": {}, "truth size": size}}, Plan(("one",))))


def test_versus_is_scipys_test(variants: dict[str, Variant]) -> None:
    for name in ("exact", "bad"):
        found, differences = Versus(**versus(variants[name], variants["damped"])), []
        for data, test in found.tests.items():
            a, b = (variants[of].scores[data].nll.numpy() for of in (name, "damped"))
            assert test["difference"] == pytest.approx(float((a - b).mean()))
            assert test["p"] == pytest.approx(ttest_rel(a, b).pvalue, abs=1e-12)
            differences.append(test["difference"])
            assert (data in found.better) == (test["p"] < 0.05 and test["difference"] < 0)
            assert (data in found.worse) == (test["p"] < 0.05 and test["difference"] > 0)
        assert found.nlpd == pytest.approx(np.mean(differences))
        assert found.median == pytest.approx(np.median(differences))
    assert found.worse == ["near", "middle", "far"]
    assert (found.hurts, found.helps) == (True, False)
    back = Versus(**versus(variants["damped"], variants["bad"]))
    assert (back.hurts, back.helps, back.better) == (False, True, found.worse)
    assert back.ece == pytest.approx(-found.ece)


def test_one_odd_set_does_not_decide(variants: dict[str, Variant]) -> None:
    found = Versus(**versus(variants["exact"], variants["damped"]))
    odd = replace(found, better=("a", "b"), worse=("c",), median=-0.01, nlpd=+1.0)
    assert odd.helps
    assert not odd.hurts
    assert not replace(odd, median=-0.004).helps
    assert not replace(odd, better=("a",)).helps


def test_the_table(lab: Lab, variants: dict[str, Variant]) -> None:
    grid = compared(variants).finding("a", [], []).exhibits[0]
    assert isinstance(grid, Table)
    assert list(grid.columns) == ["", "near", "middle", "far", "mean"]
    assert [row[0] for row in grid.rows] == [f"{m} {name}" for m in ("ACC", "NLPD", "ECE") for name in variants]
    cells = {row[0]: row[1:] for row in grid.rows}
    for name, variant in variants.items():
        losses, hits = [], []
        for data in lab.sets:
            found = lab.images("one", data)
            probs = variant.vlm.classify(found.features, lab.classes("one", data)).probs.numpy()
            losses.append(-np.log(probs[np.arange(len(probs)), found.labels]).mean())
            hits.append(100 * (probs.argmax(axis=1) == found.labels.numpy()).mean())
        assert cells[f"NLPD {name}"] == [f"{value:.3f}" for value in [*losses, np.mean(losses)]]
        assert cells[f"ACC {name}"] == [f"{value:.1f}" for value in [*hits, np.mean(hits)]]
    bold = {(grid.rows[row][0], grid.columns[column]) for row, column in grid.best}
    for data in lab.sets:
        least = min(variants, key=lambda name: variants[name].scores[data].nlpd.value)
        assert (f"NLPD {least}", data) in bold
        assert ("NLPD bad", data) not in bold
        assert sum(text.startswith("ECE") and of == data for text, of in bold) == 1
    assert not any(column == "mean" for _, column in bold)


def test_the_summary_and_the_curves(variants: dict[str, Variant]) -> None:
    _, grid, lines = compared(variants).finding("a", [], []).exhibits
    assert isinstance(grid, Table)
    named = {row[0]: dict(zip(grid.columns[1:], row[1:], strict=True)) for row in grid.rows}
    bad = versus(variants["bad"], variants["damped"])
    assert named["one, bad"]["sets worse"] == "3"
    assert named["one, bad"]["mean NLPD"] == f"{bad['nlpd']:+.3f}"
    assert named["one, bad"]["validation NLPD"] == ""
    assert named["one, damped"]["mean NLPD"] == ""
    assert named["one, exact"]["tau"] == f"{variants['exact'].vlm.tau:.3g}"
    assert isinstance(lines, Lines)
    (panel,) = lines.panels
    assert [series.name for series in panel.series] == ["damped", "exact"]
    assert panel.mark == variants["damped"].vlm.tau
    for series in panel.series:
        assert max(series.y) <= min(series.y) + 1
        assert list(series.x) == sorted(series.x)


def test_numbers(variants: dict[str, Variant]) -> None:
    found: dict[str, Any] = numbers_of(variants)
    assert found["damped"]["against the first"] is None
    assert found["bad"]["against the first"]["worse"] == ["near", "middle", "far"]
    assert found["exact"]["lam"] == variants["exact"].vlm.lam
    assert found["exact"]["sets"]["far"]["nlpd"] == variants["exact"].scores["far"].nlpd.value
    assert "NLPD" not in found["bad"]["sets"]["far"][BEST]


def test_some_images_are_the_same_for_all(lab: Lab) -> None:
    vlm, measure = lab.vlm("one"), on_some(lab, "one", 30)
    a, b = measure(vlm, "near"), measure(vlm.replace(link="centred"), "near")
    assert len(a.nll) == 30
    assert torch.equal(a.outcomes.labels, b.outcomes.labels)
    whole = {round(value, 9) for value in lab.bayes("one", vlm, "near").nll.tolist()}
    assert {round(value, 9) for value in a.nll.tolist()} <= whole
    assert len(on_some(lab, "one", 1000)(vlm, "near").nll) == 80


def test_remarks_on_taus(variants: dict[str, Variant]) -> None:
    far = {"tau": 1e6, "tried": [[1.0, 2.0], [1e6, 1.0]]}
    found = compared({"damped": variants["damped"]}, far=far, fixed={**far, "tried": None})
    edge, beyond = found.finding("a", [], []).remarks
    assert edge.startswith("one, far: the best tau, 1e+06, is an end of those tried")
    assert beyond.startswith("one, far: the best tau, 1e+06, lies outside 0.01 to 10000")
