"""Tiny models of open_clip with random weights, one of each kind of tower."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

VIT = {"image_size": 32, "patch_size": 8, "width": 48, "head_width": 12, "layers": 2, "mlp_ratio": 2}
RESNET = {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8, "head_width": 32}
TEXT = {"context_length": 24, "vocab_size": 49408, "width": 32, "heads": 4, "layers": 2}
SIGLIP_TEXT = TEXT | {"no_causal_mask": True, "proj_bias": True, "pool_type": "last"}
BIAS = {"init_logit_bias": -10}
COCA = {"context_length": 24, "vocab_size": 49408, "width": 32, "heads": 4, "layers": 1, "attn_pooler_heads": 4}
COCA_TEXT = TEXT | {"embed_cls": True, "output_tokens": True}
COCA_IMAGE = VIT | {"attentional_pool": True, "attn_pooler_heads": 4, "attn_pooler_queries": 5, "output_tokens": True}


def timm(model: str, pool: str, projection: str | None, **more: object) -> dict[str, Any]:
    return {"image_size": 160, "timm_model_name": model, "timm_pool": pool, "timm_proj": projection, **more}


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "vit": {"embed_dim": 24, "vision_cfg": VIT, "text_cfg": TEXT},
    "vit-pooled": {"embed_dim": 24, "vision_cfg": VIT | {"pool_type": "avg"}, "text_cfg": TEXT, "quick_gelu": True},
    "resnet": {"embed_dim": 24, "vision_cfg": RESNET, "text_cfg": TEXT},
    "custom-text": {"embed_dim": 24, "vision_cfg": VIT, "text_cfg": TEXT, "custom_text": True},
    "text-bias": {"embed_dim": 24, "vision_cfg": VIT, "text_cfg": TEXT | {"proj_bias": True}},
    "coca": {
        "embed_dim": 24,
        "vision_cfg": COCA_IMAGE,
        "text_cfg": COCA_TEXT,
        "multimodal_cfg": COCA,
        "custom_text": True,
    },
    # As ViT-B-16-SigLIP: attention pooling and no projection after it, so that the last layer has a residual.
    "siglip": {
        "embed_dim": 96,
        "vision_cfg": timm("test_vit3", "map", "none"),
        "text_cfg": SIGLIP_TEXT,
        "custom_text": True,
        **BIAS,
    },
    "siglip-vit": {"embed_dim": 24, "vision_cfg": VIT, "text_cfg": SIGLIP_TEXT, **BIAS},
    "timm-linear": {"embed_dim": 24, "vision_cfg": timm("test_vit", "", "linear"), "text_cfg": TEXT},
    "timm-mlp": {"embed_dim": 24, "vision_cfg": timm("test_vit", "avg", "mlp", timm_proj_bias=True), "text_cfg": TEXT},
    # As MobileCLIP and EVA: the classifier of the timm model is the projection.
    "timm-classifier": {"embed_dim": 24, "vision_cfg": timm("test_convnext", "avg", None), "text_cfg": TEXT},
    "mobileclip": {
        "embed_dim": 24,
        "vision_cfg": timm("fastvit_mci0", "avg", None, image_size=64),
        "text_cfg": TEXT | {"no_causal_mask": True},
        "custom_text": True,
    },
}
PIXELS: dict[str, dict[str, Any]] = {
    "siglip": {"mean": 0.5, "std": 0.5, "resize_mode": "squash"},
    "vit-pooled": {"interpolation": "bilinear", "resize_mode": "longest", "fill_color": 99},
}


@torch.no_grad()
def save_tiny(folder: Path, configuration: dict[str, Any], pixels: dict[str, Any] | None = None) -> Path:
    """A folder in the layout of open_clip's Hub repositories; every weight is noise, so that none can be left out."""
    from open_clip.coca_model import CoCa
    from open_clip.model import CLIP, CustomTextCLIP

    built = dict(configuration)
    custom = built.pop("custom_text", False) or "hf_model_name" in built["text_cfg"]
    model = (CoCa if "multimodal_cfg" in built else CustomTextCLIP if custom else CLIP)(**built)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if name in ("logit_scale", "logit_bias"):
            parameter.fill_(math.log(100) if name == "logit_scale" else -12.5)
        elif parameter.ndim > 1:
            parameter.copy_(noise / math.sqrt(parameter[0].numel()))
        else:
            parameter.copy_((1.0 if name.endswith("weight") else 0.0) + 0.2 * noise)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {key: value.contiguous() for key, value in model.state_dict().items()}, folder / "open_clip_model.safetensors"
    )
    (folder / "open_clip_config.json").write_text(
        json.dumps({"model_cfg": configuration, "preprocess_cfg": pixels or {}})
    )
    return folder


def save_hf_text(root: Path) -> Path:
    """A CustomTextCLIP whose text tower is a BERT of transformers, with the tokenizer in the folder."""
    from transformers import BertConfig

    from bayesvlm.models.layout import save_clip_tokenizer

    folder = root / "hf-text"
    vocabulary = save_clip_tokenizer(folder, [("p", "h"), ("ph", "o")], 24)
    BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        pad_token_id=vocabulary["<|endoftext|>"],
    ).save_pretrained(root / "bert")
    text = {
        "hf_model_name": str(root / "bert"),
        "hf_tokenizer_name": "somebody/bert",
        "hf_proj_type": "mlp",
        "hf_pooler_type": "mean_pooler",
        "hf_model_pretrained": False,
        "context_length": 24,
    }
    return save_tiny(folder, {"embed_dim": 24, "vision_cfg": VIT, "text_cfg": text})
