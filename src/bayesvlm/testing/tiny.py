"""Tiny random checkpoints in the published layout: for tests, demonstrations and people who write adapters.

Each folder holds what a Hub repository of the family holds, so `transformers.AutoModel` and `AutoProcessor` load it.
The weights are noise, biases and layer norms included, so that no part of the model can be left out unnoticed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import (
    CLIPConfig,
    CLIPModel,
    Siglip2Config,
    Siglip2Model,
    SiglipConfig,
    SiglipModel,
)

from bayesvlm.models.layout import save_clip_pixels, save_clip_tokenizer, save_gemma_tokenizer, save_siglip_pixels
from bayesvlm.models.quiet import quiet

VIT_B_32 = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "patch_size": 32,
}
"""The shape of OpenAI's CLIP ViT-B/32, for 224 pixels."""

_CONTEXT = 24
_TRANSFORMER = {"num_hidden_layers": 2, "num_attention_heads": 4}
_CLIP_MERGES = [("p", "h"), ("ph", "o"), ("t", "o</w>"), ("pho", "to</w>"), ("o", "f</w>"), ("a", "n</w>")]
_GEMMA_MERGES = [("p", "h"), ("ph", "o"), ("t", "o"), ("pho", "to"), ("o", "f"), ("▁", "a")]


@quiet()
def save_tiny_clip(
    folder: str | Path,
    seed: int = 0,
    image_size: int = 32,
    vision: Mapping[str, int] | None = None,
    projection_dim: int = 24,
) -> Path:
    """A CLIP of 4 x 4 patches, with a byte-level BPE tokenizer that can write any text; returns the folder.

    Args:
        vision: of the vision tower's configuration, for one of another shape: `VIT_B_32` is as large as published ones.
        projection_dim: d.
    """
    folder = Path(folder)
    vocabulary = save_clip_tokenizer(folder, _CLIP_MERGES, _CONTEXT)
    text = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "max_position_embeddings": _CONTEXT,
        "vocab_size": len(vocabulary),
    }
    start, end = vocabulary["<|startoftext|>"], vocabulary["<|endoftext|>"]
    tower = {"hidden_size": 48, "intermediate_size": 96, "image_size": image_size, "patch_size": image_size // 4}
    config = CLIPConfig(
        text_config=text | _TRANSFORMER | {"bos_token_id": start, "eos_token_id": end, "pad_token_id": end},
        vision_config=tower | _TRANSFORMER | dict(vision or {}),
        projection_dim=projection_dim,
    )
    _save_random(CLIPModel, config, folder, seed, logit_scale=math.log(100))
    save_clip_pixels(folder, size=image_size)
    return folder


@quiet()
def save_tiny_siglip(folder: str | Path, seed: int = 0) -> Path:
    """A SigLIP of 32-pixel images with a Gemma tokenizer, as SigLIP 2 is published at a fixed resolution."""
    folder = Path(folder)
    vision = {"hidden_size": 32, "intermediate_size": 80, "image_size": 32, "patch_size": 8}
    config = SiglipConfig(
        text_config=_siglip_text(save_gemma_tokenizer(folder, _GEMMA_MERGES, _CONTEXT, "SiglipProcessor")),
        vision_config=vision | _TRANSFORMER,
    )
    _save_random(SiglipModel, config, folder, seed, logit_scale=math.log(110), logit_bias=-12.9)
    save_siglip_pixels(folder, "Siglip", {"size": {"height": 32, "width": 32}})
    return folder


@quiet()
def save_tiny_siglip2(folder: str | Path, seed: int = 0) -> Path:
    """A SigLIP 2 NaFlex: up to 16 patches of 16 pixels, in the aspect ratio of the image."""
    folder = Path(folder)
    vision = {"hidden_size": 32, "intermediate_size": 80, "num_patches": 16, "patch_size": 16}
    config = Siglip2Config(
        text_config=_siglip_text(save_gemma_tokenizer(folder, _GEMMA_MERGES, _CONTEXT, "Siglip2Processor")),
        vision_config=vision | _TRANSFORMER,
    )
    _save_random(Siglip2Model, config, folder, seed, logit_scale=math.log(110), logit_bias=-16.5)
    save_siglip_pixels(folder, "Siglip2", {"patch_size": 16, "max_num_patches": 16})
    return folder


def _siglip_text(vocabulary: dict[str, int]) -> dict[str, Any]:
    widths = {"hidden_size": 48, "intermediate_size": 64, "projection_size": 32, "max_position_embeddings": _CONTEXT}
    special = {
        "bos_token_id": vocabulary["<bos>"],
        "eos_token_id": vocabulary["<eos>"],
        "pad_token_id": vocabulary["<pad>"],
    }
    return widths | _TRANSFORMER | special | {"vocab_size": len(vocabulary)}


@torch.no_grad()
def _save_random(family: Any, config: Any, folder: Path, seed: int, **scalars: float) -> None:
    """Fill every parameter from a generator, in the order of the names, and save as safetensors."""
    with torch.random.fork_rng(devices=[]):  # the family draws weights of its own, which are then overwritten
        model = family(config)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        if name in scalars:
            parameter.fill_(scalars[name])
            continue
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim > 1:
            parameter.copy_(noise / math.sqrt(parameter[0].numel()))
        else:
            centre = 1.0 if name.endswith("weight") else 0.0  # the gain of a layer norm, or a bias
            parameter.copy_(centre + 0.2 * noise)
    model.save_pretrained(folder)
