"""The splits of the originals, on tiny files in the layouts their authors publish, opened by name as a user would."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from bayesvlm import BayesVLMError
from bayesvlm.data import resolve
from bayesvlm.data.labelled.folders import ImageFolder


class Archive:
    """A folder to fill as the archive of a data set does."""

    def __init__(self, root: Path, name: str, inside: str = "") -> None:
        self.root, self.name, self.folder = root, name, root / name / inside

    def images(self, *names: str) -> Archive:
        for name in names:
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (4, 4)).save(path)
        return self

    def text(self, name: str, *lines: str) -> Archive:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
        return self

    def open(self, split: str | None = None) -> ImageFolder:
        opened = resolve(self.name, root=self.root, split=split).open()
        assert isinstance(opened, ImageFolder)
        return opened

    def read(self, split: str | None = None) -> list[tuple[str, str]]:
        """(file name, class) of every image."""
        opened = self.open(split)
        return [(Path(sample.key).name, opened.classes[sample.label]) for sample in opened]

    def refused(self, sentence: str, split: str | None = None) -> None:
        with pytest.raises(BayesVLMError, match=sentence):
            self.open(split)


@pytest.fixture
def dtd(tmp_path: Path) -> Archive:
    archive = Archive(tmp_path, "dtd", "dtd").images(
        *(f"images/{name}/{name}_{number:04d}.jpg" for name in ("banded", "polka-dotted") for number in (2, 4, 5))
    )
    for split, number in (("train", 2), ("val", 4), ("test", 5)):
        archive.text(
            f"labels/{split}1.txt", *(f"{name}/{name}_{number:04d}.jpg" for name in ("polka-dotted", "banded"))
        )
    return archive.text("labels/test2.txt", "banded/banded_0002.jpg")


def test_dtd(dtd: Archive) -> None:
    assert dtd.read() == [("polka-dotted_0005.jpg", "polka-dotted"), ("banded_0005.jpg", "banded")]
    assert dtd.read("val") == [("polka-dotted_0004.jpg", "polka-dotted"), ("banded_0004.jpg", "banded")]
    assert dtd.open().classes == ("banded", "polka-dotted")
    assert dtd.open().templates[0] == "a photo of a {c} texture."
    assert [dtd.open().name, dtd.open("train").name] == ["dtd", "dtd:train"]


def test_food101(tmp_path: Path) -> None:
    archive = Archive(tmp_path, "food101", "food-101")
    archive.images(*(f"images/{name}/{number}.jpg" for name in ("apple_pie", "baby_back_ribs") for number in (11, 12)))
    archive.text("meta/classes.txt", "apple_pie", "baby_back_ribs")
    archive.text("meta/train.txt", "apple_pie/11", "baby_back_ribs/11")
    archive.text("meta/test.txt", "apple_pie/12", "baby_back_ribs/12")
    assert archive.read() == [("12.jpg", "apple pie"), ("12.jpg", "baby back ribs")]
    assert archive.read("train") == [("11.jpg", "apple pie"), ("11.jpg", "baby back ribs")]


def test_pets(tmp_path: Path) -> None:
    archive = Archive(tmp_path, "pets")
    archive.images(
        *(f"images/{name}_{number}.jpg" for name in ("Abyssinian", "american_bulldog") for number in (1, 201))
    )
    archive.text("annotations/trainval.txt", "Abyssinian_1 1 1 1", "american_bulldog_1 2 2 1")
    archive.text("annotations/test.txt", "Abyssinian_201 1 1 1", "american_bulldog_201 2 2 1")
    assert archive.read() == [("Abyssinian_201.jpg", "Abyssinian"), ("american_bulldog_201.jpg", "american bulldog")]
    assert [name for name, _ in archive.read("train")] == ["Abyssinian_1.jpg", "american_bulldog_1.jpg"]


@pytest.mark.parametrize("place", ["SUN397/", "SUN397/Partitions/", "", "Partitions/"])
def test_sun397(tmp_path: Path, place: str) -> None:
    archive = Archive(tmp_path, "sun397")
    archive.images(
        *(
            f"SUN397/a/{name}/sun_{letter}.jpg"
            for name in ("abbey", "apartment_building/outdoor")
            for letter in ("aaa", "bbb")
        )
    )
    archive.text(f"{place}Training_01.txt", "/a/abbey/sun_aaa.jpg", "/a/apartment_building/outdoor/sun_aaa.jpg")
    archive.text(f"{place}Testing_01.txt", "/a/abbey/sun_bbb.jpg", "/a/apartment_building/outdoor/sun_bbb.jpg")
    assert archive.read() == [("sun_bbb.jpg", "abbey"), ("sun_bbb.jpg", "outdoor apartment building")]
    assert [Path(sample.key).name for sample in archive.open("train")] == ["sun_aaa.jpg", "sun_aaa.jpg"]


@pytest.mark.parametrize("frames", ["UCF-101-midframes/Apply_Eye_Makeup", "UCF-101/ApplyEyeMakeup", "ApplyEyeMakeup"])
def test_ucf101(tmp_path: Path, frames: str) -> None:
    """Frames are found by their video's name, whichever way the class folder is written."""
    archive = Archive(tmp_path, "ucf101")
    other = frames.replace("Apply_Eye_Makeup", "Yo_Yo").replace("ApplyEyeMakeup", "YoYo")
    archive.images(*(f"{frames}/v_ApplyEyeMakeup_g0{group}_c01.jpg" for group in (1, 8)))
    archive.images(*(f"{other}/v_YoYo_g0{group}_c01.png" for group in (1, 8)))
    archive.text(
        "ucfTrainTestlist/testlist01.txt", "ApplyEyeMakeup/v_ApplyEyeMakeup_g01_c01.avi", "YoYo/v_YoYo_g01_c01.avi"
    )
    archive.text(
        "ucfTrainTestlist/trainlist01.txt",
        "ApplyEyeMakeup/v_ApplyEyeMakeup_g08_c01.avi 1",
        "YoYo/v_YoYo_g08_c01.avi 101",
    )
    assert archive.read() == [("v_ApplyEyeMakeup_g01_c01.jpg", "Apply Eye Makeup"), ("v_YoYo_g01_c01.png", "Yo Yo")]
    assert [name for name, _ in archive.read("train")] == ["v_ApplyEyeMakeup_g08_c01.jpg", "v_YoYo_g08_c01.png"]


