"""PCME++ (Chun, 2024): CLIP's two towers, each with a second branch over the last blocks for the log variance.

Checkpoints as published by `naver-ai/pcmepp`. The branches part before the last blocks; the log variance is projected
without the layer norm that the mean goes through.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.models.probabilistic.blocks import (
    Gaussians,
    Transformer,
    beside,
    check_pixels,
    parameter,
    patch_convolution,
)
from bayesvlm.models.probabilistic.configuration import (
    Configuration,
    Entries,
    TokenSource,
    TowerShape,
    heads_of,
)
from bayesvlm.models.probabilistic.scores import pcmepp_score

_TEXT_MLP_RATIO = 4.0  # not an entry of config.json
_TOKENS = TokenSource("openai/clip-vit-base-patch16", "lower", zero_padded=True)


class PCMEPP(nn.Module):
    """Both towers and the parameters of the score.

    The text tower's parameters lie at the top, as CLIP has them. `logit_scale` is published with the others and has no
    part in the score.
    """

    def __init__(self, config: Configuration) -> None:
        super().__init__()
        tower, self.config = config.text, config
        self.visual = ImageTower(config)
        self.token_embedding = nn.Embedding(config.vocab_size, tower.width)
        self.positional_embedding = parameter(config.context_length, tower.width)
        self.transformer = Transformer(tower, tower.layers, config.quick_gelu, causal=True)
        self.uncertainty_transformer = Transformer(tower, tower.unc_layers, config.quick_gelu, causal=True)
        self.ln_final = nn.LayerNorm(tower.width)
        self.text_projection = parameter(tower.width, config.embed_dim)
        self.uncertainty_text_projection = parameter(tower.width, config.embed_dim)
        self.logit_scale = parameter()
        self.negative_scale = parameter(1)
        self.shift = parameter(1)

    def encode_image(self, pixels: Tensor) -> Gaussians:  # [N, 3, S, S] -> [N, d], [N, d]
        """Unit means and log variances; the variances belong to the unit means as they are."""
        mean, log_variance = self.visual(pixels)
        return functional.normalize(mean, dim=-1), log_variance

    def encode_text(self, tokens: Tensor) -> Gaussians:  # [N, L] -> [N, d], [N, d]
        """As `encode_image`; a text ends at its highest token, and what follows is not seen."""
        if tokens.ndim != 2 or not 1 <= tokens.shape[1] <= self.config.context_length:
            raise BayesVLMError(
                f"The tokens have shape {list(tokens.shape)}; expected [N, L] with L at most "
                f"{self.config.context_length}: make them with load_tokeniser."
            )
        x = self.token_embedding(tokens) + self.positional_embedding[: tokens.shape[1]]  # [N, L, w]
        mean, log_variance = branches(self.transformer, self.uncertainty_transformer, x)
        rows, ends = torch.arange(len(tokens), device=tokens.device), tokens.argmax(dim=-1)
        unit = functional.normalize(self.ln_final(mean[rows, ends]) @ self.text_projection, dim=-1)
        return unit, log_variance[rows, ends] @ self.uncertainty_text_projection

    def score(self, image: Gaussians, text: Gaussians) -> Tensor:  # [N, M]
        """The logits the model was trained with, for every image with every text."""
        return pcmepp_score(image[0], image[1].exp(), text[0], text[1].exp(), self.negative_scale, self.shift)


class ImageTower(nn.Module):
    """CLIP's ViT over [CLS, patches], with the second branch."""

    def __init__(self, config: Configuration) -> None:
        super().__init__()
        tower, self.image_size = config.image, config.image_size
        self.conv1 = patch_convolution(tower.width, config.patch_size)
        self.class_embedding = parameter(tower.width)
        self.positional_embedding = parameter(1 + config.patches, tower.width)
        self.ln_pre = nn.LayerNorm(tower.width)
        self.transformer = Transformer(tower, tower.layers, config.quick_gelu)
        self.uncertainty_transformer = Transformer(tower, tower.unc_layers, config.quick_gelu)
        self.ln_post = nn.LayerNorm(tower.width)
        self.proj = parameter(tower.width, config.embed_dim)
        self.uncertainty_proj = parameter(tower.width, config.embed_dim)

    def forward(self, pixels: Tensor) -> Gaussians:
        check_pixels(pixels, self.image_size)
        x = self.conv1(pixels).flatten(2).transpose(1, 2)  # [N, patches, w]
        x = self.ln_pre(torch.cat([beside(self.class_embedding, x), x], dim=1) + self.positional_embedding)
        mean, log_variance = branches(self.transformer, self.uncertainty_transformer, x)
        return self.ln_post(mean[:, 0]) @ self.proj, log_variance[:, 0] @ self.uncertainty_proj


def branches(trunk: Transformer, branch: Transformer, x: Tensor) -> Gaussians:  # [N, L, w] -> [N, L, w], [N, L, w]
    """The trunk to its end, and the branch that leaves it as many blocks earlier as the branch is long."""
    parting = len(trunk.resblocks) - len(branch.resblocks)
    shared = trunk(x, stop=parting)
    return trunk(shared, start=parting), branch(shared)


def read_pcmepp(entries: Entries) -> Configuration:
    """The configuration of a PCME++; `CLIPVisionCfg` and `CLIPTextCfg` of its authors say what may be left out."""
    embed_dim, quick_gelu = entries.count("embed_dim"), entries.flag("quick_gelu", False)
    vision, text = entries.section("vision_cfg"), entries.section("text_cfg")
    entries.ignored("cast_dtype", "output_dict")
    entries.finish()

    image_size, patch_size = vision.count("image_size", 224), vision.count("patch_size", 16)
    width, layers = vision.count("width", 768), vision.count("layers", 12)
    image = TowerShape(
        width,
        layers,
        heads_of(vision, width, width // vision.count("head_width", 64)),
        vision.number("mlp_ratio", 4.0),
        unc_layers=_branch(vision, layers, 2),
    )
    vision.fixed(ls_init_value=None, input_patchnorm=False, global_average_pool=False, attentional_pool=False)
    vision.fixed(output_tokens=False)
    vision.ignored("patch_dropout", "n_queries", "attn_pooler_heads", "timm_model_name", "timm_model_pretrained")
    vision.ignored("timm_pool", "timm_proj", "timm_proj_bias", "timm_drop", "timm_drop_path")
    vision.finish()

    context_length, vocab_size = text.count("context_length", 77), text.count("vocab_size", 49408)
    width, layers = text.count("width", 512), text.count("layers", 12)
    heads = heads_of(text, width, text.count("heads", 8))
    words = TowerShape(width, layers, heads, _TEXT_MLP_RATIO, unc_layers=_branch(text, layers))
    text.fixed(ls_init_value=None, embed_cls=False, output_tokens=False)
    text.ignored("hf_model_name", "hf_tokenizer_name", "hf_model_pretrained", "proj", "pooler_type", "pad_id")
    text.finish()
    return Configuration(
        embed_dim, quick_gelu, image, image_size, patch_size, words, context_length, vocab_size, _TOKENS
    )


def _branch(tower: Entries, layers: int, default: int | None = None) -> int:
    unc_layers = tower.count("unc_layers", default)
    if unc_layers > layers:
        raise tower.wrong("unc_layers", unc_layers, f"at most the {layers} layers of the tower")
    return unc_layers
