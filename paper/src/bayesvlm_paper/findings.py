"""What an item of the paper comes to: an answer, the paper's claims judged, exhibits to look at, all the numbers.

Plain values that go to json and back: pages are made from the files alone, by whoever draws them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, get_args

from bayesvlm.core.errors import check_choice

Verdict = Literal["holds", "does not hold", "cannot be tested here"]


@dataclass(frozen=True)
class Claim:
    """Something the paper says, and whether it is so here, with the figure that decides it."""

    text: str
    verdict: Verdict
    figure: str

    def __post_init__(self) -> None:
        check_choice("verdict", self.verdict, get_args(Verdict))

    @property
    def ours(self) -> bool:
        """Whether it is not the paper's, but of what goes beyond it; such a claim says so."""
        return self.text.startswith("Ours:")

    @classmethod
    def judged(cls, text: str, holds: bool, figure: str) -> Claim:
        """One that could be tested."""
        return cls(text, "holds" if holds else "does not hold", figure)


@dataclass(frozen=True)
class Grid:
    """A table: texts, the first column names the rows.

    Args:
        best: [row, column] of the cells in bold.
        groups: a header above the header: [title, number of columns] from the left.
    """

    kind: ClassVar[str] = "grid"
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    best: Sequence[tuple[int, int]] = ()
    groups: Sequence[tuple[str, int]] = ()


@dataclass(frozen=True)
class Series:
    """One line; `error` is drawn as a band around it."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float] | None = None
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """Lines that share their axes; `mark` is an x that is pointed out, such as what was chosen."""

    title: str
    x: str
    y: str
    series: Sequence[Series]
    log_x: bool = False
    mark: float | None = None

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Panel:
        return cls(**{**raw, "series": tuple(Series(**each) for each in raw["series"])})


@dataclass(frozen=True)
class Lines:
    """Panels of lines, one legend for all of them."""

    kind: ClassVar[str] = "lines"
    panels: Sequence[Panel]
    caption: str
    alt: str

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Lines:
        return cls(**{**raw, "panels": tuple(Panel.read(each) for each in raw["panels"])})


@dataclass(frozen=True)
class HeatMaps:
    """Grids of numbers side by side: title -> [rows, columns]."""

    kind: ClassVar[str] = "heat maps"
    grids: Mapping[str, Sequence[Sequence[float]]]
    rows: Sequence[str]
    columns: Sequence[str]
    row_title: str
    column_title: str
    caption: str
    alt: str


@dataclass(frozen=True)
class LearningCurves:
    """Scores against labels: metric -> strategy -> labels -> [mean, standard error over the seeds, or None]."""

    kind: ClassVar[str] = "learning curves"
    curves: Mapping[str, Mapping[str, Mapping[str, tuple[float, float | None]]]]
    caption: str
    alt: str


@dataclass(frozen=True)
class Quadrants:
    """Error against entropy: panel -> {"entropy": [N], "error": [N], "correct": [N]}; `classes` to choose from."""

    kind: ClassVar[str] = "quadrants"
    title: str
    answers: Mapping[str, Mapping[str, Sequence[float]]]
    classes: int
    caption: str
    alt: str


Exhibit = Grid | Lines | HeatMaps | LearningCurves | Quadrants
_KINDS: dict[str, type[Any]] = {of.kind: of for of in (Grid, Lines, HeatMaps, LearningCurves, Quadrants)}


@dataclass(frozen=True)
class Finding:
    """What was found out.

    Args:
        answer: to the item's question, in a sentence made from the numbers.
        claims: the paper's, judged.
        exhibits: tables and plots, in the order in which they are to be seen.
        numbers: everything measured, for json.
        remarks: what a reader should know: stand-ins, oddities of the printed values.
    """

    answer: str
    claims: Sequence[Claim] = ()
    exhibits: Sequence[Exhibit] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)
    remarks: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Everything, for json."""
        return {**asdict(self), "exhibits": [{"kind": each.kind, **asdict(each)} for each in self.exhibits]}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Finding:
        """What `to_json` wrote."""
        exhibits = []
        for each in raw["exhibits"]:
            kind, rest = _KINDS[each["kind"]], {name: value for name, value in each.items() if name != "kind"}
            exhibits.append(kind.read(rest) if hasattr(kind, "read") else kind(**rest))
        claims = [Claim(**each) for each in raw["claims"]]
        return cls(raw["answer"], claims, exhibits, raw["numbers"], raw["remarks"])
