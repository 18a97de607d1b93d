"""What a fit adds up: the factors of groups of pairs, how many pairs they took, and what became of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from bayesvlm.core.estimation import TOWERS, Tower
from bayesvlm.core.factors import KroneckerFactors

NAMED = 1000
"""Of pairs that could not be used, so many are remembered by name; all are counted."""


@dataclass(frozen=True)
class Tally:
    """How far a pass has come.

    Args:
        read: pairs that were taken, with those that could not be used.
        skipped: how many of them could not be used.
        reasons: by name, why the first of these could not.
        seconds: per stage of the work.
    """

    read: int = 0
    skipped: int = 0
    reasons: Mapping[str, str] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)

    def __add__(self, other: Tally) -> Tally:
        room = max(0, NAMED - len(self.reasons))
        more = dict(list(other.reasons.items())[:room])
        stages = [*self.seconds, *(name for name in other.seconds if name not in self.seconds)]
        seconds = {name: self.seconds.get(name, 0.0) + other.seconds.get(name, 0.0) for name in stages}
        return Tally(self.read + other.read, self.skipped + other.skipped, {**self.reasons, **more}, seconds)


@dataclass(frozen=True, eq=False)
class GroupFactors:
    """The sums of one group.

    Args:
        index: of the group.
        factors: of both towers; None where fewer than two of its pairs could be used.
        tally: of the group.
    """

    index: int
    factors: Mapping[Tower, KroneckerFactors] | None
    tally: Tally

    @property
    def pairs(self) -> int:
        """How many pairs the factors are of."""
        return 0 if self.factors is None else self.factors["image"].n

    def to(self, device: torch.device | str) -> GroupFactors:
        """The same on another device."""
        if self.factors is None:
            return self
        return replace(self, factors={tower: self.factors[tower].to(device) for tower in TOWERS})


@dataclass(frozen=True, eq=False)
class GroupSums:
    """The sums of several groups, each of which counts once.

    Args:
        groups: which, by their index.
        factors: of both towers; None as long as there are none.
        tally: of all of them.
    """

    groups: frozenset[int] = frozenset()
    factors: Mapping[Tower, KroneckerFactors] | None = None
    tally: Tally = field(default_factory=Tally)

    def add(self, group: GroupFactors) -> GroupSums:
        """With one group more; itself where that group is among them already."""
        if group.index in self.groups:
            return self
        factors = self.factors or group.factors
        if self.factors is not None and group.factors is not None:
            factors = {tower: self.factors[tower].merge(group.factors[tower]) for tower in TOWERS}
        return GroupSums(self.groups | {group.index}, factors, self.tally + group.tally)

    @property
    def pairs(self) -> int:
        """How many pairs the factors are of."""
        return 0 if self.factors is None else self.factors["image"].n


@dataclass(frozen=True, eq=False)
class OpenGroup:
    """A group that is not finished, after one of its contrast batches: a later run goes on from here.

    Args:
        index: of the group.
        position: how many of its pairs were read, with those that could not be used.
        closed: sums over its finished contrast batches; empty where no pair could be used so far.
        recent: embeddings [K, d] of the last one, which lends pairs to the next.
        tally: of the group so far.
        digest: a hash of the pairs, where nothing else identifies them.
    """

    index: int
    position: int
    closed: Mapping[Tower, KroneckerFactors]
    recent: Mapping[Tower, Tensor]
    tally: Tally = field(default_factory=Tally)
    digest: str = ""

    def estimation(self, device: torch.device) -> dict[str, Any]:
        """What a `FactorEstimator` goes on from."""
        closed = {tower: factors.to(device) for tower, factors in self.closed.items()}
        return {"closed": closed, "recent": {tower: rows.to(device) for tower, rows in self.recent.items()}}
