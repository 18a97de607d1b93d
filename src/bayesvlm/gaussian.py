"""A model whose embeddings are Gaussian: what it predicts, wherever the variances came from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bayesvlm.classes import class_names, warn_of_one_class
from bayesvlm.core.cosine import CosineMoments, prob_cosine
from bayesvlm.core.distribution import EmbeddingDistribution
from bayesvlm.core.embeddings import GaussianEmbeddings
from bayesvlm.core.errors import BayesVLMError, check_count
from bayesvlm.core.estimation import TOWERS, Tower
from bayesvlm.core.expansion import expanded_epistemic
from bayesvlm.core.features import Features
from bayesvlm.core.frozen import FrozenDict
from bayesvlm.core.head import BayesHead
from bayesvlm.core.joint import joint_logit_covariance
from bayesvlm.core.linearised import Directed, same_tower_cosines
from bayesvlm.core.posterior import Posterior
from bayesvlm.core.prediction import Prediction
from bayesvlm.core.settings import Settings
from bayesvlm.images.decoding import Readable, as_inputs
from bayesvlm.plain import PlainVLM
from bayesvlm.predicting import Method, check_method, predict, stream_predictions
from bayesvlm.prompts import ClassNames, Templates

if TYPE_CHECKING:
    from bayesvlm.serving.export import Exported

_IMAGES = (Image.Image, os.PathLike, bytes, bytearray, memoryview, Readable, np.ndarray, Tensor, Mapping)
"""What an image is given as, and a text is not."""


class GaussianVLM(PlainVLM):
    """A vision-language model with a distribution over the embeddings of each tower.

    It has the attributes of `PlainVLM`, too.

    Attributes:
        settings: tau, lam, structure, covariance and link.
    """

    settings: Settings = Settings()
    _posterior: Mapping[Tower, EmbeddingDistribution] | None = None

    def with_distributions(self, posterior: Mapping[Tower, EmbeddingDistribution]) -> Self:
        """This model with its towers' embeddings distributed so, as a checkpoint may bring it along."""
        return self._changed(_posterior=FrozenDict(posterior))

    @property
    def fitted(self) -> bool:
        """Whether embeddings have a variance."""
        return self._posterior is not None

    @property
    def predicts_variance(self) -> bool:
        """Whether the model brings its own variances (ProLIP, PCME++): there is no posterior to fit then."""
        return self._posterior is not None and self._posterior["image"].predicted

    @property
    def posterior(self) -> Mapping[Tower, EmbeddingDistribution]:
        """How each tower's embeddings are distributed: by the Gaussian over its projection, or by what came with it."""
        if self._posterior is None:
            raise BayesVLMError(
                "This model has no posterior yet; call fit(pairs) with image-text pairs, or load a saved posterior."
            )
        return self._posterior

    def _kronecker(self, tower: Tower, wanted: str) -> Posterior:
        """The posterior of a tower that has Kronecker factors; see `EmbeddingDistribution.kronecker`."""
        return self.posterior[tower].kronecker(wanted)

    def classify(
        self,
        inputs: Any,
        classes: ClassNames | Features,
        *,
        templates: Templates | None = None,
        method: Method = "probcosine",
        draws: int = 128,
        seed: int = 0,
        batch_size: int | None = None,
        workers: int | None = None,
        progress: bool | None = None,
    ) -> Prediction:
        """Class probabilities of the inputs, with the moments of the cosines behind them; `stream` for many.

        Args:
            inputs: images or Features, [N].
            classes: names or prompts, synonyms as a list in the place of a name, or Features, [C].
            templates: prompts with {c} in the place of the name, averaged; None: names are encoded as they are.
            method: "probcosine", by the moments of the cosine and the link of the settings; "mean", the softmax of the
                means' scaled cosines; "native", of the score that a model with variances of its own was trained with.
            draws: parameter draws for link="mc" and for `.monte_carlo`, which divides the entropy into `.epistemic` and
                `.aleatoric` (made when first asked for). They come from the posterior itself, whatever `covariance` is
                chosen for the analytic links.
            seed: of those draws.
            batch_size, workers: as for `stream`; None is its default.
        """
        texts, names = self._asked(classes, templates, method)
        images = self.image_features(inputs, batch_size=batch_size, workers=workers, progress=progress)
        return predict(self, images, texts, names, method, draws, seed)

    def stream(
        self,
        inputs: Any,
        classes: ClassNames | Features,
        *,
        templates: Templates | None = None,
        batch_size: int = 64,
        workers: int | None = None,
        strict: bool = False,
        method: Method = "probcosine",
        draws: int = 128,
        seed: int = 0,
    ) -> Iterator[Prediction]:
        """Predictions of any number of inputs, a batch at a time and in order, in memory that does not grow with them.

        Args:
            inputs: any iterable: paths, bytes, PIL images, arrays, tensors, batches of ready `pixel_values` as a
                processor of transformers gives them (a DataLoader of your own, then); or Features.
            classes, templates, method, draws, seed: as for `classify`.
            batch_size: images that go through the encoder at once, and rows of a prediction.
            workers: processes that decode while the encoder runs; 0: none, threads do. None: by how many there are.
            strict: stop at the first input that cannot be read; else it has no row, and is named in `.unreadable`.

        Yields:
            predictions, whose `.places` say which inputs their rows are.
        """
        texts, names = self._asked(classes, templates, method)
        check_count("batch_size", batch_size)
        given = inputs if isinstance(inputs, Features) else as_inputs(inputs)
        options: dict[str, Any] = {"batch_size": batch_size, "workers": workers, "strict": strict}
        # Of a copy, so that a fit meanwhile does not change the rest of the stream.
        return stream_predictions(self._changed(), given, texts, names, method, draws, seed, **options)

    def _asked(
        self, classes: ClassNames | Features, templates: Templates | None, method: Method
    ) -> tuple[Features, tuple[str, ...] | None]:
        """The classes' features and names, if they and the method can be asked of this model."""
        check_method(self, method)
        names = class_names(classes)
        warn_of_one_class(classes, self.loss == "sigmoid", stacklevel=3)
        return self.class_features(classes, templates), names

    @torch.no_grad()
    def head(self, classes: ClassNames | Features, *, templates: Templates | None = None) -> ModelHead:
        """A classifier for these classes alone: `head(inputs)` is `classify(inputs, classes).probs` at little more
        than the cost of `plain`, and `head.label_probs(inputs)` its `.label_probs`, for models that have them.

        The classes are encoded once. `head.probs(activations, residual)`, and `head.sigmoid_probs` for each label by
        itself, take tensors straight from an encoder and check nothing: what images that come one at a time need.
        `head.export("model.onnx")` writes it, encoder included, to a file that runs without torch. Damped posteriors
        with an analytic link only.

        Args:
            classes, templates: as for `classify`.
        """
        texts = self.class_features(classes, templates)
        return ModelHead(self._changed(), texts, class_names(classes), templates)

    @torch.no_grad()
    def similarity(
        self,
        inputs: Any,
        texts: Any,
        *,
        towers: tuple[Tower, Tower] | None = None,
        progress: bool | None = None,
    ) -> CosineMoments:
        """Mean and variance of the cosine of every input with every text (or image), and `.interval(0.95)`.

        Images with texts by the moments of `prob_cosine`. Images with images share a draw of their projection, which
        correlates them, and so do texts with texts: their variance is the joint one, linearised
        (`bayesvlm.core.linearised`), and of a copy it is 0.

        Args:
            inputs: images, [N]; a str is a path.
            texts: texts or images, [M]; a str is a text, an image is a `pathlib.Path`, PIL, bytes, an array or tensor.
            towers: what both are, such as ("text", "text"); None: images first, and then what `texts` look like,
                Features as texts.
        """
        first, second = _checked(("image", _tower_of(texts)) if towers is None else towers)
        if first != second:
            x, y = self._embedded(inputs, first, progress), self._embedded(texts, second, progress)
            return prob_cosine(x, y)
        distribution = self.posterior[first]
        both = [self._features(given, first, progress) for given in (inputs, texts)]
        left, right = (Directed(distribution.embed(of).mean, distribution.whitened(of)) for of in both)
        return same_tower_cosines(left, right, distribution.shared_covariance().shape)

    def _features(self, inputs: Any, tower: Tower, progress: bool | None) -> Features:
        if tower == "image":
            return self.image_features(inputs, progress=progress)
        return self.text_features(inputs, progress=progress)

    def _embedded(self, inputs: Any, tower: Tower, progress: bool | None) -> GaussianEmbeddings:
        return self.posterior[tower].embed(self._features(inputs, tower, progress))

    @torch.no_grad()
    def joint_logit_covariance(
        self, inputs: Any, classes: ClassNames | Features, *, templates: Templates | None = None
    ) -> Tensor:  # [N, C, N, C]
        """Covariance of the unnormalised logits t g.h between all pairs of inputs and classes, for a handful of both:
        inputs share the image projection and classes the text projection, so that none of them are independent."""
        images, texts = self.image_features(inputs), self.class_features(classes, templates)
        towers = [self._kronecker(tower, "The logits have no joint covariance") for tower in TOWERS]
        return joint_logit_covariance(towers[0], images, towers[1], texts, self.scale)

    @torch.no_grad()
    def expanded_epistemic(
        self, inputs: Any, classes: ClassNames | Features, *, templates: Templates | None = None
    ) -> Tensor:  # [N] float64
        """What `classify(...).monte_carlo.epistemic` estimates by parameter draws, in nats, without any: expanded in
        the variance of the logits (`bayesvlm.core.expansion`). Damped posteriors only."""
        images, texts = self.image_features(inputs), self.class_features(classes, templates)
        towers = [self._kronecker(tower, "There is no joint covariance to expand in") for tower in TOWERS]
        return expanded_epistemic(towers[0], images, towers[1], texts, self.scale)

    @torch.no_grad()
    def embed_images(self, inputs: Any, *, progress: bool | None = None) -> GaussianEmbeddings:
        """Gaussian embeddings of images (or their Features)."""
        return self.posterior["image"].embed(self.image_features(inputs, progress=progress))

    @torch.no_grad()
    def embed_texts(self, inputs: Any) -> GaussianEmbeddings:
        """Gaussian embeddings of texts (or their Features)."""
        return self.posterior["text"].embed(self.text_features(inputs))


