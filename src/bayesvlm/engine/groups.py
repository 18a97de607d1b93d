"""Groups that workers finish in any order, added up in the order of the plan, and kept from the moment they are there.

FILE                        the checkpoint of a fit, as one process writes it: sums of the first groups, in order
FILE.group-00000012         of a group that was finished before one that comes earlier, the same for itself alone

Every file is whole or absent, and names the run it belongs to. Because sums are taken in one order, the factors do not
depend on who was faster, to the last bit. Because the first file is a checkpoint like any other, a fit that was begun
on a cluster can be ended by one process, and the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesvlm.artifacts.checkpoint import restore_checkpoint, save_checkpoint
from bayesvlm.core.groups import GroupFactors, GroupSums, Tally


class FinishedGroups:
    """The groups that are finished.

    Args:
        order: the index of every group there is, in the order they are added up in.
        checkpoint: the file; None keeps nothing.
        run: what identifies the run; files of another are refused.
    """

    def __init__(self, order: Sequence[int], checkpoint: Path | None, run: Mapping[str, Any]) -> None:
        self.checkpoint, self.run = checkpoint, run
        self.sums = restore_checkpoint(checkpoint, run)[0] if checkpoint else GroupSums()
        self._order = [index for index in order if index not in self.sums.groups]
        self._later: dict[int, GroupFactors] = {}
        for path in [] if checkpoint is None else waiting_files(checkpoint):
            (index,) = (alone := restore_checkpoint(path, run)[0]).groups
            if index in self.sums.groups:  # the run ended between adding it up and deleting this
                path.unlink()
            else:
                self._later[index] = GroupFactors(index, alone.factors, alone.tally)

    @property
    def left(self) -> list[int]:
        """The groups that are not finished, in order."""
        return [index for index in self._order if index not in self._later]

    @property
    def tally(self) -> Tally:
        """Of all groups that are finished: seconds are those of all actors together."""
        return sum((group.tally for group in self._later.values()), self.sums.tally)

    def add(self, group: GroupFactors) -> bool:
        """Keep a group that was finished now; False where it is here already, and counts once."""
        if group.index not in self._order or group.index in self._later:
            return False
        if group.index != self._order[0]:
            if self.checkpoint is not None:
                save_checkpoint(waiting_file(self.checkpoint, group.index), self.run, GroupSums().add(group))
            self._later[group.index] = group
            return True
        total, count = self.sums.add(group), 1
        while count < len(self._order) and self._order[count] in self._later:
            total = total.add(self._later[self._order[count]])
            count += 1
        if self.checkpoint is not None:
            save_checkpoint(self.checkpoint, self.run, total)  # from here on all of them count, and until here none
        self.sums, added, self._order = total, self._order[:count], self._order[count:]
        for index in added[1:]:
            del self._later[index]
            if self.checkpoint is not None:
                waiting_file(self.checkpoint, index).unlink(missing_ok=True)
        return True


def waiting_file(checkpoint: Path, index: int) -> Path:
    """Where a group is kept that waits for an earlier one."""
    return checkpoint.with_name(f"{checkpoint.name}.group-{index:08}")


def waiting_files(checkpoint: Path) -> list[Path]:
    """Those that are there."""
    return sorted(checkpoint.parent.glob(f"{checkpoint.name}.group-*"))
