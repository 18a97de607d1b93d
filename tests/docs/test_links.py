"""Links between pages of the repository lead to files and headings that there are, as a git host shows them.

`make site` looks at the pages that come out; this needs no build, and reads every page that the site has.
"""

from __future__ import annotations

import importlib.util
import json
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("mkdocs", reason="reads links as the site does; comes with the extra docs")
ROOT = Path(__file__).parents[2]


@cache
def hook(name: str) -> ModuleType:
    """A module of docs/site."""
    spec = importlib.util.spec_from_file_location(f"site_{name}", ROOT / "docs" / "site" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written() -> list[str]:
    """Every page that is written for people, by its path in the repository."""
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "notebooks").glob("*.ipynb"), *ROOT.glob("*.md")]
    return sorted(path.relative_to(ROOT).as_posix() for path in pages)


def markdown(path: str) -> str:
    """The Markdown of a page; of a notebook, that of its cells."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".ipynb"):
        return "\n\n".join("".join(c["source"]) for c in json.loads(text)["cells"] if c["cell_type"] == "markdown")
    return text


def slug(heading: str) -> str:
    """The anchor that a git host gives a heading.

    >>> slug("ProbCosine (`core/cosine.py`)"), slug("1. Fit, once per model")
    ('probcosine-corecosinepy', '1-fit-once-per-model')
    """
    words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


@cache
def anchors(path: str) -> frozenset[str]:
    """The anchors of a page: its headings, and what the reference documents there."""
    text = markdown(path)
    bare = hook("pages").FENCE.sub("", text)
    names = re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)
    return frozenset([*(slug(line) for line in re.findall(r"^#+ +(.+)$", bare, re.MULTILINE)), *names])


def dead(path: str) -> list[str]:
    """The links of a page that lead nowhere."""
    pages, found = hook("pages"), []
    for link in pages.links_of(markdown(path), within=True):
        anchor = link.partition("#")[2]
        target = pages.target_of(path, link) if pages.is_relative(link) else path
        has_anchors = (ROOT / target).exists() and target.endswith((".md", ".ipynb"))
        if not (ROOT / target).exists() or (anchor and has_anchors and anchor not in anchors(target)):
            found.append(link)
    return found


def test_no_link_is_dead() -> None:
    found = {path: dead(path) for path in written()}
    assert sum(len(hook("pages").links_of(markdown(path))) for path in found) > 100
    assert not {path: links for path, links in found.items() if links}


def test_a_dead_link_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One\n\n[a](gone.md) [b](#two) [c](#one) `[d](e)` [`f`](page.md#two)\n\n```\n[g](h)\n# Two\n```\n"
    )
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    anchors.cache_clear()
    assert dead("page.md") == ["gone.md", "#two", "page.md#two"]
    anchors.cache_clear()


def test_links_of_the_site_are_those_of_the_repository() -> None:
    """Every page that the site has is placed once, and what it links to is placed, too."""
    pages = hook("pages")
    texts = pages.pages()
    places = [pages.place_of(path) for path in texts]
    assert len(set(places)) == len(places)
    assert {"docs/index.md", "CHANGELOG.md", "docs/method.md", "world/recipes/cifar10/README.md"} <= set(texts)
    assert "benchmarks/results/bench-cpu.json" in set(pages.copies(texts))


def test_a_site_with_a_dead_link_or_a_request_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#here">1</a><a href="b.html#gone">2</a><img src="c.png"><script src="https://cdn.example/x.js">'
        '</script><a href="https://example.org">3</a><a href="#">4</a>'
    )
    (tmp_path / "b.html").write_text('<h1 id="here">B</h1>')
    assert hook("checks").dead(tmp_path) == [
        "a.html: b.html#gone leads to no heading of b.html",
        "a.html: c.png leads nowhere",
        "a.html: https://cdn.example/x.js is loaded from another machine",
    ]


def test_navigation_tells_short_pages_from_long_ones() -> None:
    """Twins as "Serve" and "Serving" say nothing to somebody who looks for one of them."""
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    how_to = nav[nav.index("  - How to:\n") : nav.index("  - API reference:\n")]
    titles = {page: title for title, page in re.findall(r"^      - (.+): (\S+\.md)$", how_to, re.MULTILINE)}
    assert len(titles) > 10
    wrong = [title for page, title in titles.items() if page.startswith("howto/") == title.endswith(", in full")]
    assert not wrong
