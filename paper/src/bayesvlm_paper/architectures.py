"""The architectures of the paper's models without their weights: what one costs needs none of them.

Sizes and operations are counted on the meta device, where a tensor has a shape and no memory; a random model of the
same shape takes as long as the trained one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import CLIPConfig, CLIPModel, CLIPVisionModel, SiglipConfig, SiglipModel, SiglipVisionModel

from bayesvlm.core.errors import check_choice
from bayesvlm.core.estimation import Loss
from bayesvlm.models.quiet import quiet

Encoder = Callable[[Tensor], tuple[Tensor, Tensor | None]]  # [N, 3, height, width] -> [N, p] and a residual [N, d]


@dataclass(frozen=True)
class Architecture:
    """A model's shape.

    Args:
        model: the id under which it is loaded here.
        hub: its repository on the Hugging Face Hub.
        config: makes its configuration, a `CLIPConfig` or `SiglipConfig`.
    """

    model: str
    hub: str
    config: Callable[[], Any]

    @property
    def loss(self) -> Loss:
        return "sigmoid" if isinstance(self.config(), SiglipConfig) else "infonce"

    @property
    def pixels(self) -> tuple[int, int, int]:
        """An image: channels, height, width."""
        side = int(self.config().vision_config.image_size)
        return 3, side, side

    @property
    def widths(self) -> tuple[int, int, int]:
        """d, and the widths of what enters the last linear layer of the image and of the text tower."""
        config = self.config()
        vision, text = config.vision_config, config.text_config
        if isinstance(config, SiglipConfig):  # the pooling head's second layer
            return vision.hidden_size, vision.intermediate_size, text.hidden_size
        return config.projection_dim, vision.hidden_size, text.hidden_size


def _clip(patch: int, d: int, vision: tuple[int, int, int], text: tuple[int, int, int]) -> CLIPConfig:
    """A CLIP as OpenCLIP makes it, without the quick GELU: (width, layers, heads) of each tower."""

    def tower(width: int, layers: int, heads: int) -> dict[str, Any]:
        return {
            "hidden_size": width,
            "intermediate_size": 4 * width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "hidden_act": "gelu",
            "projection_dim": d,
        }

    return CLIPConfig(
        text_config=tower(*text) | {"vocab_size": 49408, "max_position_embeddings": 77},
        vision_config=tower(*vision) | {"image_size": 224, "patch_size": patch},
        projection_dim=d,
    )


def _siglip() -> SiglipConfig:
    """SigLIP-B/16 at 224 pixels."""
    tower = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
    special = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 1}
    return SiglipConfig(
        text_config=tower | special | {"vocab_size": 32000, "max_position_embeddings": 64, "projection_size": 768},
        vision_config=tower | {"image_size": 224, "patch_size": 16},
    )


ARCHITECTURES: dict[str, Architecture] = {
    "CLIP-Base": Architecture(
        "open_clip:ViT-B-32/laion2b_s34b_b79k",
        "laion/CLIP-ViT-B-32-laion2B-s34B-b79K",
        lambda: _clip(32, 512, (768, 12, 12), (512, 12, 8)),
    ),
    "CLIP-Large": Architecture(
        "open_clip:ViT-L-14/laion2b_s32b_b82k",
        "laion/CLIP-ViT-L-14-laion2B-s32B-b82K",
        lambda: _clip(14, 768, (1024, 24, 16), (768, 12, 12)),
    ),
    "CLIP-Huge": Architecture(
        "open_clip:ViT-H-14/laion2b_s32b_b79k",
        "laion/CLIP-ViT-H-14-laion2B-s32B-b79K",
        lambda: _clip(14, 1024, (1280, 32, 16), (1024, 24, 16)),
    ),
    "SigLIP-Base": Architecture("google/siglip-base-patch16-224", "google/siglip-base-patch16-224", _siglip),
}
"""The paper's name of a model -> its shape."""


def architecture(name: str) -> Architecture:
    """One of `ARCHITECTURES`."""
    check_choice("architecture", name, tuple(ARCHITECTURES))
    return ARCHITECTURES[name]


