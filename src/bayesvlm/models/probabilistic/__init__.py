"""Models trained to give a Gaussian for every input: ProLIP and PCME++, from their published files alone."""

from bayesvlm.models.probabilistic.adapter import ProbabilisticAdapter
from bayesvlm.models.probabilistic.loading import load_probabilistic, probabilistic_family
from bayesvlm.models.probabilistic.pcmepp import PCMEPP
from bayesvlm.models.probabilistic.pixels import to_pixels
from bayesvlm.models.probabilistic.prolip import ProLIP
from bayesvlm.models.probabilistic.scores import csd, pcmepp_score
from bayesvlm.models.probabilistic.tokens import Tokeniser, load_tokeniser

__all__ = [
    "PCMEPP",
    "ProLIP",
    "ProbabilisticAdapter",
    "Tokeniser",
    "csd",
    "load_probabilistic",
    "load_tokeniser",
    "pcmepp_score",
    "probabilistic_family",
    "to_pixels",
]