def test_ucf101_with_the_test_frames_only(tmp_path: Path) -> None:
    archive = Archive(tmp_path, "ucf101").images("A_B/v_AB_g01_c01.jpg", "C/v_C_g01_c01.jpg")
    archive.text("ucfTrainTestlist/testlist01.txt", "AB/v_AB_g01_c01.avi", "C/v_C_g01_c01.avi")
    archive.text("ucfTrainTestlist/trainlist01.txt", "AB/v_AB_g08_c01.avi 1", "C/v_C_g08_c01.avi 2")
    assert len(archive.read()) == 2
    archive.refused(r"The split 'train' .* lists .*v_AB_g08_c01\.jpg, which is not there", "train")


@pytest.fixture
def cub(tmp_path: Path) -> Archive:
    birds = ("001.Black_footed_Albatross", "002.Laysan_Albatross")
    files = [f"{bird}/bird_{number}.jpg" for bird in birds for number in (1, 2)]
    archive = Archive(tmp_path, "cub", "CUB_200_2011").images(*(f"images/{file}" for file in files))
    archive.text("images.txt", *(f"{number} {file}" for number, file in enumerate(files, start=1)))
    archive.text("image_class_labels.txt", "1 1", "2 1", "3 2", "4 2")
    archive.text("classes.txt", *(f"{number} {bird}" for number, bird in enumerate(birds, start=1)))
    return archive.text("train_test_split.txt", "1 0", "2 1", "3 1", "4 0")


def test_cub(cub: Archive) -> None:
    assert cub.read() == [("bird_1.jpg", "Black footed Albatross"), ("bird_2.jpg", "Laysan Albatross")]
    assert cub.read("train") == [("bird_2.jpg", "Black footed Albatross"), ("bird_1.jpg", "Laysan Albatross")]


def test_a_label_outside_the_class_list(cub: Archive) -> None:
    cub.text("image_class_labels.txt", "1 1", "2 1", "3 3", "4 2")
    cub.refused(r"image_class_labels.txt gives the image 3 the label 3; expected one of the 2 numbers of classes\.txt")
    cub.text("image_class_labels.txt", "1 1", "2 1", "4 2")
    cub.refused("gives the image 3 the label None")


def test_a_side_that_is_none(cub: Archive) -> None:
    cub.text("train_test_split.txt", "1 0", "2 1", "3 2", "4 0")
    cub.refused("train_test_split.txt gives the image 3 the side 2; expected 0 or 1")
    cub.text("train_test_split.txt", "1 0", "two 1")
    cub.refused("train_test_split.txt, line 2 is 'two 1'; expected a number and what belongs to it")


def test_a_file_of_four_is_missing(cub: Archive) -> None:
    (cub.folder / "classes.txt").unlink()
    cub.refused(r"classes\.txt cannot be read .*No such file.*; fetch it again")


def test_a_class_without_images_in_the_split(dtd: Archive) -> None:
    dtd.text("labels/test1.txt", "banded/banded_0005.jpg")
    dtd.refused("lists no images of the class 'polka-dotted' for the split 'test'")


def test_an_empty_split(dtd: Archive) -> None:
    dtd.text("labels/test1.txt", "")
    dtd.refused("lists no images for the split 'test'; unpack the archive again")


def test_an_unknown_split(dtd: Archive) -> None:
    dtd.refused("has no list of the split 'validation'; it has train, val, test", "validation")


def test_a_listed_image_that_is_not_there(dtd: Archive) -> None:
    (dtd.folder / "images/banded/banded_0005.jpg").unlink()
    dtd.refused(r"The split 'test' of .* lists .*banded_0005\.jpg, which is not there")
    assert len(dtd.read("val")) == 2, "the other splits are whole"


def test_a_line_that_names_no_class(dtd: Archive) -> None:
    dtd.text("labels/test1.txt", "banded/banded_0005.jpg", "", "/nothing.jpg")
    dtd.refused(r"test1\.txt, line 3 is '/nothing\.jpg', which names no class and image")


def test_an_archive_without_its_lists(dtd: Archive) -> None:
    for file in (dtd.folder / "labels").iterdir():
        file.unlink()
    dtd.refused(r"has neither the archive's labels/test1\.txt nor a subfolder 'test' of class folders")


def test_class_folders_in_the_place_of_the_archive(tmp_path: Path) -> None:
    archive = Archive(tmp_path, "dtd").images("test/banded/1.jpg", "test/dotted/1.jpg", "train/banded/2.jpg")
    assert archive.read() == [("1.jpg", "banded"), ("1.jpg", "dotted")]
