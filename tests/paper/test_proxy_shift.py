"""Distorted proxy data: what is fitted, on which images, with which tau; fitted once for all sets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bayesvlm.artifacts import SavedPosterior
from bayesvlm.data.distortion import LEVELS, Distortion, Kind
from bayesvlm.report.blocks import Table
from bayesvlm_paper.exhibits import Lines
from bayesvlm_paper.items import ITEMS
from bayesvlm_paper.items import proxy_shift as module
from bayesvlm_paper.items.proxy_shift import (
    FIXED,
    TUNED,
    Shift,
    claims,
    curves,
    measure,
    printed_values,
    remarks,
    table,
    tell,
)
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.plans import CLIP_BASE, LAION, SIGLIP_BASE, Plan
from paper.tiny_lab import open_lab, write_world
from paper.told import Told, told

KINDS: tuple[Kind, ...] = ("greyscale", "jpeg", "blur")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    folder = tmp_path_factory.mktemp("world")
    return open_lab(write_world(folder), folder / "out")


@pytest.fixture(scope="module")
def found(lab: Lab) -> Told:
    return told(lab, measure, tell, name="food_aug")


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that were fitted."""
    made: list[str] = []
    honest = Lab.fitted_on

    def counted(self: Lab, name: str, *given: Any) -> Any:
        made.append(name)
        return honest(self, name, *given)

    monkeypatch.setattr(Lab, "fitted_on", counted)
    return made


def fresh(lab: Lab, **given: Any) -> Lab:
    return Lab(lab.plan.with_given(**given), lab.out, lab.cache, device="cpu")


def flat(numbers: Any) -> list[float]:
    return [leaf for each in numbers.values() for leaf in flat(each)] if isinstance(numbers, dict) else [numbers]


def confidence(lab: Lab, vlm: Any, data: str) -> float:
    images, classes = lab.images(lab.models[0], data), lab.classes(lab.models[0], data)
    return 100 * float(vlm.classify(images.features, classes).probs.amax(1).mean())


def nlpd(lab: Lab, vlm: Any, data: str) -> float:
    images, classes = lab.images(lab.models[0], data), lab.classes(lab.models[0], data)
    probs = vlm.classify(images.features, classes).probs.double()
    return -float(probs[torch.arange(len(images.labels)), images.labels].log().mean())


@pytest.mark.parametrize(("kind", "level"), [("greyscale", 1.0), ("jpeg", 100), ("jpeg", 1), ("blur", 50)])
def test_a_posterior_is_of_the_distorted_pairs_and_tested_on_clean_images(
    lab: Lab, found: Told, kind: Kind, level: float
) -> None:
    model, data = lab.models[0], lab.sets[1]
    undistorted = lab.loaded(model).without_posterior().fit([lab.pairs(model)], progress=False)
    undistorted, _ = lab.tuned(model, undistorted)
    vlm = lab.loaded(model).without_posterior().fit([lab.pairs(model, None, Distortion(kind, level))], progress=False)
    kept = found.numbers[data]
    fixed = kept["tau fixed"][kind][f"{level:g}"]
    assert fixed["tau"] == pytest.approx(undistorted.tau)
    assert fixed["nlpd"] == pytest.approx(nlpd(lab, vlm.replace(tau=undistorted.tau), data), rel=1e-5)
    assert fixed["confidence"] == pytest.approx(confidence(lab, vlm.replace(tau=undistorted.tau), data), rel=1e-5)
    vlm, _ = lab.tuned(model, vlm)
    again = kept["tau tuned again"][kind][f"{level:g}"]
    assert again["tau"] == pytest.approx(vlm.tau)
    assert again["nlpd"] == pytest.approx(nlpd(lab, vlm, data), rel=1e-5)
    first = kept["tau fixed"]["greyscale"]["0"]
    assert first["nlpd"] == pytest.approx(nlpd(lab, undistorted, data), rel=1e-5)
    assert kept["tau fixed"]["blur"]["0"] == kept["tau tuned again"]["greyscale"]["0"] == first
    assert fixed["nlpd"] != first["nlpd"], "jpeg at quality 100 is measured, too"
    assert fixed["nlpd"] != again["nlpd"]


def test_they_are_fitted_once_for_all_sets(lab: Lab, found: Told, fits: list[str]) -> None:
    again = measure(fresh(lab, sets=[lab.sets[1]]))
    assert fits == []
    assert flat(again[lab.sets[1]]) == pytest.approx(flat(found.numbers[lab.sets[1]]))
    assert len(list((lab.kept / "posteriors").rglob("config.json"))) == 17, "sixteen distorted, one not"


