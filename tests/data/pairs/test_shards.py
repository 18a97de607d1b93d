"""Pairs in img2dataset's shards: what is read, in which order, and what becomes of the broken ones."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bayesvlm import BayesVLMError
from bayesvlm.data.pairs.shards import PairShards, without_braces

Members = list[tuple[str, bytes]]


def picture(seed: int, kind: str = "jpeg") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (16 + seed, 16, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def sample(number: int, caption: str | None = None) -> Members:
    """One sample with an image of 16 + number rows, in the order of img2dataset's files."""
    text = caption if caption is not None else f"caption {number}"
    meta = {"caption": text, "url": "https://example.org", "status": "success"}
    return [
        (f"{number:09}.jpg", picture(number)),
        (f"{number:09}.json", json.dumps(meta).encode()),
        (f"{number:09}.txt", text.encode()),
    ]


def tar(members: Members) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def write(folder: Path, *shards: Members) -> Path:
    for number, members in enumerate(shards):
        (folder / f"{number:05}.tar").write_bytes(tar(members))
    return folder


def texts(pairs: PairShards) -> list[str]:
    return [text for _, batch in pairs for text in batch]


# What is read --------------------------------------------------------------------------------------------------------


def test_pairs_come_shard_after_shard_in_batches_across_them(tmp_path: Path) -> None:
    write(tmp_path, sample(0) + sample(1) + sample(2), sample(3) + sample(4))
    (tmp_path / "00000.parquet").write_bytes(b"not looked at")
    (tmp_path / "._00000.tar").write_bytes(b"what a Mac leaves behind")
    pairs = PairShards.open(str(tmp_path), batch_size=2)
    batches = list(pairs)
    assert [batch for _, batch in batches] == [["caption 0", "caption 1"], ["caption 2", "caption 3"], ["caption 4"]]
    heights = [image.height for images, _ in batches for image in images]
    assert heights == [16, 17, 18, 19, 20], "every caption is beside its own image"
    assert texts(pairs) == [f"caption {number}" for number in range(5)], "it can be read again"
    assert not pairs.skipped.reasons


def test_shards_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number}.tar").write_bytes(tar(sample(number)))
    assert texts(PairShards.open(tmp_path)) == [f"caption {number}" for number in range(12)]


def test_compressed_shards(tmp_path: Path) -> None:
    (tmp_path / "00000.tar.gz").write_bytes(gzip.compress(tar(sample(0) + sample(1))))
    assert texts(PairShards.open(tmp_path, strict=True)) == ["caption 0", "caption 1"]


@pytest.mark.parametrize("kind", ["png", "webp", "jpeg"])
def test_any_kind_of_image(tmp_path: Path, kind: str) -> None:
    write(tmp_path, [(f"a.{kind}", picture(3, kind)), ("a.txt", "  café \n".encode())])
    assert texts(PairShards.open(tmp_path, strict=True)) == ["café"]


@pytest.mark.parametrize("text", [None, b"", b" \n"])
def test_the_caption_in_the_json_where_the_text_says_nothing(tmp_path: Path, text: bytes | None) -> None:
    members = [("a.jpg", picture(0)), ("a.json", b'{"caption": "from the json"}')]
    write(tmp_path, members if text is None else [*members, ("a.txt", text)])
    assert texts(PairShards.open(tmp_path, strict=True)) == ["from the json"]


def test_webdataset_itself_reads_the_same(tmp_path: Path) -> None:
    import webdataset

    write(tmp_path, sample(0) + sample(1), sample(2))
    theirs = webdataset.WebDataset([str(path) for path in sorted(tmp_path.glob("*.tar"))], shardshuffle=False)
    assert texts(PairShards.open(tmp_path)) == [item["txt"].decode() for item in theirs]


def test_the_size_is_known_where_every_shard_has_statistics(tmp_path: Path) -> None:
    pairs = PairShards.open(write(tmp_path, sample(0) + sample(1), sample(2)))
    assert pairs.size is None
    (tmp_path / "00000_stats.json").write_text('{"count": 3, "successes": 2}')
    assert pairs.size is None
    (tmp_path / "00001_stats.json").write_text('{"count": 1, "successes": 1}')
    assert pairs.size == 3
    for broken in ('{"successes": "one"}', "[1]", "{", "{}"):
        (tmp_path / "00001_stats.json").write_text(broken)
        assert pairs.size is None


def test_the_fingerprint_knows_the_shards_and_not_the_batches(tmp_path: Path) -> None:
    first = PairShards.open(write(tmp_path, sample(0), sample(1))).fingerprint()
    assert PairShards.open(tmp_path, batch_size=3).fingerprint() == first
    write(tmp_path, sample(0), sample(1, "captioN 1"))
    changed = PairShards.open(tmp_path).fingerprint()
    (tmp_path / "00001.tar").unlink()
    assert len({first, changed, PairShards.open(tmp_path).fingerprint()}) == 3


