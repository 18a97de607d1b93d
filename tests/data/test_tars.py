"""Samples of a shard, against webdataset's own grouping."""

from __future__ import annotations

import io
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesvlm import BayesVLMError
from bayesvlm.data.tars import BrokenShardError, find_samples, read_samples


def write(path: Path, names: list[str]) -> Path:
    """A shard of files with these names, each holding its number."""
    with tarfile.open(path, "w") as archive:
        for number, name in enumerate(names):
            content = str(number).encode()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def by_webdataset(shard: Path) -> list[dict[str, object]]:
    from webdataset.tariterators import group_by_keys

    with tarfile.open(shard) as archive:
        files = [
            {"fname": member.name, "data": archive.extractfile(member).read(), "__url__": "a"}  # type: ignore[union-attr]
            for member in archive
        ]
    return [{name: value for name, value in sample.items() if name != "__url__"} for sample in group_by_keys(files)]


NAMES = [
    ["a.png", "a.txt", "b.png", "b.txt"],
    ["a.PNG", "a.Txt"],
    ["folder/a.png", "folder/a.seg.png", "other/a.png"],
    ["v1.0/a.png", "v1.0/a.txt", "./b.png"],
    ["a.png", "b.png", "a.txt"],
    ["README", "a.png", "folder/LICENSE", "a.txt"],
    [".hidden.png", "a..png", "a."],
    [],
]


@pytest.mark.parametrize("names", NAMES)
def test_samples_are_webdataset_s(tmp_path: Path, names: list[str]) -> None:
    shard = write(tmp_path / "0.tar", names)
    assert list(read_samples(shard)) == by_webdataset(shard)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text("ab./X", min_size=1, max_size=8).filter(lambda name: name.strip("/")), max_size=6))
def test_whatever_the_names(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shard = write(Path(folder) / "0.tar", names)
        try:
            expected = by_webdataset(shard)
        except ValueError:
            with pytest.raises(BayesVLMError, match="is not made of samples: two files of"):
                list(read_samples(shard))
        else:
            assert list(read_samples(shard)) == expected


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_headers_of_every_kind(tmp_path: Path, kind: int) -> None:
    """Against tarfile's own reading: long names, other alphabets, folders, links, sizes, and a shard in pieces."""
    names = ["a.png", "a" * 90 + ".png", "folder/" * 13 + "b.png", "c.png", "d\u00e9j\u00e0 vu.png", "e.png"]
    names += [] if kind == tarfile.USTAR_FORMAT else ["n" * 200 + ".png", "folder/" * 40 + "z.png"]
    path = tmp_path / "0.tar"
    with tarfile.open(path, "w", format=kind) as archive:
        for number, name in enumerate(names):
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uid, member.uname = number * 300, 1700000000, 1000, "somebody"
            archive.addfile(member, io.BytesIO(bytes([number]) * member.size))
        for kind_of, name in (
            (tarfile.DIRTYPE, "folder"),
            (tarfile.SYMTYPE, "link.png"),
            (tarfile.LNKTYPE, "hard.png"),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind_of, "a.png"
            archive.addfile(member)
    with tarfile.open(path) as archive:
        expected = [(m.name, archive.extractfile(m).read()) for m in archive if m.isreg()]  # type: ignore[union-attr]
    found = [(f"{sample['__key__']}.png", sample["png"]) for sample in read_samples(path)]
    assert found == expected
    with path.open("rb") as file:
        places = [(sample["png"].offset, sample["png"].size) for sample in find_samples(path)]
        for (offset, size), (_, content) in zip(places, expected, strict=True):
            file.seek(offset)
            assert file.read(size) == content


@pytest.mark.parametrize("place", [0, 100, 124, 135, 148, 156, 257, 345])
def test_a_damaged_header_is_damaged(tmp_path: Path, place: int) -> None:
    path = write(tmp_path / "0.tar", ["a.png", "b.png", "c.png"])
    content = bytearray(path.read_bytes())
    content[1024 + place] ^= 0x15
    path.write_bytes(content)
    with pytest.raises(BrokenShardError, match=r"0\.tar cannot be read to its end"):
        list(read_samples(path))


def test_two_files_of_one_name(tmp_path: Path) -> None:
    shard = write(tmp_path / "0.tar", ["a.png", "b.png", "b.PNG"])
    samples = read_samples(shard)
    assert next(samples)["__key__"] == "a"
    with pytest.raises(BayesVLMError, match=r"0.tar is not made of samples: two files of b end in .png; make it again"):
        next(samples)
