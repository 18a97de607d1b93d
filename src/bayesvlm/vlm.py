"""BayesVLM, the one object a user holds: it introduces the model, the posterior and the predictions to each other."""

from __future__ import annotations

import json
import math
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace as dataclass_replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NoReturn, cast, get_args

import torch
from PIL import Image
from torch import Tensor

from bayesvlm.artifacts import PosteriorConfig, SavedPosterior, hub
from bayesvlm.artifacts.saved import LamSource
from bayesvlm.artifacts.weights import check_weights, encoder_hashes, same_encoder, same_weights, weight_hashes
from bayesvlm.classes import class_names, label_indices, warn_of_one_class
from bayesvlm.core.contrast import DEFAULT_MEMORY, Precision
from bayesvlm.core.cosine import CosineMoments, prob_cosine
from bayesvlm.core.embeddings import GaussianEmbeddings
from bayesvlm.core.errors import BayesVLMError, BayesVLMWarning, ReadOnlyError, check_choice
from bayesvlm.core.estimation import TOWERS, FactorEstimator, Loss, Normalise, Tower, best_lams
from bayesvlm.core.evidence import Structure
from bayesvlm.core.factors import KroneckerFactors
from bayesvlm.core.features import Features
from bayesvlm.core.frozen import FrozenDict
from bayesvlm.core.head import BayesHead, PlainHead
from bayesvlm.core.inverted import InvertedPosterior
from bayesvlm.core.posterior import Covariance, Posterior
from bayesvlm.core.predict import (
    EntropySplit,
    Link,
    Prediction,
    centred_probit,
    monte_carlo,
    plain_logits,
    probit,
    sigmoid_probit,
)
from bayesvlm.core.predicted import PredictedVariance
from bayesvlm.core.projection import Projection
from bayesvlm.core.tuning import DEFAULT_TAUS, TauGrid, search_tau
from bayesvlm.data.pairs import PairSet
from bayesvlm.embedded import embedded_model
from bayesvlm.fitting import estimate_factors
from bayesvlm.images.decoding import ImageLike
from bayesvlm.models import Adapter, load_adapter, resolve_device
from bayesvlm.models.openclip_loading import local_source
from bayesvlm.progress import progress_bar
from bayesvlm.settings import Settings

Method = Literal["probcosine", "mean", "native"]
_LARGEST_SCALE = 10_000  # of temperatures: CLIP's is cut at 100, SigLIP's is 118, others reach some hundreds
Given = InvertedPosterior | PredictedVariance  # what a checkpoint may bring in the place of Kronecker factors


