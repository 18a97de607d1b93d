"""Labelled shards in CLIP-benchmark's layout: what is read, in which order, and a sentence for every broken one."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bayesvlm import BayesVLMError
from bayesvlm.data import LabelledShards, Sample
from bayesvlm.images.files import read_stored

Members = Iterable[tuple[str, bytes]]


def picture(seed: int, kind: str = "webp") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 20, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def tar(members: Members) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def sample(key: str, label: object, caption: str | None = None, seed: int = 0) -> list[tuple[str, bytes]]:
    members = [(f"{key}.webp", picture(seed)), (f"{key}.cls", str(label).encode())]
    return members if caption is None else [*members, (f"{key}.txt", caption.encode())]


@dataclass
class Folder:
    """A data set that is written as it is described, so that a test says only what is wrong with it."""

    path: Path
    classes: str = "cat\ndog\nhorse\n"
    templates: str = "a photo of a {c}.\n{c}\n"

    def split(self, name: str, *shards: Members, compressed: bool = False) -> Folder:
        (self.path / "classnames.txt").write_text(self.classes, encoding="utf-8")
        (self.path / "zeroshot_classification_templates.txt").write_text(self.templates, encoding="utf-8")
        folder = self.path / name
        folder.mkdir()
        (folder / "nshards.txt").write_text(f"{len(shards)}\n")
        for number, members in enumerate(shards):
            content = tar(members)
            if compressed:
                (folder / f"{number}.tar.gz").write_bytes(gzip.compress(content))
            else:
                (folder / f"{number}.tar").write_bytes(content)
        return self

    def read(self, split: str = "test") -> list[Sample]:
        return list(LabelledShards.open(self.path, split, strict=True))

    def refused(self, sentence: str, split: str = "test") -> None:
        with pytest.raises(BayesVLMError, match=sentence):
            self.read(split)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


# What is read --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [False, True])
def test_samples_come_shard_after_shard_as_they_were_written(folder: Folder, compressed: bool) -> None:
    first = sample("zebra", 2, "one, with ünïcode", seed=1) + sample("ant", 0, seed=2)
    second = sample("middle", 1, "two", seed=3)
    folder.split("test", first, second, compressed=compressed)
    assert folder.read() == [
        Sample("zebra", picture(1), 2, "one, with ünïcode"),
        Sample("ant", picture(2), 0, None),
        Sample("middle", picture(3), 1, "two"),
    ]


def test_what_is_known_before_any_shard_is_read(folder: Folder) -> None:
    folder.split("test", sample("a", 0), sample("b", 0))
    shards = LabelledShards.open(str(folder.path), "test")
    assert shards.classes == ("cat", "dog", "horse")
    assert shards.templates == ("a photo of a {c}.", "{c}")
    assert [path.name for path in shards.shards] == ["0.tar", "1.tar"]
    assert [item.key for item in shards] == [item.key for item in shards] == ["a", "b"], "it can be read again"


def test_eleven_shards_are_in_the_order_of_their_numbers(folder: Folder) -> None:
    folder.split("test", *(sample(f"k{number}", 0) for number in range(11)))
    assert [item.key for item in folder.read()] == [f"k{number}" for number in range(11)], "10 comes after 9, not 1"


def test_the_same_key_in_two_shards_is_two_samples(folder: Folder) -> None:
    folder.split("test", sample("a", 0, seed=1), sample("a", 1, seed=2))
    assert [(item.key, item.label) for item in folder.read()] == [("a", 0), ("a", 1)]


def test_a_blank_line_would_shift_the_labels(folder: Folder) -> None:
    folder.classes = "cat\n\ndog\n"
    folder.split("test", sample("a", 1))
    folder.refused(r"classnames\.txt, line 2 is blank")


def test_lines_end_where_other_tools_end_them(folder: Folder) -> None:
    folder.classes = "\ufeff cat \r\nhot\u2028dog\n\n\n"
    folder.split("test", sample("a", 1))
    assert LabelledShards.open(folder.path, "test").classes == ("cat", "hot\u2028dog")
    folder.path.joinpath("test/0.tar").write_bytes(tar(sample("a", 2)))
    folder.refused(r"^\S+0\.tar: the sample 'a' has the label '2'; expected 0 to 1, a line of classnames\.txt\.$")


def test_suffixes_in_capitals(folder: Folder) -> None:
    folder.split("test", [("A.JPG", picture(1, "jpeg")), ("A.CLS", b"1"), ("A.TXT", b"Loud")])
    assert folder.read() == [Sample("A", picture(1, "jpeg"), 1, "Loud")]


@pytest.mark.parametrize("suffix", ["webp", "jpg", "jpeg", "png"])
def test_any_image_will_do_beside_files_nobody_asked_for(folder: Folder, suffix: str) -> None:
    content = picture(4, "jpeg" if suffix in ("jpg", "jpeg") else suffix)
    members = [("__meta__", b"x"), ("a.json", b"{}"), ("a.cls", b" 2\n"), (f"a.{suffix}", content)]
    folder.split("test", members)
    assert folder.read() == [Sample("a", content, 2, None)]


def test_the_key_ends_at_the_first_dot(folder: Folder) -> None:
    """As webdataset has it: what follows is the suffix, so that a.b.webp is no image of the sample a.b."""
    folder.split("test", [("v1.5.webp", picture(0)), ("v1.5.cls", b"0")])
    folder.refused("the sample 'v1' has no image; a sample is KEY.webp with KEY.cls")


def test_a_dot_in_a_folder_is_part_of_the_key(folder: Folder) -> None:
    folder.split("test", sample("release.1/a", 1))
    assert [(item.key, item.label) for item in folder.read()] == [("release.1/a", 1)]


@pytest.mark.parametrize("compressed", [False, True])
def test_webdataset_itself_reads_the_same(folder: Folder, compressed: bool) -> None:
    import webdataset

    captions = ["a cat", None, "a horse, of course", ""]
    shards = [
        [part for index in range(4) for part in sample(f"{shard}{index}", index % 3, captions[index], 10 * shard)]
        for shard in range(3)
    ]
    folder.split("test", *shards, compressed=compressed)
    opened = LabelledShards.open(folder.path, "test")
    theirs = webdataset.WebDataset([str(path) for path in opened.shards], shardshuffle=False)
    expected = [
        Sample(item["__key__"], item["webp"], int(item["cls"]), item["txt"].decode() if "txt" in item else None)
        for item in theirs
    ]
    assert len(expected) == 12
    assert list(opened) == expected


# What is not ---------------------------------------------------------------------------------------------------------


def test_a_split_that_is_not_there(folder: Folder) -> None:
    folder.split("validation", sample("a", 0)).split("test", sample("a", 0))
    (folder.path / "notes").mkdir()
    folder.refused("has no split 'train'; it has test, validation.", split="train")


def test_a_folder_without_any_split(folder: Folder) -> None:
    folder.split("test", sample("a", 0))
    (folder.path / "test").rename(folder.path.parent / "elsewhere")
    folder.refused("has no split 'test'; it has none.")


@pytest.mark.parametrize("name", ["classnames.txt", "zeroshot_classification_templates.txt", "test/nshards.txt"])
def test_a_text_file_that_cannot_be_used(folder: Folder, name: str) -> None:
    folder.split("test", sample("a", 0))
    file = folder.path / name
    file.write_text(" \n\n")
    folder.refused(f"{file.name} is empty; expected (one|the)")
    file.write_bytes("café\n".encode("latin-1"))
    folder.refused(f"{file.name} cannot be read .*utf-8.*; a data set of shards has it")
    file.unlink()
    folder.refused(f"{file.name} cannot be read .*No such file.*; a data set of shards has it, with (one|the)")


@pytest.mark.parametrize("written", ["0", "-1", "two", "1.5", "1 tar", "²"])
def test_a_number_of_shards_that_is_none(folder: Folder, written: str) -> None:
    folder.split("test", sample("a", 0))
    (folder.path / "test/nshards.txt").write_text(f"{written}\n", encoding="utf-8")
    folder.refused(rf"nshards.txt says '{written}'; expected the number of shards, at least 1")


def test_fewer_shards_than_announced(folder: Folder) -> None:
    folder.split("test", sample("a", 0), sample("b", 0), sample("c", 0))
    (folder.path / "test/1.tar").unlink()
    folder.refused(r"announces 3 shards, but 1\.tar \(or 1\.tar\.gz\) is missing")


def test_more_shards_than_announced_are_left_alone(folder: Folder) -> None:
    folder.split("test", sample("a", 0), sample("b", 0))
    (folder.path / "test/nshards.txt").write_text("1")
    assert [item.key for item in folder.read()] == ["a"]


@pytest.mark.parametrize("written", ["3", "-1", "1.0", "dog", "", "1e0", "99999999999999999999"])
def test_a_label_that_is_no_line_of_the_class_names(folder: Folder, written: str) -> None:
    folder.split("test", sample("fine", 2) + sample("odd", written))
    folder.refused(rf"0\.tar: the sample 'odd' has the label '{written}'; expected 0 to 2, a line of classnames\.txt")


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ([("a.cls", b"0"), ("a.txt", b"words")], "the sample 'a' has no image"),
        ([("a.webp", b"...")], "the sample 'a' has no cls file"),
        ([("a.webp", b"..."), ("b.cls", b"0")], "the sample 'a' has no cls file"),
    ],
)
def test_a_sample_that_lacks_something(folder: Folder, members: Members, sentence: str) -> None:
    folder.split("test", [*members])
    folder.refused(rf"0\.tar: {sentence}; a sample is KEY\.webp with KEY\.cls")


def test_a_shard_that_is_no_archive(folder: Folder) -> None:
    folder.split("test", sample("a", 0))
    for content in (b"", b"nothing like a tar archive" * 100, gzip.compress(b"nor this one" * 100)):
        (folder.path / "test/0.tar").write_bytes(content)
        folder.refused(r"0\.tar cannot be read to its end \(.+\); copy or download it again")


def test_what_lies_before_the_damage_is_still_read(folder: Folder) -> None:
    folder.split("test", sample("a", 0), sample("b", 1))
    (folder.path / "test/1.tar").write_bytes(b"x" * 1000)
    samples = iter(LabelledShards.open(folder.path, "test", strict=True))
    assert next(samples).key == "a"
    with pytest.raises(BayesVLMError, match=r"1\.tar cannot be read"):
        next(samples)


# Where a shard is cut: its members begin and end at multiples of 512 bytes
WHOLE = tar(part for number in range(4) for part in sample(f"k{number}", 1, "words", number))
SAMPLE = len(tar(sample("k0", 1, "words", 0)).rstrip(b"\0")) // 512 * 512 + 512  # of the first: 3 headers, 3 contents


@pytest.mark.parametrize("share", [0.1, 0.35, 0.5, 0.75])
def test_a_compressed_shard_cut_off(folder: Folder, share: float) -> None:
    folder.split("test", [], compressed=True)
    content = gzip.compress(WHOLE)
    (folder.path / "test/0.tar.gz").write_bytes(content[: int(share * len(content))])
    folder.refused(r"0\.tar\.gz cannot be read to its end \(.+\); copy or download it again")


@pytest.mark.parametrize("cut", [100, 512 + 300, SAMPLE + 512 + 300])
def test_a_shard_cut_off_inside_an_image(folder: Folder, cut: int) -> None:
    folder.split("test", [])
    (folder.path / "test/0.tar").write_bytes(WHOLE[:cut])
    folder.refused(r"0\.tar cannot be read to its end \(.+\); copy or download it again")


@pytest.mark.parametrize("compressed", [False, True])
def test_no_cut_goes_unnoticed(folder: Folder, compressed: bool) -> None:
    """Wherever a shard ends too early, in a header or between two samples too, somebody says so."""
    folder.split("test", [], compressed=compressed)
    content = gzip.compress(WHOLE) if compressed else WHOLE.rstrip(b"\0")
    unnoticed = {}
    for cut in range(1, len(content) - 8, 29):  # 8: the checksum and the length at the end of a gzip file
        (folder.path / ("test/0.tar.gz" if compressed else "test/0.tar")).write_bytes(content[:cut])
        try:
            unnoticed[cut] = [item.key for item in folder.read()]
        except BayesVLMError:
            continue
    assert not unnoticed


def test_a_sample_with_two_labels(folder: Folder) -> None:
    folder.split("test", [*sample("a", 0), ("a.cls", b"1")])
    folder.refused(r"0\.tar")


def test_a_caption_in_another_encoding(folder: Folder) -> None:
    folder.split("test", [*sample("a", 0), ("a.txt", "café".encode("latin-1"))])
    folder.refused(r"0\.tar")


# Damage --------------------------------------------------------------------------------------------------------------


def archive(count: int = 12) -> bytes:
    return tar([member for number in range(count) for member in sample(f"{number:04d}", number % 3, seed=number)])


def lenient(path: Path) -> tuple[list[Sample], dict[str, str]]:
    shards = LabelledShards.open(path, "test")
    return list(shards), shards.skipped.reasons


@pytest.mark.parametrize("compressed", [False, True])
def test_a_damaged_header_anywhere_is_noticed_and_costs_only_what_follows(folder: Folder, compressed: bool) -> None:
    folder.split("test", [])
    path = folder.path / "test" / ("0.tar.gz" if compressed else "0.tar")
    (folder.path / "test" / "0.tar").unlink()
    content = archive()
    with tarfile.open(fileobj=io.BytesIO(content)) as opened:
        offsets = [member.offset for member in opened.getmembers()]
    for number, offset in enumerate(offsets):
        damaged = bytearray(content)
        damaged[offset + 150] ^= 0x7F  # its checksum
        path.write_bytes(gzip.compress(bytes(damaged)) if compressed else bytes(damaged))
        samples, reasons = lenient(folder.path)
        assert list(reasons) == [str(path)], f"member {number}"
        assert [found.key for found in samples] == [f"{n:04d}" for n in range(len(samples))]
        assert number // 2 - 1 <= len(samples) <= number // 2, "the sample before the damage may belong to it"


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9])
def test_a_download_that_never_finished(folder: Folder, kept: float) -> None:
    """A file that was made in its full size, and filled only in part."""
    content = archive(200)
    folder.split("test", [])
    path = folder.path / "test/0.tar"
    path.write_bytes(content[: int(kept * len(content))].ljust(len(content), b"\0"))
    samples, reasons = lenient(folder.path)
    assert len(samples) < 200
    assert list(reasons) == [str(path)]


def test_a_compressed_shard_by_a_plain_name(folder: Folder) -> None:
    folder.split("test", [])
    (folder.path / "test/0.tar").write_bytes(gzip.compress(archive()))
    samples, reasons = lenient(folder.path)
    assert (len(samples), reasons) == (12, {})


def test_a_broken_shard_in_the_middle_loses_only_its_own_images(folder: Folder) -> None:
    shards = [[member for n in range(4) for member in sample(f"{s}-{n}", n % 3, seed=n)] for s in range(3)]
    folder.split("test", *shards)
    path = folder.path / "test/1.tar"
    path.write_bytes(path.read_bytes()[:1500])
    samples, reasons = lenient(folder.path)
    assert [found.key for found in samples] == [f"{s}-{n}" for s in (0, 2) for n in range(4)]
    assert list(reasons) == [str(path)]


def test_unreadable_images_of_one_key_are_counted_apart(folder: Folder) -> None:
    broken = [("0000.webp", b"no image"), ("0000.cls", b"1")]
    folder.split("test", broken, broken)
    shards = LabelledShards.open(folder.path, "test")
    assert [image for _, image in shards.skipped.decode(shards, read_stored)] == [None, None]
    assert list(shards.skipped.reasons) == ["0.tar/0000", "1.tar/0000"]
    assert "0x" not in "".join(shards.skipped.reasons.values()), "no address in memory, which differs every time"
