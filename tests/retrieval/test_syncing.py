"""An index brought up to date with folders, tables and sets: what is encoded, what is kept, what goes."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from bayesvlm import BayesVLM, world
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.images.files import SkippedImages, path_shown, shown_path
from bayesvlm.models.streaming import stream_features
from bayesvlm.retrieval import Index, Synced, sync
from bayesvlm.retrieval.places import Item, Place, find_places, pictures_of_set

pytest.importorskip("lancedb", reason="LanceDB is not installed")
pa = pytest.importorskip("pyarrow")


class Counted:
    """An encoder that remembers what it was given."""

    def __init__(self, vlm: BayesVLM) -> None:
        self.stream, self.given = partial(stream_features, vlm.encoder("images"), workers=0), [""]

    def __call__(self, inputs: Any, *, batch_size: int, total: int | None = None) -> Any:
        self.given = []

        def listed() -> Iterator[Any]:
            for each in inputs:
                self.given.append(each.name)
                yield each

        return self.stream(listed(), batch_size=batch_size, total=total)


@pytest.fixture(scope="module")
def vlm() -> BayesVLM:
    return BayesVLM.from_pretrained("emoji-clip")


@pytest.fixture(scope="module")
def drawings() -> list[bytes]:
    found = []
    for stored in world.load("openmoji-colour").images[:14]:
        buffer = BytesIO()
        Image.open(BytesIO(stored)).convert("RGB").save(buffer, "PNG")
        found.append(buffer.getvalue())
    return found


@pytest.fixture
def photos(tmp_path: Path, drawings: list[bytes]) -> Path:
    """Twelve drawings: ten in two albums, two in none."""
    folder = tmp_path / "photos"
    for number, drawing in enumerate(drawings[:12]):
        album = ("holiday", "work/2020")[number % 2] if number < 10 else ""
        (folder / album).mkdir(parents=True, exist_ok=True)
        (folder / album / f"{number}.png").write_bytes(drawing)
    return folder


@pytest.fixture
def index(tmp_path: Path, vlm: BayesVLM) -> Index:
    return Index.create(tmp_path / "index", vlm)


@pytest.fixture
def encode(vlm: BayesVLM) -> Counted:
    return Counted(vlm)


def counts(found: Synced) -> tuple[int, int, int, int, int]:
    return found.added, found.changed, found.updated, found.unchanged, found.deleted


def rows(index: Index, *columns: str) -> dict[str, Any]:
    return {Path(row["id"]).name: row for row in index.rows(columns=["id", "path", *columns])}


def update(index: Index, *places: str | Path | Place, encode: Any = None, **options: Any) -> Synced:
    return sync(index, places, encode=encode, progress=False, **options)


# Folders --------------------------------------------------------------------------------------------------------------


def test_rows_are_those_of_the_images(index: Index, photos: Path, vlm: BayesVLM) -> None:
    assert counts(update(index, photos)) == (12, 0, 0, 0, 0)
    files = sorted(photos.rglob("*.png"))
    (hits,) = index.search(["a grinning face"], k=12)
    expected = vlm.similarity(files, ["a grinning face"], progress=False)
    mean = dict(zip(map(str, files), expected.mean[:, 0].tolist(), strict=True))
    std = dict(zip(map(str, files), expected.std[:, 0].tolist(), strict=True))
    assert set(hits.ids) == set(mean)
    for hit in hits:
        assert hit.path == hit.id
        assert (hit.mean, hit.std) == (pytest.approx(mean[hit.id], abs=1e-5), pytest.approx(std[hit.id], abs=1e-5))


def test_only_what_is_new_or_changed_is_encoded(
    index: Index, photos: Path, drawings: list[bytes], encode: Counted
) -> None:
    update(index, photos, encode=encode)
    assert len(encode.given) == 12
    (photos / "new.png").write_bytes(drawings[12])
    (photos / "holiday/0.png").write_bytes(drawings[13])
    os.utime(photos / "holiday/2.png", (1, 1))  # another time, the same contents
    (photos / "work/2020/1.png").unlink()
    assert counts(update(index, photos, encode=encode)) == (1, 1, 1, 9, 1)
    assert {Path(name).name for name in encode.given} == {"new.png", "0.png"}
    assert "1.png" not in rows(index)
    assert rows(index, "modified")["2.png"]["modified"].year == 1970
    assert counts(update(index, photos, encode=encode)) == (0, 0, 0, 12, 0)
    assert encode.given == []


def test_a_changed_image_is_found_as_what_it_is_now(index: Index, photos: Path, drawings: list[bytes]) -> None:
    update(index, photos)
    before = index.search(photos / "holiday/4.png", k=1)
    (photos / "holiday/4.png").write_bytes(drawings[13])
    update(index, photos)
    after = index.search(photos / "holiday/4.png", k=1)
    for hits in (before, after):
        assert (hits[0].id, hits[0].mean) == (str(photos / "holiday/4.png"), pytest.approx(1, abs=1e-5))
    assert len(index) == 12


def test_what_is_unchanged_is_not_read(index: Index, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update(index, photos)

    def read(self: Item) -> str:
        raise AssertionError(f"{self.name} is read")

    monkeypatch.setattr(Item, "content", read)
    assert counts(update(index, photos)) == (0, 0, 0, 12, 0)


def test_subfolders_are_albums(index: Index, photos: Path) -> None:
    update(index, photos)
    assert {name: row["album"] for name, row in rows(index, "album").items()} == {
        f"{number}.png": None if number >= 10 else ("holiday", "work/2020")[number % 2] for number in range(12)
    }
    hits = index.search("a face", k=12, where={"album": "holiday"})
    assert {Path(hit.id).name for hit in hits} == {f"{number}.png" for number in (0, 2, 4, 6, 8)}


def test_a_file_that_moves_has_another_album(index: Index, photos: Path) -> None:
    update(index, photos)
    (photos / "holiday/0.png").rename(photos / "work/2020/0.png")
    assert counts(update(index, photos)) == (0, 0, 1, 11, 0)
    assert rows(index, "album")["0.png"]["album"] == "work/2020"


def test_what_cannot_be_read_is_named_and_keeps_its_row(index: Index, photos: Path, drawings: list[bytes]) -> None:
    (photos / "bad.png").write_bytes(b"no image")
    assert list(update(index, photos).skipped.reasons) == [str(photos / "bad.png")]
    (photos / "holiday/0.png").write_bytes(drawings[0][:100])  # while it is copied there
    found = update(index, photos)
    assert set(found.skipped.reasons) == {str(photos / "bad.png"), str(photos / "holiday/0.png")}
    assert (found.written, len(index)) == (0, 12)
    with pytest.raises(BayesVLMError, match=r"bad\.png"):
        update(index, photos, skipped=SkippedImages(strict=True))
    (photos / "holiday/0.png").write_bytes(drawings[0])
    assert counts(update(index, photos)) == (0, 0, 1, 11, 0), "of another time, and with the same contents"


def test_a_link_that_leads_nowhere_just_now_keeps_its_row(index: Index, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (photos / "10.png").rename(tmp_path / "disk/10.png")
    (photos / "10.png").symlink_to(tmp_path / "disk/10.png")
    assert update(index, photos).added == 12
    (tmp_path / "disk").rename(tmp_path / "unmounted")
    found = update(index, photos)
    assert (list(found.skipped.reasons), found.written) == ([str(photos / "10.png")], 0)
    (photos / "10.png").unlink()
    assert update(index, photos).deleted == 1


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_folder_that_cannot_be_listed_keeps_its_rows(
    number: int, index: Index, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the operating system says so: whoever runs the tests may be root, whom nothing stops."""
    update(index, photos)
    (photos / "holiday/0.png").unlink()
    (photos / "10.png").unlink()
    listed = os.scandir

    def scandir(path: Any = ".") -> Any:
        if str(path) == str(photos / "holiday"):
            raise OSError(number, os.strerror(number), str(path))
        return listed(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scandir)
        found = update(index, photos)
        assert counts(found) == (0, 0, 0, 6, 1)
        assert f"cannot be listed ({os.strerror(number)})" in found.skipped.reasons[str(photos / "holiday")]
        with pytest.raises(BayesVLMError, match="holiday cannot be listed"):
            update(index, photos, skipped=SkippedImages(strict=True))
        with pytest.raises(BayesVLMError, match=r"There are no images in .*holiday cannot be listed"):
            update(index, photos / "holiday")
    assert counts(update(index, photos)) == (0, 0, 0, 10, 1)


