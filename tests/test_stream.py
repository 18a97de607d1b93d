"""`vlm.stream`: any iterable, in order, a batch at a time; what cannot be read is named and not lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from bayesvlm import BayesVLM, BayesVLMError, Features, Prediction
from bayesvlm.core.errors import BayesVLMWarning
from bayesvlm.testing import save_tiny_clip, save_tiny_siglip

TEXTS = ["a red square", "a green square", "a blue square", "a dog", "a cat", "a house"]


def picture(seed: int, size: int = 40) -> Image.Image:
    pixels = torch.randint(0, 256, (size, size, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return Image.fromarray(pixels.numpy())


@pytest.fixture(scope="module", params=[save_tiny_clip, save_tiny_siglip])
def vlm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> BayesVLM:
    vlm = BayesVLM.from_pretrained(request.param(tmp_path_factory.mktemp("model")), device="cpu")
    return vlm.fit([([picture(seed) for seed in range(60)], [TEXTS[seed % 6] for seed in range(60)])], progress=False)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("pictures")
    for seed in range(11):
        picture(seed).save(folder / f"{seed:02}.png")
    return sorted(folder.iterdir())


def joined(predictions: Iterator[Prediction]) -> tuple[Tensor, list[int], dict[int, str]]:
    probs, places, unreadable = [], [], {}
    for prediction in predictions:
        probs.append(prediction.probs)
        places += prediction.places or ()
        unreadable |= prediction.unreadable
    return torch.cat(probs), places, unreadable


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_what_classify_says_of_all_at_once(vlm: BayesVLM, paths: list[Path], workers: int) -> None:
    whole = vlm.classify(paths, TEXTS)
    probs, places, unreadable = joined(vlm.stream((path for path in paths), TEXTS, batch_size=4, workers=workers))
    torch.testing.assert_close(probs, whole.probs, rtol=0, atol=1e-5)
    assert places == list(range(11))
    assert not unreadable


def test_rows_of_a_batch_have_all_that_classify_has(vlm: BayesVLM, paths: list[Path]) -> None:
    whole = vlm.classify(paths, TEXTS)
    second = list(vlm.stream(paths, TEXTS, batch_size=4))[1]
    rows = list(second.places or ())
    for name in ("mean", "variance", "entropy", "epistemic", "aleatoric"):
        torch.testing.assert_close(getattr(second, name), getattr(whole, name)[rows], rtol=0, atol=2e-5)
    if vlm.loss == "sigmoid":
        assert second.label_probs is not None
        torch.testing.assert_close(second.label_probs, whole.label_probs[rows], rtol=0, atol=1e-5)  # type: ignore[index]


def test_anything_that_is_an_image_is_streamed(vlm: BayesVLM, paths: list[Path]) -> None:
    expected = vlm.classify(paths, TEXTS).probs
    pixels = [torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1) for path in paths]
    kinds = [map(str, paths), [path.read_bytes() for path in paths], [Image.open(path) for path in paths], pixels]
    for inputs in kinds:
        probs, _, _ = joined(vlm.stream(inputs, TEXTS, batch_size=5))
        torch.testing.assert_close(probs, expected, rtol=0, atol=1e-5)


def test_ready_pixels_of_a_users_own_loader(vlm: BayesVLM, paths: list[Path]) -> None:
    """A DataLoader that runs the processor itself, as people who use transformers have it."""
    from transformers import AutoImageProcessor

    assert vlm.adapter is not None
    processor = AutoImageProcessor.from_pretrained(vlm.adapter.name, use_fast=False)

    def collate(batch: list[Path]) -> dict[str, Tensor]:
        return dict(processor(images=[Image.open(path).convert("RGB") for path in batch], return_tensors="pt"))

    loader = DataLoader([*paths], batch_size=3, collate_fn=collate)  # type: ignore[arg-type]
    probs, places, _ = joined(vlm.stream(loader, TEXTS))
    torch.testing.assert_close(probs, vlm.classify(paths, TEXTS).probs, rtol=0, atol=1e-5)
    assert places == list(range(11))


def test_features_are_streamed_too(vlm: BayesVLM, paths: list[Path]) -> None:
    features = vlm.image_features(paths)
    probs, places, _ = joined(vlm.stream(features, TEXTS, batch_size=3))
    torch.testing.assert_close(probs, vlm.classify(features, TEXTS).probs, rtol=0, atol=1e-5)
    assert places == list(range(11))


@pytest.mark.parametrize("workers", [0, 1])
def test_what_cannot_be_read_is_named_and_the_rest_is_not_lost(
    vlm: BayesVLM, paths: list[Path], tmp_path: Path, workers: int
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    inputs = [paths[0], broken, *paths[1:4], tmp_path / "absent.png", paths[4]]
    with pytest.warns(BayesVLMWarning, match=r"inputs\[1\].*broken\.png.*unreadable"):
        probs, places, unreadable = joined(vlm.stream(inputs, TEXTS, batch_size=2, workers=workers))
    assert places == [0, 2, 3, 4, 6]
    assert set(unreadable) == {1, 5}
    assert "broken.png" in unreadable[1]
    assert "does not exist" in unreadable[5]
    torch.testing.assert_close(probs, vlm.classify(paths[:5], TEXTS).probs, rtol=0, atol=1e-5)
    with pytest.raises(BayesVLMError, match=r"inputs\[1\].*broken\.png"):
        list(vlm.stream(inputs, TEXTS, strict=True, workers=workers))


def test_a_batch_of_nothing_but_damage_has_no_rows(vlm: BayesVLM) -> None:
    with pytest.warns(BayesVLMWarning):
        (prediction,) = vlm.stream([b"no image", b"nor this"], TEXTS)
    assert len(prediction) == 0
    assert prediction.probs.shape == (0, 6)
    assert set(prediction.unreadable) == {0, 1}
    assert prediction.entropy.shape == (0,)


def test_an_iterable_is_not_read_far_ahead(vlm: BayesVLM, paths: list[Path]) -> None:
    """Memory does not depend on the number of inputs: an endless iterable is fine."""
    taken = 0

    def endless() -> Iterator[Path]:
        nonlocal taken
        while True:
            taken += 1
            yield paths[taken % 11]

    stream = vlm.stream(endless(), TEXTS, batch_size=4, workers=0)
    for _ in range(5):
        assert len(next(stream)) == 4
    assert taken <= 60
    stream.close()  # type: ignore[attr-defined]


def test_mistakes_are_said_before_anything_is_read(vlm: BayesVLM, paths: list[Path]) -> None:
    with pytest.raises(BayesVLMError, match="class list is empty"):
        vlm.stream(paths, [])
    with pytest.raises(BayesVLMError, match="batch_size is 0"):
        next(iter(vlm.stream(paths, TEXTS, batch_size=0)))
    with pytest.raises(BayesVLMError, match="predicts no variances"):
        vlm.stream(paths, TEXTS, method="native")
    bare = BayesVLM.from_projections(torch.ones(4, 3), torch.ones(4, 2), 2.0)
    with pytest.raises(BayesVLMError, match="no posterior yet"):
        next(iter(bare.stream(Features(torch.ones(2, 3)), Features(torch.ones(2, 2)))))


def test_a_dataset_ends_at_its_length(vlm: BayesVLM, paths: list[Path]) -> None:
    """One that is indexed beyond its length, as some are, is not read beyond it."""

    class Wrapping:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Path:
            return paths[index % 4]

    probs, places, _ = joined(vlm.stream(Wrapping(), TEXTS, batch_size=3))
    assert places == [0, 1, 2, 3]
    torch.testing.assert_close(probs, vlm.classify(paths[:4], TEXTS).probs, rtol=0, atol=1e-5)


def test_a_fit_meanwhile_does_not_change_the_rest_of_a_stream(vlm: BayesVLM, paths: list[Path]) -> None:
    own = vlm.copy()
    stream = own.stream(paths, TEXTS, batch_size=4)
    first = next(stream).probs
    own.fit([([picture(seed) for seed in range(100, 140)], [TEXTS[seed % 6] for seed in range(40)])], progress=False)
    probs = torch.cat([first, *(each.probs for each in stream)])
    torch.testing.assert_close(probs, vlm.classify(paths, TEXTS).probs, rtol=0, atol=1e-5)


def test_nothing_is_encoded_without_a_posterior(vlm: BayesVLM, monkeypatch: pytest.MonkeyPatch) -> None:
    assert vlm.adapter is not None
    monkeypatch.setattr(type(vlm.adapter), "forward_pixels", lambda *_: pytest.fail("encoded"))
    with pytest.raises(BayesVLMError, match="no posterior yet"):
        vlm.without_posterior().classify([picture(0)], TEXTS)


def test_ready_pixels_are_fitted_on(vlm: BayesVLM) -> None:
    assert vlm.adapter is not None
    images, texts = [picture(seed) for seed in range(60)], [TEXTS[seed % 6] for seed in range(60)]
    ready = vlm.adapter.preprocessor.to_pixels([vlm.read_image(image) for image in images])
    fitted = vlm.without_posterior().fit([(ready, texts)], progress=False)
    expected = vlm.without_posterior().fit([(images, texts)], progress=False)
    torch.testing.assert_close(fitted.factors["image"].A, expected.factors["image"].A, rtol=1e-5, atol=1e-5)
