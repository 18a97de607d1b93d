"""Error against entropy before and after active learning: whether wrong answers are unsure, and where labels move them.

The paper's first figure changes two things at once, the choice of the labels and the prediction; the table beside it
has all four combinations, so that a reader can tell which of the two does what.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import Tensor

from bayesvlm.evaluation import Outcomes
from bayesvlm.experiments.adaptation import Adaptation, Run
from bayesvlm.report.blocks import Table
from bayesvlm_paper import labelling
from bayesvlm_paper.catalogue import Judgement, judged
from bayesvlm_paper.exhibits import Exhibit, Quadrants
from bayesvlm_paper.finding import Claim, Finding, Numbers
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.plans import Plan
from bayesvlm_paper.wording import counted, signed

NAME = "active_learning"
Prediction = Literal["plain", "Bayes"]
METHODS: dict[Prediction, Literal["mean", "probcosine"]] = {"plain": "mean", "Bayes": "probcosine"}
CHOICES = {"entropy": "entropy", "epig": "EPIG"}
_SURE_WRONG, _SURE_RIGHT = "sure and wrong", "sure and right"
QUARTERS = (_SURE_WRONG, "unsure and wrong", _SURE_RIGHT, "unsure and right")
"""The paper's (b), (a), (c), (d)."""

State = tuple[Prediction, str]  # how it predicts, and what chose its labels; "" before there are any
Shares = Mapping[State, Mapping[str, float]]
BEFORE: tuple[State, ...] = (("plain", ""), ("Bayes", ""))
AFTER: tuple[State, ...] = (("plain", "entropy"), ("Bayes", "epig"))
CROSSED: tuple[State, ...] = (("plain", "epig"), ("Bayes", "entropy"))
STATES = (*BEFORE, *AFTER, *CROSSED)


def error(found: Outcomes) -> Tensor:  # [N]
    """1 - p(right) of every answer."""
    return -(-found.nll).expm1()


def scores(found: Outcomes, classes: int) -> dict[str, float]:
    """The part of the answers in each quarter, the misclassification rate and the NLPD.

    Wrong is an error above a half, sure an entropy below half of log C.
    """
    wrong, sure = error(found) > 0.5, found.entropy < math.log(classes) / 2
    quarters = zip(QUARTERS, (sure & wrong, ~sure & wrong, sure & ~wrong, ~sure & ~wrong), strict=True)
    return {
        **{name: float(inside.double().mean()) for name, inside in quarters},
        "misclassified": 1 - float(found.correct.double().mean()),
        "nlpd": float(found.nll.mean()),
    }


def answers(adaptation: Adaptation, runs: Sequence[Run], state: State) -> list[Outcomes]:
    """Answers on the target, one for each seed; before there are labels, the same for all.

    A model is fine-tuned for its own prediction: the epoch is the one at which that has the lowest validation NLPD.
    """
    method = METHODS[state[0]]
    if not state[1]:
        return [adaptation.answers(adaptation.vlm, method)]
    own = [run for run in runs if run.strategy == state[1]]
    return [adaptation.answers(adaptation.adapted(run, method), method) for run in own]


def title(state: State, labels: int) -> str:
    """What a panel or a row is called."""
    return f"{state[0]}, {counted(labels, 'label')} by {CHOICES[state[1]]}" if state[1] else f"{state[0]}, zero-shot"


