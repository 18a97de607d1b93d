"""Error against entropy in small: the quarters, the four models, what is claimed of them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from core.references import normal

from bayesvlm import Features
from bayesvlm.active import finetune
from bayesvlm.evaluation import Outcomes
from bayesvlm.experiments.adaptation import Adaptation, Labelled
from bayesvlm_paper.items import learning_curves
from bayesvlm_paper.items.error_and_entropy import (
    AFTER,
    BEFORE,
    QUARTERS,
    State,
    answers,
    claims,
    measure,
    scores,
    table,
    tell,
)
from bayesvlm_paper.labelling import experiment
from paper.small_world import SmallLab, drawings, model, quick
from paper.told import told


def test_quarters_one_answer_at_a_time() -> None:
    probs = torch.softmax(3 * normal(200, 4, seed=1), dim=1)
    labels = torch.arange(200) % 4
    counted = dict.fromkeys(QUARTERS, 0)
    wrong = 0
    for row, label in zip(probs.tolist(), labels.tolist(), strict=True):
        entropy = -sum(p * math.log(p) for p in row)
        name = "sure and " if entropy < math.log(4) / 2 else "unsure and "
        counted[name + ("wrong" if 1 - row[label] > 0.5 else "right")] += 1
        wrong += row.index(max(row)) != label
    assert min(counted.values()) > 0
    outcomes = Outcomes.of(probs, labels)
    found = scores(outcomes, 4)
    assert {name: found[name] for name in QUARTERS} == pytest.approx({n: count / 200 for n, count in counted.items()})
    assert found["misclassified"] == pytest.approx(wrong / 200)


def test_the_epoch_is_the_best_of_its_own_prediction() -> None:
    """Against training for 0, 1, 2, ... epochs, and looking at each."""
    vlm, pool = model(), drawings(20, 1)
    held = Labelled(Features(normal(12, 8, seed=50)), torch.arange(12) % 3)
    classes = Features(normal(3, 7, seed=6))
    given = (pool.features, pool.labels, classes)
    tried = [vlm] + [finetune(vlm, *given, None, 0.4, epochs=count) for count in range(1, 7)]
    found = {}
    for method in ("mean", "probcosine"):
        # as in training, the posterior keeps its factors while an epoch is looked for
        each = [vlm.with_image_projection(one.image, vlm.factors["image"]) for one in tried]
        probs = [one.classify(held.features, classes, method=method).probs for one in each]
        if method == "mean":
            torch.testing.assert_close(probs[3], each[3].plain(held.features, classes))
        losses = [float(-p[torch.arange(12), held.labels].log().mean()) for p in probs]
        best = min(range(len(losses)), key=losses.__getitem__)
        kept = finetune(vlm, *given, (held.features, held.labels), 0.4, epochs=6, method=method)
        torch.testing.assert_close(kept.image.augmented, tried[best].image.augmented)
        found[method] = best
    assert found["mean"] != found["probcosine"], "or the test could not tell one from the other"


def test_each_state_is_its_own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    lab = SmallLab(tmp_path)
    learning_curves.measure(lab)  # type: ignore[arg-type]
    monkeypatch.setattr(Adaptation, "_run", lambda *_: pytest.fail("the learning curves have this run"))
    adaptation = experiment(lab, "small", ("entropy", "epig"))  # type: ignore[arg-type]
    runs, task = adaptation.run(), adaptation.task
    (plain,), (bayes,) = (answers(adaptation, runs, state) for state in BEFORE)
    expected = lab.made.plain(task.target.features, task.classes)
    torch.testing.assert_close(plain.entropy, torch.special.entr(expected.double()).sum(dim=1), atol=1e-5, rtol=1e-5)
    expected = lab.made.classify(task.target.features, task.classes).probs
    torch.testing.assert_close(bayes.confidence, expected.max(dim=1).values)
    for state, method in zip(AFTER, ("mean", "probcosine"), strict=True):
        found = answers(adaptation, runs, state)
        own = [run for run in runs if run.strategy == state[1]]
        assert len(found) == len(own) == 2
        chosen = torch.tensor(own[1].picks)
        tuned = finetune(
            lab.made, task.pool.features[chosen], task.pool.labels[chosen], task.classes,
            (task.validation.features, task.validation.labels), 1e-2, 1, epochs=4, method=method,
        )  # fmt: skip
        probs = tuned.classify(task.target.features, task.classes, method=method).probs
        torch.testing.assert_close(found[1].nll, Outcomes.of(probs, task.target.labels).nll)
    last = next(run for run in runs if (run.strategy, run.seed) == ("epig", 1)).points[25]["nlpd"]
    assert float(answers(adaptation, runs, ("Bayes", "epig"))[1].nll.mean()) == pytest.approx(last), (
        "the run's own score"
    )

    finding = told(lab, measure, tell)
    shown, table = finding.exhibits
    assert list(shown.answers) == [
        "plain, zero-shot", "Bayes, zero-shot", "plain, 25 labels by entropy", "Bayes, 25 labels by EPIG",
    ]  # fmt: skip
    first = shown.answers["Bayes, zero-shot"]
    truth = expected[torch.arange(18), task.target.labels]
    assert first["error"] == pytest.approx((1 - truth).tolist(), abs=1e-4)
    assert shown.classes == 3
    assert [row[0] for row in table.rows] == [*shown.answers, "plain, 25 labels by EPIG", "Bayes, 25 labels by entropy"]
    for row in table.rows:
        assert sum(map(float, row[1:5])) == pytest.approx(100, abs=0.21)
    assert len(finding.claims) == 5


def numbers(wrong: float, right: float, misclassified: float) -> dict[str, float]:
    return {"sure and wrong": wrong, "sure and right": right, "misclassified": misclassified}


HOLDING: dict[State, dict[str, float]] = {
    ("plain", ""): numbers(0.3, 0.4, 0.5),
    ("Bayes", ""): numbers(0.1, 0.2, 0.5),
    ("plain", "entropy"): numbers(0.25, 0.45, 0.45),
    ("Bayes", "epig"): numbers(0.1, 0.3, 0.4),
}


@pytest.mark.parametrize(
    ("state", "changed", "failing"),
    [
        (("plain", ""), {}, []),
        (("plain", ""), {"sure and wrong": 0.05}, [0]),
        (("Bayes", ""), {"sure and right": 0.28}, [2]),
        (("Bayes", "epig"), {"sure and right": 0.1}, [1, 2]),
        (("Bayes", "epig"), {"misclassified": 0.46}, [3]),
        (("plain", "entropy"), {"sure and wrong": 0.08}, [4]),
    ],
)
def test_what_makes_a_claim_fail(state: State, changed: dict[str, float], failing: list[int]) -> None:
    other = {**HOLDING, state: {**HOLDING[state], **changed}}
    for found in ({"black": other}, {"white": HOLDING, "black": other}):
        verdicts = [claim.verdict for claim in claims(found)]
        assert [place for place, verdict in enumerate(verdicts) if verdict == "does not hold"] == failing


def test_the_figure_of_a_claim() -> None:
    assert claims({"black": HOLDING})[2].figure == (
        "black: labels change the share that is sure and right by +10.0 points (Bayesian) and +5.0 points (plain)"
    )
    worse = {**HOLDING, ("Bayes", "epig"): numbers(0.1, 0.17, 0.4), ("plain", "entropy"): numbers(0.2, 0.39996, 0.4)}
    assert claims({"black": worse})[2].figure.endswith("by -3.0 points (Bayesian) and +0.0 points (plain)")


@pytest.mark.parametrize(("seeds", "said"), [(1, "of one seed where"), (3, "means over 3 seeds where")])
def test_how_many_seeds_a_table_is_of(seeds: int, said: str) -> None:
    whole = {**dict.fromkeys(QUARTERS, 0.25), "misclassified": 0.5, "nlpd": 1.0}
    shown = table("black", {("plain", ""): whole, ("plain", "epig"): whole}, 1, seeds)
    assert said in shown.caption
    assert [row[0] for row in shown.rows] == ["plain, zero-shot", "plain, 1 label by EPIG"]
