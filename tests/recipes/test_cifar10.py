"""CIFAR-10's sheets of pixels, made up, become shards that the package reads."""

from __future__ import annotations

import importlib.util
import io
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from bayesvlm.data import LabelledShards, resolve

RECIPE = Path(__file__).parents[2] / "world/recipes/cifar10/build.py"


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    """Loaded by its path: the other recipe has a build.py too."""
    spec = importlib.util.spec_from_file_location("cifar10_build", RECIPE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pixels(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


def write_package(folder: Path, images: dict[str, np.ndarray], **labels: list[int]) -> Path:
    """Sheets as the package has them: an image a row, its pixels from the top left on."""
    for name, batch in images.items():
        rows = [[pixel for line in image for pixel in line] for image in batch]
        Image.fromarray(np.array(rows, dtype=np.uint8)).save(folder / name)
    for split, numbers in labels.items():
        (folder / f"{split}_lables.json").write_text(json.dumps(numbers))
    return folder


def test_the_images_come_back_bit_for_bit(recipe: ModuleType, tmp_path: Path) -> None:
    images = pixels(3)
    package = write_package(tmp_path, {"test_batch.png": images}, test=[3, 8, 8])
    counts = recipe.build(package, tmp_path / "data/cifar10", "test")
    assert counts == {3: 1, 8: 2}
    shards = LabelledShards.open(tmp_path / "data/cifar10", "test", strict=True)
    samples = list(shards)
    assert [sample.label for sample in samples] == [3, 8, 8]
    assert [sample.key for sample in samples] == ["s0000000", "s0000001", "s0000002"]
    assert [shards.classes[sample.label] for sample in samples] == ["cat", "ship", "ship"]
    for sample, image in zip(samples, images, strict=True):
        assert isinstance(sample.image, bytes)
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(sample.image))), image)
    found = resolve("cifar10", root=tmp_path / "data").open()
    assert len(list(found)) == 3
    assert (found.templates[0], len(found.templates)) == ("a photo of a {c}.", 18)


def test_training_batches_are_a_shard_each_and_counted_on(recipe: ModuleType, tmp_path: Path) -> None:
    sheets = {f"data_batch_{number}.png": pixels(2, number) for number in range(1, 6)}
    labels = [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    recipe.build(write_package(tmp_path, sheets, train=labels), tmp_path / "out", "train")
    shards = LabelledShards.open(tmp_path / "out", "train", strict=True)
    assert len(shards.shards) == 5
    assert [sample.label for sample in shards] == labels
    assert [sample.key for sample in shards][-1] == "s0000009"


def test_made_twice_it_is_the_same(recipe: ModuleType, tmp_path: Path) -> None:
    package = write_package(tmp_path, {"test_batch.png": pixels(2)}, test=[0, 1])
    for folder in ("one", "two"):
        recipe.build(package, tmp_path / folder, "test")
    assert (tmp_path / "one/test/0.tar").read_bytes() == (tmp_path / "two/test/0.tar").read_bytes()


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ([0], r"0\.tar has 2 images, but 1 labels are left"),
        ([0, 1, 2], "has 3 labels, but the sheets of 'test' hold 2 images"),
        ([0, 10], r"0\.tar has the label 10; expected 0 to 9"),
    ],
)
def test_labels_that_do_not_fit(recipe: ModuleType, tmp_path: Path, labels: list[int], sentence: str) -> None:
    package = write_package(tmp_path, {"test_batch.png": pixels(2)}, test=labels)
    with pytest.raises(SystemExit, match=sentence):
        recipe.build(package, tmp_path / "out", "test")
    assert not (tmp_path / "out/test/nshards.txt").exists(), "what was cut short is no data set"


def test_a_sheet_of_another_shape(recipe: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"test_batch\.png has the shape \(2, 784, 3\); expected \(images, 1024, 3\)"):
        recipe.unfold(np.zeros((2, 784, 3), dtype=np.uint8), "test_batch.png")
