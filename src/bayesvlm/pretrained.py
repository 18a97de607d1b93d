"""Between a BayesVLM and what lies on disk or on the Hub: finding a model and its posterior, describing one to save.

Functions here take a model apart and put it together again; `BayesVLM.from_pretrained`, `with_posterior` and
`save_pretrained` call them.
"""

from __future__ import annotations

import tempfile
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from bayesvlm.artifacts import PosteriorConfig, SavedPosterior, hub
from bayesvlm.artifacts.saved import LamSource
from bayesvlm.artifacts.weights import check_weights, encoder_hashes, same_encoder, same_weights, weight_hashes
from bayesvlm.core.errors import BayesVLMError, BayesVLMWarning
from bayesvlm.core.estimation import TOWERS, Normalise, Tower
from bayesvlm.core.factors import KroneckerFactors
from bayesvlm.core.posterior import Posterior
from bayesvlm.core.projection import Projection
from bayesvlm.core.settings import Settings
from bayesvlm.data.labelled.folders import TEMPLATES
from bayesvlm.embedded import MODELS, PROMPTS, embedded_model
from bayesvlm.models import Adapter, load_adapter, resolve_device
from bayesvlm.models.openclip_loading import local_source

if TYPE_CHECKING:
    from bayesvlm.vlm import BayesVLM


@dataclass(frozen=True, eq=False)
class Found:
    """What a name led to: a model, or projections alone, and maybe a posterior for it."""

    model: dict[str, Any]  # arguments of BayesVLM
    posterior: SavedPosterior | None


def find(
    name: str | Path,
    *,
    model: str | Path | None,
    device: str | torch.device | None,
    dtype: torch.dtype | None,
    revision: str | None,
) -> Found:
    """A model by its name, or a saved posterior with the model it is for; arguments as for `from_pretrained`."""
    target = resolve_device(device)
    folder = hub.find_posterior(name, revision)
    if folder is None:
        if model is not None:
            raise BayesVLMError(
                f"{name} is a model and no saved posterior, so model={str(model)!r} has no use; leave it out."
            )
        return Found(parts(load_adapter(str(name), device=target, dtype=dtype, revision=revision)), None)
    saved = SavedPosterior.load(folder)
    config = saved.config
    if model is None and saved.projections is not None and config.model is None:
        image, text = (saved.projections[tower].to(target) for tower in TOWERS)
        scale = cast(float, config.logit_scale)
        bare = {"image": image, "text": text, "logit_scale": scale, "logit_bias": config.logit_bias}
        return Found({**bare, "loss": config.loss}, saved)
    source = model or config.model
    if source is None:
        raise BayesVLMError(f"{name} does not name its model; give the one it belongs to with model=... or --model.")
    pinned = config.revision if model is None else None
    try:
        return Found(parts(load_adapter(str(source), device=target, dtype=dtype, revision=pinned)), saved)
    except BayesVLMError as error:
        raise BayesVLMError(
            f"The model of the posterior {name} could not be loaded (if it has moved, say where with "
            f"model=... or --model): {error}"
        ) from error


def parts(adapter: Adapter) -> dict[str, Any]:
    """An adapter as arguments of BayesVLM."""
    names = ("image", "text", "logit_scale", "logit_bias", "loss")
    return {"adapter": adapter, **{name: getattr(adapter, name) for name in names}}


@dataclass(frozen=True, eq=False)
class Attached:
    """A saved posterior as it fits a model, both checked: what changes in the model when it takes it."""

    image: Projection
    text: Projection
    posterior: dict[Tower, Posterior]
    settings: Settings
    normalise: Normalise | None
    provenance: dict[str, Any]
    encoder_hashes: dict[str, str] | None


def attach(vlm: BayesVLM, saved: SavedPosterior, strict: bool) -> Attached:
    """Check a saved posterior against a model; see `BayesVLM.with_posterior`."""
    name, config = model_name(vlm, "these projections"), saved.config
    image, text = vlm.image, vlm.text
    if config.encoder_weights is not None and not same_weights(config.weights or {}, image, text):
        check_weights(config.encoder_weights, config.model, image, text, name)
        image, text = _tuned(vlm, saved)
    elif config.weights is not None:
        check_weights(config.weights, config.model, image, text, name)
    if config.all_weights is not None and vlm.adapter is not None:
        _check_encoder(vlm.adapter, config, strict)
    for entry in ("loss", "logit_scale", "logit_bias"):
        had, have = getattr(config, entry), getattr(vlm, entry)
        if had is not None and had != have:
            raise BayesVLMError(
                f"This posterior was estimated with {entry} = {had}, but it is {have} for {name}; the curvature "
                "depends on it, so fit a posterior for this model."
            )
    given = config.lam if config.lam_source == "given" else None
    settings = Settings(config.tau, given, config.structure, config.covariance, config.link)
    posterior = {
        tower: read_tower(tower, projection, saved.factors[tower].to(vlm.device), settings)
        for tower, projection in zip(TOWERS, (image, text), strict=True)
    }
    hashes = config.all_weights if config.weights is not None else hashes_of(vlm.adapter)
    return Attached(image, text, posterior, settings, config.normalise, config.provenance, hashes)


