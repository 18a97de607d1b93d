"""What the rest of the package needs of a vision-language model, whatever its family."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from PIL import Image
from torch import Tensor, nn

from bayesvlm.core.distribution import EmbeddingDistribution
from bayesvlm.core.embeddings import GaussianEmbeddings
from bayesvlm.core.errors import BayesVLMError, check_count
from bayesvlm.core.estimation import Loss, Tower
from bayesvlm.core.features import Features
from bayesvlm.core.printing import described
from bayesvlm.core.projection import Projection
from bayesvlm.images.decoding import ImageLike, as_images, to_rgb
from bayesvlm.images.resizing import Resizing
from bayesvlm.progress import progress_bar

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
"""The largest error allowed in a coordinate of a unit embedding, or in a logit divided by the temperature."""


class Activations(NamedTuple):
    """One batch, as a family's forward pass leaves it."""

    entering: Tensor  # [N, p], what enters the last linear layer
    residual: Tensor | None = None  # [N, d], what the model adds to that layer's output
    log_variance: Tensor | None = None  # [N, d], of models that predict one: what enters is the mean then


@dataclass(frozen=True, eq=False)
class Reference:
    """The model's own answers, from its own forward pass: what an adapter is checked against."""

    image_embeddings: Tensor  # [N, d], unit length
    text_embeddings: Tensor  # [M, d], unit length
    logits_per_image: Tensor  # [N, M]

    __repr__ = described


class Adapter(ABC):
    """A frozen vision-language model, split at the last linear layer of each tower.

    A new family sets the attributes and writes three methods: `forward_images` and `forward_texts` for one batch, and
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
        resizing: what `forward_images` resizes images to, where that is known: larger ones are shrunk as they are read.
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
    posterior: Mapping[Tower, EmbeddingDistribution] | None = None
    resizing: Resizing | None = None

    @abstractmethod
    def forward_images(self, images: list[Image.Image]) -> Activations:
        """One batch of RGB images; called in inference mode."""

    @abstractmethod
    def forward_texts(self, texts: list[str]) -> Activations:
        """One batch of texts; called in inference mode. Texts longer than the model's context are truncated."""

    @abstractmethod
    def embed_reference(self, images: ImageLike | Iterable[ImageLike], texts: str | Iterable[str]) -> Reference:
        """The model's own embeddings and logits, from its own forward pass, in one batch."""

    def native_logits(self, images: GaussianEmbeddings, texts: GaussianEmbeddings) -> Tensor:  # [N, M]
        """The score a model that predicts variances was trained with."""
        raise NotImplementedError(f"{type(self).__name__} predicts no variances")

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

    def read_image(self, image: ImageLike, label: str = "the image") -> Image.Image:
        """One image in upright RGB, no larger than the model's own resizing leaves it; see `to_rgb`."""
        return to_rgb(image, label, self.resizing)

    def encode_images(
        self, images: ImageLike | Iterable[ImageLike], batch_size: int = 64, progress: bool | None = None
    ) -> Features:
        """The activations of one image or many, and their residual where the tower adds one.

        Images are decoded a batch at a time, each shrunk at once to what the model looks at, so that a list of paths
        may be longer than memory.

        Args:
            images: anything `bayesvlm.images.decoding.to_rgb` reads, one or an iterable, or a 4-D batch of pixels.
            batch_size: how many images go through the model at once.
            progress: show a bar; None shows one on a terminal.

        Raises:
            BayesVLMError: naming the place in the list, and the path, of an image that cannot be read.
        """

        def forward(batch: Sequence[ImageLike], start: int) -> Activations:
            images = [self.read_image(image, f"images[{start + place}]") for place, image in enumerate(batch)]
            return self.forward_images(images)

        return self._encode(as_images(images), forward, batch_size, progress, "images")

    def encode_texts(self, texts: str | Iterable[str], batch_size: int = 256, progress: bool | None = None) -> Features:
        """The activations of one text or many; arguments as for `encode_images`."""

        def forward(batch: Sequence[str], start: int) -> Activations:
            return self.forward_texts(list(batch))

        return self._encode(as_texts(texts), forward, batch_size, progress, "texts")

    def _encode(
        self,
        inputs: Sequence[Any],
        forward: Callable[[Sequence[Any], int], Activations],
        batch_size: int,
        progress: bool | None,
        unit: str,
    ) -> Features:
        check_count("batch_size", batch_size)
        dtype = torch.float64 if self.dtype == torch.float64 else torch.float32
        parts: list[Features] = []
        with progress_bar(f"Encoding {unit}", total=len(inputs), unit=unit, show=progress) as advance:
            for start in range(0, len(inputs), batch_size):
                chunk = inputs[start : start + batch_size]
                with torch.inference_mode():
                    batch = forward(chunk, start)
                # Copied, so that no view keeps a batch of hidden states alive, and outside inference mode, so that a
                # caller gets ordinary tensors, fit for training and in-place use.
                copied = (None if value is None else value.to(dtype, copy=True) for value in batch)
                parts.append(Features(*copied))  # type: ignore[arg-type]
                advance(len(chunk))
        return Features.concatenate(parts)


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
