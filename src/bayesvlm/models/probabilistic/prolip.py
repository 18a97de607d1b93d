"""ProLIP (Chun et al., 2025): a [CLS] token for the mean and an [UNC] token for the log variance, in both towers.

Checkpoints as published by `naver-ai/prolip`, LongProLIP's included. The image tower's layer norm is applied twice to
[CLS] and once to [UNC]; the text tower's log variance is read off the projected mean, so that its [UNC] token acts
only through attention. Both look like slips, and the weights were trained with them.
"""

from __future__ import annotations

from typing import cast, get_args

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
    Cleaning,
    Configuration,
    Entries,
    TokenSource,
    TowerShape,
    heads_of,
)
from bayesvlm.models.probabilistic.scores import csd

# Where config.json names no tokenizer: the vocabularies of SigLIP and of CLIP, which ViT-H/14 was fine-tuned from.
_TOKENIZERS: dict[int, tuple[str, Cleaning]] = {
    32100: ("timm/ViT-B-16-SigLIP", "canonicalize"),
    49408: ("apple/DFN5B-CLIP-ViT-H-14", "whitespace"),
}


class ProLIP(nn.Module):
    """Both towers and the parameters of the score; `logit_scale` is a logarithm, as CLIP stores it."""

    def __init__(self, config: Configuration) -> None:
        super().__init__()
        self.config = config
        self.visual = ImageTower(config)
        self.text = TextTower(config)
        self.logit_scale = parameter()
        self.logit_bias = parameter()

    def encode_image(self, pixels: Tensor) -> Gaussians:  # [N, 3, S, S] -> [N, d], [N, d]
        """Unit means and log variances; the variances belong to the unit means as they are."""
        mean, log_variance = self.visual(pixels)
        return functional.normalize(mean, dim=-1), log_variance

    def encode_text(self, tokens: Tensor) -> Gaussians:  # [N, L] -> [N, d], [N, d]
        """As `encode_image`, for texts filled up to the full context: padding is attended to."""
        mean, log_variance = self.text(tokens)
        return functional.normalize(mean, dim=-1), log_variance

    def score(self, image: Gaussians, text: Gaussians) -> Tensor:  # [N, M]
        """The logits the model was trained with, for every image with every text."""
        return csd(image[0], image[1].exp(), text[0], text[1].exp(), self.logit_scale.exp(), self.logit_bias)


class ImageTower(nn.Module):
    """A ViT over [CLS, UNC, patches]."""

    def __init__(self, config: Configuration) -> None:
        super().__init__()
        tower, self.image_size = config.image, config.image_size
        self.conv1 = patch_convolution(tower.width, config.patch_size)
        self.class_embedding = parameter(tower.width)
        self.unc_embedding = parameter(tower.width)
        self.positional_embedding = parameter(2 + config.patches, tower.width)
        self.ln_pre = nn.LayerNorm(tower.width, eps=tower.eps)
        self.transformer = Transformer(tower, tower.layers, config.quick_gelu)
        self.ln_post = nn.LayerNorm(tower.width, eps=tower.eps)
        self.proj = parameter(tower.width, config.embed_dim)
        self.uncertainty_proj = nn.Linear(tower.width, config.embed_dim)

    def forward(self, pixels: Tensor) -> Gaussians:
        check_pixels(pixels, self.image_size)
        x = self.conv1(pixels).flatten(2).transpose(1, 2)  # [N, patches, w]
        x = torch.cat([beside(self.class_embedding, x), beside(self.unc_embedding, x), x], dim=1)
        x = self.transformer(self.ln_pre(x + self.positional_embedding))
        summary, uncertainty = self.ln_post(x[:, :2]).unbind(1)  # [N, w] each
        return self.ln_post(summary) @ self.proj, self.uncertainty_proj(uncertainty)


