"""Training data against proxy data: both posteriors as fitted by hand, judged by stated thresholds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy.stats import ttest_rel

from bayesvlm import BayesVLMError
from bayesvlm.experiments.demo import TESTS
from bayesvlm.experiments.scoring import Scores
from bayesvlm.report.blocks import Table
from bayesvlm_paper.items import ITEMS
from bayesvlm_paper.items.proxy_data import NAME, measure, printed_value, remarks, slight, tell
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.plans import CC12M, CLIP_BASE, LAION, SIGLIP_BASE, Plan
from bayesvlm_paper.scoreboard import BEST, Scoreboard, numbers_of
from bayesvlm_paper.wording import from_to
from bayesvlm_world import load
from paper.tiny_lab import open_lab, write_world
from paper.told import Told, kept, told

WORLD = ITEMS[NAME].world


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    folder = tmp_path_factory.mktemp("world")
    return open_lab(write_world(folder), folder / "out")


@pytest.fixture(scope="module")
def found(lab: Lab) -> Told:
    return told(lab, measure, tell)


def sure(right: list[float]) -> Scores:
    """Two classes, the first is right and gets these probabilities."""
    p = torch.tensor(right, dtype=torch.float64)
    return Scores.of(torch.stack([p, 1 - p], dim=1), torch.zeros(len(p), dtype=torch.int64))


def board(**sets: tuple[float, float, float]) -> Scoreboard:
    """Set -> NLPD of plain, training and proxy."""
    rows = ("plain", "training", "proxy")
    return Scoreboard(
        {data: {row: {"nlpd": each} for row, each in zip(rows, nlpd, strict=True)} for data, nlpd in sets.items()}
    )


def test_the_posteriors_are_those_of_their_pairs(lab: Lab, found: Told) -> None:
    model = lab.models[0]
    for number, who in enumerate(("training", "proxy")):
        source = lab.source(number)
        vlm = lab.loaded(model).without_posterior().fit([lab.pairs(model, source)], progress=False)
        vlm, _ = lab.tuned(model, vlm)
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


def test_the_answer_is_made_from_the_numbers(lab: Lab, found: Told) -> None:
    worse = []
    for data in lab.sets:
        kept = found.numbers["sets"][data]
        assert kept["nlpd_worse"] == pytest.approx(kept["proxy"]["nlpd"] - kept["training"]["nlpd"])
        worse.append(kept["nlpd_worse"])
    assert f"changes NLPD by {from_to(worse)} nats on 2 sets" in found.answer
    changes = [kept["proxy"]["nlpd"] - kept["plain"]["nlpd"] for kept in found.numbers["sets"].values()]
    assert f"where that differs from the plain model's by {from_to(changes, 2)} nats" in found.answer
    assert f"at worst {max(worse):+.3f} nats" in found.claims[0].figure


def test_fewer_pairs_are_told_from_other_pairs(lab: Lab, found: Told) -> None:
    changes = found.numbers["as_few_training_pairs"]
    assert set(changes) == set(lab.sets)
    assert any(change != 0 for change in changes.values())
    assert "25 training pairs, drawn at random, change NLPD by" in found.remarks[1]
    plan = Plan(lab.models, lab.sets, lab.plan.validation, (lab.source(1), lab.source(0)))
    turned = told(Lab(plan, lab.out, lab.cache, device="cpu"), measure, tell)
    assert "as_few_training_pairs" not in turned.numbers, "the proxy is the larger one"


def test_the_table(lab: Lab, found: Told) -> None:
    grid = found.exhibits[0]
    assert isinstance(grid, Table)
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
    outcomes = set()
    for gap in (-0.05, -0.003, 0.0, 0.003, 0.05):
        rows = {
            "plain": sure([0.5] * 200),
            "training": sure(base.tolist()),
            "proxy": sure((base - gap + noise).tolist()),
        }
        numbers = numbers_of(rows, judged=("training", "proxy"))
        p = ttest_rel(rows["proxy"].nll.numpy(), rows["training"].nll.numpy()).pvalue
        better = "proxy" if rows["proxy"].nlpd.value < rows["training"].nlpd.value else "training"
        expected = {"training", "proxy"} if p >= 0.05 else {better}
        assert {row for row, of in numbers.items() if "NLPD" in of[BEST]} == expected
        smaller = "training" if rows["training"].ece < rows["proxy"].ece else "proxy"
        assert [row for row, of in numbers.items() if "ECE" in of[BEST]] == [smaller]
        assert numbers["plain"][BEST] == [], "plain is a yardstick, no competitor"
        outcomes.add(frozenset(expected))
    assert len(outcomes) == 3, "each of them won, and there was a draw"


def test_slight_is_at_most_five_hundredths_of_a_nat_and_better_than_plain() -> None:
    assert slight(board(good=(2.0, 1.0, 1.04)))[0]
    assert slight(board(set=(2.0, 1.0, 0.5)))[0], "better is no degradation"
    holds, figure = slight(board(good=(2.0, 1.0, 1.04), bad=(2.0, 1.0, 1.06)))
    assert not holds
    assert "on 1 of 2 sets (not on bad); at worst +0.060 nats on bad, 0.94 nats below plain" in figure
    assert figure.endswith("0.94 nats below plain even so")
    holds, figure = slight(board(harmed=(1.05, 1.0, 1.1)))
    assert not holds
    assert figure.endswith("0 of 1 set (not on harmed); at worst +0.100 nats on harmed, 0.05 nats above plain")
    assert slight(board(set=(2.0, 1.0, 0.5)))[1].endswith("at worst -0.500 nats on set, 1.50 nats below plain")
    assert not slight(board(good=(2.0, 1.0, 1.04), harmed=(1.02, 1.0, 1.04)))[0]


def printed(lab: Lab, found: Told, model: str) -> list[str]:
    """What stands behind the bars, were the first set Food-101."""
    plan = Plan((model,), ("food101",), "validation", (LAION, f"/data/{CC12M}"))
    posteriors = {source: {"pairs": 3, "tau": 1.0} for source in plan.pairs}
    numbers = {"posteriors": posteriors, "sets": {"food101": found.numbers["sets"][lab.sets[0]]}}
    table = tell(kept(numbers, plan)).exhibits[0]
    assert isinstance(table, Table)
    return [row[1].partition(" | ")[2] for row in table.rows]


def test_printed_values_are_of_the_same_model_pairs_and_set(lab: Lab, found: Told) -> None:
    plan = Plan((CLIP_BASE,), pairs=(LAION, f"/data/{CC12M}"))
    assert printed_value(plan, "training", "ACC", "food101") == 80.43
    assert printed_value(plan, "proxy", "ECE", "sun397") == 3.89
    assert printed_value(plan, "plain", "ACC", "food101") is None
    assert printed_value(plan, "training", "ACC", "imagenet-a") is None
    assert printed_value(Plan((CLIP_BASE,), pairs=("train", CC12M)), "training", "ACC", "food101") is None
    assert printed(lab, found, CLIP_BASE) == ["", "80.4", "80.3", "", "0.68", "0.68", "", "1.7", "1.0"]
    assert printed(lab, found, SIGLIP_BASE) == [""] * 9


def test_a_proxy_is_needed(lab: Lab) -> None:
    plan = lab.plan.with_given(pairs=[lab.source(0)])
    with pytest.raises(BayesVLMError, match=r"the proxy for it.*--pairs"):
        measure(Lab(plan, lab.out, lab.cache, device="cpu"))


BARE = {"posteriors": {}}


def test_a_set_that_is_in_the_proxy_is_pointed_out(found: Told) -> None:
    assert not any("among the proxy's pairs" in remark for remark in found.remarks)
    plan = replace(WORLD, sets=("new-drawing", "emojione-colour"))
    (remark,) = [each for each in remarks(plan, BARE) if "among the proxy's pairs" in each]
    assert remark == "emojione-colour is tested on and among the proxy's pairs: leave it out on one side."
    both = remarks(replace(plan, sets=("emojione-colour", "openmoji-colour")), BARE)
    assert any(each.startswith("emojione-colour and openmoji-colour are tested on") for each in both)


@pytest.mark.parametrize(
    ("model", "sets", "said"),
    [
        ("emoji-clip", WORLD.sets, ["stand for CC12M, so the sets are without them.", "29 of openmoji-black"]),
        ("emoji-clip", ("emojione-colour",), ["stand for CC12M."]),
        ("mine", WORLD.sets, []),
    ],
)
def test_only_stand_ins_are_said_to_be(model: str, sets: tuple[str, ...], said: list[str]) -> None:
    whole = " ".join(remarks(replace(WORLD, models=(model,), sets=sets), BARE))
    told = ("stand for CC12M, so the sets are without them.", "stand for CC12M.", "29 of openmoji-black")
    assert [each for each in told if each in whole] == said


def test_the_world_s_plan_tests_on_nothing_of_the_proxy() -> None:
    assert set(WORLD.sets) == set(TESTS) - set(WORLD.pairs[1].split("+"))
    proxy = {image for part in WORLD.pairs[1].split("+") for image in load(part).images}
    shared = {name: sum(image in proxy for image in load(name).images) for name in WORLD.sets}
    assert {name for name, count in shared.items() if count} == {"openmoji-black"}
    assert shared["openmoji-black"] == 29, "as the remark says"
