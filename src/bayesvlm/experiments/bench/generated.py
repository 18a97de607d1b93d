"""What benchmarks work on, made on the spot: embeddings, JPEG files, shards of pairs, encoders with random weights."""

from __future__ import annotations

import io
import json
import math
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional
from transformers import CLIPConfig, CLIPModel

from bayesvlm.models.layout import save_clip_pixels, save_clip_tokenizer
from bayesvlm.models.quiet import quiet

SIDE = 256  # pixels, as img2dataset stores images by itself
DISTINCT = 500  # pictures; after them the same ones come again
_WORDS = ("a", "photo", "of", "the", "red", "old", "small", "house", "dog", "boat", "near", "water", "at", "night")

MODELS: dict[str, dict[str, Any]] = {
    "ViT-B/32": {},  # what transformers' configuration has by itself: OpenAI's CLIP of that name
    "ViT-Ti/32": {
        "vision_config": {"hidden_size": 192, "intermediate_size": 768, "num_attention_heads": 3, "patch_size": 32},
        "text_config": {"hidden_size": 192, "intermediate_size": 768, "num_attention_heads": 3},
        "projection_dim": 192,
    },
    "tiny": {
        "vision_config": {
            "hidden_size": 48, "intermediate_size": 96, "num_attention_heads": 4, "num_hidden_layers": 2,
            "image_size": 32, "patch_size": 8,
        },
        "text_config": {
            "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
            "vocab_size": 600,
        },
        "projection_dim": 24,
    },
}  # fmt: skip
"""Shapes of CLIPs by the name of their image tower; the last one is for runs that only see whether everything works."""


def clip_like(
    rows: int, d: int, match: float = 0.30, rest: float = 0.12, decay: float = 0.0, seed: int = 0
) -> tuple[Tensor, Tensor]:  # [rows, d], [rows, d]
    """Image and text embeddings of norm about 10 with the cosines of a real CLIP; row i of one matches row i of the
    other: matches about 0.30, everything else 0.12 +- 0.04.

    With a `decay` above zero, coordinate k is k^-decay as large as the first: few directions carry most of the content,
    as in real models, and cosines of different pairs spread more.
    """
    generator = torch.Generator().manual_seed(seed)
    shared = math.sqrt(rest)  # both modalities have this component along one common direction
    own = math.sqrt(1 - rest)
    agreement = (match - rest) / (1 - rest)
    sizes = torch.arange(1, d, dtype=torch.float32) ** -decay
    text = _unit(sizes * torch.randn(rows, d - 1, generator=generator))
    noise = _unit(sizes * torch.randn(rows, d - 1, generator=generator))
    image = _unit(agreement * text + math.sqrt(1 - agreement**2) * noise)
    common = torch.full((rows, 1), shared)
    norms = 10 + torch.randn(2, rows, 1, generator=generator)
    return norms[0] * torch.cat([common, own * image], dim=1), norms[1] * torch.cat([common, own * text], dim=1)


def _unit(rows: Tensor) -> Tensor:
    return functional.normalize(rows, dim=1)


# Images ---------------------------------------------------------------------------------------------------------------


def clouds(seed: int, side: int = SIDE) -> Image.Image:
    """Noise of every size, larger where it is coarser, as in photographs: a JPEG of it takes as long to decode."""
    generator = np.random.default_rng(seed)
    pixels = np.full((side, side, 3), 128.0)
    for octave in range(1, int(math.log2(side)) + 1):
        noise = generator.integers(0, 256, (2**octave, 2**octave, 3), dtype=np.uint8)
        layer = Image.fromarray(noise).resize((side, side), Image.Resampling.BICUBIC)
        pixels += (np.asarray(layer) - 127.5) * 0.6**octave * 1.5
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def jpegs(count: int, distinct: int = DISTINCT) -> Iterator[bytes]:
    """Files of clouds, the first `distinct` ones all different."""
    made: list[bytes] = []
    for number in range(count):
        if number < distinct:
            file = io.BytesIO()
            clouds(number).save(file, "JPEG", quality=90)
            made.append(file.getvalue())
        yield made[number % distinct]


def make_images(folder: Path, count: int, distinct: int = DISTINCT) -> list[Path]:
    """JPEG files; further ones are links to the first `distinct`, and read like any other."""
    folder.mkdir(parents=True)
    paths = [folder / f"{number:06d}.jpg" for number in range(count)]
    for path, content in zip(paths, jpegs(min(count, distinct), distinct), strict=False):
        path.write_bytes(content)
    for number in range(distinct, count):
        paths[number].hardlink_to(paths[number % distinct])
    return paths


# Pairs ----------------------------------------------------------------------------------------------------------------


def caption(number: int, words: int = 4) -> str:
    """A line of plain words, another one for every number: about 25 tokens, as nothing is merged in `save_random`."""
    random = np.random.default_rng(number)
    return " ".join([*random.choice(_WORDS, words), f"number {number}"])


def make_shards(folder: Path, pairs: int, per_shard: int = 1000, distinct: int = DISTINCT) -> Path:
    """Tar files as img2dataset writes them: KEY.jpg, KEY.txt, KEY.json, and NNNNN_stats.json beside each."""
    folder.mkdir(parents=True)
    images = jpegs(pairs, distinct)
    for shard, start in enumerate(range(0, pairs, per_shard)):
        numbers = range(start, min(start + per_shard, pairs))
        with tarfile.open(folder / f"{shard:05d}.tar", "w") as archive:
            for number in numbers:
                key, text = f"{shard:05d}{number - start:04d}", caption(number)
                _add(archive, f"{key}.jpg", next(images))
                _add(archive, f"{key}.txt", text.encode())
                _add(archive, f"{key}.json", json.dumps({"caption": text, "key": key, "status": "success"}).encode())
        (folder / f"{shard:05d}_stats.json").write_text(json.dumps({"count": len(numbers), "successes": len(numbers)}))
    return folder


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


# Encoders -------------------------------------------------------------------------------------------------------------


@quiet()
def save_random(folder: Path, shape: str | Mapping[str, Any]) -> Path:
    """A CLIP with random weights as a folder that loads: of a shape in `MODELS`, or with these parts of its
    configuration."""
    config: Any = CLIPConfig(**(MODELS[shape] if isinstance(shape, str) else dict(shape)))
    vocabulary = save_clip_tokenizer(folder, [], config.text_config.max_position_embeddings)
    end = vocabulary["<|endoftext|>"]
    config.text_config.bos_token_id = vocabulary["<|startoftext|>"]
    config.text_config.eos_token_id = config.text_config.pad_token_id = end
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        CLIPModel(config).save_pretrained(folder)
    save_clip_pixels(folder, size=config.vision_config.image_size)
    return folder
