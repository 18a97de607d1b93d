"""The probabilistic sibling: an untrained ProLIP in the published layout, and the loss it is trained with."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from bayesvlm.models.probabilistic import ProLIP, csd
from bayesvlm.models.probabilistic.configuration import read_entries
from bayesvlm.models.probabilistic.prolip import read_prolip

LOG_VARIANCE = -6.0  # at first; published models start at -10, for embeddings four times as wide


def make(folder: Path, vision: dict, text: dict, width: int, depth: int) -> ProLIP:
    """A model with random weights, its config.json written.

    Args:
        vision, text: sections of config.json, without what every ProLIP has.
        width: of the embedding.
        depth: blocks of the deeper tower, to scale the first weights.
    """
    vision = {**vision, "embed_unc": True, "init_unc_bias": LOG_VARIANCE}
    text = {**text, "embed_cls": True, "embed_unc": True, "no_causal_mask": True, "proj_bias": True}
    text |= {"init_unc_bias": LOG_VARIANCE, "tokenizer_kwargs": {"clean": "canonicalize"}}
    config = {"embed_dim": width, "vision_cfg": vision, "text_cfg": text}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    model = ProLIP(read_prolip(read_entries(folder)))
    for name, weight in model.named_parameters():
        if name.endswith(("ln_1.weight", "ln_2.weight", "ln_pre.weight", "ln_post.weight", "ln_final.weight")):
            nn.init.ones_(weight)
        elif name.endswith("bias"):
            nn.init.zeros_(weight)
        else:
            deep = name.endswith(("out_proj.weight", "c_proj.weight"))
            nn.init.normal_(weight, std=0.02 / math.sqrt(2 * depth) if deep else 0.02)
    for head in (model.visual.uncertainty_proj, model.text.text_uncertainty_projection):
        nn.init.constant_(head.bias, LOG_VARIANCE)
    nn.init.normal_(model.visual.proj, std=width**-0.5)
    nn.init.constant_(model.logit_scale, math.log(10))
    nn.init.constant_(model.logit_bias, -10.0)
    return model


def save(model: ProLIP, folder: Path) -> None:
    """model.safetensors, in half precision."""
    weights = {name: weight.half().cpu().contiguous() for name, weight in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def loss(model: ProLIP, pixels: Tensor, ids: Tensor, bottleneck: float) -> Tensor:
    """ProLIP's probabilistic pairwise contrastive loss: sigmoids of CSD over all pairs, for each image.

    Args:
        bottleneck: weight of the divergence of every embedding from N(0, I), which keeps variances from vanishing.
    """
    with torch.autocast("cuda", torch.bfloat16):
        outputs = model.visual(pixels), model.text(ids)
    (image, image_log), (text, text_log) = ((mean.float(), log.float()) for mean, log in outputs)
    image, text = F.normalize(image, dim=1), F.normalize(text, dim=1)
    logits = csd(image, image_log.exp(), text, text_log.exp(), model.logit_scale.exp(), model.logit_bias)
    sign = 2 * torch.eye(len(logits), device=logits.device) - 1
    pairs = -F.logsigmoid(sign * logits).sum() / len(logits)
    spread = sum((log.exp() - log - 1).sum(dim=1).mean() / 2 for log in (image_log, text_log))
    return pairs + bottleneck * spread
