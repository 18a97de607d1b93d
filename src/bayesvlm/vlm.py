"""BayesVLM, the one object a user holds: it introduces the model, the posterior and the predictions to each other."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace as with_changes
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor

from bayesvlm import pretrained
from bayesvlm.artifacts import SavedPosterior
from bayesvlm.classes import class_names, label_indices
from bayesvlm.core.contrast import Precision
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.estimation import TOWERS, Normalise, Tower
from bayesvlm.core.evidence import Structure
from bayesvlm.core.factors import KroneckerFactors
from bayesvlm.core.features import Features
from bayesvlm.core.fingerprints import packed
from bayesvlm.core.frozen import FrozenDict
from bayesvlm.core.notebook import html_table
from bayesvlm.core.projection import Projection
from bayesvlm.core.settings import Covariance, Link, Settings
from bayesvlm.core.tuning import DEFAULT_TAUS, TauGrid
from bayesvlm.data.pairs import PairPlan
from bayesvlm.fitting import FitSettings, SumGroups, fit_factors, planned
from bayesvlm.gaussian import GaussianVLM
from bayesvlm.models import resolve_device
from bayesvlm.predicting import tuned_taus
from bayesvlm.prompts import ClassNames, Templates

_OF_TUNING = ("tuned_on", "tuned_with", "tuned_images", "validation_nlpd")  # what provenance says of how tau was found


class BayesVLM(GaussianVLM):
    """A vision-language model whose similarities come with an uncertainty.

    `fit` and `tune` change it and return it; everything else returns a new object. What is seen is read-only.

    It has the attributes of `GaussianVLM` and `PlainVLM`, too.

    Attributes:
        tuning: every tau that `tune` tried; None where tau is not of `tune`.
        normalise: how the sigmoid loss was normalised when the factors were estimated.
        provenance: where the posterior came from; kept with it.
        encoder_hashes: of the encoder the posterior was estimated with, where that is known.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> draw = lambda *shape: torch.randn(*shape, generator=generator)
        >>> vlm = BayesVLM.from_projections(draw(8, 16), draw(8, 12), logit_scale=2.0)
        >>> _ = vlm.fit([(Features(draw(100, 16)), Features(draw(100, 12)))])
        >>> vlm.classify(Features(draw(5, 16)), Features(draw(3, 12))).probs.shape
        torch.Size([5, 3])
    """

    tuning: TauGrid | None = None
    normalise: Normalise | None = None
    provenance: Mapping[str, Any] = FrozenDict()
    encoder_hashes: Mapping[str, str] | None = None

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
    ) -> Self:
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
        found = pretrained.find(name, model=model, device=device, dtype=dtype, revision=revision)
        vlm = cls(**found.model)
        if vlm.adapter is not None and vlm.adapter.posterior is not None:
            vlm = vlm.with_distributions(vlm.adapter.posterior)
        return vlm if found.posterior is None else vlm.with_posterior(found.posterior, strict=strict)

    def with_posterior(self, saved: SavedPosterior, *, strict: bool = False) -> Self:
        """This model with a saved posterior, which must be for these very projections.

        That of a fine-tuned model must be for the weights it was fine-tuned from, and brings its own projections. An
        encoder that differs elsewhere gets a warning, or with `strict` an error.
        """
        if self.predicts_variance:
            self.posterior["image"].kronecker("It takes no posterior")
        found = pretrained.attach(self, saved, strict)
        return self._changed(
            image=found.image,
            text=found.text,
            settings=found.settings,
            tuning=None,
            normalise=found.normalise,
            provenance=FrozenDict(found.provenance),
            encoder_hashes=found.encoder_hashes,
            _posterior=FrozenDict(found.posterior),
        )

    def without_posterior(self) -> Self:
        """The bare model with its projections as they are, fine-tuned or not, and the paper's settings.

        Variances that a model predicts are part of it, and stay.
        """
        kept = self._posterior if self.predicts_variance else None
        nothing: dict[str, Any] = {
            "tuning": None,
            "normalise": None,
            "provenance": FrozenDict(),
            "encoder_hashes": None,
        }
        return self._changed(settings=Settings(), _posterior=kept, **nothing)

    def with_factors(self, factors: Mapping[Tower, KroneckerFactors]) -> Self:
        """This model with Kronecker factors of its projections that were estimated elsewhere, read as it is set.

        Where they came from is yours to say, with `with_provenance`.
        """
        towers: dict[Tower, Projection] = {"image": self.image, "text": self.text}
        read = {tower: pretrained.read_tower(tower, towers[tower], factors[tower], self.settings) for tower in TOWERS}
        facts: dict[str, Any] = {"normalise": None, "provenance": FrozenDict(), "encoder_hashes": None}
        return self._changed(tuning=None, _posterior=FrozenDict(read), **facts)

    def with_image_projection(self, image: Projection, factors: KroneckerFactors) -> Self:
        """This model with another projection of its image tower and the factors that go with it.

        lam follows by the evidence, unless it was given.
        """
        image = image.to(self.image.weight)
        text = self._kronecker("text", "There are no factors to read, update or save")
        changed = {"image": pretrained.read_tower("image", image, factors, self.settings), "text": text}
        return self._changed(image=image, _posterior=FrozenDict(changed), **self._untuned())

    def with_provenance(self, **facts: Any) -> Self:
        """This model with more said about where its posterior came from; kept with it as json."""
        return self._changed(provenance=_record({**self.provenance, **facts}))

    def copy(self) -> Self:
        """One of its own in the same state: `fit` and `tune` change it and not this."""
        return self._changed()

    def __sklearn_clone__(self) -> Self:
        """As a parameter of scikit-learn's estimators: cross-validation needs no copy of the encoder per fold."""
        return self.copy()

    def to(self, device: str | torch.device) -> Self:
        """This model on another device, its encoder included; the encoder is copied if it has to move."""
        target = resolve_device(device)
        adapter = None if self.adapter is None else self.adapter.to(target)
        moved: dict[str, Any] = {"image": self.image.to(target), "text": self.text.to(target), "adapter": adapter}
        if self._posterior is not None:
            moved["_posterior"] = FrozenDict({tower: of.to(target) for tower, of in self._posterior.items()})
        return self._changed(**moved)

    def replace(
        self,
        *,
        tau: float | None = None,
        lam: Mapping[str, float] | Literal["evidence"] | None = None,
        structure: Structure | None = None,
        covariance: Covariance | None = None,
        link: Link | None = None,
    ) -> Self:
        """A new BayesVLM that differs in what is given.

        lam follows tau and the structure by the evidence. One that is given here stays until lam="evidence" is, or
        until `fit` or `tune` find another.
        """
        settings: dict[str, Any] = {"tau": tau, "lam": lam, "structure": structure, "covariance": covariance}
        given = {name: value for name, value in settings.items() if value is not None}
        if given and self._posterior is not None:
            self._kronecker("image", f"{next(iter(given))} cannot be changed")
        if lam == "evidence":
            given["lam"] = None
        if link is not None:
            given["link"] = link
        forgotten = self._untuned(tau="tau" in given) if given else {}
        return self._changed(**self._under(with_changes(self.settings, **given)), **forgotten)

    def _untuned(self, tau: bool = True) -> dict[str, Any]:
        """What is left of tuning where tau or what it was chosen for has changed: nothing, but where tau is the same
        (`tau` false) which images it was found on."""
        gone = _OF_TUNING if tau else [name for name in _OF_TUNING if name != "tuned_images"]
        kept = {name: fact for name, fact in self.provenance.items() if name not in gone}
        return {"tuning": None, "provenance": FrozenDict(kept)}

    def _under(self, settings: Settings) -> dict[str, Any]:
        """The settings, and the posterior read with them."""
        if self._posterior is None:
            return {"settings": settings}
        lam: Mapping[str, float | None] = settings.lam or dict.fromkeys(TOWERS)
        read = {tower: of.under(settings, lam[tower]) for tower, of in self._posterior.items()}
        return {"settings": settings, "_posterior": FrozenDict(read)}

    # What it holds ---------------------------------------------------------------------------------------------------

    @property
    def tau(self) -> float:
        """Pseudo-data count."""
        if self._posterior is not None:
            self._kronecker("image", "tau is not known")
        return self.settings.tau

    @property
    def lam(self) -> dict[str, float]:
        """Prior precision of each tower: as given, or by the evidence."""
        if self._posterior is None and self.settings.lam is not None:
            return FrozenDict(self.settings.lam)
        return FrozenDict({tower: self._kronecker(tower, "lam is not known").lam for tower in TOWERS})

    @property
    def factors(self) -> dict[Tower, KroneckerFactors]:
        """Kronecker factors of each tower: `.A`, `.B` (1/sqrt(n) included), `.n`."""
        wanted = "There are no factors to read, update or save"
        return FrozenDict({tower: self._kronecker(tower, wanted).factors for tower in TOWERS})

    # Estimating the posterior ----------------------------------------------------------------------------------------

    def fit(
        self,
        pairs: Iterable[tuple[Any, Any]] | PairPlan,
        negatives: int = 32768,
        *,
        limit: int | None = None,
        shuffle: bool = False,
        seed: int | None = None,
        workers: int | None = None,
        engine: SumGroups | None = None,
        normalise: Normalise = "paper",
        precision: Precision | None = None,
        memory: int | None = None,
        checkpoint: str | Path | None = None,
        provenance: Mapping[str, Any] | None = None,
        total: int | None = None,
        progress: bool | None = None,
    ) -> Self:
        """Estimate the Kronecker factors of both towers from image-text pairs, in one pass, and set them here.

        Args:
            pairs: a set of pairs, as `bayesvlm.data.resolve(name, "pairs").open()` gives it, or a plan of one
                (`bayesvlm.data.pairs.PairPlan`), whose groups are contrasted apart; or an iterable of batches, each
                (images, texts) or (Features, Features), where row i belongs to row i.
            negatives: size of a contrast batch; 32768 is the paper's.
            limit: take so many pairs only, those that cannot be read included.
            shuffle, seed: read a set of pairs in the order that the seed (0) stands for.
            workers: processes that decode; 0 has threads do it, None chooses.
            engine: what has the groups of a set of pairs worked on, such as `bayesvlm.engine.RayFit`; None: this
                process.
            normalise: for the sigmoid loss, "paper" (divide by the batch) or "sum".
            precision, memory: of the curvature, see `bayesvlm.core.curvature`.
            checkpoint: a file the sums are kept in after every finished contrast batch; a later call with the same
                pairs and settings goes on from there, to the same bits, and decodes nothing twice. It is yours to
                delete once the posterior is saved.
            provenance: where the pairs came from; kept with the saved posterior.
            total: number of pairs, for the progress bar; of a set of pairs it is known.
            progress: None shows a bar on a terminal.

        Returns:
            itself; tau and the other settings stay as they were, lam is left to the evidence again.
        """
        if self.predicts_variance:
            self._kronecker("image", "There is nothing to fit")
        record = _record({**(provenance or {}), "negatives": negatives})
        kept = None if checkpoint is None else Path(checkpoint)
        options: dict[str, Any] = {"limit": limit, "checkpoint": kept, "total": total, "progress": progress}
        found = fit_factors(
            self,
            planned(pairs, negatives, limit, shuffle, seed),
            record,
            negatives=negatives,
            settings=FitSettings(normalise, precision, memory, workers),
            engine=engine,
            **options,
        )
        n = found.factors["image"].n
        fitted = self._changed(settings=with_changes(self.settings, lam=None)).with_factors(found.factors)
        self._hold(
            **fitted.__dict__
            | {
                "normalise": normalise if self.loss == "sigmoid" else None,
                "provenance": _record({**record, "contrast": min(negatives, n), "pairs": n, **found.facts}),
                "encoder_hashes": pretrained.hashes_of(self.adapter),
            }
        )
        return self

    def tune(
        self,
        inputs: Any,
        labels: Sequence[int] | Sequence[str] | Tensor,
        classes: ClassNames | Features,
        *,
        templates: Templates | None = None,
        taus: Sequence[float] = DEFAULT_TAUS,
        refine: bool = True,
        provenance: Mapping[str, Any] | None = None,
        progress: bool | None = None,
    ) -> Self:
        """Choose tau by the negative log predictive density on labelled inputs, lam by the evidence at each tau.

        Args:
            inputs: images or Features, [N].
            labels: indices into `classes`, or class names, [N].
            classes: names or prompts, synonyms as a list in the place of a name, or Features.
            templates: prompts with {c} in the place of the name, averaged; None: names are encoded as they are.
            taus: the grid; the paper's is 1, 5, 10, ..., 200, the default is log-spaced over 0.01 to 1e4.
            refine: search on between the best grid point's neighbours.
            provenance: where the inputs came from; kept with the saved posterior, and with it the best NLPD and a
                fingerprint of each input, by which `bayesvlm.safety` refuses to calibrate on the same.

        Returns:
            itself, with the best tau; `.tuning` has every (tau, NLPD, lam) tried.
        """
        self._kronecker("image", "There is no tau to tune")
        names = class_names(classes)
        if len(classes) < 2:
            raise BayesVLMError(
                "There is one class only, so every tau predicts the same; tune with two classes or more."
            )
        texts = self.class_features(classes, templates, progress=progress)
        images = self.image_features(inputs, progress=progress)
        target = label_indices(labels, names, len(images), len(texts)).to(self.device)
        grid = tuned_taus(self, images, target, texts, taus, refine, progress)
        earlier = self._untuned()["provenance"]
        facts = {"tuned_images": packed(images.activations), "validation_nlpd": grid.best.nlpd}
        record = _record({**earlier, **(provenance or {}), **facts})
        chosen = self._under(with_changes(self.settings, tau=grid.best.tau, lam=None))
        self._hold(**chosen, tuning=grid, provenance=record)
        grid.warn()
        return self

    # Keeping it ------------------------------------------------------------------------------------------------------

    def saved(self, model: str | None = None) -> SavedPosterior:
        """The posterior as it is kept on disk; `model` overrides the id or folder recorded for the encoder."""
        return pretrained.describe(self, model)

    def save_pretrained(self, folder: str | Path, *, model: str | None = None) -> Path:
        """Save the posterior (not the encoder) as a folder that `from_pretrained` loads.

        Of a fine-tuned model the projections are saved too; the rest of the encoder is that of the model it came from.

        Args:
            folder: made if need be; files of an earlier save are replaced (it is the commands that refuse to).
            model: the encoder's id to record instead of where it was loaded from.
        """
        return pretrained.save(self, folder, model)

    def push_to_hub(
        self, repo_id: str, *, model: str | None = None, private: bool = False, token: str | None = None
    ) -> str:
        """Upload the saved posterior to the Hugging Face Hub; returns its address.

        Args:
            repo_id: "you/name"; made if need be.
            model: the Hub id of the encoder, needed when it was loaded from a folder nobody else has.
            private, token: as for `huggingface_hub`.
        """
        return pretrained.push(self, repo_id, model, private, token)

    def _repr_html_(self) -> str:
        """A small table for notebooks."""
        facts = {"model": pretrained.model_name(self, "projections"), "loss": self.loss, "t": f"{self.scale:.4g}"}
        facts |= {"posterior": "none yet" if self._posterior is None else self._posterior["image"].origin}
        facts |= {name: str(value) for name, value in vars(self.settings).items()}
        return html_table(type(self).__name__, ["", ""], [[name, value] for name, value in facts.items()])

    def __repr__(self) -> str:
        state = "no posterior yet"
        if self._posterior is not None:
            state = f"{self._posterior['image'].origin}, {self.settings}"
        name = pretrained.model_name(self, "projections")
        return f"{type(self).__name__}({name}, loss={self.loss}, t={self.scale:.4g}, {state})"


def _record(facts: Mapping[str, Any]) -> FrozenDict[str, Any]:
    """Provenance, if it can be kept as json."""
    try:
        json.dumps(facts)
    except (TypeError, ValueError) as error:
        raise BayesVLMError(
            f"provenance is kept as json, and cannot be: {error}; use text, numbers, lists and dicts."
        ) from None
    return FrozenDict(json.loads(json.dumps(facts)))  # a copy: what the caller does with theirs is no matter
