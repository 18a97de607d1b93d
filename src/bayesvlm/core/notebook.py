"""Small HTML tables that notebooks show for results; plain text in, one self-contained string out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape

_HATCHED = "repeating-linear-gradient(45deg, #d9822b 0 3px, #f2c38f 3px 6px)"


def html_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    more: bool = False,
    note: str = "",
    marked: Collection[int] = (),
) -> str:
    """A table with a caption.

    Args:
        more: whether there are rows that are not shown.
        note: a sentence below.
        marked: columns whose cells are HTML already, made by `bar` and `split_bar`.
    """
    head = "".join(f"<th style='text-align:left'>{escape(column)}</th>" for column in columns)
    body = ""
    for row in rows:
        cells = (cell if place in marked else escape(cell) for place, cell in enumerate(row))
        body += "<tr>" + "".join(f"<td style='text-align:left'>{cell}</td>" for cell in cells) + "</tr>"
    if more:
        body += f"<tr><td colspan='{len(columns)}' style='text-align:left'>&hellip;</td></tr>"
    below = f"<div style='font-size:smaller'>{escape(note.strip())}</div>" if note else ""
    return f"<div>{escape(title)}</div><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def bar(share: float, text: str) -> str:
    """A bar of a share of its full width, with its number.

    >>> "width:50%" in bar(0.5, "0.500")
    True
    """
    filled = _strip(share, "#3b78c4")
    return f"{_frame(filled)} {escape(text)}"


def split_bar(first: float, second: float, most: float, text: str) -> str:
    """A bar in two parts, the second hatched; `most` is its full width."""
    return f"{_frame(_strip(first / most, '#8a94a0') + _strip(second / most, _HATCHED))} {escape(text)}"


def _frame(inside: str) -> str:
    style = "display:inline-flex;width:8em;height:0.8em;background:rgba(128,128,128,.2);vertical-align:middle"
    return f"<span style='{style}'>{inside}</span>"


def _strip(share: float, colour: str) -> str:
    width = 100 * min(max(share, 0.0), 1.0)
    return f"<span style='width:{width:.4g}%;background:{colour}'></span>"