def mean(numbers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Over the seeds."""
    return {name: sum(each[name] for each in numbers) / len(numbers) for name in numbers[0]}


def claims(found: Mapping[str, Shares]) -> list[Claim]:
    """Target -> state -> numbers; what is claimed must be so on every target."""
    (plain, bayes), (tuned, adapted) = BEFORE, AFTER
    # a share, what is to have more of it and what less (of two states, by how much the first has more), how it is told
    rules: list[tuple[str, Sequence[State], Sequence[State], str]] = [
        (_SURE_WRONG, (plain,), (bayes,), "sure and wrong are {} of the plain answers and {} of the Bayesian"),
        (_SURE_RIGHT, (adapted,), (bayes,), "sure and right are {} after, {} before"),
        (
            _SURE_RIGHT,
            (adapted, bayes),
            (tuned, plain),
            "labels change the share that is sure and right by {} (Bayesian) and {} (plain)",
        ),
        ("misclassified", (tuned,), (adapted,), "{} misclassified by the plain, {} by the Bayesian"),
        (_SURE_WRONG, (tuned,), (adapted,), "sure and wrong are {} of the plain answers and {} of the Bayesian"),
    ]

    def share(of: Shares, name: str, states: Sequence[State]) -> float:
        first, *since = (of[state][name] for state in states)
        return first - sum(since)

    judgements: list[Judgement] = []
    for name, *sides, figure in rules:
        pairs = {target: [share(of, name, states) for states in sides] for target, of in found.items()}
        form = _percent if len(sides[0]) == 1 else _points
        each = "; ".join(f"{target}: {figure.format(*map(form, pair))}" for target, pair in pairs.items())
        judgements.append((all(high > low for high, low in pairs.values()), each))
    return judged(NAME, *judgements)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _points(share: float) -> str:
    return f"{signed(100 * share, 1)} points"


def answer(model: str, found: Mapping[str, Shares], labels: Mapping[str, int]) -> str:
    """What the posterior does to the sure and wrong, and labels to the sure and right."""
    said = []
    for target, of in found.items():
        wrong, right, missed = (
            {state: _percent(each[name]) for state, each in of.items()}
            for name in (_SURE_WRONG, _SURE_RIGHT, "misclassified")
        )
        (plain, bayes), (tuned, adapted), (crossed, _) = BEFORE, AFTER, CROSSED
        said.append(
            f"on {target} the posterior takes the sure and wrong answers from {wrong[plain]} to {wrong[bayes]}, and "
            f"the sure and right ones from {right[plain]} to {right[bayes]}; after {counted(labels[target], 'label')} "
            f"by EPIG {right[adapted]} are sure and right and {missed[adapted]} are misclassified, where the plain "
            f"model has {right[tuned]} and {missed[tuned]} with labels by entropy, {right[crossed]} and "
            f"{missed[crossed]} with those of EPIG"
        )
    return f"With {model}, {'; '.join(said)}."


def table(target: str, of: Shares, labels: int, seeds: int) -> Table:
    """Every state, the paper's four first."""
    shares = (*QUARTERS, "misclassified")
    rows = [
        [title(state, labels), *(f"{100 * numbers[name]:.1f}" for name in shares), f"{numbers['nlpd']:.2f}"]
        for state, numbers in of.items()
    ]
    over = "of one seed" if seeds == 1 else f"means over {seeds} seeds"
    caption = (
        f"{target}: shares of the answers, {over} where there are labels. The last two rows cross "
        "what the figure has together: the plain prediction with EPIG's labels, the Bayesian one with those of entropy."
    )
    return Table(["", *(f"{name} (%)" for name in shares), "NLPD"], rows, caption=caption)


def points(found: Outcomes) -> dict[str, list[float]]:
    """Where every answer lies in the figure."""
    return {
        "entropy": [round(value, 4) for value in found.entropy.tolist()],
        "error": [round(value, 4) for value in error(found).clamp(0, 1).tolist()],
        "correct": found.correct.double().tolist(),
    }


def measure(lab: Lab) -> Numbers:
    """Plain and Bayesian prediction, before and after labels that entropy and EPIG chose."""
    numbers: Numbers = {}
    for target in labelling.targets(lab):
        adaptation = labelling.experiment(lab, target, ("entropy", "epig"))
        runs = adaptation.run()
        classes, labels = len(adaptation.task.classes), len(runs[0].picks)
        outcomes = {state: answers(adaptation, runs, state) for state in STATES}
        numbers[target] = {
            "protocol": labelling.protocol_numbers(adaptation),
            **{title(state, labels): mean([scores(each, classes) for each in of]) for state, of in outcomes.items()},
            "labels": labels,
            "classes": classes,
            "answers of the first seed": {
                title(state, labels): points(outcomes[state][0]) for state in (*BEFORE, *AFTER)
            },
        }
    return numbers


def tell(numbers: Mapping[str, Any]) -> Finding:
    """Who is unsure when wrong, before and after."""
    plan = Plan.of(numbers)
    labels = {target: numbers[target]["labels"] for target in plan.targets}
    found = {
        target: {state: numbers[target][title(state, labels[target])] for state in STATES} for target in plan.targets
    }
    exhibits: list[Exhibit] = []
    for target, of in found.items():
        drawn = Quadrants(
            target,
            numbers[target]["answers of the first seed"],
            numbers[target]["classes"],
            f"Error 1 - p(right) against entropy on {target}, of the first seed. Top left: sure and wrong; bottom "
            "left: sure and right.",
            "Error against entropy of the plain and the Bayesian prediction, before and after active learning.",
        )
        exhibits += [drawn, table(target, of, labels[target], len(numbers[target]["protocol"]["seeds"]))]
    said = labelling.remarks(NAME, plan)
    return Finding(answer(plan.model, found, labels), claims(found), exhibits, said)


ITEMS = {NAME: (measure, tell)}
