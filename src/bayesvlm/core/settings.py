"""How a posterior is formed and read: the choices that make one BayesVLM differ from another on the same factors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from bayesvlm.core.errors import BayesVLMError, check_choice, check_positive
from bayesvlm.core.estimation import TOWERS
from bayesvlm.core.evidence import Structure
from bayesvlm.core.frozen import FrozenDict

Covariance = Literal["diagonal", "full"]
Link = Literal["probit", "centred", "mc"]


@dataclass(frozen=True)
class Settings:
    """How the posterior is formed and read; the defaults are the paper's.

    Args:
        tau: pseudo-data count.
        lam: prior precision of each tower; None: by the evidence, again whenever tau changes.
        structure: "damped" (the paper) or "exact".
        covariance: of embeddings: "diagonal" (the paper) or "full".
        link: from cosines to probabilities: "probit" (the paper), "centred" or "mc".
    """

    tau: float = 1.0
    lam: Mapping[str, float] | None = None
    structure: Structure = "damped"
    covariance: Covariance = "diagonal"
    link: Link = "probit"

    def __post_init__(self) -> None:
        object.__setattr__(self, "tau", check_positive("tau", self.tau))
        check_choice("structure", self.structure, get_args(Structure))
        check_choice("covariance", self.covariance, get_args(Covariance))
        check_choice("link", self.link, get_args(Link))
        if self.lam is not None:
            if not isinstance(self.lam, Mapping) or set(self.lam) != set(TOWERS):
                raise BayesVLMError(f"lam={self.lam!r}; it takes both towers: {{'image': ..., 'text': ...}}.")
            lam = {tower: check_positive(f"lam[{tower!r}]", self.lam[tower]) for tower in TOWERS}
            object.__setattr__(self, "lam", FrozenDict(lam))  # a copy: what the caller does with theirs is no matter
