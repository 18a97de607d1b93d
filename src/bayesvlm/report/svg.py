"""Figures as inline SVG that follows the page's theme, and as PNG files."""

from __future__ import annotations

import io
import re
from itertools import count
from pathlib import Path
from xml.dom import minidom

from matplotlib.figure import Figure
from PIL import Image

from bayesvlm.report.theme import PALETTE, PIXELS_PER_INCH, drawing_style
from bayesvlm.report.writing import write_whole

_VARIABLES = {shade.light: f"var(--{name})" for name, shade in PALETTE.items()}
_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def inline_svg(figure: Figure, name: str, alt: str) -> str:
    """The figure as an `<svg>` element to put into an HTML page: the same bytes every time.

    Colours of the palette become CSS variables; letters stay letters, in the page's font; images stay raster.

    Args:
        figure: Drawn in the light shades of the palette.
        name: Unique in the page; the ids inside are this name and a number.
        alt: What the figure shows, for those who cannot see it.
    """
    buffer = io.StringIO()
    with drawing_style():
        figure.savefig(buffer, format="svg", metadata=_METADATA, facecolor="none")
    document = minidom.parseString(buffer.getvalue().encode())
    root = document.documentElement
    assert root is not None
    _drop_preamble(root)
    _rename_ids(root, name)
    for element in root.getElementsByTagName("*"):
        _adapt(element)
    _describe(root, figure, name, alt, document)
    return root.toxml()


def save_png(figure: Figure, path: str | Path) -> Path:
    """Save the figure as a PNG file in the light theme, 150 dots an inch, whole or not at all.

    In 256 colours, which a drawing does with: it takes half the room.
    """
    buffer, small = io.BytesIO(), io.BytesIO()
    with drawing_style():
        figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    Image.open(buffer).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(small, format="PNG", optimize=True)
    return write_whole(path, small.getvalue())


def _drop_preamble(root: minidom.Element) -> None:
    """Remove the metadata and the style sheet, which would apply to the whole page; namespaces HTML does without."""
    for tag in ("metadata", "style"):
        for element in root.getElementsByTagName(tag):
            parent = element.parentNode
            assert parent is not None
            parent.removeChild(element)
    for attribute in ("xmlns", "xmlns:xlink", "version"):
        root.removeAttribute(attribute)


def _rename_ids(root: minidom.Element, name: str) -> None:
    """Number the ids that something refers to, in order; drop the others."""
    elements = root.getElementsByTagName("*")
    for element in elements:
        if element.hasAttribute("xlink:href"):
            element.setAttribute("href", re.sub(r"\s", "", element.getAttribute("xlink:href")))
            element.removeAttribute("xlink:href")
    references = [(element, attribute) for element in elements for attribute in ("href", "clip-path")]
    pattern = re.compile(r"^(#|url\(#)([^)]+)")
    used = {match[2] for element, key in references if (match := pattern.match(element.getAttribute(key)))}
    numbers = count(1)
    new = {
        element.getAttribute("id"): f"{name}-{next(numbers)}"
        for element in elements
        if element.getAttribute("id") in used
    }
    for element in elements:
        if element.hasAttribute("id"):
            if element.getAttribute("id") in new:
                element.setAttribute("id", new[element.getAttribute("id")])
            else:
                element.removeAttribute("id")
    for element, key in references:
        if match := pattern.match(element.getAttribute(key)):
            element.setAttribute(key, pattern.sub(lambda found: found[1] + new[found[2]], element.getAttribute(key)))


def _adapt(element: minidom.Element) -> None:
    """Give one element the page's colours and font, and coordinates to a hundredth."""
    if element.hasAttribute("style"):
        style = re.sub(r"font-family:[^;]*;?\s*", "", element.getAttribute("style"))
        style = re.sub(r"#[0-9a-f]{6}", lambda found: _VARIABLES.get(found[0], found[0]), style)
        element.setAttribute("style", style.strip())
    for key in ("d", "x", "y"):
        if element.hasAttribute(key):
            rounded = re.sub(r"(\.\d\d)\d+", r"\1", element.getAttribute(key))
            element.setAttribute(key, " ".join(rounded.split()))


def _describe(root: minidom.Element, figure: Figure, name: str, alt: str, document: minidom.Document) -> None:
    """Announce the drawing as one image with a text, at its size in page pixels at most."""
    title = document.createElement("title")
    title.setAttribute("id", f"{name}-title")
    title.appendChild(document.createTextNode(alt))
    root.insertBefore(title, root.firstChild)
    root.setAttribute("role", "img")
    root.setAttribute("aria-labelledby", f"{name}-title")
    width, height = figure.get_size_inches()
    root.setAttribute("width", f"{width * PIXELS_PER_INCH:.0f}")
    root.setAttribute("height", f"{height * PIXELS_PER_INCH:.0f}")