def damage(lab: Lab, folder: Path) -> Lab:
    (folder / "posterior.safetensors").write_bytes(b"cut off")
    return fresh(lab)


def relabel(lab: Lab, folder: Path) -> Lab:
    config = json.loads((folder / "config.json").read_text())
    config["provenance"]["inputs"] = "another"
    (folder / "config.json").write_text(json.dumps(config))
    return fresh(lab)


def other_pairs(lab: Lab, folder: Path) -> Lab:
    return fresh(lab, pairs=[lab.source(1)])


def other_validation(lab: Lab, folder: Path) -> Lab:
    return fresh(lab, validation=lab.sets[0])


@pytest.mark.parametrize("change", [damage, relabel, other_pairs, other_validation])
def test_what_was_made_from_something_else_is_made_again(
    lab: Lab, fits: list[str], change: Callable[[Lab, Path], Lab]
) -> None:
    blur = Distortion("blur", 20)
    kept = fresh(lab).fitted(lab.models[0], distortion=blur)
    (folder,) = (lab.kept / "posteriors").rglob("*training*blur-20")
    fits.clear()
    other = change(lab, folder)
    made = other.fitted(lab.models[0], distortion=blur)
    assert len(fits) == 1
    folder = folder if change is not other_pairs else next((lab.kept / "posteriors").rglob("*proxy*blur-20"))
    saved = SavedPosterior.load(folder)
    torch.testing.assert_close(saved.factors["image"].A, made.factors["image"].A)
    assert saved.config.tau == made.tau
    assert str(saved.config.provenance["source"]).endswith(", blur-20")
    assert (kept.factors["image"].n == made.factors["image"].n) == (change is not other_pairs)


def shift(change_nlpd: dict[Kind, list[float]], change_ece: dict[Kind, list[float]], data: str = "set") -> Shift:
    """What changes at the first and at the last level of each kind; nothing in between."""

    def point(tau: float, nlpd: float, ece: float, confidence: float) -> dict[str, float]:
        return {"tau": tau, "acc": 80.0, "nlpd": nlpd, "ece": ece, "confidence": confidence}

    fixed, tuned = {}, {}
    for kind in KINDS:
        nats, points = change_nlpd.get(kind, [0, 0]), change_ece.get(kind, [0, 0])
        changes = [(0.0, 0.0), (nats[0], points[0]), (0, 0), (0, 0), (0, 0), (nats[1], points[1])]
        again = [*[point(1.0, 1.0, 3.0, 77.0)] * 5, point(1.0, 0.9, 3.2, 77.0)]
        levels = [f"{level:g}" for level in LEVELS[kind]]
        moved = [point(2.0, 1.0 + nat, 3.0 + more, 70.0) for nat, more in changes]
        fixed[kind], tuned[kind] = (dict(zip(levels, each, strict=True)) for each in (moved, again))
    return Shift(data, {FIXED: fixed, TUNED: tuned})


@pytest.mark.parametrize(
    ("nats", "points", "expected"),
    [
        ({}, {"blur": [0.0, 1.2]}, [True, True, False]),  # NLPD is not worse
        ({"blur": [0.0, 0.1]}, {"blur": [0.0, 1.2]}, [True, True, True]),
        ({"blur": [0.0, 0.1]}, {"blur": [0.0, 0.9]}, [True, False, True]),
        ({"blur": [0.0, 0.1]}, {"blur": [0.0, -5.0]}, [True, False, False]),
        ({"blur": [0.0, 0.1], "jpeg": [0.0, 0.2]}, {"blur": [0.0, 2.0]}, [True, True, False]),
        ({"blur": [0.0, 0.1]}, {"blur": [0.0, 2.0], "greyscale": [0.0, 2.5]}, [True, True, False]),
        ({"jpeg": [0.03, 0.0]}, {}, [False, False, False]),
        ({"jpeg": [-0.03, 0.0]}, {}, [False, False, False]),  # stable is neither worse nor better
        ({"greyscale": [0.01, 0.0]}, {"jpeg": [-1.6, 0.0]}, [False, False, False]),
        ({"greyscale": [0.01, 0.0]}, {"jpeg": [1.4, 0.0]}, [True, False, False]),
    ],
)
def test_the_claims_are_judged_by_their_thresholds(
    nats: dict[Kind, list[float]], points: dict[Kind, list[float]], expected: list[bool]
) -> None:
    judged = claims([shift(nats, points)])
    assert [holds for holds, _ in judged] == expected
    harmless = shift({}, {}, "other")
    assert not claims([shift(nats, points), harmless])[1][0], "on every set"


