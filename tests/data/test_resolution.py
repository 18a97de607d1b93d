"""The one door to data: every form of a name for both kinds, what comes first, and a sentence for what is nowhere."""

from __future__ import annotations

import io
import pickle
import socket
import sys
import tarfile
from pathlib import Path

import pytest
from huggingface_hub import constants
from PIL import Image

from bayesvlm import BayesVLMError, embedded
from bayesvlm.data import ImageFolder, LabelledShards, PairFolder, PairShards, Source, resolve
from bayesvlm.data.labelled import KNOWN, set_prompts
from bayesvlm.data.names import DataName, data_root
from bayesvlm.data.sources import Kind, bytes_in
from bayesvlm_world import Split, WorldPairs, folder_of

KINDS: tuple[Kind, ...] = ("labelled", "pairs")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in, no root in the environment, an empty cache; who goes to the network fails."""
    monkeypatch.delenv("BAYESVLM_DATA", raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("somebody was asked"))
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("somebody was asked"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("an image was read"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


@pytest.fixture
def no_world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "world_folder", lambda: None)


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8)).save(path)


def class_folders(folder: Path, *splits: str) -> Path:
    for split in splits or (".",):
        for name in ("cat", "dog"):
            picture(folder / split / name / "1.png")
    return folder


def captioned(folder: Path, count: int = 3) -> Path:
    for number in range(count):
        picture(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text(f"picture {number}")
    return folder


def shard(path: Path, **files: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name.replace("_", "."))
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def benchmark(folder: Path, split: str = "test") -> Path:
    """A split in CLIP-benchmark's layout."""
    shard(folder / split / "0.tar", a_png=b"", a_cls=b"0")
    (folder / split / "nshards.txt").write_text("1")
    (folder / "classnames.txt").write_text("cat\ndog")
    (folder / "zeroshot_classification_templates.txt").write_text("a {c}")
    return folder


def snapshot(hub: Path, repo: str, split: str = "test") -> Path:
    """What the Hub's library keeps of a data set."""
    top = hub / f"datasets--{repo.replace('/', '--')}"
    (top / "refs").mkdir(parents=True)
    (top / "refs/main").write_text("0" * 40)
    return benchmark(top / "snapshots" / ("0" * 40), split)


def refused(source: Source, *sentences: str) -> None:
    """It is not here, and `open` says so in one sentence."""
    assert not source.here
    with pytest.raises(BayesVLMError) as caught:
        source.open()  # type: ignore[attr-defined]
    for sentence in sentences:
        assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert ". " not in str(caught.value).replace("... ", "")


# The embedded world ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", embedded.SPLITS)
def test_a_split_of_the_world(split: str, kind: Kind) -> None:
    source = resolve(split, kind)
    assert (source.name, source.kind, source.where, source.here, source.note) == (
        split, kind, "in bayesvlm-world", True, "",
    )  # fmt: skip
    assert source.count
    assert source.size == bytes_in(folder_of(split))


def test_splits_of_the_world_are_opened() -> None:
    labelled, pairs = resolve("validation").open(), resolve("validation+flags", "pairs")
    assert isinstance(labelled, Split)
    assert isinstance(pairs.open(), WorldPairs)
    assert (labelled.size, pairs.count, pairs.open().size, pairs.title) == (490, 1013, 1013, "validation+flags")
    refused(resolve("validation+flags"), "joins splits, which pairs to fit on may")


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_world_its_splits_say_what_to_install(kind: Kind, no_world: None) -> None:
    source = resolve("openmoji-black", kind)
    assert source.where == "in bayesvlm-world, which is not installed"
    assert source.size is source.count is None
    refused(source, "openmoji-black comes with the embedded world, which is not installed", "bayesvlm[world]")
    refused(resolve("openmoji-blck", kind), "did you mean 'openmoji-black'")


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_world_everything_else_is_found(kind: Kind, no_world: None) -> None:
    captioned(class_folders(Path("mine")))
    assert resolve("mine", kind).here


