"""The temperature of a contrastive model, as CLIP and SigLIP store it: t = exp(logit_scale)."""

from __future__ import annotations

import math

from bayesvlm.core.errors import BayesVLMError

LARGEST = 10_000
"""Of temperatures: CLIP's is cut at 100, SigLIP's is 118, others reach some hundreds."""


def check_logit_scale(logit_scale: float) -> float:
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
    if found > math.log(LARGEST):
        size = f" = {math.exp(found):.2g}" if found < 700 else ""
        raise BayesVLMError(
            f"logit_scale={found:g} means the temperature t = exp({found:g}){size}, and no model is trained beyond "
            f"{LARGEST:,}; it must be the logarithm, as CLIP stores it: log({found:g}) = {math.log(found):.3g} "
            f"where t is {found:g}."
        )
    return found
