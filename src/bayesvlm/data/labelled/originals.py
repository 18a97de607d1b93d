"""The splits of data sets as their authors publish them, where they are lists in text files.

Each function takes the folder of an unpacked archive and returns what is listed there, a split at a time: the images,
and the folder name of each one's class; nothing where the lists are missing. Left out are the lists of Flowers102 and
Stanford Cars, which are MATLAB files, and CIFAR's, which are pickles: their webdataset versions are read instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.labelled.folders import ImageFolder
from bayesvlm.data.labelled.naming import Naming
from bayesvlm.images.files import SkippedImages, find_images

Listed = list[tuple[Path, str]]  # image, class folder
Lists = Callable[[Path], dict[str, Listed]]


def dtd(folder: Path) -> dict[str, Listed]:
    """Describable Textures: the first of its ten partitions, lines such as "banded/banded_0002.jpg"."""
    files = {split: (f"labels/{split}1.txt",) for split in ("train", "val", "test")}
    return _listed(folder, files, lambda line: (folder / "images" / line, line.partition("/")[0]))


def food101(folder: Path) -> dict[str, Listed]:
    """Food-101: lines such as "apple_pie/1011328"."""
    files = {split: (f"meta/{split}.txt",) for split in ("train", "test")}
    return _listed(folder, files, lambda line: (folder / "images" / f"{line}.jpg", line.partition("/")[0]))


def pets(folder: Path) -> dict[str, Listed]:
    """Oxford-IIIT Pets: lines such as "Abyssinian_201 1 1 1"; the breed is the image's name without its number."""

    def of(line: str) -> tuple[Path, str]:
        name = line.split()[0]
        return folder / "images" / f"{name}.jpg", name.rpartition("_")[0]

    return _listed(folder, {"train": ("annotations/trainval.txt",), "test": ("annotations/test.txt",)}, of)


def sun397(folder: Path) -> dict[str, Listed]:
    """SUN397: the first of its ten partitions, lines such as "/a/abbey/sun_aaxufyiupegixznm.jpg"."""
    places = ("", "Partitions/", "../", "../Partitions/")  # the lists come in an archive of their own
    files = {
        split: tuple(f"{place}{file}_01.txt" for place in places)
        for split, file in (("train", "Training"), ("test", "Testing"))
    }
    return _listed(folder, files, lambda line: (folder / line.lstrip("/"), "/".join(line.lstrip("/").split("/")[1:-1])))


def ucf101(folder: Path) -> dict[str, Listed]:
    """UCF101: the first of its three partitions of videos, applied to frames with the videos' names.

    Lines such as "ApplyEyeMakeup/v_ApplyEyeMakeup_g01_c01.avi", in training lists followed by a number.
    """
    places = ("ucfTrainTestlist/", "../ucfTrainTestlist/")
    files = {split: tuple(f"{place}{split}list01.txt" for place in places) for split in ("train", "test")}
    if not any((folder / file).is_file() for candidates in files.values() for file in candidates):
        return {}
    frames = {path.stem: path for path in find_images(folder)}

    def of(line: str) -> tuple[Path, str]:
        video = PurePosixPath(line.split()[0])
        return frames.get(video.stem, folder / video.with_suffix(".jpg")), video.parent.name

    return _listed(folder, files, of)


def cub(folder: Path) -> dict[str, Listed]:
    """CUB-200-2011: images.txt, image_class_labels.txt, classes.txt and train_test_split.txt, where 1 is training."""
    if not (folder / "train_test_split.txt").is_file():
        return {}
    images, labels, classes, sides = (
        _numbered(folder / name)
        for name in ("images.txt", "image_class_labels.txt", "classes.txt", "train_test_split.txt")
    )
    found: dict[str, Listed] = {"train": [], "test": []}
    for number, image in images.items():
        label, side = labels.get(number), sides.get(number)
        if label not in classes:
            raise BayesVLMError(
                f"{folder / 'image_class_labels.txt'} gives the image {number} the label {label}; expected one of the "
                f"{len(classes)} numbers of classes.txt."
            )
        if side not in ("0", "1"):
            raise BayesVLMError(
                f"{folder / 'train_test_split.txt'} gives the image {number} the side {side}; expected 0 or 1."
            )
        found["train" if side == "1" else "test"].append((folder / "images" / image, classes[label]))
    return found


def open_listed(
    folder: Path,
    lists: Mapping[str, Listed],
    split: str,
    *,
    name: str,
    named: Naming,
    templates: tuple[str, ...],
    strict: bool = False,
) -> ImageFolder:
    """One of the listed splits; its classes are those of all the lists, sorted by their folders' names."""
    if split not in lists:
        raise BayesVLMError(f"{folder} has no list of the split {split!r}; it has {', '.join(lists)}.")
    if not lists[split]:
        raise BayesVLMError(f"{folder} lists no images for the split {split!r}; unpack the archive again.")
    classes = sorted({label for listed in lists.values() for _, label in listed})
    empty = sorted(set(classes) - {label for _, label in lists[split]})
    if empty:
        raise BayesVLMError(
            f"{folder} lists no images of the class {empty[0]!r} for the split {split!r}; unpack the archive again."
        )
    missing = next((path for path, _ in lists[split] if not path.is_file()), None)
    if missing is not None:
        raise BayesVLMError(f"The split {split!r} of {folder} lists {missing}, which is not there; unpack it again.")
    places = {label: index for index, label in enumerate(classes)}
    return ImageFolder(
        name,
        tuple(path for path, _ in lists[split]),
        tuple(places[label] for _, label in lists[split]),
        tuple(named(label) for label in classes),
        templates,
        SkippedImages(strict),
        folder,
        tuple(classes),
    )


def _listed(
    folder: Path, files: Mapping[str, tuple[str, ...]], of: Callable[[str], tuple[Path, str]]
) -> dict[str, Listed]:
    """What the files that are there list, each in the first place where it is found."""
    found = {}
    for split, candidates in files.items():
        file = next((folder / name for name in candidates if (folder / name).is_file()), None)
        if file is not None:
            found[split] = [_understood(file, number, line, of) for number, line in _lines(file)]
    return found


def _understood(file: Path, number: int, line: str, of: Callable[[str], tuple[Path, str]]) -> tuple[Path, str]:
    path, label = of(line)
    if not label:
        raise BayesVLMError(f"{file}, line {number} is {line!r}, which names no class and image; fetch the file again.")
    return path, label


def _lines(file: Path) -> list[tuple[int, str]]:
    """The lines that are not blank, with their numbers."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BayesVLMError(f"{file} cannot be read ({error}); fetch it again.") from None
    return [(number, line.strip()) for number, line in enumerate(lines, start=1) if line.strip()]


def _numbered(file: Path) -> dict[str, str]:
    """Number -> the rest of its line."""
    found = {}
    for number, line in _lines(file):
        key, _, rest = line.partition(" ")
        if not key.isdecimal() or not rest:
            raise BayesVLMError(f"{file}, line {number} is {line!r}; expected a number and what belongs to it.")
        found[key] = rest.strip()
    return found