@pytest.mark.parametrize("kind", KINDS)
def test_a_split_that_is_a_folder_too(kind: Kind) -> None:
    captioned(class_folders(Path("train")))
    refused(resolve("train", kind), "write ./train for the folder")
    for name in ("./train", "train/", str(Path("train").absolute())):
        assert resolve(name, kind).folder == Path(name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_split_has_no_splits(kind: Kind) -> None:
    for source in (resolve("openmoji-black:test", kind), resolve("openmoji-black", kind, split="test")):
        refused(source, "'openmoji-black' is a split of the embedded world and has no splits itself; leave 'test' out")


# Known sets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_set_that_is_not_here_says_how_to_get_it(name: str, here: Path) -> None:
    source, entry = resolve(name, root=here / "root"), KNOWN[name]
    assert not source.here
    assert entry.how_to_get(here / "root") in source.note
    assert (source.count, source.size) == (entry.counts.get(entry.test), entry.size_of(entry.test))
    hub = KNOWN[entry.subset_of].hub if entry.subset_of else entry.hub
    assert source.where == (f"would be fetched from the Hub: {hub}" if hub else "not here")
    refused(resolve(name, "pairs", here / "root"), "a set of labelled images, without captions")


def test_a_known_set_below_the_root_or_in_the_cache(here: Path) -> None:
    cached = snapshot(here / "hub", "clip-benchmark/wds_imagenet1k")
    source = resolve("imagenet", root=here / "root")
    assert (source.here, source.folder, source.count) == (True, cached / "test", 50_000)
    assert source.size == bytes_in(cached / "test")
    assert not resolve("imagenet:train", root=here / "root").here
    folder = benchmark(here / "root/imagenet", "val")
    assert resolve("imagenet", root=here / "root").folder == folder, "what lies below the root comes first"
    assert isinstance(resolve("imagenet:val", root=here / "root").open(), LabelledShards)


def test_the_domains_of_office_home_share_an_archive() -> None:
    domains = [resolve(f"officehome:{name}") for name in ("Art", "Clipart", "Product", "RealWorld")]
    assert [source.count for source in domains] == [2427, 4365, 4439, 4357]
    assert sum(source.size or 0 for source in domains) == pytest.approx(1.1e9, abs=4)
    assert resolve("officehome").count == 2427, "Art is what it is without a split"


def test_a_part_of_a_known_set_takes_its_list_and_the_whole(here: Path) -> None:
    root = here / "root"
    assert "imagenet-100.txt" in resolve("imagenet-100", root=root).note
    benchmark(root / "imagenet", "val")
    assert not resolve("imagenet-100", root=root).here
    (root / "imagenet-100.txt").write_text("a")
    source = resolve("imagenet-100", root=root)
    assert (source.here, source.note, source.open().size) == (True, "", 1)


# Folders --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_here_or_below_the_root(kind: Kind, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = class_folders if kind == "labelled" else captioned
    far, near = make(here / "root/mine"), Path("mine")
    for source in (
        resolve("mine", kind, here / "root"),
        resolve(Path("mine"), kind, str(here / "root")),
        resolve(str(far), kind),
        resolve(f"{far}/", kind),
    ):
        assert (source.here, source.folder, source.where, source.count) == (True, far, str(far), None)
        assert source.size == bytes_in(far)
        assert isinstance(source.open(), ImageFolder if kind == "labelled" else PairFolder)
    assert not resolve("mine", kind).here
    monkeypatch.setenv("BAYESVLM_DATA", str(here / "root"))
    assert resolve("mine", kind).folder == far
    make(near)
    assert resolve("mine", kind).folder == near, "what lies here comes first"
    monkeypatch.delenv("BAYESVLM_DATA")
    assert data_root(None) == Path("data")
    own = make(Path("data/own"))
    assert resolve("own", kind).folder == own
    monkeypatch.setenv("HOME", str(here))
    assert resolve("~/root/mine", kind).folder == far
    refused(resolve("~nobody-at-all/mine", kind))


def test_a_split_of_a_folder(here: Path) -> None:
    class_folders(Path("mine"), "test", "val")
    for source in (resolve("mine:val"), resolve("mine", split="val"), resolve("mine:val", split="val")):
        assert (source.split, source.folder, source.open().name) == ("val", Path("mine"), "here/mine:val")
    with pytest.raises(BayesVLMError, match="'mine:val' was asked for with the split 'test'; name one split"):
        resolve("mine:val", split="test")
    with pytest.raises(BayesVLMError, match="name one split, as in mine:test"):
        resolve("mine:")
    captioned(here / "root/laion400m")
    with pytest.raises(BayesVLMError, match="split='train' chooses nothing"):
        resolve("laion400m:train", "pairs", here / "root").open()


@pytest.mark.parametrize("kind", KINDS)
def test_a_colon_in_a_folders_name(kind: Kind) -> None:
    captioned(class_folders(Path("at 12:30")))
    assert resolve("at 12:30", kind).folder == Path("at 12:30")


def test_a_saved_table_is_read_with_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    Path("table").mkdir()
    Path("table/dataset_dict.json").touch()
    for kind in KINDS:
        for name in ("table", "./table", "datasets:table", "datasets:table:train"):
            source = resolve(name, kind)
            assert (source.here, source.folder) == (True, Path(name.removeprefix("datasets:").removesuffix(":train")))
            with pytest.raises(BayesVLMError, match=r"pip install 'bayesvlm\[datasets\]'"):
                source.open()


# Files of shards and captions -----------------------------------------------------------------------------------------


def test_shards_by_their_files() -> None:
    files = [shard(Path(f"shards/{number:05d}.tar"), a_txt=b"words", a_png=b"") for number in (0, 1, 2, 10)]
    for name, expected in (
        ("shards/{00000..00002}.tar", files[:3]),
        ("shards/{00010,00000}.tar", [files[3], files[0]]),
        ("shards/*.tar", files),
        ("shards/0000?.tar", files[:3]),
        ("shards/00001.tar", files[1:2]),
        ("shards", files),
        ("shards/", files),
    ):
        source = resolve(name, "pairs")
        opened = source.open(batch_size=2)
        assert isinstance(opened, PairShards)
        assert (list(opened.shards), opened.batch_size, source.here) == (expected, 2, True)
        assert source.size == sum(path.stat().st_size for path in expected)
    assert resolve("shards/{00000..00002}.tar", "pairs").where == "shards/00000.tar and 2 more"
    assert resolve("shards/*.tar", "pairs").open().fingerprint() == resolve("shards", "pairs").open().fingerprint()
    refused(resolve("shards/{00000..00004}.tar", "pairs"), "names 5 shards, of which 2 are missing", "00003.tar")
    refused(resolve("gone/*.tar", "pairs"), "matches no file")
    with pytest.raises(BayesVLMError, match="a tar shard, where split='train' chooses nothing"):
        resolve("shards/*.tar", "pairs", split="train").open()


def test_labelled_shards_are_read_by_their_folder() -> None:
    benchmark(Path("food"))
    refused(resolve("food/test/0.tar"), "give the folder that has it")
    refused(resolve("food/test/{0..9}.tar"), "named by their folder, not by a pattern")
    assert isinstance(resolve("food").open(), LabelledShards)


def test_both_kinds_read_a_split_in_clip_benchmarks_layout(here: Path) -> None:
    benchmark(Path("food"))
    for name in ("food", "food:test", "food/test", "food/test/"):
        opened = resolve(name).open()
        assert isinstance(opened, LabelledShards)
        assert (opened.name, [shard.name for shard in opened.shards]) == ("here/food", ["0.tar"])
    for name in ("food:test", "food/test"):
        assert [shard.name for shard in resolve(name, "pairs").open().shards] == ["0.tar"]  # type: ignore[attr-defined]
    with pytest.raises(BayesVLMError, match=r"holds its tar shards in subfolders \(test\); name one, as in food:test"):
        resolve("food", "pairs").open()
    shard(Path("laion/00000.tar"))
    with pytest.raises(BayesVLMError, match=r"laion holds tar shards \(00000\.tar\) without class names"):
        resolve("laion").open()


def test_a_captions_file_lists_images_beside_it() -> None:
    captioned(Path("mine"))
    Path("mine/train.tsv").write_text("filepath\ttitle\n0.png\tone\n1.png\ttwo\n")
    opened = resolve("mine/train.tsv", "pairs").open()
    assert isinstance(opened, PairFolder)
    assert opened.pairs == ((Path("mine/0.png"), "one"), (Path("mine/1.png"), "two"))
    with pytest.raises(BayesVLMError, match="a captions file itself, where captions='other' chooses nothing"):
        resolve("mine/train.tsv", "pairs").open("other")
    assert resolve("mine/train.tsv", "pairs").title == "train.tsv"


@pytest.mark.parametrize("name", ["images.zip", "table.parquet", "one.png"])
def test_a_file_of_another_kind(name: str) -> None:
    Path(name).touch()
    refused(resolve(name, "pairs"), f"{name} is no folder, tar shard or captions file", "archives unpacked")
    if name != "table.parquet":  # which may list labelled images
        refused(resolve(name), f"{name} is a file; give a folder with a subfolder of images for each class, or a table")


# The Hub --------------------------------------------------------------------------------------------------------------

ADDRESSES = (
    "hf://datasets/someone/things",
    "https://huggingface.co/datasets/someone/things",
    "https://huggingface.co/datasets/someone/things/tree/main",
    "https://hf.co/datasets/someone/things/",
)


@pytest.mark.parametrize("name", ["someone/things", *ADDRESSES])
def test_a_hub_id_or_its_address(name: str, here: Path) -> None:
    where = "would be fetched from the Hub: someone/things"
    for source in (
        resolve(name),
        resolve(f"{name}:val"),
        resolve(f"{name}:train", "pairs"),
        resolve(f"datasets:{name}"),
    ):
        assert (source.where, source.here, source.count, source.size) == (where, False, None, None)
        assert source.note
    refused(resolve(name, "pairs"), f"a data set on the Hub needs its split: {name}:train")
    folder = snapshot(here / "hub", "someone/things", "val")
    source = resolve(f"{name}:val")
    assert (source.here, source.folder, source.split) == (True, folder / "val", "val")
    assert not resolve(name).here, "another split"
    captioned(class_folders(Path("someone/things")))
    places = [resolve(f"{name}:train", kind).folder for kind in KINDS]
    assert places == [None if "://" in name else Path(name)] * 2, "a folder comes first, but not before an address"


def test_offline_a_hub_id_is_read_from_the_cache(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    refused(resolve("someone/things"), "is not in the local cache, and the Hub could not be reached")
    snapshot(here / "hub", "someone/things")
    assert isinstance(resolve("someone/things").open(), LabelledShards)


@pytest.mark.parametrize(
    ("name", "repo"), [("wds/imagenet1k", "wds_imagenet1k"), ("wds/vtab/cifar10", "wds_vtab-cifar10")]
)
def test_clip_benchmarks_own_names(name: str, repo: str, here: Path) -> None:
    for source in (resolve(name), resolve(f"{name}:train"), resolve(f"{name}:train", "pairs")):
        assert source.where == f"would be fetched from the Hub: clip-benchmark/{repo}"
    folder = benchmark(here / "root" / repo)
    assert resolve(name, root=here / "root").folder == folder
    own = benchmark(here / "here" / name)
    assert resolve(name, root=here / "root").folder == own.relative_to(here / "here")


def test_tables_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    for name, split in (("datasets:someone/things:train[:1%]", "train[:1%]"), ("datasets:beans:train", "train")):
        for kind in KINDS:
            source = resolve(name, kind)
            assert (source.where.partition(": ")[2], source.split) == (name.split(":")[1], split)
            with pytest.raises(BayesVLMError, match=r"pip install 'bayesvlm\[datasets\]'"):
                source.open()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["s3://bucket/{0..9}.tar", "https://example.org/a.tar", "pipe:curl -s https://a/b.tar", "pipe:cat a.tar"]
)
def test_an_address_is_not_fetched(name: str, kind: Kind) -> None:
    refused(resolve(name, kind), f"{name!r} is an address; only data sets of the Hub are fetched")


# Names ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "trian", "train+cc12m", "train+", "laion400m", "a/b/c"])
def test_pairs_that_there_are_not(name: str, here: Path) -> None:
    source = resolve(name, "pairs", here / "root")
    assert source.where == "not here"
    refused(source, f"There are no pairs {name!r}", str(here / "root"))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", "'' is neither a known data set (flowers102, "),
        ("xyzzy", "'xyzzy' is neither a known data set (flowers102, "),
        ("CIFAR-10", "did you mean cifar10"),
        ("food101/", "did you mean food101"),
        ("opnmoji-black", "did you mean 'openmoji-black', of the embedded world?"),
    ],
)
def test_labelled_images_that_there_are_not(name: str, sentence: str) -> None:
    refused(resolve(name), sentence)