class TextTower(nn.Module):
    """A transformer without mask over [tokens, UNC, CLS]."""

    def __init__(self, config: Configuration) -> None:
        super().__init__()
        tower, self.context_length = config.text, config.context_length
        self.token_embedding = nn.Embedding(config.vocab_size, tower.width)
        self.cls_emb = parameter(tower.width)
        self.unc_emb = parameter(tower.width)
        self.positional_embedding = parameter(config.context_length + 2, tower.width)
        self.transformer = Transformer(tower, tower.layers, config.quick_gelu)
        self.ln_final = nn.LayerNorm(tower.width, eps=tower.eps)
        self.text_projection = nn.Linear(tower.width, config.embed_dim)
        self.text_uncertainty_projection = nn.Linear(tower.width, config.embed_dim)

    def forward(self, tokens: Tensor) -> Gaussians:
        if tokens.ndim != 2 or tokens.shape[1] != self.context_length:
            raise BayesVLMError(
                f"The tokens have shape {list(tokens.shape)}; expected [N, {self.context_length}]: "
                "fill every text up to the full context, as load_tokeniser does."
            )
        x = self.token_embedding(tokens)  # [N, L, w]
        x = torch.cat([x, beside(self.unc_emb, x), beside(self.cls_emb, x)], dim=1)
        x = self.transformer(x + self.positional_embedding)
        mean = self.text_projection(self.ln_final(x[:, -1]))  # [N, d]
        return mean, self.text_uncertainty_projection(mean)


def read_prolip(entries: Entries) -> Configuration:
    """The configuration of a ProLIP; `ProLIPVisionCfg` and `ProLIPTextCfg` of its authors say what may be left out."""
    embed_dim, quick_gelu = entries.count("embed_dim"), entries.flag("quick_gelu", False)
    vision, text = entries.section("vision_cfg"), entries.section("text_cfg")
    entries.ignored("init_logit_scale", "init_logit_bias", "cast_dtype", "output_dict")
    entries.finish()

    image_size, patch_size = vision.count("image_size", 224), vision.count("patch_size", 16)
    width = vision.count("width", 768)
    image = TowerShape(
        width,
        vision.count("layers", 12),
        heads_of(vision, width, width // vision.count("head_width", 64)),
        vision.number("mlp_ratio", 4.0),
        _epsilon(vision),
    )
    vision.fixed(embed_unc=True, pool_type="tok", pos_embed_type="learnable", no_ln_pre=False)
    vision.fixed(ls_init_value=None, act_kwargs=None, attentional_pool=False, output_tokens=False)
    vision.ignored("init_unc_bias", "attn_pooler_queries", "attn_pooler_heads", "timm_model_name", "timm_pool")
    vision.ignored("timm_model_pretrained", "timm_proj", "timm_proj_bias", "timm_drop", "timm_drop_path")
    vision.finish()

    context_length, vocab_size = text.count("context_length", 64), text.count("vocab_size", 32100)
    width = text.count("width", 768)
    if width != embed_dim:  # its log variance is a layer of this width, fed with an embedding
        raise text.wrong("width", width, f"the embedding's width, {embed_dim}")
    words = TowerShape(
        width,
        text.count("layers", 12),
        heads_of(text, width, text.count("heads", 12)),
        text.number("mlp_ratio", 4.0),
        _epsilon(text),
    )
    tokens = _token_source(text, vocab_size)
    text.fixed(embed_cls=True, embed_unc=True, no_causal_mask=True, proj_bias=True)
    text.fixed(ls_init_value=None, act_kwargs=None, output_tokens=False)
    text.ignored("init_unc_bias", "pad_id", "pool_type", "final_ln_after_pool")
    text.ignored("hf_model_name", "hf_model_pretrained", "hf_proj_type", "hf_pooler_type")
    text.finish()
    return Configuration(
        embed_dim, quick_gelu, image, image_size, patch_size, words, context_length, vocab_size, tokens
    )


def _epsilon(tower: Entries) -> float:
    settings = tower.section("norm_kwargs", optional=True)
    epsilon = settings.number("eps", 1e-5)
    settings.finish()
    return epsilon


def _token_source(text: Entries, vocab_size: int) -> TokenSource:
    repository, cleaning = _TOKENIZERS.get(vocab_size, (None, "whitespace"))
    settings = text.section("tokenizer_kwargs", optional=True)
    asked = settings.text("clean") or cleaning
    if asked not in get_args(Cleaning):
        raise settings.wrong("clean", asked, f"one of {', '.join(get_args(Cleaning))}")
    settings.finish()
    return TokenSource(text.text("hf_tokenizer_name") or repository, cast(Cleaning, asked), zero_padded=False)
