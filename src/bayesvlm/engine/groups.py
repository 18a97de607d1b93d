"""Finished groups of pairs and their sums: on the wire, on disk, and added up in the order of the groups.

sum.safetensors              the sums of all groups before the first that is not finished yet, in order
group-00000012.safetensors   of a group that was finished before one with a lower number

Every file is whole or absent, and names the run it belongs to. Sums are taken in the order of the groups whatever order
they were finished in, so that the factors do not depend on who was faster.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load as from_safetensors
from safetensors.torch import save as to_safetensors

from bayesvlm.artifacts.files import read_safetensors, write_together
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.estimation import TOWERS, Tower
from bayesvlm.core.factors import KroneckerFactors

_SUM = "sum.safetensors"


@dataclass(frozen=True, eq=False)
class GroupSums:
    """What came of a group, or of several.

    Args:
        factors: of both towers; None where no pair of it could be used.
        skipped: by name, what could not be read and why.
        seconds: by stage of the work.
    """

    factors: dict[Tower, KroneckerFactors] | None
    skipped: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def pairs(self) -> int:
        return 0 if self.factors is None else self.factors["image"].n

    def __add__(self, other: GroupSums) -> GroupSums:
        factors = self.factors or other.factors
        if self.factors is not None and other.factors is not None:
            factors = {tower: self.factors[tower].merge(other.factors[tower]) for tower in TOWERS}
        seconds = {
            stage: self.seconds.get(stage, 0.0) + other.seconds.get(stage, 0.0)
            for stage in {**self.seconds, **other.seconds}
        }
        return GroupSums(factors, {**self.skipped, **other.skipped}, seconds)

    def to_bytes(self, **facts: Any) -> bytes:
        """As a file of safetensors, with these facts beside."""
        tensors = {}
        for tower, factors in (self.factors or {}).items():
            tensors[f"{tower}.A"], tensors[f"{tower}.B"] = factors.A_sum.cpu(), factors.B_sum.cpu()
        written = {"pairs": self.pairs, "skipped": self.skipped, "seconds": self.seconds, **facts}
        return to_safetensors(tensors, {name: json.dumps(value, sort_keys=True) for name, value in written.items()})

    @classmethod
    def from_bytes(cls, content: bytes) -> tuple[GroupSums, dict[str, Any]]:
        """What `to_bytes` wrote, and the facts beside."""
        length = int.from_bytes(content[:8], "little")
        head = json.loads(content[8 : 8 + length]).get("__metadata__", {})
        return cls._of(from_safetensors(content), head)

    @classmethod
    def read(cls, path: Path) -> tuple[GroupSums, dict[str, Any]]:
        """What `to_bytes` gave, from a file."""
        tensors = read_safetensors(path)
        with safe_open(str(path), framework="pt") as file:
            return cls._of(tensors, file.metadata() or {})

    @classmethod
    def _of(cls, tensors: Mapping[str, Any], head: Mapping[str, str]) -> tuple[GroupSums, dict[str, Any]]:
        facts = {name: json.loads(value) for name, value in head.items()}
        pairs, skipped, seconds = (facts.pop(name) for name in ("pairs", "skipped", "seconds"))
        factors: dict[Tower, KroneckerFactors] | None = None
        if pairs:
            factors = {
                tower: KroneckerFactors(tensors[f"{tower}.A"], tensors[f"{tower}.B"], pairs) for tower in TOWERS
            }
        return cls(factors, skipped, seconds), facts


class FinishedGroups:
    """The groups that are finished, kept in a folder from the moment they are.

    Args:
        folder: made by the first write.
        run: what identifies the run (weights, data, settings, grouping), as json; files of another run are refused.
    """

    def __init__(self, folder: Path, run: Mapping[str, Any]) -> None:
        self.folder, self.run = folder, json.loads(json.dumps(dict(run)))
        self.before = 0  # all groups below this one are in the sum
        self.sums = GroupSums(None)
        self._later: dict[int, GroupSums] = {}
        self._restore()

    @property
    def done(self) -> set[int]:
        """The groups that are finished."""
        return {*range(self.before), *self._later}

    @property
    def pairs(self) -> int:
        """How many pairs they held."""
        return self.sums.pairs + sum(sums.pairs for sums in self._later.values())

    def add(self, group: int, sums: GroupSums) -> bool:
        """Keep a group that was finished now; False where it is here already, and counts once."""
        if group < self.before or group in self._later:
            return False
        if group > self.before:
            self._write(self._file(group), sums, group=group)
            self._later[group] = sums
            return True
        total, after = self.sums + sums, group + 1
        waited = []
        while after in self._later:
            total = total + self._later[after]
            waited.append(after)
            after += 1
        self._write(_SUM, total, before=after)  # everything counts from here on, or nothing of it
        self.sums, self.before = total, after
        for number in waited:
            del self._later[number]
            (self.folder / self._file(number)).unlink(missing_ok=True)
        return True

    def remove(self) -> None:
        """Delete the files: the sums are kept elsewhere now."""
        for path in [*self.folder.glob("group-*.safetensors"), self.folder / _SUM]:
            path.unlink(missing_ok=True)
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def _restore(self) -> None:
        if (path := self.folder / _SUM).exists():
            self.sums, facts = self._read(path)
            self.before = facts["before"]
        for path in sorted(self.folder.glob("group-*.safetensors")):
            sums, facts = self._read(path)
            if facts["group"] < self.before:  # in the sum: the run ended between writing that and deleting this
                path.unlink()
            else:
                self._later[facts["group"]] = sums

    def _read(self, path: Path) -> tuple[GroupSums, dict[str, Any]]:
        sums, facts = GroupSums.read(path)
        theirs = facts.get("run", {})
        for name in sorted(theirs.keys() | self.run.keys()):
            if theirs.get(name) != self.run.get(name):
                raise BayesVLMError(
                    f"{path} belongs to another run: {name} is {theirs.get(name)!r} there and {self.run.get(name)!r} "
                    f"here; delete {self.folder} to start afresh, or use the settings it was made with."
                )
        return sums, facts

    def _write(self, name: str, sums: GroupSums, **facts: Any) -> None:
        write_together(self.folder, {name: sums.to_bytes(run=self.run, **facts)})

    @staticmethod
    def _file(group: int) -> str:
        return f"group-{group:08}.safetensors"
