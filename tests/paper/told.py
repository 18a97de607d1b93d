"""What an item tells of a lab, by the way that numbers go: measured, written as json, read, told."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from bayesvlm_paper.finding import Claim, Finding
from bayesvlm_paper.plans import PLAN, Plan


@dataclass(frozen=True)
class Told:
    """The numbers of an item, and the finding they tell."""

    numbers: Mapping[str, Any]
    finding: Finding

    @property
    def answer(self) -> str:
        return self.finding.answer

    @property
    def claims(self) -> Sequence[Claim]:
        return self.finding.claims

    @property
    def exhibits(self) -> Sequence[Any]:
        return self.finding.exhibits

    @property
    def remarks(self) -> Sequence[str]:
        return self.finding.remarks

    @property
    def verdicts(self) -> list[str]:
        return [claim.verdict for claim in self.finding.claims]


def kept(numbers: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """As NAME.json holds them."""
    return json.loads(json.dumps({**numbers, PLAN: asdict(plan)}, allow_nan=False))  # type: ignore[no-any-return]


def told(lab: Any, measure: Callable[..., Any], tell: Callable[..., Finding], **options: Any) -> Told:
    """Measure in a lab, or what stands for one, and tell with these options."""
    plan = replace(getattr(lab, "plan", Plan()), models=tuple(lab.models))
    plan = replace(plan, sets=tuple(getattr(lab, "sets", plan.sets)))
    numbers = kept(measure(lab), plan)
    return Told(numbers, tell(numbers, **options))
