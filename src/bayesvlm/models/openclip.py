"""The models of OpenCLIP (Ilharco et al., 2021), as the `open_clip` package builds them."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import normalize

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.core.projection import Projection
from bayesvlm.images.decoding import ImageLike, as_images, to_rgb
from bayesvlm.models.adapter import TOLERANCE, Adapter, Reference, as_texts
from bayesvlm.models.huggingface import tokenizer_hash
from bayesvlm.models.pixels import Pixels
from bayesvlm.models.preprocessing import PixelTensors, Preprocessor, pixel_values
from bayesvlm.models.projection_layer import ProjectionLayer


class OpenClipAdapter(Adapter):
    """CLIP, CustomTextCLIP and CoCa of open_clip, with any of its image towers: ViT, ModifiedResNet and timm's.

    A projection that open_clip keeps as a bare parameter, or inside a fused call, is put into a linear layer of its own
    with the same weights, so that what enters it can be read. That nothing else follows the layer is tried once, when
    the model is loaded: a new kind of head is refused rather than misread.
    """

    model: Any

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        configuration: Mapping[str, Any],
        name: str,
        revision: str | None,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.name, self.revision, self.device, self.dtype = name, revision, device, dtype
        self._configuration, self._tokenizer = configuration, tokenizer
        # Some tokenizers drop random words of a text that is too long; here every text has one embedding.
        self._tokenizer.reduction_fn = None
        self._pixels = Pixels.from_open_clip(model.visual.preprocess_cfg)
        self.preprocessor = Preprocessor(pixel_values(self._pixels), self._pixels.resizing)
        self._image_tower = _required(image_tower(model.visual), "image", name)
        self._text_tower = _required(text_tower(getattr(model, "text", model)), "text", name)
        self.image = self._image_tower.projection(device, dtype)
        self.text = self._text_tower.projection(device, dtype)
        self.logit_scale = model.logit_scale.item()
        self.logit_bias = None if model.logit_bias is None else model.logit_bias.item()
        self.loss = "infonce" if self.logit_bias is None else "sigmoid"
        self.model = model.to(device, dtype).eval().requires_grad_(False)
        self._try_towers()

    def forward_pixels(self, pixels: PixelTensors) -> Features:
        return self._image_tower.activations(lambda: self.model.encode_image(pixels["pixel_values"]))

    def forward_texts(self, texts: list[str]) -> Features:
        tokens = self._tokens(texts)
        return self._text_tower.activations(lambda: self.model.encode_text(tokens))

    def embed_reference(self, images: ImageLike | Iterable[ImageLike], texts: str | Iterable[str]) -> Reference:
        rgb = [to_rgb(image, f"images[{index}]") for index, image in enumerate(as_images(images))]
        with torch.inference_mode():
            image = self.model.encode_image(self._pixels(rgb).to(self.device, self.dtype), normalize=True)
            text = self.model.encode_text(self._tokens(as_texts(texts)), normalize=True)
            logits = self.model.logit_scale.exp() * image @ text.T
            if self.model.logit_bias is not None:
                logits = logits + self.model.logit_bias
        return Reference(image.clone(), text.clone(), logits.clone())

    def architecture(self) -> dict[str, Any]:
        plain: dict[str, Any] = json.loads(json.dumps(self._configuration, sort_keys=True, default=str))
        versions = {package: version(package) for package in ("open_clip_torch", "timm")}
        return {"open_clip": type(self.model).__name__, "versions": versions, **plain}

    def preprocessing(self) -> dict[str, Any]:
        return {**super().preprocessing(), "pixels": self._pixels.describe(), "tokens": _tokens_used(self._tokenizer)}

    def _tokens(self, texts: list[str]) -> Tensor:  # [N, L]
        tokens: Tensor = self._tokenizer(texts)
        known = getattr(self.model, "text", self.model)  # where a CustomTextCLIP has it
        highest, vocabulary = int(tokens.max()), getattr(known, "vocab_size", None)
        if vocabulary and highest >= vocabulary:
            raise BayesVLMError(
                f"The tokenizer of {self.name!r} gave token {highest}, but the model knows only {vocabulary} tokens; "
                "its tokenizer files belong to another model, so fetch them again."
            )
        return tokens.to(self.device)

    def _try_towers(self) -> None:
        """Refuse a model in which something follows the layer that was taken for the last."""
        pixels, tokens = self._pixels([Image.new("RGB", (8, 8), "olive")]), self._tokens(["a photo"])
        self._try(
            "image",
            self._image_tower,
            self.image,
            lambda: self.model.encode_image(pixels.to(self.device, self.dtype), normalize=False),
        )
        self._try("text", self._text_tower, self.text, lambda: self.model.encode_text(tokens, normalize=False))

    def _try(self, which: str, tower: ProjectionLayer, projection: Projection, encode: Callable[[], Tensor]) -> None:
        outputs: list[Tensor] = []
        try:
            with torch.inference_mode():
                batch = tower.activations(lambda: outputs.append(encode()))
                found = normalize(projection.embed(batch), dim=1)
            error = float((found - normalize(outputs[0].to(found), dim=1)).abs().max())
        except (RuntimeError, BayesVLMError):  # the layer was never called, or saw another shape
            error = float("nan")
        if not error <= TOLERANCE[self.dtype]:
            raise BayesVLMError(
                f"The {which} tower of {self.name!r} does more after its last linear layer than add a residual, or "
                "pools after it; a posterior over that layer would not describe its embeddings, so choose a model "
                "whose embeddings leave a linear layer."
            )


class LinearProduct(nn.Linear):
    """A linear layer that can also be written as a product, `x @ layer`: what open_clip does with its parameters."""

    def __rmatmul__(self, x: Tensor) -> Tensor:
        output: Tensor = self(x)
        return output


def image_tower(visual: Any) -> ProjectionLayer | None:
    """The last linear layer of an image tower of open_clip, made one where it is not; None where there is none."""
    if hasattr(visual, "attnpool"):
        return _resnet_tower(visual)
    if hasattr(visual, "trunk"):
        return _timm_tower(visual)
    return _own_tower(visual, "proj")


def text_tower(text: Any) -> ProjectionLayer | None:
    """The last linear layer of a text tower of open_clip, or of one of `transformers`; None where there is none."""
    if hasattr(text, "text_projection"):
        return _own_tower(text, "text_projection")
    layer = _last_linear(getattr(text, "proj", None))
    return None if layer is None else ProjectionLayer(layer)


def _own_tower(module: Any, attribute: str) -> ProjectionLayer | None:
    """A tower of open_clip's own: the projection is a parameter [p, d] to multiply with, a linear layer or None."""
    projection = getattr(module, attribute, None)
    if isinstance(projection, nn.Parameter):
        layer = _linear(projection.T, None, LinearProduct)
        delattr(module, attribute)  # a parameter's name is not given to a module while it is taken
        setattr(module, attribute, layer)
        return ProjectionLayer(layer)
    return ProjectionLayer(projection) if isinstance(projection, nn.Linear) else None