def _tower_of(texts: Any) -> Tower:
    """What stands where texts do in `similarity`: texts, but for what can only be images."""
    if isinstance(texts, np.ndarray) and texts.dtype.kind in "OU":
        texts = texts.ravel().tolist()
    listed = isinstance(texts, Sequence) and not isinstance(texts, str | bytes | bytearray | Features)
    first = texts[0] if listed and len(texts) else texts
    return "image" if isinstance(first, _IMAGES) else "text"


def _checked(towers: Any) -> tuple[Tower, Tower]:
    if not isinstance(towers, tuple | list) or len(towers) != 2 or any(each not in TOWERS for each in towers):
        raise BayesVLMError(f'towers={towers!r}; name what both are, such as ("image", "image") or ("text", "text").')
    return towers[0], towers[1]


class ModelHead(BayesHead):
    """What `BayesVLM.head` returns: a head that knows the model it is of, and so can leave as a file."""

    def __init__(
        self, vlm: GaussianVLM, classes: Features, names: tuple[str, ...] | None, templates: Templates | None
    ) -> None:
        embedded, link = vlm.embed_texts(classes), vlm.settings.link
        options: dict[str, Any] = {"encode": vlm.image_features, "logit_bias": vlm.label_bias}
        super().__init__(vlm.image, vlm.posterior["image"], embedded, vlm.scale, link, **options)
        self._vlm, self._asked = vlm, (classes, names, templates)

    def export(self, path: str | Path, *, head_only: bool = False, progress: bool | None = None) -> Exported:
        """Write the model for these classes to a file; see `bayesvlm.serving.export_model`."""
        serving = import_module("bayesvlm.serving.export")  # by name: it is above this room, and needs an extra
        asked = serving.EncodedClasses(*self._asked)
        exported: Exported = serving.export_encoded(self._vlm, asked, path, head_only=head_only, progress=progress)
        return exported
