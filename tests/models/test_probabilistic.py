"""What ProLIP and PCME++ share: how images and texts reach them, and how a folder tells which it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.models.layout import CLIP_MEAN, CLIP_STD, save_clip_tokenizer, save_gemma_tokenizer
from bayesvlm.models.probabilistic import csd, load_tokeniser, pcmepp_score, probabilistic_family, to_pixels, tokens
from bayesvlm.models.probabilistic.configuration import Configuration, TokenSource, TowerShape

_MERGES = [("p", "h"), ("ph", "o"), ("t", "o</w>"), ("pho", "to</w>"), ("o", "f</w>")]


def configuration(vocab_size: int, source: TokenSource, context: int = 12) -> Configuration:
    tower = TowerShape(width=8, layers=1, heads=1, mlp_ratio=4.0)
    return Configuration(8, False, tower, 32, 16, tower, context, vocab_size, source)


@pytest.fixture
def clip(tmp_path: Path) -> tuple[Path, dict[str, int]]:
    """A folder with a CLIP tokenizer, and its vocabulary."""
    return tmp_path, save_clip_tokenizer(tmp_path, _MERGES, 77)


def by_hand(image: Image.Image, size: int) -> torch.Tensor:  # [3, size, size]
    """CLIP's preprocessing in words: shorter side to `size`, the middle square, mean and standard deviation."""
    scale = size / min(image.size)
    width, height = (size if side == min(image.size) else int(side * scale) for side in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    square = image.resize((width, height), Image.Resampling.BICUBIC).crop((left, top, left + size, top + size))
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (CLIP_MEAN, CLIP_STD))
    return (torch.from_numpy(np.array(square)).permute(2, 0, 1).float() / 255 - mean) / std


@pytest.mark.parametrize("shape", [(32, 32), (61, 40), (40, 61), (33, 47), (200, 31), (17, 90), (5, 3)])
def test_pixels_are_clips_to_the_bit(shape: tuple[int, int]) -> None:
    generator = np.random.default_rng(0)
    image = Image.fromarray(generator.integers(0, 256, (*shape, 3), dtype=np.uint8))
    found = to_pixels([image, image], 32)
    assert found.shape == (2, 3, 32, 32)
    assert found.dtype == torch.float32
    for row in found:
        assert torch.equal(row, by_hand(image, 32))


def test_clip_texts_end_with_zeros(clip: tuple[Path, dict[str, int]]) -> None:
    folder, vocabulary = clip
    tokenise = load_tokeniser(folder, configuration(len(vocabulary), TokenSource("openai/clip", "lower", True)))
    start, end, photo, of = (vocabulary[token] for token in ("<|startoftext|>", "<|endoftext|>", "photo</w>", "of</w>"))
    found = tokenise(["A  Photo\nOF", "photo " * 20])
    letter = vocabulary["a</w>"]
    assert found.tolist() == [[start, letter, photo, of, end] + [0] * 7, [start, *[photo] * 10, end]]
    assert found.dtype == torch.long


def test_other_texts_end_with_the_tokenizers_own_padding(tmp_path: Path) -> None:
    vocabulary = save_gemma_tokenizer(tmp_path, [("p", "h"), ("ph", "o")], 64, "SiglipProcessor")
    source = TokenSource("timm/ViT-B-16-SigLIP", "canonicalize", zero_padded=False)
    found = load_tokeniser(tmp_path, configuration(len(vocabulary), source))(["Pho-Pho!"])
    pho, pad, end = vocabulary["pho"], vocabulary["<pad>"], vocabulary["<eos>"]
    assert found.tolist() == [[pho, pho, end] + [pad] * 9]