def _resnet_tower(visual: Any) -> ProjectionLayer:
    """ModifiedResNet: attention and projection are one fused call, which is left with the identity to project by."""
    pool = visual.attnpool
    layer, width = _linear(pool.c_proj.weight, pool.c_proj.bias), pool.c_proj.in_features
    pool.c_proj = _linear(torch.eye(width).to(layer.weight), torch.zeros(width).to(layer.weight))
    visual.attnpool = nn.Sequential(OrderedDict(attention=pool, projection=layer))
    return ProjectionLayer(layer)


def _timm_tower(visual: Any) -> ProjectionLayer | None:
    """A tower of timm: open_clip's head on top of it, timm's own classifier in its place, or SigLIP's pooling."""
    layer = _last_linear(visual.head)
    if layer is None:
        layer = _last_linear(visual.trunk.get_classifier())
    if layer is not None:
        return ProjectionLayer(layer)
    pool = getattr(visual.trunk, "attn_pool", None)  # y = x + fc2(gelu(fc1(norm(x)))), as in SigLIP
    return None if pool is None or pool.mlp is None else ProjectionLayer(pool.mlp.fc2, residual=pool.norm)


def _last_linear(module: Any) -> nn.Linear | None:
    """The linear layer a head ends in, if it does: dropout after it does nothing at test time."""
    if isinstance(module, nn.Linear):
        return module
    if isinstance(module, nn.Sequential):
        children = [child for child in module if not isinstance(child, nn.Dropout | nn.Identity)]
        return _last_linear(children[-1]) if children else None
    return _last_linear(getattr(module, "fc2", None)) if module is not None else None


def _linear(weight: Tensor, bias: Tensor | None, kind: type[nn.Linear] = nn.Linear) -> nn.Linear:
    """A linear layer with these parameters, [d, p] and [d]."""
    layer = kind(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone())
    return layer


def _required(tower: ProjectionLayer | None, which: str, name: str) -> ProjectionLayer:
    if tower is None:
        raise BayesVLMError(
            f"The {which} tower of {name!r} does not end in a linear layer: its embeddings are pooled features and no "
            "projection follows; the posterior is over such a layer's weights, so choose a model that has both."
        )
    return tower


def _tokens_used(tokenizer: Any) -> dict[str, Any]:
    """What a tokenizer of open_clip does with a text, as json."""
    inner = getattr(tokenizer, "tokenizer", None)
    if inner is None:
        digest = hashlib.sha256(json.dumps(tokenizer.encoder, sort_keys=True).encode()).hexdigest()
        vocabulary = f"{type(tokenizer).__name__} {digest}"
    else:
        vocabulary = tokenizer_hash(inner)
    return {
        "vocabulary": vocabulary,
        "context_length": tokenizer.context_length,
        "clean": getattr(getattr(tokenizer, "clean_fn", None), "__name__", None),
        "mode": getattr(tokenizer, "tokenizer_mode", None),
        "strip_sep_token": getattr(tokenizer, "strip_sep_token", None),
    }
