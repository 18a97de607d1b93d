"""Finding image files, naming what is left out, and decoding no more than fits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data import ImageFolder, PairFolder
from bayesvlm.images import files as module
from bayesvlm.images.files import ImageFile, SkippedImages, decoded_batches, find_all_images, find_images, read_stored


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), "teal").save(path, "PNG")
    return folder


def test_all_that_pillow_or_an_extra_reads_is_found(tmp_path: Path) -> None:
    names = ["IMG_1.HEIC", "a.JPG", "b.jfif", "c.avif", "d.Heif", "deep/e.PNG", "f.jpe", "g.jp2"]
    touch(tmp_path, *names)
    for name in ("names.txt", "Thumbs.db", ".DS_Store", "IMG_1.MOV", "._a.JPG"):
        (tmp_path / name).write_bytes(b"no image")
    skipped = SkippedImages()
    assert sorted(path.relative_to(tmp_path).as_posix() for path in find_images(tmp_path, skipped)) == sorted(names)
    assert not skipped.reasons, "what is no image is no loss"


def test_what_is_left_out_is_named(tmp_path: Path) -> None:
    touch(tmp_path, "a.png", "elsewhere/b.png")
    folder = touch(tmp_path / "photos", "c.png")
    for name in ("raw.DNG", "logo.svg", "new.jxl"):
        (folder / name).write_bytes(b"an image of another kind")
    (folder / "dangling.jpg").symlink_to(tmp_path / "gone.jpg")
    (folder / "album").symlink_to(tmp_path / "gone")
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    (folder / "sound.png").symlink_to(tmp_path / "a.png")
    (folder / "notes.txt").symlink_to(tmp_path / "gone.txt")
    skipped = SkippedImages()
    found = find_all_images([folder, tmp_path / "a.png"], skipped)
    assert [path.name for path in found] == ["c.png", "sound.png", "a.png"]
    left_out = {Path(name).name: reason for name, reason in skipped.reasons.items()}
    assert left_out.keys() == {"raw.DNG", "logo.svg", "new.jxl", "dangling.jpg", "album", "linked"}
    assert "photos/raw.DNG is a .dng file, which Pillow does not read" in left_out["raw.DNG"]
    assert left_out["dangling.jpg"].endswith("gone.jpg, which does not exist; mend or remove it.")
    assert "is a link to a folder, which is not followed" in left_out["linked"]
    assert "skipped 6 that cannot be used" in str(skipped)
    with pytest.raises(BayesVLMError, match="album is a link to"):
        find_images(folder, SkippedImages(strict=True))


def test_labelled_folders_name_what_they_leave_out(tmp_path: Path) -> None:
    touch(tmp_path, "cat/1.png", "dog/2.png", "cover.png")
    (tmp_path / "dog" / "3.nef").write_bytes(b"raw")
    (tmp_path / "horse").symlink_to(tmp_path / "gone")
    found = ImageFolder.open(tmp_path)
    assert found.classes == ("cat", "dog")
    assert {Path(name).name for name in found.skipped.reasons} == {"cover.png", "3.nef", "horse"}
    assert "lies in no class folder" in found.skipped.reasons[str(tmp_path / "cover.png")]
    (tmp_path / "horse").unlink()
    (tmp_path / "dog" / "3.nef").unlink()
    assert ImageFolder.open(tmp_path, strict=True).size == 2, "a cover can be read, so it is no error"


def test_folders_with_nothing_to_read_say_what_is_there(tmp_path: Path) -> None:
    touch(tmp_path, "cat/1.png")
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "3.nef").write_bytes(b"raw")
    with pytest.raises(BayesVLMError, match=r"'dog' holds no images; fill it or remove it \(.*3\.nef is a \.nef file"):
        ImageFolder.open(tmp_path)
    with pytest.raises(BayesVLMError, match=r"dog holds no images; .* \(.*3\.nef is a \.nef file"):
        PairFolder.open(tmp_path / "dog")


def test_pairs_name_what_they_leave_out(tmp_path: Path) -> None:
    touch(tmp_path, "a.png")
    (tmp_path / "a.txt").write_text("a teal square")
    (tmp_path / "a.cr2").write_bytes(b"raw")
    pairs = PairFolder.open(tmp_path)
    assert [texts for _, texts in pairs] == [["a teal square"]]
    assert [Path(name).name for name in pairs.skipped.reasons] == ["a.cr2"]


# Decoding -------------------------------------------------------------------------------------------------------------


def test_order_and_names_are_kept(tmp_path: Path) -> None:
    files = [ImageFile(path) for path in find_images(touch(tmp_path, *(f"{n:02d}.png" for n in range(40))))]
    for broken in (3, 17):
        files[broken].image.write_bytes(b"no image")
    skipped = SkippedImages()
    decoded = list(skipped.decode(files, read_stored))
    assert [file for file, _ in decoded] == files
    assert [n for n, (_, image) in enumerate(decoded) if image is None] == [3, 17]
    assert list(skipped.reasons) == [files[3].name, files[17].name]
    with pytest.raises(BayesVLMError, match=r"03\.png"):
        list(SkippedImages(strict=True).decode(files, read_stored))


def test_no_more_is_decoded_than_is_taken(tmp_path: Path) -> None:
    """A set may be longer than memory: reading stays a few images ahead of who takes them."""
    (tmp_path / "a.png").touch()
    asked, most, taken, lock = 0, 0, 0, threading.Lock()

    def read(file: ImageFile) -> int:
        nonlocal asked, most
        with lock:
            asked += 1
            most = max(most, asked - taken)
        return 1

    for _ in SkippedImages().decode((ImageFile(tmp_path / "a.png") for _ in range(200)), read):
        taken += 1
    assert taken == asked == 200
    assert most <= module._AHEAD + 1


def test_large_images_end_a_batch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "_BATCH_BYTES", 4 * 8 * 8 * 3)
    files = [ImageFile(path) for path in find_images(touch(tmp_path, *(f"{n}.png" for n in range(8))))]
    files[1].image.write_bytes(b"no image")
    batches = decoded_batches(files, SkippedImages(), read_stored, batch_size=100)
    assert [([Path(file.name).stem for file in batch.items], batch.read) for batch in batches] == [
        (["0", "2", "3"], 4),
        (["4", "5", "6"], 3),
        (["7"], 1),
    ]


def test_a_batch_is_no_longer_than_was_asked(tmp_path: Path) -> None:
    files = [ImageFile(path) for path in find_images(touch(tmp_path, *(f"{n}.png" for n in range(5))))]
    batches = decoded_batches(files, SkippedImages(), read_stored, batch_size=2)
    assert [len(batch.images) for batch in batches] == [2, 2, 1]


def test_every_set_reads_as_it_is_told(tmp_path: Path) -> None:
    touch(tmp_path, "a.png", "b.png")
    (tmp_path / "captions.csv").write_text("image,caption\na.png,1\nb.png,2\n")
    pairs = PairFolder.open(tmp_path)

    def halved(image: object, label: str) -> Image.Image:
        return Image.open(image).reduce(2)  # type: ignore[arg-type]

    (images, _), *none = pairs.decoded(halved)
    assert not none
    assert [image.size for image in images] == [(4, 4), (4, 4)]
    (images, _), *none = pairs
    assert [image.size for image in images] == [(8, 8), (8, 8)]


def test_reading_stops_where_the_caller_does(tmp_path: Path) -> None:
    touch(tmp_path, "a.png")
    given = 0

    def files() -> Iterator[ImageFile]:
        nonlocal given
        for _ in range(1000):
            given += 1
            yield ImageFile(tmp_path / "a.png")

    batches = decoded_batches(files(), SkippedImages(), partial(read_stored), batch_size=10)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert given < 50
