"""What the rest of the package needs of a vision-language model, whatever its family."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass
from typing import Any, Self

import torch
from PIL import Image
from torch import Tensor, nn

from bayesvlm.core.distribution import EmbeddingDistribution
from bayesvlm.core.embeddings import GaussianEmbeddings
from bayesvlm.core.ensemble import ensemble
from bayesvlm.core.errors import BayesVLMError, check_count
from bayesvlm.core.estimation import Loss, Tower
from bayesvlm.core.features import Features
from bayesvlm.core.printing import described
from bayesvlm.core.projection import Projection
from bayesvlm.images.decoding import ImageInputs, ImageLike, as_inputs
from bayesvlm.models.image_tower import ImageTower
from bayesvlm.models.preprocessing import PixelTensors, Preprocessor
from bayesvlm.models.streaming import stream_features
from bayesvlm.progress import progress_bar
from bayesvlm.prompts import ClassPrompts

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
"""The largest error allowed in a coordinate of a unit embedding, or in a logit divided by the temperature."""

_PROMPTS = 4096  # whose activations are held at once


@dataclass(frozen=True, eq=False)
class Reference:
    """The model's own answers, from its own forward pass: what an adapter is checked against."""

    image_embeddings: Tensor  # [N, d], unit length
    text_embeddings: Tensor  # [M, d], unit length
    logits_per_image: Tensor  # [N, M]

    __repr__ = described


