"""A hook of mkdocs: a built site with a link that leads nowhere, or a page that asks another machine, is an error.

mkdocs checks the links of Markdown; this looks at the pages that came out, API reference and notebooks among them.
"""

from __future__ import annotations

from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError

LOADED = {("img", "src"), ("script", "src"), ("link", "href"), ("iframe", "src"), ("source", "src"), ("object", "data")}
"""What a browser fetches by itself."""


class Links(HTMLParser):
    """Anchors of a page, and what it links to or loads."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[tuple[str, bool]] = []  # the link, whether a browser fetches it by itself
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the ids and links of a tag."""
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            elif value is not None and ((tag, name) in LOADED or (tag, name) == ("a", "href")):
                self.links.append((value, (tag, name) in LOADED))


def dead(site: Path) -> list[str]:
    """One sentence for each link of the site that leads nowhere, and for each thing that is loaded from elsewhere."""
    read = cache(Links)
    return [
        f"{page.relative_to(site)}: {sentence}"
        for page in sorted(site.rglob("*.html"))
        for link, loaded in read(page).links
        if (sentence := wrong(page, link, loaded, read))
    ]


def wrong(page: Path, link: str, loaded: bool, read: object) -> str | None:
    """What is wrong with a link of a page, or None."""
    if link.startswith(("http:", "https:", "//")):
        return f"{link} is loaded from another machine" if loaded else None
    if link.startswith(("mailto:", "data:", "javascript:")):
        return None
    path, anchor = urldefrag(link)
    target = (page.parent / unquote(path)).resolve() if path else page
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return f"{link} leads nowhere"
    if anchor and target.suffix == ".html" and unquote(anchor) not in read(target).anchors:  # type: ignore[operator]
        return f"{link} leads to no heading of {target.name}"
    return None


def on_post_build(config: MkDocsConfig) -> None:
    """Look at everything that was built."""
    site = Path(config.site_dir)
    (site / "404.html").unlink(missing_ok=True)  # its links are those of a server; these pages are read from anywhere
    found = dead(site)
    if found:
        raise PluginError("the site has dead links:\n" + "\n".join(found))
