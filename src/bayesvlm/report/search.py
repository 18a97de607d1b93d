"""The page of `bayesvlm search`: what was found for each query, with the interval of every cosine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from bayesvlm.images.files import path_shown
from bayesvlm.report.axes import percent
from bayesvlm.report.blocks import Block, Card, Commands, Findings, Found, Gallery, Page, Section, Text
from bayesvlm.report.page import write_page
from bayesvlm.retrieval.hits import Hit, Hits, above, weak_match
from bayesvlm.retrieval.places import KEPT_OF_FILES

_RARE = 0.05  # of calibration queries that are as uncertain as one that is spoken of
_TITLE = 80  # letters of a query in a heading
_FURTHER = 3  # columns of an index that are shown


@dataclass(frozen=True, eq=False)
class SearchReport:
    """What a page is made of.

    Args:
        place: of the index.
        rows: how many images it holds.
        model: it was made with.
        hits: of each query.
        pictures: of what was found, by id.
        queries: of the queries that are images, by name.
        level: of the intervals.
        abstain: show nothing where nothing matches.
    """

    place: str
    rows: int
    model: str
    hits: Sequence[Hits]
    pictures: Mapping[str, Image.Image]
    queries: Mapping[str, Image.Image] = field(default_factory=dict)
    level: float = 0.95
    abstain: bool = False


def write_search(
    report: SearchReport, path: str | Path, command: str = "", made_from: Mapping[str, Any] | None = None
) -> Path:
    """Write the page; `made_from` says what it shows, for `page.check_replaces`."""
    return write_page(search_page(report, command, made_from), Path(path))


def search_page(report: SearchReport, command: str = "", made_from: Mapping[str, Any] | None = None) -> Page:
    """The page: a section per query."""
    sections = [_section(hits, report) for hits in report.hits]
    if command:
        sections.append(Section("Ask again", [Commands([(command, "this page")])]))
    calibrated = any(hits.matches is not None for hits in report.hits)
    lead = (
        f"Each image has its expected cosine with the query (the dot) and a {100 * report.level:g} % credible interval "
        "(the bar), on one axis for all of a query. *Best* is the probability that it is the best of those shown, by "
        "draws of the model that they share."
    )
    if calibrated:
        lead += " *Match* is the probability that it is what was asked for."
    facts = {
        "index": report.place,
        "images": f"{report.rows:,}",
        "model": report.model,
        "cut-off": "calibrated" if calibrated else "none: not calibrated",
    }
    title = f"Found for “{_shortened(report.hits[0].query)}”" if len(report.hits) == 1 else "What was found"
    return Page(title, lead, facts, sections, made_from=made_from or {})


def _section(hits: Hits, report: SearchReport) -> Section:
    blocks: list[Block] = []
    if hits.query in report.queries:
        blocks.append(Gallery([Card(report.queries[hits.query], "The query", hits.query, [], "")]))
    said = verdict(hits)
    if said:
        blocks.append(Text(said))
    if report.abstain and hits.matches is False:
        blocks.append(Text("So nothing is shown."))
    elif not len(hits):
        blocks.append(Text("No image fulfils the conditions."))
    else:
        low, high = (bound.tolist() for bound in hits.interval(report.level))
        things = [_thing(hit, low[place], high[place], report) for place, hit in enumerate(hits)]
        blocks.append(Findings(things, report.level))
    return Section(_shortened(hits.query), blocks)


def verdict(hits: Hits) -> str:
    """Whether nothing matches, in sentences; empty where the index is not calibrated."""
    if hits.matches is None:
        return ""
    said = "**Not turned away**" if hits.matches else "**Nothing here matches**"
    if hits.p_value is None:
        return f"{said}, by the calibration of this index."
    rare, best = unusual(hits), weak_match(hits)
    share, rule = f"{100 * hits.p_value:.2g}", ""
    if hits.matches and hits.error is not None:
        share = above(100 * hits.p_value, 100 * hits.error)
        rule = f"; nothing matches from {100 * hits.error:g} % down"
    weak = "" if best is None or not hits.matches else f" The most probable match has {percent(best)}."
    return (
        f"{said}: of queries that have a match, {share} % look as if they had none as much as "
        f"this{rule}.{weak}{f' And {rare}.' if rare else ''}"
    )


def unusual(hits: Hits) -> str:
    """What to say of a query that is more uncertain by itself than those that the index was calibrated on."""
    share = hits.query_p_value
    if share is None or share > _RARE:
        return ""
    return f"the query itself is uncertain: {100 * share:.2g} % of those it was calibrated on are as much"


def _thing(hit: Hit, low: float, high: float, report: SearchReport) -> Found:
    told = [value for name, value in hit.columns.items() if name not in KEPT_OF_FILES and value is not None]
    path = None if hit.path is None else path_shown(hit.path)
    shares = {"best": hit.p_best} | ({} if hit.p_match is None else {"match": hit.p_match})
    return Found(
        image=report.pictures.get(hit.id),
        title=hit.id.rpartition("/")[2] or hit.id,
        subtitle=", ".join(map(str, told[:_FURTHER])),
        mean=hit.mean,
        low=low,
        high=high,
        shares=shares,
        address=path.as_uri() if path is not None and path.is_absolute() else "",
    )


def _shortened(query: str) -> str:
    return query if len(query) <= _TITLE else f"{query[: _TITLE - 1]}…"
