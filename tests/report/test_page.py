"""The page: self-contained, well-formed, escaped, accessible, in both themes, written whole or not at all."""

from __future__ import annotations

import base64
import io
import os
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image

from bayesvlm import BayesVLMError
from bayesvlm.report import (
    NARROW,
    Answer,
    Card,
    Commands,
    Gallery,
    Page,
    Plot,
    Section,
    Table,
    Text,
    heat_maps,
    render,
    tau_plot,
    write_page,
)
from bayesvlm.report.page import check_replaces, column_classes, inline_markup, paragraphs, picture_address
from bayesvlm.report.theme import css_variables

HOSTILE = """</title></svg><script>alert("1")</script><img src='http://x.example' onerror=a>&amp;{{ 7*7 }}"""
VOID = {"meta", "img", "br", "hr", "link", "input"}


class Outline(HTMLParser):
    """Checks that tags balance, and gathers ids, references, visible text and tags."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def attributes(self, *names: str) -> list[str]:
        return [attributes[name] for _, attributes in self.tags for name in names if name in attributes]


def outline(html: str) -> Outline:
    parser = Outline()
    parser.feed(html)
    parser.close()
    assert not parser.open
    return parser


def curve(width: float = 6.0) -> Figure:
    return tau_plot([1, 10, 100], [3.0, 1.0, 2.0], 10.0, width=width)


def card(low: float = 0.32, high: float = 0.58, right: bool | None = True) -> Card:
    answers = [Answer("cat", 0.75, 0.45, low, high, right), Answer("dog", 0.25, 0.35, 0.3, 0.4, False)]
    return Card(Image.new("RGB", (8, 8), "red"), "a cat", "seen style", answers, "Sure and *right*.")


def sample(text: str = "Plain words.") -> Page:
    maps = heat_maps({text: [[0.1, 0.2]]}, [text], ["a", "b"], text, "y")
    blocks = [
        Text(text),
        Table(["set", "plain", "Bayes"], [[text, "0.1", "0.2"]], {(0, 2)}, text, groups=[("", 1), (text, 2)]),
        Plot(curve(), text, "A curve of NLPD.", narrow=curve(NARROW)),
        Plot(maps, text, f"Maps. {text}"),
        Gallery([card(), Card(Image.new("L", (300, 200)), text, text, [Answer(text, 1.0, 0.5, 0.4, 0.6, None)], text)]),
        Commands([("bayesvlm demo", "all of it"), (text, text)]),
    ]
    sections = [Section(title, blocks if title == text else [Text("More.")]) for title in (text, "More", "More", "")]
    return Page(text, text, {text: text, "time": "3 s"}, sections, footer=text)


@pytest.fixture(scope="module")
def html() -> str:
    return render(sample())


@pytest.fixture(scope="module")
def hostile() -> str:
    return render(sample(HOSTILE))


def test_it_is_well_formed_and_complete(html: str) -> None:
    assert html.startswith("<!DOCTYPE html>")
    page = outline(html)
    counts = Counter(tag for tag, _ in page.tags)
    assert counts["svg"] == 3  # a plot, its narrow form, the maps
    assert counts["img"] == 2
    assert counts["h1"] == 1
    assert counts["script"] == counts["link"] == counts["iframe"] == 0
    assert {attributes.get("lang") for tag, attributes in page.tags if tag == "html"} == {"en"}


def test_it_names_nothing_outside_of_itself(html: str) -> None:
    assert "http" not in html
    for reference in outline(html).attributes("href", "src", "srcset", "xlink:href"):
        assert reference.startswith(("#", "data:image/png;base64,"))
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)", html))
    assert "@import" not in html


def test_ids_are_unique_and_references_known(html: str) -> None:
    page = outline(html)
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))
    assert {reference[1:] for reference in page.attributes("href") if reference.startswith("#")} <= set(ids)
    assert {"plain-words", "more", "more-2", "section"} <= set(ids)


def test_hostile_text_stays_text(hostile: str) -> None:
    page = outline(hostile)
    assert Counter(tag for tag, _ in page.tags)["script"] == 0
    assert all(source.startswith("data:") for source in page.attributes("src"))
    assert not page.attributes("onerror")
    assert page.text.count('<script>alert("1")</script>') > 10
    assert "{{ 7*7 }}" in page.text


def test_the_same_page_is_the_same_bytes(html: str) -> None:
    page = sample()
    assert render(page) == html
    assert render(page) == html  # the same figures, drawn again


def test_pictures_have_words(html: str) -> None:
    page = outline(html)
    assert "A curve of NLPD." in page.text
    assert "Maps. Plain words." in page.text
    assert all(attributes["alt"] for tag, attributes in page.tags if tag == "img")
    assert any(label == "cosine 0.45, 95 % interval 0.32 to 0.58" for label in page.attributes("aria-label"))


def test_both_themes_are_defined(html: str) -> None:
    assert f":root {{ color-scheme: light; {css_variables('light')} }}" in html
    dark = (
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ color-scheme: dark; {css_variables('dark')} }} }}"
    )
    assert dark in html
    used = set(re.findall(r"var\(--([a-z-]+)\)", html))
    assert used <= set(re.findall(r"--([a-z-]+):", css_variables("light")))


def test_contents_only_on_long_pages(html: str) -> None:
    assert '<nav aria-label="Contents">' in html
    assert "<nav" not in render(Page("Short", "A page.", {}, [Section("One", [Text("x")])]))


def test_tables_have_headers_and_bold_cells(html: str) -> None:
    page = outline(html)
    scopes = Counter(attributes.get("scope") for tag, attributes in page.tags if tag == "th")
    assert scopes == {"col": 3, "row": 1, "colgroup": 1}
    assert '<td class="number"><strong>0.2</strong></td>' in html
    assert '<td class="number start">0.1</td>' in html


def test_columns_of_numbers_are_told_from_words() -> None:
    table = Table(["a", "b", "c", "d"], [["x", "1.0 ± 0.2", "12 %", "3 s"], ["y", "-2", "", "4"]])
    assert column_classes(table) == ["", "number", "number", ""]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": [["x"]]}, r"The row \['x'\] has 1 cells; the table has 2 columns"),
        ({"rows": [["x", "1"]], "best": {(1, 1)}}, r"best=\(1, 1\) is outside of a table of 1 x 2 cells"),
        ({"rows": [], "groups": [("g", 3)]}, r"must span all 2 columns"),
    ],
)
def test_tables_that_do_not_fit_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(BayesVLMError, match=message):
        Table(["a", "b"], **arguments)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a `x*y*z` b", "a <code>x*y*z</code> b"),
        ("**so** *it* is", "<strong>so</strong> <em>it</em> is"),
        ("2 * 3 * 4", "2 * 3 * 4"),
        ("`<i>`", "<code>&lt;i&gt;</code>"),
        ("un*closed **and `open", "un*closed **and `open"),
        ("", ""),
        ("**so `x` is *it***", "<strong>so <code>x</code> is <em>it</em></strong>"),
        ("image_features, a*b", "image_features, a*b"),
        ("<script>alert(1)</script> &amp;", "&lt;script&gt;alert(1)&lt;/script&gt; &amp;amp;"),
        (
            "[a](https://example.org) ![b](c.png) <https://example.org>",
            "[a](https://example.org) ![b](c.png) &lt;https://example.org&gt;",
        ),
        ("# no title\n- no list", "# no title\n- no list"),
    ],
)
def test_inline_markup(text: str, expected: str) -> None:
    assert inline_markup(text) == expected


def test_paragraphs_are_apart_by_blank_lines() -> None:
    assert paragraphs("one\ntwo\n\n \nthree\n") == "<p>one two</p>\n<p>three</p>"


def test_cosines_of_a_gallery_share_an_axis() -> None:
    gallery = Gallery([card(low=0.11), card(high=0.87)])
    assert gallery.axis == (0.1, 0.9)
    html = render(Page("t", "", {}, [Section("s", [gallery])]))
    assert "left: 43.75%" in html  # (0.45 - 0.1) / 0.8
    assert "left: 1.25%; width: 58.75%" in html
    assert 'style="width: 75.00%"' in html
    assert html.count('title="the right answer"') == 2
    assert Gallery([]).axis == (0.0, 1.0)


@pytest.mark.parametrize(
    "numbers",
    [(1.1, 0.5, 0.4, 0.6), (float("nan"), 0.5, 0.4, 0.6), (0.5, 0.7, 0.4, 0.6), (0.5, float("nan"), 0.4, 0.6)],
)
def test_answers_that_cannot_be_are_refused(numbers: tuple[float, float, float, float]) -> None:
    with pytest.raises(BayesVLMError, match=r"^The (probability|cosine) of 'cat' is "):
        Answer("cat", *numbers, right=None)


def test_a_plot_needs_words() -> None:
    with pytest.raises(BayesVLMError, match="needs an alt text"):
        Plot(curve(), "A caption.", " ")


@pytest.mark.parametrize(("mode", "kept"), [("P", "RGB"), ("RGBA", "RGBA"), ("L", "RGB"), ("1", "RGB")])
def test_pictures_of_any_mode_are_shrunk_and_left_alone(mode: str, kept: str) -> None:
    image = Image.new(mode, (1000, 500))
    address = picture_address(image)
    with Image.open(io.BytesIO(base64.b64decode(address.removeprefix("data:image/png;base64,")))) as shown:
        assert (shown.size, shown.mode) == ((256, 128), kept)
    assert image.size == (1000, 500)


def test_commands_keep_their_lines(html: str) -> None:
    assert "# all of it\nbayesvlm demo\n" in outline(html).text


def test_a_page_is_small(html: str) -> None:
    assert len(html) < 200_000


def test_writing_makes_the_folder_and_returns_the_path(tmp_path: Path) -> None:
    page = Page("t", "", {}, [Section("Größe", [Text("naïve ✓")])])
    path = write_page(page, str(tmp_path / "demo" / "report.html"))
    assert path.read_text(encoding="utf-8") == render(page)
    assert [item.name for item in path.parent.iterdir()] == ["report.html"]


def test_a_page_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    made = {"command": "adapt", "model": 'a "model"', "seeds": [0, 1]}
    path = write_page(replace(sample(), made_from=made), tmp_path / "report.html")
    check_replaces(path, made, overwrite=False)
    check_replaces(path, {**made, "seeds": [0, 1, 2]}, overwrite=False)  # shows all of it, and more
    for change, told in (
        ({"seeds": [0]}, r"its seeds: 0, 1, now 0\)"),
        ({"model": "b"}, r'its model: a "model", now b\)'),
        ({"command": "eval"}, r"its command: adapt, now eval\)"),
    ):
        with pytest.raises(BayesVLMError, match=rf"report\.html is the page of something else \({told}; name another"):
            check_replaces(path, {**made, **change}, overwrite=False)
        check_replaces(path, {**made, **change}, overwrite=True)
    path.write_text("<title>somebody's</title>")
    with pytest.raises(BayesVLMError, match="its command: unknown, now adapt"):
        check_replaces(path, made, overwrite=False)
    check_replaces(tmp_path / "new.html", made, overwrite=False)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BayesVLMError, match=r"report\.html cannot be written: No space left on device; "):
        write_page(Page("t", "", {}, []), path)
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["report.html"]


def test_a_page_that_cannot_be_rendered_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    with pytest.raises(AttributeError):
        write_page(Page("t", "", {}, [Section("s", [Plot("no figure", "c", "a")])]), path)  # type: ignore[arg-type]
    assert path.read_text() == "old"
