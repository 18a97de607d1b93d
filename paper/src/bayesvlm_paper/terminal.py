"""What `bayesvlm reproduce` prints: findings, claims, what there is, and what a run would load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bayesvlm.cli.output import table
from bayesvlm.progress import duration
from bayesvlm.report.blocks import Table
from bayesvlm_paper.item import Item, Reproduced
from bayesvlm_paper.preview import NOTHING, Preview


def finding_text(found: Reproduced) -> list[Any]:
    """Question, answer, tables with a star at the best cells, remarks."""
    if found.finding is None:
        return []
    text: list[Any] = [found.item.question, "", found.finding.answer, ""]
    for exhibit in found.finding.exhibits:
        if isinstance(exhibit, Table):
            rows = [
                [f"{cell}*" if (row, column) in exhibit.best else cell for column, cell in enumerate(cells)]
                for row, cells in enumerate(exhibit.rows)
            ]
            text.append(table(exhibit.caption.replace("Bold:", "*"), list(exhibit.columns), rows))
    return text + list(found.finding.remarks)


def claims_table(found: Sequence[Reproduced]) -> Any:
    """Every claim with its verdict."""
    rows = [
        [claim.text, claim.verdict, claim.figure] for each in found if each.finding for claim in each.finding.claims
    ]
    return table("claims, checked", ["claim", "verdict here", "figures"], rows, texts=3)


def items_table(items: Sequence[Item]) -> Any:
    """The tables and figures there are."""
    rows = [[item.name, item.title, item.question] for item in items]
    return table("tables and figures", ["name", "title", "question"], rows, texts=3)


def preview_text(found: Sequence[Preview]) -> list[Any]:
    """What would be loaded, how long it would take, what is missing."""
    known = {(load.what, load.name): load for each in found for load in each.loads}
    rows = [
        [load.what, load.name, load.where, "" if load.count is None else f"{load.count:,}", _size(load.size)]
        for load in known.values()
    ]
    times = ["item", "images to encode", "time to encode", "last whole run"]
    absent = [load.name for load in known.values() if not load.here]
    return [
        table("would be loaded", ["what", "name", "from where", "count", "size"], rows, texts=3),
        table("would take", times, [_times(each) for each in found]),
        *dict.fromkeys(each.how for each in found if each.how != NOTHING),
        f"not on this machine: {', '.join(absent)}" if absent else "everything is on this machine",
    ]


def _times(found: Preview) -> list[str]:
    passes = sum(load.encode for load in found.loads)
    encoding = "" if not passes else "unknown" if found.seconds is None else duration(found.seconds)
    return [found.item, found.to_encode, encoding, duration(found.last) if found.last else ""]


def _size(size: int | None) -> str:
    if size is None:
        return "unknown"
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
