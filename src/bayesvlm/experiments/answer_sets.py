"""What prediction sets hold: how often the right class, and how many others, on the set they were calibrated on half of
and on the same classes under a shift.

Every kind of set is measured for every way to predict, from the same features and with the same random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from bayesvlm.core.blocks import row_blocks
from bayesvlm.core.features import Features
from bayesvlm.evaluation import Estimate
from bayesvlm.safety import Predictive, conformal
from bayesvlm.safety.familiar import Scorer
from bayesvlm.vlm import BayesVLM

SetKind = Literal["lac", "aps", "raps"]
KINDS: tuple[SetKind, ...] = get_args(SetKind)


@dataclass(frozen=True, eq=False)
class Sets:
    """The prediction sets of some images, as far as they are measured."""

    size: Tensor  # [N] classes
    covered: Tensor  # [N] bool, whether the right one is among them
    labels: Tensor  # [N]

    @property
    def mean_size(self) -> Estimate:
        """Classes in a set."""
        return Estimate.of(self.size)

    @property
    def coverage(self) -> Estimate:
        """Share of the sets that hold the right class."""
        return Estimate.of(self.covered)

    def by_class(self, classes: int) -> tuple[Tensor, Tensor]:  # [C], [C]
        """Of each class, how many of its images' sets hold it, and how many images it has."""
        hits = torch.bincount(self.labels[self.covered], minlength=classes)
        return hits, torch.bincount(self.labels, minlength=classes)

    def numbers(self) -> dict[str, float | None]:
        """The figures alone, for json."""
        size, coverage = self.mean_size, self.coverage
        return {
            "images": float(len(self.size)),
            "size": size.value,
            "size_error": size.standard_error if len(self.size) > 1 else None,
            "empty": float((self.size == 0).double().mean()),
            "coverage": coverage.value,
            "coverage_error": coverage.standard_error if len(self.size) > 1 else None,
        }


@dataclass(frozen=True, eq=False)
class Labelled:
    """Labelled images as the towers see them."""

    features: Features  # [N]
    labels: Tensor  # [N]


@dataclass(frozen=True)
class AnswerSets:
    """Method -> kind of set -> set of images -> what its prediction sets hold."""

    miss: float
    sets: Mapping[str, Mapping[str, Mapping[str, Sets]]]

    def numbers(self) -> dict[str, Any]:
        """All figures, for json."""
        figures = {
            method: {kind: {name: found.numbers() for name, found in of.items()} for kind, of in kinds.items()}
            for method, kinds in self.sets.items()
        }
        return {"miss": self.miss, "sets": figures}


def measure_sets(
    vlm: BayesVLM,
    classes: Features,  # [C]
    methods: Mapping[str, Predictive],
    calibration: Labelled,
    tests: Mapping[str, Labelled],
    miss: float = 0.1,
    seed: int = 0,
    kinds: Sequence[SetKind] = KINDS,
) -> AnswerSets:
    """Sets calibrated on some images, measured on others.

    Args:
        vlm: the model.
        classes: as the text tower sees them.
        methods: what each way to predict is called, and whose probabilities it takes.
        calibration: half of the familiar images.
        tests: what to measure on, by name.
        miss: how often a set may be without the right class.
        seed: of the numbers that randomise the sets.
        kinds: of sets.
    """
    found: dict[str, dict[str, dict[str, Sets]]] = {}
    for method, predictive in methods.items():
        scorer = Scorer(vlm, classes, predictive)
        own: dict[str, list[Tensor]] = {kind: [] for kind in kinds}
        for scores, labels in _scores(scorer, calibration, kinds, seed):
            for kind in kinds:
                own[kind].append(conformal.of_labels(scores[kind], labels))
        limits = {kind: conformal.threshold(torch.cat(of), miss) for kind, of in own.items()}
        found[method] = {kind: {} for kind in kinds}
        for number, (name, data) in enumerate(tests.items(), start=1):
            parts: dict[str, list[tuple[Tensor, Tensor]]] = {kind: [] for kind in kinds}
            for scores, labels in _scores(scorer, data, kinds, seed + number):
                for kind in kinds:
                    held = scores[kind] <= limits[kind]
                    parts[kind].append((held.sum(dim=1).cpu(), held.gather(1, labels[:, None])[:, 0].cpu()))
            for kind in kinds:
                of = parts[kind]
                sizes, covered = (torch.cat(column) for column in zip(*of, strict=True))
                found[method][kind][name] = Sets(sizes, covered, data.labels.cpu())
    return AnswerSets(miss, found)


@torch.no_grad()
def _scores(
    scorer: Scorer, data: Labelled, kinds: Sequence[SetKind], seed: int
) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    """The scores [n, C] of each kind of some images at a time, and their labels [n]."""
    count = len(data.labels)
    u = torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for rows in row_blocks(count, 4 * max(len(scorer.texts), data.features.activations.shape[1])):
        probs = scorer.probs(data.features[rows])
        made: dict[str, Tensor] = {}
        own = u[rows].to(probs.device)
        for kind in kinds:
            made[kind] = (
                conformal.lac(probs)
                if kind == "lac"
                else (conformal.aps(probs, own) if kind == "aps" else conformal.raps(probs, own))
            )
        yield made, data.labels[rows].to(probs.device)
