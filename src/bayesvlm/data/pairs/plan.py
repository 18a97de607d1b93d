"""What a fit reads, in which order, and in which groups: the same on every machine, however many there are.

A group is pairs that are contrasted only with one another, so it is what workers, shards of a job and retries are made
of: the factors of groups add, and are the same whoever computes them. With fewer than twice `negatives` pairs there is
one group.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, Self

from bayesvlm.core.errors import BayesVLMError, check_count
from bayesvlm.core.shuffling import kept_order, shuffled_order
from bayesvlm.data.pairs.batches import ListedPairs, Pair, PairSet
from bayesvlm.data.pairs.shard_files import PASSED, ShardIdentity, count_samples, read_shard, read_shuffled
from bayesvlm.data.pairs.shards import PairShards
from bayesvlm.progress import progress_bar

Range = tuple[int, int]
"""The first, and the one after the last."""


@dataclass(frozen=True)
class Group:
    """Pairs that are contrasted only with one another.

    Args:
        index: its number, from 0 on, among the groups of the whole plan.
        start, stop: its rows, or its shards, in the order they are read in.
        size: how many pairs it is known to hold; of shards, by their statistics, so that it may hold others.
        most: how many of them are read, where a limit says so.
    """

    index: int
    start: int
    stop: int
    size: int
    most: int | None = None


@dataclass(frozen=True)
class PairPlan(ABC):
    """A set of pairs, or a share of it, in groups. It pickles, to be sent to workers.

    Args:
        source: the pairs.
        negatives: the size of a contrast batch; no group but a lone one is smaller.
        groups: those of this share, in order.
        total_groups: how many the whole plan has.
        limit: how many pairs are read, those among them that are no use included.
        seed: of the order they are shuffled to; None leaves them as they are.
        part: (i, n), where this is the share i of n.
    """

    source: PairSet
    negatives: int
    groups: tuple[Group, ...]
    total_groups: int
    limit: int | None = None
    seed: int | None = None
    part: tuple[int, int] | None = None

    @staticmethod
    def of(
        pairs: PairSet, negatives: int, *, limit: int | None = None, shuffle: bool = False, seed: int | None = None
    ) -> PairPlan:
        """Groups of at least `negatives` pairs: runs of shards, or of listed pairs; the last takes what is left over.

        Args:
            pairs: shards, whose samples are counted here unless img2dataset's statistics lie beside them, or pairs
                that are listed.
            negatives: the size of a contrast batch.
            limit: read so many pairs only; the first ones, after shuffling.
            shuffle: put the pairs into the order that the seed stands for; of shards, the shards, and then the pairs
                of each group.
            seed: the same one means the same order on every machine; None is 0.
        """
        if seed is not None and not shuffle:
            raise BayesVLMError(f"seed={seed} needs shuffling; ask for that, too (shuffle, --shuffle).")
        if not isinstance(negatives, int) or negatives < 2:
            raise BayesVLMError(f"negatives={negatives}; a contrast batch needs at least 2 pairs.")
        if limit is not None:
            check_count("limit", limit, least=2)
        order = check_count("seed", seed or 0, least=0) if shuffle else None
        if isinstance(pairs, PairShards):
            return ShardPlan.made(pairs, negatives, limit, order)
        if isinstance(pairs, ListedPairs):
            return RowPlan.made(pairs, negatives, limit, order)
        raise BayesVLMError(
            f"pairs is a {type(pairs).__name__}, which cannot be split into groups; shards and listed pairs can: what "
            "bayesvlm.data.resolve(name, 'pairs').open() gives."
        )

    @property
    def size(self) -> int:
        """How many pairs there are to be read, as far as that is known beforehand."""
        return sum(group.size for group in self.groups)

    @property
    def batch_size(self) -> int:
        """How many pairs are encoded at a time."""
        return getattr(self.source, "batch_size", 64)

    @property
    def strict(self) -> bool:
        """Whether the first pair that cannot be used is an error."""
        return self.source.skipped.strict

    def share(self, part: int, parts: int) -> Self:
        """One of so many shares, from 0 on: disjoint, together everything, of the same groups whatever their number."""
        check_count("parts", parts)
        if self.part is not None:
            raise BayesVLMError(f"This is the share {self.part[0]}/{self.part[1]} already; share the whole plan.")
        if not 0 <= part < parts:
            raise BayesVLMError(
                f"There is no shard {part}/{parts}; they are numbered from 0/{parts} to {parts - 1}/{parts}."
            )
        groups = self.groups[part::parts]
        if not groups:
            raise BayesVLMError(
                f"The shard {part}/{parts} would read nothing: the pairs make {self.total_groups} group(s) of at least "
                f"{self.negatives} (negatives); ask for at most {self.total_groups} shard(s), or for fewer negatives."
            )
        return replace(self, groups=groups, part=(part, parts))

    @abstractmethod
    def stored(self, group: Group, start: int = 0) -> Iterator[Pair]:
        """The pairs of a group in order, nothing decoded; one that cannot be used has the reason for an image.

        Args:
            start: pairs before this one are passed over, unread where that is possible.
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of the pairs that are read, as `PairSet.fingerprint` makes it."""

    @abstractmethod
    def no_pairs(self) -> BayesVLMError:
        """What to say where none of them can be used."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """A hash of the whole plan that every share of it has; no file is read for it."""

    @abstractmethod
    def _contents(self, groups: Sequence[Group]) -> dict[str, Any]:
        """What these groups read, as json."""

    @property
    def settings(self) -> dict[str, Any]:
        """How the pairs are read, as json."""
        part = None if self.part is None else "{}/{}".format(*self.part)
        return {"negatives": self.negatives, "limit": self.limit, "shuffled": self.seed, "shard": part}

    def record(self, groups: Iterable[Group] | None = None) -> dict[str, Any]:
        """What was read, as json: kept with a posterior, so that nothing counts twice when posteriors are merged.

        Args:
            groups: that were read; None for all of this share.
        """
        read = self.groups if groups is None else sorted(groups, key=lambda group: group.index)
        return {
            **self.settings,
            "plan": self.identity,
            "groups": _ranges([(group.index, group.index + 1) for group in read]),
            "of": self.total_groups,
            **self._contents(read),
        }


@dataclass(frozen=True)
class RowPlan(PairPlan):
    """Listed pairs in groups of consecutive rows, of the list as it is or as it is shuffled."""

    source: ListedPairs

    @classmethod
    def made(cls, pairs: ListedPairs, negatives: int, limit: int | None, seed: int | None) -> RowPlan:
        count = pairs.size if limit is None else min(pairs.size, limit)
        cuts = [*range(0, max(1, count // negatives) * negatives, negatives), count]
        groups = [Group(index, start, stop, stop - start) for index, (start, stop) in enumerate(pairwise(cuts))]
        return cls(pairs, negatives, tuple(groups), len(groups), limit, seed)

    def stored(self, group: Group, start: int = 0) -> Iterator[Pair]:
        places = range(group.start + start, group.stop)
        if self.seed is not None:
            order = kept_order(self.source.size, self.seed)
            return (self.source.pair(int(order[place])) for place in places)
        return map(self.source.pair, places)

    @cached_property
    def _lists(self) -> list[list[Any]]:
        return [list(each) for each in self.source.lists()]

    def fingerprint(self) -> str:
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return self._lists[0][1] if len(self._lists) == 1 else self.source.fingerprint()

    def no_pairs(self) -> BayesVLMError:
        return BayesVLMError(
            "The posterior was given 0 pair(s); contrasting needs at least 2, and a useful estimate thousands."
        )

    @property
    def identity(self) -> str:
        return _identity(self._lists, self.settings)

    def _contents(self, groups: Sequence[Group]) -> dict[str, Any]:
        return {"rows": _ranges([(group.start, group.stop) for group in groups]), "lists": self._lists}


@dataclass(frozen=True)
class ShardPlan(PairPlan):
    """Tar shards in groups of consecutive ones, in the order they were given in or a shuffled one.

    Args:
        shards: in the order they are read in.
        counts: how many samples each is known to hold.
    """

    shards: tuple[Path, ...] = ()
    counts: tuple[int, ...] = ()

    @classmethod
    def made(cls, pairs: PairShards, negatives: int, limit: int | None, seed: int | None) -> ShardPlan:
        twice = {shard for shard in pairs.shards if pairs.shards.count(shard) > 1} if _repeats(pairs.shards) else set()
        if twice:
            raise BayesVLMError(f"The shard {min(twice)} is given twice; its pairs would count twice, so name it once.")
        shards = pairs.shards
        if seed is not None:
            shards = tuple(shards[place] for place in shuffled_order(len(shards), seed))
        counts = _counted(shards)
        if not any(counts):
            raise pairs.no_pairs()
        left, sizes = limit, []
        for count in counts:
            sizes.append(count if left is None else min(count, left))
            left = None if left is None else left - sizes[-1]
        if limit is not None:  # what lies behind it is not read
            sizes = sizes[: 1 + max(place for place, size in enumerate(sizes) if size)]
        groups = []
        for index, (start, stop) in enumerate(_runs(sizes, negatives)):
            size = sum(sizes[start:stop])
            groups.append(Group(index, start, stop, size, None if limit is None else size))
        return cls(pairs, negatives, tuple(groups), len(groups), limit, seed, None, shards, counts)

    def stored(self, group: Group, start: int = 0) -> Iterator[Pair]:
        shards = self.shards[group.start : group.stop]
        if self.seed is not None:
            key = (self.seed, group.index)
            return read_shuffled(shards, lambda count: shuffled_order(count, *key)[start : group.most].tolist())
        return islice(_from(shards, start), None if group.most is None else max(0, group.most - start))

    def fingerprint(self) -> str:
        return self._identified[0]

    def no_pairs(self) -> BayesVLMError:
        assert isinstance(self.source, PairShards)
        return self.source.no_pairs()

    @property
    def identity(self) -> str:
        return _identity([[shard.name for shard in self.shards], self.counts], self.settings)

    def _contents(self, groups: Sequence[Group]) -> dict[str, Any]:
        identities = self._identified[1]
        own = [identities[place] for group in groups for place in range(group.start, group.stop) if self.counts[place]]
        return {"shards": [[each.name, each.content, each.first] for each in own]}

    @cached_property
    def _identified(self) -> tuple[str, dict[int, ShardIdentity]]:
        """The fingerprint of the shards of this share, and what each of them is, by its place."""
        digest = hashlib.sha256()
        found: dict[int, ShardIdentity] = {}
        seen: dict[str, int] = {}
        for place in sorted(chain.from_iterable(range(group.start, group.stop) for group in self.groups)):
            found[place] = ShardIdentity.of(self.shards[place], digest)
            copy = seen.setdefault(found[place].content, place) if self.counts[place] else place
            if copy != place:
                raise BayesVLMError(
                    f"The shards {self.shards[copy]} and {self.shards[place]} are copies of one another; their pairs "
                    "would count twice, so leave one of them out."
                )
        return digest.hexdigest(), found


def _from(shards: Sequence[Path], start: int) -> Iterator[Pair]:
    """The pairs of shards one after the other, from one of them on."""
    place = 0
    for shard in shards:
        for pair in read_shard(shard, max(0, start - place)):
            place += 1
            if pair is not PASSED:
                yield pair


def _counted(shards: Sequence[Path]) -> tuple[int, ...]:
    with progress_bar("counting the pairs", total=len(shards), unit="shards") as advance:
        counts = []
        for shard in shards:
            counts.append(count_samples(shard))
            advance(1)
    return tuple(counts)


def _repeats(shards: Sequence[Path]) -> bool:
    return len(set(shards)) < len(shards)


def _runs(sizes: Sequence[int], least: int) -> list[Range]:
    """Consecutive ones that together make at least so many; what is left over joins the last.

    >>> _runs([3, 3, 3, 3, 3], 5), _runs([3], 5)
    ([(0, 2), (2, 5)], [(0, 1)])
    """
    runs, start, size = [], 0, 0
    for place, count in enumerate(sizes):
        size += count
        if size >= least:
            runs.append((start, place + 1))
            start, size = place + 1, 0
    if start < len(sizes):
        first = runs.pop()[0] if runs else 0
        runs.append((first, len(sizes)))
    return runs


def _ranges(parts: Iterable[Range]) -> list[list[int]]:
    """Neighbours joined.

    >>> _ranges([(0, 2), (2, 3), (5, 6)])
    [[0, 3], [5, 6]]
    """
    joined: list[list[int]] = []
    for start, stop in parts:
        if joined and joined[-1][1] == start:
            joined[-1][1] = stop
        else:
            joined.append([start, stop])
    return joined


def _identity(contents: Any, settings: dict[str, Any]) -> str:
    shared = {name: value for name, value in settings.items() if name != "shard"}
    return hashlib.sha256(json.dumps([contents, shared], sort_keys=True).encode()).hexdigest()[:16]
