"""The page `bayesvlm eval` writes: how good the probabilities of each method are on each set, told from the numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from bayesvlm.data.labelled.templates import shown_templates
from bayesvlm.evaluation import paired_t_test
from bayesvlm.experiments.methods import METHODS, PREDICTED
from bayesvlm.experiments.zero_shot import LEVEL, Result
from bayesvlm.report.blocks import Commands, Page, Plot, Section, Table, Text
from bayesvlm.report.entropy import Answers, entropy_plot, quadrants_plot
from bayesvlm.report.page import write_page
from bayesvlm.report.scores import score_figures
from bayesvlm.report.tables import METRICS as FIGURES
from bayesvlm.report.tables import collect
from bayesvlm.report.theme import NARROW, WIDE

Drawn = dict[str, Figure]

MADE_FROM = {"command": "eval"}  # of everything that lies beside the page

UNRAISED = (
    "How far a temperature gets that is raised at the cost of one standard error of the validation NLPD was not "
    "measured (--methods raised-temperature)."
)
"""Said where Bayes is compared with temperature scaling and not with that."""

CLOSE_UP = ("plain", "Bayes")
"""The methods whose single answers are shown: more would cover each other."""


def figures(results: Sequence[Result], width: float = WIDE) -> dict[str, Figure]:
    """The plots of one model's results by name."""
    by_set = {result.data: result.scores for result in results}
    answers = {result.data: _answers(result) for result in results}
    return {
        **score_figures(by_set, by_set, width),
        "entropy": entropy_plot(answers, width=width),
        "quadrants": quadrants_plot(answers, width=width),
    }


def _shown(result: Result) -> list[str]:
    return [name for name in CLOSE_UP if name in result.scores] or list(result.scores)[:2]


def _answers(result: Result) -> dict[str, Answers]:
    classes = int(result.facts["classes"])
    found = {name: result.scores[name] for name in _shown(result)}
    return {
        name: Answers(of.outcomes.entropy, -(-of.nll).expm1(), of.correct.double(), classes)
        for name, of in found.items()
    }


def write_zero_shot(results: Sequence[Result], path: str | Path, command: str = "") -> Path:
    """Write the page of one or more models' results."""
    return write_page(zero_shot_page(results, command), Path(path))


def zero_shot_page(results: Sequence[Result], command: str = "") -> Page:
    """The page: for each model the verdict, the table, and what its answers look like."""
    models = list(dict.fromkeys(result.model for result in results))
    sections = []
    for model in models:
        own = [result for result in results if result.model == model]
        wide, narrow = figures(own), figures(own, NARROW)

        def plot(name: str, caption: str, alt: str, wide: Drawn = wide, narrow: Drawn = narrow) -> Plot:
            return Plot(wide[name], caption, alt, narrow[name])

        sections += [
            Section(
                f"{model}: how good are the probabilities?",
                [
                    Text(" ".join([*verdicts(own), *dict.fromkeys(text for each in own for text in each.left_out)])),
                    plot(
                        "scores",
                        "Top-1, NLPD and ECE. Lines are standard errors.",
                        "Dot plot of top-1, NLPD and ECE of every method on every set.",
                    ),
                    _table(own),
                ],
            ),
            Section(
                f"{model}: does confidence mean what it says?",
                [
                    plot(
                        "reliability",
                        "**Reliability.** On the dashed line, answers given with 70 % confidence are right 70 % of the "
                        "time; below it the method is overconfident. Bars: how many answers fall where.",
                        "Accuracy against confidence of every method on every set.",
                    ),
                    plot(
                        "risk-coverage",
                        "**Risk and coverage.** Error rate when only the surest share of the answers is given.",
                        "Error rate against coverage of every method on every set.",
                    ),
                ],
            ),
            Section(
                f"{model}: does it know when it is wrong?",
                [
                    Text(overconfident(own)),
                    plot(
                        "entropy",
                        "**Entropy of right and wrong answers.** Wrong answers should lie on the right.",
                        "Histograms of the entropy of right and wrong answers.",
                    ),
                    plot(
                        "quadrants",
                        "**Error against entropy**, with the share of answers in each quarter. Top left: far from "
                        "right, yet with little entropy.",
                        "Two-dimensional histograms of error and entropy.",
                    ),
                ],
            ),
        ]
    facts = {"models": ", ".join(models), "sets": str(len({result.data for result in results}))}
    facts["images"] = f"{sum(int(r.facts['images']) for r in results if r.model == models[0]):,}"
    if command:
        sections.append(Section("Make it again", [Commands([(command, "this page, from the cached features")])]))
    return Page("Zero-shot evaluation", lead(results), facts, sections, made_from=MADE_FROM)


