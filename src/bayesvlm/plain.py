"""The model as it came: two towers that meet in one space, and what they say without a posterior."""

from __future__ import annotations

import copy
import math
from typing import Any, NoReturn, Self, get_args

import torch
from PIL import Image
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError, ReadOnlyError, check_choice
from bayesvlm.core.estimation import Loss
from bayesvlm.core.features import Features
from bayesvlm.core.head import PlainHead
from bayesvlm.core.predict import plain_logits
from bayesvlm.core.projection import Projection
from bayesvlm.core.temperature import check_logit_scale
from bayesvlm.images import ImageLike
from bayesvlm.models import Adapter
from bayesvlm.prompts import ClassNames, ClassPrompts, Templates

BATCH_SIZE = 64
"""Images that go through an encoder at once, unless told otherwise."""


class PlainVLM:
    """A vision-language model split at its last linear layers. What is seen is read-only.

    Attributes:
        image, text: the towers' last linear layers.
        logit_scale, logit_bias: as CLIP and SigLIP store them; t = exp(logit_scale).
        loss: "infonce" (CLIP) or "sigmoid" (SigLIP).
        adapter: the encoder; None for one made from projections.
    """

    image: Projection
    text: Projection
    logit_scale: float
    logit_bias: float | None
    loss: Loss
    adapter: Adapter | None

    def __init__(
        self,
        image: Projection,
        text: Projection,
        logit_scale: float,
        logit_bias: float | None = None,
        loss: Loss = "infonce",
        adapter: Adapter | None = None,
    ) -> None:
        check_choice("loss", loss, get_args(Loss))
        if loss == "sigmoid" and logit_bias is None:
            raise BayesVLMError("loss='sigmoid' needs logit_bias, the bias the model adds to its logits.")
        if image.embedding_width != text.embedding_width:
            raise BayesVLMError(
                f"The image projection maps to {image.embedding_width} dimensions and the text projection to "
                f"{text.embedding_width}; both towers must meet in one space."
            )
        if image.weight.device != text.weight.device:
            raise BayesVLMError(
                f"The projections are on {image.weight.device} and {text.weight.device}; both must be on one device."
            )
        dtype = torch.promote_types(image.weight.dtype, text.weight.dtype)
        self._hold(
            image=image.to(dtype),
            text=text.to(dtype),
            logit_scale=check_logit_scale(logit_scale),
            logit_bias=logit_bias,
            loss=loss,
            adapter=adapter,
        )

    @classmethod
    def from_projections(
        cls,
        image_weight: Tensor,  # [d, p_image]
        text_weight: Tensor,  # [d, p_text]
        logit_scale: float,
        logit_bias: float | None = None,
        image_bias: Tensor | None = None,  # [d]
        text_bias: Tensor | None = None,  # [d]
        loss: Loss = "infonce",
    ) -> Self:
        """For people who only have features: the two projections and the temperature's logarithm, no encoder."""
        image, text = Projection(image_weight, image_bias), Projection(text_weight, text_bias)
        bias = None if logit_bias is None else float(logit_bias)
        return cls(image, text, logit_scale, bias, loss)

    def _hold(self, **state: Any) -> None:
        """Set what it holds. What it shows is all held here, immutable, and nothing else is derived and kept."""
        self.__dict__.update(state)

    def _changed(self, **state: Any) -> Self:
        """Another one, of the same class, that holds these things instead."""
        other = copy.copy(self)
        other._hold(**state)
        return other

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise ReadOnlyError(
            f"vlm.{name} is read-only, because what was computed from it would stay as it was; "
            "vlm.replace(tau=..., lam=..., structure=..., covariance=..., link=...) returns a new BayesVLM with other "
            "settings, from_pretrained and from_projections one with other weights."
        )

    def __delattr__(self, name: str) -> NoReturn:
        raise ReadOnlyError(f"vlm.{name} is read-only, and cannot be deleted.")

    @property
    def device(self) -> torch.device:
        return self.image.weight.device

    @property
    def scale(self) -> float:
        """t = exp(logit_scale)."""
        return math.exp(self.logit_scale)

    @property
    def label_bias(self) -> float | None:
        """What is added to the scaled cosine where labels have probabilities of their own; None: they have none,
        because the model was trained with a softmax."""
        return self.logit_bias if self.loss == "sigmoid" else None

    def image_features(
        self, inputs: Any, *, batch_size: int | None = None, workers: int | None = None, progress: bool | None = None
    ) -> Features:
        """Activations of images; Features pass through. Arguments as for `stream`."""
        if isinstance(inputs, Features):
            return inputs.to(self.device)
        adapter = self.encoder("images")
        size = BATCH_SIZE if batch_size is None else batch_size
        return adapter.encode_images(inputs, batch_size=size, progress=progress, workers=workers)

    def text_features(self, inputs: Any, *, progress: bool | None = None) -> Features:
        """Activations of texts; Features pass through."""
        if isinstance(inputs, Features):
            return inputs.to(self.device)
        return self.encoder("texts").encode_texts(inputs, progress=progress)

    def class_features(
        self, classes: ClassNames | Features, templates: Templates | None = None, *, progress: bool | None = None
    ) -> Features:  # [C]
        """Activations of classes, one row each: everything that takes classes takes these too. Features pass through.

        Several prompts of a class, by templates or synonyms, become one row whose Gaussian is that of their averaged
        unit embeddings, exactly (`bayesvlm.core.ensemble`): they cost nothing once they are encoded.

        Args:
            classes: names or prompts; for synonyms a list of names in the place of one, or {shown name: names}.
            templates: prompts with {c} (or {}) in the place of the name, or functions of it, averaged; None: the names
                are encoded as they are. One template is what the paper uses.
        """
        if not isinstance(classes, Features):
            prompts = ClassPrompts.of(classes, templates)
            return self.encoder("texts").encode_classes(prompts, progress)
        if templates is not None:
            raise BayesVLMError(
                "The classes are Features, which are encoded already, so templates have no use; leave them out, or "
                "pass class names."
            )
        if len(classes) == 0:
            raise BayesVLMError("The class list is empty; pass at least one class name or prompt.")
        return classes.to(self.device)

    def read_image(self, image: ImageLike, label: str = "the image") -> Image.Image:
        """One image as this model looks at it: upright RGB, no larger than its own preprocessing leaves it."""
        return self.encoder("images").read_image(image, label)

    def without_lower_case(self) -> Self:
        """This model with an encoder that reads texts as they are written, as transformers' own pipelines do.

        SigLIP was trained on lower-cased texts, and some of its tokenizers leave that to the caller: nothing to
        predict with, but what the scores of transformers are reproduced with.
        """
        return self._changed(adapter=self.encoder("texts").without_lower_case())

    def encoder(self, what: str) -> Adapter:
        """The adapter; where there is none, a sentence that `what` ("images", "texts") cannot be encoded."""
        if self.adapter is None:
            raise BayesVLMError(
                f"This BayesVLM was made from projections and cannot encode {what}; pass Features(activations) instead."
            )
        return self.adapter

    @torch.no_grad()
    def logits(
        self, inputs: Any, classes: ClassNames | Features, *, templates: Templates | None = None
    ) -> Tensor:  # [N, C]
        """The scaled cosines t cos(g, h) of the model without a posterior; what temperature scaling divides."""
        texts, images = self.class_features(classes, templates), self.image_features(inputs)
        return plain_logits(self.image.embed(images), self.text.embed(texts), self.scale)

    def plain(
        self, inputs: Any, classes: ClassNames | Features, *, templates: Templates | None = None
    ) -> Tensor:  # [N, C]
        """What the model says without a posterior: softmax of scaled cosines. Needs no fit."""
        return torch.softmax(self.logits(inputs, classes, templates=templates), dim=1)

    @torch.no_grad()
    def plain_head(self, classes: ClassNames | Features, *, templates: Templates | None = None) -> PlainHead:
        """The same for `plain`: what `head` is to be compared with. Needs no fit."""
        texts = self.text.embed(self.class_features(classes, templates))
        return PlainHead(self.image, texts, self.scale, self.image_features, self.label_bias)
