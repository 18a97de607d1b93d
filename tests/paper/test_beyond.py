"""The four questions beyond the paper, on tiny models: what they say follows from what was measured."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import pytest
import torch

from bayesvlm.core.estimation import TOWERS
from bayesvlm.core.predict import monte_carlo
from bayesvlm.report.blocks import Table
from bayesvlm_paper import variants as shared
from bayesvlm_paper.comparison import Compared, truer
from bayesvlm_paper.draws import Ratio, total_variation
from bayesvlm_paper.exhibits import Lines
from bayesvlm_paper.items import ITEMS, covariance, link, structure
from bayesvlm_paper.items.evidence import lam_facts, lost_evidence, official
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.plans import Plan
from bayesvlm_paper.variants import Variant, truth_data
from paper.tiny_variants import TinyLab
from paper.told import Told, kept, told

NAMES = ("structure", "covariance", "link", "evidence")


@pytest.fixture(scope="module")
def lab() -> Lab:
    return cast(Lab, TinyLab())


@pytest.fixture(scope="module")
def findings(lab: Lab) -> dict[str, Told]:
    """Every item, with few draws."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (structure, covariance, link):
            patch.setattr(module, "DRAWS", 80)
        patch.setattr(shared, "IMAGES", 20)
        patch.setattr(link, "MOST_IMAGES", 40)
        return {name: told(lab, ITEMS[name].measure, ITEMS[name].tell) for name in NAMES}


def test_the_items() -> None:
    beyond = [item for item in ITEMS.values() if item.part == "beyond the paper"]
    assert tuple(item.name for item in beyond) == NAMES
    assert all(item.world.models == ("emoji-clip", "emoji-siglip") and item.paper.sets for item in beyond)


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_was_measured(findings: dict[str, Told], name: str) -> None:
    finding = findings[name]
    for model in ("one", "two"):
        variants: dict[str, Any] = finding.numbers[model]["variants"]
        for variant in list(variants.values())[1:]:
            by = variant["against the first"]
            said = f"{model} better on {len(by['better'])}, worse on {len(by['worse'])} of 3 sets"
            assert any(said in text for text in (finding.answer, *(claim.figure for claim in finding.claims)))
    assert all(claim.text.startswith(("Ours: ", "The paper: ")) for claim in finding.claims)
    grids = [each for each in finding.exhibits if isinstance(each, Table)]
    assert all(len(row) == len(grid.columns) for grid in grids for row in grid.rows)
    assert all(sum(count for _, count in grid.groups) in (0, len(grid.columns)) for grid in grids)
    assert any(isinstance(each, Lines) and len(each.panels) == 2 for each in finding.exhibits)


def test_claims_of_no_gain_follow_from_the_tests(findings: dict[str, Told]) -> None:
    for name, variant in (("structure", "exact"), ("covariance", "full"), ("link", "centred"), ("link", "mc")):
        found = [findings[name].numbers[model]["variants"][variant]["against the first"] for model in ("one", "two")]
        helped = any(len(by["better"]) > len(by["worse"]) and by["median"] < -0.005 for by in found)
        (claim,) = (
            claim
            for claim in findings[name].claims
            if "not lower the NLPD" in claim.text
            and {"mc": "Monte Carlo"}.get(variant, variant) in claim.text
            and "with full" not in claim.text
        )
        assert claim.verdict == ("does not hold" if helped else "holds")


def test_the_same_tau_and_no_other(findings: dict[str, Told]) -> None:
    variants = findings["evidence"].numbers["one"]["variants"]
    assert variants["official, same tau"]["tau"] == variants["evidence"]["tau"]
    assert variants["official, same tau"]["tried"] is None
    assert variants["official"]["tau"] != variants["evidence"]["tau"]
    ratio = findings["evidence"].numbers["one"]["truth"]["lam, same tau"]
    for tower in TOWERS:
        expected = variants["official, same tau"]["lam"][tower] / variants["evidence"]["lam"][tower]
        assert ratio[tower] == pytest.approx(expected)


def test_lost_evidence_against_dense_matrices(lab: Lab) -> None:
    vlm = official(lab.vlm("one"), 4.0)

    def log_evidence(tower: str, lam: float) -> float:
        A, B = (factor.double().numpy() for factor in (vlm.factors[tower].A, vlm.factors[tower].B))  # type: ignore[index]
        damped = [2.0 * factor + math.sqrt(lam) * np.eye(len(factor)) for factor in (B, A)]  # sqrt(tau) = 2
        logdet = np.linalg.slogdet(np.kron(*damped))[1]
        norm, P = float(getattr(vlm, tower).weight.square().sum()), A.shape[0] * B.shape[0]
        return float(-lam / 2 * norm + P / 2 * math.log(lam) - logdet / 2)

    for tower, lost in lost_evidence(vlm).items():
        scan = [log_evidence(tower, vlm.lam[tower] * factor) for factor in np.geomspace(0.1, 10, 1001)]
        assert lost == pytest.approx(max(scan) - log_evidence(tower, vlm.lam[tower]), rel=1e-3)
        assert lost > 0
    assert all(abs(lost) < 1e-9 for lost in lost_evidence(vlm.replace(lam="evidence")).values())
    moved = official(vlm, 0.3)
    facts = lam_facts(moved, vlm)
    assert facts["log evidence lost, own tau"] == lost_evidence(vlm)
    assert facts["log evidence lost, same tau"] == lost_evidence(moved)
    for name, posterior in (("same tau", moved), ("own tau", vlm)):
        corrected = posterior.replace(lam="evidence")
        assert corrected.tau == posterior.tau
        for tower in TOWERS:
            assert facts[f"lam, {name}"][tower] == pytest.approx(posterior.lam[tower] / corrected.lam[tower], rel=1e-6)


