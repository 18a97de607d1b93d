"""The data sets known by name: those of the paper and a few customary ones, each with its prompt, splits and source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bayesvlm.data.labelled import originals
from bayesvlm.data.labelled.folders import spaced
from bayesvlm.data.labelled.naming import Naming, numbered, place, words
from bayesvlm.data.labelled.originals import Lists

ZERO_SHOT = "zero-shot classification, the main tables"
ACTIVE = "active learning across domains"
SHIFT = "zero-shot classification under a strong shift, in the appendix"
UNUSED = "not used"


@dataclass(frozen=True)
class Known:
    """A data set known by name.

    Attributes:
        name: what it is asked for by, and the folder it is looked for in.
        title: what its authors call it.
        used: what the paper used it for.
        template: the one customary prompt, with {c} for the class.
        splits: what it can be asked for.
        test: the split to test on.
        terms: its licence or terms, in a word.
        get: how to get it: "do this, or that", with {folder} for its folder.
        hub: its Hub repository in CLIP-benchmark's layout.
        hub_splits: what the shards call a split, where that is another word.
        archives: what the original unpacks to, in the folder `name`.
        lists: reads the split files of the original.
        split_file: one of those files, for messages.
        bare: the split that class folders right in the folder are; None: those in a subfolder named as a split only.
        named: makes a class's name from its folder's; WordNet ids are looked up in a file instead.
        subset_of: the known set it is a part of, by a file of image names.
    """

    name: str
    title: str
    used: str
    template: str
    splits: tuple[str, ...]
    test: str
    terms: str
    get: str
    hub: str | None = None
    hub_splits: Mapping[str, str] = field(default_factory=dict)
    archives: tuple[str, ...] = ()
    lists: Lists | None = None
    split_file: str | None = None
    bare: str | None = None
    named: Naming = spaced
    subset_of: str | None = None

    def how_to_get(self, root: str | Path = "data") -> str:
        """How to get it into the folder of the data sets."""
        return self.get.replace("{folder}", str(Path(root) / self.name))


_PHOTO = "a photo of a {c}."
_RESEARCH = "research, no licence stated"
_NAMES = "with a classnames.txt beside its class folders (lines such as 'n01440764 tench')"
_FETCH = "let it be fetched from the Hub (connect, and unset HF_HUB_OFFLINE)"

_ENTRIES = (
    Known(
        name="flowers102",
        title="Oxford Flowers 102",
        used=ZERO_SHOT,
        template="a photo of a {c}, a type of flower.",
        splits=("train", "test"),
        test="test",
        terms=_RESEARCH,
        hub="clip-benchmark/wds_vtab-flowers",
        bare="test",
        get=_FETCH,
    ),
    Known(
        name="food101",
        title="Food-101",
        used=ZERO_SHOT,
        template="a photo of {c}, a type of food.",
        splits=("train", "test"),
        test="test",
        terms=_RESEARCH,
        hub="clip-benchmark/wds_food101",
        archives=("food-101",),
        lists=originals.food101,
        split_file="meta/test.txt",
        get=f"{_FETCH}, or unpack food-101.tar.gz of its authors in {{folder}}",
    ),
    Known(
        name="cifar10",
        title="CIFAR-10",
        used=ZERO_SHOT,
        template=_PHOTO,
        splits=("train", "test"),
        test="test",
        terms=_RESEARCH,
        hub="clip-benchmark/wds_vtab-cifar10",
        bare="test",
        get=f"make it with world/recipes/cifar10/build.py of the repository, or {_FETCH}",
    ),
    Known(
        name="cifar100",
        title="CIFAR-100",
        used=ZERO_SHOT,
        template=_PHOTO,
        splits=("train", "test"),
        test="test",
        terms=_RESEARCH,
        hub="clip-benchmark/wds_vtab-cifar100",
        bare="test",
        get=_FETCH,
    ),
    Known(
        name="imagenet-r",
        title="ImageNet-R",
        used=f"{ZERO_SHOT}; {ACTIVE}",
        template=_PHOTO,
        splits=("test",),
        test="test",
        terms="MIT, the images their owners'",
        hub="clip-benchmark/wds_imagenet-r",
        archives=("imagenet-r",),
        bare="test",
        get=f"{_FETCH}, or unpack imagenet-r.tar of its authors in {{folder}}, {_NAMES}",
    ),
    Known(
        name="ucf101",
        title="UCF101, the middle frame of each video",
        used=ZERO_SHOT,
        template="a photo of a person doing {c}.",
        splits=("train", "test"),
        test="test",
        terms=_RESEARCH,
        archives=("UCF-101-midframes", "UCF-101"),
        lists=originals.ucf101,
        split_file="ucfTrainTestlist/testlist01.txt",
        named=words,
        get=(
            "save the middle frame of each video as {folder}/CLASS/VIDEO.jpg, and unpack "
            "UCF101TrainTestSplits-RecognitionTask.zip in {folder}"
        ),
    ),
    Known(
        name="sun397",
        title="SUN397",
        used=ZERO_SHOT,
        template=_PHOTO,
        splits=("train", "test"),
        test="test",
        terms=_RESEARCH,
        hub="clip-benchmark/wds_sun397",
        archives=("SUN397",),
        lists=originals.sun397,
        split_file="Testing_01.txt",
        named=place,
        get=f"{_FETCH}, or unpack SUN397.tar.gz and Partitions.zip of its authors in {{folder}}",
    ),
    Known(
        name="imagenet",
        title="ImageNet (ILSVRC 2012), validation images",
        used="a part of it, imagenet-100, to choose tau",
        template=_PHOTO,
        splits=("train", "val"),
        test="val",
        terms="ImageNet's, non-commercial research",
        hub="clip-benchmark/wds_imagenet1k",
        hub_splits={"val": "test"},
        get=f"{_FETCH}, or put the validation images in {{folder}}/val/WORDNET_ID, {_NAMES}",
    ),
    Known(
        name="imagenet-100",
        title="ImageNet, 100 classes",
        used="1,097 test images of 100 random classes, to choose tau; the paper does not say which",
        template=_PHOTO,
        splits=("train", "val"),
        test="val",
        terms="ImageNet's, non-commercial research",
        subset_of="imagenet",
        get="write the names of the images you choose to {folder}.txt, one per line",
    ),
    Known(
        name="imagenet-a",
        title="ImageNet-A",
        used=SHIFT,
        template=_PHOTO,
        splits=("test",),
        test="test",
        terms="MIT, the images their owners'",
        hub="clip-benchmark/wds_imagenet-a",
        archives=("imagenet-a",),
        bare="test",
        get=f"{_FETCH}, or unpack imagenet-a.tar of its authors in {{folder}}, {_NAMES}",
    ),
    Known(
        name="imagenet-sketch",
        title="ImageNet-Sketch",
        used=f"{ACTIVE}; {SHIFT}",
        template=_PHOTO,
        splits=("test",),
        test="test",
        terms="MIT, the images their owners'",
        hub="clip-benchmark/wds_imagenet_sketch",
        archives=("sketch",),
        bare="test",
        get=f"{_FETCH}, or unpack ImageNet-Sketch.zip of its authors in {{folder}}, {_NAMES}",
    ),
    Known(
        name="eurosat",
        title="EuroSAT (RGB)",
        used="active learning, the first figure",
        template="a centered satellite photo of {c}.",
        splits=("train", "test", "all"),
        test="test",
        terms="MIT",
        hub="clip-benchmark/wds_vtab-eurosat",
        archives=("2750", "EuroSAT_RGB"),
        bare="all",
        named=words,
        get=f"{_FETCH}, or unpack EuroSAT.zip of its authors in {{folder}}: without splits, so ask for eurosat:all",
    ),
    Known(
        name="officehome",
        title="Office-Home",
        used=f"{ACTIVE}: Art, Clipart, Product",
        template=_PHOTO,
        splits=("Art", "Clipart", "Product", "RealWorld"),
        test="Art",
        terms="non-commercial research",
        archives=("OfficeHomeDataset_10072016",),
        get="unpack OfficeHomeDataset_10072016.zip of its authors in {folder}",
    ),
    Known(
        name="dtd",
        title="Describable Textures",
        used=UNUSED,
        template="a photo of a {c} texture.",
        splits=("train", "val", "test"),
        test="test",
        terms="research",
        hub="clip-benchmark/wds_vtab-dtd",
        archives=("dtd",),
        lists=originals.dtd,
        split_file="labels/test1.txt",
        get=f"{_FETCH}, or unpack dtd-r1.0.1.tar.gz of its authors in {{folder}}",
    ),
    Known(
        name="cars",
        title="Stanford Cars",
        used=UNUSED,
        template=_PHOTO,
        splits=("train", "test"),
        test="test",
        terms=_RESEARCH,
        hub="clip-benchmark/wds_cars",
        bare="test",
        get=_FETCH,
    ),
    Known(
        name="pets",
        title="Oxford-IIIT Pets",
        used=UNUSED,
        template="a photo of a {c}, a type of pet.",
        splits=("train", "test"),
        test="test",
        terms="CC BY-SA 4.0",
        hub="clip-benchmark/wds_vtab-pets",
        archives=("oxford-iiit-pet",),
        lists=originals.pets,
        split_file="annotations/test.txt",
        get=f"{_FETCH}, or unpack images.tar.gz and annotations.tar.gz of its authors in {{folder}}",
    ),
    Known(
        name="cub",
        title="Caltech-UCSD Birds 200 (2011)",
        used=UNUSED,
        template="a photo of a {c}, a type of bird.",
        splits=("train", "test"),
        test="test",
        terms="non-commercial research",
        archives=("CUB_200_2011",),
        lists=originals.cub,
        split_file="train_test_split.txt",
        named=numbered,
        get="unpack CUB_200_2011.tgz of its authors in {folder}",
    ),
)

KNOWN = {entry.name: entry for entry in _ENTRIES}
"""Every known set, by its name."""
