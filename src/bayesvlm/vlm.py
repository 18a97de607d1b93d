"""BayesVLM, the one object a user holds: it introduces the model, the posterior and the predictions to each other."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor

from bayesvlm.artifacts import PosteriorConfig, SavedPosterior, hub
from bayesvlm.artifacts.checkpoint import restore_checkpoint, save_checkpoint
from bayesvlm.artifacts.saved import LamSource, evidence_lam
from bayesvlm.artifacts.weights import check_weights, weight_hashes
from bayesvlm.classes import class_names, label_indices
from bayesvlm.core.cosine import CosineMoments, prob_cosine
from bayesvlm.core.curvature import DEFAULT_MEMORY, Precision
from bayesvlm.core.embeddings import GaussianEmbeddings
from bayesvlm.core.errors import BayesVLMError, check_choice, check_positive
from bayesvlm.core.estimation import TOWERS, FactorEstimator, Loss, Tower
from bayesvlm.core.evidence import Structure
from bayesvlm.core.factors import KroneckerFactors
from bayesvlm.core.features import Features
from bayesvlm.core.posterior import Covariance, Posterior
from bayesvlm.core.predict import (
    Link,
    Prediction,
    centred_probit,
    monte_carlo,
    plain_softmax,
    probit,
    sigmoid_probit,
)
from bayesvlm.core.projection import Projection
from bayesvlm.core.tuning import DEFAULT_TAUS, TauGrid, search_tau
from bayesvlm.models import Adapter, load_adapter
from bayesvlm.progress import progress_bar


@dataclass(frozen=True)
class Settings:
    """How the posterior is formed and read; `lam` None means: by the evidence, again whenever tau changes."""

    tau: float = 1.0
    lam: Mapping[str, float] | None = None
    structure: Structure = "damped"
    covariance: Covariance = "diagonal"
    link: Link = "probit"

    def __post_init__(self) -> None:
        check_positive("tau", self.tau)
        check_choice("structure", self.structure, ("damped", "exact"))
        check_choice("covariance", self.covariance, ("diagonal", "full"))
        check_choice("link", self.link, ("probit", "centred", "mc"))
        if self.lam is not None:
            if set(self.lam) != set(TOWERS):
                raise BayesVLMError(f"lam={dict(self.lam)!r}; it takes both towers: {{'image': ..., 'text': ...}}.")
            for tower in TOWERS:
                check_positive(f"lam[{tower!r}]", self.lam[tower])


class BayesVLM:
    """A CLIP or SigLIP whose similarities come with an uncertainty.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> draw = lambda *shape: torch.randn(*shape, generator=generator)
        >>> vlm = BayesVLM.from_projections(draw(8, 16), draw(8, 12), logit_scale=2.0)
        >>> _ = vlm.fit([(Features(draw(100, 16)), Features(draw(100, 12)))])
        >>> vlm.classify(Features(draw(5, 16)), Features(draw(3, 12))).probs.shape
        torch.Size([5, 3])
    """

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
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        check_choice("loss", loss, ("infonce", "sigmoid"))
        if loss == "sigmoid" and logit_bias is None:
            raise BayesVLMError("loss='sigmoid' needs logit_bias, the bias the model adds to its logits.")
        if image.embedding_width != text.embedding_width:
            raise BayesVLMError(
                f"The image projection maps to {image.embedding_width} dimensions and the text projection to "
                f"{text.embedding_width}; both towers must meet in one space."
            )
        self.image, self.text = image, text
        self.logit_scale, self.logit_bias, self.loss = float(logit_scale), logit_bias, loss
        if not math.isfinite(self.logit_scale) or self.logit_scale > 30:
            raise BayesVLMError(
                f"logit_scale={logit_scale}; it is the logarithm of the temperature, as CLIP stores it (about 4.6)."
            )
        self.adapter = adapter
        self._factors = factors
        self.settings = settings or Settings()
        self.provenance = dict(provenance or {})

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
    ) -> BayesVLM:
        """Load a model, or a saved posterior with its model.

        Args:
            name: a model (Hub id or folder in the transformers layout: CLIP, SigLIP, SigLIP2), or a saved posterior
                (folder or Hub id), which brings the model it was estimated for.
            model: the model to use with a saved posterior, where it has moved; its weights must be the same.
            device: None takes CUDA where there is one.
            dtype: of the encoder; None is float32.
            revision: branch, tag or commit on the Hub.
        """
        folder = hub.find_posterior(name, revision)
        if folder is None:
            if model is not None:
                raise BayesVLMError(
                    f"{name} is a model, not a saved posterior; model={str(model)!r} goes with the latter."
                )
            return cls._from_adapter(load_adapter(str(name), device=device, dtype=dtype, revision=revision))
        saved = SavedPosterior.load(folder)
        if model is None and saved.projections is not None:
            projections = {tower: _on_device(saved.projections[tower], device) for tower in TOWERS}
            config = saved.config
            scale = cast(float, config.logit_scale)
            vlm = cls(projections["image"], projections["text"], scale, config.logit_bias, config.loss)
        else:
            source = model or saved.config.model
            if source is None:
                raise BayesVLMError(
                    f"{name} does not name its model; pass it: from_pretrained({str(name)!r}, model=...)."
                )
            pinned = saved.config.revision if model is None else None
            try:
                vlm = cls._from_adapter(load_adapter(str(source), device=device, dtype=dtype, revision=pinned))
            except BayesVLMError as error:
                raise BayesVLMError(
                    f"The posterior {name} needs its model (or another given as model): {error}"
                ) from error
        return vlm.with_posterior(saved)

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
        return cls(image, text, float(logit_scale), bias, loss)

    @classmethod
    def _from_adapter(cls, adapter: Adapter) -> BayesVLM:
        return cls(adapter.image, adapter.text, adapter.logit_scale, adapter.logit_bias, adapter.loss, adapter=adapter)

    def with_posterior(self, saved: SavedPosterior) -> BayesVLM:
        """This model with a saved posterior, which must be for these very weights."""
        name = self.adapter.name if self.adapter else "these projections"
        config = saved.config
        if config.weights is not None:
            check_weights(config.weights, config.model, self.image, self.text, name)
        settings = Settings(
            tau=config.tau,
            lam=config.lam if config.lam_source == "given" else None,
            structure=config.structure,
            covariance=config.covariance,
            link=config.link,
        )
        factors = {tower: saved.factors[tower].to(self.device) for tower in TOWERS}
        vlm = self._copy(factors=factors, settings=settings, provenance=config.provenance)
        if config.lam_source == "evidence":
            vlm.__dict__["lam"] = dict(config.lam)  # as saved: solved once, at fit
        _ = vlm.posterior  # shapes are checked here, not at the first prediction
        return vlm

    def replace(
        self,
        *,
        tau: float | None = None,
        lam: Mapping[str, float] | None = None,
        structure: Structure | None = None,
        covariance: Covariance | None = None,
        link: Link | None = None,
    ) -> BayesVLM:
        """A new BayesVLM that differs in what is given.

        lam follows tau and the structure by the evidence, unless it was ever given here: then it stays.
        """
        changes: dict[str, Any] = {
            "tau": tau,
            "lam": lam,
            "structure": structure,
            "covariance": covariance,
            "link": link,
        }
        settings = dataclass_replace(self.settings, **{k: v for k, v in changes.items() if v is not None})
        vlm = self._copy(settings=settings)
        if "lam" in self.__dict__ and lam is None and tau is None and structure is None:
            vlm.__dict__["lam"] = dict(self.lam)
        return vlm

    def _copy(self, **changes: Any) -> BayesVLM:
        kept: dict[str, Any] = {
            "adapter": self.adapter,
            "factors": self._factors,
            "settings": self.settings,
            "provenance": self.provenance,
        }
        return BayesVLM(self.image, self.text, self.logit_scale, self.logit_bias, self.loss, **{**kept, **changes})

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
        return self.settings.tau

    @property
    def fitted(self) -> bool:
        return self._factors is not None

    @property
    def factors(self) -> dict[Tower, KroneckerFactors]:
        """Kronecker factors of each tower: `.A`, `.B` (1/sqrt(n) included), `.n`."""
        if self._factors is None:
            raise BayesVLMError(
                "This model has no posterior yet; call fit(pairs) with image-text pairs, or load a saved posterior."
            )
        return self._factors

    @cached_property
    def lam(self) -> dict[str, float]:
        """Prior precision of each tower: as given, or by the evidence."""
        if self.settings.lam is not None:
            return dict(self.settings.lam)
        norms: dict[str, float] = {tower: getattr(self, tower).norm_squared for tower in TOWERS}
        return evidence_lam(self.factors, norms, self.tau, self.settings.structure)

    @cached_property
    def posterior(self) -> dict[Tower, Posterior]:
        """The Gaussian over each tower's projection."""
        structure, covariance = self.settings.structure, self.settings.covariance
        return {
            tower: Posterior(
                getattr(self, tower), self.factors[tower], self.tau, self.lam[tower], structure, covariance
            )
            for tower in TOWERS
        }

    # Estimating the posterior ----------------------------------------------------------------------------------------

    def fit(
        self,
        pairs: Iterable[tuple[Any, Any]],
        negatives: int = 32768,
        *,
        normalise: Literal["paper", "sum"] = "paper",
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
                pairs and settings goes on from there. Removed when the fit is done.
            provenance: where the pairs came from; kept with the saved posterior.
            total: number of pairs, for the progress bar.
            progress: None shows a bar on a terminal.

        Returns:
            itself, with the settings as they were; lam is solved anew, unless it was given.
        """
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
        if self.loss == "sigmoid":
            record["normalise"] = normalise
        run = {**record, "weights": weight_hashes(self.image, self.text)["float32"], "precision": precision}
        path = None if checkpoint is None else Path(checkpoint)
        done = restore_checkpoint(path, estimator, run) if path else 0
        with progress_bar("estimating the posterior", total=total, unit="pairs", show=progress) as advance:
            advance(done)
            skip = done
            for images, texts in pairs:
                images, texts = _as_batch(images), _as_batch(texts)
                _check_pair_lengths(images, texts)
                taken = len(texts)
                if skip:
                    images, texts = images[skip:], texts[skip:]
                    skip -= min(skip, taken)
                closed = estimator.pairs_closed
                if len(texts):
                    estimator.update(
                        self.image_features(images, progress=False), self.text_features(texts, progress=False)
                    )
                    advance(len(texts))
                if path and estimator.pairs_closed > closed:
                    save_checkpoint(path, estimator, run)
        factors = estimator.factors()
        self._forget()
        self._factors = factors
        self.provenance = {**record, "pairs": factors["image"].n}
        if path:
            path.unlink(missing_ok=True)
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
        names = class_names(classes)
        images, texts = self.image_features(inputs, progress=progress), self.text_features(classes)
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
        self._forget()
        self.settings = dataclass_replace(self.settings, tau=grid.best.tau, lam=None)
        return grid

    # Using it --------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def classify(
        self,
        inputs: Any,
        classes: Sequence[str] | Features,
        *,
        draws: int = 128,
        seed: int = 0,
        progress: bool | None = None,
    ) -> Prediction:
        """Class probabilities of the inputs, with the moments of the cosines behind them.

        Args:
            inputs: images or Features, [N].
            classes: names or prompts as they are to be encoded, or Features, [C].
            draws: parameter draws for link="mc" and for `.epistemic` / `.aleatoric` (made when first asked for).
            seed: of those draws.
        """
        names = class_names(classes)
        images, texts = self.image_features(inputs, progress=progress), self.text_features(classes)
        moments = prob_cosine(*self._embeddings(images, texts))
        posterior = self.posterior

        def split() -> Any:
            return monte_carlo(posterior["image"], images, posterior["text"], texts, self.scale, draws, seed)

        link = self.settings.link
        if link == "mc":
            result = split()
            probs, split = result.probs, lambda: result
        else:
            probs = (probit if link == "probit" else centred_probit)(moments, self.scale)
        return Prediction(probs, moments, names, split, self._label_link)

    @torch.no_grad()
    def similarity(self, inputs: Any, texts: Any, *, progress: bool | None = None) -> CosineMoments:
        """Mean and variance of the cosine of every input with every text, and `.interval(0.95)`."""
        return prob_cosine(*self._embeddings(self.image_features(inputs, progress=progress), self.text_features(texts)))

    @torch.no_grad()
    def plain(self, inputs: Any, classes: Sequence[str] | Features) -> Tensor:  # [N, C]
        """What the model says without a posterior: softmax of scaled cosines. Needs no fit."""
        class_names(classes)
        images, texts = self.image_features(inputs), self.text_features(classes)
        return plain_softmax(self.image.embed(images), self.text.embed(texts), self.scale)

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

    @property
    def _label_link(self) -> Callable[[CosineMoments], Tensor] | None:
        """Per-label probabilities, for models trained with the sigmoid loss."""
        scale, bias = self.scale, self.logit_bias
        if self.loss != "sigmoid" or bias is None:
            return None
        return lambda moments: sigmoid_probit(moments, scale, bias)

    def _forget(self) -> None:
        """Drop what was derived from the factors and settings that are about to change."""
        for name in ("lam", "posterior"):
            self.__dict__.pop(name, None)

    # Keeping it ------------------------------------------------------------------------------------------------------

    def saved(self, model: str | None = None) -> SavedPosterior:
        """The posterior as it is kept on disk; `model` overrides the id or folder recorded for the encoder."""
        source: LamSource = "evidence" if self.settings.lam is None else "given"
        config = PosteriorConfig(
            loss=self.loss,
            logit_scale=self.logit_scale,
            logit_bias=self.logit_bias,
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
            provenance=self.provenance,
        )
        projections: dict[Tower, Projection] | None = None
        if self.adapter is None:
            projections = {"image": self.image, "text": self.text}
        return SavedPosterior(self.factors, config, projections)

    def save_pretrained(self, folder: str | Path, *, model: str | None = None) -> Path:
        """Save the posterior (not the encoder) as a folder that `from_pretrained` loads.

        Args:
            folder: made if need be; files of an earlier save are replaced.
            model: the encoder's id to record instead of where it was loaded from.
        """
        return self.saved(model).save(folder)

    def push_to_hub(
        self, repo_id: str, *, model: str | None = None, private: bool = False, token: str | None = None
    ) -> str:
        """Upload the saved posterior to the Hugging Face Hub; returns its address."""
        with tempfile.TemporaryDirectory() as folder:
            return hub.upload(self.save_pretrained(Path(folder) / "posterior", model=model), repo_id, private, token)

    def __repr__(self) -> str:
        name = self.adapter.name if self.adapter else "projections"
        state = f"n={self._factors['image'].n}, {self.settings}" if self._factors else "no posterior yet"
        return f"BayesVLM({name}, loss={self.loss}, t={self.scale:.4g}, {state})"


def _on_device(projection: Projection, device: str | torch.device | None) -> Projection:
    target = torch.device(device) if device else torch.device("cuda" if torch.cuda.is_available() else "cpu")
    bias = None if projection.bias is None else projection.bias.to(target)
    return Projection(projection.weight.to(target), bias, projection.residual)


def _lasting(name: str) -> str:
    """A model's folder as a path that holds from any working directory; a Hub id as it is."""
    return str(Path(name).expanduser().resolve()) if Path(name).expanduser().is_dir() else name


def _as_batch(values: Any) -> Any:
    """A batch as something with a length: one text or path is a batch of one."""
    if isinstance(values, (str, Path, bytes)) or not hasattr(values, "__len__"):
        return [values]
    return values


def _check_pair_lengths(images: Any, texts: Any) -> None:
    if len(images) != len(texts):
        raise BayesVLMError(f"A batch has {len(images)} images and {len(texts)} texts; pairs need equally many.")