# Sentences ------------------------------------------------------------------------------------------------------------


def lead(results: Sequence[Result]) -> str:
    """What was compared."""
    methods = [name for name in (*METHODS, *PREDICTED) if any(name in result.scores for result in results)]
    return (
        f"{len(methods)} ways to predict ({', '.join(methods)}) from the same features, on "
        f"{len({result.data for result in results})} labelled sets. Bold in the tables: not worse than the best "
        f"(paired t-test over the images, p = {LEVEL}; for ECE the smallest). {prompts_used(results)}"
    )


def prompts_used(results: Sequence[Result]) -> str:
    """Which prompts the classes of each set were asked for with."""
    sets: dict[tuple[str, ...], dict[str, None]] = {}
    for result in results:
        sets.setdefault(tuple(result.templates), {})[result.data] = None
    said = [f"{shown_templates(used)} for {', '.join(of)}" for used, of in sets.items()]
    return f"Prompts: {'; '.join(said)}."


def verdicts(results: Sequence[Result]) -> list[str]:
    """Bayes against each other method by NLPD: on how many sets better, level, worse."""
    said = []
    others = dict.fromkeys(name for result in results for name in result.scores if name != "Bayes")
    for other in others:
        groups: dict[str, list[str]] = {"better": [], "level": [], "worse": []}
        for result in results:
            if other in result.scores and "Bayes" in result.scores:
                test = paired_t_test(result.scores[other].nll, result.scores["Bayes"].nll)
                how = "level" if test.p >= LEVEL else "better" if test.difference > 0 else "worse"
                groups[how].append(f"{result.data} ({test.difference:+.2f})")
        told = [f"{how} on {', '.join(names)}" for how, names in groups.items() if names]
        if told:
            said.append(f"In NLPD, Bayes against {other} is {'; '.join(told)} (nats gained).")
            if other == "temperature" and "raised temperature" not in others:
                said.append(UNRAISED)
    return said


def overconfident(results: Sequence[Result]) -> str:
    """The share of answers far from right that say little of it: error above 1/2, entropy below half of the largest."""
    parts = []
    for result in results:
        half = math.log(int(result.facts["classes"])) / 2
        shares = []
        for name in _shown(result):
            found = result.scores[name]
            share = ((found.nll > math.log(2)) & (found.outcomes.entropy < half)).double().mean()
            shares.append(f"{name} {float(share):.0%}")
        parts.append(f"{result.data}: {', '.join(shares)}")
    return (
        "Answers far from right, yet with little entropy (error above 1/2 at less than half of the largest, top "
        f"left in the last figure): {'; '.join(parts)}."
    )


def _table(results: Sequence[Result]) -> Table:
    made = collect(results)
    rows: list[list[str]] = []
    best = set()
    for row in made.rows:
        decimals = next(places for title, places, _ in FIGURES.values() if title == row.metric)
        texts = []
        for place, cell in enumerate(row.cells):
            if cell is None:
                texts.append("")
                continue
            texts.append(f"{cell.value:.{decimals}f}" + ("" if cell.error is None else f" ± {cell.error:.{decimals}f}"))
            if cell.best:
                best.add((len(rows), 1 + place))
        rows.append([f"{row.metric} {row.method}", *texts])
    return Table(["", *made.sets], rows, best, "The same in numbers, with standard errors.")
