"""The files beside the weights, as the published repositories of each family lay them out: tokenizer and pixels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

CLIP_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
GEMMA_LETTERS = "▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,'-"
CLIP_MEAN, CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]


def save_clip_pixels(folder: Path, size: int) -> None:
    """preprocessor_config.json, as in `openai/clip-vit-base-patch32`."""
    write_json(
        folder / "preprocessor_config.json",
        {
            "image_processor_type": "CLIPImageProcessor",
            "do_resize": True,
            "size": {"shortest_edge": size},
            "resample": 3,
            "do_center_crop": True,
            "crop_size": {"height": size, "width": size},
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": CLIP_MEAN,
            "image_std": CLIP_STD,
            "do_convert_rgb": True,
        },
    )


def save_siglip_pixels(folder: Path, family: str, size: dict[str, Any]) -> None:
    """preprocessor_config.json of a "Siglip" or "Siglip2", whose sizes are given differently."""
    write_json(
        folder / "preprocessor_config.json",
        {
            "image_processor_type": f"{family}ImageProcessor",
            "processor_class": f"{family}Processor",
            "do_resize": True,
            "resample": 2,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "do_convert_rgb": True,
        }
        | size,
    )


def clip_tokenizer(vocabulary: dict[str, int], merges: Sequence[tuple[str, str]]) -> Tokenizer:
    """CLIP's byte-level BPE: lower case, words of letters, single digits, runs of the rest."""
    unknown = "<|endoftext|>"
    tokenizer = Tokenizer(
        models.BPE(vocabulary, list(merges), end_of_word_suffix="</w>", continuing_subword_prefix="", unk_token=unknown)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(CLIP_WORDS), "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def save_clip_tokenizer(folder: Path, merges: Sequence[tuple[str, str]], context: int) -> dict[str, int]:
    """vocab.json, merges.txt, tokenizer.json and the two configurations, for any text; returns the vocabulary."""
    start, end = "<|startoftext|>", "<|endoftext|>"
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = symbols + [symbol + "</w>" for symbol in symbols] + [left + right for left, right in merges]
    vocabulary = {token: index for index, token in enumerate([*tokens, start, end])}
    tokenizer = clip_tokenizer(vocabulary, merges)
    tokenizer.post_processor = processors.RobertaProcessing(
        (end, vocabulary[end]), (start, vocabulary[start]), trim_offsets=False, add_prefix_space=False
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=True) for token in (start, end)])
    special = {"bos_token": start, "eos_token": end, "pad_token": end, "unk_token": end}
    write_json(folder / "vocab.json", vocabulary)
    (folder / "merges.txt").write_text(
        "\n".join(["#version: 0.2", *(" ".join(pair) for pair in merges), ""]), encoding="utf-8"
    )
    settings = {"tokenizer_class": "CLIPTokenizer", "model_max_length": context, "processor_class": "CLIPProcessor"}
    _save_tokenizer(tokenizer, folder, special, settings)
    return vocabulary


def save_gemma_tokenizer(
    folder: Path, merges: Sequence[tuple[str, str]], context: int, processor: str
) -> dict[str, int]:
    """tokenizer.json and the two configurations, as in `google/siglip2-base-patch16-224`: BPE, or bytes.

    Returns:
        the vocabulary.
    """
    special = {f"{name}_token": f"<{name}>" for name in ("pad", "eos", "bos", "unk", "mask")}
    tokens = [*special.values(), *(f"<0x{byte:02X}>" for byte in range(256)), *GEMMA_LETTERS]
    tokens += [left + right for left, right in merges]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, list(merges), unk_token="<unk>", fuse_unk=True, byte_fallback=True))
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
        "model_max_length": context,
        "padding_side": "right",
        "processor_class": processor,
    }
    _save_tokenizer(tokenizer, folder, special, settings)
    return vocabulary


def write_json(path: Path, content: dict[str, Any]) -> None:
    """A json file as people read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _save_tokenizer(tokenizer: Tokenizer, folder: Path, special: dict[str, str], settings: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", special | settings)
    write_json(folder / "special_tokens_map.json", special)
