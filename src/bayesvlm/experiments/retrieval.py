"""What tells that nothing in a collection matches a query: in words that the model knows, and in words it does not.

Starts from what `caption_search.search` says of each query, so that every score is judged on the same answers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError, check_choice
from bayesvlm.evaluation import Estimate
from bayesvlm.experiments.caption_search import Searched
from bayesvlm.retrieval.matching import Asked, Calibration, MatchModel

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_EVERY = 8  # letters per mistake
SIGNS = ("cosine", "both", "unlabelled")
"""A flat cut-off on the cosine; the expected cosine and the query's variance, as an index has it; the same by
self-consistency instead of the cosine, which needs no labels."""
_SCORES = {"cosine": "cosine", "both": "expected cosine", "unlabelled": "p_best"}


def typos(text: str, generator: random.Random) -> str:
    """A mistake every eight letters, at least one: two swapped, one left out, one replaced."""
    letters = list(text)
    for _ in range(max(1, len(text) // _EVERY)):
        if len(letters) < 3:
            break
        place, kind = generator.randrange(len(letters) - 1), generator.randrange(3)
        if kind == 0:
            letters[place], letters[place + 1] = letters[place + 1], letters[place]
        elif kind == 1:
            del letters[place]
        else:
            letters[place] = generator.choice(_LETTERS)
    return "".join(letters)


def shuffled(text: str, generator: random.Random) -> str:
    """The same letters in another order, without spaces: a word that means nothing."""
    letters = [letter for letter in text if not letter.isspace()]
    generator.shuffle(letters)
    return "".join(letters)


DISTORTIONS: Mapping[str, Callable[[str, random.Random], str]] = {"typos": typos, "shuffled letters": shuffled}


def distorted(texts: Sequence[str], how: str, seed: int = 0) -> list[str]:
    """Every text with mistakes; the same ones for a seed."""
    check_choice("how", how, tuple(DISTORTIONS))
    generator = random.Random(f"{how} {seed}")
    return [DISTORTIONS[how](text, generator) for text in texts]


def asked(searched: Searched, signs: str = "both") -> Asked:
    """What decides on each query; see `SIGNS`."""
    check_choice("signs", signs, SIGNS)
    score = -searched.doubts[_SCORES[signs]].double()
    variance = searched.doubts["query variance"].double()
    return Asked(score, torch.zeros_like(variance) if signs == "cosine" else variance)


@dataclass(frozen=True)
class Decisions:
    """How a calibration decides, on average over random halves of the queries that have a match.

    Attributes:
        queries: that calibrated, each time.
        turned_away: the share of the other half that is told that nothing matches.
        answered: by kind of query without a match, the share that is answered all the same.
    """

    queries: int
    turned_away: Estimate
    answered: Mapping[str, Estimate]


def decisions(
    matched: Asked, others: Mapping[str, Asked], error: float = 0.05, splits: int = 20, seed: int = 0
) -> Decisions:
    """Calibrate on one half of the queries that have a match, judge the other half and those that have none.

    The standard deviation over splits stands where an `Estimate` has a standard error: it is how much one calibration
    differs from another.

    Args:
        matched: queries that have a match, alike.
        others: queries that have none, by kind.
        error: of the calibration.
        splits: how many random halves.
        seed: of the halves.
    """
    if len(matched) < 4:
        raise BayesVLMError(f"{len(matched)} queries have a match; halves to calibrate on and to judge take more.")
    generator = torch.Generator().manual_seed(seed)
    half = len(matched) // 2
    away: list[float] = []
    answered: dict[str, list[float]] = {kind: [] for kind in others}
    for _ in range(splits):
        rows = torch.randperm(len(matched), generator=generator)
        found = calibration(_rows(matched, rows[:half]), error)
        away.append(_share(found.p_values(_rows(matched, rows[half:])) <= error + 1e-12))
        for kind, queries in others.items():
            answered[kind].append(_share(found.p_values(queries) > error + 1e-12))
    return Decisions(half, _over(away), {kind: _over(shares) for kind, shares in answered.items()})


def calibration(matched: Asked, error: float = 0.05) -> Calibration:
    """That of an index whose queries these are."""
    none = Asked.of([], [])
    return Calibration(error, matched, none, none, MatchModel(0.0, 0.0, 0.0, 0, 0), "text", 0)


def _rows(of: Asked, rows: Tensor) -> Asked:
    return Asked(of.score[rows], of.variance[rows])


def _share(flags: Tensor) -> float:
    return float(flags.double().mean())


def _over(shares: Sequence[float]) -> Estimate:
    values = torch.tensor(shares, dtype=torch.float64)
    return Estimate(float(values.mean()), float(values.std()) if len(values) > 1 else 0.0)
