"""The data sets known by name: those of the paper and a few customary ones, each with its prompt, splits and source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bayesvlm.data.labelled import originals, templates
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
        terms: its licence or terms, in a word.
        get: how to get it: "do this, or that", with {folder} for its folder.
        template: the one customary prompt, with {c} for the class.
        published: all prompts that CLIP's authors chose for it, where there are several.
        splits: what it can be asked for.
        test: the split to test on.
        hub: its Hub repository in CLIP-benchmark's layout.
        hub_splits: what the shards call a split, where that is another word.
        archives: what the original unpacks to, in the folder `name`.
        lists: reads the split files of the original.
        split_file: one of those files, for messages.
        bare: the split that class folders right in the folder are; None: those in a subfolder named as a split only.
        named: makes a class's name from its folder's; WordNet ids are looked up in a file instead.
        subset_of: the known set it is a part of, by a file of image names.
        counts: how many images its splits have, as far as that is written here.
        size: about how many bytes have to be there to read those splits.
    """

    name: str
    title: str
    used: str
    terms: str
    get: str
    template: str = "a photo of a {c}."
    published: tuple[str, ...] = ()
    splits: tuple[str, ...] = ("train", "test")
    test: str = "test"
    hub: str | None = None
    hub_splits: Mapping[str, str] = field(default_factory=dict)
    archives: tuple[str, ...] = ()
    lists: Lists | None = None
    split_file: str | None = None
    bare: str | None = None
    named: Naming = spaced
    subset_of: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    size: int | None = None

    def size_of(self, split: str) -> int | None:
        """About how many bytes a split has: its images' share of `size`; None where that is not written here."""
        if self.size is None or split not in self.counts:
            return None
        return self.size * self.counts[split] // sum(self.counts.values())

    @property
    def templates(self) -> tuple[str, ...]:
        """Its prompts, the customary one first."""
        return tuple(dict.fromkeys((self.template, *self.published)))

    def how_to_get(self, root: str | Path = "data") -> str:
        """How to get it into the folder of the data sets."""
        return self.get.replace("{folder}", str(Path(root) / self.name))


_MB = 10**6
_RESEARCH = "research, no licence stated"
_NAMES = "with a classnames.txt beside its class folders (lines such as 'n01440764 tench')"
_FETCH = "let it be fetched from the Hub (connect, and unset HF_HUB_OFFLINE)"

_ENTRIES = (
    Known(
        name="flowers102",
        title="Oxford Flowers 102",
        used=ZERO_SHOT,
        template="a photo of a {c}, a type of flower.",
        terms=_RESEARCH,
        counts={"test": 6_149},
        size=330 * _MB,
        hub="clip-benchmark/wds_vtab-flowers",
        bare="test",
        get=_FETCH,
    ),
    Known(
        name="food101",
        title="Food-101",
        used=ZERO_SHOT,
        template="a photo of {c}, a type of food.",
        terms=_RESEARCH,
        counts={"test": 25_250},
        size=1_250 * _MB,
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
        published=templates.CIFAR,
        terms=_RESEARCH,
        counts={"test": 10_000},
        size=30 * _MB,
        hub="clip-benchmark/wds_vtab-cifar10",
        bare="test",
        get=f"make it with world/recipes/cifar10/build.py of the repository, or {_FETCH}",
    ),
    Known(
        name="cifar100",
        title="CIFAR-100",
        used=ZERO_SHOT,
        published=templates.CIFAR,
        terms=_RESEARCH,
        counts={"test": 10_000},
        size=30 * _MB,
        hub="clip-benchmark/wds_vtab-cifar100",
        bare="test",
        get=_FETCH,
    ),
    Known(
        name="imagenet-r",
        title="ImageNet-R",
        used=f"{ZERO_SHOT}; {ACTIVE}",
        splits=("test",),
        published=templates.IMAGENET,
        terms="MIT, the images their owners'",
        counts={"test": 30_000},
        size=2_200 * _MB,
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
        published=templates.UCF101,
        terms=_RESEARCH,
        counts={"test": 3_783},
        size=200 * _MB,
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
        published=templates.SUN397,
        terms=_RESEARCH,
        counts={"test": 19_850},
        size=7_000 * _MB,
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
        splits=("train", "val"),
        test="val",
        published=templates.IMAGENET,
        terms="ImageNet's, non-commercial research",
        counts={"val": 50_000},
        size=6_700 * _MB,
        hub="clip-benchmark/wds_imagenet1k",
        hub_splits={"val": "test"},
        get=f"{_FETCH}, or put the validation images in {{folder}}/val/WORDNET_ID, {_NAMES}",
    ),
    Known(
        name="imagenet-100",
        title="ImageNet, 100 classes",
        used="1,097 test images of 100 random classes, to choose tau; the paper does not say which",
        splits=("train", "val"),
        test="val",
        published=templates.IMAGENET,
        terms="ImageNet's, non-commercial research",
        counts={"val": 1_097},
        size=6_700 * _MB,
        subset_of="imagenet",
        get="write the names of the images you choose to {folder}.txt, one per line",
    ),
    Known(
        name="imagenet-a",
        title="ImageNet-A",
        used=SHIFT,
        splits=("test",),
        published=templates.IMAGENET,
        terms="MIT, the images their owners'",
        counts={"test": 7_500},
        size=690 * _MB,
        hub="clip-benchmark/wds_imagenet-a",
        archives=("imagenet-a",),
        bare="test",
        get=f"{_FETCH}, or unpack imagenet-a.tar of its authors in {{folder}}, {_NAMES}",
    ),
    Known(
        name="imagenet-sketch",
        title="ImageNet-Sketch",
        used=f"{ACTIVE}; {SHIFT}",
        splits=("test",),
        published=templates.IMAGENET,
        terms="MIT, the images their owners'",
        counts={"test": 50_889},
        size=7_600 * _MB,
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
        published=templates.EUROSAT,
        terms="MIT",
        counts={"test": 5_400},
        size=20 * _MB,
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
        splits=("Art", "Clipart", "Product", "RealWorld"),
        test="Art",
        terms="non-commercial research",
        counts={"Art": 2_427, "Clipart": 4_365, "Product": 4_439, "RealWorld": 4_357},
        size=1_100 * _MB,  # one archive
        archives=("OfficeHomeDataset_10072016",),
        get="unpack OfficeHomeDataset_10072016.zip of its authors (1.1 GB, all four domains) in {folder}",
    ),
    Known(
        name="dtd",
        title="Describable Textures",
        used=UNUSED,
        template="a photo of a {c} texture.",
        splits=("train", "val", "test"),
        published=templates.DTD,
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
        published=templates.CARS,
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
