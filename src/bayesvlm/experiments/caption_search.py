r"""A search measured query by query: how each way to rank does, and what each doubt says of its first answer.

Ways to rank, of cosines with mean m and standard deviation s:

    cosine             of the model as it came
    expected cosine    m
    lower bound        m - 1.96 s
    probit             t m / sqrt(1 + pi/8 t^2 s^2), the logit that `classify` takes, t the model's scale
    p_best             the first ten by m, in the order of how often draws of the projections that they share put each
                       of them first; then the others by m

Doubts, each about the first answer of one of these. High where it may be wrong, or where nothing matches:

    cosine, expected cosine, lower bound    that of the first answer, negative
    margin             how little higher its cosine is than the second
    standardised       its cosine less the mean of all, over their standard deviation, negative
    softmax            its share in the softmax of all scaled cosines, negative
    probit             its share in the softmax of all these logits, negative
    deviation          s of the first answer
    query variance     the share of the query's expected squared length that is variance
    p_best             its probability of being the best of ten, negative

Exact, in blocks of queries: memory is bounded however many there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesvlm.core.blocks import row_blocks
from bayesvlm.core.cosine import prob_cosine
from bayesvlm.core.embeddings import GaussianEmbeddings
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.estimation import Tower
from bayesvlm.core.features import Features
from bayesvlm.core.linearised import Directed, probability_of_best, query_cosines
from bayesvlm.core.printing import described
from bayesvlm.evaluation import Doubted, HeldOut, Ranked, Relevance
from bayesvlm.evaluation.retrieval import other_half_cut_offs
from bayesvlm.vlm import BayesVLM

CUT_OFF = "cosine, cut off"
RANKINGS = ("cosine", CUT_OFF, "expected cosine", "lower bound", "probit", "p_best")
"""Ways to rank, and the first of them where nothing is shown below a cut-off that half of the queries chose."""
DOUBTS: Mapping[str, str] = {
    "cosine": "cosine",
    "margin": "cosine",
    "standardised": "cosine",
    "softmax": "cosine",
    "expected cosine": "expected cosine",
    "lower bound": "lower bound",
    "probit": "probit",
    "deviation": "expected cosine",
    "query variance": "expected cosine",
    "p_best": "p_best",
}
"""Each doubt, and the ranking whose first answer it is about."""
BEST_OF = 10
"""How many answers share draws."""
HALF = 1.96
"""Standard deviations from the mean to the lower bound, as an index has it at its level of 95 %."""

_DRAWS = 512
_NUMBERS = 2**22  # that a matrix of a block holds
_ABOVE = 1e6  # what a probability of being the best weighs against a cosine


@dataclass(frozen=True, eq=False)
class Searched:
    """One direction of one set: what every query found.

    Attributes:
        items: how many there were to find.
        ranked: by the way to rank, where the items that answer each query came out.
        doubts: about the first answer to each query, [Q].
        answerable: which queries still have a match after items were held out, [Q]; None where none were.
        held: the same doubts in what was left of the collection, [Q].
    """

    items: int
    ranked: Mapping[str, Ranked]
    doubts: Mapping[str, Tensor]
    answerable: Tensor | None
    held: Mapping[str, Tensor]

    __repr__ = described

    @property
    def asked(self) -> Tensor:  # [Q] bool
        """The queries that something answers."""
        return self.ranked["cosine"].counts > 0

    def answers(self, doubt: str) -> Doubted:
        """What a doubt says of the first answers, to the queries that have one."""
        return Doubted(self.doubts[doubt][self.asked], self.ranked[DOUBTS[doubt]].found(1)[self.asked])


def search(
    vlm: BayesVLM,
    queries: Features,
    items: Features,
    relevant: Relevance,
    tower: Tower,
    held: HeldOut | None = None,
    advance: Callable[[int], object] = lambda _: None,
) -> Searched:
    """Search for every query.

    Args:
        vlm: the model; without a posterior only what needs none is measured.
        queries: [Q], of `tower`.
        items: [M], of the other tower.
        relevant: which items answer which query.
        tower: of the queries.
        held: items to leave out for a second search, in which some queries have no match.
        advance: told how many queries are done.
    """
    made = _Search(vlm, queries, items, tower)
    parts: dict[str, list[Ranked]] = {name: [] for name in made.rankings}
    doubts: dict[str, list[Tensor]] = {name: [] for name in made.doubts}
    second: dict[str, list[Tensor]] = {name: [] for name in made.doubts}
    for rows in row_blocks(len(queries), made.width, _NUMBERS):
        block = made.block(rows)
        best, about = made.judged(block, rows, None)
        wanted = relevant.padded(rows)
        for name, scores in made.scores(block, best).items():
            parts[name].append(Ranked.of(scores, wanted))
        for name, values in about.items():
            doubts[name].append(values.double().cpu())
        if held is not None:
            for name, values in made.judged(block, rows, held.kept)[1].items():
                second[name].append(values.double().cpu())
        advance(rows.stop - rows.start)
    ranked = {name: _on_processor(Ranked.concatenate(of)) for name, of in parts.items()}
    joined = {name: torch.cat(of) for name, of in doubts.items()}
    answered = ranked["cosine"].counts > 0
    if int(answered.sum()) > 1:
        top = -joined["cosine"]
        cut_off = torch.full_like(top, -torch.inf)
        cut_off[answered] = other_half_cut_offs(top[answered], torch.ones(int(answered.sum()), dtype=torch.bool))
        ranked[CUT_OFF] = ranked["cosine"].above(cut_off)
    return Searched(
        len(items),
        {name: ranked[name] for name in RANKINGS if name in ranked},
        joined,
        None if held is None else held.answerable,
        {} if held is None else {name: torch.cat(of) for name, of in second.items()},
    )


def shares_draws(vlm: BayesVLM) -> str:
    """Why p_best cannot be had of a model; empty where it can."""
    if not vlm.fitted:
        return "there is no posterior"
    try:
        for distribution in vlm.posterior.values():
            distribution.shared_covariance()
    except BayesVLMError as error:
        return str(error).rstrip(".")
    return ""


@dataclass(frozen=True, eq=False)
class _Block:
    """Every pair of some queries with all items."""

    cosine: Tensor  # [q, M]
    scale: float
    mean: Tensor | None = None  # [q, M]
    std: Tensor | None = None  # [q, M]

    @property
    def lower(self) -> Tensor:  # [q, M]
        assert self.mean is not None
        assert self.std is not None
        return self.mean - HALF * self.std

    @property
    def probit(self) -> Tensor:  # [q, M]
        assert self.mean is not None
        assert self.std is not None
        return self.scale * self.mean / (1 + math.pi / 8 * (self.scale * self.std).square()).sqrt()


@dataclass(frozen=True, eq=False)
class _Best:
    """The first few of each query by expected cosine, and how often each is the best of them."""

    items: Tensor  # [q, k]
    probability: Tensor  # [q, k] float64


class _Search:
    """A model and both sides of a search, embedded."""

    def __init__(self, vlm: BayesVLM, queries: Features, items: Features, tower: Tower) -> None:
        self.vlm, self.tower = vlm, tower
        self.other: Tower = "image" if tower == "text" else "text"
        self.queries, self.items = queries, items
        asked, found = ({"image": vlm.image, "text": vlm.text}[name] for name in (tower, self.other))
        normalise = torch.nn.functional.normalize
        self.plain = normalise(asked.embed(queries.to(vlm.device)), dim=1)
        self.plain_items = normalise(found.embed(items.to(vlm.device)), dim=1)
        self.fitted, self.shared = vlm.fitted, not shares_draws(vlm)
        if self.fitted:
            self.gaussian = self._embedded(tower, queries)
            self.gaussian_items = self._embedded(self.other, items)

    @property
    def rankings(self) -> tuple[str, ...]:
        """Those that the model can, without the one that is cut off."""
        return tuple(name for name in RANKINGS if name != CUT_OFF and self._can(name))

    @property
    def doubts(self) -> tuple[str, ...]:
        """Those that the model can."""
        return tuple(name for name, ranking in DOUBTS.items() if self._can(ranking))

    @property
    def width(self) -> int:
        """Numbers that a query takes in the largest matrix of its block."""
        return max(len(self.items), BEST_OF * max(self.items.shape[1], _DRAWS))

    def block(self, rows: slice) -> _Block:
        """All pairs of some queries."""
        cosine = self.plain[rows] @ self.plain_items.T
        if not self.fitted:
            return _Block(cosine, self.vlm.scale)
        moments = prob_cosine(self.gaussian[rows], self.gaussian_items)
        return _Block(cosine, self.vlm.scale, moments.mean, moments.std)

    def scores(self, block: _Block, best: _Best | None) -> dict[str, Tensor]:  # [q, M] each
        """What each way to rank orders items by."""
        found = {"cosine": block.cosine}
        if block.mean is not None:
            found |= {"expected cosine": block.mean, "lower bound": block.lower, "probit": block.probit}
            if best is not None:
                found["p_best"] = _reordered(block.mean.double(), best)
        return found

    def judged(self, block: _Block, rows: slice, kept: Tensor | None) -> tuple[_Best | None, dict[str, Tensor]]:
        """The best few, and every doubt, [q], among all items or those that are kept, [M] bool."""
        left = None if kept is None else kept.nonzero()[:, 0].to(block.cosine.device)
        there = slice(None) if left is None else left
        cosine = block.cosine[:, there]
        if cosine.shape[1] < 2:
            raise BayesVLMError(f"A collection of {cosine.shape[1]} items leaves nothing to search; give at least two.")
        first = cosine.topk(2, dim=1).values
        found = {
            "cosine": -first[:, 0],
            "margin": first[:, 1] - first[:, 0],
            "standardised": (cosine.mean(dim=1) - first[:, 0]) / cosine.std(dim=1),
            "softmax": -_largest_share(block.scale * cosine),
        }
        if block.mean is None or block.std is None:
            return None, found
        mean = block.mean[:, there]
        top = mean.topk(min(BEST_OF, mean.shape[1]), dim=1)
        found |= {
            "expected cosine": -top.values[:, 0],
            "lower bound": -block.lower[:, there].amax(dim=1),
            "probit": -_largest_share(block.probit[:, there]),
            "deviation": block.std[:, there].gather(1, top.indices[:, :1])[:, 0],
            "query variance": _variance_share(self.gaussian[rows]),
        }
        if not self.shared:
            return None, found
        items = top.indices if left is None else left[top.indices]
        best = _Best(items, self._p_best(rows, items))
        return best, found | {"p_best": -best.probability.amax(dim=1)}

    def _p_best(self, rows: slice, items: Tensor) -> Tensor:  # [q, k] -> [q, k] float64
        """As an index has it of what it returns: cosines under draws of the projections that all share."""
        towers = (self.tower, self.other)
        asked, found = (self.vlm.posterior[name].shared_covariance().shape for name in towers)
        queries = self._directed(self.gaussian[rows], self.tower, self.queries[rows])
        places = items.flatten()
        answers = self._directed(self.gaussian_items[places], self.other, self.items[places.cpu()])
        asked, found = (shape.to(torch.float64) for shape in (asked, found))
        k = items.shape[1]
        moments = [
            query_cosines(
                Directed(*(part[place : place + 1] for part in queries)),
                asked,
                Directed(*(part[place * k : (place + 1) * k] for part in answers)),
                found,
            )
            for place in range(len(items))
        ]
        mean, covariance = (torch.stack(part) for part in zip(*moments, strict=True))
        return probability_of_best(mean, covariance, _DRAWS)

    def _directed(self, embedded: GaussianEmbeddings, tower: Tower, features: Features) -> Directed:
        """Means and whitened activations over the expected length."""
        white = self.vlm.posterior[tower].whitened(features.to(self.vlm.device))
        length = embedded.expected_norm[:, None]
        return Directed((embedded.mean / length).double(), (white / length).double())

    def _embedded(self, tower: Tower, features: Features) -> GaussianEmbeddings:
        return self.vlm.posterior[tower].embed(features.to(self.vlm.device))

    def _can(self, ranking: str) -> bool:
        return {"cosine": True, "p_best": self.shared}.get(ranking, self.fitted)


def _reordered(scores: Tensor, best: _Best) -> Tensor:  # [q, M]
    """The best few by their probability, before all others. Others that score as the last of them stay level with it:
    which of them were taken is chance."""
    own = scores.gather(1, best.items)
    lifted = 2 + _ABOVE * best.probability + own
    last = own.amin(dim=1, keepdim=True)
    level = torch.where(own == last, lifted, -torch.inf).amax(dim=1, keepdim=True)
    return torch.where(scores == last, level, scores).scatter(1, best.items, lifted)


def _largest_share(logits: Tensor) -> Tensor:  # [q, M] -> [q]
    """The largest number of a softmax."""
    return (logits.amax(dim=1) - logits.logsumexp(dim=1)).exp()


def _variance_share(embedded: GaussianEmbeddings) -> Tensor:  # [q]
    return embedded.covariance.trace() / embedded.expected_norm.square()


def _on_processor(ranked: Ranked) -> Ranked:
    return Ranked(ranked.ranks.cpu(), ranked.scores.cpu())
