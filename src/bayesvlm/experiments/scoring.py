"""What one method's predictions on one set are worth: every metric, and what a paired test needs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from bayesvlm.evaluation import (
    Estimate,
    Outcomes,
    Reliability,
    RiskCoverage,
    augrc,
    aurc,
    auroc,
    e_aurc,
    fpr95,
    outcomes_interval,
    risk_coverage,
)

BINS = 20  # of the calibration errors, as in the paper


@dataclass(frozen=True, eq=False)
class Scores:
    """One method on one set, input by input and in all: shares, nats; what its confidence is worth.

    Args:
        outcomes: what its probabilities say of each input.
        voted: [N], bool: where the label is not the most probable class but a vote (test-time augmentation), whether it
            is right. It counts for top-1; calibration, NLPD and the ranking are those of the probabilities.
    """

    outcomes: Outcomes
    voted: Tensor | None = None

    @classmethod
    def of(cls, probs: Tensor, labels: Tensor) -> Scores:  # [N, C], [N]
        """Of probabilities that fit into memory."""
        return cls(Outcomes.of(probs, labels))

    @property
    def correct(self) -> Tensor:  # [N], bool
        """Whether the answer is right."""
        return self.outcomes.correct if self.voted is None else self.voted

    @property
    def nll(self) -> Tensor:  # [N], float64
        """Surprise at the right answer, nats."""
        return self.outcomes.nll

    @property
    def top1(self) -> Estimate:
        """Share of right answers."""
        return Estimate.of(self.correct)

    @property
    def nlpd(self) -> Estimate:
        """Mean surprise at the right answer."""
        return Estimate.of(self.nll)

    @cached_property
    def ece(self) -> float:
        """Expected calibration error in 20 bins of equal width."""
        return float(self.outcomes.ece(BINS))

    @cached_property
    def aurc(self) -> float:
        """Area under the risk-coverage curve, by the largest probability."""
        return aurc(self._doubt, self.outcomes.correct)

    @cached_property
    def reliability(self) -> Reliability:
        """Ten bins: what a diagram can show."""
        return self.outcomes.reliability(bins=10)

    @cached_property
    def risk_coverage(self) -> RiskCoverage:
        """Error rate when only the surest share of the answers is given."""
        return risk_coverage(self._doubt, self.outcomes.correct)

    def numbers(self) -> dict[str, float | None]:
        """The figures alone, for json; None where the answers are all right or all wrong and there is nothing to rank.

        `ece_low` and `ece_high` bound the middle 95 % of a bootstrap over the inputs.
        """
        wrong = ~self.outcomes.correct
        low, high = outcomes_interval(lambda outcomes: outcomes.ece(BINS), self.outcomes)
        both = bool(wrong.any()) and not bool(wrong.all())
        return {
            "top1": self.top1.value,
            "top1_error": self.top1.standard_error,
            "nlpd": self.nlpd.value,
            "nlpd_error": self.nlpd.standard_error,
            "ece": self.ece,
            "ece_low": low,
            "ece_high": high,
            "adaptive_ece": float(self.outcomes.adaptive_ece(BINS)),
            "brier": float(self.outcomes.brier()),
            "aurc": self.aurc,
            "e_aurc": e_aurc(self._doubt, self.outcomes.correct),
            "augrc": augrc(self._doubt, self.outcomes.correct),
            "failure_auroc": auroc(self._doubt, wrong) if both else None,
            "failure_fpr95": fpr95(self._doubt, wrong) if both else None,
        }

    @property
    def _doubt(self) -> Tensor:  # [N]
        return 1 - self.outcomes.confidence.double()
