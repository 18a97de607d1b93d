"""How well scores tell known things from unknown ones: one model, one known set, sets of unknown things.

Every score is measured for every way to predict that it can be had of: the model as it came, with a temperature, with
its posterior. Familiar images count as positives, as in published tables: FPR95 is the share of unknown images that
pass for known where 95 % of the known ones do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor

from bayesvlm.artifacts.files import read_safetensors, write_together
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.data.cache import tensor_fingerprint
from bayesvlm.data.labelled.renamed import synonyms_of
from bayesvlm.data.labelled.samples import LabelledSet
from bayesvlm.evaluation import aupr, auroc, delong, fpr95, rank_interval
from bayesvlm.experiments.zero_shot import place
from bayesvlm.progress import progress_bar
from bayesvlm.safety import Predictive, conformal, familiarities, halves
from bayesvlm.vlm import BayesVLM

SCHEMA = 1
Kind = Literal["familiar", "shifted", "unknown"]
BASELINE = "MCM"
_FIGURES = {"auroc": auroc, "fpr95": fpr95, "aupr": aupr}
_SHOWN = 5  # classes in a sentence
_EXACT = 1e-12  # of p-values that are to be the false-alarm rate


class Asked(NamedTuple):
    """A score of one way to predict, and what tables call it."""

    title: str
    score: str
    predictive: Predictive


def scores_of(
    vlm: BayesVLM, temperature: float | None = None, raised: float | None = None, negatives: bool = False
) -> list[Asked]:
    """Every score that can be measured of a model.

    Args:
        vlm: the Bayesian scores are for models with a posterior, or with variances of their own.
        temperature: the one with the best NLPD on validation images; None: there are none.
        raised: the largest one that is as good on them; None as before.
        negatives: whether there are words for what the images are not.
    """
    found = [
        Asked("MSP", "msp", "plain"),
        Asked("entropy", "entropy", "plain"),
        Asked("MCM", "mcm", "plain"),
        Asked("max cosine", "max_cosine", "plain"),
        Asked("energy", "energy", "plain"),
    ]
    if negatives:
        found.append(Asked("NegLabel", "neglabel", "plain"))
    for name, value in (("temperature", temperature), ("raised temperature", raised)):
        if value is not None:
            found += [Asked(f"MSP, {name}", "msp", value), Asked(f"entropy, {name}", "entropy", value)]
    if vlm.fitted:
        found += [
            Asked("MSP, Bayes", "msp", "bayes"),
            Asked("entropy, Bayes", "entropy", "bayes"),
            Asked("epistemic", "epistemic", "bayes"),
            Asked("image variance", "variance", "bayes"),
            Asked("text variance", "text_variance", "bayes"),
        ]
    return found


def measure(
    vlm: BayesVLM, images: Features, classes: Features, asked: Sequence[Asked], negatives: Features | None = None
) -> dict[str, Tensor]:  # [N] each
    """The scores of images by their titles."""
    found: dict[str, Tensor] = {}
    for predictive in dict.fromkeys(each.predictive for each in asked):
        own = [each for each in asked if each.predictive == predictive]
        made = familiarities(
            vlm, images, classes, [each.score for each in own], predictive=predictive, negatives=negatives
        )
        found |= {each.title: made[each.score].cpu() for each in own}
    return {each.title: found[each.title] for each in asked}


def known_classes(known: LabelledSet, data: LabelledSet, labels: Tensor) -> list[str]:  # [N]
    """Which classes of a set, of those that it has images of, are among the known ones, letters' case aside."""
    names = synonyms_of(known) or tuple((name,) for name in known.classes)
    these = {_plain(name) for each in names for name in each}
    own = synonyms_of(data) or tuple((name,) for name in data.classes)
    present = sorted({label for label in labels.tolist() if 0 <= label < len(own)})
    return [own[label][0] for label in present if these & {_plain(name) for name in own[label]}]


def check_unknown(known: LabelledSet, data: LabelledSet, labels: Tensor) -> None:  # [N]
    """Refuse an out-set with classes that are known."""
    found = known_classes(known, data, labels)
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise BayesVLMError(
            f"{data.name} is to be unknown, and {len(found)} of its classes are among the {len(known.classes)} known "
            f"ones: {', '.join(map(repr, found[:_SHOWN]))}{more}; remove their images from it, or say with "
            "--keep-known that known things as it shows them are unknown all the same."
        )


def _plain(name: str) -> str:
    return " ".join(name.casefold().replace("_", " ").replace("-", " ").split())


