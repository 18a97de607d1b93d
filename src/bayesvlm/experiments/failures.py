"""Which answers are wrong, as far as a score can tell: every way to predict by its own confidence, and the rivals.

The answers are those of the method that the score belongs to: of the posterior for the Bayesian ones and for the
epistemic part, of the model as it came for ICPE, which judges the plain model's answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import save
from torch import Tensor

from bayesvlm.artifacts.files import read_safetensors, write_together
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.cache import tensor_fingerprint
from bayesvlm.evaluation import (
    RiskCoverage,
    augrc,
    aurc,
    auroc,
    coverage_at_risk,
    e_aurc,
    fpr95,
    rank_interval,
    risk_coverage,
)
from bayesvlm.experiments.zero_shot import place

SCHEMA = 1
RISKS = (0.01, 0.05, 0.1)
"""The shares of wrong answers that coverages are told for."""


class Ranking(NamedTuple):
    """The answers of one method, by how doubtful a score finds them."""

    doubt: Tensor  # [N] float64
    correct: Tensor  # [N] bool


@dataclass(frozen=True)
class Failures:
    """One model on one set: what every score tells of wrong answers.

    Args:
        inputs: everything the result depends on, by name and hash.
        facts: sizes, temperatures, what was left out and why.
        rankings: by the score's name.
    """

    inputs: Mapping[str, Any]
    facts: Mapping[str, Any]
    rankings: Mapping[str, Ranking]

    @property
    def model(self) -> str:
        return str(self.inputs["model"]["name"])

    @property
    def data(self) -> str:
        return str(self.inputs["data"]["name"])

    @property
    def left_out(self) -> list[str]:
        """A sentence for each score that could not be measured."""
        return [f"{name} was left out: {why}." for name, why in self.facts.get("left_out", {}).items()]

    @cached_property
    def table(self) -> dict[str, dict[str, Any]]:
        """Score -> figures; None where all answers are right, or all wrong, and there is nothing to find."""
        return {name: _figures(*ranking) for name, ranking in self.rankings.items()}

    @cached_property
    def curves(self) -> dict[str, RiskCoverage]:
        """The error rate among the answers a score is surest of."""
        return {name: risk_coverage(*ranking) for name, ranking in self.rankings.items()}

    @property
    def numbers(self) -> dict[str, Any]:
        """All figures, for json."""
        return {"schema": SCHEMA, "inputs": self.inputs, "facts": self.facts, "scores": self.table}

    def save(self, folder: str | Path) -> Path:
        """Write the figures as json and the rankings as safetensors beside it; returns the json's path."""
        path = failures_place(folder, self.model, self.data)
        columns = {
            f"{name}/{field}": getattr(ranking, field).cpu().contiguous().clone()
            for name, ranking in self.rankings.items()
            for field in Ranking._fields
        }
        numbers = {**self.numbers, "columns": tensor_fingerprint(columns.items())}
        text = json.dumps(numbers, indent=2, allow_nan=False) + "\n"
        write_together(path.parent, {f"{path.stem}.safetensors": save(columns), path.name: text.encode()})
        return path

    @classmethod
    def load(cls, path: str | Path) -> Failures:
        """Read what `save` wrote; refuses files that do not belong together."""
        path = Path(path)
        try:
            written = json.loads(path.read_text(encoding="utf-8"))
            if written["schema"] != SCHEMA:
                raise BayesVLMError(f"{path} has schema {written['schema']}; this version reads {SCHEMA}.")
            columns = read_safetensors(path.with_suffix(".safetensors"))
            if tensor_fingerprint(columns.items()) != written["columns"]:
                raise BayesVLMError(f"{path} and its .safetensors are of different runs; measure again.")
            rankings = {
                name: Ranking(*(columns[f"{name}/{field}"] for field in Ranking._fields)) for name in written["scores"]
            }
            return cls(written["inputs"], written["facts"], rankings)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BayesVLMError(
                f"{path} is no result of `bayesvlm eval --selective` ({error!r}); measure again."
            ) from None


def failures_place(folder: str | Path, model: str, data: str) -> Path:
    """Where the json of a model on a set lies."""
    return place(folder, model, data).with_suffix("") / "selective.json"


def _figures(doubt: Tensor, correct: Tensor) -> dict[str, Any]:
    wrong = ~correct
    both = bool(wrong.any()) and not bool(wrong.all())
    found: dict[str, Any] = {
        "error": float(wrong.double().mean()),
        "aurc": aurc(doubt, correct),
        "e_aurc": e_aurc(doubt, correct),
        "augrc": augrc(doubt, correct),
        "coverage_at_risk": {f"{risk:g}": coverage_at_risk(doubt, correct, risk) for risk in RISKS},
        "auroc": None,
        "fpr95": None,
    }
    if both:
        for name, metric in (("auroc", auroc), ("fpr95", fpr95)):
            low, high = rank_interval(metric, doubt, wrong)
            found[name] = {"value": metric(doubt, wrong), "low": low, "high": high}
    return found