# What is skipped -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([("bad.json", b'{"status": "failed_to_download", "caption": "words"}')], "bad has no image"),
        ([("bad.jpg", picture(1))], "bad has no caption"),
        ([("bad.jpg", picture(1)), ("bad.txt", b" ")], "bad has no caption"),
        ([("bad.jpg", picture(1)), ("bad.json", b'{"caption": null}')], "bad has no caption"),
        ([("bad.jpg", picture(1)), ("bad.json", b'{"caption": 7}')], "bad has no caption"),
        ([("bad.jpg", picture(1)), ("bad.json", b"[7]")], "bad has no caption"),
        ([("bad.jpg", picture(1)), ("bad.json", b"{")], "bad has a caption that cannot be read"),
        ([("bad.jpg", picture(1)), ("bad.txt", "café".encode("latin-1"))], "bad has a caption that cannot be read"),
        ([("bad.jpg", b"no image"), ("bad.txt", b"words")], "bad is not an image that Pillow can read"),
        ([("bad.jpg", picture(1)[:-100]), ("bad.txt", b"words")], "bad is damaged or truncated"),
    ],
)
def test_a_sample_that_is_no_pair_is_skipped_and_named(tmp_path: Path, members: Members, reason: str) -> None:
    pairs = PairShards.open(write(tmp_path, sample(0) + members + sample(2)))
    assert texts(pairs) == ["caption 0", "caption 2"]
    assert list(pairs.skipped.reasons) == [f"{tmp_path / '00000.tar'}: bad"]
    assert f"00000.tar: {reason}" in str(pairs.skipped)
    with pytest.raises(BayesVLMError, match=f"00000.tar: {reason}"):
        list(PairShards.open(tmp_path, strict=True))


WHOLE = tar([member for number in range(4) for member in sample(number)])
STARTS = [offset for offset in range(0, len(WHOLE), 512) if WHOLE[offset : offset + 4] == b"0000"]


@pytest.mark.parametrize("compressed", [False, True])
def test_wherever_a_shard_is_cut_the_samples_before_the_cut_count(tmp_path: Path, compressed: bool) -> None:
    write(tmp_path, [], sample(9))
    shard = tmp_path / "00000.tar"
    if compressed:
        shard.unlink()
        shard = tmp_path / "00000.tar.gz"
    content = gzip.compress(WHOLE) if compressed else WHOLE.rstrip(b"\0")
    told = [f"caption {number}" for number in range(4)]
    most = []
    for cut in range(1, len(content), 97):
        shard.write_bytes(content[:cut])
        pairs = PairShards.open(tmp_path)
        found = texts(pairs)
        assert found[-1] == "caption 9", "the next shard is read"
        assert found[:-1] == told[: len(found) - 1], f"cut at {cut}"
        assert list(pairs.skipped.reasons) == [str(shard)], f"a cut at {cut} of {len(content)} went unnoticed"
        most.append(len(found) - 1)
    assert sorted(most) == most
    assert most[-1] >= (2 if compressed else 3), "all before the cut; of a compressed shard, all before its last 10 KiB"


@pytest.mark.parametrize(("start", "before"), [(STARTS[1], []), (STARTS[4], ["caption 0"]), (STARTS[5], ["caption 0"])])
def test_a_damaged_header_in_the_middle(tmp_path: Path, start: int, before: list[str]) -> None:
    """tarfile takes it for the end of the archive: the sample it belongs to is not taken for a whole one."""
    members = [member for number in range(40) for member in sample(number)]
    content = bytearray(tar(members))
    content[start + 148 : start + 156] = b"checksum"
    write(tmp_path, [], sample(41))
    (tmp_path / "00000.tar").write_bytes(content)
    pairs = PairShards.open(tmp_path)
    assert texts(pairs) == [*before, "caption 41"]
    assert "00000.tar cannot be read to its end (damaged in the middle)" in str(pairs.skipped)


def test_a_broken_shard_is_an_error_when_strict(tmp_path: Path) -> None:
    write(tmp_path, sample(0), sample(1))
    (tmp_path / "00001.tar").write_bytes(b"no archive" * 200)
    with pytest.raises(BayesVLMError, match=r"00001\.tar cannot be read to its end \(.+\); copy or download it again"):
        list(PairShards.open(tmp_path, strict=True))


def test_a_shard_with_two_files_of_one_name(tmp_path: Path) -> None:
    pairs = PairShards.open(write(tmp_path, [*sample(0), ("000000000.txt", b"again")], sample(1)))
    assert texts(pairs) == ["caption 1"]
    assert "00000.tar is not made of samples" in str(pairs.skipped)


# What cannot be fitted on --------------------------------------------------------------------------------------------


def test_folders_without_pairs(tmp_path: Path) -> None:
    with pytest.raises(BayesVLMError, match="is not a folder"):
        PairShards.open(tmp_path / "gone")
    with pytest.raises(BayesVLMError, match="holds no tar shards"):
        PairShards.open(tmp_path)
    for shards in ([], [("readme", b"hello")], [("a.webp", picture(0, "webp")), ("a.cls", b"3")]):
        with pytest.raises(BayesVLMError, match=r"none of its 1 shard\(s\) holds a sample with an image and a caption"):
            list(PairShards.open(write(tmp_path, shards)))


@pytest.mark.parametrize(
    "name", ["a/{00000..00012}.tar", "{0..11}.tar", "{train,val}/{0..2}.tar", "{a,b,}.tar", "plain.tar", "*.tar"]
)
def test_braces_stand_for_what_webdataset_takes_them_for(name: str) -> None:
    shardlists = pytest.importorskip("webdataset.shardlists")
    assert list(without_braces(name)) == shardlists.expand_urls(name)
