"""What an item comes to: an answer, claims that are judged, exhibits to look at, remarks. Told from numbers alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from bayesvlm.core.errors import check_choice
from bayesvlm_paper.exhibits import Exhibit

Verdict = Literal["holds", "does not hold", "cannot be tested here"]
Numbers = dict[str, Any]
"""What an item measures, as json holds it: texts as keys, lists for tuples."""
Tell = Callable[[Mapping[str, Any]], "Finding"]


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
    def judged(cls, text: str, holds: bool | None, figure: str) -> Claim:
        """One that could be tested; or, where `holds` is None, could not, for the reason given as its figure."""
        return cls(text, "cannot be tested here" if holds is None else "holds" if holds else "does not hold", figure)

    @classmethod
    def untested(cls, text: str, reason: str) -> Claim:
        """One that could not."""
        return cls.judged(text, None, reason)


@dataclass(frozen=True)
class Finding:
    """What was found out.

    Args:
        answer: to the item's question, in a sentence made from the numbers.
        claims: the paper's, judged.
        exhibits: tables and drawings, in the order in which they are to be seen.
        remarks: what a reader should know: stand-ins, oddities of the printed values.
    """

    answer: str
    claims: Sequence[Claim] = ()
    exhibits: Sequence[Exhibit] = ()
    remarks: Sequence[str] = ()

    @classmethod
    def not_run(cls, reason: str, *claims: str) -> Finding:
        """Of an item that has no model here; none of its claims can be tested."""
        return cls(f"Not run: {reason}.", [Claim.untested(text, reason) for text in claims])

    def to_json(self) -> dict[str, Any]:
        """What can be said in words, for `--json`; the exhibits are made from the numbers beside it."""
        return {"answer": self.answer, "claims": [asdict(claim) for claim in self.claims], "remarks": [*self.remarks]}