@pytest.mark.parametrize(
    ("cleaning", "expected"),
    [
        ("whitespace", 'A "Dog\'s" day_out & fine, file ABC é'),
        ("lower", 'a "dog\'s" day_out & fine, file abc é'),
        ("canonicalize", "a dogs day out fine file abc é"),
    ],
)
def test_cleaning(cleaning: Any, expected: str) -> None:
    text = " A  \u201cDog\u2019s\u201d\tday_out &amp;amp; fine,\n\ufb01le \uff21\uff22\uff23 e\u0301 "
    assert tokens._CLEANINGS[cleaning](text) == expected


def test_without_a_tokenizer_the_hub_is_asked_for_its_files_alone(
    clip: tuple[Path, dict[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, vocabulary = clip
    asked: dict[str, Any] = {}

    def snapshot_download(repository: str, allow_patterns: list[str]) -> str:
        asked.update(repository=repository, allow_patterns=allow_patterns)
        return str(folder)

    monkeypatch.setattr(tokens, "snapshot_download", snapshot_download)
    config = configuration(len(vocabulary), TokenSource("openai/clip", "lower", True))
    assert load_tokeniser(tmp_path / "empty", config)(["photo"]).shape == (1, 12)
    assert asked["repository"] == "openai/clip"
    assert not any(
        "safetensors" in pattern or "bin" in pattern or "*" in pattern for pattern in asked["allow_patterns"]
    )


@pytest.mark.parametrize(
    ("repository", "message"),
    [
        (
            "timm/ViT-B-16-SigLIP",
            "that of 'timm/ViT-B-16-SigLIP', .* not in the local cache .* copy tokenizer.json .* into the folder",
        ),
        ("no/such/name", "that of 'no/such/name'"),
        (None, "config.json names none in text_cfg.hf_tokenizer_name; copy the files"),
    ],
)
def test_without_a_tokenizer_and_without_the_hub(tmp_path: Path, repository: str | None, message: str) -> None:
    config = configuration(32100, TokenSource(repository, "canonicalize", False))
    with pytest.raises(BayesVLMError, match=message) as caught:
        load_tokeniser(tmp_path, config)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_damaged_tokenizer(clip: tuple[Path, dict[str, int]]) -> None:
    folder, vocabulary = clip
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(BayesVLMError, match=r"could not be loaded .* copy its files again from openai/clip") as caught:
        load_tokeniser(folder, configuration(len(vocabulary), TokenSource("openai/clip", "lower", True)))
    assert "\n" not in str(caught.value)


def test_the_tokenizer_of_another_model(clip: tuple[Path, dict[str, int]]) -> None:
    folder, vocabulary = clip
    tokenise = load_tokeniser(folder, configuration(100, TokenSource("openai/clip", "lower", True)))
    with pytest.raises(BayesVLMError, match=rf"token {len(vocabulary) - 1}, but the model knows only 100 tokens"):
        tokenise(["a"])


@pytest.mark.parametrize(
    "content",
    [
        None,
        "{",
        "[]",
        "{}",
        json.dumps({"model_type": "clip", "vision_config": {}, "text_config": {}}),
        json.dumps({"embed_dim": 512, "vision_cfg": {"layers": 12}, "text_cfg": {"width": 512}}),  # OpenCLIP's own
        json.dumps({"embed_dim": 512, "vision_cfg": "ViT", "text_cfg": {}}),
        json.dumps({"embed_dim": 512, "vision_cfg": {}, "text_cfg": None}),
    ],
)
def test_a_folder_of_neither_family(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    assert probabilistic_family(tmp_path) is None


def test_for_unit_means_the_two_scores_are_one() -> None:
    generator = torch.Generator().manual_seed(0)
    means = [torch.nn.functional.normalize(torch.randn(n, 16, generator=generator), dim=1) for n in (6, 5)]
    variances = [torch.rand(n, 16, generator=generator) for n in (6, 5)]
    pairs = (means[0], variances[0], means[1], variances[1])
    torch.testing.assert_close(pcmepp_score(*pairs, 7.0, 3.0), csd(*pairs, 14.0, 3.0 - 14.0))
