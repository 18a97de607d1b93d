"""Bars, intervals and sentences as HTML: everything the page shows that Gradio has no component for."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from io import BytesIO

from PIL import Image


def page(*parts: str) -> str:
    """Parts under one roof, so that the style sheet reaches them."""
    return f"<div class='bv'>{''.join(parts)}</div>"


def alert(sentence: str) -> str:
    """A sentence about what went wrong, which screen readers say at once."""
    return page(f"<p class='alert' role='alert'>{escape(sentence)}</p>")


def quiet(sentence: str) -> str:
    """A remark."""
    return f"<p class='quiet'>{escape(sentence)}</p>"


def percent(share: float) -> str:
    """A probability as it is printed.

    >>> percent(0.12345)
    '12.3\\xa0%'
    """
    return f"{100 * share:.1f}\u00a0%"


def rounded(share: float) -> str:
    """A share that was chosen, not measured.

    >>> rounded(0.05)
    '5\\xa0%'
    """
    return f"{100 * share:.0f}\u00a0%"


def called(name: str) -> str:
    """A name that somebody typed, apart from the text around it: one written from right to left turns nothing else."""
    return f"<bdi>{escape(name)}</bdi>"


def cosine(mean: float, low: float, high: float) -> str:
    """A cosine with its interval as it is printed.

    >>> cosine(0.4567, 0.3, 0.61)
    '0.457 (0.300 to 0.610)'
    """
    return f"{mean:.3f} ({low:.3f} to {high:.3f})"


def bar(*parts: tuple[float, str]) -> str:
    """Shares of the full width beside each other, each with the class of its colour; the numbers stand beside it."""
    filled = "".join(f"<span class='{kind}' style='width:{_width(share)}'></span>" for share, kind in parts)
    return f"<div class='bar' aria-hidden='true'>{filled}</div>"


def pair(*rows: tuple[str, str, str]) -> str:
    """Lines of a label, a bar and a number."""
    cells = "".join(
        f"<span>{escape(label)}</span>{drawn}<span>{escape(number)}</span>" for label, drawn, number in rows
    )
    return f"<div class='pair'>{cells}</div>"


def interval(mean: float, low: float, high: float, axis: tuple[float, float]) -> str:
    """A line from low to high with a dot at the mean, on an axis that several share."""
    said = escape(f"cosine {cosine(mean, low, high)}, 95 % interval", quote=True)
    line = (
        f"<span class='interval' style='left:{_place(low, axis)};width:{_width((high - low) / _length(axis))}'></span>"
    )
    mean_dot = f"<span class='mean' style='left:{_place(mean, axis)}'></span>"
    return f"<div class='range' role='img' aria-label='{said}'>{line}{mean_dot}</div>"


def axis_of(lows: Iterable[float], highs: Iterable[float]) -> tuple[float, float]:
    """The ends, on tenths, of an axis that has room for all intervals.

    >>> axis_of([0.12, 0.2], [0.31, 0.39])
    (0.1, 0.4)
    """
    low, high = min(lows), max(highs)
    return (10 * low // 1) / 10, -((-10 * high) // 1) / 10


def axis_line(axis: tuple[float, float], what: str = "cosine, 95 % interval") -> str:
    """What the ends of the axis are."""
    low, high = (f"{end:.1f}" for end in axis)
    return (
        f"<div class='axis' aria-hidden='true'><span>{low}</span><span>{escape(what)}</span><span>{high}</span></div>"
    )


def facts(*entries: tuple[str, str]) -> str:
    """Titled paragraphs side by side; each is (title, HTML)."""
    return "<div class='facts'>" + "".join(f"<div><h4>{escape(t)}</h4>{html}</div>" for t, html in entries) + "</div>"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts whose first column names its rows; on a narrow screen it breaks at spaces, or else scrolls."""
    head = "".join(f"<th class='{'number' if i else ''}'>{escape(c)}</th>" for i, c in enumerate(columns))
    body = "".join(
        "<tr>" + "".join(f"<td class='{_cell(i, cell)}'>{escape(cell)}</td>" for i, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f"<div class='scroll' tabindex='0'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _cell(place: int, cell: str) -> str:
    """A number such as 2.9e-03 would be broken at its hyphen."""
    return ("number" if place else "") + ("" if " " in cell else " whole")


def picture(image: Image.Image | bytes, alt: str, kind: str = "shown") -> str:
    """An image in the page itself, so that nothing has to be fetched."""
    packed = image if isinstance(image, bytes) else png(image)
    media = "webp" if packed[8:12] == b"WEBP" else "png"
    data = base64.b64encode(packed).decode()
    return f"<img class='{kind}' src='data:image/{media};base64,{data}' alt='{escape(alt, quote=True)}'>"


def png(image: Image.Image) -> bytes:
    """The bytes of a file of it, without loss."""
    buffer = BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


def _length(axis: tuple[float, float]) -> float:
    return max(axis[1] - axis[0], 1e-9)


def _place(value: float, axis: tuple[float, float]) -> str:
    return _width((value - axis[0]) / _length(axis))


def _width(share: float) -> str:
    return f"{100 * min(max(share, 0.0), 1.0):.2f}%"
