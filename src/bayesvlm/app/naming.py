"""What the page calls a model's two answers: that with what it does not know, and that without."""

from __future__ import annotations

from dataclasses import dataclass

from bayesvlm.vlm import BayesVLM


@dataclass(frozen=True)
class Ways:
    """The names of the two.

    Attributes:
        bayes, short: what the answer with uncertainty is called, and in one word.
        plain: what that without is called.
    """

    bayes: str
    short: str
    plain: str


def ways(vlm: BayesVLM) -> Ways:
    """The names for a model: not every one is a CLIP, and one that predicts variances has no posterior."""
    from bayesvlm.models.clip import CLIPAdapter
    from bayesvlm.models.siglip import SiglipAdapter

    if vlm.predicts_variance:
        return Ways("with its variances", "variances", "without variances")
    if isinstance(vlm.adapter, CLIPAdapter):
        return Ways("with the posterior", "posterior", "plain CLIP")
    if isinstance(vlm.adapter, SiglipAdapter):
        return Ways("with the posterior", "posterior", "plain SigLIP")
    return Ways("with the posterior", "posterior", "without a posterior")
