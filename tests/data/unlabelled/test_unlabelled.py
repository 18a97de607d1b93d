"""Images whose labels are not asked for: sets of unknown things in their published layouts, folders, tables, others."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from bayesvlm import BayesVLMError
from bayesvlm.data import resolve
from bayesvlm.data.unlabelled import OUT_SETS
from bayesvlm.data.unlabelled.collection import NO_CLASS

PUBLISHED = {
    "inaturalist": ("iNaturalist/images/a.jpg", "iNaturalist/images/b.jpg"),
    "sun": ("SUN/images/sun_a.jpg", "SUN/images/sun_b.jpg"),
    "places": ("Places/images/b_badlands_1.jpg", "Places/images/b_badlands_2.jpg"),
    "textures": ("dtd/images/banded/banded_1.jpg", "dtd/images/woven/woven_1.jpg"),
}


def draw(folder: Path, *names: str) -> Path:
    for shade, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (40 * shade, 0, 0)).save(folder / name)
    return folder


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("BAYESVLM_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def refused(sentence: str, name: str) -> None:
    with pytest.raises(BayesVLMError, match=sentence) as caught:
        resolve(name, kind="images").open()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", OUT_SETS)
def test_a_set_of_the_published_protocol_in_its_layout(root: Path, name: str) -> None:
    missing = resolve(name, kind="images")
    assert not missing.here
    refused(rf"is not below data; unpack .* in data, so that data/{PUBLISHED[name][0].partition('/')[0]}/images", name)
    draw(root, *PUBLISHED[name])
    source = resolve(name, kind="images")
    assert source.here
    assert source.count == OUT_SETS[name].count
    found = source.open()
    assert (found.name, found.size) == (name, 2)
    assert found.classes == (("banded", "woven") if name == "textures" else ())
    assert [sample.label for sample in found] == ([0, 1] if name == "textures" else [NO_CLASS, NO_CLASS])


def test_letters_of_any_case_and_an_archive_in_a_folder_of_its_own(root: Path) -> None:
    draw(root, "inaturalist/images/a.png", "dtd/dtd/images/banded/a.png", "dtd/dtd/labels/none.png")
    assert resolve("iNaturalist", kind="images").open().size == 1
    assert [sample.key for sample in resolve("textures", kind="images").open()] == ["banded/a.png"]


def test_a_folder_in_class_folders_or_in_none(root: Path) -> None:
    draw(root, "mine/a.png", "mine/big_cats/b.png", "mine/dogs/deep/c.png", "split/test/d.png", "split/train/e.png")
    found = resolve("mine", kind="images").open()
    assert found.name == "data/mine"
    assert found.classes == ("big cats", "dogs")
    labels = {sample.key: sample.label for sample in found}
    assert labels == {"a.png": NO_CLASS, "big_cats/b.png": 0, "dogs/deep/c.png": 1}
    assert [sample.key for sample in resolve("split", kind="images").open()] == ["d.png"]
    assert [sample.key for sample in resolve("split:train", kind="images").open()] == ["e.png"]
    before = found.fingerprint()
    (root / "mine/a.png").write_bytes((root / "mine/dogs/deep/c.png").read_bytes())
    assert resolve("mine", kind="images").open().fingerprint() != before


def test_a_table_with_labels_or_without(root: Path) -> None:
    draw(root, "a.png", "b.png")
    (root / "plain.csv").write_text("image\na.png\nb.png\n")
    (root / "labelled.csv").write_text("image,label\na.png,cat\nb.png,\n")
    plain, labelled = (resolve(f"data/{name}.csv", kind="images").open() for name in ("plain", "labelled"))
    assert (plain.classes, [sample.label for sample in plain]) == ((), [NO_CLASS, NO_CLASS])
    assert (labelled.classes, [sample.label for sample in labelled]) == (("cat",), [0, NO_CLASS])


def test_whatever_is_known_with_labels_will_do(root: Path) -> None:
    assert resolve("flags", kind="images").open().size == 523
    draw(root, "imagenet-a/n01440764/a.png", "imagenet-a/n01443537/a.png")
    assert resolve("imagenet-a", kind="images").open().size == 2, "WordNet ids need no names here"


def test_what_is_not_there(root: Path) -> None:
    refused("There is no set 'inaturalst'; did you mean 'inaturalist'?", "inaturalst")
    refused("There is no set 'flag'; did you mean 'flags'", "flag")
    refused("'nothing' is neither a known data set", "nothing")
    (root / "empty").mkdir()
    refused("data/empty holds no images; name a folder of image files", "empty")
    draw(root, "split/train/a.png", "split/val/b.png")
    refused("is split into subfolders, and none was asked for", "split")