def test_figures_and_answer() -> None:
    one = shift({"blur": [0.001, 0.25], "jpeg": [-0.012, 0]}, {"blur": [0.0, 7.5], "greyscale": [-0.3, 0.0]})
    mild, strong, most = (figure for _, figure in claims([one]))
    first = "greyscale +0.000 nats and -0.3 points, jpeg -0.012 nats and +0.0 points, blur +0.001 nats and +0.0 points"
    last = "greyscale +0.000 nats and +0.0 points, jpeg +0.000 nats and +0.0 points, blur +0.250 nats and +7.5 points"
    assert mild.endswith(f"being allowed: set: {first}")
    assert strong == "ECE at radius 50 against undistorted: +7.5 points on set (tau tuned again: +0.2)"
    assert most == f"at the strongest level: set: {last}"
    assert module._answer(one) == (
        "On set the mildest distortions of the proxy images change ECE by -0.3 to +0.0 points and NLPD by -0.012 to "
        "+0.001 nats, the strongest blur by +7.5 points and +0.250 nats (the model is then 70 % sure on average and "
        "right in 80 %), and with tau tuned again by +0.2 points and -0.100 nats."
    )


def plan_of(model: str = CLIP_BASE, source: str = LAION) -> Plan:
    return Plan((model,), pairs=(source,))


def test_printed_values_are_of_the_same_model_pairs_and_set() -> None:
    assert printed_values(plan_of(), "food101", "blur", "ece") == [1.69, 2.38, 3.25, 5.69, 8.93, 11.52]
    assert printed_values(plan_of(source=f"/data/{LAION}"), "cifar10", "jpeg", "nlpd") == [*[0.203] * 5, 0.205]
    found = printed_values(plan_of(), "imagenet-r", "greyscale", "acc")
    assert found == [74.49, 74.51, 74.51, 74.48, 74.47, 74.56]
    assert printed_values(plan_of(SIGLIP_BASE), "food101", "blur", "ece") is None
    assert printed_values(plan_of(source="train"), "food101", "blur", "ece") is None
    assert printed_values(plan_of(), "sun397", "blur", "ece") is None
    assert printed_values(plan_of(), "new-drawing", "blur", "ece") is None


def test_the_exhibits() -> None:
    one = shift({"blur": [0.0, 0.25]}, {"blur": [0.0, 7.5]}, "food101")
    lines, grid = curves(plan_of(), one), table(plan_of(), one)
    assert [(panel.title, panel.y) for panel in lines.panels] == [
        (kind, unit) for unit in ("NLPD (nats)", "ECE (%)") for kind in KINDS
    ]
    blurred = lines.panels[-1]
    assert blurred.x == "level (blur radius 0, 10, 20, 30, 40, 50)"
    assert [each.name for each in blurred.series] == ["tau fixed", "tau tuned again", "the paper"]
    assert [each.dashed for each in blurred.series] == [False, False, True]
    assert blurred.series[0].y == [3.0, 3.0, 3.0, 3.0, 3.0, 10.5]
    assert [len(panel.series) for panel in curves(plan_of(SIGLIP_BASE), one).panels] == [2] * 6
    assert len(grid.rows) == 18
    assert grid.rows[-1] == [
        "blur radius 50",
        "80.0 | 80.4",
        "1.250 | 0.75",
        "10.5 | 11.52",
        "80.0",
        "0.900",
        "3.2",
        "1",
    ]
    assert sum(width for _, width in grid.groups) == len(grid.columns) == len(grid.rows[0])


def test_the_finding(lab: Lab, found: Told) -> None:
    assert [type(each) for each in found.exhibits] == [Lines, Table] * 2
    assert all(data in found.answer for data in lab.sets)
    assert {kind: [float(level) for level in found.numbers[lab.sets[0]]["tau fixed"][kind]] for kind in KINDS} == {
        kind: [float(level) for level in levels] for kind, levels in LEVELS.items()
    }


def test_only_stand_ins_are_said_to_be() -> None:
    said = {
        (model, data): " ".join(remarks(Plan((model,), (data,)), "food_aug"))
        for model, data in [("emoji-clip", "new-drawing"), ("mine", "new-drawing"), ("emoji-clip", "my-set")]
    }
    assert [key for key, each in said.items() if "stands for" in each] == [("emoji-clip", "new-drawing")]
    assert "emoji-clip stands for CLIP-Base, new-drawing for Food-101." in said["emoji-clip", "new-drawing"]


def test_the_items() -> None:
    assert list(module.ITEMS) == list(module.TABLES.values())
    for data, name in module.TABLES.items():
        assert ITEMS[name].paper.sets == (data,)
        assert len(ITEMS[name].world.sets) == 1