# Random models -------------------------------------------------------------------------------------------------------


@quiet()
def image_encoder(name: str, device: str | torch.device) -> Encoder:
    """An image tower of random weights, up to what enters its last linear layer, in float32."""
    config = architecture(name).config()
    family = SiglipVisionModel if isinstance(config, SiglipConfig) else CLIPVisionModel
    with torch.device("meta"):
        model: Any = family(config.vision_config)
    if torch.device(device).type != "meta":
        materialise(model, device)
    model.eval().requires_grad_(False)
    if family is CLIPVisionModel:
        return lambda pixels: (model(pixels).pooler_output, None)
    tower = getattr(model, "vision_model", model)  # transformers 4 wraps it once more
    tower.head = UnfinishedPooling(tower.head)
    return lambda pixels: model(pixels).pooler_output


class UnfinishedPooling(nn.Module):
    """SigLIP's attention pooling without its last linear layer, which is the head's to apply.

    Args:
        pooling: `SiglipMultiheadAttentionPoolingHead`.
    """

    def __init__(self, pooling: Any) -> None:
        super().__init__()
        self.pooling = pooling

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:  # [N, L, d] -> [N, p], [N, d]
        """What enters the layer, and the residual that is added to its output."""
        pooling = self.pooling
        residual = pooling.attention(pooling.probe.repeat(len(hidden), 1, 1), hidden, hidden)[0]
        entering = pooling.mlp.activation_fn(pooling.mlp.fc1(pooling.layernorm(residual)))
        return entering[:, 0], residual[:, 0]


@torch.no_grad()
def materialise(model: nn.Module, device: str | torch.device) -> None:
    """Give a model from the meta device memory and random weights, quickly; every norm starts as the identity."""
    model.to_empty(device=device)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            parameter.normal_(std=1 / math.sqrt(parameter[0].numel()))
        else:
            parameter.fill_(1.0 if name.endswith("weight") else 0.0)
    for name, buffer in model.named_buffers():
        if name.endswith("position_ids"):
            buffer.copy_(torch.arange(buffer.shape[-1]).expand_as(buffer))


# Counting ------------------------------------------------------------------------------------------------------------


@cache
def parameters(name: str) -> dict[str, int]:
    """Numbers of weights: of the "image" tower, of the "text" tower, of "all"."""
    model = _whole(name)
    vision = [model.vision_model, getattr(model, "visual_projection", None)]
    image = sum(weight.numel() for part in vision if part is not None for weight in part.parameters())
    scalars = ("logit_scale", "logit_bias")
    everything = sum(weight.numel() for weight in model.parameters())
    text = everything - image - sum(weight.numel() for key, weight in model.named_parameters() if key in scalars)
    return {"image": image, "text": text, "all": everything}


@cache
def flops_per_image(name: str, side: int | None = None) -> int:
    """Floating-point operations to embed an image; a multiplication with an addition is two.

    Args:
        side: pixels of an image in each direction; None takes the model's own.
    """
    channels, own, _ = architecture(name).pixels
    side = side or own
    pixels = torch.empty(1, channels, side, side, device="meta")
    return counted(lambda: _whole(name, side).get_image_features(pixel_values=pixels))


@cache
def flops_per_text(name: str) -> int:
    """Floating-point operations to embed one text of full length."""
    length = architecture(name).config().text_config.max_position_embeddings
    tokens = torch.zeros(1, length, dtype=torch.long, device="meta")
    return counted(lambda: _whole(name).get_text_features(input_ids=tokens))


def counted(run: Callable[[], object]) -> int:
    """Floating-point operations of products, convolutions and attention while `run` runs; nothing else counts."""
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


@cache
@quiet()
def _whole(name: str, side: int | None = None) -> Any:
    """The model of both towers on the meta device."""
    config = architecture(name).config()
    config.vision_config.image_size = side or config.vision_config.image_size
    family: Any = SiglipModel if isinstance(config, SiglipConfig) else CLIPModel
    with torch.device("meta"):
        return family(config).eval()
