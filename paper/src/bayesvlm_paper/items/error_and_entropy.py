"""Error against entropy before and after active learning: whether wrong answers are unsure, and where labels move them.

The paper's first figure changes two things at once, the choice of the labels and the prediction; the table beside it
has all four combinations, so that a reader can tell which of the two does what.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from bayesvlm.evaluation import Outcomes
from bayesvlm.experiments.adaptation import Adaptation, Run
from bayesvlm.report.blocks import Table
from bayesvlm_paper import labelling
from bayesvlm_paper.exhibits import Exhibit, Quadrants
from bayesvlm_paper.finding import Claim, Finding, Numbers
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.plans import CLIP_HUGE, Plan
from bayesvlm_paper.wording import counted, signed

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


def error(found: Outcomes) -> list[float]:
    """1 - p(right) of every answer."""
    return (-(-found.nll).expm1()).clamp(0, 1).tolist()


def shares(found: Outcomes, classes: int) -> dict[str, float]:
    """The part of the answers in each quarter: wrong is an error above a half, sure an entropy below half of log C."""
    wrong = -(-found.nll).expm1() > 0.5
    sure = found.entropy < math.log(classes) / 2
    quarters = (sure & wrong, ~sure & wrong, sure & ~wrong, ~sure & ~wrong)
    return {name: float(inside.double().mean()) for name, inside in zip(QUARTERS, quarters, strict=True)}


def scores(found: Outcomes, classes: int) -> dict[str, float]:
    """The quarters, the misclassification rate and the NLPD."""
    rate = 1 - float(found.correct.double().mean())
    return {**shares(found, classes), "misclassified": rate, "nlpd": float(found.nll.mean())}


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

    def claim(
        text: str,
        figure: str,
        larger: Callable[[Shares], float],
        smaller: Callable[[Shares], float],
        form: Callable[[float], str] = _percent,
    ) -> Claim:
        pairs = {target: (larger(of), smaller(of)) for target, of in found.items()}
        told = [f"{target}: {figure.format(*map(form, pair))}" for target, pair in pairs.items()]
        return Claim.judged(text, all(high > low for high, low in pairs.values()), "; ".join(told))

    return [
        claim(
            "BayesVLM reduces overconfident wrong predictions in the zero-shot setting.",
            "sure and wrong are {} of the plain answers and {} of the Bayesian",
            lambda of: of[plain][_SURE_WRONG],
            lambda of: of[bayes][_SURE_WRONG],
        ),
        claim(
            "Active learning moves the answers of BayesVLM to right and sure.",
            "sure and right are {} after, {} before",
            lambda of: of[adapted][_SURE_RIGHT],
            lambda of: of[bayes][_SURE_RIGHT],
        ),
        claim(
            "BayesVLM with EPIG adapts more effectively than CLIP with entropy selection.",
            "labels change the share that is sure and right by {} (Bayesian) and {} (plain)",
            lambda of: of[adapted][_SURE_RIGHT] - of[bayes][_SURE_RIGHT],
            lambda of: of[tuned][_SURE_RIGHT] - of[plain][_SURE_RIGHT],
            lambda share: f"{signed(100 * share, 1)} points",
        ),
        claim(
            "After adaptation BayesVLM misclassifies less than the fine-tuned CLIP.",
            "{} misclassified by the plain, {} by the Bayesian",
            lambda of: of[tuned]["misclassified"],
            lambda of: of[adapted]["misclassified"],
        ),
        claim(
            "After adaptation fewer answers of BayesVLM are overconfident and wrong than of the fine-tuned CLIP.",
            "sure and wrong are {} of the plain answers and {} of the Bayesian",
            lambda of: of[tuned][_SURE_WRONG],
            lambda of: of[adapted][_SURE_WRONG],
        ),
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def answer(model: str, found: Mapping[str, Shares], labels: Mapping[str, int]) -> str:
    """What the posterior does to the sure and wrong, and labels to the sure and right."""
    said = []
    for target, of in found.items():
        plain, bayes = (of[state] for state in BEFORE)
        tuned, adapted = (of[state] for state in AFTER)
        crossed = of[CROSSED[0]]
        said.append(
            f"on {target} the posterior takes the sure and wrong answers from {_percent(plain[_SURE_WRONG])} to "
            f"{_percent(bayes[_SURE_WRONG])}, and the sure and right ones from {_percent(plain[_SURE_RIGHT])} to "
            f"{_percent(bayes[_SURE_RIGHT])}; after {counted(labels[target], 'label')} by EPIG "
            f"{_percent(adapted[_SURE_RIGHT])} are sure and right and {_percent(adapted['misclassified'])} are "
            f"misclassified, where the plain model has {_percent(tuned[_SURE_RIGHT])} and "
            f"{_percent(tuned['misclassified'])} with labels by entropy, {_percent(crossed[_SURE_RIGHT])} and "
            f"{_percent(crossed['misclassified'])} with those of EPIG"
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
        "error": [round(value, 4) for value in error(found)],
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
    remarks = (
        *labelling.stand_in(plan.model, CLIP_HUGE, "CLIP-Huge"),
        "The paper's figure is of EuroSAT, which is one domain: here there are domains, of which one is the target.",
        *(labelling.domain_remarks(plan) if plan.domains == "world" else ()),
        "Each model is fine-tuned for its own prediction: the epoch kept is the one at which that has the lowest NLPD "
        "on the validation images.",
    )
    return Finding(answer(plan.model, found, labels), claims(found), exhibits, remarks)


ITEMS = {"active_learning": (measure, tell)}
