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
from bayesvlm.data.tars import read_samples


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


def test_two_files_of_one_name(tmp_path: Path) -> None:
    shard = write(tmp_path / "0.tar", ["a.png", "b.png", "b.PNG"])
    samples = read_samples(shard)
    assert next(samples)["__key__"] == "a"
    with pytest.raises(BayesVLMError, match=r"0.tar is not made of samples: two files of b end in .png; make it again"):
        next(samples)
