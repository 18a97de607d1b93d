"""A hook of mkdocs: what lies outside docs/ becomes part of the site, and links lead where they lead on a git host.

A page of the site is written as a file of the repository: its links are relative to it and may leave docs/. Here each
of them is resolved in the repository. A Markdown file or a notebook that is linked from a page becomes a page itself,
any other file is copied, a folder stands for its README, and a folder without one keeps its words and loses its link.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
FIRST = ("CHANGELOG.md", "CONTRIBUTING.md")
"""Pages of the site whether or not another page links to them."""

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
FENCE = re.compile(r"^( *)(```+)[^\n]*\n.*?^\1\2 *$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)

Named = dict[str, str]
"""Path of a file in the repository -> its place among the sources of the site."""


def place_of(path: str) -> str:
    """Where a file of the repository lies among the sources of the site.

    >>> place_of("docs/method.md"), place_of("notebooks/first.ipynb"), place_of("world/recipes/emoji/README.md")
    ('method.md', 'notebooks/first.md', 'repository/world/recipes/emoji/README.md')
    """
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.endswith(".ipynb"):
        return path.removesuffix(".ipynb") + ".md"
    return path.lower() if path in FIRST else f"repository/{path}"


def target_of(path: str, link: str) -> str:
    """The file of the repository that a link in the file at `path` leads to, without its anchor.

    >>> target_of("docs/howto/serve.md", "../serving.md#onnx")
    'docs/serving.md'
    """
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link.partition("#")[0]))


def is_relative(link: str) -> bool:
    """Whether a link leads to a file of the repository: not to the web, and not to a heading of its own page."""
    return not re.match(r"[a-z]+:|#|/", link)


def replaced(text: str, change: Any) -> str:
    """A page with `change(match)` in the place of every link outside of code."""
    code: list[str] = []

    def hide(match: re.Match[str]) -> str:
        code.append(match.group())
        return f"\0{len(code) - 1}\0"

    hidden = LINK.sub(change, CODE.sub(hide, FENCE.sub(hide, text)))
    while "\0" in hidden:
        hidden = re.sub("\0(\\d+)\0", lambda match: code[int(match.group(1))], hidden)
    return hidden


def links_of(text: str, within: bool = False) -> list[str]:
    """Every link of a page, in order, that leads to a file of the repository; with `within`, to its own headings, too.

    >>> links_of("[a](b.md#c) `[d](e)` ![f](g.png) [`h[0]`](../i) [j](https://k) [l](#m)")
    ['b.md#c', 'g.png', '../i']
    """
    found: list[str] = []

    def note(match: re.Match[str]) -> str:
        found.append(match.group(3))
        return match.group()

    replaced(text, note)
    return [link for link in found if is_relative(link) or (within and link.startswith("#"))]


def standing_for(path: str) -> str | None:
    """The file that stands for a path of the repository: itself, or a folder's README; None if there is none."""
    if (ROOT / path).is_dir():
        path = f"{path}/README.md"
    return path if (ROOT / path).is_file() else None


def text_of(path: str) -> str:
    """A file of the repository as Markdown."""
    if path.endswith(".ipynb"):
        from nbconvert import MarkdownExporter

        exporter = MarkdownExporter(exclude_input_prompt=True, exclude_output_prompt=True)
        text, resources = exporter.from_filename(str(ROOT / path), resources={"unique_key": Path(path).stem})
        _pictures[path] = resources["outputs"]
        return notice(path) + text
    return (ROOT / path).read_text(encoding="utf-8")


_pictures: dict[str, dict[str, bytes]] = {}


def notice(path: str) -> str:
    """What is said above a notebook."""
    return f"*This is [{path}]({posixpath.basename(path)}) with its outputs, as it was run.*\n\n"


def pages() -> dict[str, str]:
    """Path in the repository -> Markdown of every page: those of docs/, and all that they lead to."""
    waiting = [*sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md")), *FIRST]
    found: dict[str, str] = {}
    while waiting:
        path = waiting.pop()
        if path not in found:
            found[path] = text_of(path)
            targets = (standing_for(target_of(path, link)) for link in links_of(found[path]))
            waiting += [t for t in targets if t is not None and t.endswith((".md", ".ipynb")) and t != path]
    return found


def copies(texts: dict[str, str]) -> Iterator[str]:
    """Files outside docs/ that are no pages, and to which a page links."""
    for path, text in texts.items():
        for link in links_of(text):
            target = standing_for(target_of(path, link))
            if target is not None and target not in texts and not target.startswith("docs/"):
                yield target
        if path.endswith(".ipynb"):
            yield path


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what lies outside docs/."""
    texts = pages()
    for path, text in texts.items():
        if not path.startswith("docs/"):
            files.append(File.generated(config, place_of(path), content=text))
    for path in sorted(set(copies(texts))):
        place = path if path.endswith(".ipynb") else place_of(path)
        files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    for path, outputs in _pictures.items():
        for name, content in outputs.items():
            files.append(File.generated(config, posixpath.join(posixpath.dirname(path), name), content=content))
    _paths.update({place_of(path): path for path in texts})
    return files


_paths: Named = {}


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    place = page.file.src_uri
    path = _paths[place]

    def change(match: re.Match[str]) -> str:
        picture, words, link = match.groups()
        if not is_relative(link) or (path.endswith(".ipynb") and (picture or link == posixpath.basename(path))):
            return match.group()
        target = standing_for(target_of(path, link))
        if target is None:
            return words if (ROOT / target_of(path, link)).is_dir() else match.group()
        anchor = link[link.index("#") :] if "#" in link else ""
        return f"{picture}[{words}]({os.path.relpath(place_of(target), posixpath.dirname(place) or '.')}{anchor})"

    return replaced(markdown, change)
