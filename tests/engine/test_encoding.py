"""Features from a cluster are those of this process, image for image, whatever the images are and whoever dies."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageOps

from bayesvlm import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.engine.cluster import Resources
from bayesvlm.engine.encoding import RayEncoder, ray_encoder
from bayesvlm.images.files import ImageFile
from bayesvlm.models import Adapter, load_adapter
from bayesvlm.models.streaming import EncodedBatch, stream_features

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.usefixtures("ray_session")]

BATCH = 4


@pytest.fixture(scope="module")
def model(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Adapter:
    """One whose files are gone: actors have it from here."""
    folder = tmp_path_factory.mktemp("gone") / "clip"
    shutil.copytree(folders["clip"], folder)
    loaded = load_adapter(folder, device="cpu")
    shutil.rmtree(folder)
    return loaded


@pytest.fixture(scope="module")
def encoder(model: Adapter) -> Iterator[RayEncoder]:
    with ray_encoder(model, Resources(actors=2, cpus=0.5, gpus=0, decode_cpus=0.5, ahead=2)) as encoder:
        yield encoder


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Thirteen images, two of which cannot be read."""
    folder = tmp_path_factory.mktemp("pictures")
    for seed in range(13):
        draws = torch.Generator().manual_seed(seed)
        pixels = torch.randint(0, 256, (40 + seed, 44, 3), dtype=torch.uint8, generator=draws)
        Image.fromarray(pixels.numpy()).save(folder / f"{seed:02}.png")
    (folder / "05.png").write_bytes(b"no image")
    (folder / "09.png").unlink()
    return [folder / f"{seed:02}.png" for seed in range(13)]


@dataclass(frozen=True)
class Mirrored:
    """An image and its mirror image; tasks have a copy of this."""

    count: int = 2

    def of(self, image: Image.Image, key: str) -> Iterable[Image.Image]:
        return [image, ImageOps.mirror(image)]


def assert_same(found: Iterable[EncodedBatch], expected: Iterable[EncodedBatch]) -> None:
    """Batch for batch: places, what was given, what could not be read and why, features."""
    got, want = list(found), list(expected)
    assert [batch.places for batch in got] == [batch.places for batch in want]
    assert [batch.unreadable for batch in got] == [batch.unreadable for batch in want]
    assert [batch.inputs for batch in got] == [batch.inputs for batch in want]
    whole, reference = (Features.concatenate([batch.features for batch in batches]) for batches in (got, want))
    torch.testing.assert_close(whole.activations, reference.activations, rtol=1e-5, atol=1e-5)


def kinds(paths: list[Path], model: Adapter) -> dict[str, list[Any]]:
    readable = [path for path in paths if path.exists() and path.name != "05.png"]
    ready = [model.preprocessor.prepared(path) for path in readable]
    return {
        "paths": list(paths),
        "files": list(map(ImageFile, paths)),
        "bytes": [path.read_bytes() if path.exists() else b"" for path in paths],
        "ready": ready,
        "broken": [paths[5], paths[9]],
    }


@pytest.mark.parametrize("kind", ["paths", "files", "bytes", "ready", "broken"])
def test_features_are_those_of_this_process(encoder: RayEncoder, model: Adapter, paths: list[Path], kind: str) -> None:
    given = kinds(paths, model)[kind]
    expected = stream_features(model, given, batch_size=BATCH, workers=0)
    assert_same(encoder(given, batch_size=BATCH), expected)


def test_several_images_in_the_place_of_one(encoder: RayEncoder, model: Adapter, paths: list[Path]) -> None:
    views = Mirrored()
    expected = stream_features(model, paths, batch_size=BATCH, expansion=views, workers=0)
    assert_same(encoder(paths, batch_size=BATCH, expansion=views), expected)


def test_an_actor_that_dies_between_batches_loses_none(encoder: RayEncoder, model: Adapter, paths: list[Path]) -> None:
    import ray

    found = []
    for batch in encoder(paths * 4, batch_size=BATCH):
        if not found:
            ray.kill(encoder._actors[0], no_restart=False)
        found.append(batch)
    assert_same(found, stream_features(model, paths * 4, batch_size=BATCH, workers=0))


def test_an_iterable_is_not_read_far_ahead(encoder: RayEncoder, paths: list[Path]) -> None:
    taken = 0

    def endless() -> Iterator[Path]:
        nonlocal taken
        while True:
            taken += 1
            yield paths[taken % 5]

    stream = encoder(endless(), batch_size=BATCH)
    for _ in range(3):
        assert next(stream).seen == BATCH
    ahead = encoder.resources.ahead * encoder.resources.actors
    assert taken <= BATCH * (3 + ahead + 3)  # what waits, and what is being begun
    stream.close()


def test_strict_stops_at_the_first(encoder: RayEncoder, paths: list[Path]) -> None:
    with pytest.raises(BayesVLMError, match=r"05\.png"):
        list(encoder(paths, batch_size=BATCH, strict=True))
