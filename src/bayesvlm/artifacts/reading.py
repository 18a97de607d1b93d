"""What posteriors were estimated from, as their provenance records it: whether any pair would count twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.shuffling import kept_order

_SHOWN = 5  # of what overlaps, by name
_ADVICE = "their pairs would count twice: leave one out, or fit disjoint shares (bayesvlm fit --shard i/n)."

Provenance = Mapping[str, Any]


def runs(provenance: Provenance) -> Iterator[Provenance]:
    """Of every fit that went into a posterior, the provenance."""
    if "merged" in provenance:
        for part in provenance["merged"]:
            yield from runs(part)
    else:
        yield provenance


def check_disjoint(provenances: Mapping[str, Provenance]) -> list[str]:
    """Refuse posteriors that read some of the same pairs; returns what could not be checked, or is missing.

    Time and memory grow with what was read, not with the square of the number of posteriors.

    Args:
        provenances: by what to call the posteriors.
    """
    seen = _Reading()
    unknown = []
    for name, provenance in provenances.items():
        reading = _Reading.of(provenance, owner=name)
        if (both := seen.shared(reading)) is not None:
            what, owner = both
            other = owner or next(n for n in provenances if _Reading.of(provenances[n], n).shared(reading) is not None)
            raise BayesVLMError(f"{other} and {name} both read {what}; {_ADVICE}")
        seen.take(reading)
        if reading.unknown:
            unknown.append(name)
    return [*_unchecked(unknown), *seen.grown(), *seen.missing()]


@dataclass
class _Reading:
    """What one posterior read, or several did.

    Args:
        shards: (name, posterior), by a hash of their contents.
        begun: the posterior, by name and a hash of the first file.
        lists: by fingerprint, the title of a list of pairs and whether each row was read.
        fingerprints: (source, posterior) of what was read in one go, or nobody knows how, by its fingerprint.
        recorded: the same of what is recorded in detail.
        plans: by its identity, how much of a plan was read.
        unknown: whether part of it is not recorded.
    """

    shards: dict[str, tuple[str, str]] = field(default_factory=dict)
    begun: dict[tuple[str, str], str] = field(default_factory=dict)
    lists: dict[str, tuple[str, NDArray[np.bool_]]] = field(default_factory=dict)
    fingerprints: dict[str, tuple[str, str]] = field(default_factory=dict)
    recorded: dict[str, tuple[str, str]] = field(default_factory=dict)
    plans: dict[str, _Plan] = field(default_factory=dict)
    unknown: bool = False

    @classmethod
    def of(cls, provenance: Provenance, owner: str) -> _Reading:
        found = cls()
        for run in runs(provenance):
            record, source = run.get("read"), str(run.get("source", "the same pairs"))
            if "fingerprint" in run:
                (found.fingerprints if record is None else found.recorded)[run["fingerprint"]] = (source, owner)
            if record is None:
                found.unknown = True
                continue
            for name, content, first in record.get("shards", ()):
                found.shards[content] = (name, owner)
                found.begun[name, first] = owner
            for fingerprint, title, rows in _rows(record):
                found._read(fingerprint, title, rows)
            found.plans.setdefault(record["plan"], _Plan(record["of"])).add(record)
        return found

    def take(self, other: _Reading) -> None:
        """Both together."""
        self.shards.update(other.shards)
        self.begun.update(other.begun)
        self.fingerprints.update(other.fingerprints)
        self.recorded.update(other.recorded)
        for fingerprint, (title, rows) in other.lists.items():
            self._read(fingerprint, title, rows)
        for identity, plan in other.plans.items():
            whole = self.plans.setdefault(identity, _Plan(plan.total))
            whole.groups |= plan.groups
            whole.shares |= plan.shares

    def _read(self, fingerprint: str, title: str, rows: NDArray[np.bool_]) -> None:
        earlier = self.lists.get(fingerprint)
        self.lists[fingerprint] = (title, rows if earlier is None else rows | earlier[1])

    def shared(self, other: _Reading) -> tuple[str, str | None] | None:
        """What the other read, too, in words, and whose it is where that is known."""
        if copies := [self.shards[content] for content in self.shards.keys() & other.shards.keys()]:
            owner = min(copies)[1]
            return _listed(sorted(name for name, whose in copies if whose == owner)), owner
        if changed := sorted(self.begun.keys() & other.begun.keys()):  # of other contents, or it would be a copy
            owner = self.begun[changed[0]]
            names = [name for name, first in changed if self.begun[name, first] == owner]
            return f"{_listed(names)}, which changed in between", owner
        for fingerprint in self.lists.keys() & other.lists.keys():
            title, rows = self.lists[fingerprint]
            both = np.flatnonzero(rows & other.lists[fingerprint][1])
            if len(both):
                return f"{_spans(both)} of {title}", None
        for mine, theirs in (
            (self.fingerprints, other.fingerprints),
            (self.fingerprints, other.recorded),
            (self.recorded, other.fingerprints),
        ):
            if same := mine.keys() & theirs.keys():
                source, owner = mine[min(same)]
                return f"{source} (it has the same fingerprint)", owner
        return None

    def grown(self) -> Iterator[str]:
        """Lists of one title that are not the same."""
        titles = Counter(title for title, _ in self.lists.values())
        for title in sorted(title for title, count in titles.items() if count > 1):
            yield (
                f"several posteriors read pairs called {title}, which are not the same list; if it grew in between, "
                "pairs count twice"
            )

    def missing(self) -> Iterator[str]:
        """Plans of which something was not read."""
        for plan in self.plans.values():
            if (left := plan.missing()) is not None:
                yield f"{left} are missing: this is not the posterior of all pairs; fit them, and merge again"


@dataclass
class _Plan:
    """How much of a plan was read."""

    total: int
    groups: set[int] = field(default_factory=set)
    shares: set[str] = field(default_factory=set)

    def add(self, record: Mapping[str, Any]) -> None:
        self.groups.update(index for start, stop in record["groups"] for index in range(start, stop))
        if record["shard"] is not None:
            self.shares.add(record["shard"])

    def missing(self) -> str | None:
        """What of it was not read, in words."""
        left = sorted(set(range(self.total)) - self.groups)
        if not left:
            return None
        counts = {int(share.partition("/")[2]) for share in self.shares}
        if len(counts) == 1:
            (n,) = counts
            parts = sorted({index % n for index in left})
            if all(set(range(part, self.total, n)) <= set(left) for part in parts):
                return f"the shards {_listed([f'{part}/{n}' for part in parts])}"
        return f"{len(left)} of its {self.total} groups"


def _rows(record: Mapping[str, Any]) -> Iterator[tuple[str, str, NDArray[np.bool_]]]:
    """(fingerprint, title, which rows were read) of every list of a record."""
    lists = record.get("lists", ())
    total = sum(size for _, _, size in lists)
    places = np.zeros(total, dtype=bool)
    for start, stop in record.get("rows", ()):
        places[start:stop] = True
    if record["shuffled"] is not None:
        read = np.zeros(total, dtype=bool)
        read[kept_order(total, record["shuffled"])[places]] = True
        places = read
    for title, fingerprint, size in lists:
        yield fingerprint, title, places[:size]
        places = places[size:]


def _unchecked(unknown: Sequence[str]) -> Iterator[str]:
    if unknown:
        yield (
            f"whether pairs count twice cannot be checked for {_listed(unknown)}: such a posterior, made from an "
            "iterable or by an earlier version, does not say which pairs it is of"
        )


def _spans(rows: NDArray[np.int64]) -> str:
    """Rows as a person would list them, from 0 on."""
    starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
    ends = np.append(starts[1:], len(rows)) - 1
    spans = [f"{rows[a]} to {rows[b]}" if b > a else str(rows[a]) for a, b in zip(starts, ends, strict=True)]
    return f"{len(rows)} pair(s), rows {_listed(spans)}"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def summary(provenance: Provenance, indent: str = "") -> Iterator[str]:
    """Provenance as lines of a list, the long lists in it counted."""
    for key, value in provenance.items():
        if key == "merged":
            yield f"{indent}- {len(value)} posteriors, merged:"
            for number, part in enumerate(value, start=1):
                yield f"{indent}  - posterior {number}"
                yield from summary(part, indent + "    ")
        elif key == "read":
            yield f"{indent}- read: {_told(value)}"
        elif key == "tuned_images" and isinstance(value, Mapping):
            yield f"{indent}- tuned_images: {value.get('images')}, known by fingerprints"
        elif key == "seconds":
            yield f"{indent}- seconds: " + ", ".join(f"{name} {taken:g}" for name, taken in value.items() if taken)
        else:
            yield f"{indent}- {key}: {value}"


def _told(record: Mapping[str, Any]) -> str:
    read = sum(stop - start for start, stop in record["groups"])
    groups = f"{read} of {record['of']} groups" if read != record["of"] else f"{read} group(s)"
    shard = "" if record["shard"] is None else f"shard {record['shard']}, "
    shuffled = "" if record["shuffled"] is None else f", shuffled with seed {record['shuffled']}"
    if "shards" in record:
        names = [name for name, _, _ in record["shards"]]
        return f"{shard}{groups}, {len(names)} tar shard(s) ({_listed(names)}){shuffled}"
    rows = sum(stop - start for start, stop in record["rows"])
    return f"{shard}{groups}, {rows} rows of {_listed([title for title, _, _ in record['lists']])}{shuffled}"
