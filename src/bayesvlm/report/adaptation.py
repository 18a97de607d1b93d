"""The page `bayesvlm adapt` writes: which images are worth labelling, told from the runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from scipy.stats import t as student

from bayesvlm.evaluation import Estimate, Outcomes
from bayesvlm.experiments.adaptation import Run, advantage, curves
from bayesvlm.report.blocks import Commands, Page, Plot, Section, Table, Text
from bayesvlm.report.curves import learning_curves
from bayesvlm.report.entropy import Answers, quadrants_plot
from bayesvlm.report.page import write_page
from bayesvlm.report.plots import Metric
from bayesvlm.report.theme import NARROW, WIDE

METRICS = (
    Metric("balanced_accuracy", "Balanced accuracy (%)", "higher", percent=True),
    Metric("nlpd", "NLPD (nats)", "lower"),
    Metric("ece", "ECE (%)", "lower", percent=True),
)
JUDGED_AT = (50, 100, 200)
BASELINES = ("random", "targeted-random")


def write_adaptation(
    runs: Mapping[str, Sequence[Run]],
    answers: Mapping[str, Mapping[str, Outcomes]],
    classes: Mapping[str, int],
    path: str | Path,
    model: str,
    command: str = "",
    made_from: Mapping[str, Any] | None = None,
) -> Path:
    """Write the page.

    Args:
        runs: task -> its runs.
        answers: task -> "before" and "after" -> the answers on the target.
        classes: task -> how many there are to choose from.
        made_from: what the page shows, for `page.check_replaces`.
    """
    sections = [Section(task, _blocks(task, of, answers.get(task), classes.get(task, 0))) for task, of in runs.items()]
    if command:
        sections.append(Section("Make it again", [Commands([(command, "runs that are there are not done again")])]))
    first = next(iter(runs.values()))
    facts = {
        "model": model,
        "targets": ", ".join(runs),
        "strategies": str(len({run.strategy for run in first})),
        "seeds": str(len({run.seed for run in first})),
    }
    lead = (
        "Images are chosen from a pool of mixed domains by several strategies, labelled, and the image projection is "
        "fine-tuned on them. What is measured is the Bayesian prediction on the target. Lines are means over the "
        "seeds, bands standard errors."
    )
    page = Page("What is worth labelling?", lead, facts, sections, made_from=made_from or {})
    return write_page(page, Path(path))


def curves_plot(runs: Sequence[Run], *, width: float = WIDE) -> Figure:
    """The learning curves of all strategies in the metrics of the page."""
    scores = {
        metric.key: {
            strategy: {
                count: (found.value, None if math.isnan(found.standard_error) else found.standard_error)
                for count, found in points.items()
            }
            for strategy, points in curves(runs, metric.key).items()
        }
        for metric in METRICS
    }
    return learning_curves(scores, METRICS, width=width)


def quadrants(task: str, answers: Mapping[str, Outcomes], classes: int, *, width: float = WIDE) -> Figure:
    """Error against entropy, before and after."""
    shown = {
        name: Answers(found.entropy, -(-found.nll).expm1(), found.correct.double(), classes)
        for name, found in answers.items()
    }
    return quadrants_plot({task: shown}, width=width)


def _blocks(
    task: str, runs: Sequence[Run], answers: Mapping[str, Outcomes] | None, classes: int
) -> list[Text | Plot | Table]:
    plot = Plot(
        curves_plot(runs),
        "Scores on the target against the number of labels. Dashed: strategies that do not look at the target.",
        "Learning curves of every strategy.",
        curves_plot(runs, width=NARROW),
    )
    gains = _gains(runs)
    blocks: list[Text | Plot | Table] = [Text(" ".join(verdicts(runs))), plot]
    blocks += [_table(runs)] if gains is None else [gains, _table(runs)]
    if answers:
        blocks.append(
            Plot(
                quadrants(task, answers, classes),
                "**Error against entropy** before and after, with the share of answers in each quarter. Top left: far "
                "from right, yet with little entropy.",
                "Two-dimensional histograms of error and entropy before and after fine-tuning.",
                quadrants(task, answers, classes, width=NARROW),
            )
        )
    origins = _origins(runs)
    if origins is not None:
        blocks.append(origins)
    return blocks


def verdicts(runs: Sequence[Run]) -> list[str]:
    """Which strategies are told from random and from targeted random in NLPD, with the largest number of labels."""
    named = list(dict.fromkeys(run.strategy for run in runs))
    if len({run.seed for run in runs}) < 2:
        return ["One seed tells no strategy from another; run several."]
    budget = _judged(runs)[-1]
    found = {strategy: points[budget].value for strategy, points in curves(runs).items()}
    best = min(found, key=lambda strategy: found[strategy])
    said = [f"With {budget} labels {best} has the lowest NLPD, {found[best]:.2f}."]
    for over in (over for over in BASELINES if over in named):
        groups: dict[str, list[str]] = {"better": [], "no significant difference": [], "worse": []}
        for strategy in (strategy for strategy in named if strategy != over):
            gap = advantage(runs, strategy, over, budget)
            how = ("better" if gap.value > 0 else "worse") if told_apart(gap, runs) else "no significant difference"
            groups[how].append(f"{strategy} ({gap.value:+.2f} ± {gap.standard_error:.2f})")
        told = [f"{how}: {', '.join(names)}" for how, names in groups.items() if names]
        if told:
            said.append(f"Against {over}, {'; '.join(told)}.")
    return said


def _gains(runs: Sequence[Run]) -> Table | None:
    """Nats gained over the two baselines at every budget that is judged."""
    named = list(dict.fromkeys(run.strategy for run in runs))
    against = [over for over in BASELINES if over in named]
    budgets = _judged(runs)[1:]
    if len({run.seed for run in runs}) < 2 or not against or len(named) < 2:
        return None
    rows: list[list[str]] = []
    best: set[tuple[int, int]] = set()
    for strategy in named:
        row = [strategy]
        for over, budget in product(against, budgets):
            gap = None if strategy == over else advantage(runs, strategy, over, budget)
            if gap is not None and told_apart(gap, runs):
                best.add((len(rows), len(row)))
            row.append("" if gap is None else f"{gap.value:+.2f} ± {gap.standard_error:.2f}")
        rows.append(row)
    return Table(
        ["labels", *(str(budget) for _ in against for budget in budgets)],
        rows,
        best,
        "Nats of NLPD gained on the same target images, mean and standard error over the seeds; bold: significant "
        "(t-test paired by seed, p = 0.05).",
        [("", 1), *((f"over {over}", len(budgets)) for over in against)],
    )


def told_apart(gap: Estimate, runs: Sequence[Run]) -> bool:
    """Whether the gap is beyond what so few seeds can explain: a t-test at 0.05."""
    seeds = len({run.seed for run in runs})
    return abs(gap.value) > float(student.ppf(0.975, seeds - 1)) * gap.standard_error


def _judged(runs: Sequence[Run]) -> list[int]:
    """Numbers of labels to state: none, the paper's, the largest."""
    budgets = sorted(runs[0].points)
    return sorted({0, budgets[-1], *(count for count in JUDGED_AT if count in budgets)})


def _table(runs: Sequence[Run]) -> Table:
    columns = _judged(runs)
    rows = []
    for metric in METRICS:
        for strategy, points in curves(runs, metric.key).items():
            scale, places = (100, 1) if metric.percent else (1, 2)
            cells = [
                f"{scale * found.value:.{places}f}"
                + ("" if math.isnan(found.standard_error) else f" ± {scale * found.standard_error:.{places}f}")
                for found in (points[count] for count in columns)
            ]
            rows.append([f"{metric.title}, {strategy}", *cells])
    return Table(["", *(f"{count} labels" for count in columns)], rows, caption="The same in numbers.")


def _origins(runs: Sequence[Run]) -> Table | None:
    """Where the choices came from, in percent."""
    domains = list(dict.fromkeys(domain for run in runs for domain in run.domains))
    if not domains:
        return None
    rows = []
    for strategy in dict.fromkeys(run.strategy for run in runs):
        total: Counter[str] = Counter()
        for run in runs:
            if run.strategy == strategy:
                total.update(run.domains)
        rows.append([strategy, *(f"{100 * total[domain] / total.total():.0f}" for domain in domains)])
    return Table(["chosen from, %", *domains], rows, caption="Where the chosen images come from.")
