"""The drawings of a style: finding them in its package, and rendering one as 64 x 64 RGBA."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import resvg_py
from PIL import Image

from concepts import Concept, code
from styles import Style

SIZE = 64
RENAMED = {  # names the oldest drawings still carry
    "direct-hit": "1f3af",
    "dizzy-face": "1f635",
    "exclamation-mark": "2757",
    "hugging-face": "1f917",
    "pistol": "1f52b",
    "pouting-face": "1f621",
    "question-mark": "2753",
}


class Artwork:
    """The drawings of one style, found by code points and rendered on demand."""

    def __init__(self, style: Style, packages: Path, names: dict[str, str]) -> None:
        self.style = style
        folder = packages / style.package
        self._files = (
            {code(path.stem): path for path in sorted((folder / style.folder).iterdir())} if style.folder else {}
        )
        self._icons = {} if style.folder else dict(_iconify(folder, names))

    def __contains__(self, point: str) -> bool:
        return point in self._files or point in self._icons

    def draw(self, point: str) -> Image.Image:
        """RGBA, 64 x 64, the whole canvas of the drawing, its aspect kept."""
        if point in self._icons:
            return _render(self._icons[point])
        path = self._files[point]
        if path.suffix == ".svg":
            return _render(path.read_text(encoding="utf-8"))
        return _fit(Image.open(path).convert("RGBA"))


def slugs(packages: Path) -> dict[str, str]:
    """Iconify's name of each drawing -> code points; some of its packages know only the names."""
    known = dict(RENAMED)
    for package in ("noto", "twemoji"):
        chars = json.loads((packages / "@iconify-json" / package / "chars.json").read_text(encoding="utf-8"))
        known |= {name: code(point) for point, name in chars.items()}
    return known


def slug(concept: Concept) -> str:
    """A concept's label as iconify would write it."""
    return re.sub(r"[^a-z0-9]+", "-", concept.label.lower().replace("\u2019", "").replace("'", "")).strip("-")


def _iconify(folder: Path, names: dict[str, str]) -> Iterator[tuple[str, str]]:
    """(code points, svg) of every icon of an iconify json package."""
    icons = json.loads((folder / "icons.json").read_text(encoding="utf-8"))
    chars = json.loads((folder / "chars.json").read_text(encoding="utf-8"))
    points = {code(point): name for point, name in chars.items()} or {point: name for name, point in names.items()}
    for point, name in points.items():
        icon = icons["icons"].get(name)  # not its aliases: an older name may by now be another emoji's
        if icon is not None:
            width, height = (icon.get(side, icons.get(side, 16)) for side in ("width", "height"))
            yield (
                point,
                (
                    f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
                    f'viewBox="{icon.get("left", 0)} {icon.get("top", 0)} {width} {height}">{icon["body"]}</svg>'
                ),
            )


def _render(svg: str) -> Image.Image:
    png = resvg_py.svg_to_bytes(svg_string=svg, width=SIZE, skip_system_fonts=True)
    return _fit(Image.open(io.BytesIO(bytes(png))).convert("RGBA"))


def _fit(image: Image.Image) -> Image.Image:
    """Scale the longer side to 64 pixels and centre on a transparent square."""
    scale = SIZE / max(image.size)
    if image.size != (SIZE, SIZE):
        size = tuple(max(1, round(side * scale)) for side in image.size)
        image = image.resize(size, Image.Resampling.LANCZOS)
    canvas = Image.new("RGBA", (SIZE, SIZE))
    canvas.paste(image, ((SIZE - image.width) // 2, (SIZE - image.height) // 2))
    return canvas
