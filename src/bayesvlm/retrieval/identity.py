"""Which posterior an index was made with, and whether another one is the same."""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bayesvlm.artifacts.weights import same_encoder, same_weights, weight_hashes
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.estimation import TOWERS
from bayesvlm.pretrained import hashes_of, model_name
from bayesvlm.vlm import BayesVLM

_SETTINGS = ("structure", "covariance")
_POSTERIOR = "posterior/"  # what the names of the posterior's files begin with
_UNNAMED = "a model made from projections"
_LAM_OFF = 1e-6  # relative: what another processor's eigenvalues may change of lam


def identity(vlm: BayesVLM) -> dict[str, Any]:
    """What an index is recognised by: hashes of the projections, of the encoder and of the posterior, as json."""
    return {
        "model": model_name(vlm, _UNNAMED),
        "weights": weight_hashes(vlm.image, vlm.text),
        "encoder": hashes_of(vlm.adapter),
        "posterior": _posterior_hash(vlm),
        "lam": _lams(vlm),
    }


def check_identity(kept: Mapping[str, Any], vlm: BayesVLM, what: str) -> None:
    """Refuse a model or a posterior other than the one that an index was made with.

    Args:
        kept: made by `identity`.
        what: the index, for the sentence.
    """
    here, there = model_name(vlm, _UNNAMED), kept["model"]
    again = "open it without a model, with that one, or make another index"
    if not same_weights(kept["weights"], vlm.image, vlm.text):
        raise BayesVLMError(
            f"{what} was made with {there}, and the projections of the model given, {here}, are others; {again}."
        )
    encoder = None if vlm.adapter is None else vlm.adapter.model.parameters()
    if kept["encoder"] is not None and encoder is not None and not same_encoder(kept["encoder"], encoder):
        raise BayesVLMError(
            f"{what} was made with {there}, and {here} has the same projections behind another encoder (one that was "
            f"fine-tuned?); {again}."
        )
    lams = _lams(vlm)
    same = _posterior_hash(vlm) == kept["posterior"] and lams.keys() == kept["lam"].keys()
    if not same or not all(math.isclose(lams[tower], lam, rel_tol=_LAM_OFF) for tower, lam in kept["lam"].items()):
        raise BayesVLMError(
            f"{what} was made with another posterior of {there} (other factors, tau, lam, structure or covariance); "
            f"{again}."
        )


def _posterior_hash(vlm: BayesVLM) -> str:
    """Of the tensors that decide the posterior, and of the settings that it is read with."""
    digest = hashlib.sha256()
    for tower in TOWERS:
        for name, tensor in sorted(vlm.posterior[tower].tensors().items()):
            digest.update(f"{tower}.{name}{tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().float().cpu().contiguous().numpy().astype("<f4").tobytes())
    tau = {} if _lams(vlm) == {} else {"tau": f"{vlm.tau:.6g}"}
    settings = {name: getattr(vlm.settings, name) for name in _SETTINGS}
    digest.update(json.dumps({**settings, **tau}, sort_keys=True).encode())
    return digest.hexdigest()


def _lams(vlm: BayesVLM) -> dict[str, float]:
    """lam of each tower; none where tau and lam are inside a published inverse."""
    try:
        return dict(vlm.lam)
    except BayesVLMError:
        return {}


def posterior_files(vlm: BayesVLM) -> dict[str, bytes]:
    """The files of a saved posterior; none where the model came with one of its own."""
    try:
        vlm.factors  # noqa: B018 (asked for what it raises)
    except BayesVLMError:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        vlm.save_pretrained(folder)
        return {_POSTERIOR + file.name: file.read_bytes() for file in Path(folder).iterdir()}


def loaded(
    files: Mapping[str, bytes], place: str, model: str | Path | None, device: str | torch.device | None
) -> BayesVLM:
    """The model with the posterior that lies in an index."""
    kept = {name.removeprefix(_POSTERIOR): content for name, content in files.items() if name.startswith(_POSTERIOR)}
    if not kept:
        raise BayesVLMError(f"{place} was made with a model that brings its posterior; pass that model as vlm=.")
    with tempfile.TemporaryDirectory() as folder:
        for name, content in kept.items():
            (Path(folder) / Path(name).name).write_bytes(content)
        try:
            return BayesVLM.from_pretrained(folder, model=model, device=device)
        except BayesVLMError as error:
            raise BayesVLMError(str(error).replace(folder, place)) from None
