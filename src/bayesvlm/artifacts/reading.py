"""What posteriors were estimated from, as their provenance records it: whether any pair would count twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.shuffling import shuffled_order

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

    Args:
        provenances: by what to call the posteriors.
    """
    known = {name: _Reading.of(provenance) for name, provenance in provenances.items()}
    for (one, first), (other, second) in combinations(known.items(), 2):
        both = first.shared(second)
        if both is not None:
            raise BayesVLMError(f"{one} and {other} both read {both}; {_ADVICE}")
    return [*_unchecked(known), *_missing(known)]


@dataclass
class _Reading:
    """What one posterior read.

    Args:
        shards: their names, by a hash of their contents.
        begun: names and contents of shards, by a hash of their first file.
        lists: by fingerprint, the title of a list of pairs, its size and the rows that were read.
        fingerprints: of sources that were read in one go, or nobody knows how; with their names.
        plans: by its identity, how many groups a plan has, those that were read, and the shares they were read in.
        unknown: whether part of it is not recorded.
    """

    shards: dict[str, str] = field(default_factory=dict)
    begun: dict[tuple[str, str], str] = field(default_factory=dict)
    lists: dict[str, tuple[str, NDArray[np.bool_]]] = field(default_factory=dict)
    fingerprints: dict[str, str] = field(default_factory=dict)
    recorded: dict[str, str] = field(default_factory=dict)
    plans: dict[str, _Plan] = field(default_factory=dict)
    unknown: bool = False

    @classmethod
    def of(cls, provenance: Provenance) -> _Reading:
        found = cls()
        for run in runs(provenance):
            record, source = run.get("read"), str(run.get("source", "the same pairs"))
            if "fingerprint" in run:
                (found.fingerprints if record is None else found.recorded)[run["fingerprint"]] = source
            if record is None:
                found.unknown = True
                continue
            for name, content, first in record.get("shards", ()):
                found.shards[content] = name
                found.begun[name, first] = content
            for fingerprint, title, rows in _rows(record):
                earlier = found.lists.get(fingerprint)
                found.lists[fingerprint] = (title, rows if earlier is None else rows | earlier[1])
            found.plans.setdefault(record["plan"], _Plan(record["of"], record["negatives"])).add(record)
        return found

    def shared(self, other: _Reading) -> str | None:
        """What both read, in words."""
        shards = sorted(self.shards[content] for content in self.shards.keys() & other.shards.keys())
        if shards:
            return _listed(shards)
        changed = sorted(
            name for name, first in self.begun.keys() & other.begun.keys()
        )  # other contents, or it would be among the shards
        if changed:
            return f"{_listed(changed)}, which changed in between"
        for fingerprint in self.lists.keys() & other.lists.keys():
            title, rows = self.lists[fingerprint]
            both = np.flatnonzero(rows & other.lists[fingerprint][1])
            if len(both):
                return f"{_spans(both)} of {title}"
        for mine, others in (
            (self.fingerprints, other.fingerprints),
            (self.fingerprints, other.recorded),
            (self.recorded, other.fingerprints),
        ):
            if same := mine.keys() & others.keys():
                return f"{mine[min(same)]} (it has the same fingerprint)"
        return None


@dataclass
class _Plan:
    """How much of a plan was read."""

    total: int
    negatives: int
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
        read[shuffled_order(total, record["shuffled"])[places]] = True
        places = read
    for title, fingerprint, size in lists:
        yield fingerprint, title, places[:size]
        places = places[size:]


def _unchecked(known: Mapping[str, _Reading]) -> Iterator[str]:
    unknown = [name for name, reading in known.items() if reading.unknown]
    if unknown:
        yield (
            f"whether pairs count twice cannot be checked for {_listed(unknown)}: such a posterior, made from an "
            "iterable or by an earlier version, does not say which pairs it is of"
        )
    fingerprints = defaultdict(set)
    for reading in known.values():
        for fingerprint, (title, _) in reading.lists.items():
            fingerprints[title].add(fingerprint)
    for title in sorted(title for title, found in fingerprints.items() if len(found) > 1):
        yield (
            f"several posteriors read pairs called {title}, which are not the same list; if it grew in between, pairs "
            "count twice"
        )


def _missing(known: Mapping[str, _Reading]) -> Iterator[str]:
    plans: dict[str, _Plan] = {}
    for reading in known.values():
        for identity, plan in reading.plans.items():
            whole = plans.setdefault(identity, _Plan(plan.total, plan.negatives))
            whole.groups |= plan.groups
            whole.shares |= plan.shares
    for plan in plans.values():
        if (left := plan.missing()) is not None:
            yield f"{left} are missing: this is not the posterior of all pairs; fit them, and merge again"


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
