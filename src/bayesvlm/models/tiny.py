"""Tiny random checkpoints in the published layout: for tests, demonstrations and people who write adapters.

Each folder holds what a Hub repository of the family holds, so `transformers.AutoModel` and `AutoProcessor` load it.
The weights are noise, biases and layer norms included, so that no part of the model can be left out unnoticed.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    CLIPConfig,
    CLIPModel,
    Siglip2Config,
    Siglip2Model,
    SiglipConfig,
    SiglipModel,
)

from bayesvlm.models.quiet import quiet

_TRANSFORMER = {"num_hidden_layers": 2, "num_attention_heads": 4}
_CLIP_MEAN, _CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]


@quiet()
def save_tiny_clip(folder: str | Path, seed: int = 0) -> Path:
    """A CLIP of 32-pixel images, with a byte-level BPE tokenizer that can write any text; returns the folder."""
    folder = Path(folder)
    vocabulary = _save_clip_tokenizer(folder)
    text = {"hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 24, "vocab_size": len(vocabulary)}
    start, end = vocabulary["<|startoftext|>"], vocabulary["<|endoftext|>"]
    vision = {"hidden_size": 48, "intermediate_size": 96, "image_size": 32, "patch_size": 8}
    config = CLIPConfig(
        text_config=text | _TRANSFORMER | {"bos_token_id": start, "eos_token_id": end, "pad_token_id": end},
        vision_config=vision | _TRANSFORMER,
        projection_dim=24,
    )
    _save_random(CLIPModel, config, folder, seed, logit_scale=math.log(100))
    _write(
        folder / "preprocessor_config.json",
        {
            "image_processor_type": "CLIPImageProcessor",
            "do_resize": True,
            "size": {"shortest_edge": 32},
            "resample": 3,
            "do_center_crop": True,
            "crop_size": {"height": 32, "width": 32},
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": _CLIP_MEAN,
            "image_std": _CLIP_STD,
            "do_convert_rgb": True,
        },
    )
    return folder


@quiet()
def save_tiny_siglip(folder: str | Path, seed: int = 0) -> Path:
    """A SigLIP of 32-pixel images with a Gemma tokenizer, as SigLIP 2 is published at a fixed resolution."""
    folder = Path(folder)
    vision = {"hidden_size": 32, "intermediate_size": 80, "image_size": 32, "patch_size": 8}
    config = SiglipConfig(
        text_config=_siglip_text(_save_gemma_tokenizer(folder, "SiglipProcessor")), vision_config=vision | _TRANSFORMER
    )
    _save_random(SiglipModel, config, folder, seed, logit_scale=math.log(110), logit_bias=-12.9)
    _write(
        folder / "preprocessor_config.json",
        _siglip_pixels("SiglipImageProcessor")
        | {"size": {"height": 32, "width": 32}, "processor_class": "SiglipProcessor"},
    )
    return folder


@quiet()
def save_tiny_siglip2(folder: str | Path, seed: int = 0) -> Path:
    """A SigLIP 2 NaFlex: up to 16 patches of 16 pixels, in the aspect ratio of the image."""
    folder = Path(folder)
    vision = {"hidden_size": 32, "intermediate_size": 80, "num_patches": 16, "patch_size": 16}
    config = Siglip2Config(
        text_config=_siglip_text(_save_gemma_tokenizer(folder, "Siglip2Processor")), vision_config=vision | _TRANSFORMER
    )
    _save_random(Siglip2Model, config, folder, seed, logit_scale=math.log(110), logit_bias=-16.5)
    _write(
        folder / "preprocessor_config.json",
        _siglip_pixels("Siglip2ImageProcessor")
        | {"patch_size": 16, "max_num_patches": 16, "processor_class": "Siglip2Processor"},
    )
    return folder


def _siglip_text(vocabulary: dict[str, int]) -> dict[str, Any]:
    widths = {"hidden_size": 48, "intermediate_size": 64, "projection_size": 32, "max_position_embeddings": 24}
    special = {
        "bos_token_id": vocabulary["<bos>"],
        "eos_token_id": vocabulary["<eos>"],
        "pad_token_id": vocabulary["<pad>"],
    }
    return widths | _TRANSFORMER | special | {"vocab_size": len(vocabulary)}


def _siglip_pixels(image_processor: str) -> dict[str, Any]:
    return {
        "image_processor_type": image_processor,
        "do_resize": True,
        "resample": 2,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "do_convert_rgb": True,
    }


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


def _save_clip_tokenizer(folder: Path) -> dict[str, int]:
    """vocab.json, merges.txt, tokenizer.json and the two configurations, as in `openai/clip-vit-base-patch32`."""
    merges = [("p", "h"), ("ph", "o"), ("t", "o</w>"), ("pho", "to</w>"), ("o", "f</w>"), ("a", "n</w>")]
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = symbols + [symbol + "</w>" for symbol in symbols] + [left + right for left, right in merges]
    vocabulary = {token: index for index, token in enumerate([*tokens, "<|startoftext|>", "<|endoftext|>"])}
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary, merges, end_of_word_suffix="</w>", continuing_subword_prefix="", unk_token="<|endoftext|>"
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    words = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(words), "removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    start, end = "<|startoftext|>", "<|endoftext|>"
    tokenizer.post_processor = processors.RobertaProcessing(
        (end, vocabulary[end]), (start, vocabulary[start]), trim_offsets=False, add_prefix_space=False
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=True) for token in (start, end)])
    special = {"bos_token": start, "eos_token": end, "pad_token": end, "unk_token": end}
    _write(folder / "vocab.json", vocabulary)
    (folder / "merges.txt").write_text(
        "\n".join(["#version: 0.2", *(" ".join(pair) for pair in merges), ""]), encoding="utf-8"
    )
    settings = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 24, "processor_class": "CLIPProcessor"}
    _save_tokenizer(tokenizer, folder, special, settings)
    return vocabulary


def _save_gemma_tokenizer(folder: Path, processor: str) -> dict[str, int]:
    """tokenizer.json and the two configurations, as in `google/siglip2-base-patch16-224`: BPE, or bytes."""
    special = {f"{name}_token": f"<{name}>" for name in ("pad", "eos", "bos", "unk", "mask")}
    merges = [("p", "h"), ("ph", "o"), ("t", "o"), ("pho", "to"), ("o", "f"), ("▁", "a")]
    letters = [*"▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,'-"]
    tokens = [*special.values(), *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    tokens += [left + right for left, right in merges]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <eos>", pair="$A <eos> $B:1 <eos>:1", special_tokens=[("<eos>", vocabulary["<eos>"])]
    )
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special.values()])
    settings = {
        "tokenizer_class": "GemmaTokenizer",
        "add_bos_token": False,
        "add_eos_token": True,
        "do_lower_case": True,  # published so, and ignored by the tokenizer
        "model_input_names": ["input_ids"],
        "model_max_length": 24,
        "padding_side": "right",
        "processor_class": processor,
    }
    _save_tokenizer(tokenizer, folder, special, settings)
    return vocabulary


def _save_tokenizer(tokenizer: Tokenizer, folder: Path, special: dict[str, str], settings: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(folder / "tokenizer_config.json", special | settings)
    _write(folder / "special_tokens_map.json", special)


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
