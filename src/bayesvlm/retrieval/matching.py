r"""Whether anything in an index matches a query, at a chosen error rate, and how probably each hit does.

Two things tell of a query that nothing matches: the highest expected cosine c is low, or the query's own variance v is
high, because it is in words that the model does not know. Let n calibration queries have a match, and let a new one, 0,
be ranked with them:

    s_j = min( #{k: c_k <= c_j},  WEIGHT #{k: v_k >= v_j} )   for j, k in 0 ... n,      p = #{j: s_j <= s_0} / (n + 1)

If the new query has a match and is like those of the calibration (exchangeable with them), P(p <= error) <= error,
whatever the model, for s treats all n + 1 alike: conformal prediction. "Nothing here matches" is said where p <= error.
`WEIGHT` gives about a fifth of the error rate to the second sign. Items that are added can only raise c.

The probability that a hit is relevant is a logistic function of its expected cosine and of that cosine's standard
deviation, fitted on the first `FITTED` hits of the calibration queries.

docs/retrieval.md says what else was measured, and how it did.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.estimation import Tower
from bayesvlm.core.linearised import probability_of_best
from bayesvlm.core.notebook import html_table
from bayesvlm.core.printing import described
from bayesvlm.retrieval.hits import DRAWS
from bayesvlm.safety.conformal import fewest
from bayesvlm.safety.precision import check_share

DEPTH = 10
"""Items, by expected cosine, whose self-consistency decides on a query without labels, however many are asked for."""
FITTED = 20
"""Hits of a calibration query, at most, that the probability of a match is fitted on."""
FILE = "calibration.json"
"""What a calibration is called among the files of an index."""
SCHEMA = 1
COUNTED = 20
"""Queries without a match, at least, that the share of them which is answered is counted on."""
WEIGHT = 4
"""How much rarer a query's variance must be than its cosine to count as much."""
NO_ITEM = -1.0
"""The cosine of a query to which no item is left."""
_EXAMPLE = "0.05 for 5 %"
_RIDGE = 1.0  # on the coefficients of standardised features, in units of one hit's log-likelihood
_ROUNDING = 1e-12


@dataclass(frozen=True)
class MatchModel:
    """P(relevant) = sigmoid(intercept + by_cosine cosine + by_std std).

    Attributes:
        hits: how many it was fitted on.
        relevant: how many of those are.
    """

    intercept: float
    by_cosine: float
    by_std: float
    hits: int
    relevant: int

    @classmethod
    def fit(cls, cosine: Tensor, std: Tensor, relevant: Tensor) -> MatchModel:  # [n], [n], [n] bool
        """Maximum likelihood with a weak ridge on the standardised coefficients, by Newton's method in float64."""
        features = torch.stack([cosine, std], dim=1).double()
        centre, spread = features.mean(dim=0), features.std(dim=0, correction=0)
        spread = torch.where(spread > 0, spread, 1.0)
        design = torch.cat([torch.ones(len(features), 1).double(), (features - centre) / spread], dim=1)
        weights = _newton(design, relevant.double())
        slopes = weights[1:] / spread
        intercept = float(weights[0] - slopes @ centre)
        return cls(intercept, float(slopes[0]), float(slopes[1]), len(relevant), int(relevant.sum()))

    def __call__(self, cosine: Tensor, std: Tensor) -> Tensor:  # [k], [k] -> [k] float64
        """The probability that each hit is relevant."""
        return torch.sigmoid(self.intercept + self.by_cosine * cosine.double() + self.by_std * std.double())


@dataclass(frozen=True)
class Judgement:
    """What a calibration says of one query.

    Attributes:
        matches: False where nothing here matches.
        p_value: how often a query that has a match looks as if it had none, as much as this one.
        query_p_value: how often a calibration query is at least as uncertain by itself as this one.
    """

    matches: bool
    p_value: float
    query_p_value: float


@dataclass(frozen=True, eq=False)
class Asked:
    """What decides on queries.

    Attributes:
        score: the highest expected cosine of each; without labels, how often draws agree on the best item.
        variance: of each query by itself, as a share of its expected squared length.
    """

    score: Tensor  # [n] float64
    variance: Tensor  # [n] float64

    __repr__ = described

    @classmethod
    def of(cls, score: Sequence[float], variance: Sequence[float]) -> Asked:
        """From lists."""
        return cls(torch.tensor(score, dtype=torch.float64), torch.tensor(variance, dtype=torch.float64))

    def __len__(self) -> int:
        return len(self.score)