def test_truth_is_looked_for_among_the_validation_images(lab: Lab) -> None:
    images, texts, labels = truth_data(lab, "one", 4)
    whole, classes = lab.validation("one"), lab.classes("one", "validation")
    rows = [int((whole.features.activations == row).all(dim=1).nonzero()) for row in images.activations]
    assert len(set(rows)) == len(rows) == 80  # of 80 images no 100 can be taken
    assert torch.equal(whole.labels[rows], labels)
    assert len(texts) == 4
    assert torch.equal(truth_data(lab, "one", None)[1].activations, classes.activations)


def test_no_more_images_are_named_than_there_are(findings: dict[str, Told]) -> None:
    def said(images: int, classes: bool) -> str:
        numbers = {"m": {"truth size": {"images": images, "classes": 6}}}
        return Compared(kept(numbers, Plan(("m",)))).truth_size(classes)

    assert said(80, True) == "80 validation images and 6 classes"
    assert said(1, False) == "1 validation image"
    (ratios,) = [
        each for each in findings["structure"].exhibits if isinstance(each, Table) and "draws of itself" in each.columns
    ]
    assert "median over 20 validation images and 6 classes" in ratios.caption
    assert "on 20 validation images, its NLPD differs" in findings["link"].answer


def test_structures_at_the_same_tau_and_lam(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "DRAWS", 1000)
    monkeypatch.setattr(shared, "IMAGES", 10)
    damped = lab.vlm("one").replace(tau=20.0, covariance="full")
    exact = damped.replace(structure="exact", tau=50.0)
    variants = {"damped": damped, "exact": exact, "exact, full": exact.replace(covariance="full")}
    found = structure.truth(lab, "one", {name: Variant(vlm, None, {}) for name, vlm in variants.items()})
    images, texts, _ = truth_data(lab, "one", 50)
    alike = damped.replace(structure="exact", covariance="full", lam=damped.lam)
    analytic = float((damped.similarity(images, texts).std / alike.similarity(images, texts).std).median())
    same = "exact posterior at the same tau and lam"
    assert found["damped"][same]["median"] < 1
    assert found["damped"][same]["median"] / found["exact, full"][same]["median"] == pytest.approx(analytic, rel=0.1)


def test_distances_of_the_links(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "DRAWS", 400)
    vlm = lab.vlm("one").replace(tau=2.0)
    mc = vlm.replace(link="mc", tau=1.0)
    found = link.truth(lab, "one", vlm, mc)
    images, classes, labels = truth_data(lab, "one", None)
    of = vlm.posterior
    drawn = monte_carlo(of["image"], images, of["text"], classes, vlm.scale, 4000, seed=9).probs
    for name, probs in {
        "probit": vlm.classify(images, classes).probs,
        "centred": vlm.replace(link="centred").classify(images, classes).probs,
        "plain": vlm.plain(images, classes),
    }.items():
        assert found["distance"][name] == pytest.approx(
            total_variation(probs, drawn), abs=2 * found["distance"]["noise"]
        )
        close = (drawn.topk(2, dim=1).values @ torch.tensor([1.0, -1.0], dtype=drawn.dtype)).abs() < 0.05
        flipped = (probs.argmax(dim=1) != drawn.argmax(dim=1)).double()
        assert found["flips"][name] == pytest.approx(float(flipped.mean()), abs=float(close.double().mean()))
    few = mc.classify(images, classes).probs
    assert found["NLPD"]["128 draws"] == pytest.approx(float(-few[range(len(labels)), labels].log().mean()))
    assert found["NLPD"]["400 draws"] == pytest.approx(found["NLPD"]["128 draws"], abs=0.1)


def test_truer() -> None:
    sharp, blunt = Ratio(1.05, 1, 1, 0.001), Ratio(1.05, 1, 1, 0.03)
    assert truer(Ratio(1.0, 1, 1, 0.001), sharp)
    assert truer(Ratio(0.99, 1, 1, 0.001), sharp)
    assert not truer(Ratio(1.045, 1, 1, 0.001), sharp)
    assert not truer(Ratio(1.0, 1, 1, 0.001), blunt)
    assert not truer(sharp, Ratio(1.0, 1, 1, 0.001))
