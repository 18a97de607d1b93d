"""Line drawings as SVG in the page's colours: a few series over one axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 420, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 30, 40


@dataclass(frozen=True)
class Series:
    """Points in order, the name of their colour in the palette, and how far up and down the bar of each reaches."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    errors: Sequence[float] = ()


def curve(
    series: Sequence[Series],
    across: str,
    upright: str,
    ends: tuple[float, float, float, float] | None = None,
    diagonal: bool = False,
) -> str:
    """The drawing, with a legend above it.

    Args:
        across, upright: what the axes are of.
        ends: least and most of either axis; None: as far as the points go.
        diagonal: the line on which both are equal.
    """
    x0, x1, y0, y1 = ends or _ends([point for each in series for point in _reached(each)])

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            _LEFT + (x - x0) / (x1 - x0) * (WIDTH - _LEFT - _RIGHT),
            HEIGHT - _BOTTOM - (y - y0) / (y1 - y0) * (HEIGHT - _TOP - _BOTTOM),
        )

    parts = [_axes(x0, x1, y0, y1, across, upright)]
    if diagonal:
        (left, low), (right, high) = place(x0, x0), place(x1, x1)
        parts.append(
            f"<path d='M{left:.1f} {low:.1f}L{right:.1f} {high:.1f}' "
            "stroke='var(--muted)' stroke-dasharray='3 4' fill='none'/>"
        )
    for each in series:
        colour, at = f"var(--{each.colour})", [place(*point) for point in each.points]
        line = "L".join(f"{x:.1f} {y:.1f}" for x, y in at)
        parts.append(f"<path d='M{line}' stroke='{colour}' stroke-width='2' fill='none'/>")
        for (x, y), error in zip(each.points, each.errors, strict=False):
            (across_at, top), (_, bottom) = place(x, y + error), place(x, y - error)
            parts.append(
                f"<path d='M{across_at:.1f} {top:.1f}V{bottom:.1f}' stroke='{colour}' stroke-width='1.2' fill='none'/>"
            )
        parts += [f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.5' fill='{colour}'/>" for x, y in at]
    legend = " &ensp;".join(f"<span class='key {each.colour}'></span>{escape(each.name)}" for each in series)
    said = escape(
        "; ".join(f"{each.name}: " + ", ".join(f"{y:.3f}" for _, y in each.points) for each in series), quote=True
    )
    return (
        f"<p class='quiet'>{legend}</p><svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='{said}'>"
        f"{''.join(parts)}</svg>"
    )


def _reached(series: Series) -> list[tuple[float, float]]:
    """Its points, and the ends of their bars."""
    bars = list(zip(series.points, series.errors, strict=False))
    return [*series.points, *((x, y + s * error) for (x, y), error in bars for s in (-1, 1))]


def _ends(points: Sequence[tuple[float, float]]) -> tuple[float, float, float, float]:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    room = 0.1 * (max(ys) - min(ys)) or 0.1
    return min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 10, min(ys) - room, max(ys) + room


def _axes(x0: float, x1: float, y0: float, y1: float, across: str, upright: str) -> str:
    style = "fill='var(--muted)' font-size='12'"
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    frame = f"<path d='M{_LEFT} {_TOP}V{bottom}H{right}' stroke='var(--grid)' fill='none'/>"
    texts = [
        (_LEFT, bottom + 16, "start", f"{x0:.4g}"),
        (right, bottom + 16, "end", f"{x1:.4g}"),
        ((_LEFT + right) / 2, bottom + 34, "middle", across),
        (0, 14, "start", upright),
        (_LEFT - 6, bottom, "end", f"{y0:.2f}"),
        (_LEFT - 6, _TOP + 10, "end", f"{y1:.2f}"),
    ]
    return frame + "".join(
        f"<text x='{x:.0f}' y='{y:.0f}' text-anchor='{anchor}' {style}>{escape(text)}</text>"
        for x, y, anchor, text in texts
    )