@dataclass(frozen=True, eq=False)
class Calibration:
    """What `Index.calibrate` learnt, kept with the index.

    Attributes:
        error: of queries that have a match, at most this share is told that nothing matches.
        matched: the calibration queries that have a match, [n]; without labels, all of them.
        nothing: those that have none, [m].
        without: those that have a match, had their relevant items been taken away, [n]: queries without a match, made
            of those with one.
        model: of the probability that a hit is relevant; None without labels.
        tower: that the queries are of; None: plain vectors. Nothing is said of queries of another kind.
        rows: items in the index at the time.
        prompts: the templates that texts were asked in, as `Queries.prompts`; nothing is said of others.
        sample: some of those items, as `bayesvlm.retrieval.remaining` looks for them again.
    """

    error: float
    matched: Asked
    nothing: Asked
    without: Asked
    model: MatchModel | None
    tower: Tower | None
    rows: int
    prompts: tuple[str, ...] = ()
    sample: Mapping[str, float] = field(default_factory=dict)

    def is_of(self, tower: Tower | None, prompts: tuple[str, ...]) -> bool:
        """Whether it says something of queries of a tower in these templates; of Features nobody knows in which."""
        return self.tower == tower and (self.prompts == prompts or not self.prompts or not prompts)

    @property
    def labelled(self) -> bool:
        """Whether it was known what is relevant. Without, nothing is guaranteed."""
        return self.model is not None

    def with_error(self, error: float) -> Calibration:
        """The same queries at another error rate: nothing has to be searched again. It is not kept with the index."""
        check_enough(len(self.matched), check_error(error), self.labelled)
        return replace(self, error=error)

    def judged(self, score: float, query_variance: float) -> Judgement:
        """Of a query, by its score (see `Asked`) and its own variance."""
        p_value = self._p_value(score, query_variance)
        rarer = (1 + int((self.matched.variance >= query_variance).sum())) / (len(self.matched) + 1)
        return Judgement(p_value > self.error + _ROUNDING, p_value, rarer)

    def p_values(self, asked: Asked) -> Tensor:  # [m] float64
        """How often a query that has a match looks as if it had none, as much as each of these."""
        pairs = zip(asked.score.tolist(), asked.variance.tolist(), strict=True)
        return torch.tensor([self._p_value(score, variance) for score, variance in pairs], dtype=torch.float64)

    def p_match(self, cosine: Tensor, std: Tensor) -> Tensor | None:  # [k], [k] -> [k]
        """The probability that each hit is relevant, by the expected cosine and its standard deviation."""
        return None if self.model is None else self.model(cosine, std)

    def false_answers(self, made: bool | None = None) -> float | None:
        """The share of queries without a match that are answered all the same; None where there are none to count.

        Args:
            made: count those that were made by taking relevant items away, instead of those that were given; None:
                those that were given, if there are at least `COUNTED` of them.
        """
        if not self.labelled:
            return None
        asked = self._unmatched(made)
        return float((self.p_values(asked) > self.error + _ROUNDING).double().mean()) if len(asked) else None

    @property
    def counted(self) -> int:
        """How many queries without a match `false_answers` is counted on."""
        return len(self._unmatched(None)) if self.labelled else 0

    @property
    def counted_made(self) -> bool:
        """Whether those were made by taking relevant items away."""
        return self.labelled and len(self.nothing) < COUNTED

    def _unmatched(self, made: bool | None) -> Asked:
        return self.without if (self.counted_made if made is None else made) else self.nothing

    def summary(self) -> dict[str, Any]:
        """What there is to say of it, as json."""
        return {
            "labelled": self.labelled,
            "error": self.error,
            "queries": len(self.matched),
            "rows": self.rows,
            "false_answers": self.false_answers(),
            "false_answers_of": self.counted,
            "false_answers_made": self.counted_made,
        }

    def _p_value(self, score: float, variance: float) -> float:
        """Of one query, ranked together with those of the calibration."""
        scores, variances = self.matched.score, self.matched.variance
        lower, higher = self._ranks
        signs = torch.minimum(lower + (scores >= score), WEIGHT * (higher + (variances <= variance)))
        own = min(1 + int((scores <= score).sum()), WEIGHT * (1 + int((variances >= variance).sum())))
        return (1 + int((signs <= own).sum())) / (len(scores) + 1)

    @cached_property
    def _ranks(self) -> tuple[Tensor, Tensor]:  # [n], [n]
        """Of each calibration query among those: how many score no more, and how many vary no less."""
        return _up_to(self.matched.score), _up_to(-self.matched.variance)

    # Keeping it ------------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """As the index keeps it."""
        return {
            "schema": SCHEMA,
            "error": self.error,
            "tower": self.tower,
            "rows": self.rows,
            "prompts": list(self.prompts),
            "sample": dict(self.sample),
            "model": None if self.model is None else vars(self.model),
            **{name: {of: values.tolist() for of, values in vars(getattr(self, name)).items()} for name in _ASKED},
        }

    @classmethod
    def from_json(cls, content: bytes, place: str) -> Calibration:
        """What `to_json` wrote, in an index."""
        try:
            raw = json.loads(content)
            if raw["schema"] != SCHEMA:
                raise BayesVLMError(
                    f"The calibration of {place} has schema {raw['schema']!r}, this version reads {SCHEMA}; upgrade "
                    "bayesvlm, or calibrate again."
                )
            model = None if raw["model"] is None else MatchModel(**raw["model"])
            asked = {name: Asked.of(**raw[name]) for name in _ASKED}
            return cls(
                error=check_error(raw["error"]),
                model=model,
                tower=raw["tower"],
                rows=raw["rows"],
                prompts=tuple(raw["prompts"]),
                sample={str(name): float(kept) for name, kept in raw.get("sample", {}).items()},
                **asked,
            )
        except BayesVLMError:
            raise
        except (ValueError, KeyError, TypeError, RuntimeError, AttributeError):
            raise BayesVLMError(f"The calibration of {place} is damaged; calibrate again.") from None

    # How it prints ---------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        n = len(self.matched)
        if not self.labelled:
            return (
                f"Calibration(without labels and without any guarantee: flags the {self.error:g} least "
                f"self-consistent or most uncertain of queries like these {n}, on {self.rows} items)"
            )
        answered = self.false_answers()
        which = "made by taking the matches of these away" if self.counted_made else "given"
        said = f"; of {self.counted} queries without one, {which}, {answered or 0:.0%} are answered all the same"
        said = "" if answered is None else said
        return (
            f"Calibration(turns away at most {self.error:g} of queries that have a match{said}, by {n} queries on "
            f"{self.rows} items)"
        )

    def _repr_html_(self) -> str:
        """A small table for notebooks."""
        rows = [["queries", f"{len(self.matched)}"], ["items in the index", f"{self.rows}"]]
        if self.labelled:
            rows += [["turned away, of those with a match", f"{self.error:.3g} at most"]]
            for made, which in ((False, "without a match"), (True, "whose matches were taken away")):
                share, count = self.false_answers(made), len(self._unmatched(made))
                if share is not None:
                    rows.append([f"answered all the same, of {count} {which}", f"{share:.0%}"])
            return html_table("Calibration", ["", ""], rows)
        rows.append(["flagged", f"the {self.error:.3g} least self-consistent or most uncertain; no guarantee"])
        return html_table("Calibration without labels", ["", ""], rows)


