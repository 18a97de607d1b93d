"""A page of blocks as one self-contained HTML file: no script, no network, light and dark, screen and paper."""

from __future__ import annotations

import base64
import html
import io
import json
import re
from collections.abc import Mapping
from itertools import accumulate, count
from pathlib import Path
from typing import Any

import jinja2
from markdown_it import MarkdownIt
from markupsafe import Markup
from matplotlib.figure import Figure
from PIL import Image

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.report.axes import percent
from bayesvlm.report.blocks import Page, Table
from bayesvlm.report.svg import inline_svg
from bayesvlm.report.theme import css_variables
from bayesvlm.report.writing import write_whole

_MARKDOWN = MarkdownIt("zero").enable(["backticks", "emphasis"])  # no links, no HTML
_MADE_FROM = re.compile(r'<meta name="bayesvlm" content="([^"]*)">')
_LETTER = re.compile(r"[^\W\d_]")
_LARGEST_PICTURE = 256  # pixels a side; cards show pictures at half of that or less


def render(page: Page) -> str:
    """The HTML of a page: the same text for the same page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    numbers = count(1)

    def numbered_svg(figure: Figure, alt: str) -> Markup:
        return Markup(inline_svg(figure, f"plot-{next(numbers)}", alt))

    environment.filters.update(
        inline=inline_markup, paragraphs=paragraphs, svg=numbered_svg, picture=picture_address, share=_share
    )
    environment.filters.update(small_picture=small_picture_address, percent=percent)
    environment.globals.update(css_variables=css_variables, column_classes=column_classes)
    slugs = _slugs([section.title for section in page.sections])
    sections = list(zip(slugs, page.sections, strict=True))
    made = json.dumps(dict(page.made_from))
    return environment.get_template("page.html.j2").render(page=page, sections=sections, made_from=made).strip() + "\n"


def write_page(page: Page, path: str | Path) -> Path:
    """Render a page into a file, which appears whole or stays as it was."""
    return write_whole(path, render(page).encode())


def check_replaces(
    path: Path, made_from: Mapping[str, Any], overwrite: bool, elsewhere: str = "another folder with --out"
) -> None:
    """Refuse to write a page over one that shows something which the new one will not.

    Args:
        path: where the page is to be written.
        made_from: as the new page will have it; of a list the earlier page may show a part.
        overwrite: do it all the same.
        elsewhere: what to name instead.
    """
    if overwrite or not path.exists():
        return
    found = _MADE_FROM.search(path.read_text(encoding="utf-8", errors="replace"))
    earlier = {} if found is None else json.loads(html.unescape(found[1]))
    now = json.loads(json.dumps(dict(made_from)))
    lost = [name for name in now if not _covers(now[name], earlier.get(name))]
    if lost:
        raise BayesVLMError(
            f"{path} is the page of something else (its {lost[0]}: {_told(earlier.get(lost[0]))}, now "
            f"{_told(now[lost[0]])}); name {elsewhere}, or replace the page with --overwrite."
        )


def _covers(now: Any, earlier: Any) -> bool:
    both = isinstance(now, list) and isinstance(earlier, list)
    return set(earlier) <= set(now) if both else now == earlier


def _told(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else "unknown" if value is None else str(value)


def inline_markup(text: str) -> Markup:
    """Text with `code`, *emphasis* and **strong** as HTML; everything else is escaped.

    >>> print(inline_markup("`a < b` is *very* **clear**, 2 * 3 * 4 <b>"))
    <code>a &lt; b</code> is <em>very</em> <strong>clear</strong>, 2 * 3 * 4 &lt;b&gt;
    """
    return Markup(_MARKDOWN.renderInline(text))


def paragraphs(text: str) -> Markup:
    """A `<p>` for each run of lines between blank lines."""
    parts = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]
    return Markup("\n").join(Markup("<p>{}</p>").format(inline_markup(part)) for part in parts)


def picture_address(image: Image.Image) -> str:
    """A PIL image as a data address of a PNG, shrunk to what a card can show."""
    shown = image.convert("RGBA" if image.has_transparency_data else "RGB")
    shown.thumbnail((_LARGEST_PICTURE, _LARGEST_PICTURE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    shown.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def small_picture_address(image: Image.Image) -> str:
    """The same, as a JPEG where that is smaller: photographs are, drawings are not."""
    shown = picture_address(image)
    if image.has_transparency_data:
        return shown
    photo, buffer = image.convert("RGB"), io.BytesIO()
    photo.thumbnail((_LARGEST_PICTURE, _LARGEST_PICTURE), Image.Resampling.LANCZOS)
    photo.save(buffer, format="JPEG", quality=85, optimize=True)
    other = "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
    return min(shown, other, key=len)


def column_classes(table: Table) -> list[str]:
    """The CSS classes of each column: "number" where it holds no letter, "start" where a group begins."""
    starts = set(accumulate((span for _, span in table.groups[:-1]), initial=0)) - {0}
    classes = []
    for column in range(len(table.columns)):
        number = bool(table.rows) and not any(_LETTER.search(row[column]) for row in table.rows)
        classes.append(" ".join(["number"] * number + ["start"] * (column in starts)))
    return classes


def _share(value: float, low: float, high: float) -> str:
    """Where a value lies between two ends, in percent."""
    return f"{100 * (value - low) / (high - low):.2f}%"


def _slugs(titles: list[str]) -> list[str]:
    """An id for each section, all different."""
    slugs: list[str] = []
    for title in titles:
        base = "-".join(re.findall(r"[a-z0-9]+", title.lower())) or "section"
        taken = (f"{base}-{number}" if number > 1 else base for number in count(1))
        slugs.append(next(slug for slug in taken if slug not in slugs))
    return slugs
