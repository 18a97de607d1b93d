"""Shards of pairs that tell who reads them and when, and that stop in the middle of a group until they are let go."""

from __future__ import annotations

import io
import os
import tarfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from PIL import Image

from bayesvlm.data.pairs.batches import Pair
from bayesvlm.data.pairs.plan import Group, PairPlan, ShardPlan
from bayesvlm.data.pairs.shards import PairShards

WORDS = ("a photo of a cat", "two dogs", "a red square", "the sea at dusk", "a bowl of plums", "snow on a roof")


def write_shards(folder: Path, shards: int = 6, pairs: int = 12, size: int = 40) -> Path:
    """So many shards of so many samples; in each, one image is broken, and one sample has no caption."""
    folder.mkdir(parents=True, exist_ok=True)
    draws = np.random.default_rng(7)
    for shard in range(shards):
        with tarfile.open(folder / f"{shard:05}.tar", "w") as archive:
            for number in range(pairs):
                pixels = io.BytesIO()
                Image.fromarray(draws.integers(0, 256, (size, size + number, 3), dtype=np.uint8)).save(pixels, "png")
                image = b"no image at all" if number == shard % pairs else pixels.getvalue()
                members = {"png": image}
                if number != (shard + 3) % pairs:
                    members["txt"] = f"{WORDS[(shard + number) % len(WORDS)]} {number}".encode()
                for suffix, content in members.items():
                    info = tarfile.TarInfo(f"{shard:03}{number:03}.{suffix}")
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
    return folder


@dataclass(frozen=True)
class HeldPlan(ShardPlan):
    """A plan that notes every reading of a group in a folder.

    Args:
        notes: the folder. Once "go" is in it nothing is held any more; "holding" names the process that is.
        held: the group that is read no further than its middle before that.
    """

    notes: Path = Path()
    held: int = -1

    @classmethod
    def around(cls, folder: Path, negatives: int, batch_size: int, notes: Path, held: int = -1) -> HeldPlan:
        """Of the shards in a folder."""
        notes.mkdir(parents=True, exist_ok=True)
        plan = PairPlan.of(PairShards.open(folder, batch_size), negatives)
        given = {field.name: getattr(plan, field.name) for field in fields(ShardPlan)}
        return cls(**given, notes=notes, held=held)

    def stored(self, group: Group, start: int = 0) -> Iterator[Pair]:
        (self.notes / f"read-{group.index}-{uuid.uuid4().hex}").touch()
        for number, pair in enumerate(super().stored(group, start)):
            if group.index == self.held and number == group.size // 2:
                self._hold()
            yield pair

    def _hold(self) -> None:
        if not (self.notes / "go").exists():
            written = self.notes / f"holding-{os.getpid()}"
            written.write_text(str(os.getpid()))
            written.replace(self.notes / "holding")
        while not (self.notes / "go").exists():
            time.sleep(0.02)

    def readings(self) -> Counter[int]:
        """How often each group was begun."""
        return Counter(int(path.name.split("-")[1]) for path in self.notes.glob("read-*"))

    def holder(self, seconds: float = 200) -> int:
        """The process that is held, waiting for one."""
        wait_until((self.notes / "holding").exists, seconds)
        return int((self.notes / "holding").read_text())

    def let_go(self) -> None:
        (self.notes / "go").touch()


def wait_until(true: object, seconds: float = 200) -> None:
    """Until a function says so."""
    assert callable(true)
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"waited {seconds} s"
        time.sleep(0.02)