_ASKED = ("matched", "nothing", "without")


def _up_to(values: Tensor) -> Tensor:  # [n] -> [n]
    """How many values are at most each of them."""
    return torch.searchsorted(values.sort().values, values, right=True)


def self_consistency(cosines: Tensor, covariance: Tensor) -> float:  # [c], [c, c]
    """How often draws of the projections agree on the best item: what decides where there are no labels."""
    return float(probability_of_best(cosines, covariance, draws=DRAWS).max()) if len(cosines) else NO_ITEM


def check_error(error: float) -> float:
    """An error rate, if it is one."""
    return check_share("error", error, _EXAMPLE)


def check_enough(count: int, error: float, labelled: bool) -> None:
    """Refuse fewer queries than an error rate needs."""
    if count >= fewest(error):
        return
    which = "with something relevant in the index" if labelled else "to compare with"
    raise BayesVLMError(
        f"There are {count} queries {which}, and an error of {error:g} needs {fewest(error)} at least; calibrate on "
        "more, or allow a larger error."
    )


def _newton(design: Tensor, target: Tensor, steps: int = 50) -> Tensor:  # [n, m], [n] -> [m]
    """Coefficients of a logistic regression; the first is the intercept, which is not shrunk."""
    ridge = torch.full((design.shape[1],), _RIDGE, dtype=torch.float64)
    ridge[0] = 1e-8
    weights = torch.zeros_like(ridge)
    weights[0] = torch.logit(target.mean())
    for _ in range(steps):
        probability = torch.sigmoid(design @ weights)
        gradient = design.T @ (probability - target) + ridge * weights
        hessian = (design.T * (probability * (1 - probability))) @ design + ridge.diag()
        step = torch.linalg.solve(hessian, gradient)
        weights = weights - step / max(1.0, float(step.abs().max()) / 2)  # at most 2 per step: it cannot run away
        if float(step.abs().max()) < 1e-10:
            break
    return weights
