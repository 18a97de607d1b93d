"""The page of `bayesvlm eval --retrieval`: what is found, which first answers are wrong, when nothing matches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bayesvlm.experiments.caption_results import BASELINE, CaptionResult
from bayesvlm.experiments.caption_search import BEST_OF, CUT_OFF, DOUBTS
from bayesvlm.report.blocks import Commands, Page, Plot, Section, Table, Text
from bayesvlm.report.page import write_page
from bayesvlm.report.plots import risk_coverage_plot
from bayesvlm.report.theme import NARROW, WIDE

LEVEL = 0.05
DRAWN = ("cosine", "softmax", "expected cosine", "lower bound", "probit", "p_best")
"""The doubts that are drawn: more would cover each other."""
JUDGED = ("probit", "p_best")
"""The doubts of the posterior that sentences hold against the cosine: its probability, and whether draws agree."""
FIGURES = {
    "recall@1": "recall@1 %",
    "recall@5": "recall@5 %",
    "recall@10": "recall@10 %",
    "r_precision": "R-precision %",
    "map_at_r": "mAP@R %",
}

Found = tuple[str, Mapping[str, Any]]
"""A set and a direction, in words, and its figures."""


def write_caption_search(
    results: Sequence[CaptionResult], path: str | Path, command: str = "", made_from: Mapping[str, Any] | None = None
) -> Path:
    """Write the page; `made_from` says what it shows, for `page.check_replaces`."""
    return write_page(caption_search_page(results, command, made_from), Path(path))


def caption_search_page(
    results: Sequence[CaptionResult], command: str = "", made_from: Mapping[str, Any] | None = None
) -> Page:
    """The page: for each model what it finds, what its doubts know, and whether it says that nothing matches."""
    models = list(dict.fromkeys(result.model for result in results))
    sections = [
        section for model in models for section in _sections(model, [each for each in results if each.model == model])
    ]
    facts = {
        "models": ", ".join(models),
        "sets": ", ".join(dict.fromkeys(each.data for each in results)),
        "texts": f"{sum(each.facts['texts'] for each in results if each.model == models[0]):,}",
        "images": f"{sum(each.facts['images'] for each in results if each.model == models[0]):,}",
    }
    if command:
        sections.append(Section("Make it again", [Commands([(command, "this page, from the cached features")])]))
    lead = (
        "Texts search images, and images search texts. Each way to rank is judged by what it finds; each doubt by "
        "whether it is high where the first answer is wrong, or where the collection has nothing that matches. "
        "`expected cosine`, `lower bound`, `probit`, `deviation`, `query variance` and `p_best` are of the posterior; "
        "the others need none."
    )
    return Page("Search, measured", lead, facts, sections, made_from=made_from or {})


def _sections(model: str, results: Sequence[CaptionResult]) -> Iterator[Section]:
    found = [pair for result in results for pair in directions(result)]
    left_out = list(dict.fromkeys(sentence for result in results for sentence in result.left_out))
    ranked = [ranking_table(what, of) for what, of in found]
    yield Section(
        f"{model}: is the right one found?",
        [_said([*map(ranking_verdict, found), *left_out]), Text(_RANKINGS), *ranked],
    )
    panels = {what: _drawn(result, direction) for result in results for direction, what in _named(result)}

    def drawn(width: float) -> Figure:
        return risk_coverage_plot(panels, width=width)

    plot = Plot(
        drawn(WIDE),
        "**Risk and coverage.** The share of wrong first answers when only the least doubtful queries are answered.",
        "Error rate of the first answer against coverage, for several doubts on every set.",
        drawn(NARROW),
    )
    yield Section(
        f"{model}: does doubt know which first answers are wrong?",
        [_said(map(doubt_verdict, found)), plot, Text(_DOUBTS), *(doubt_table(what, of) for what, of in found)],
    )
    told = [(what, of) for what, of in found if nothing_matches(of)]
    if told:
        yield Section(
            f"{model}: does it know that nothing matches?",
            [
                _said(map(nothing_verdict, told)),
                Text(_NOTHING),
                *(nothing_table(what, of) for what, of in told),
            ],
        )


def _said(sentences: Iterable[str]) -> Text:
    """A paragraph for each."""
    return Text("\n\n".join(sentences))


def directions(result: CaptionResult) -> list[Found]:
    """Each direction of a result that has something to find, called by set and direction."""
    return [(what, result.table[direction]) for direction, what in _named(result)]


def _named(result: CaptionResult) -> list[tuple[str, str]]:
    return [(direction, f"{result.data}, {direction}") for direction in result.table]


def _drawn(result: CaptionResult, direction: str) -> dict[str, Any]:
    curves = result.curves[direction]
    return {name: curves[name] for name in DRAWN if name in curves}


# What is found --------------------------------------------------------------------------------------------------------

_RANKINGS = (
    "recall@k: whether one of the items that answer a query is among the first k. R-precision: among as many as answer "
    "it, the share that does; mAP@R: the mean precision at each of those. With standard errors; bold: not worse than "
    f"the best (paired t-test over the queries, p = {LEVEL:g}). "
    f"`{CUT_OFF}`: only items above a cosine that keeps the first answers of 95 % of the other half of the queries are "
    f"shown. `p_best` orders the first {BEST_OF} by expected cosine anew."
)


def ranking_verdict(found: Found) -> str:
    """The sizes, and the plain cosine against the expected one."""
    what, of = found
    plain = of["rankings"]["cosine"]["recall@1"]
    text = (
        f"On {what}: {of['queries']:,} queries to {of['items']:,} items, {of['answers_per_query']:.1f} of which answer "
        f"each; recall@1 is {_percent(plain)} % by cosine"
    )
    others = [f"{_percent(of['rankings'][name]['recall@1'])} % by {name}" for name in _bayesian(of["rankings"])]
    return f"{text}, {', '.join(others)}." if others else f"{text}."


def ranking_table(what: str, of: Mapping[str, Any]) -> Table:
    """The figures of each way to rank."""
    rankings = of["rankings"]
    rows = [[name, *(_percent(row[figure]) for figure in FIGURES)] for name, row in rankings.items()]
    bold = {
        (number, place)
        for number, name in enumerate(rankings)
        for place, figure in enumerate(FIGURES, start=1)
        if name in of["not_worse_than_best"][figure]
    }
    return Table(["ranked by", *FIGURES.values()], rows, bold, f"**{what}**")


# What is wrong --------------------------------------------------------------------------------------------------------


_DOUBTS = (
    "Area: under the risk-coverage curve of the first answer, the mean share of wrong ones over all coverages; smaller "
    "is better, and bold is the smallest. With bootstrap errors over queries; against cosine the resamples are paired, "
    f"and a star says p < {LEVEL:g}."
)


def doubt_verdict(found: Found) -> str:
    """The best order to drop queries in, and that of the posterior against the cosine."""
    what, of = found
    doubts = of["doubts"]
    best = min(doubts, key=lambda name: doubts[name]["aurc"]["value"])
    text = (
        f"On {what} the smallest area under risk and coverage is that of {best} ({_percent(doubts[best]['aurc'])} %, "
        f"cosine {_percent(doubts[BASELINE]['aurc'])} %)"
    )
    for name in JUDGED:
        if name in doubts:
            plain = doubts[name]["aurc_over_best_plain"]
            text += f"; abstaining by {name} is {_how(doubts[name]['aurc_over_cosine'])} abstaining by cosine"
            if plain["doubt"] != BASELINE:
                text += f", and {_how(plain)} {plain['doubt']}, the best doubt that needs no posterior"
    return text + "."


def _how(over: Mapping[str, float]) -> str:
    """Better or worse, of areas."""
    points = f"({_signed(over)} points, p = {over['p']:.2g})"
    if over["p"] >= LEVEL:
        return f"level {points} with"
    return f"{'better' if over['difference'] < 0 else 'worse'} {points} than"


def doubt_table(what: str, of: Mapping[str, Any]) -> Table:
    """How well each doubt orders the first answers."""
    doubts = of["doubts"]
    best = min(row["aurc"]["value"] for row in doubts.values())
    rows, bold = [], set()
    for number, (name, row) in enumerate(doubts.items()):
        over = row["aurc_over_cosine"]
        star = "*" if over["p"] < LEVEL else ""
        against = "" if name == BASELINE else f"{_signed(over)}{star}"
        rows.append([name, DOUBTS[name], f"{100 * row['right']:.1f}", _percent(row["aurc"]), against])
        if row["aurc"]["value"] == best:
            bold.add((number, 3))
    columns = ["doubt", "first answer by", "right %", "area %", "against cosine"]
    return Table(columns, rows, bold, f"**{what}**")


# Nothing matches ------------------------------------------------------------------------------------------------------

_NOTHING = (
    "The items that answer half of the queries were taken out of the collection, so that nothing matches those. AUROC "
    "of telling them apart, with 95 % intervals, and against the cosine (DeLong's test, a star where "
    f"p < {LEVEL:g}). False answers: the share of queries without a match that are answered all the same, at the "
    "cut-off that keeps 95 % of the others; and, as it would be used, at a cut-off that was found on the other half of "
    "the queries, with the share it keeps."
)


def nothing_matches(of: Mapping[str, Any]) -> bool:
    """Whether queries without a match were measured."""
    return of["doubts"][BASELINE]["nothing_matches"] is not None


def nothing_verdict(found: Found) -> str:
    """The best score, and that of the posterior against the best flat cut-off."""
    what, of = found
    rows = {name: row["nothing_matches"] for name, row in of["doubts"].items()}
    best = max(rows, key=lambda name: rows[name]["auroc"])
    flat = rows[BASELINE]
    text = f"On {what} a flat cut-off of the cosine has an AUROC of {_detected(flat)}"
    text += " and is the best" if best == BASELINE else f"; the best score is {best} ({_detected(rows[best])})"
    if "expected cosine" in rows:
        over = rows["expected cosine"]["auroc_over_cosine"]
        text += f"; the expected cosine has {_signed(over)} points more (p = {over['p']:.2g})"
    return text + "."


def _detected(row: Mapping[str, float]) -> str:
    return f"{100 * row['auroc']:.1f} %, with {100 * row['false_answers']:.1f} % of false answers"


def nothing_table(what: str, of: Mapping[str, Any]) -> Table:
    """How well each doubt says that nothing matches."""
    measured = {name: row["nothing_matches"] for name, row in of["doubts"].items()}
    most = max(row["auroc"] for row in measured.values())
    least = min(row["false_answers"] for row in measured.values())
    rows, bold = [], set()
    for number, (name, row) in enumerate(measured.items()):
        over = row["auroc_over_cosine"]
        star = "*" if over["p"] < LEVEL else ""
        rows.append(
            [
                name,
                _interval(row["auroc"], row["auroc_interval"]),
                "" if name == BASELINE else f"{_signed(over)}{star}",
                _interval(row["false_answers"], row["false_answers_interval"]),
                _percent(row["kept"]),
                _percent(row["falsely_answered"]),
            ]
        )
        if row["auroc"] == most:
            bold.add((number, 1))
        if row["false_answers"] == least:
            bold.add((number, 3))
    columns = ["by", "AUROC %", "against cosine", "false answers %", "kept %", "false answers, of others %"]
    return Table(columns, rows, bold, f"**{what}**")


# Numbers --------------------------------------------------------------------------------------------------------------


def _bayesian(rankings: Mapping[str, Any]) -> list[str]:
    return [name for name in rankings if name not in ("cosine", CUT_OFF)]


def _percent(of: Mapping[str, float]) -> str:
    return f"{100 * of['value']:.1f} ± {100 * of['standard_error']:.1f}"


def _signed(over: Mapping[str, float]) -> str:
    return f"{100 * over['difference']:+.1f} ± {100 * over['standard_error']:.1f}"


def _interval(value: float, interval: Sequence[float]) -> str:
    return f"{100 * value:.1f} [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]"