class BayesVLM:
    """A vision-language model whose similarities come with an uncertainty.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> draw = lambda *shape: torch.randn(*shape, generator=generator)
        >>> vlm = BayesVLM.from_projections(draw(8, 16), draw(8, 12), logit_scale=2.0)
        >>> _ = vlm.fit([(Features(draw(100, 16)), Features(draw(100, 12)))])
        >>> vlm.classify(Features(draw(5, 16)), Features(draw(3, 12))).probs.shape
        torch.Size([5, 3])
    """

    image: Projection
    text: Projection
    logit_scale: float
    logit_bias: float | None
    loss: Loss
    adapter: Adapter | None
    settings: Settings
    provenance: dict[str, Any]
    _factors: dict[Tower, KroneckerFactors] | None
    _normalise: Normalise | None
    _given: Mapping[Tower, Given] | None
    _all_weights: dict[str, str] | None

    def __init__(
        self,
        image: Projection,
        text: Projection,
        logit_scale: float,
        logit_bias: float | None = None,
        loss: Loss = "infonce",
        adapter: Adapter | None = None,
        factors: dict[Tower, KroneckerFactors] | None = None,
        settings: Settings | None = None,
        normalise: Normalise | None = None,
        provenance: Mapping[str, Any] | None = None,
        given: Mapping[Tower, Given] | None = None,
        all_weights: Mapping[str, str] | None = None,
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
            logit_scale=_check_logit_scale(logit_scale),
            logit_bias=logit_bias,
            loss=loss,
            adapter=adapter,
            settings=settings or Settings(),
            provenance=dict(provenance or {}),
            _factors=None if factors is None else FrozenDict(factors),
            _normalise=normalise,
            _given=given,
            _all_weights=None if all_weights is None else dict(all_weights),
        )

    def _hold(self, **state: Any) -> None:
        """Set what it holds, and drop what was derived from what it held before."""
        for name in ("_lam", "posterior"):
            self.__dict__.pop(name, None)
        self.__dict__.update(state)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise ReadOnlyError(
            f"vlm.{name} is read-only, because what was computed from it would stay as it was; "
            "vlm.replace(tau=..., lam=..., structure=..., covariance=..., link=...) returns a new BayesVLM with other "
            "settings, from_pretrained and from_projections one with other weights."
        )

    # Making one ------------------------------------------------------------------------------------------------------

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        model: str | Path | None = None,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        revision: str | None = None,
        strict: bool = False,
    ) -> BayesVLM:
        """Load a model, or a saved posterior with its model.

        Args:
            name: a model (docs/models.md has all kinds): a Hub id or folder of transformers' CLIP, SigLIP and SigLIP 2,
                "open_clip:ViT-B-32/laion2b_s34b_b79k", ProLIP and PCME++, which predict variances themselves; a saved
                posterior (folder or Hub id), which brings the model it was estimated for; or an embedded model:
                "emoji-clip", "emoji-clip-colour" and "emoji-siglip", which come with a posterior, "emoji-prolip".
            model: the model to use with a saved posterior, where it has moved; its weights must be the same.
            device: None takes CUDA where there is one.
            dtype: of the encoder; None is float32.
            revision: branch, tag or commit on the Hub.
            strict: refuse a posterior that was estimated with another encoder in front of the same projections (one
                whose towers were fine-tuned since, for instance), instead of warning.
        """
        target = resolve_device(device)
        folder = hub.find_posterior(name, revision)
        if folder is None:
            if model is not None:
                raise BayesVLMError(
                    f"{name} is a model and no saved posterior, so model={str(model)!r} has no use; leave it out."
                )
            return cls._from_adapter(load_adapter(str(name), device=target, dtype=dtype, revision=revision))
        saved = SavedPosterior.load(folder)
        if model is None and saved.projections is not None and saved.config.model is None:
            projections = {tower: saved.projections[tower].to(target) for tower in TOWERS}
            config = saved.config
            scale = cast(float, config.logit_scale)
            vlm = cls(projections["image"], projections["text"], scale, config.logit_bias, config.loss)
        else:
            source = model or saved.config.model
            if source is None:
                raise BayesVLMError(
                    f"{name} does not name its model; give the one it belongs to with model=... or --model."
                )
            pinned = saved.config.revision if model is None else None
            try:
                vlm = cls._from_adapter(load_adapter(str(source), device=target, dtype=dtype, revision=pinned))
            except BayesVLMError as error:
                raise BayesVLMError(
                    f"The model of the posterior {name} could not be loaded (if it has moved, say where with "
                    f"model=... or --model): {error}"
                ) from error
        return vlm.with_posterior(saved, strict=strict)

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
    ) -> BayesVLM:
        """For people who only have features: the two projections and the temperature's logarithm, no encoder."""
        image, text = Projection(image_weight, image_bias), Projection(text_weight, text_bias)
        bias = None if logit_bias is None else float(logit_bias)
        return cls(image, text, logit_scale, bias, loss)

    @classmethod
    def _from_adapter(cls, adapter: Adapter) -> BayesVLM:
        model = (adapter.image, adapter.text, adapter.logit_scale, adapter.logit_bias, adapter.loss)
        return cls(*model, adapter=adapter, given=adapter.posterior)

    def with_posterior(self, saved: SavedPosterior, *, strict: bool = False) -> BayesVLM:
        """This model with a saved posterior, which must be for these very projections.

        That of a fine-tuned model must be for the weights it was fine-tuned from, and brings its own projections. An
        encoder that differs elsewhere gets a warning, or with `strict` an error.
        """
        name = self.adapter.name if self.adapter else "these projections"
        config = saved.config
        if self.predicts_variance:
            self._check_free("It takes no posterior")
        tuned: dict[str, Any] = {}
        if config.encoder_weights is not None and not same_weights(config.weights or {}, self.image, self.text):
            check_weights(config.encoder_weights, config.model, self.image, self.text, name)
            tuned = self._tuned(saved)
        elif config.weights is not None:
            check_weights(config.weights, config.model, self.image, self.text, name)
        all_weights = config.all_weights if config.weights is not None else self._encoder_hashes()
        if config.all_weights is not None and self.adapter is not None:
            self._check_encoder(config, strict)
        for entry in ("loss", "logit_scale", "logit_bias"):
            had, have = getattr(config, entry), getattr(self, entry)
            if had is not None and had != have:
                raise BayesVLMError(
                    f"This posterior was estimated with {entry} = {had}, but it is {have} for {name}; the curvature "
                    "depends on it, so fit a posterior for this model."
                )
        settings = Settings(
            tau=config.tau,
            lam=config.lam if config.lam_source == "given" else None,
            structure=config.structure,
            covariance=config.covariance,
            link=config.link,
        )
        factors = {tower: saved.factors[tower].to(self.device) for tower in TOWERS}
        kept = {"normalise": config.normalise, "provenance": config.provenance, "all_weights": all_weights}
        vlm = self._copy(factors=factors, given=None, settings=settings, **kept, **tuned)
        _ = vlm.posterior  # shapes are checked here, not at the first prediction
        return vlm

    def _encoder_hashes(self) -> dict[str, str] | None:
        return None if self.adapter is None else encoder_hashes(self.adapter.model.parameters())

    def _check_encoder(self, config: PosteriorConfig, strict: bool) -> None:
        """Say so where this is not the encoder a posterior was estimated with."""
        adapter = self._encoder("images")
        if same_encoder(config.all_weights or {}, adapter.model.parameters()):
            return
        message = (
            f"{adapter.name} is not the encoder this posterior was estimated with ({config.model or 'not named'}): the "
            "projections are the same, but other weights differ, as after fine-tuning or LoRA, so its variances are "
            "about activations that this encoder does not produce; load the encoder it was made with, or fit a "
            "posterior for this one"
        )
        if strict:
            raise BayesVLMError(f"{message}.")
        warnings.warn(f"{message} (strict=True, or --strict, refuses it).", BayesVLMWarning, stacklevel=4)

    def _tuned(self, saved: SavedPosterior) -> dict[str, Projection]:
        """The projections of a fine-tuned model, which are kept with its posterior."""
        found = {}
        for tower, projection in (saved.projections or {}).items():
            own: Projection = getattr(self, tower)
            found[str(tower)] = dataclass_replace(projection.to(own.weight), residual=own.residual)
        file = "projections.safetensors"
        check_weights(saved.config.weights or {}, saved.config.model, found["image"], found["text"], file)
        return found

    def replace(
        self,
        *,
        tau: float | None = None,
        lam: Mapping[str, float] | Literal["evidence"] | None = None,
        structure: Structure | None = None,
        covariance: Covariance | None = None,
        link: Link | None = None,
    ) -> BayesVLM:
        """A new BayesVLM that differs in what is given.

        lam follows tau and the structure by the evidence. One that is given here stays until lam="evidence" is.
        """
        changes: dict[str, Any] = {
            "tau": tau,
            "lam": lam,
            "structure": structure,
            "covariance": covariance,
            "link": link,
        }
        given = {name: value for name, value in changes.items() if value is not None}
        fixed = [name for name in given if name != "link"]
        if fixed:
            self._check_free(f"{fixed[0]} cannot be changed")
        if lam == "evidence":
            given["lam"] = None
        return self._copy(settings=dataclass_replace(self.settings, **given))

    def with_image_projection(self, image: Projection, factors: KroneckerFactors) -> BayesVLM:
        """This model with another projection of its image tower and the factors that go with it.

        lam follows by the evidence, unless it was given.
        """
        return self._copy(image=image.to(self.image.weight), factors={**self.factors, "image": factors})

    def without_posterior(self) -> BayesVLM:
        """The bare model with its projections as they are, fine-tuned or not, and the paper's settings.

        Variances that a model predicts are part of it, and stay.
        """
        given = self._given if self.predicts_variance else None
        bare: dict[str, Any] = {"factors": None, "normalise": None, "provenance": {}, "all_weights": None}
        return self._copy(given=given, settings=Settings(), **bare)

    def _copy(self, **changes: Any) -> BayesVLM:
        kept: dict[str, Any] = {
            "image": self.image,
            "text": self.text,
            "logit_scale": self.logit_scale,
            "logit_bias": self.logit_bias,
            "loss": self.loss,
            "adapter": self.adapter,
            "factors": self._factors,
            "given": self._given,
            "settings": self.settings,
            "normalise": self._normalise,
            "provenance": self.provenance,
            "all_weights": self._all_weights,
        }
        return BayesVLM(**{**kept, **changes})

    # What it holds ---------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self.image.weight.device

    @property
    def scale(self) -> float:
        """t = exp(logit_scale)."""
        return math.exp(self.logit_scale)

    @property
    def tau(self) -> float:
        self._check_free("tau is not known")
        return self.settings.tau

    @property
    def predicts_variance(self) -> bool:
        """Whether the model brings its own variances (ProLIP, PCME++): there is no posterior to fit then."""
        return self._given is not None and isinstance(self._given["image"], PredictedVariance)

    @property
    def fitted(self) -> bool:
        """Whether embeddings have a variance."""
        return self._factors is not None or self._given is not None

    @property
    def factors(self) -> dict[Tower, KroneckerFactors]:
        """Kronecker factors of each tower: `.A`, `.B` (1/sqrt(n) included), `.n`."""
        self._check_free("There are no factors to read, update or save")
        if self._factors is None:
            raise BayesVLMError(
                "This model has no posterior yet; call fit(pairs) with image-text pairs, or load a saved posterior."
            )
        return self._factors

    @property
    def normalise(self) -> Normalise | None:
        """How the sigmoid loss was normalised when the factors were estimated."""
        return self._normalise

    @property
    def lam(self) -> dict[str, float]:
        """Prior precision of each tower: as given, or by the evidence."""
        return self._lam

    @cached_property
    def _lam(self) -> dict[str, float]:
        if self.settings.lam is not None:
            return FrozenDict(self.settings.lam)
        norms: dict[str, float] = {tower: getattr(self, tower).norm_squared for tower in TOWERS}
        return FrozenDict(best_lams(self.factors, norms, self.tau, self.settings.structure))

    def _check_free(self, what: str) -> None:
        """Refuse what takes Kronecker factors where the model brought its variances some other way."""
        if self._given is not None:
            name = self.adapter.name if self.adapter else "this model"
            raise BayesVLMError(f"{what}: {name} {self._given['image'].WHY}.")

    @cached_property
    def posterior(self) -> Mapping[Tower, Posterior | Given]:
        """What gives each tower's embeddings their variance: the Gaussian over its projection, or what came with it."""
        if self._given is not None:
            return self._given
        structure, covariance = self.settings.structure, self.settings.covariance
        made: dict[Tower, Posterior] = {}
        for tower in TOWERS:
            projection, factors = getattr(self, tower), self.factors[tower]
            try:
                made[tower] = Posterior(projection, factors, self.tau, self._lam[tower], structure, covariance)
            except BayesVLMError as error:
                raise BayesVLMError(f"The {tower} tower: {error}") from None
        return FrozenDict(made)

    # Estimating the posterior ----------------------------------------------------------------------------------------

    def fit(
        self,
        pairs: Iterable[tuple[Any, Any]],
        negatives: int = 32768,
        *,
        normalise: Normalise = "paper",
        precision: Precision | None = None,
        memory: int = DEFAULT_MEMORY,
        checkpoint: str | Path | None = None,
        provenance: Mapping[str, Any] | None = None,
        total: int | None = None,
        progress: bool | None = None,
    ) -> BayesVLM:
        """Estimate the Kronecker factors of both towers from image-text pairs, in one pass, and set them here.

        Args:
            pairs: iterable of batches, each (images, texts) or (Features, Features); row i belongs to row i.
            negatives: size of a contrast batch; 32768 is the paper's.
            normalise: for the sigmoid loss, "paper" (divide by the batch) or "sum".
            precision, memory: of the curvature, see `bayesvlm.core.curvature`.
            checkpoint: a file the sums are kept in after every finished contrast batch; a later call with the same
                pairs and settings goes on from there. It is yours to delete once the posterior is saved.
            provenance: where the pairs came from; kept with the saved posterior.
            total: number of pairs, for the progress bar.
            progress: None shows a bar on a terminal.

        Returns:
            itself; tau and the other settings stay as they were, lam is left to the evidence again.
        """
        if self.predicts_variance:
            self._check_free("There is nothing to fit")
        estimator = FactorEstimator(
            self.image,
            self.text,
            self.scale,
            self.logit_bias or 0.0,
            self.loss,
            negatives,
            normalise,
            precision,
            memory,
        )
        record = {**(provenance or {}), "negatives": negatives}
        _check_json("provenance", record)
        weights = weight_hashes(self.image, self.text)["float32"]

        def encode(images: Any, texts: Any) -> tuple[Features, Features]:
            return self.image_features(images, progress=False), self.text_features(texts, progress=False)

        factors = estimate_factors(
            estimator,
            pairs.decoded(self._encoder("images").read_image) if isinstance(pairs, PairSet) else pairs,
            encode,
            checkpoint=None if checkpoint is None else Path(checkpoint),
            run={**record, "normalise": normalise, "weights": weights, "precision": precision},
            total=total,
            progress=progress,
        )
        for tower in TOWERS:
            factors[tower].check()
        n = factors["image"].n
        _warn_few(n, self.image, self.text)
        self._hold(
            settings=dataclass_replace(self.settings, lam=None),
            provenance={**record, "contrast": min(negatives, n), "pairs": n},
            _factors=FrozenDict(factors),
            _normalise=normalise if self.loss == "sigmoid" else None,
            _given=None,
            _all_weights=self._encoder_hashes(),
        )
        return self

    def tune(
        self,
        inputs: Any,
        labels: Sequence[int] | Sequence[str] | Tensor,
        classes: Sequence[str] | Features,
        *,
        taus: Sequence[float] = DEFAULT_TAUS,
        refine: bool = True,
        progress: bool | None = None,
    ) -> TauGrid:
        """Choose tau by the negative log predictive density on labelled inputs, lam by the evidence at each tau.

        Args:
            inputs: images or Features, [N].
            labels: indices into `classes`, or class names, [N].
            classes: names or prompts, or Features.
            taus: the grid; the paper's is 1, 5, 10, ..., 200, the default is log-spaced over 0.01 to 1e4.
            refine: search on between the best grid point's neighbours.

        Returns:
            every (tau, NLPD, lam) tried; the best is set here.
        """
        self._check_free("There is no tau to tune")
        names = class_names(classes)
        images, texts = self.image_features(inputs, progress=progress), self.text_features(classes)
        if len(texts) < 2:
            raise BayesVLMError(
                "There is one class only, so every tau predicts the same; tune with two classes or more."
            )
        target = label_indices(labels, names, len(images), len(texts)).to(self.device)
        base = self._copy(settings=dataclass_replace(self.settings, lam=None))

        def evaluate(tau: float) -> tuple[float, dict[str, float]]:
            candidate = base.replace(tau=tau)
            probs = candidate.classify(images, texts).probs
            tiny = torch.finfo(probs.dtype).tiny
            chosen = probs[torch.arange(len(target), device=probs.device), target]
            return -float(chosen.clamp_min(tiny).double().log().mean()), candidate.lam

        with progress_bar("tuning tau", total=None, unit="taus", show=progress) as advance:
            grid = search_tau(evaluate, taus, refine=refine, advance=advance)
        self._hold(settings=dataclass_replace(self.settings, tau=grid.best.tau, lam=None))
        grid.warn()
        return grid

    # Using it --------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def classify(
        self,
        inputs: Any,
        classes: Sequence[str] | Features,
        *,
        method: Method = "probcosine",
        draws: int = 128,
        seed: int = 0,
        progress: bool | None = None,
    ) -> Prediction:
        """Class probabilities of the inputs, with the moments of the cosines behind them.

        Args:
            inputs: images or Features, [N].
            classes: names or prompts as they are to be encoded, or Features, [C].
            method: "probcosine", by the moments of the cosine and the link of the settings; "mean", the softmax of the
                means' scaled cosines; "native", of the score that a model with variances of its own was trained with.
            draws: parameter draws for link="mc" and for `.monte_carlo`, which divides the entropy into `.epistemic` and
                `.aleatoric` (made when first asked for). They come from the posterior itself, whatever `covariance` is
                chosen for the analytic links.
            seed: of those draws.
        """
        check_choice("method", method, get_args(Method))
        names = class_names(classes)
        warn_of_one_class(classes, self.loss == "sigmoid", stacklevel=3)  # past the decorator, where it was called
        if method == "mean" and not self.fitted:
            raise BayesVLMError(
                "method='mean' needs a posterior, and there is none; vlm.plain gives the same probabilities."
            )
        if method == "native" and not self.predicts_variance:
            name = self.adapter.name if self.adapter else "This model"
            raise BayesVLMError(
                f"{name} predicts no variances, so its native score is the scaled cosine; use method='mean'."
            )
        images, texts = self.image_features(inputs, progress=progress), self.text_features(classes)
        embedded = self._embeddings(images, texts)
        moments, posterior, link = prob_cosine(*embedded), self.posterior, self.settings.link
        drawn = partial(monte_carlo, posterior["image"], images, posterior["text"], texts, self.scale, draws, seed)
        draw: EntropySplit | Callable[[], EntropySplit] = drawn
        by_label = partial(sigmoid_probit, moments, self.scale, self.logit_bias or 0.0)
        if method != "probcosine":
            scores = self.logits(images, texts) + (self.logit_bias or 0.0)
            if method == "native":
                scores = self._encoder("images").native_logits(*embedded)
            probs, by_label = torch.softmax(scores, dim=1), partial(torch.sigmoid, scores)
        elif link == "mc":
            draw = drawn()
            probs = draw.probs
        else:
            probs = (probit if link == "probit" else centred_probit)(moments, self.scale)
        return Prediction(probs, moments, names, draw, by_label if self.loss == "sigmoid" else None)

    @torch.no_grad()
    def head(self, classes: Sequence[str] | Features) -> BayesHead:
        """A classifier for these classes alone: `head(inputs)` is `classify(inputs, classes).probs` at little more
        than the cost of `plain`.

        The classes are encoded once. `head.probs(activations, residual)` takes tensors straight from an encoder and
        checks nothing: what images that come one at a time need. Damped posteriors with an analytic link only.

        Args:
            classes: names or prompts, or Features, [C].
        """
        class_names(classes)
        embedded, link = self.embed_texts(classes), self.settings.link
        return BayesHead(self.posterior["image"], embedded, self.scale, link, self.image_features)

    @torch.no_grad()
    def plain_head(self, classes: Sequence[str] | Features) -> PlainHead:
        """The same for `plain`: what `head` is to be compared with. Needs no fit."""
        class_names(classes)
        return PlainHead(self.image, self.text.embed(self.text_features(classes)), self.scale, self.image_features)

    @torch.no_grad()
    def similarity(self, inputs: Any, texts: Any, *, progress: bool | None = None) -> CosineMoments:
        """Mean and variance of the cosine of every input with every text, and `.interval(0.95)`."""
        return prob_cosine(*self._embeddings(self.image_features(inputs, progress=progress), self.text_features(texts)))

    @torch.no_grad()
    def logits(self, inputs: Any, classes: Sequence[str] | Features) -> Tensor:  # [N, C]
        """The scaled cosines t cos(g, h) of the model without a posterior; what temperature scaling divides."""
        class_names(classes)
        images, texts = self.image_features(inputs), self.text_features(classes)
        return plain_logits(self.image.embed(images), self.text.embed(texts), self.scale)

    def plain(self, inputs: Any, classes: Sequence[str] | Features) -> Tensor:  # [N, C]
        """What the model says without a posterior: softmax of scaled cosines. Needs no fit."""
        return torch.softmax(self.logits(inputs, classes), dim=1)

    @torch.no_grad()
    def embed_images(self, inputs: Any, *, progress: bool | None = None) -> GaussianEmbeddings:
        """Gaussian embeddings of images (or their Features)."""
        return self.posterior["image"].embed(self.image_features(inputs, progress=progress))

    @torch.no_grad()
    def embed_texts(self, inputs: Any) -> GaussianEmbeddings:
        """Gaussian embeddings of texts (or their Features)."""
        return self.posterior["text"].embed(self.text_features(inputs))

    def image_features(self, inputs: Any, *, progress: bool | None = None) -> Features:
        """Activations of images; Features pass through."""
        if isinstance(inputs, Features):
            return inputs.to(self.device)
        return self._encoder("images").encode_images(inputs, progress=progress)

    def read_image(self, image: ImageLike, label: str = "the image") -> Image.Image:
        """One image as this model looks at it: upright RGB, no larger than its own preprocessing leaves it."""
        return self._encoder("images").read_image(image, label)

    def text_features(self, inputs: Any, *, progress: bool | None = None) -> Features:
        """Activations of texts; Features pass through."""
        if isinstance(inputs, Features):
            return inputs.to(self.device)
        return self._encoder("texts").encode_texts(inputs, progress=progress)

    def _encoder(self, what: str) -> Adapter:
        if self.adapter is None:
            raise BayesVLMError(
                f"This BayesVLM was made from projections and cannot encode {what}; pass Features(activations) instead."
            )
        return self.adapter

    def _embeddings(self, images: Features, texts: Features) -> tuple[GaussianEmbeddings, GaussianEmbeddings]:
        return self.posterior["image"].embed(images), self.posterior["text"].embed(texts)

    # Keeping it ------------------------------------------------------------------------------------------------------

    def saved(self, model: str | None = None) -> SavedPosterior:
        """The posterior as it is kept on disk; `model` overrides the id or folder recorded for the encoder."""
        factors = self.factors
        own = None if self.adapter is None else self.adapter.image.to(self.image.weight)
        tuned = own is not None and not torch.equal(self.image.augmented, own.augmented)
        source: LamSource = "evidence" if self.settings.lam is None else "given"
        config = PosteriorConfig(
            loss=self.loss,
            logit_scale=self.logit_scale,
            logit_bias=self.logit_bias,
            normalise=self._normalise,
            tau=self.tau,
            lam=self.lam,
            lam_source=source,
            structure=self.settings.structure,
            covariance=self.settings.covariance,
            link=self.settings.link,
            weights=weight_hashes(self.image, self.text),
            weight_norm_squared={tower: getattr(self, tower).norm_squared for tower in TOWERS},
            bias={tower: getattr(self, tower).bias is not None for tower in TOWERS},
            model=model or (_lasting(self.adapter.name) if self.adapter else None),
            revision=self.adapter.revision if self.adapter and not model else None,
            encoder_weights=weight_hashes(own, self.text) if own is not None and tuned else None,
            all_weights=self._all_weights,
            provenance=self.provenance,
        )
        projections: dict[Tower, Projection] | None = None
        if self.adapter is None or tuned:
            projections = {"image": self.image, "text": self.text}
        return SavedPosterior(factors, config, projections)

    def save_pretrained(self, folder: str | Path, *, model: str | None = None) -> Path:
        """Save the posterior (not the encoder) as a folder that `from_pretrained` loads.

        Of a fine-tuned model the projections are saved too; the rest of the encoder is that of the model it came from.

        Args:
            folder: made if need be; files of an earlier save are replaced (it is the commands that refuse to).
            model: the encoder's id to record instead of where it was loaded from.
        """
        if not str(folder):
            raise BayesVLMError("The folder to save to is ''; name one, such as 'posterior'.")
        try:
            return self.saved(model).save(folder)
        except OSError as error:
            reason = error.strerror or str(error)
            raise BayesVLMError(f"A posterior cannot be saved to {folder}: {reason}; give another folder.") from None

    def push_to_hub(
        self, repo_id: str, *, model: str | None = None, private: bool = False, token: str | None = None
    ) -> str:
        """Upload the saved posterior to the Hugging Face Hub; returns its address.

        Args:
            repo_id: "you/name"; made if need be.
            model: the Hub id of the encoder, needed when it was loaded from a folder nobody else has.
            private, token: as for `huggingface_hub`.
        """
        local = None if self.adapter is None else local_source(self.adapter.name)
        if model is None and local is not None:
            raise BayesVLMError(
                f"The encoder was loaded from {local}, which nobody else has; say where others find it: "
                "push_to_hub(..., model='its/hub-id')."
            )
        with tempfile.TemporaryDirectory() as folder:
            return hub.upload(self.save_pretrained(Path(folder) / "posterior", model=model), repo_id, private, token)

    def __repr__(self) -> str:
        name = self.adapter.name if self.adapter else "projections"
        state = f"n={self._factors['image'].n}, {self.settings}" if self._factors else "no posterior yet"
        if self._given is not None:
            state = "variances of its own" if self.predicts_variance else "a published posterior"
        return f"BayesVLM({name}, loss={self.loss}, t={self.scale:.4g}, {state})"


