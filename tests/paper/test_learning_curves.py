"""Learning curves in small: what is run, what is kept, how the paper's claims are judged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bayesvlm import BayesVLMError
from bayesvlm.experiments.adaptation import Adaptation
from bayesvlm_paper.items import ITEMS
from bayesvlm_paper.items.learning_curves import Learnt, below_both, below_entropy, measure, measured, tell
from bayesvlm_paper.labelling import STRATEGIES, budgets, experiment
from bayesvlm_paper.plans import CLIP_HUGE, SIGLIP_BASE, Plan
from paper.small_world import SmallLab, drawings, quick, run_of, small_task
from paper.told import Told, told


def learning_curves(lab: SmallLab, name: str = "results_activelearning") -> Told:
    return told(lab, measure, tell, name=name)


def test_the_numbers_are_those_of_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    lab = SmallLab(tmp_path)
    finding = learning_curves(lab)
    files = [json.loads(path.read_text()) for path in (tmp_path / "runs" / "tiny" / "small").glob("*.json")]
    assert sorted((kept["strategy"], kept["seed"]) for kept in files) == sorted(
        (s, k) for s in STRATEGIES for k in (0, 1)
    )

    def at(strategy: str, metric: str = "nlpd") -> np.ndarray:
        own = sorted((kept for kept in files if kept["strategy"] == strategy), key=lambda kept: kept["seed"])
        return np.array([kept["points"]["25"][metric] for kept in own])

    curves, grid = finding.exhibits
    for metric in ("balanced_accuracy", "nlpd", "ece"):
        value, error = curves.curves[metric]["epig"]["25"]
        assert value == pytest.approx(at("epig", metric).mean())
        assert error == pytest.approx(at("epig", metric).std(ddof=1) / np.sqrt(2))
    assert list(curves.curves["nlpd"]["epig"]) == ["0", "10", "25"]
    gained = at("random") - at("epig")
    value, error = finding.numbers["small"]["nats gained"]["random"]["epig"]["25"]
    assert (value, error) == (pytest.approx(gained.mean()), pytest.approx(gained.std(ddof=1) / np.sqrt(2)))
    assert grid.rows[0][4] == f"{gained.mean():+.3f} ± {gained.std(ddof=1) / np.sqrt(2):.3f}"
    (best,) = grid.best
    assert best == (int(np.argmin([at(strategy).mean() for strategy in STRATEGIES])), 2)
    start = files[0]["points"]["0"]["nlpd"]
    assert f"EPIG take the NLPD from {start:.2f} to {at('epig').mean():.2f}" in finding.answer
    assert "tiny stands for CLIP-Base." in finding.remarks
    assert any("does not name the model of this figure" in remark for remark in finding.remarks)

    monkeypatch.setattr(Adaptation, "_run", lambda *_: pytest.fail("this run is there"))
    assert learning_curves(lab) == finding


def test_one_seed_has_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    finding = learning_curves(SmallLab(tmp_path, seeds=1))
    assert finding.numbers["small"]["curves"]["nlpd"]["epig"]["25"][1] is None
    assert "±" not in finding.exhibits[1].rows[0][2]
    assert "One seed" in finding.exhibits[1].caption


@pytest.mark.parametrize(
    ("model", "lr"),
    [
        ("emoji-clip", 1e-4),
        (CLIP_HUGE, 1e-5),
        (SIGLIP_BASE, 1e-5),
        ("laion/CLIP-ViT-B-32-laion2B-s34B-b79K", 1e-5),
    ],
)
def test_the_papers_rate_is_for_its_models(tmp_path: Path, model: str, lr: float) -> None:
    made = experiment(SmallLab(tmp_path, (model,)), "small", ("random",))  # type: ignore[arg-type]
    assert made.schedule.lr == lr
    assert made.schedule.seeds == (0, 1)
    assert made.out is not None
    assert made.out.parent.parent == tmp_path / "runs"
    assert made.out.name == "small"


def test_budgets_are_what_the_pool_has() -> None:
    task = small_task()
    assert budgets(task) == (10, 25)
    assert budgets(replace(task, pool=drawings(200, 1))) == (10, 25, 50, 100, 200)
    assert budgets(replace(task, pool=drawings(7, 1))) == (7,)


def made(**ends: tuple[float, float, float]) -> Learnt:
    """Two seeds of each strategy, a twentieth of a nat apart."""
    runs = [
        run_of(
            name.replace("_", "-"),
            seed,
            {10: 2.0, **{count: at + 0.05 * seed for count, at in zip((50, 100, 200), own, strict=True)}},
        )
        for name, own in ends.items()
        for seed in (0, 1)
    ]
    return Learnt({"protocol": {"budgets": [10, 50, 100, 200]}, **measured(runs, (10, 50, 100, 200))})


GOOD = {
    "epig": (1.6, 1.5, 1.4),
    "targeted_bald": (1.7, 1.6, 1.5),
    "targeted_entropy": (1.5, 1.4, 1.45),
    "entropy": (1.8, 1.7, 1.62),
    "targeted_random": (1.85, 1.75, 1.65),
    "random": (1.9, 1.8, 1.7),
}


@pytest.mark.parametrize(
    ("change", "verdict", "told"),
    [
        ({}, "holds", "3 of 3 sizes on black; "),
        ({"targeted_bald": (1.7, 1.75, 1.5)}, "does not hold", "2 of 3 sizes on black (not on black with 100 labels)"),
        ({"epig": (1.95, 1.5, 1.4)}, "does not hold", "2 of 3 sizes on black (not on black with 50 labels)"),
        ({"random": (1.9, 1.8, 1.45)}, "does not hold", "targeted BALD over random -0.050"),
    ],
)
def test_both_are_to_be_below_both_everywhere(change: dict, verdict: str, told: str) -> None:
    holds, figure = below_both({"black": made(**(GOOD | change))})
    assert holds == (verdict == "holds")
    assert told in figure
    if not change:
        assert figure.endswith("balanced accuracy of both above both at 0 of 3"), "made equal to the NLPD"
    assert "with 10 labels" not in figure, "equal at first, and not judged there"
    other = below_both({"black": made(**GOOD), "white": made(**(GOOD | change))})
    assert other[0] == holds


def test_epig_is_to_be_below_targeted_entropy_at_every_size() -> None:
    holds, figure = below_entropy({"black": made(**GOOD)})
    assert not holds
    assert figure == (
        "nats gained, black: -0.100 ± 0.000 with 50 labels, -0.100 ± 0.000 with 100 labels, "
        "+0.050 ± 0.000 with 200 labels"
    )
    ahead = made(**(GOOD | {"epig": (1.4, 1.3, 1.4)}))
    assert below_entropy({"black": ahead})[0]
    assert not below_entropy({"white": ahead, "black": made(**GOOD)})[0]


def test_what_was_not_trained_is_not_judged(tmp_path: Path) -> None:
    finding = learning_curves(SmallLab(tmp_path, models=(), plan=Plan()), "results_activelearning_clip_huge")
    assert [claim.verdict for claim in finding.claims] == ["cannot be tested here"] * 2
    assert finding.answer.startswith("Not run: no larger model was trained on the embedded world")
    huge = ITEMS["results_activelearning_clip_huge"]
    assert huge.world.models == ()
    assert huge.world.targets, "so that a model named by hand can be run"
    assert huge.paper.models == (CLIP_HUGE,)
    with pytest.raises(BayesVLMError, match="no domain to get better at"):
        learning_curves(SmallLab(tmp_path, plan=Plan(("tiny",))), "results_activelearning_clip_huge")
