"""ProLIP and PCME++ as the rest of the package sees a model: means and log variances for features, nothing to project.

Both were trained with a score of the form t (m.m' - sum(v + v') / 2) + b. For ProLIP t and b are its `logit_scale` and
`logit_bias`; PCME++ measures squared distances of unit means with a factor a and a shift s, so that t = 2a, b = s - 2a.
This t is the temperature of every way to predict.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bayesvlm.core.embeddings import GaussianEmbeddings
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.estimation import TOWERS, Loss
from bayesvlm.core.features import Features
from bayesvlm.core.predicted import PredictedVariance
from bayesvlm.core.projection import Projection
from bayesvlm.images.decoding import ImageLike, as_images, to_rgb
from bayesvlm.images.resizing import Resizing, shortest_edge
from bayesvlm.models.adapter import Adapter, Reference, as_texts
from bayesvlm.models.huggingface import tokenizer_hash
from bayesvlm.models.layout import CLIP_MEAN, CLIP_STD
from bayesvlm.models.preprocessing import PixelTensors, Preprocessor, pixel_values
from bayesvlm.models.probabilistic.pcmepp import PCMEPP
from bayesvlm.models.probabilistic.pixels import RESAMPLE, to_pixels
from bayesvlm.models.probabilistic.prolip import ProLIP
from bayesvlm.models.probabilistic.scores import csd
from bayesvlm.models.probabilistic.tokens import Tokeniser


class ProbabilisticAdapter(Adapter):
    """A model whose towers end in a unit mean and a log variance.

    The projections are the identity: what comes out of a tower is the embedding.
    """

    model: Any
    loss: Loss = "sigmoid"

    def __init__(
        self,
        model: ProLIP | PCMEPP,
        tokenise: Tokeniser,
        name: str,
        revision: str | None,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.name, self.revision, self.device, self.dtype = name, revision, device, dtype
        self._tokenise, self._size = tokenise, model.config.image_size
        self.preprocessor = Preprocessor(
            pixel_values(partial(to_pixels, size=self._size)), Resizing(shortest_edge(self._size), RESAMPLE)
        )
        precision = dtype if dtype == torch.float64 else torch.float32
        identity = torch.eye(model.config.embed_dim, device=device, dtype=precision)
        self.image = self.text = Projection(identity)
        self.posterior = {tower: PredictedVariance(identity, model.config.embed_dim) for tower in TOWERS}
        self.logit_scale, self.logit_bias = _temperature(model, name)
        self.model = model.to(device, dtype).eval().requires_grad_(False)

    def forward_pixels(self, pixels: PixelTensors) -> Features:
        mean, log_variance = self.model.encode_image(pixels["pixel_values"])
        return Features(mean, log_variance=log_variance)

    def forward_texts(self, texts: list[str]) -> Features:
        mean, log_variance = self.model.encode_text(self._tokenise(texts).to(self.device))
        return Features(mean, log_variance=log_variance)

    def embed_reference(self, images: ImageLike | Iterable[ImageLike], texts: str | Iterable[str]) -> Reference:
        """The means, and the logits that the model would give them without variances."""
        rgb = [to_rgb(image, f"images[{index}]") for index, image in enumerate(as_images(images))]
        with torch.inference_mode():
            image = self.model.encode_image(self.placed(self.preprocessor.to_pixels(rgb))["pixel_values"])
            text = self.model.encode_text(self._tokenise(as_texts(texts)).to(self.device))
            nothing = [torch.full_like(log_variance, -math.inf) for _, log_variance in (image, text)]
            logits = self.model.score((image[0], nothing[0]), (text[0], nothing[1]))
        return Reference(image[0].clone(), text[0].clone(), logits.clone())

    def native_logits(self, images: GaussianEmbeddings, texts: GaussianEmbeddings) -> Tensor:  # [N, M]
        variances = (embedded.covariance.per_item().variance for embedded in (images, texts))
        image, text = variances
        return csd(images.mean, image, texts.mean, text, math.exp(self.logit_scale), self.logit_bias or 0.0)

    def architecture(self) -> dict[str, Any]:
        return {"family": type(self.model).__name__, **asdict(self.model.config)}

    def preprocessing(self) -> dict[str, Any]:
        pixels = {"size": self._size, "mean": CLIP_MEAN, "std": CLIP_STD, "resample": "bicubic"}
        return {**super().preprocessing(), "pixels": pixels, "tokens": tokenizer_hash(self._tokenise.tokenizer)}


def _temperature(model: ProLIP | PCMEPP, name: str) -> tuple[float, float]:
    """log t and b."""
    if isinstance(model, ProLIP):
        return float(model.logit_scale), float(model.logit_bias)
    factor, shift = float(model.negative_scale), float(model.shift)
    if not factor > 0:
        raise BayesVLMError(
            f"The model {name!r} has negative_scale {factor}; a distance must count against a match, so it must be "
            "above zero: fetch the weights again."
        )
    return math.log(2 * factor), shift - 2 * factor