def test_a_kind_that_there_is_not() -> None:
    with pytest.raises(BayesVLMError, match="kind='sounds'"):
        resolve("train", "sounds")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("given", "base", "split", "table"),
    [
        ("imagenet:val", "imagenet", "val", False),
        ("datasets:owner/name", "owner/name", None, True),
        ("datasets:owner/name:test", "owner/name", "test", True),
        ("owner/name:train[10%:20%]", "owner/name", "train[10%:20%]", False),
        ("C:\\images", "C:\\images", None, False),
        ("pipe:cat a.tar", "pipe:cat a.tar", None, False),
        ("shards/{0..9}.tar", "shards/{0..9}.tar", None, False),
    ],
)
def test_a_name_taken_apart(given: str, base: str, split: str | None, table: bool) -> None:
    assert DataName.parse(given) == DataName(given, base, split, table)


def test_an_address_taken_apart() -> None:
    assert DataName.parse("hf://datasets/owner/name:test") == DataName(
        "hf://datasets/owner/name:test", "owner/name", "test", page=True
    )


def test_a_source_travels() -> None:
    source = resolve("openmoji-black")
    assert pickle.loads(pickle.dumps(source)).open().size == source.count


def test_a_template_needs_a_place_for_the_class() -> None:
    class_folders(Path("mine"))
    with pytest.raises(BayesVLMError, match="templates='a thing' has no place for the class name"):
        resolve("mine").open("a thing")
    opened = resolve("mine").open("one {c}")
    assert set_prompts(opened).texts == ("one cat", "one dog")
    assert set_prompts(opened, "two {c}").texts == ("two cat", "two dog")
    several = resolve("mine").open(["one {c}", "two {c}"])
    assert set_prompts(several).texts == ("one cat", "one dog"), "the first, unless more are asked for"
    assert set_prompts(several, "all").texts == ("one cat", "two cat", "one dog", "two dog")