def read_tower(tower: Tower, projection: Projection, factors: KroneckerFactors, settings: Settings) -> Posterior:
    """The posterior of a tower, or a sentence that names the tower."""
    try:
        return Posterior.read(projection, factors, settings, None if settings.lam is None else settings.lam[tower])
    except BayesVLMError as error:
        raise BayesVLMError(f"The {tower} tower: {error}") from None


def hashes_of(adapter: Adapter | None) -> dict[str, str] | None:
    """Hashes of the whole encoder; None where there is none."""
    return None if adapter is None else encoder_hashes(adapter.model.parameters())


def model_name(vlm: BayesVLM, otherwise: str) -> str:
    """What the encoder is called."""
    return vlm.adapter.name if vlm.adapter else otherwise


def own_templates(vlm: BayesVLM) -> list[str]:
    """The prompts of a model where nobody says others: what tau was tuned with, what an embedded one was trained with,
    else the paper's."""
    tuned = vlm.provenance.get("tuned_with")
    if tuned:
        return list(tuned)
    return list(PROMPTS if model_name(vlm, "") in MODELS else TEMPLATES)


def describe(vlm: BayesVLM, model: str | None) -> SavedPosterior:
    """A model's posterior as it is kept on disk; `model` overrides the id or folder recorded for the encoder."""
    adapter, settings, factors = vlm.adapter, vlm.settings, vlm.factors
    own = None if adapter is None else adapter.image.to(vlm.image.weight)
    tuned = own is not None and not torch.equal(vlm.image.augmented, own.augmented)
    source: LamSource = "evidence" if settings.lam is None else "given"
    projections: dict[Tower, Projection] = {"image": vlm.image, "text": vlm.text}
    config = PosteriorConfig(
        loss=vlm.loss,
        logit_scale=vlm.logit_scale,
        logit_bias=vlm.logit_bias,
        normalise=vlm.normalise,
        tau=vlm.tau,
        lam=vlm.lam,
        lam_source=source,
        structure=settings.structure,
        covariance=settings.covariance,
        link=settings.link,
        weights=weight_hashes(vlm.image, vlm.text),
        weight_norm_squared={tower: projections[tower].norm_squared for tower in TOWERS},
        bias={tower: projections[tower].bias is not None for tower in TOWERS},
        model=model or (_lasting(adapter.name) if adapter else None),
        revision=adapter.revision if adapter and not model else None,
        encoder_weights=weight_hashes(own, vlm.text) if own is not None and tuned else None,
        all_weights=None if vlm.encoder_hashes is None else dict(vlm.encoder_hashes),
        provenance=dict(vlm.provenance),
    )
    return SavedPosterior(dict(factors), config, projections if adapter is None or tuned else None)


def save(vlm: BayesVLM, folder: str | Path, model: str | None) -> Path:
    """Write a model's posterior; see `BayesVLM.save_pretrained`."""
    if not str(folder):
        raise BayesVLMError("The folder to save to is ''; name one, such as 'posterior'.")
    try:
        return describe(vlm, model).save(folder)
    except OSError as error:
        reason = error.strerror or str(error)
        raise BayesVLMError(f"A posterior cannot be saved to {folder}: {reason}; give another folder.") from None


def push(vlm: BayesVLM, repo_id: str, model: str | None, private: bool, token: str | None) -> str:
    """Upload a model's posterior, unless nobody else has its encoder; see `BayesVLM.push_to_hub`."""
    local = None if vlm.adapter is None else local_source(vlm.adapter.name)
    if model is None and local is not None:
        raise BayesVLMError(
            f"The encoder was loaded from {local}, which nobody else has; say where others find it: "
            "push_to_hub(..., model='its/hub-id')."
        )
    with tempfile.TemporaryDirectory() as folder:
        return hub.upload(save(vlm, Path(folder) / "posterior", model), repo_id, private, token)


def _check_encoder(adapter: Adapter, config: PosteriorConfig, strict: bool) -> None:
    """Say so where this is not the encoder a posterior was estimated with."""
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
    warnings.warn(f"{message} (strict=True, or --strict, refuses it).", BayesVLMWarning, stacklevel=5)


def _tuned(vlm: BayesVLM, saved: SavedPosterior) -> tuple[Projection, Projection]:
    """The projections of a fine-tuned model, which are kept with its posterior."""
    kept = saved.projections or {}
    image = replace(kept["image"].to(vlm.image.weight), residual=vlm.image.residual)
    text = replace(kept["text"].to(vlm.text.weight), residual=vlm.text.residual)
    check_weights(saved.config.weights or {}, saved.config.model, image, text, "projections.safetensors")
    return image, text


def _lasting(name: str) -> str:
    """A model's folder as a path that holds from any working directory; a Hub id or an embedded one as it is."""
    folder = Path(name).expanduser()
    return str(folder.resolve()) if folder.is_dir() and embedded_model(name) is None else name
