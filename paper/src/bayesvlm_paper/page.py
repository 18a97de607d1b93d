"""The page `bayesvlm reproduce` writes: each item with its question, its answer, what is to be seen, its command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from matplotlib.figure import Figure

from bayesvlm.progress import duration
from bayesvlm.report.adaptation import METRICS
from bayesvlm.report.blocks import Block, Commands, Page, Plot, Section, Table, Text
from bayesvlm.report.curves import learning_curves
from bayesvlm.report.entropy import Answers, quadrants_plot
from bayesvlm.report.page import write_page
from bayesvlm.report.plots import heat_maps
from bayesvlm.report.svg import save_png
from bayesvlm.report.theme import NARROW, WIDE
from bayesvlm_paper.catalogue import Done
from bayesvlm_paper.findings import (
    Claim,
    Exhibit,
    Grid,
    HeatMaps,
    LearningCurves,
    Lines,
    Quadrants,
    Verdict,
)
from bayesvlm_paper.lines import lines_plot

MADE_FROM = {"command": "reproduce"}


def write_reproduction(done: Sequence[Done], path: str | Path, where: str, command: str) -> Path:
    """Write the page.

    Args:
        done: in the order in which they are to be read.
        where: what it was run on, in a few words.
        command: what makes the whole page again.
    """
    claims = [(each, claim) for each in done if each.finding for claim in each.finding.claims]
    printed, ours = ([pair for pair in claims if pair[1].ours is own] for own in (False, True))
    facts = {"run on": where, "claims of the paper": _counted(printed), "time": duration(sum(d.seconds for d in done))}
    paper = "*Post-hoc Probabilistic Vision-Language Models*"
    if len(done) == 1:
        item = done[0].item
        lead = f"`{item.name}` of {paper}, run on {where}."
        return write_page(
            Page(item.title, lead, facts, [Section("What was found", _blocks(done[0]))], made_from=MADE_FROM), path
        )
    lead = (
        f"{len(done)} tables, figures and questions of {paper} and beyond, run on {where}. Of the paper's claims "
        f"{_counted(printed)}. Sentences and verdicts are computed from the numbers, negative ones too."
    )
    sections = [Section("Does what the paper says hold here?", [_verdicts(printed)])] if printed else []
    sections += [Section("And what we say beyond it?", [_verdicts(ours)])] if ours else []
    sections += [Section(each.item.title, _blocks(each)) for each in done]
    sections.append(Section("Make it again", [Commands([(command, "what was found already is read, not run")])]))
    return write_page(Page("The paper, checked", lead, facts, sections, made_from=MADE_FROM), path)


def _counted(claims: Sequence[tuple[Done, Claim]]) -> str:
    counts = Counter(claim.verdict for _, claim in claims)
    said = [f"{counts[name]} {_plural(name, counts[name])}" for name in get_args(Verdict) if counts[name]]
    return ", ".join(said) or "none was judged"


def claims_markdown(done: Sequence[Done]) -> str:
    """All claims with their verdicts and figures, as a table to quote."""
    lines = ["| claim | here | the figure | item |", "|---|---|---|---|"]
    for each in done:
        for claim in each.finding.claims if each.finding else ():
            verdict = f"**{claim.verdict}**" if claim.verdict == "does not hold" else claim.verdict
            cells = (claim.text, verdict, claim.figure, f"`{each.item.name}`")
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def save_figures(done: Done, folder: Path) -> list[Path]:
    """Every figure of an item as a picture, NAME.png or NAME-1.png, NAME-2.png, ...; returns their paths."""
    if done.finding is None:
        return []
    figures = [drawn for each in done.finding.exhibits if (drawn := figure(each)) is not None]
    names = [done.item.name] if len(figures) == 1 else [f"{done.item.name}-{n + 1}" for n in range(len(figures))]
    paths = [folder / f"{name}.png" for name in names]
    for path, drawn in zip(paths, figures, strict=True):
        save_png(drawn, path)
    return paths


def figure(exhibit: Exhibit, width: float = WIDE) -> Figure | None:
    """An exhibit drawn; None for a table."""
    match exhibit:
        case Lines():
            return lines_plot(exhibit, width=width)
        case HeatMaps():
            titles = (exhibit.row_title, exhibit.column_title)
            return heat_maps(exhibit.grids, exhibit.rows, exhibit.columns, *titles, width=width)
        case LearningCurves():
            metrics = [metric for metric in METRICS if metric.key in exhibit.curves]
            curves = {
                metric: {
                    strategy: {int(labels): (value, error) for labels, (value, error) in points.items()}
                    for strategy, points in of.items()
                }
                for metric, of in exhibit.curves.items()
            }
            return learning_curves(curves, metrics, width=width)
        case Quadrants():
            answers = {
                name: Answers(of["entropy"], of["error"], of["correct"], exhibit.classes)
                for name, of in exhibit.answers.items()
            }
            return quadrants_plot({exhibit.title: answers}, width=width)
    return None


def _blocks(done: Done) -> list[Block]:
    item, finding = done.item, done.finding
    blocks: list[Block] = [Text(f"*{item.question}*")]
    if finding is None:
        return [*blocks, Text(f"**It could not be run**: {done.error}"), Commands([(done.command, "")])]
    blocks.append(Text(f"**{finding.answer}**"))
    blocks += [_block(each) for each in finding.exhibits]
    if finding.claims:
        blocks.append(Text("\n\n".join(_sentence(claim) for claim in finding.claims)))
    if finding.remarks:
        blocks.append(Text("\n\n".join(finding.remarks)))
    blocks.append(Commands([(done.command, f"{item.name}, {duration(done.seconds)}")]))
    return blocks


def _block(exhibit: Exhibit) -> Block:
    if isinstance(exhibit, Grid):
        best = frozenset((int(row), int(column)) for row, column in exhibit.best)
        groups = [(title, int(span)) for title, span in exhibit.groups]
        return Table(exhibit.columns, exhibit.rows, best, exhibit.caption, groups)
    wide, narrow = figure(exhibit), figure(exhibit, NARROW)
    assert wide is not None
    return Plot(wide, exhibit.caption, exhibit.alt, narrow)


def _verdicts(claims: Sequence[tuple[Done, Claim]]) -> Table:
    """All claims, in the order of the page."""
    rows = [[claim.text, claim.verdict.replace(" ", "\u00a0"), claim.figure, done.item.name] for done, claim in claims]
    marked = frozenset((row, 1) for row, (_, claim) in enumerate(claims) if claim.verdict == "does not hold")
    return Table(["claim", "here", "the figure", "item"], rows, marked, "Bold: what does not hold here.")


def _sentence(claim: Claim) -> str:
    verdict = claim.verdict[:1].upper() + claim.verdict[1:]
    return f"**{verdict}**: {claim.text} *{claim.figure}.*"


def _plural(verdict: str, count: int) -> str:
    one = count == 1
    return {
        "holds": "holds" if one else "hold",
        "does not hold": "does not" if one else "do not",
        "cannot be tested here": "cannot be tested here",
    }[verdict]
