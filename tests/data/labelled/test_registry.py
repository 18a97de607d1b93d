"""Labelled sets by name: where they are looked for, in which order, and a sentence for everything that is not there."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image

from bayesvlm import BayesVLMError
from bayesvlm.data import resolve
from bayesvlm.data.labelled import hub as hub_sets
from bayesvlm.data.labelled.folders import ImageFolder
from bayesvlm.data.labelled.known import KNOWN
from bayesvlm.data.labelled.samples import LabelledSet
from bayesvlm.data.labelled.shards import LabelledShards


def picture(shade: int = 0) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (shade, 0, 0)).save(buffer, "png")
    return buffer.getvalue()


def write_shards(folder: Path, classes: Sequence[str] = ("cat", "dog"), **splits: Sequence[int]) -> Path:
    """A data set in CLIP-benchmark's layout, its splits given by the labels of their images."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "classnames.txt").write_text("\n".join(classes))
    (folder / "zeroshot_classification_templates.txt").write_text("one of {c}\nanother of {c}\n")
    for split, labels in splits.items():
        (folder / split).mkdir()
        (folder / split / "nshards.txt").write_text("1")
        with tarfile.open(folder / split / "0.tar", "w") as archive:
            for number, label in enumerate(labels):
                for name, content in ((f"s{number}.png", picture(number)), (f"s{number}.cls", str(label).encode())):
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    return folder


def write_folders(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(picture())
    return folder


def write_cache(cache: Path, repo: str, **splits: Sequence[int]) -> Path:
    """A snapshot as huggingface_hub keeps it, without the symbolic links."""
    folder = cache / f"datasets--{repo.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text("0" * 40)
    return write_shards(folder / "snapshots" / ("0" * 40), **splits)


def labels(samples: LabelledSet) -> list[int]:
    return [sample.label for sample in samples]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the data sets; an empty Hub cache beside it."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BAYESVLM_DATA", raising=False)
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def cache(root: Path) -> Path:
    return root.parent / "cache"


def refused(
    sentence: str,
    name: str | Path,
    split: str | None = None,
    root: str | Path | None = None,
    templates: str | None = None,
) -> None:
    with pytest.raises(BayesVLMError, match=sentence) as caught:
        resolve(name, root=root, split=split).open(templates)
    assert "\n" not in str(caught.value)


# The entries ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KNOWN)
def test_an_entry_says_what_a_user_needs(name: str) -> None:
    entry = KNOWN[name]
    assert entry.templates[0] == entry.template
    assert all(template.count("{c}") == 1 for template in entry.templates)
    assert len(entry.templates) == len(entry.published) or not entry.published, "the customary one is among them"
    assert entry.test in entry.splits
    assert entry.hub is None or entry.hub.startswith("clip-benchmark/wds_")
    assert all([entry.title, entry.used, entry.terms, entry.get])
    assert not entry.how_to_get().endswith(".")
    assert "{" not in entry.how_to_get()
    assert (entry.lists is None) == (entry.split_file is None)
    assert entry.hub or entry.archives or entry.subset_of, "it can be had somewhere"


def test_all_sets_of_the_paper_are_known() -> None:
    paper = "flowers102 food101 cifar10 cifar100 imagenet-r ucf101 sun397 imagenet-100 imagenet-a imagenet-sketch"
    assert {*paper.split(), "eurosat", "officehome"} <= {
        name for name, entry in KNOWN.items() if entry.used != "not used"
    }


# Known sets below the root --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["cifar10", "wds_vtab-cifar10"])
def test_shards_in_a_folder_named_as_the_set_or_its_repository(root: Path, folder: str) -> None:
    write_shards(root / folder, test=[1, 0], train=[0, 1, 1])
    test, train = resolve("cifar10", root=root).open(), resolve("cifar10", root=root, split="train").open()
    assert (test.name, labels(test), test.classes) == ("cifar10", [1, 0], ("cat", "dog"))
    assert (train.name, labels(train)) == ("cifar10:train", [0, 1, 1])
    assert labels(resolve("cifar10:train", root=str(root)).open()) == [0, 1, 1]


