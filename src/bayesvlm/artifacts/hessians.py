"""The authors' published Hessian folders, read safely.

    A_img_analytic.pt  B_img_analytic.pt  A_txt_analytic.pt  B_txt_analytic.pt   torch tensors, 1/sqrt(n) included
    prior_precision_analytic.json                                                lambda_img, lambda_txt

The tensors are torch pickles; they are read with `weights_only=True`, which builds tensors and runs no code.
"""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError, check_positive
from bayesvlm.core.estimation import TOWERS, Tower
from bayesvlm.core.factors import KroneckerFactors

PAPER_PAIRS = 327_680  # ten CLIP mini-batches of 32,768 (paper, section 4)
PRIOR = "prior_precision_analytic.json"
_SUFFIX: dict[Tower, str] = {"image": "img", "text": "txt"}


def read_published(
    folder: str | Path, pairs: int = PAPER_PAIRS
) -> tuple[dict[Tower, KroneckerFactors], dict[str, float]]:
    """The factors (as sums over `pairs`) and lam of both towers.

    Args:
        folder: as published.
        pairs: how many image-text pairs the factors were estimated on; the folder does not say.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise BayesVLMError(f"{folder} is not a folder; give the published Hessian folder with {PRIOR} in it.")
    if pairs < 1:
        raise BayesVLMError(f"pairs={pairs}; the factors were estimated on at least one pair.")
    factors = {}
    for tower in TOWERS:
        A, B = (_read_tensor(folder / f"{name}_{_SUFFIX[tower]}_analytic.pt") for name in "AB")
        factors[tower] = _checked(A, B, pairs, folder, tower)
    return factors, _read_prior(folder / PRIOR)


def _checked(A: Tensor, B: Tensor, pairs: int, folder: Path, tower: Tower) -> KroneckerFactors:
    try:
        return KroneckerFactors(A.double() * math.sqrt(pairs), B.double() * math.sqrt(pairs), pairs).check()
    except BayesVLMError as error:
        raise BayesVLMError(f"{folder}, {tower} tower: {error}") from None


def _read_tensor(path: Path) -> Tensor:
    try:
        with warnings.catch_warnings(action="ignore"):  # of odd pickle protocols: the sentence below says it better
            value: Any = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise BayesVLMError(f"{path} does not exist; a published Hessian folder has A and B of both towers.") from None
    except Exception as error:  # a damaged file raises nearly every type
        reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        raise BayesVLMError(
            f"{path} is not a plain torch tensor file ({reason}); it is read with weights_only=True and nothing else "
            "in it is ever run. Download it again."
        ) from None
    if not isinstance(value, Tensor):
        raise BayesVLMError(f"{path} holds a {type(value).__name__}; a published factor is a single tensor.")
    return value


def _read_prior(path: Path) -> dict[str, float]:
    try:
        raw = json.loads(path.read_text())
        return {tower: check_positive(f"lambda_{_SUFFIX[tower]}", raw[f"lambda_{_SUFFIX[tower]}"]) for tower in TOWERS}
    except FileNotFoundError:
        raise BayesVLMError(f"{path} does not exist; a published Hessian folder has its lambdas there.") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, BayesVLMError):
            raise BayesVLMError(f"{path}: {error}") from None
        raise BayesVLMError(f"{path} must be json with lambda_img and lambda_txt ({error}).") from None
