"""The page of `bayesvlm dedupe`: near-duplicates side by side, the one to keep first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from bayesvlm.experiments.near_copies import NearCopies, Picture
from bayesvlm.images.files import path_shown
from bayesvlm.report.blocks import Block, Commands, Findings, Found, Page, Section, Text
from bayesvlm.report.page import write_page
from bayesvlm.retrieval.duplicates import DuplicateGroup

GROUPS, MEMBERS = 40, 12
"""How many groups a page shows, and how many pictures of each."""


def shown_groups(copies: NearCopies) -> Sequence[DuplicateGroup]:
    """The groups of the page: the largest."""
    return copies.found.groups[:GROUPS]


def shown_names(copies: NearCopies) -> Iterable[str]:
    """The pictures of the page."""
    for group in shown_groups(copies):
        yield from (group.id, *(copy.id for copy in group.copies[: MEMBERS - 1]))


def write_near_copies(
    copies: NearCopies,
    pictures: Mapping[str, Image.Image],
    path: str | Path,
    command: str = "",
    made_from: Mapping[str, Any] | None = None,
) -> Path:
    """Write the page.

    Args:
        copies: what was found.
        pictures: the images of `shown_names`, small; one that is missing is left blank.
        path: of the file.
        command: that makes the page again.
        made_from: what it shows, for `page.check_replaces`.
    """
    return write_page(near_copies_page(copies, pictures, command, made_from), Path(path))


def near_copies_page(
    copies: NearCopies,
    pictures: Mapping[str, Image.Image],
    command: str = "",
    made_from: Mapping[str, Any] | None = None,
) -> Page:
    """The page: a row of pictures per group."""
    found = copies.found
    how = {
        "upper": f"whose {_percent(found.level)} credible interval reaches",
        "mean": "whose mean reaches",
        "lower": f"whose whole {_percent(found.level)} credible interval is at least",
    }[found.by]
    lead = (
        f"**{found.copies:,} near-copies in {len(found):,} groups.** Each has a cosine with the first picture of its "
        f"group {how} {found.similarity:g}: the dot is its mean, the bar the interval. That first picture has the most "
        "pixels. Nothing was deleted."
    )
    facts = {
        "pictures compared": f"{found.items:,}",
        "near-copies": f"{found.copies:,}",
        "they take": told_bytes(copies.bytes),
        "model": copies.model,
    }
    blocks: list[Block] = []
    for number, group in enumerate(shown_groups(copies), start=1):
        blocks += _group(number, group, copies, pictures)
    if not len(found):
        blocks.append(Text("No picture is a near-copy of another one."))
    if len(found) > GROUPS:
        more = f"{len(found) - GROUPS:,} more groups are not shown; `--out groups.csv` lists all of them."
        blocks.append(Text(more))
    sections = [Section("Groups", blocks)]
    if command:
        sections.append(Section("Ask again", [Commands([(command, "this page; nothing is ever deleted")])]))
    return Page("Near-duplicates", lead, facts, sections, made_from=made_from or {})


def _group(number: int, group: DuplicateGroup, copies: NearCopies, pictures: Mapping[str, Image.Image]) -> list[Block]:
    level = copies.found.level
    held = sum(copies.pictures[copy.id].bytes for copy in group.copies)
    size = f", {told_bytes(held)}" if held else ""
    count = f"{len(group.copies)} near-{'copy' if len(group.copies) == 1 else 'copies'}"
    things = [_thing(copies.pictures[group.id], pictures, "keep", 1.0, (1.0, 1.0), {})]
    for copy in group.copies[: MEMBERS - 1]:
        shares = {f"at least {copies.found.similarity:g}": copy.p_similar}
        things.append(_thing(copies.pictures[copy.id], pictures, "", copy.mean, copy.interval(level), shares))
    blocks: list[Block] = [Text(f"**Group {number}**: {count}{size}"), Findings(things, level)]
    if len(group) > MEMBERS:
        blocks.append(Text(f"{len(group) - MEMBERS:,} more of this group are not shown."))
    return blocks


def _thing(
    picture: Picture,
    pictures: Mapping[str, Image.Image],
    said: str,
    mean: float,
    interval: tuple[float, float],
    shares: Mapping[str, float],
) -> Found:
    path = None if picture.path is None else path_shown(picture.path)
    return Found(
        image=pictures.get(picture.name),
        title=picture.name.rpartition("/")[2] or picture.name,
        subtitle=", ".join(filter(None, [said, told_size(picture)])),
        mean=mean,
        low=interval[0],
        high=interval[1],
        shares=shares,
        address=path.as_uri() if path is not None and path.is_absolute() else "",
    )


def told_size(picture: Picture) -> str:
    """Pixels and bytes of a picture, as far as they are known."""
    pixels = f"{picture.width} x {picture.height}" if picture.width else ""
    return ", ".join(filter(None, [pixels, told_bytes(picture.bytes) if picture.bytes else ""]))


def told_bytes(count: int) -> str:
    """A number of bytes as people read it.

    >>> told_bytes(950), told_bytes(12_345), told_bytes(3_456_789)
    ('950 bytes', '12 kB', '3.5 MB')
    """
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.1f} {unit}" if count < 10 * size else f"{count / size:,.0f} {unit}"
    return f"{count} bytes"


def _percent(level: float) -> str:
    return f"{100 * level:.6g} %"
