"""The world's files, read without the package: tarfile, csv and nothing else."""

from __future__ import annotations

import csv
import gzip
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

DATA = Path(__file__).parents[2] / "world/src/bayesvlm_world/data"


@dataclass(frozen=True)
class Item:
    """One sample of a shard."""

    data_set: str  # emoji or flags
    split: str
    shard: str
    key: str
    image: bytes
    label: int
    caption: str

    @property
    def style(self) -> str:
        return self.key.split("_")[0]

    @property
    def code(self) -> str:
        return self.key.split("_")[1]


@pytest.fixture(scope="session")
def items() -> list[Item]:
    """Every sample of every shard, in the order of the shards' numbers."""
    found = []
    for path in sorted(DATA.glob("*/*/*.tar.gz"), key=lambda path: (path.parent, int(path.name.split(".")[0]))):
        members: dict[str, dict[str, bytes]] = {}
        with tarfile.open(path) as archive:
            for member in archive:
                key, suffix = member.name.split(".")
                file = archive.extractfile(member)
                assert file is not None
                members.setdefault(key, {})[suffix] = file.read()
        for key, parts in members.items():
            assert set(parts) == {"webp", "cls", "txt"}, f"{key} of {path}"
            place = path.parent.parent.name, path.parent.name, path.name
            found.append(Item(*place, key, parts["webp"], int(parts["cls"]), parts["txt"].decode()))
    return found


@pytest.fixture(scope="session")
def emoji(items: list[Item]) -> list[Item]:
    return [item for item in items if item.data_set == "emoji"]


@pytest.fixture(scope="session")
def concepts() -> list[dict[str, str]]:
    return table("concepts.csv")


@pytest.fixture(scope="session")
def rows() -> list[dict[str, str]]:
    """splits.csv.gz."""
    return table("splits.csv.gz")


def table(name: str) -> list[dict[str, str]]:
    opened = gzip.open if name.endswith(".gz") else open
    with opened(DATA / "emoji" / name, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
