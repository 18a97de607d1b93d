"""Sets of classes that hold the right one as often as was asked for."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from bayesvlm.classes import label_indices
from bayesvlm.core.blocks import row_blocks
from bayesvlm.core.errors import BayesVLMError, BayesVLMWarning, check_choice, check_count, first_line
from bayesvlm.core.features import Features
from bayesvlm.core.notebook import html_table
from bayesvlm.core.predict import tower_generators
from bayesvlm.prompts import ClassNames, Templates
from bayesvlm.safety import conformal
from bayesvlm.safety.basis import Basis, OfBasis, check_varied
from bayesvlm.safety.calibrated import load_calibration, load_tensors, save_calibration
from bayesvlm.safety.familiar import Predictive
from bayesvlm.safety.precision import check_share
from bayesvlm.vlm import BayesVLM

Kind = Literal["lac", "aps", "raps"]
KIND = "prediction sets"
_EXAMPLE = "0.1 for 10 %"
_SHOWN = 5


@dataclass(frozen=True, eq=False)
class PredictionSets(OfBasis):
    """Which classes an input may be of: called on inputs, it returns their sets, [N, C] bool.

    What is promised: of inputs like the calibration images, at most `miss` have a set without their class, on average
    over the draw of the calibration images; with `by_class` of the images of each class. A set may be empty (no class
    fits), and may have many classes where the model is unsure. Not promised: anything of images of another kind.

    APS and RAPS are randomised: each input gets a number between 0 and 1 that decides whether its last class is in.
    It comes from `seed` and the input's place in the call, so that the same call gives the same sets; where inputs come
    in several calls, hand all of them one `generator`.

    Attributes:
        miss: how often a set may be without the class.
        kind: "lac", "aps" or "raps" (`bayesvlm.safety.conformal`).
        by_class: whether each class has a threshold of its own.
        penalty, rank: of "raps".
        seed: of the random numbers.
        scores, labels: of the calibration images.
        thresholds: of each class, [C]; infinite: it is in every set.
        basis: what the scores are of.
    """

    miss: float
    kind: Kind
    by_class: bool
    penalty: float
    rank: int
    seed: int
    scores: Tensor  # [n] float64
    labels: Tensor  # [n]
    thresholds: Tensor  # [C] float64
    basis: Basis

    @classmethod
    def calibrate(
        cls,
        vlm: BayesVLM,
        inputs: Any,
        labels: Sequence[int] | Sequence[str] | Tensor,
        classes: ClassNames | Features,
        miss: float = 0.1,
        kind: Kind = "aps",
        *,
        templates: Templates | None = None,
        predictive: Predictive = "bayes",
        by_class: bool = False,
        penalty: float = 0.01,
        rank: int = 5,
        seed: int = 0,
        source: str | None = None,
        batch_size: int | None = None,
        workers: int | None = None,
        progress: bool | None = None,
    ) -> PredictionSets:
        """Prediction sets from labelled images.

        Args:
            vlm: a model, with a posterior unless `predictive` says otherwise.
            inputs: images or Features, [n]; not those that tau was tuned on.
            labels: of each, as names or indices.
            classes, templates: as for `classify`.
            miss: alpha, how often a set may be without the class.
            kind: "lac", the smallest sets; "aps", which are larger for difficult images; "raps", with fewer very large.
            predictive: whose probabilities: "bayes", "plain", or a temperature.
            by_class: keep the promise for each class by itself. Classes with too few images are in every set, and a
                warning names them.
            penalty, rank: of "raps", added for each rank beyond this one.
            seed: of the random numbers of "aps" and "raps".
            source: what the calibration images are called; kept with the sets.
            batch_size, workers, progress: as for `classify`.
        """
        miss = check_share("miss", miss, _EXAMPLE)
        check_choice("kind", kind, get_args(Kind))
        penalty, rank = conformal.check_penalty(penalty), check_count("rank", rank, least=0)
        seed = check_count("seed", seed, least=0)
        basis = Basis.of(vlm, classes, templates, None, predictive, None, source, progress, answers=True)
        least = conformal.fewest(miss)
        images = basis.calibration_images(inputs, least, f"a miss rate of {miss:g}", batch_size, workers, progress)
        held = basis.calibrated_for
        target = label_indices(labels, held.names, len(images), len(held.classes)).cpu()
        scorer = basis.scorer
        options: dict[str, Any] = {"kind": kind, "penalty": penalty, "rank": rank}
        u = _uniform(len(images), tower_generators(seed)[0])
        own = torch.cat(
            [
                conformal.of_labels(_scores(scorer.probs(images[b]), u[b], **options), target[b]).cpu()
                for b in _blocks(len(images), len(held.classes))
            ]
        )
        if kind == "lac":
            check_varied(own, "The probability of the label")
        shares: dict[str, Any] = {**options, "miss": miss, "by_class": by_class, "seed": seed}
        sets = cls._fitted(own, target, basis, **shares)
        if by_class and bool(sets.always.any()):
            warnings.warn(sets._always(), BayesVLMWarning, stacklevel=2)
        return sets

    @classmethod
    def _fitted(cls, scores: Tensor, labels: Tensor, basis: Basis, **options: Any) -> PredictionSets:
        """With the thresholds that these scores give."""
        count, miss = len(basis.calibrated_for.classes), options["miss"]
        groups = [scores[labels == k] if options["by_class"] else scores for k in range(count)]
        if options["by_class"]:
            found = [conformal.threshold(group, miss) for group in groups]
        else:
            found = [conformal.threshold(scores, miss)] * count
        thresholds = torch.tensor(found, dtype=torch.float64)
        return cls(**options, scores=scores, labels=labels, thresholds=thresholds, basis=basis)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """What the classes are called; None: they were given as Features."""
        return self.calibrated_for.names

    @property
    def always(self) -> Tensor:  # [C] bool
        """Classes that are in every set, because there are too few images of them."""
        return self.thresholds == math.inf

    def with_miss(self, miss: float) -> PredictionSets:
        """The same sets at another miss rate: nothing has to be computed again."""
        miss = check_share("miss", miss, _EXAMPLE)
        if self.n < conformal.fewest(miss):
            raise BayesVLMError(
                f"There are {self.n} calibration images, and a miss rate of {miss:g} needs {conformal.fewest(miss)} at "
                "least; calibrate on more."
            )
        options = {name: getattr(self, name) for name in ("kind", "by_class", "penalty", "rank", "seed")}
        return self._fitted(self.scores, self.labels, self.basis, miss=miss, **options)

    def __call__(
        self,
        inputs: Any,
        *,
        generator: torch.Generator | None = None,
        batch_size: int | None = None,
        workers: int | None = None,
        progress: bool | None = None,
    ) -> Tensor:  # [N, C] bool
        """The sets of inputs (images or Features).

        Args:
            generator: of the random numbers; None: one that begins anew, from the seed.
            batch_size, workers, progress: as for `classify`.
        """
        images = self.basis.images(inputs, batch_size, workers, progress)
        scorer, generator = self.basis.scorer, self._generator(generator)
        blocks = _blocks(len(images), len(self.thresholds))
        return torch.cat([self.of_probs(scorer.probs(images[rows]), generator=generator) for rows in blocks])

    def of_probs(self, probs: Tensor, *, generator: torch.Generator | None = None) -> Tensor:  # [N, C] -> [N, C] bool
        """The sets of inputs whose probabilities are known: of the same model, classes and posterior, which is up to
        the caller."""
        if probs.ndim != 2 or probs.shape[1] != len(self.thresholds):
            raise BayesVLMError(
                f"probs is {list(probs.shape)} and the sets are of {len(self.thresholds)} classes; classify with the "
                "classes they were calibrated for."
            )
        u = _uniform(len(probs), self._generator(generator))
        blocks = _blocks(*probs.shape)
        scores = (_scores(probs[b], u[b], self.kind, self.penalty, self.rank) for b in blocks)
        return torch.cat([part <= self.thresholds.to(part.device) for part in scores])

    def _generator(self, given: torch.Generator | None) -> torch.Generator:
        return tower_generators(self.seed)[1] if given is None else given

    def names_of(self, sets: Tensor) -> list[list[str]]:  # [N, C] bool
        """The names of the classes in each set."""
        names = self.classes
        if names is None:
            raise BayesVLMError("The classes were given as Features and have no names; use the columns' indices.")
        return [[names[k] for k in row.nonzero().flatten().tolist()] for row in sets]

    # Keeping them ----------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write a json file (or one in a folder) and a safetensors file of the scores beside it; returns the former."""
        options = {name: getattr(self, name) for name in ("miss", "kind", "by_class", "penalty", "rank", "seed")}
        content = {**options, "images": self.n, **self.basis.to_json()}
        return save_calibration(
            path, KIND, self.calibrated_for, content, {"scores": self.scores, "labels": self.labels}
        )

    @classmethod
    def load(
        cls,
        path: str | Path,
        vlm: BayesVLM,
        classes: ClassNames | Features | None = None,
        *,
        templates: Templates | None = None,
    ) -> PredictionSets:
        """Read what `save` wrote, for the model and the classes they hold for; arguments as for `Detector.load`."""
        options = ("miss", "kind", "by_class", "penalty", "rank", "seed")
        raw, kept = load_calibration(path, KIND, (*options, "images", "predictive", "source"))
        tensors = load_tensors(path, KIND, raw, ["scores", "labels"])
        basis = Basis.from_json(raw, kept, tensors, vlm, classes, templates, str(path), scored=False)
        scores, labels = tensors["scores"], tensors["labels"]
        try:
            check_share("miss", raw["miss"], _EXAMPLE)
            check_choice("kind", raw["kind"], get_args(Kind))
            check_count("seed", raw["seed"], least=0)
            check_count("rank", raw["rank"], least=0)
            conformal.check_penalty(raw["penalty"])
            if not isinstance(raw["by_class"], bool):
                raise BayesVLMError(f"by_class is {str(raw['by_class'])[:40]}")
            if scores.dtype != torch.float64 or labels.dtype != torch.long or scores.shape != labels.shape:
                raise BayesVLMError("its scores and labels do not fit each other")
            return cls._fitted(scores, labels, basis, **{name: raw[name] for name in options})
        except (BayesVLMError, RuntimeError, IndexError) as error:
            raise BayesVLMError(f"{path} is damaged ({first_line(error)}); copy or make it again.") from None

    # How they print --------------------------------------------------------------------------------------------------

    def _always(self) -> str:
        """Which classes have too few images."""
        least = conformal.fewest(self.miss)
        some = self.always.nonzero().flatten().tolist()
        named = (f"{self.calibrated_for.name(k)} ({int((self.labels == k).sum())})" for k in some[:_SHOWN])
        more = f" and {len(some) - _SHOWN} more" if len(some) > _SHOWN else ""
        return (
            f"{len(some)} of {len(self.thresholds)} classes have fewer than the {least} images that a miss rate of "
            f"{self.miss:g} needs, and are in every set: {', '.join(named)}{more}."
        )

    def _promise(self) -> str:
        return f"a miss rate of {self.miss:g}{' of each class' if self.by_class else ''}"

    def __repr__(self) -> str:
        images = self.basis.images_described(self.n)
        return f"PredictionSets({self._promise()}, {self.kind}, by {self.basis.described()}, {images})"

    def _repr_html_(self) -> str:
        """A small table for notebooks."""
        finite = self.thresholds[~self.always]
        shown = "none" if not len(finite) else f"{float(finite.min()):.4g}"
        if len(finite) and float(finite.max()) > float(finite.min()):
            shown += f" to {float(finite.max()):.4g}"
        rows = [
            ["promise", self._promise()],
            ["kind", self.kind],
            ["of", self.basis.described()],
            ["calibration images", self.basis.images_described(self.n).removeprefix("calibrated on ")],
            ["threshold", shown],
        ]
        return html_table("Prediction sets", ["", ""], rows)


def _scores(probs: Tensor, u: Tensor, kind: Kind, penalty: float, rank: int) -> Tensor:  # [N, C], [N] -> [N, C]
    if kind == "lac":
        return conformal.lac(probs)
    return conformal.aps(probs, u) if kind == "aps" else conformal.raps(probs, u, penalty, rank)


def _uniform(count: int, generator: torch.Generator) -> Tensor:  # [N]
    return torch.rand(count, generator=generator, dtype=torch.float64, device=generator.device)


def _blocks(count: int, classes: int) -> list[slice]:
    """Of rows whose scores, in float64, are computed at once; one that is empty where there are no rows."""
    return list(row_blocks(count, classes, numbers=2**22)) or [slice(0, 0)]