@dataclass(frozen=True)
class Outside:
    """The scores of every image of the known set, of shifted sets of the same classes, and of unknown ones.

    Args:
        inputs: everything the result depends on, by name and hash.
        facts: sizes, temperatures, what was skipped, classes of out-sets that are known all the same.
        kinds: of each set, the familiar one first.
        scores: set -> score -> its values, [N] float64, higher = familiar.
        rows: score -> which images of the familiar set it is calibrated on, for the share of images that are flagged.
        false_alarms: share of familiar images that may be flagged.
    """

    inputs: Mapping[str, Any]
    facts: Mapping[str, Any]
    kinds: Mapping[str, Kind]
    scores: Mapping[str, Mapping[str, Tensor]]
    rows: Tensor  # [n]
    false_alarms: float = 0.05

    @property
    def model(self) -> str:
        return str(self.inputs["model"]["name"])

    @property
    def familiar(self) -> str:
        """The name of the known set."""
        return next(name for name, kind in self.kinds.items() if kind == "familiar")

    def of_kind(self, *kinds: Kind) -> list[str]:
        """The names of the sets of some kinds."""
        return [name for name, kind in self.kinds.items() if kind in kinds]

    @property
    def titles(self) -> list[str]:
        """What the scores are called."""
        return list(self.scores[self.familiar])

    @cached_property
    def table(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Set that is not familiar -> score -> figures with the ends of their 95 % bootstrap intervals, and whether it
        is better than MCM by DeLong's test."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        known = self.scores[self.familiar]
        others = self.of_kind("unknown", "shifted")
        with progress_bar("resampling", total=len(others) * len(known), unit="scores") as advance:
            for name in others:
                count = len(known[BASELINE]) + len(self.scores[name][BASELINE])
                positives = torch.arange(count) < len(known[BASELINE])
                both = {title: torch.cat([known[title], self.scores[name][title]]) for title in known}
                found[name] = {}
                for title, values in both.items():
                    found[name][title] = _figures(values, both[BASELINE], positives)
                    advance(1)
        return found

    @cached_property
    def flagged(self) -> dict[str, dict[str, float]]:
        """Set -> score -> the share of its images that is flagged by a threshold calibrated on half of the familiar
        set; of that set, the other half's. Nothing where half of it is too few."""
        if len(self.rows) < conformal.fewest(self.false_alarms):
            return {}
        fresh = torch.ones(len(self.scores[self.familiar][BASELINE]), dtype=torch.bool)
        fresh[self.rows] = False
        found: dict[str, dict[str, float]] = {}
        for name, of in self.scores.items():
            found[name] = {}
            for title, values in of.items():
                calibration = self.scores[self.familiar][title][self.rows]
                asked = values[fresh] if name == self.familiar else values
                alarms = conformal.p_values(calibration, asked) <= self.false_alarms + _EXACT
                found[name][title] = float(alarms.double().mean())
        return found

    def threshold(self, title: str) -> float | None:
        """Where images begin to be flagged; None where there are too few to say."""
        if len(self.rows) < conformal.fewest(self.false_alarms):
            return None
        return conformal.alarm_threshold(self.scores[self.familiar][title][self.rows], self.false_alarms)

    @cached_property
    def numbers(self) -> dict[str, Any]:
        """All figures, for json."""
        return {
            "schema": SCHEMA,
            "inputs": self.inputs,
            "facts": self.facts,
            "kinds": self.kinds,
            "scores": self.titles,
            "false_alarms": self.false_alarms,
            "table": self.table,
            "flagged": self.flagged,
        }

    def save(self, folder: str | Path) -> Path:
        """Write the figures as json and the scores as safetensors beside it; returns the json's path."""
        path = outside_place(folder, self.model, self.familiar)
        columns = {f"{name}/{title}": values for name, of in self.scores.items() for title, values in of.items()}
        columns["calibrated on"] = self.rows
        columns = {name: values.contiguous().clone() for name, values in columns.items()}
        numbers = {**self.numbers, "columns": tensor_fingerprint(columns.items())}
        text = json.dumps(numbers, indent=2, allow_nan=False) + "\n"
        write_together(path.parent, {f"{path.stem}.safetensors": save(columns), path.name: text.encode()})
        return path

    @classmethod
    def load(cls, path: str | Path) -> Outside:
        """Read what `save` wrote; refuses files that do not belong together."""
        path = Path(path)
        try:
            written = json.loads(path.read_text(encoding="utf-8"))
            if written["schema"] != SCHEMA:
                raise BayesVLMError(f"{path} has schema {written['schema']}; this version reads {SCHEMA}.")
            columns = read_safetensors(path.with_suffix(".safetensors"))
            if tensor_fingerprint(columns.items()) != written["columns"]:
                raise BayesVLMError(f"{path} and its .safetensors are of different runs; measure again.")
            scores = {
                name: {title: columns[f"{name}/{title}"] for title in written["scores"]} for name in written["kinds"]
            }
            rows = columns["calibrated on"]
            return cls(
                written["inputs"], written["facts"], written["kinds"], scores, rows, float(written["false_alarms"])
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BayesVLMError(f"{path} is no result of `bayesvlm eval --ood` ({error!r}); measure again.") from None


def outside_place(folder: str | Path, model: str, data: str) -> Path:
    """Where the json of a model and a known set lies."""
    usual = place(folder, model, data)
    return usual.with_suffix("") / "ood.json" if usual.suffix == ".json" else usual / "ood.json"


def calibration_rows(labels: Tensor) -> Tensor:  # [N] -> [n]
    """The half of a labelled set that thresholds are calibrated on."""
    return halves(labels)[1]


def _figures(values: Tensor, baseline: Tensor, positives: Tensor) -> dict[str, Any]:  # [N], [N], [N] bool
    """A score's figures with their intervals, and its AUROC against the baseline's."""
    found: dict[str, Any] = {}
    for figure, metric in _FIGURES.items():
        low, high = rank_interval(metric, values, positives)
        found[figure] = {"value": metric(values, positives), "low": low, "high": high}
    test = delong(values, baseline, positives)
    found["over_mcm"] = {"difference": test.difference, "standard_error": test.standard_error, "p": test.p}
    return found
