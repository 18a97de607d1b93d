"""The search for the pseudo-data count tau: a grid, then a bounded search around its best point."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from scipy.optimize import minimize_scalar

from bayesvlm.core.errors import BayesVLMError, BayesVLMWarning, check_positive
from bayesvlm.core.printing import described

DEFAULT_TAUS = tuple(
    10 ** (k / 4) for k in range(-8, 17)
)  # 0.01 to 1e4; the paper's 1, 5, ..., 200 misses small models
_REFINED = 0.02  # of log tau


@dataclass(frozen=True)
class TauPoint:
    """One tau that was tried: its validation NLPD, and the lam the evidence gives there."""

    tau: float
    nlpd: float
    lam: dict[str, float]


@dataclass(frozen=True)
class TauGrid:
    """Every tau tried, ascending."""

    points: tuple[TauPoint, ...]

    __repr__ = described

    @property
    def best(self) -> TauPoint:
        return min(self.points, key=lambda point: point.nlpd)

    @property
    def at_edge(self) -> bool:
        """Whether the best tau is an end of the grid: a wider one may hold a better."""
        return self.best in (self.points[0], self.points[-1])

    def warn(self, stacklevel: int = 2) -> None:
        """Say so where it is, unless there was one tau to choose from only."""
        if not self.at_edge or len(self) == 1:
            return
        way = "smaller" if self.best is self.points[0] else "larger"
        warnings.warn(
            f"The best tau, {self.best.tau:g}, is an end of the grid, so the data may ask for a still {way} one; "
            "see whether the labels and prompts belong to these images, or widen the grid (taus= in Python).",
            BayesVLMWarning,
            stacklevel + 1,
        )

    def __len__(self) -> int:
        return len(self.points)

    def __iter__(self) -> Iterator[TauPoint]:
        return iter(self.points)


def search_tau(
    evaluate: Callable[[float], tuple[float, dict[str, float]]],
    taus: Sequence[float],
    *,
    refine: bool,
    advance: Callable[[int], None],
) -> TauGrid:
    """Evaluate the grid, then (with `refine`) a bounded search in log tau between the best point's neighbours."""
    grid = sorted({check_positive("tau", tau) for tau in taus})
    if not grid:
        raise BayesVLMError("The grid of taus is empty; give at least one.")
    points: list[TauPoint] = []

    def attempt(tau: float) -> float:
        nlpd, lam = evaluate(tau)
        points.append(TauPoint(tau, nlpd, lam))
        advance(1)
        return nlpd

    scores = [attempt(tau) for tau in grid]
    best = scores.index(min(scores))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    if refine and low < high:
        bounds = (math.log(low), math.log(high))
        minimize_scalar(lambda x: attempt(math.exp(x)), bounds=bounds, method="bounded", options={"xatol": _REFINED})
    return TauGrid(tuple(sorted(points, key=lambda point: point.tau)))
