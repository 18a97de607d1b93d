"""Estimating the factors: pairs in, sums out, resumable from a checkpoint. `BayesVLM.fit` sets them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesvlm.artifacts.files import remove_leftovers
from bayesvlm.artifacts.weights import weight_hashes
from bayesvlm.core.errors import BayesVLMError, BayesVLMWarning, check_count
from bayesvlm.core.estimation import TOWERS, Tower
from bayesvlm.core.factors import KroneckerFactors
from bayesvlm.core.groups import GroupFactors, GroupSums, OpenGroup, Tally
from bayesvlm.core.projection import Projection
from bayesvlm.data.pairs.batches import ListedPairs
from bayesvlm.data.pairs.plan import PairPlan
from bayesvlm.data.pairs.shards import PairShards
from bayesvlm.fitting.batches import sum_batches
from bayesvlm.fitting.groups import FitSettings, factors_of_groups, group_factors
from bayesvlm.fitting.plans import SumGroups, identified, sum_groups
from bayesvlm.locks import locked
from bayesvlm.plain import PlainVLM

__all__ = [
    "FitSettings",
    "Fitted",
    "GroupFactors",
    "GroupSums",
    "OpenGroup",
    "SumGroups",
    "Tally",
    "factors_of_groups",
    "fit_factors",
    "fit_run",
    "fitted",
    "group_factors",
    "identified",
    "planned",
    "sum_batches",
    "sum_groups",
]


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a fit found.

    Args:
        factors: of both towers.
        read: what of the pairs was read, as json, where they are a plan.
        tally: how many pairs there were, and how long the stages took.
    """

    factors: dict[Tower, KroneckerFactors]
    read: dict[str, Any] | None
    tally: Tally

    @property
    def facts(self) -> dict[str, Any]:
        """For the provenance of a posterior: of a plan, what was read and how long it took."""
        if self.read is None:
            return {}
        return {"seconds": {name: round(taken, 3) for name, taken in self.tally.seconds.items()}, "read": self.read}


def planned(
    pairs: Any, negatives: int, limit: int | None, shuffle: bool, seed: int | None
) -> PairPlan | Iterable[tuple[Any, Any]]:
    """Pairs in groups, where they are a set of pairs; batches from an iterable as they are."""
    if isinstance(pairs, PairPlan):
        if limit is not None or shuffle or seed is not None or negatives != pairs.negatives:
            raise BayesVLMError(
                f"The pairs are a plan with negatives={pairs.negatives}, limit={pairs.limit} and its own order; give "
                f"negatives={pairs.negatives} and no limit or shuffle beside it, or make another plan."
            )
        return pairs
    if isinstance(pairs, PairShards | ListedPairs):
        return PairPlan.of(pairs, negatives, limit=limit, shuffle=shuffle, seed=seed)
    if shuffle or seed is not None:
        raise BayesVLMError(
            f"pairs is a {type(pairs).__name__}, which is taken in its own order; shuffle it yourself, or pass what "
            "bayesvlm.data.resolve(name, 'pairs').open() gives."
        )
    if limit is not None:
        check_count("limit", limit, least=2)
    found: Iterable[tuple[Any, Any]] = pairs
    return found


def fit_factors(
    vlm: PlainVLM,
    pairs: Iterable[tuple[Any, Any]] | PairPlan,
    record: Mapping[str, Any],
    *,
    negatives: int,
    settings: FitSettings,
    limit: int | None,
    checkpoint: Path | None,
    total: int | None,
    progress: bool | None,
    engine: SumGroups | None = None,
) -> Fitted:
    """The factors of both towers of a model from image-text pairs; see `BayesVLM.fit`.

    Args:
        record: what is known of the pairs; a checkpoint with another record is refused.
        engine: what goes over the groups of a plan; None is this process.
    """
    if engine is not None and not isinstance(pairs, PairPlan):
        raise BayesVLMError(
            f"pairs is a {type(pairs).__name__}, which only this process can go through; an engine takes a set of "
            "pairs: what bayesvlm.data.resolve(name, 'pairs').open() gives."
        )
    run = fit_run(vlm, pairs, record if limit is None else {**record, "limit": limit}, settings)
    where: dict[str, Any] = {"checkpoint": checkpoint, "run": run, "progress": progress}
    with _alone(checkpoint):
        if isinstance(pairs, PairPlan):
            return fitted(vlm, pairs, (engine or sum_groups)(vlm, pairs, settings, **where))
        sums = sum_batches(vlm, pairs, negatives, settings, limit=limit, total=total, **where)
        return fitted(vlm, None, sums)


@contextmanager
def _alone(checkpoint: Path | None) -> Iterator[None]:
    """Refuse while another process fits with the same checkpoint; one that was killed holds nothing."""
    if checkpoint is None:
        yield
        return

    def refuse() -> None:
        raise BayesVLMError(
            f"Another fit is going on with the checkpoint {checkpoint} at this moment; wait until it is done, or name "
            "another file."
        )

    with locked(checkpoint.with_name(f".{checkpoint.name}.lock"), busy=refuse):
        remove_leftovers(checkpoint.parent, [checkpoint.name])
        yield


def fit_run(vlm: PlainVLM, pairs: Any, record: Mapping[str, Any], settings: FitSettings) -> dict[str, Any]:
    """What identifies a run: another model, other settings or other pairs, and its checkpoint is refused."""
    weights = weight_hashes(vlm.image, vlm.text)["float32"]
    run = {**record, "normalise": settings.normalise, "weights": weights, "precision": settings.precision}
    return run | identified(pairs) if isinstance(pairs, PairPlan) else run


def fitted(vlm: PlainVLM, plan: PairPlan | None, sums: GroupSums) -> Fitted:
    """The sums of a whole plan, found to be those of curvature factors."""
    if sums.factors is None:
        assert plan is not None, "a fit of batches has an error of its own"
        raise (
            plan.no_pairs()
            if sums.tally.read == sums.tally.skipped
            else BayesVLMError(
                "The posterior was given 1 pair(s); contrasting needs at least 2, and a useful estimate thousands."
            )
        )
    factors = {tower: sums.factors[tower].check() for tower in TOWERS}
    _warn_few(factors["image"].n, vlm.image, vlm.text)
    return Fitted(factors, None if plan is None else plan.record(), sums.tally)


def _warn_few(pairs: int, image: Projection, text: Projection) -> None:
    """Say so where there are fewer pairs than a tower's activations have directions."""
    widest = max(image.input_width, text.input_width)
    if pairs < widest:
        warnings.warn(
            f"The posterior is estimated from {pairs} pairs, fewer than the {widest} numbers that enter a projection "
            f"(its embeddings have {image.embedding_width}): in the directions that no pair shows it is the prior, and "
            "its variances say little; fit on thousands of pairs.",
            BayesVLMWarning,
            stacklevel=5,
        )
