"""The page `bayesvlm reproduce` writes: each item with its question, its answer, what is to be seen, its command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

from bayesvlm.progress import duration
from bayesvlm.report.blocks import Block, Commands, Page, Plot, Section, Table, Text
from bayesvlm.report.page import write_page
from bayesvlm.report.svg import save_png
from bayesvlm.report.theme import NARROW
from bayesvlm_paper.exhibits import Exhibit
from bayesvlm_paper.finding import Claim, Verdict
from bayesvlm_paper.item import Reproduced

MADE_FROM = {"command": "reproduce"}
_SAID = {"holds": "hold", "does not hold": "do not", "cannot be tested here": "cannot be tested here"}
"""Verdict -> as it is said of several claims."""


def write_reproduction(found: Sequence[Reproduced], path: str | Path, where: str, command: str) -> Path:
    """Write the page.

    Args:
        found: in the order in which they are to be read.
        where: what it was run on, in a few words.
        command: what makes the whole page again.
    """
    printed, ours = ([pair for pair in _claims(found) if pair[1].ours is own] for own in (False, True))
    facts = {"run on": where, "claims of the paper": _counted(printed), "time": duration(sum(d.seconds for d in found))}
    paper = "*Post-hoc Probabilistic Vision-Language Models*"
    if len(found) == 1:
        item = found[0].item
        title, lead = item.title, f"`{item.name}` of {paper}, run on {where}."
        sections = [Section("What was found", _blocks(found[0]))]
    else:
        title = "The paper, checked"
        lead = (
            f"{len(found)} tables, figures and questions of {paper} and beyond, run on {where}. Of the paper's claims "
            f"{_counted(printed)}. Sentences and verdicts are computed from the numbers, negative ones too."
        )
        sections = [Section("Does what the paper says hold here?", [_verdicts(printed)])] if printed else []
        sections += [Section("And what we say beyond it?", [_verdicts(ours)])] if ours else []
        sections += [Section(each.item.title, _blocks(each)) for each in found]
        sections.append(Section("Make it again", [Commands([(command, "what was found already is read, not run")])]))
    return write_page(Page(title, lead, facts, sections, made_from=MADE_FROM), path)


def claims_markdown(found: Sequence[Reproduced]) -> str:
    """All claims with their verdicts and figures, as a table to quote."""
    lines = ["| claim | here | the figure | item |", "|---|---|---|---|"]
    for each, claim in _claims(found):
        verdict = f"**{claim.verdict}**" if claim.verdict == "does not hold" else claim.verdict
        cells = (claim.text, verdict, claim.figure, f"`{each.item.name}`")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def save_figures(found: Reproduced, folder: Path) -> list[Path]:
    """Every drawing of an item as a picture, NAME.png or NAME-1.png, NAME-2.png, ...; returns their paths."""
    exhibits = found.finding.exhibits if found.finding else ()
    drawings = [each for each in exhibits if not isinstance(each, Table)]
    names = [found.item.name] if len(drawings) == 1 else [f"{found.item.name}-{n + 1}" for n in range(len(drawings))]
    paths = [folder / f"{name}.png" for name in names]
    for path, drawing in zip(paths, drawings, strict=True):
        save_png(drawing.draw(), path)
    return paths


def _claims(found: Sequence[Reproduced]) -> Iterator[tuple[Reproduced, Claim]]:
    return ((each, claim) for each in found if each.finding for claim in each.finding.claims)


def _counted(claims: Sequence[tuple[Reproduced, Claim]]) -> str:
    counts = Counter(claim.verdict for _, claim in claims)
    one = {**_SAID, "holds": "holds", "does not hold": "does not"}
    said = [f"{counts[v]} {(one if counts[v] == 1 else _SAID)[v]}" for v in get_args(Verdict) if counts[v]]
    return ", ".join(said) or "none was judged"


def _blocks(found: Reproduced) -> list[Block]:
    item, finding = found.item, found.finding
    blocks: list[Block] = [Text(f"*{item.question}*")]
    if finding is None:
        return [*blocks, Text(f"**It could not be run**: {found.error}"), Commands([(found.command, "")])]
    blocks.append(Text(f"**{finding.answer}**"))
    blocks += [_block(each) for each in finding.exhibits]
    if finding.claims:
        blocks.append(Text("\n\n".join(_sentence(claim) for claim in finding.claims)))
    if finding.remarks:
        blocks.append(Text("\n\n".join(finding.remarks)))
    blocks.append(Commands([(found.command, f"{item.name}, {duration(found.seconds)}")]))
    return blocks


def _block(exhibit: Exhibit) -> Block:
    if isinstance(exhibit, Table):
        return exhibit
    return Plot(exhibit.draw(), exhibit.caption, exhibit.alt, exhibit.draw(NARROW))


def _verdicts(claims: Sequence[tuple[Reproduced, Claim]]) -> Table:
    """All claims, in the order of the page."""
    rows = [[claim.text, claim.verdict.replace(" ", "\u00a0"), claim.figure, each.item.name] for each, claim in claims]
    marked = frozenset((row, 1) for row, (_, claim) in enumerate(claims) if claim.verdict == "does not hold")
    return Table(["claim", "here", "the figure", "item"], rows, marked, "Bold: what does not hold here.")


def _sentence(claim: Claim) -> str:
    verdict = claim.verdict[:1].upper() + claim.verdict[1:]
    return f"**{verdict}**: {claim.text} *{claim.figure}.*"
