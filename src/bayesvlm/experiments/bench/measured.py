"""What a benchmark finds: a reference and ways that are compared with it, as numbers that can be kept as json."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Fact = float | int | str | list[float]


@dataclass(frozen=True)
class Plan:
    """What is asked of a benchmark.

    Args:
        device: a torch device that is there.
        repeats: turns that count; None takes the benchmark's own number.
        quick: sizes that take seconds, to see that everything runs: their ratios say nothing.
        pairs: image-text pairs of the end-to-end fit; None takes the number that suits the device.
    """

    device: str
    repeats: int | None = None
    quick: bool = False
    pairs: int | None = None

    @property
    def cuda(self) -> bool:
        return self.device.startswith("cuda")


@dataclass(frozen=True)
class Comparison:
    """One way against the reference, turn by turn.

    Args:
        ours: seconds per `unit` of every turn.
        reference: the same of the reference, whose turns lay beside these.
        facts: what else is known of this way: its error, its rate.
    """

    ours: Sequence[float]
    reference: Sequence[float]
    facts: Mapping[str, Fact] = field(default_factory=dict)

    @property
    def ratios(self) -> list[float]:
        """How many times as fast as the reference, turn by turn: a busy moment meets both sides of a turn."""
        return [reference / ours for ours, reference in zip(self.ours, self.reference, strict=True)]

    def numbers(self) -> dict[str, Any]:
        """As json."""
        ratios = self.ratios
        return {
            "ratio": statistics.median(ratios),
            "slowest": min(ratios),
            "fastest": max(ratios),
            "seconds": list(self.ours),
            "reference_seconds": list(self.reference),
            **self.facts,
        }


@dataclass(frozen=True)
class Measured:
    """A benchmark, done.

    Args:
        reference: what everything is compared with, in words.
        unit: what the seconds are for: "row", "image".
        sizes: everything that decides what was done; results of other sizes are not compared with these.
        ways: by name, in the order they are shown.
        facts: about the whole: rates of the stages, the error of the reference.
    """

    reference: str
    unit: str
    sizes: Mapping[str, int | str]
    ways: Mapping[str, Comparison]
    facts: Mapping[str, Fact] = field(default_factory=dict)

    def numbers(self) -> dict[str, Any]:
        """As json."""
        return {
            "reference": self.reference,
            "per": self.unit,
            "sizes": dict(self.sizes),
            "ways": {name: way.numbers() for name, way in self.ways.items()},
            **({"facts": dict(self.facts)} if self.facts else {}),
        }


def compared(
    seconds: Mapping[str, Sequence[float]],
    reference: str,
    units: Mapping[str, float],
    facts: Mapping[str, Mapping[str, Fact]] | None = None,
) -> dict[str, Comparison]:
    """Every way but the reference against it, from the seconds of whole turns.

    Args:
        seconds: way -> its turns.
        reference: which of the ways is the reference.
        units: way -> units of work in a turn: the slow one may do less.
        facts: way -> what else is known of it.
    """
    per_unit = {way: [taken / units[way] for taken in turns] for way, turns in seconds.items()}
    known = facts or {}
    others = [way for way in seconds if way != reference]
    return {way: Comparison(per_unit[way], per_unit[reference], known.get(way, {})) for way in others}