def test_the_customary_prompt_is_asked_unless_another_is_given(root: Path) -> None:
    write_shards(root / "flowers102", test=[0])
    customary = "a photo of a {c}, a type of flower."
    assert resolve("flowers102", root=root).open().templates == (customary, "one of {c}", "another of {c}")
    assert resolve("flowers102", root=root).open(templates="{c}!").templates == ("{c}!",)
    refused("templates='a flower' has no place for the class name", "flowers102", root=root, templates="a flower")


def test_the_root_is_the_variable_s_or_data_here(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shards(root / "cifar10", test=[1])
    monkeypatch.chdir(root.parent)
    assert labels(resolve("cifar10").open()) == [1]
    write_shards(root.parent / "elsewhere/cifar10", test=[0])
    monkeypatch.setenv("BAYESVLM_DATA", "elsewhere")
    assert labels(resolve("cifar10").open()) == [0]


def test_a_known_name_comes_before_a_folder_here(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shards(root / "cars", test=[1])
    write_shards(root.parent / "cars", test=[0])
    monkeypatch.chdir(root.parent)
    assert labels(resolve("cars").open()) == [1]
    assert labels(resolve("./cars").open()) == [0]


def test_class_folders_of_images(root: Path) -> None:
    write_folders(root / "cifar10", "test/cat/1.png", "test/sports_car/1.png", "train/cat/2.png")
    opened = resolve("cifar10", root=root).open()
    assert isinstance(opened, ImageFolder)
    assert (opened.name, opened.classes, opened.size) == ("cifar10", ("cat", "sports car"), 2)
    write_folders(root / "cars", "big/1.png", "small/1.png")
    assert resolve("cars", root=root).open().classes == ("big", "small"), "without splits it is what one tests on"
    refused(r"cars has no split 'train'; its subfolders are big, small", "cars", "train", root=root)


def test_only_other_splits_are_no_classes(root: Path) -> None:
    write_folders(root / "cifar10", "train/cat/1.png", "val/cat/1.png")
    refused("cifar10 has no split 'test'; its subfolders are train, val: ask for one of them", "cifar10", root=root)


def test_eurosat_s_archive_has_no_splits(root: Path) -> None:
    write_folders(root / "eurosat", "2750/AnnualCrop/AnnualCrop_1.jpg", "2750/SeaLake/SeaLake_1.jpg")
    opened = resolve("eurosat:all", root=root).open()
    assert (opened.name, opened.classes) == ("eurosat:all", ("Annual Crop", "Sea Lake"))
    refused("2750 has no split 'test'", "eurosat", root=root)


@pytest.mark.parametrize("folder", ["", "OfficeHomeDataset_10072016/"])
@pytest.mark.parametrize("real", ["Real World", "RealWorld", "real_world"])
def test_officehome_s_domains_are_its_splits(root: Path, folder: str, real: str) -> None:
    write_folders(root / "officehome", f"{folder}Art/Alarm_Clock/1.jpg", f"{folder}Art/TV/1.jpg")
    write_folders(root / "officehome", f"{folder}{real}/Alarm_Clock/1.jpg", f"{folder}{real}/Mop/1.jpg")
    art, world = resolve("officehome", root=root).open(), resolve("officehome:RealWorld", root=root).open()
    assert (art.name, art.classes) == ("officehome:Art", ("Alarm Clock", "TV")), "a domain is never left unsaid"
    assert (world.name, world.classes) == ("officehome:RealWorld", ("Alarm Clock", "Mop"))
    refused(f"has no split 'Photo'; its subfolders are Art, {real}", "officehome", "Photo", root=root)


def test_a_split_that_is_not_there_lists_those_that_are(root: Path) -> None:
    write_shards(root / "cifar10", test=[0])
    refused("has no split 'train'; it has test", "cifar10", "train", root=root)
    refused("cifar100 has no split 'validation'; it has train, test", "cifar100:validation", root=root)


def test_a_label_outside_the_class_list(root: Path) -> None:
    write_shards(root / "cifar10", test=[0, 2])
    with pytest.raises(BayesVLMError, match=r"the label '2'; expected 0 to 1, a line of classnames\.txt"):
        list(resolve("cifar10", root=root).open())


def test_a_class_without_images(root: Path) -> None:
    write_folders(root / "cars", "big/1.png")
    (root / "cars/small").mkdir()
    refused("the class folder 'small' holds no images; fill it or remove it", "cars", root=root)


def test_strict_reaches_the_set(root: Path) -> None:
    write_shards(root / "cifar10", test=[0])
    assert resolve("cifar10", root=root).open(strict=True).skipped.strict
    assert not resolve("cifar10", root=root).open().skipped.strict


# ImageNet -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def imagenet(root: Path) -> Path:
    return write_folders(
        root / "imagenet",
        *(
            f"val/{wnid}/ILSVRC2012_val_{number:08d}.JPEG"
            for wnid, numbers in (("n01440764", (293, 2138)), ("n01443537", (236,)), ("n02012849", (7,)))
            for number in numbers
        ),
    )


NAMES = "n01440764 tench, Tinca tinca\nn01443537 goldfish, Carassius auratus\nn02012849 crane\n"


@pytest.mark.parametrize(
    "file", ["classnames.txt", "LOC_synset_mapping.txt", "val/classnames.txt", "../LOC_synset_mapping.txt"]
)
def test_wordnet_ids_are_looked_up_in_a_file_of_names(imagenet: Path, file: str) -> None:
    (imagenet / file).write_text(NAMES)
    opened = resolve("imagenet", root=imagenet.parent).open()
    assert (opened.name, opened.classes, labels(opened)) == ("imagenet", ("tench", "goldfish", "crane"), [0, 0, 1, 2])


def test_wordnet_ids_without_names(imagenet: Path) -> None:
    sentence = r"are WordNet ids such as 'n01440764', .*; put a classnames\.txt beside them"
    refused(sentence, "imagenet", root=imagenet.parent)
    refused(sentence, imagenet / "val")
    (imagenet / "classnames.txt").write_text("n01440764 tench\n\nn01443537 goldfish\n")
    refused(r"classnames\.txt has no name for the class folder 'n02012849'", "imagenet", root=imagenet.parent)
    (imagenet / "classnames.txt").write_text("n01440764 tench\ngoldfish\n")
    refused(r"classnames\.txt, line 2 is 'goldfish'; expected an id and a name", "imagenet", root=imagenet.parent)


def test_shards_call_the_validation_images_test(root: Path) -> None:
    write_shards(root / "wds_imagenet1k", test=[1, 0])
    opened = resolve("imagenet", root=root).open()
    assert (opened.name, labels(opened)) == ("imagenet", [1, 0])
    write_shards(root / "imagenet", val=[0])
    assert labels(resolve("imagenet", root=root).open()) == [0]


def test_imagenet_r_has_its_classes_right_in_its_folder(root: Path) -> None:
    write_folders(root / "imagenet-r", "imagenet-r/n01443537/art_0.jpg", "imagenet-r/n01440764/art_0.jpg")
    (root / "imagenet-r/classnames.txt").write_text(NAMES)
    assert resolve("imagenet-r", root=root).open().classes == ("tench", "goldfish")


def test_imagenet_100_is_what_a_file_names(imagenet: Path) -> None:
    root = imagenet.parent
    (imagenet / "classnames.txt").write_text(NAMES)
    refused(
        r"Which images imagenet-100 has is not published, and .*imagenet-100\.txt is missing", "imagenet-100", root=root
    )
    (root / "imagenet-100.txt").write_text("n02012849/ILSVRC2012_val_00000007.JPEG\nILSVRC2012_val_00002138\n")
    part, whole = resolve("imagenet-100", root=root).open(), resolve("imagenet", root=root).open()
    assert (part.name, part.size, part.classes) == ("imagenet-100", 2, ("tench", "crane"))
    assert [(Path(sample.key).stem[-4:], sample.label) for sample in part] == [("2138", 0), ("0007", 1)]
    assert part.fingerprint() != whole.fingerprint()


def test_a_part_of_shards_is_named_by_their_keys(root: Path) -> None:
    write_shards(root / "imagenet", ("cat", "dog", "cow"), test=[0, 1, 2, 1])
    file = root / "imagenet-100.txt"
    file.write_text("s3\ns2\n")
    part = resolve("imagenet-100", root=root).open()
    assert part.classes == ("dog", "cow")
    assert [(sample.key, sample.label, sample.image) for sample in part] == [
        ("s2", 1, picture(2)),
        ("s3", 0, picture(3)),
    ]
    before = part.fingerprint()
    file.write_text("s3\ns9\n")
    refused(r"imagenet-100\.txt names 's9', which imagenet does not have", "imagenet-100", root=root)
    file.write_text("s3\ns1\ns3\n")
    refused(r"imagenet-100\.txt names 's3' twice", "imagenet-100", root=root)
    file.write_text("\n")
    refused(r"imagenet-100\.txt is empty; expected the name of one image per line", "imagenet-100", root=root)
    file.write_text("s1\ns2\n")
    assert resolve("imagenet-100", root=root).open().fingerprint() != before


# The Hub --------------------------------------------------------------------------------------------------------------


def test_a_known_set_in_the_hub_s_cache(root: Path, cache: Path) -> None:
    folder = write_cache(cache, "clip-benchmark/wds_vtab-cifar10", test=[1, 1])
    opened = resolve("cifar10", root=root).open()
    assert isinstance(opened, LabelledShards)
    assert (opened.name, opened.folder, labels(opened)) == ("cifar10", folder / "test", [1, 1])
    write_shards(root / "cifar10", test=[0])
    assert labels(resolve("cifar10", root=root).open()) == [0], "what lies below the root comes first"


def test_a_hub_id(root: Path, cache: Path) -> None:
    write_cache(cache, "someone/wds_things", test=[1], val=[0])
    opened = resolve("someone/wds_things:val").open()
    assert (opened.name, labels(opened)) == ("someone/wds_things:val", [0])
    assert opened.templates == ("one of {c}", "another of {c}")
    assert resolve("someone/wds_things").open(templates="{c}").templates == ("{c}",)
    refused(
        r"'someone/wds_things' has no split 'train' \(it has test, val\); ask for another", "someone/wds_things:train"
    )


def test_only_the_split_is_fetched(root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}
    folder = write_shards(cache / "snapshot", test=[0])

    def snapshot_download(repo: str, **options: object) -> str:
        asked.update(options, repo=repo)
        return str(folder)

    monkeypatch.setattr(hub_sets, "snapshot_download", snapshot_download)
    resolve("imagenet", root=root).open()
    assert asked == {
        "repo": "clip-benchmark/wds_imagenet1k",
        "repo_type": "dataset",
        "allow_patterns": ["classnames.txt", "zeroshot_classification_templates.txt", "test/*"],
    }


def test_a_hub_data_set_in_another_layout(root: Path, cache: Path) -> None:
    folder = write_cache(cache, "someone/parquet", test=[0])
    (folder / "classnames.txt").unlink()
    refused(r"'someone/parquet' has no classnames\.txt, .*put datasets: before the id", "someone/parquet")


@pytest.mark.parametrize("name", [name for name, entry in KNOWN.items() if not entry.subset_of])
def test_a_missing_set_says_where_it_was_looked_for_and_how_to_get_it(root: Path, name: str) -> None:
    refused(f"is not in {root / name}.*; {re.escape(KNOWN[name].how_to_get(root))}", name, root=root)


def test_a_missing_set_in_full(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root.parent)
    with pytest.raises(BayesVLMError) as caught:
        resolve("cifar10").open()
    assert str(caught.value) == (
        "CIFAR-10 is not in data/cifar10 or data/wds_vtab-cifar10, and clip-benchmark/wds_vtab-cifar10 is not in the "
        "local cache, and the Hub could not be reached; make it with world/recipes/cifar10/build.py of the repository, "
        "or let it be fetched from the Hub (connect, and unset HF_HUB_OFFLINE)."
    )


def test_an_empty_folder_is_no_data_set(root: Path) -> None:
    (root / "cifar10").mkdir()
    refused("CIFAR-10 is not in", "cifar10", root=root)


# Folders --------------------------------------------------------------------------------------------------------------


def test_a_folder_of_shards(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "mine", test=[1], train=[0, 0])
    assert labels(resolve(folder).open()) == labels(resolve(str(folder), split="test").open()) == [1]
    opened = resolve(f"{folder}:train").open()
    assert (opened.name, labels(opened)) == (f"{tmp_path.name}/mine:train", [0, 0])
    assert opened.templates == ("one of {c}", "another of {c}")
    refused("has no split 'val'; it has test, train", folder, "val")


def test_shards_without_a_test_split(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "mine", val=[1])
    assert resolve(folder).open().name == f"{tmp_path.name}/mine:val", "the only one there is"
    write_shards(folder, train=[0])
    refused("mine has no split 'test'; ask for one of those it has: train, val", folder)


def test_a_folder_of_class_folders(tmp_path: Path) -> None:
    folder = write_folders(tmp_path / "mine", "red_car/1.png", "bus/1.png", "bus/2.png")
    opened = resolve(folder).open()
    assert (opened.name, opened.classes, labels(opened)) == (
        f"{tmp_path.name}/mine",
        ("bus", "red car"),
        [0, 0, 1],
    )
    assert opened.templates == ("a photo of a {c}.",)
    refused("mine has no split 'test'; its subfolders are bus, red_car", folder, "test")


def test_a_folder_with_splits_of_class_folders(tmp_path: Path) -> None:
    folder = write_folders(tmp_path / "mine", "train/bus/1.png", "val/bus/2.png", "val/car/2.png")
    assert resolve(folder, split="val").open().name == f"{tmp_path.name}/mine:val"
    assert resolve(f"{folder}:train").open().classes == ("bus",)
    refused("mine is split into subfolders, and none was asked for; its subfolders are train, val", folder)
    write_folders(folder, "test/car/3.png")
    assert (resolve(folder).open().name, resolve(folder).open().classes) == (f"{tmp_path.name}/mine", ("car",))


def test_a_folder_with_a_colon_in_its_name(tmp_path: Path) -> None:
    folder = write_folders(tmp_path / "at 12:30", "bus/1.png")
    assert resolve(folder).open().classes == ("bus",)


def test_a_folder_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    refused("There is no folder 'data/mine', and as a Hub data set it is not in the local cache", "data/mine")
    refused(r"There is no folder '\./data/mine'; check the path", "./data/mine")
    (tmp_path / "data/mime").mkdir()
    refused("There is no folder 'data/mine', and as a Hub data set it .*; did you mean 'data/mime/'", "data/mine")


@pytest.mark.parametrize(
    ("name", "near"),
    [("photoz/", "photos/"), ("photoz", "photos/"), ("./photoz", "./photos/"), ("photos/hoilday/", "photos/holiday/")],
)
def test_a_folder_that_is_misspelt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, near: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos/holiday").mkdir(parents=True)
    refused(f"^There is no folder {name!r}; did you mean {near!r}\\?$", name)
    with pytest.raises(BayesVLMError, match=rf"^There is no folder {name!r}; did you mean {near!r}\?$"):
        resolve(name, kind="images").open()
    refused("^There is no folder 'scans/'; check the path", "scans/")
    (tmp_path / "cifar-100").mkdir()
    refused("did you mean cifar10", "CIFAR-10")


# Names ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "near"),
    [("imagenet_r", "imagenet-r"), ("CIFAR-10", "cifar10"), ("food", "food101"), ("office-home", "officehome")],
)
def test_near_names_are_suggested(root: Path, name: str, near: str) -> None:
    refused(f"'{name}' is neither a known data set, nor a folder, nor a Hub id; did you mean .*{near}", name)


def test_a_name_like_no_other_lists_them_all(root: Path) -> None:
    refused(
        r"'xyzzy' is neither a known data set \(flowers102, .*, cub\), nor one of .* \(train, .*\), nor a folder",
        "xyzzy",
    )


def test_two_splits_at_once(root: Path) -> None:
    refused("'cifar10:train' was asked for with the split 'test'; name one split", "cifar10:train", "test")
    refused("'cifar10:' was asked for with the split None; name one split, as in cifar10:test", "cifar10:")


def test_what_is_there(root: Path, cache: Path) -> None:
    write_shards(root / "cifar10", test=[0])
    write_folders(root / "cub", "CUB_200_2011/images/001.A/1.jpg")
    cached = write_cache(cache, "clip-benchmark/wds_imagenet1k", test=[0])
    write_cache(cache, "clip-benchmark/wds_cars", train=[0])
    there = {name: source.folder for name in KNOWN if (source := resolve(name, root=root)).here}
    assert there == {"cifar10": root / "cifar10", "cub": root / "cub/CUB_200_2011", "imagenet": cached / "test"}
    (root / "imagenet-100.txt").write_text("s0")
    assert resolve("imagenet-100", root=root).folder == cached / "test"
