"""What a source of pairs is taken for."""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from bayesvlm import BayesVLMError
from bayesvlm.data import PairFolder, resolve
from bayesvlm.data.pairs.shards import PairShards


@pytest.fixture(autouse=True)
def _without_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8)).save(path)


def shard(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"), io.BytesIO())


def test_shards(tmp_path: Path) -> None:
    shard(tmp_path / "00000.tar")
    (tmp_path / "00000.parquet").touch()
    (tmp_path / "00000_stats.json").touch()
    pairs = resolve(str(tmp_path), "pairs").open(batch_size=7, strict=True)
    assert isinstance(pairs, PairShards)
    assert (pairs.batch_size, pairs.skipped.strict) == (7, True)
    with pytest.raises(BayesVLMError, match="is a folder of tar shards, where split='train' chooses nothing"):
        resolve(tmp_path, "pairs", split="train").open()


def test_images_with_text_files(tmp_path: Path) -> None:
    picture(tmp_path / "00000/a.png")
    (tmp_path / "00000/a.txt").write_text("words")
    (tmp_path / "00000.parquet").touch()  # img2dataset again, told to write files
    assert isinstance(resolve(tmp_path, "pairs").open(), PairFolder)
    with pytest.raises(BayesVLMError, match="without a captions file, where text_column='text' chooses nothing"):
        resolve(tmp_path, "pairs").open(text_column="text")


def test_a_captions_file_comes_before_all_else(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    shard(tmp_path / "backup.tar")
    with pytest.raises(BayesVLMError, match=r"tar shards \(backup\.tar\) and image files \(a\.png\); move one kind"):
        resolve(tmp_path, "pairs").open()
    (tmp_path / "train.csv").write_text("image,caption\na.png,words\na.png,more\n")
    pairs = resolve(tmp_path, "pairs").open(tmp_path / "train.csv", captions_per_image=1)
    assert isinstance(pairs, PairFolder)
    assert pairs.size == 1
    (tmp_path / "train.csv").rename(tmp_path / "captions.csv")
    assert isinstance(resolve(tmp_path, "pairs").open(), PairFolder)


@pytest.mark.parametrize(
    "names", [["dataset_dict.json"], ["state.json", "dataset_info.json"], ["data/train-0.parquet"]]
)
def test_a_data_set_in_a_folder(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(BayesVLMError, match=r"pip install 'bayesvlm\[datasets\]'"):
        resolve(tmp_path, "pairs").open()


def test_a_data_set_of_the_hub_needs_a_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BayesVLMError, match=r"pip install 'bayesvlm\[datasets\]'"):
        resolve("owner/name", "pairs", split="train").open()
    with pytest.raises(BayesVLMError, match="a data set on the Hub needs its split: owner/name:train, split="):
        resolve("owner/name", "pairs").open()
    with pytest.raises(BayesVLMError, match=r"a data set on the Hub, where captions='captions\.csv' chooses nothing"):
        resolve("owner/name", "pairs", split="train").open("captions.csv")
    for other in ("owner", "owner/name/deeper", "../name", "/owner/name", "owner/"):
        with pytest.raises(BayesVLMError, match=f"There are no pairs '{other}'"):
            resolve(other, "pairs", split="train").open()


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(BayesVLMError, match="holds no images"):
        resolve(tmp_path, "pairs").open()
