"""Training data against proxy data: both posteriors as fitted by hand, judged by stated thresholds."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from scipy.stats import ttest_rel

from bayesvlm import BayesVLMError
from bayesvlm.experiments.scoring import Scores
from bayesvlm_paper import proxy_data as module
from bayesvlm_paper.findings import Finding, Grid
from bayesvlm_paper.item import reproduce
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.plans import CC12M, CLIP_BASE, LAION, SIGLIP_BASE, TESTS, Plan
from bayesvlm_paper.proxy_data import (
    ITEMS,
    NAME,
    WORLD_PAIRS,
    WORLD_SETS,
    Compared,
    claim,
    printed_value,
    proxy_data,
    table,
)
from bayesvlm_paper.wording import from_to
from bayesvlm_world import load
from paper.tiny_lab import open_lab, write_world


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    folder = tmp_path_factory.mktemp("world")
    return open_lab(write_world(folder), folder / "out")


@pytest.fixture(scope="module")
def found(lab: Lab) -> Finding:
    return proxy_data(lab)


def sure(right: list[float]) -> Scores:
    """Two classes, the first is right and gets these probabilities."""
    p = torch.tensor(right, dtype=torch.float64)
    return Scores.of(torch.stack([p, 1 - p], dim=1), torch.zeros(len(p), dtype=torch.int64))


def of_nlpd(plain: float, training: float, proxy: float, data: str = "set") -> Compared:
    scores = [sure([float(torch.exp(torch.tensor(-nats)))] * 3) for nats in (plain, training, proxy)]
    return Compared(data, *scores)


def test_the_posteriors_are_those_of_their_pairs(lab: Lab, found: Finding) -> None:
    model = lab.models[0]
    for number, who in enumerate(("training", "proxy")):
        source = lab.source(number)
        vlm = lab.vlm(model).without_posterior().fit([lab.pairs(model, source)], progress=False)
        lab.tuned(model, vlm)
        kept = found.numbers["posteriors"][source]
        assert kept["tau"] == pytest.approx(vlm.tau)
        assert kept["pairs"] == (40, 25)[number]
        for data in lab.sets:
            images, classes = lab.images(model, data), lab.classes(model, data)
            probs = vlm.classify(images.features, classes).probs.double()
            nlpd = -probs[torch.arange(24), images.labels].log().mean()
            assert found.numbers["sets"][data][who]["nlpd"] == pytest.approx(float(nlpd), rel=1e-5)
            assert found.numbers["sets"][data][who]["top1"] == float((probs.argmax(1) == images.labels).double().mean())
            plain = vlm.plain(images.features, classes)[torch.arange(24), images.labels].double().log().mean()
            assert found.numbers["sets"][data]["plain"]["nlpd"] == pytest.approx(-float(plain), rel=1e-5)


def test_the_answer_is_made_from_the_numbers(lab: Lab, found: Finding) -> None:
    worse = []
    for data in lab.sets:
        kept = found.numbers["sets"][data]
        assert kept["nlpd_worse"] == pytest.approx(kept["proxy"]["nlpd"] - kept["training"]["nlpd"])
        worse.append(kept["nlpd_worse"])
    assert f"changes NLPD by {from_to(worse)} nats on 2 sets" in found.answer
    changes = [kept["proxy"]["nlpd"] - kept["plain"]["nlpd"] for kept in found.numbers["sets"].values()]
    assert f"where that differs from the plain model's by {from_to(changes, 2)} nats" in found.answer
    assert f"at worst {max(worse):+.3f} nats" in found.claims[0].figure


def test_fewer_pairs_are_told_from_other_pairs(lab: Lab, found: Finding) -> None:
    changes = found.numbers["as_few_training_pairs"]
    assert set(changes) == set(lab.sets)
    assert any(change != 0 for change in changes.values())
    assert "25 training pairs, drawn at random, change NLPD by" in found.remarks[1]
    plan = Plan(lab.models, lab.sets, lab.plan.validation, (lab.source(1), lab.source(0)))
    turned = proxy_data(Lab(plan, lab.out, lab.cache, device="cpu"))
    assert "as_few_training_pairs" not in turned.numbers, "the proxy is the larger one"


def test_the_table(lab: Lab, found: Finding) -> None:
    grid = found.exhibits[0]
    assert isinstance(grid, Grid)
    assert grid.columns == ["", *lab.sets]
    names = [row[0] for row in grid.rows]
    training, proxy = lab.source(0), lab.source(1)
    assert names == [f"{metric} {who}" for metric in ("ACC", "NLPD", "ECE") for who in ("plain", training, proxy)]
    kept = found.numbers["sets"][lab.sets[1]]
    assert [row[2] for row in grid.rows] == [
        *(f"{100 * kept[who]['top1']:.1f}" for who in ("plain", "training", "proxy")),
        *(f"{kept[who]['nlpd']:.3f}" for who in ("plain", "training", "proxy")),
        *(f"{100 * kept[who]['ece']:.1f}" for who in ("plain", "training", "proxy")),
    ]


def test_bold_is_what_a_paired_t_test_says() -> None:
    generator = torch.Generator().manual_seed(0)
    base = torch.rand(200, generator=generator, dtype=torch.float64) * 0.5 + 0.25
    noise = 0.05 * torch.randn(200, generator=generator, dtype=torch.float64)

    def compare(gap: float) -> Compared:
        return Compared("set", sure([0.5] * 200), sure(base.tolist()), sure((base - gap + noise).tolist()))

    outcomes = set()
    for gap in (-0.05, -0.003, 0.0, 0.003, 0.05):
        each = compare(gap)
        p = ttest_rel(each.proxy.nll.numpy(), each.training.nll.numpy()).pvalue
        better = "proxy" if each.worse < 0 else "training"
        expected = {"training", "proxy"} if p >= 0.05 else {better}
        assert each.winners("NLPD") == expected
        assert each.numbers()["p"] == pytest.approx(p)
        smaller = "training" if each.training.ece < each.proxy.ece else "proxy"
        assert each.winners("ECE") == {smaller}
        outcomes.add(frozenset(expected))
    assert len(outcomes) == 3, "each of them won, and there was a draw"
    grid = table("model", "a", "b", [compare(0.05)])
    assert (4, 1) in grid.best
    assert (5, 1) not in grid.best
    assert (3, 1) not in grid.best, "plain is a yardstick, no competitor"


def test_slight_is_at_most_five_hundredths_of_a_nat_and_better_than_plain() -> None:
    good = of_nlpd(2.0, 1.0, 1.04, "good")
    assert claim([good]).verdict == "holds"
    assert claim([of_nlpd(2.0, 1.0, 0.5)]).verdict == "holds", "better is no degradation"
    worse = claim([good, of_nlpd(2.0, 1.0, 1.06, "bad")])
    assert worse.verdict == "does not hold"
    assert "on 1 of 2 sets (not on bad); at worst +0.060 nats on bad, 0.94 nats below plain" in worse.figure
    assert worse.figure.endswith("0.94 nats below plain even so")
    harmed = claim([of_nlpd(1.05, 1.0, 1.1, "plain is better")])
    assert harmed.verdict == "does not hold"
    assert harmed.figure.endswith(
        "0 of 1 set (not on plain is better); at worst +0.100 nats on plain is better, 0.05 nats above plain"
    )
    assert claim([of_nlpd(2.0, 1.0, 0.5)]).figure.endswith("at worst -0.500 nats on set, 1.50 nats below plain")
    assert claim([good, of_nlpd(1.02, 1.0, 1.04, "plain is better")]).verdict == "does not hold"


def test_printed_values_are_of_the_same_model_pairs_and_set() -> None:
    assert printed_value(CLIP_BASE, LAION, "ACC", "food101") == 80.43
    assert printed_value("laion/CLIP-ViT-B-32-laion2B-s34B-b79K", CC12M, "NLPD", "flowers102") == 1.77
    assert printed_value(CLIP_BASE, f"/data/{CC12M}", "ECE", "sun397") == 3.89
    assert printed_value(SIGLIP_BASE, LAION, "ACC", "food101") is None
    assert printed_value(CLIP_BASE, "train", "ACC", "food101") is None
    assert printed_value(CLIP_BASE, None, "ACC", "food101") is None
    assert printed_value(CLIP_BASE, LAION, "ACC", "imagenet-a") is None
    grid = table(CLIP_BASE, LAION, CC12M, [of_nlpd(2.0, 1.0, 1.04, "food101")])
    assert [row[1].partition(" | ")[2] for row in grid.rows] == [
        "",
        "80.43",
        "80.35",
        "",
        "0.68",
        "0.68",
        "",
        "1.69",
        "0.99",
    ]


def test_a_proxy_is_needed(lab: Lab) -> None:
    plan = lab.plan.with_given(pairs=[lab.source(0)])
    with pytest.raises(BayesVLMError, match=r"the proxy for it.*--pairs"):
        proxy_data(Lab(plan, lab.out, lab.cache, device="cpu"))


def test_a_set_that_is_in_the_proxy_is_pointed_out(lab: Lab, found: Finding) -> None:
    assert not any("among the proxy's pairs" in remark for remark in found.remarks)
    plan = Plan(("emoji-clip",), ("new-drawing", "emojione-colour"), "validation", WORLD_PAIRS)
    remarks = module._remarks(Lab(plan, lab.out, lab.cache), "emoji-clip", {})
    (remark,) = [each for each in remarks if "among the proxy's pairs" in each]
    assert remark == "emojione-colour is tested on and among the proxy's pairs: leave it out on one side."
    both = replace(plan, sets=("emojione-colour", "openmoji-colour"))
    assert any(
        each.startswith("emojione-colour and openmoji-colour are tested on")
        for each in module._remarks(Lab(both, lab.out, lab.cache), "emoji-clip", {})
    )


@pytest.mark.parametrize(
    ("model", "sets", "said"),
    [
        ("emoji-clip", WORLD_SETS, ["stand for CC12M, so the sets are those without them.", "29 of openmoji-black"]),
        ("emoji-clip", ("new-drawing",), ["stand for CC12M."]),
        ("mine", WORLD_SETS, []),
    ],
)
def test_only_stand_ins_are_said_to_be(lab: Lab, model: str, sets: tuple[str, ...], said: list[str]) -> None:
    remarks = " ".join(module._remarks(lab.on(Plan((model,), sets, "validation", WORLD_PAIRS)), model, {}))
    told = ("stand for CC12M, so the sets are those without them.", "stand for CC12M.", "29 of openmoji-black")
    assert [each for each in told if each in remarks] == said


def test_the_world_s_plan_tests_on_nothing_of_the_proxy() -> None:
    assert set(WORLD_SETS) == set(TESTS) - set(WORLD_PAIRS[1].split("+"))
    proxy = {image for part in WORLD_PAIRS[1].split("+") for image in load(part).images}
    shared = {name: sum(image in proxy for image in load(name).images) for name in WORLD_SETS}
    assert {name for name, count in shared.items() if count} == {"openmoji-black"}
    assert shared["openmoji-black"] == 29, "as the remark says"


def test_it_goes_to_json_and_back(lab: Lab) -> None:
    done = reproduce(ITEMS[0], lab)
    assert done.finding is not None
    again = json.loads((lab.out / f"{NAME}.json").read_text())
    assert Finding.from_json(again["finding"]).answer == done.finding.answer
