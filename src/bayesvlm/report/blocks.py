"""What a page is made of: plain values, checked when they are made, that `page.render` turns into HTML."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, ClassVar

from matplotlib.figure import Figure
from PIL import Image

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.report.axes import tenths


@dataclass(frozen=True)
class Text:
    """Paragraphs, apart by blank lines, with `code`, *emphasis* and **strong**; everything else is escaped."""

    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True)
class Table:
    """A table whose first column names its rows.

    Args:
        columns: The header.
        rows: One text a column.
        best: (row, column) of the cells to set in bold, counted from 0; column 0 is the row's name.
        caption: What the table shows.
        groups: A second header above the first: (title, number of columns) from the left; "" leaves a gap.
    """

    kind: ClassVar[str] = "table"
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: AbstractSet[tuple[int, int]] = frozenset()
    caption: str = ""
    groups: Sequence[tuple[str, int]] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise BayesVLMError(
                    f"The row {list(row)} has {len(row)} cells; the table has {len(self.columns)} columns."
                )
        for row_index, column in self.best:
            if not (0 <= row_index < len(self.rows) and 0 <= column < len(self.columns)):
                raise BayesVLMError(
                    f"best={(row_index, column)} is outside of a table of {len(self.rows)} x {len(self.columns)} cells."
                )
        if self.groups and sum(span for _, span in self.groups) != len(self.columns):
            raise BayesVLMError(
                f"groups={list(self.groups)} must span all {len(self.columns)} columns, no more or fewer."
            )


@dataclass(frozen=True)
class Plot:
    """A figure with its caption; `alt` says what it shows to those who cannot see it.

    A screen narrower than the figure scrolls it, or shows `narrow`: the same, drawn for a phone.
    """

    kind: ClassVar[str] = "plot"
    figure: Figure
    caption: str
    alt: str
    narrow: Figure | None = None

    def __post_init__(self) -> None:
        if not self.alt.strip():
            raise BayesVLMError("A plot needs an alt text; say in a sentence what it shows.")


@dataclass(frozen=True)
class Answer:
    """One possible answer about a picture: its probability, and its cosine with the 95 % interval.

    `right` is whether it is the true one, None where there is no true one to know.
    """

    name: str
    probability: float
    cosine_mean: float
    cosine_low: float
    cosine_high: float
    right: bool | None

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:  # also refuses nan
            raise BayesVLMError(f"The probability of {self.name!r} is {self.probability}; it must be from 0 to 1.")
        if not -math.inf < self.cosine_low <= self.cosine_mean <= self.cosine_high < math.inf:
            raise BayesVLMError(
                f"The cosine of {self.name!r} is {self.cosine_mean} in [{self.cosine_low}, {self.cosine_high}]; "
                "the mean must be finite and inside the interval."
            )


@dataclass(frozen=True)
class Card:
    """A picture, what it is, the answers about it, and a sentence."""

    image: Image.Image
    title: str
    subtitle: str
    answers: Sequence[Answer]
    note: str


@dataclass(frozen=True)
class Gallery:
    """Cards side by side; all their cosines are drawn on one axis, so that intervals can be compared."""

    kind: ClassVar[str] = "gallery"
    cards: Sequence[Card]

    @property
    def axis(self) -> tuple[float, float]:
        """The ends of the common axis of cosines, on tenths."""
        answers = [answer for card in self.cards for answer in card.answers]
        return tenths((answer.cosine_low for answer in answers), (answer.cosine_high for answer in answers))


@dataclass(frozen=True)
class Found:
    """One thing that a search found: its picture, its cosine with an interval, and what is said of it in percent.

    Args:
        image: None where there is no picture of it.
        title, subtitle: what it is called, and what else is known of it.
        mean, low, high: of its cosine.
        shares: probabilities, each under its name.
        address: of its file, to open it; "" where it has none.
    """

    image: Image.Image | None
    title: str
    subtitle: str
    mean: float
    low: float
    high: float
    shares: Mapping[str, float] = field(default_factory=dict)
    address: str = ""

    def __post_init__(self) -> None:
        for name, share in self.shares.items():
            if not -1e-9 <= share <= 1 + 1e-9:  # also refuses nan
                raise BayesVLMError(f"{name!r} of {self.title!r} is {share}; a probability is from 0 to 1.")


@dataclass(frozen=True)
class Findings:
    """What a search found, side by side and in order; all cosines are drawn on one axis.

    Args:
        things: in order.
        level: of the intervals, for those who cannot see them.
    """

    kind: ClassVar[str] = "findings"
    things: Sequence[Found]
    level: float = 0.95

    @property
    def axis(self) -> tuple[float, float]:
        """The ends of the common axis of cosines, on tenths."""
        return tenths((thing.low for thing in self.things), (thing.high for thing in self.things))


@dataclass(frozen=True)
class Commands:
    """A block of shell commands: (command, what it does)."""

    kind: ClassVar[str] = "commands"
    lines: Sequence[tuple[str, str]]


Block = Text | Table | Plot | Gallery | Findings | Commands


@dataclass(frozen=True)
class Section:
    """A heading and what follows."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """A report: its title, a lead paragraph (with the markup of `Text`), a few facts, and its sections.

    `made_from` says what it shows, as json, in a line that is not seen: `page.check_replaces` reads it.
    """

    title: str
    lead: str
    facts: Mapping[str, str]
    sections: Sequence[Section]
    footer: str = "Written by `bayesvlm`. This page is one file and loads nothing from anywhere."
    made_from: Mapping[str, Any] = field(default_factory=dict)