class Adapter(ABC):
    """A frozen vision-language model, split at the last linear layer of each tower.

    A new family sets the attributes and writes three methods: `forward_pixels` and `forward_texts` for one batch, and
    `embed_reference`. Batching, decoding, precision and progress are done here; `check_adapter` says if it is right.

    Attributes:
        name: the Hub id or folder the model came from.
        revision: the commit it was loaded at, where known.
        model: the model, in eval mode, its gradients off.
        image, text: the last linear layers, at the precision they were stored with, not the one the encoder runs in.
        logit_scale: the logarithm of the temperature, as CLIP and SigLIP store it: t = exp(logit_scale).
        logit_bias: what the model adds to t * cosine, or None.
        loss: what the model was trained with.
        device, dtype: where and in what precision the encoders run.
        posterior: what gives embeddings a variance, where the checkpoint brought it: the authors', ProLIP, PCME++.
        preprocessor: what is done to images before `forward_pixels`.
    """

    name: str
    revision: str | None
    model: nn.Module
    image: Projection
    text: Projection
    logit_scale: float
    logit_bias: float | None
    loss: Loss
    device: torch.device
    dtype: torch.dtype
    preprocessor: Preprocessor
    posterior: Mapping[Tower, EmbeddingDistribution] | None = None

    @abstractmethod
    def forward_pixels(self, pixels: PixelTensors) -> Features:
        """One batch as `preprocessor` makes it, on the device and in the precision of the model, in inference mode."""

    @abstractmethod
    def forward_texts(self, texts: list[str]) -> Features:
        """One batch of texts; called in inference mode. Texts longer than the model's context are truncated."""

    @abstractmethod
    def embed_reference(self, images: ImageLike | Iterable[ImageLike], texts: str | Iterable[str]) -> Reference:
        """The model's own embeddings and logits, from its own forward pass, in one batch."""

    def native_logits(self, images: GaussianEmbeddings, texts: GaussianEmbeddings) -> Tensor:  # [N, M]
        """The score a model that predicts variances was trained with."""
        raise NotImplementedError(f"{type(self).__name__} predicts no variances")

    def image_tower(self) -> ImageTower:
        """The image encoder as a module of its own, from pixels to what enters its last linear layer: for export."""
        raise BayesVLMError(
            f"The image tower of {self.name!r} cannot be exported, only those of CLIP, SigLIP and SigLIP 2 in the "
            "layout of transformers; export the head alone (head_only=True, --head-only) and keep the encoder you have."
        )

    def architecture(self) -> dict[str, Any]:
        """What the model does with its weights, as json: the activation, the number of heads, where it pools."""
        return {}

    def preprocessing(self) -> dict[str, Any]:
        """What happens to images and texts before the model sees them, as json: another one gives other features."""
        return {"adapter": type(self).__qualname__}

    def to(self, device: torch.device) -> Self:
        """This adapter on another device: itself where it is there already, else a copy with its model."""
        if device == self.device:
            return self
        moved = copy.deepcopy(self)
        moved.device, moved.model = device, moved.model.to(device)
        moved.image, moved.text = self.image.to(device), self.text.to(device)
        if self.posterior is not None:
            moved.posterior = {tower: of.to(device) for tower, of in self.posterior.items()}
        return moved

    def without_lower_case(self) -> Self:
        """One that hands texts to the tokenizer as they are, as transformers' own pipelines do, whatever the model was
        trained with; itself where that is done anyway."""
        return self

    def read_image(self, image: ImageLike, label: str = "the image") -> Image.Image:
        """One image in upright RGB, no larger than the model's own resizing leaves it; see `to_rgb`."""
        return self.preprocessor.read(image, label)

    def encode_images(
        self,
        images: ImageInputs,
        batch_size: int = 64,
        progress: bool | None = None,
        workers: int | None = None,
    ) -> Features:
        """The activations of one image or many, and their residual where the tower adds one.

        Images are decoded a batch at a time, each shrunk at once to what the model looks at, so that a list of paths
        may be longer than memory.

        Args:
            images: one image or an iterable of images, as `bayesvlm.models.streaming.stream_features` takes them.
            batch_size: how many images go through the model at once.
            progress: show a bar; None shows one on a terminal.
            workers: processes that decode, see `stream_features`.

        Raises:
            BayesVLMError: naming the place in the list, and the path, of an image that cannot be read.
        """
        inputs = as_inputs(images)
        total = len(inputs) if isinstance(inputs, Sized) else None
        parts: list[Features] = []
        with progress_bar("Encoding images", total=total, unit="images", show=progress) as advance:
            for batch in stream_features(
                self, inputs, batch_size=batch_size, workers=workers, strict=True, label="images"
            ):
                parts.append(batch.features)
                advance(batch.seen)
        if not parts:
            raise BayesVLMError("There are no images: the list is empty; pass at least one.")
        return Features.concatenate(parts)

    def encode_pixels(self, pixels: PixelTensors) -> Features:
        """The activations of images that the model's own preprocessing made ready, in one batch."""
        with torch.inference_mode():
            found = self.forward_pixels(self.placed(pixels))
        return self._ordinary(found)

    def encode_texts(self, texts: str | Iterable[str], batch_size: int = 256, progress: bool | None = None) -> Features:
        """The activations of one text or many; arguments as for `encode_images`."""
        batch, parts = as_texts(texts), []
        check_count("batch_size", batch_size)
        with progress_bar("Encoding texts", total=len(batch), unit="texts", show=progress) as advance:
            for start in range(0, len(batch), batch_size):
                chunk = batch[start : start + batch_size]
                with torch.inference_mode():
                    found = self.forward_texts(chunk)
                parts.append(self._ordinary(found))
                advance(len(chunk))
        return Features.concatenate(parts)

    def encode_classes(self, classes: ClassPrompts, progress: bool | None = None) -> Features:  # [C]
        """The activations of classes: of its prompt, or of several as one row; see `bayesvlm.core.ensemble`."""
        if classes.single:
            return self.encode_texts(classes.texts, progress=progress)
        parts: list[Features] = []
        done = 0
        with progress_bar("Encoding prompts", total=len(classes.texts), unit="prompts", show=progress) as advance:
            for texts, groups in classes.blocks(_PROMPTS):
                parts.append(ensemble(self.text, self.encode_texts(texts, progress=False), groups, first=done))
                done += len(parts[-1])
                advance(len(texts))
        return Features.concatenate(parts)

    def placed(self, pixels: PixelTensors) -> PixelTensors:
        """On the device of the model, floats in its precision; from pinned memory without waiting."""
        return {
            name: value.to(self.device, self.dtype if value.is_floating_point() else value.dtype, non_blocking=True)
            for name, value in pixels.items()
        }

    def _ordinary(self, found: Features) -> Features:
        """Features of a forward pass as a caller may have them, no narrower than float32.

        Copied, so that no view keeps a batch of hidden states alive, and outside inference mode, so that a caller gets
        ordinary tensors, fit for training and in-place use.
        """
        dtype = torch.float64 if self.dtype == torch.float64 else torch.float32
        return found.each(lambda value: value.to(dtype, copy=True))


def as_texts(texts: str | Iterable[str]) -> list[str]:
    """One text or an iterable of texts, as a list of texts that can be tokenised."""
    if not isinstance(texts, str | Iterable):
        raise BayesVLMError(f"Texts must be a str or a list of str; got {type(texts).__name__}.")
    batch = [texts] if isinstance(texts, str) else list(texts)
    if not batch:
        raise BayesVLMError("There are no texts: the list is empty; pass at least one.")
    for index, text in enumerate(batch):
        if not isinstance(text, str):
            raise BayesVLMError(f"texts[{index}] is {text!r}, a {type(text).__name__}; every text must be a str.")
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise BayesVLMError(
                f"texts[{index}] is {text!r}, which is not valid Unicode (a lone surrogate); "
                "read its file with the right encoding."
            )
    return batch
