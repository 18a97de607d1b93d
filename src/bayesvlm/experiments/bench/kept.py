"""Results that were kept, and what has become slower since: ratios to the reference are compared, never seconds."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.experiments.bench.running import SCHEMA

Verdict = Literal["slower", "faster", "as kept", "nothing kept"]
_RUN_AGAIN = "make it again with `bayesvlm bench --out`"


@dataclass(frozen=True)
class Speed:
    """How many times as fast as its reference something was: the median of the turns, and how far they spread."""

    ratio: float
    slowest: float
    fastest: float

    @classmethod
    def of(cls, way: Mapping[str, Any]) -> Speed:
        """From the json of a way.

        Raises:
            KeyError, TypeError, ValueError: where that holds no such numbers.
        """
        ratio, slowest, fastest = (float(way[name]) for name in ("ratio", "slowest", "fastest"))
        if not (0 < slowest <= ratio <= fastest < math.inf):
            raise ValueError(f"a ratio of {ratio} between {slowest} and {fastest}")
        return cls(ratio, slowest, fastest)

    def __str__(self) -> str:
        return f"{shown(self.ratio)}x ({shown(self.slowest)} to {shown(self.fastest)})"


def shown(ratio: float) -> str:
    """Three digits, or all before the point.

    >>> [shown(ratio) for ratio in (0.98765, 5.0617, 233.4, 1234.5)]
    ['0.988', '5.06', '233', '1,234']
    """
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"


def shown_seconds(turns: Sequence[float]) -> str:
    """The median turn, in the unit a person would choose.

    >>> [shown_seconds([seconds] * 3) for seconds in (12.34, 0.0056789, 3.3e-5)]
    ['12.3 s', '5.68 ms', '33 µs']
    """
    seconds = statistics.median(turns)
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


@dataclass(frozen=True)
class Kept:
    """A file of results.

    Args:
        path: the file.
        date: when they were measured.
        machine: on what.
        benchmarks: name -> sizes, reference and ways, as json.
    """

    path: Path
    date: str
    machine: Mapping[str, Any]
    benchmarks: Mapping[str, Mapping[str, Any]]

    @classmethod
    def load(cls, path: Path) -> Kept:
        """Read a file that `bayesvlm bench --out` wrote."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise BayesVLMError(f"{path} cannot be read: {error.strerror or error}; name another file.") from None
        except ValueError as error:  # also what is no text
            raise BayesVLMError(f"{path} is not json ({error}); {_RUN_AGAIN}.") from None
        if not isinstance(found, dict) or found.get("schema") != SCHEMA:
            written = found.get("schema") if isinstance(found, dict) else type(found).__name__
            raise BayesVLMError(
                f"{path} holds no results of `bayesvlm bench` (its schema is {written!r}); {_RUN_AGAIN}."
            )
        try:
            for each in found["benchmarks"].values():
                _ = dict(each["sizes"]), str(each["reference"]), [Speed.of(way) for way in each["ways"].values()]
            return cls(path, str(found["date"]), dict(found["machine"]), found["benchmarks"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BayesVLMError(f"{path} is damaged ({type(error).__name__}: {error}); {_RUN_AGAIN}.") from None


def find_kept(place: Path, say: Callable[[str], object] = lambda text: None) -> list[Kept]:
    """The results of a file, or of all files of a folder, the newest first.

    In a folder other json files are left alone, and damaged ones are named and left out.
    """
    if place.is_file():
        return [Kept.load(place)]
    if not place.is_dir():
        raise BayesVLMError(f"{place} does not exist; name a folder or a file of results that `bayesvlm bench` wrote.")
    found = []
    for path in sorted(place.glob("*.json")):
        try:
            found.append(Kept.load(path))
        except BayesVLMError as error:
            if "holds no results" not in str(error):
                say(f"{error}")
    return sorted(found, key=lambda kept: kept.date, reverse=True)


def kept_in_checkout() -> Path | None:
    """benchmarks/results of the repository this library is imported from, if it is one."""
    folder = Path(__file__).parents[4] / "benchmarks" / "results"
    return folder if folder.is_dir() else None


@dataclass(frozen=True)
class Line:
    """What became of one way.

    Args:
        beyond: by which share it is slower, or faster, beyond the spread of both runs.
    """

    benchmark: str
    way: str
    verdict: Verdict
    sentence: str
    now: Speed
    kept: Speed | None = None
    beyond: float = 0.0

    def numbers(self) -> dict[str, Any]:
        """As json."""
        kept = None if self.kept is None else vars(self.kept)
        return vars(self) | {"now": vars(self.now), "kept": kept}


def check(result: Mapping[str, Any], kept: Sequence[Kept]) -> list[Line]:
    """Every way of a run against the newest kept one of the same device kind, sizes and reference."""
    lines = []
    for name, each in result["benchmarks"].items():
        for way, numbers in each["ways"].items():
            lines.append(_compared(name, way, Speed.of(numbers), each, result["machine"], kept))
    return lines


def _compared(
    name: str, way: str, now: Speed, each: Mapping[str, Any], machine: Mapping[str, Any], kept: Sequence[Kept]
) -> Line:
    what = name if way == "ours" else f"{name}, {way}"
    for file in kept:
        other = file.benchmarks.get(name)
        if other is None or way not in other["ways"] or not _comparable(machine, file.machine):
            continue
        if dict(other["sizes"]) == dict(each["sizes"]) and other["reference"] == each["reference"]:
            then = Speed.of(other["ways"][way])
            verdict, beyond = _verdict(now, then)
            since = f"{file.date[:10]}{_elsewhere(machine, file.machine)}"
            told = f"{what}: {verdict}, {now} against {then} on {since}"
            if beyond:
                told += f": {_percent(beyond)} beyond the spread of both"
            return Line(name, way, verdict, f"{told}.", now, then, beyond)
    sizes = ", ".join(f"{size} {value}" for size, value in each["sizes"].items())
    device = machine["name"] if machine["device"] != "cpu" else "cpu"
    return Line(name, way, "nothing kept", f"{what}: nothing kept for {device} at these sizes ({sizes}).", now)


def _verdict(now: Speed, then: Speed) -> tuple[Verdict, float]:
    """Slower or faster where the turns of the two runs do not overlap; by how much the nearest two differ."""
    if now.fastest < then.slowest:
        return "slower", then.slowest / now.fastest - 1
    if now.slowest > then.fastest:
        return "faster", now.slowest / then.fastest - 1
    return "as kept", 0.0


def _comparable(machine: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """The same kind of device: processors all are one kind, every GPU is a kind of its own."""
    if machine["device"] != other.get("device"):
        return False
    return bool(machine["device"] == "cpu" or machine["name"] == other.get("name"))


def _elsewhere(machine: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """What a reader must know where the two runs were not on alike machines."""
    differs = [
        f"{other.get(fact)} {unit}".strip()
        for fact, unit in (("name", ""), ("cores", "cores"), ("threads", "threads"), ("torch", "torch"))
        if fact in other and other[fact] != machine.get(fact)
    ]
    return f" (elsewhere: {', '.join(differs)})" if differs else ""


def _percent(share: float) -> str:
    """
    >>> [_percent(share) for share in (0.153, 0.004, 2.0)]
    ['15 %', '0.4 %', '200 %']
    """
    return f"{100 * share:.0f} %" if share >= 0.01 else f"{100 * share:.1f} %"