def _lasting(name: str) -> str:
    """A model's folder as a path that holds from any working directory; a Hub id or an embedded one as it is."""
    folder = Path(name).expanduser()
    return str(folder.resolve()) if folder.is_dir() and embedded_model(name) is None else name


def _check_logit_scale(logit_scale: float) -> float:
    """The temperature's logarithm as a float, if a model may have been trained with it."""
    try:
        found = float(logit_scale)
    except (TypeError, ValueError, RuntimeError):
        found = math.nan
    if not math.isfinite(found):
        raise BayesVLMError(
            f"logit_scale={str(logit_scale)[:40]}; it must be a number, the logarithm of the temperature, as CLIP "
            "stores it (about 4.6)."
        )
    if found > math.log(_LARGEST_SCALE):
        size = f" = {math.exp(found):.2g}" if found < 700 else ""
        raise BayesVLMError(
            f"logit_scale={found:g} means the temperature t = exp({found:g}){size}, and no model is trained beyond "
            f"{_LARGEST_SCALE:,}; it must be the logarithm, as CLIP stores it: log({found:g}) = {math.log(found):.3g} "
            f"where t is {found:g}."
        )
    return found


def _warn_few(pairs: int, image: Projection, text: Projection) -> None:
    """Say so where there are fewer pairs than a tower's activations have directions."""
    widest = max(image.input_width, text.input_width)
    if pairs < widest:
        warnings.warn(
            f"The posterior is estimated from {pairs} pairs, fewer than the {widest} numbers that enter a projection "
            f"(its embeddings have {image.embedding_width}): in the directions that no pair shows it is the prior, and "
            "its variances say little; fit on thousands of pairs.",
            BayesVLMWarning,
            stacklevel=3,
        )


def _check_json(name: str, value: Mapping[str, Any]) -> None:
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise BayesVLMError(
            f"{name} is kept as json, and cannot be: {error}; use text, numbers, lists and dicts."
        ) from None