def test_a_file_that_does_not_answer_keeps_its_row(index: Index, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update(index, photos)
    asked, stale = {name: getattr(os, name) for name in ("stat", "lstat")}, photos / "10.png"

    def refused(name: str, path: Any, **options: Any) -> Any:
        if str(path) == str(stale):
            raise OSError(errno.ESTALE, "Stale file handle", str(path))
        return asked[name](path, **options)

    for name in asked:
        monkeypatch.setattr(os, name, partial(refused, name))
    found = update(index, photos)
    assert counts(found) == (0, 0, 0, 11, 0)
    assert "cannot be looked at (Stale file handle)" in found.skipped.reasons[str(stale)]
    with pytest.raises(BayesVLMError, match=r"Stale file handle.*check its disk"):
        update(index, stale)


def test_an_album_that_is_removed_takes_its_rows_along(index: Index, photos: Path) -> None:
    update(index, photos)
    shutil.rmtree(photos / "work")
    assert counts(update(index, photos)) == (0, 0, 0, 7, 5)


def test_rows_of_other_ids_stay_those_of_their_files(
    index: Index, photos: Path, drawings: list[bytes], encode: Counted
) -> None:
    files = sorted(photos.rglob("*.png"))[:3]
    index.add(files, ids=["my 0", "my 1", "my 2"], columns={"rating": [5, 3, 1]}, progress=False)
    index.add(files[:1], ids=["once more"], progress=False)
    assert counts(update(index, photos, encode=encode)) == (9, 4, 0, 0, 0)
    assert len(encode.given) == 12, "each file once"
    assert counts(update(index, photos, encode=encode)) == (0, 0, 0, 13, 0)
    files[1].write_bytes(drawings[13])
    assert counts(update(index, photos)) == (0, 1, 0, 12, 0)
    kept = {row["id"]: row for row in index.rows(columns=["id", "path", "rating"])}
    assert [kept[f"my {number}"]["rating"] for number in range(3)] == [5, 3, 1]
    assert kept["my 1"]["path"] == str(files[1])
    assert not set(map(str, files)) & set(kept)
    assert index.search(files[1], k=1)[0].id == "my 1"
    files[1].unlink()
    assert update(index, photos).deleted == 1
    assert "my 1" not in index


def test_what_was_said_of_an_image_stays_when_it_changes(index: Index, photos: Path, drawings: list[bytes]) -> None:
    update(index, photos)
    name = str(photos / "holiday/0.png")
    index.update([name], {"rating": [1], "tags": [["a", "b"]], "seen": [datetime(2020, 1, 1)]})
    (photos / "holiday/0.png").write_bytes(drawings[13])
    (photos / "new.png").write_bytes(drawings[12])
    assert counts(update(index, photos)) == (1, 1, 0, 11, 0)
    (kept,) = index.get([name], ["rating", "tags", "seen", "album"])
    assert kept == {"rating": 1, "tags": ["a", "b"], "seen": datetime(2020, 1, 1), "album": "holiday"}


def test_a_folder_without_images_removes_nothing(index: Index, photos: Path) -> None:
    update(index, photos)
    for path in photos.rglob("*.png"):
        path.unlink()
    with pytest.raises(BayesVLMError, match=r"There are no images in .* so nothing was done"):
        update(index, photos)
    assert len(index) == 12


def test_other_places_stay(index: Index, photos: Path, drawings: list[bytes], tmp_path: Path) -> None:
    (tmp_path / "photos-2").mkdir()  # begins with the same letters
    (tmp_path / "photos-2/other.png").write_bytes(drawings[12])
    index.add([drawings[13]], ids=["by hand"], progress=False)
    update(index, photos, tmp_path / "photos-2")
    (photos / "holiday/0.png").unlink()
    assert counts(update(index, photos)) == (0, 0, 0, 11, 1)
    assert {"other.png", "by hand"} <= set(rows(index))
    (photos / "holiday/2.png").unlink()
    assert update(index, photos / "holiday").deleted == 1
    assert update(index, photos / "holiday", photos, photos / "10.png").unchanged == 3 + 10 + 1


def test_names_of_all_kinds(index: Index, photos: Path, drawings: list[bytes]) -> None:
    names = [
        b"it's.png",
        b'"q".png',
        "Grüße 例.png".encode(),
        b"a%b_c.png",
        b"\xff\xfe.png",
        b"x'; DROP TABLE items.png",
    ]
    for name in names:
        (photos / os.fsdecode(name)).write_bytes(drawings[12])
    assert counts(update(index, photos)) == (12 + len(names), 0, 0, 0, 0)
    assert counts(update(index, photos)) == (0, 0, 0, 12 + len(names), 0)
    for row in list(index.rows()):
        assert path_shown(row["path"]).is_file()
    (hit,) = index.search(drawings[12], k=1, where={"path": str(photos / "it's.png")})
    assert hit.id == str(photos / "it's.png")
    for name in names:
        (photos / os.fsdecode(name)).unlink()
    assert update(index, photos).deleted == len(names)


def test_two_names_that_are_written_alike(photos: Path, drawings: list[bytes]) -> None:
    for name in (b"\xff.png", rb"\xff.png"):
        (photos / os.fsdecode(name)).write_bytes(drawings[12])
    skipped = SkippedImages()
    (place,) = find_places([photos], skipped)
    assert (place.size, list(skipped.reasons)) == (13, [shown_path(photos / os.fsdecode(b"\xff.png"))])


def test_an_interrupted_call_goes_on(index: Index, photos: Path, vlm: BayesVLM, encode: Counted) -> None:
    def interrupted(inputs: Any, **options: Any) -> Iterator[Any]:
        for place, batch in enumerate(encode(inputs, **options)):
            if place == 2:
                raise KeyboardInterrupt
            yield batch

    with pytest.raises(KeyboardInterrupt):
        update(index, photos, encode=interrupted, batch_size=3)
    assert len(index) == 6, "what was encoded is there"
    assert counts(update(index, photos, encode=encode)) == (6, 0, 0, 6, 0)
    assert len(encode.given) == 6


def test_rows_of_several_commits(index: Index, photos: Path, encode: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayesvlm.retrieval.syncing._ROWS", 4)
    monkeypatch.setattr("bayesvlm.retrieval.syncing._UPDATED", 2)
    assert update(index, photos, encode=encode, batch_size=3).added == 12
    for path in photos.rglob("*.png"):
        os.utime(path, (1, 1))
    assert counts(update(index, photos)) == (0, 0, 12, 0, 0)
    assert {row["modified"].year for row in rows(index, "modified").values()} == {1970}
    assert len(index) == 12


# Tables ---------------------------------------------------------------------------------------------------------------


def test_columns_of_tables_are_kept(index: Index, photos: Path, tmp_path: Path, encode: Counted) -> None:
    table = tmp_path / "list.csv"
    head = "image,label,year,weight,code,by,id\n"
    lines = [
        f"photos/holiday/{number}.png,{label},{2018 + number},{number}.5,00{number},it's,9\n"
        for number, label in ((0, "grin"), (2, ""), (4, "beam"))
    ]
    table.write_text(head + "".join(lines))
    assert update(index, table, encode=encode).added == 3
    assert index.types["year"] == "whole numbers"
    assert index.types["weight"] == "numbers"
    assert index.types["code"] == "text", "leading zeros are no number's"
    kept = rows(index, "label", "year", "weight", "code", "by")["4.png"]
    assert [kept[name] for name in ("label", "year", "weight", "code", "by")] == ["beam", 2022, 4.5, "004", "it's"]
    assert rows(index, "label")["2.png"]["label"] is None
    hits = index.search("a face", where={"year": (">=", 2020), "by": "it's"})
    assert {Path(hit.id).name for hit in hits} == {"2.png", "4.png"}
    table.write_text(head + lines[0].replace("grin", "smile") + lines[1])
    assert counts(update(index, table, encode=encode)) == (0, 0, 1, 1, 1)
    assert encode.given == [], "what a table says of an image is changed without looking at it"
    assert rows(index, "label")["0.png"]["label"] == "smile"


def test_a_table_and_its_folder_agree(index: Index, photos: Path, tmp_path: Path, encode: Counted) -> None:
    (tmp_path / "list.csv").write_text("image,label\nphotos/holiday/0.png,grin\n")
    update(index, tmp_path / "list.csv", photos, encode=encode)
    assert len(index) == 12
    found = rows(index, "label", "album")["0.png"]
    assert (found["label"], found["album"]) == ("grin", "holiday")
    assert update(index, photos, tmp_path / "list.csv", encode=encode).written == 0


def test_a_file_that_another_place_has_stays(index: Index, photos: Path, tmp_path: Path, encode: Counted) -> None:
    table = tmp_path / "list.csv"
    lines = [f"photos/{name},face\n" for name in ("holiday/0.png", "10.png", "11.png")]
    table.write_text("image,label\n" + "".join(lines))
    update(index, table)
    update(index, photos)
    table.write_text("image,label\n" + "".join(lines[:2]))
    for places in ([photos, table], [table, photos], [table], [photos]):
        found = update(index, *places, encode=encode)
        assert (found.deleted, found.added, encode.given, len(index)) == (0, 0, [], 12)
    (photos / "11.png").unlink()
    assert update(index, table).deleted == 0, "it is the folder's by now"
    assert update(index, photos).deleted == 1


def test_a_row_goes_to_the_table_that_still_lists_it(index: Index, photos: Path, tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("image\nphotos/10.png\nphotos/11.png\n")
    update(index, tmp_path / "a.csv", tmp_path / "b.csv")
    (tmp_path / "a.csv").write_text("image\nphotos/10.png\n")
    assert counts(update(index, tmp_path / "a.csv", tmp_path / "b.csv")) == (0, 0, 1, 3, 0)
    assert update(index, tmp_path / "a.csv").deleted == 0
    (tmp_path / "b.csv").write_text("image\nphotos/10.png\n")
    assert update(index, tmp_path / "b.csv").deleted == 1


def test_a_folder_leaves_what_only_tables_see(
    index: Index, photos: Path, tmp_path: Path, drawings: list[bytes]
) -> None:
    (photos / ".cache").mkdir()
    for name in (".cache/0.png", "without suffix"):
        (photos / name).write_bytes(drawings[12])
    table = tmp_path / "list.csv"
    table.write_text("image\nphotos/.cache/0.png\nphotos/without suffix\n")
    assert counts(update(index, table, photos)) == (14, 0, 0, 0, 0)
    for places in ([photos], [photos, table], [table, photos]):
        assert update(index, *places).written == 0
    table.write_text("image\nphotos/without suffix\n")
    assert update(index, table, photos).deleted == 1, "no place lists it any more"
    (photos / "without suffix").unlink()
    assert update(index, photos).deleted == 1


def test_tables_whose_files_are_gone(index: Index, photos: Path, tmp_path: Path) -> None:
    table = tmp_path / "list.csv"
    table.write_text("image\nphotos/10.png\nphotos/holiday/0.png\nphotos/holiday/2.png\n")
    update(index, table)
    (photos / "10.png").unlink()
    (photos / "holiday").rename(tmp_path / "unmounted")
    found = update(index, table)
    assert (found.deleted, len(found.skipped), len(index)) == (1, 3, 2), (
        "who knows what is in a folder that is not there"
    )
    table.write_text("image\nphotos/11.png\n")
    assert counts(update(index, table)) == (1, 0, 0, 0, 2)


def test_a_table_that_says_nothing_of_a_column_leaves_it(index: Index, photos: Path, tmp_path: Path) -> None:
    for name, text in (("a.csv", "image,label\nphotos/10.png,grin\n"), ("b.csv", "image\nphotos/10.png\n")):
        (tmp_path / name).write_text(text)
    update(index, tmp_path / "a.csv")
    assert update(index, tmp_path / "b.csv").written == 0
    assert rows(index, "label")["10.png"]["label"] == "grin"
    (tmp_path / "a.csv").write_text("image,label\nphotos/10.png,\n")
    update(index, tmp_path / "a.csv")
    assert rows(index, "label")["10.png"]["label"] is None


def test_many_files_of_a_table_are_known_again(
    index: Index, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bayesvlm.retrieval.syncing._LISTED", 1)
    index.add([photos / "10.png"], ids=["mine"], progress=False)
    (tmp_path / "list.csv").write_text("image\nphotos/10.png\nphotos/11.png\n")
    assert counts(update(index, tmp_path / "list.csv")) == (1, 1, 0, 0, 0)
    assert {row["id"] for row in index.rows()} == {"mine", str(photos / "11.png")}
    assert counts(update(index, tmp_path / "list.csv")) == (0, 0, 0, 2, 0)


def test_columns_have_the_kind_of_the_whole_table(
    index: Index, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bayesvlm.retrieval.syncing._ROWS", 2)
    lines = ["10.png,,,", "11.png,,,1.5", "holiday/0.png,,,", "holiday/2.png,2020,,"]
    table = tmp_path / "list.csv"
    table.write_text("image,year,empty,weight\n" + "".join(f"photos/{line}\n" for line in lines))
    assert update(index, table, batch_size=1).added == 4
    assert (index.types["year"], index.types["weight"]) == ("whole numbers", "numbers")
    assert "empty" not in index.types, "who knows what it will hold"
    table.write_text(
        "image,year,empty,weight\n" + "".join(f"photos/{line.replace(',,', ',,3', 1)}\n" for line in lines)
    )
    update(index, table)
    assert index.types["empty"] == "whole numbers"


# Sets -----------------------------------------------------------------------------------------------------------------


def part_of_world(images: list[int]) -> Place:
    """A place as the world's sets make one, of some images."""
    (whole,) = find_places(["openmoji-black"], SkippedImages())
    items = [item for number, item in enumerate(whole.items) if number in images]
    made: Callable[..., Any] = type(whole.items)
    return Place(whole.source, made(lambda: iter(items)), len(items), skipped=SkippedImages())


def test_sets_by_name(index: Index, encode: Counted, vlm: BayesVLM) -> None:
    split = world.load("openmoji-black")
    update(index, part_of_world([0, 1, 2]), encode=encode)
    found = rows(index, "label", "source")
    assert {row["label"] for row in found.values()} == {split.classes[split.labels[number]] for number in range(3)}
    assert {(row["path"], row["source"]) for row in found.values()} == {(None, "openmoji-black")}
    assert counts(update(index, part_of_world([1, 2, 3]), encode=encode)) == (1, 0, 0, 2, 1)
    assert len(encode.given) == 1
    (name,) = encode.given
    pictures = pictures_of_set("openmoji-black", [name])
    assert pictures == {name: split.images[3]}
    assert index.search(split.images[3], k=1)[0].id == name


def test_a_folder_after_a_set(index: Index, photos: Path, tmp_path: Path) -> None:
    update(index, part_of_world([0, 1]))
    assert update(index, photos).added == 12
    found = {path.name: path.stat().st_size for path in photos.rglob("*.png")}
    kept = rows(index, "bytes", "modified", "source")
    assert {name: kept[name]["bytes"] for name in found} == found
    assert update(index, photos, part_of_world([0, 1])).written == 0


def test_columns_that_syncing_keeps_have_its_kinds(index: Index, photos: Path, drawings: list[bytes]) -> None:
    given: dict[str, Any] = {"bytes": "many", "modified": 2020, "content": 1.5, "source": 3}
    for name, value in given.items():
        with pytest.raises(BayesVLMError, match=f"The column '{name}' is given .*give the column another name"):
            index.add([drawings[12]], ids=["mine"], columns={name: value}, progress=False)
    index.add([drawings[12]], ids=["mine"], columns={"source": "camera", "bytes": [None]}, progress=False)
    assert update(index, photos).added == 12
    assert rows(index, "source")["mine"]["source"] == "camera"


def test_an_index_where_those_columns_hold_something_else(index: Index, photos: Path, encode: Counted) -> None:
    update(index, part_of_world([0]))
    (name,) = (row["id"] for row in index.rows())
    index._store.update([name], {each: pa.array([None], pa.string()) for each in ("bytes", "modified")})
    assert update(index, photos).added == 12
    assert counts(update(index, photos, encode=encode)) == (0, 0, 0, 12, 0)
    assert encode.given == [], "their contents say that they are the same"


def test_what_is_unread_of_a_set_stays(index: Index) -> None:
    update(index, part_of_world([0, 1, 2]))
    place = part_of_world([0])
    assert place.skipped is not None
    place.skipped.note("shard 7", BayesVLMError("shard 7 is damaged."))
    found = update(index, place)
    assert (found.deleted, len(index), list(found.skipped.reasons)) == (0, 3, ["shard 7"])


# Refused --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nowhere.jpg", r"There is no file 'nowhere\.jpg'"),
        ("openmoji-blak", "did you mean 'openmoji-black'"),
        ("", "has no name"),
        ("s3://bucket/photos", "address"),
    ],
)
def test_places_that_are_none(name: str, sentence: str) -> None:
    with pytest.raises(BayesVLMError, match=sentence):
        find_places([name], SkippedImages())


def test_nothing_to_do(index: Index) -> None:
    with pytest.raises(BayesVLMError, match="the list of places is empty"):
        sync(index, [])


def test_an_index_of_texts(tmp_path: Path, vlm: BayesVLM, photos: Path) -> None:
    texts = Index.create(tmp_path / "texts", vlm, tower="text")
    with pytest.raises(BayesVLMError, match="is an index of texts"):
        sync(texts, photos)


def test_update_changes_columns_and_no_embedding(index: Index, photos: Path) -> None:
    update(index, photos)
    names = sorted(row["id"] for row in index.rows())
    before = index.search("a face", k=12)
    assert index.update([*names[:2], "nobody"], {"stars": [5, 3, 1], "album": ["a", "b", "c"]}) == 2
    kept = {row["id"]: (row["stars"], row["album"]) for row in index.rows(columns=["id", "stars", "album"])}
    assert (kept[names[0]], kept[names[1]]) == ((5, "a"), (3, "b"))
    assert kept[names[2]][0] is None
    after = index.search("a face", k=12)
    assert after.ids == before.ids
    torch.testing.assert_close(after.mean, before.mean)
    with pytest.raises(BayesVLMError, match="stars"):
        index.update(names[:1], {"stars": ["many"]})


def test_a_folder_that_is_renamed_is_not_encoded_again(index: Index, photos: Path, encode: Counted) -> None:
    """Its rows move along, with what was said of them; those that were given ids of their own keep them."""
    index.add([photos / "holiday/0.png"], ids=["my 0"], progress=False)
    update(index, photos, encode=encode)
    inside = sorted(row["id"] for row in index.rows({"album": "holiday"}))
    assert "my 0" in inside
    index.update(inside, {"stars": list(range(len(inside)))})
    (photos / "holiday").rename(photos / "renamed")
    assert counts(update(index, photos, encode=encode)) == (0, 0, len(inside), 12 - len(inside), 0)
    assert encode.given == []
    assert len(index) == 12
    kept = {row["id"]: row for row in index.rows({"album": "renamed"}, ["id", "path", "stars"])}
    for stars, name in enumerate(inside):
        file = photos / "renamed" / (Path(name).name if name != "my 0" else "0.png")
        assert kept["my 0" if name == "my 0" else str(file)]["stars"] == stars
        assert kept["my 0" if name == "my 0" else str(file)]["path"] == str(file)
    assert counts(update(index, photos, encode=encode)) == (0, 0, 0, 12, 0)
    for file in (photos / "renamed").iterdir():
        file.rename(photos / f"again-{file.name}")
    assert counts(update(index, photos, encode=encode)) == (0, 0, len(inside), 12 - len(inside), 0)
    assert {row["id"] for row in index.rows({"stars": ("!=", None), "album": None})} == {
        "my 0",
        *(str(photos / f"again-{Path(name).name}") for name in inside if name != "my 0"),
    }


def test_a_copy_is_another_image(index: Index, photos: Path, encode: Counted) -> None:
    """What holds the same as a file that is still there takes no row away."""
    update(index, photos)
    shutil.copy(photos / "holiday/0.png", photos / "copy.png")
    assert counts(update(index, photos, encode=encode)) == (1, 0, 0, 12, 0)
    (photos / "copy.png").rename(photos / "copy 2.png")
    (photos / "holiday/0.png").rename(photos / "copy 3.png")
    assert counts(update(index, photos, encode=encode)) == (0, 0, 2, 11, 0)
    assert encode.given == []
