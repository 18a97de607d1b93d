"""The adaptation experiment in small: what is kept, what is not done twice, and what the runs say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from core.references import normal

from bayesvlm import BayesVLM, BayesVLMError, Features
from bayesvlm.active import STRATEGIES, Epig, finetune, select
from bayesvlm.evaluation import balanced_accuracy, nlpd
from bayesvlm.experiments.adaptation import SCHEMA, Adaptation, Labelled, Run, Schedule, Task, advantage, curves
from bayesvlm.experiments.earlier import Earlier
from bayesvlm.report.adaptation import verdicts, write_adaptation

CLASSES = 3
SCHEDULE = Schedule(
    strategies=("random", "targeted-random", "targeted-bald", "epig"),
    budgets=(3, 8),
    seeds=(0, 1),
    draws=20,
    epig=Epig(gamma=1e-2, beta=5.0, targets=6, candidates=20),
    lr=1e-2,
    epochs=4,
)


@pytest.fixture(scope="module")
def vlm() -> BayesVLM:
    made = BayesVLM.from_projections(normal(5, 8, seed=0).float(), normal(5, 7, seed=1).float(), logit_scale=1.5)
    return made.fit([(Features(normal(60, 8, seed=2)), Features(normal(60, 7, seed=3)))])


def drawings(count: int, seed: int, shift: float = 0.0) -> Labelled:
    labels = torch.arange(count) % CLASSES
    return Labelled(Features(normal(CLASSES, 8, seed=4)[labels] + 0.5 * normal(count, 8, seed=seed) + shift), labels)


@pytest.fixture(scope="module")
def task() -> Task:
    classes = Features(normal(CLASSES, 7, seed=6))
    domains = ("here",) * 10 + ("there",) * 20
    return Task("small", drawings(30, 1), drawings(18, 2, 0.5), drawings(12, 3), classes, domains)


def test_a_point_is_choosing_tuning_and_measuring(vlm: BayesVLM, task: Task) -> None:
    runs = Adaptation(vlm, task, SCHEDULE).run()
    assert [(run.strategy, run.seed) for run in runs] == [(s, seed) for s in SCHEDULE.strategies for seed in (0, 1)]
    run = next(run for run in runs if (run.strategy, run.seed) == ("epig", 1))
    picks = select(
        vlm, task.pool.features, task.target.features, task.classes, "epig", 8, task.pool.labels, 1,
        draws=20, options=SCHEDULE.epig,
    )  # fmt: skip
    assert run.picks == picks.tolist()
    chosen = picks[:3]
    adapted = finetune(
        vlm, task.pool.features[chosen], task.pool.labels[chosen], task.classes,
        (task.validation.features, task.validation.labels), 1e-2, 1, epochs=4,
    )  # fmt: skip
    probs = adapted.classify(task.target.features, task.classes).probs
    assert run.points[3]["nlpd"] == pytest.approx(nlpd(probs, task.target.labels).value)
    assert run.points[3]["balanced_accuracy"] == pytest.approx(float(balanced_accuracy(probs, task.target.labels)))
    before = vlm.classify(task.target.features, task.classes).probs
    assert run.points[0]["nlpd"] == pytest.approx(nlpd(before, task.target.labels).value)
    assert sum(run.domains.values()) == 8
    assert set(run.domains) <= {"here", "there"}


def test_runs_that_are_there_are_read(
    vlm: BayesVLM, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Adaptation(vlm, task, SCHEDULE, tmp_path).run()
    assert len(list(tmp_path.glob("*.json"))) == 8
    next(tmp_path.glob("random-1-*.json")).unlink()  # as an interruption would leave it
    next(tmp_path.glob("epig-0-*.json")).write_text("{")
    done: list[tuple[str, int]] = []
    honest = Adaptation._run
    monkeypatch.setattr(Adaptation, "_run", lambda self, s, seed: done.append((s, seed)) or honest(self, s, seed))
    again = Adaptation(vlm, task, SCHEDULE, tmp_path).run()
    assert done == [("random", 1), ("epig", 0)]
    assert [(run.picks, run.points, run.domains) for run in again] == [
        (run.picks, run.points, run.domains) for run in first
    ]


def test_runs_of_an_earlier_time_are_done_again_once(
    vlm: BayesVLM, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = replace(SCHEDULE, strategies=("random",), seeds=(0,))
    Adaptation(vlm, task, one, tmp_path).run()
    earlier, done, honest = Earlier.below(tmp_path), [], Adaptation._run
    monkeypatch.setattr(Adaptation, "_run", lambda self, s, seed: done.append((s, seed)) or honest(self, s, seed))
    for _ in range(2):
        Adaptation(vlm, task, one, tmp_path, earlier).run()
    assert done == [("random", 0)]


@pytest.mark.parametrize(
    ("change", "redone"),
    [
        ({"lr": 5e-3}, {"random", "targeted-random", "targeted-bald", "epig"}),
        ({"epig": Epig(gamma=0.0, beta=5.0, targets=6, candidates=20)}, {"epig"}),
        ({"strategies": ("random",)}, set()),
        ({"seeds": (0,)}, set()),
    ],
)
def test_other_inputs_are_run_again(
    vlm: BayesVLM, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict, redone: set[str]
) -> None:
    Adaptation(vlm, task, SCHEDULE, tmp_path).run()
    done: set[str] = set()
    honest = Adaptation._run
    monkeypatch.setattr(Adaptation, "_run", lambda self, s, seed: done.add(s) or honest(self, s, seed))
    Adaptation(vlm, task, replace(SCHEDULE, **change), tmp_path).run()
    assert done == redone
    done.clear()
    Adaptation(vlm, task, SCHEDULE, tmp_path).run()
    assert done == set(), "the first runs are still there"
    Adaptation(vlm.replace(tau=2.0), task, replace(SCHEDULE, strategies=("random",), seeds=(0,)), tmp_path).run()
    assert done == {"random"}, "another posterior"
    done.clear()
    elsewhere = replace(task, domains=("here",) * 30)
    Adaptation(vlm, elsewhere, replace(SCHEDULE, strategies=("random",), seeds=(0,)), tmp_path).run()
    assert done == {"random"}, "another task"


def test_the_search_goes_by_validation(
    vlm: BayesVLM, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bayesvlm.experiments import adaptation

    monkeypatch.setattr(adaptation, "GAMMAS", (1e-3, 1.0))
    monkeypatch.setattr(adaptation, "BETAS", (1.0, 100.0))
    found = Adaptation(vlm, task, SCHEDULE, tmp_path).search(budget=5)
    assert set(found) == {(1e-3, 1.0), (1e-3, 100.0), (1.0, 1.0), (1.0, 100.0)}
    picks = select(
        vlm, task.pool.features, task.target.features, task.classes, "epig", 5, task.pool.labels, 0,
        draws=20, options=Epig(gamma=1.0, beta=100.0, targets=6, candidates=20),
    )  # fmt: skip
    validation = (task.validation.features, task.validation.labels)
    adapted = finetune(
        vlm, task.pool.features[picks], task.pool.labels[picks], task.classes, validation, 1e-2, 0, epochs=4
    )
    probs = adapted.classify(task.validation.features, task.classes).probs
    assert found[1.0, 100.0] == pytest.approx(nlpd(probs, task.validation.labels).value)
    monkeypatch.setattr(Adaptation, "_run", lambda *_: pytest.fail("this pair was tried already"))
    assert Adaptation(vlm, task, SCHEDULE, tmp_path).search(budget=5) == found


def made(strategy: str, seed: int, at: float) -> Run:
    scores = {"nlpd": at, "balanced_accuracy": 0.5, "ece": 0.1}
    return Run(strategy, seed, [0], {0: scores, 50: scores}, {"here": 1}, {})


def test_curves_and_advantages_pair_the_seeds() -> None:
    runs = [made("random", seed, 2.0 + seed) for seed in range(3)]
    runs += [made("epig", seed, 1.5 + seed + 0.1 * (seed - 1)) for seed in range(3)]
    found = curves(runs)
    assert found["random"][50].value == pytest.approx(3.0)
    assert found["random"][50].standard_error == pytest.approx(1 / 3**0.5)
    gap = advantage(runs, "epig", "random", 50)
    assert gap.value == pytest.approx(0.5)
    assert gap.standard_error == pytest.approx(0.1 / 3**0.5)
    assert verdicts(runs) == [
        "With 50 labels epig has the lowest NLPD, 2.50.",
        "Against random, better: epig (+0.50 ± 0.06).",
    ]
    wide = [made("epig", seed, 2.0 + seed - 0.5 * (seed + 0.2)) for seed in range(3)]
    gap = advantage([*runs[:3], *wide], "epig", "random", 50)
    assert 2 < gap.value / gap.standard_error < 4.3, "beyond two standard errors, not beyond what three seeds can tell"
    assert "no significant difference: epig" in verdicts([*runs[:3], *wide])[1]
    assert "One seed tells no strategy" in verdicts([made("random", 0, 2.0), made("epig", 0, 1.0)])[0]
    with pytest.raises(BayesVLMError, match="no seed in common"):
        advantage([made("random", 0, 1.0), made("epig", 1, 1.0)], "epig", "random", 50)


def test_the_page_tells_of_every_strategy(vlm: BayesVLM, task: Task, tmp_path: Path) -> None:
    schedule = replace(SCHEDULE, strategies=STRATEGIES, budgets=(3, 8))
    experiment = Adaptation(vlm, task, schedule, tmp_path / "runs")
    runs = experiment.run()
    answers = experiment.before_and_after(runs)
    assert list(answers) == ["before", "after 8 labels by epig"]
    classes = {"small": CLASSES}
    page = write_adaptation({"small": runs}, {"small": answers}, classes, tmp_path / "report.html", "a model", "do it")
    text = page.read_text()
    for strategy in STRATEGIES:
        assert strategy in text
    assert verdicts(runs)[0] in text
    assert "With 8 labels" in text, "the largest budget is judged, whatever it is"
    assert "over targeted-random" in text
    gap = advantage(runs, "epig", "random", 8)
    assert f"{gap.value:+.2f} ± {gap.standard_error:.2f}" in text
    alone = [run for run in runs if run.seed == 0]
    one = write_adaptation({"small": alone}, {}, {}, tmp_path / "one.html", "a model").read_text()
    assert "One seed tells no strategy" in one
    assert "± 0.00" not in one
    assert "chosen from" in text
    (kept,) = (tmp_path / "runs").glob("epig-0-*.json")
    assert json.loads(kept.read_text())["schema"] == SCHEMA


def test_a_pool_that_is_too_small(vlm: BayesVLM, task: Task) -> None:
    with pytest.raises(BayesVLMError, match="The largest budget is 200 and the pool of small has 30 images"):
        Adaptation(vlm, task)
    with pytest.raises(BayesVLMError, match="There are 30 images and 2 labels"):
        Labelled(task.pool.features, torch.tensor([0, 1]))
