"""The paper's first question: are the uncertainties useful? One model on one labelled set, all methods side by side.

A result is two files that name everything they were made from: NAME.json with the figures, NAME.safetensors with six
numbers per image and method. Tables, tests and pictures are made from these alone.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save

from bayesvlm import __version__
from bayesvlm.artifacts.files import read_safetensors, write_together
from bayesvlm.artifacts.weights import weight_hashes
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.estimation import TOWERS
from bayesvlm.data.cache import FeatureCache, tensor_fingerprint
from bayesvlm.data.labelled.samples import LabelledSet, absent_classes
from bayesvlm.data.labelled.templates import ALL, chosen_templates, set_prompts
from bayesvlm.data.views import Views
from bayesvlm.evaluation import Outcomes, not_worse_than_best
from bayesvlm.experiments.feature_store import FeatureStore
from bayesvlm.experiments.methods import PREDICTED, SINGLE, TEMPERED, VOTING, Methods, check_suits, losses
from bayesvlm.experiments.scoring import Scores
from bayesvlm.pretrained import own_templates
from bayesvlm.prompts import ClassPrompts, Template, check_templates
from bayesvlm.vlm import BayesVLM

SCHEMA = 1
LEVEL = 0.05  # of the paired tests
NO_VALIDATION = "no labelled images to find it on were named (--validation SET)"


@dataclass(frozen=True)
class Result:
    """What came out of one model on one set.

    Args:
        inputs: everything the result depends on, by name and hash: model, posterior, data, prompts, methods, versions.
        facts: sizes, the temperatures, what was skipped, methods that were left out and why, seconds.
        scores: each method's.
    """

    inputs: Mapping[str, Any]
    facts: Mapping[str, Any]
    scores: Mapping[str, Scores]

    @property
    def model(self) -> str:
        return str(self.inputs["model"]["name"])

    @property
    def data(self) -> str:
        return str(self.inputs["data"]["name"])

    @property
    def templates(self) -> list[str]:
        """The prompts that were averaged for each class; the paper's one, unless more were asked for."""
        data = self.inputs["data"]
        return [data["template"]] if "template" in data else list(data["templates"])

    @property
    def left_out(self) -> list[str]:
        """A sentence for each method that was asked for and could not be measured."""
        return [f"{method} was left out: {why}." for method, why in self.facts.get("left_out", {}).items()]

    def winners(self, metric: str) -> frozenset[str]:
        """The methods not worse than the best, by a paired t-test over the images; of ECE the smallest."""
        if metric == "ece":
            best = min(found.ece for found in self.scores.values())
            return frozenset(name for name, found in self.scores.items() if found.ece == best)
        return not_worse_than_best(losses(self.scores, "nlpd" if metric == "nlpd" else "top1"), LEVEL)

    @cached_property
    def numbers(self) -> dict[str, Any]:
        """All figures, for json."""
        return {
            "schema": SCHEMA,
            "inputs": self.inputs,
            "facts": self.facts,
            "methods": {name: found.numbers() for name, found in self.scores.items()},
            "not_worse_than_best": {metric: sorted(self.winners(metric)) for metric in ("top1", "nlpd")},
        }

    def save(self, folder: str | Path) -> Path:
        """Write both files, whole or not at all; returns the json's path."""
        path = place(folder, self.model, self.data)
        columns = {
            f"{method}/{column.name}": getattr(found.outcomes, column.name).cpu().contiguous()
            for method, found in self.scores.items()
            for column in fields(Outcomes)
        }
        columns |= {
            f"{name}/voted": found.voted.cpu() for name, found in self.scores.items() if found.voted is not None
        }
        text = (
            json.dumps({**self.numbers, "columns": tensor_fingerprint(columns.items())}, indent=2, allow_nan=False)
            + "\n"
        )
        write_together(path.parent, {f"{path.stem}.safetensors": save(columns), path.name: text.encode()})
        return path

    @classmethod
    def load(cls, path: str | Path) -> Result:
        """Read what `save` wrote; refuses files that do not belong together."""
        path = Path(path)
        try:
            written = json.loads(path.read_text(encoding="utf-8"))
            if (schema := written["schema"]) != SCHEMA:
                raise BayesVLMError(f"{path} has schema {schema}; this version reads {SCHEMA}: measure again.")
            columns = read_safetensors(path.with_suffix(".safetensors"))
            if tensor_fingerprint(columns.items()) != written["columns"]:
                raise BayesVLMError(f"{path} and its .safetensors are of different runs; measure again.")
            outcomes = {
                name: Outcomes(*(columns[f"{name}/{column.name}"] for column in fields(Outcomes)))
                for name in written["methods"]
            }
            scores = {name: Scores(found, columns.get(f"{name}/voted")) for name, found in outcomes.items()}
            result = cls(written["inputs"], written["facts"], scores)
            known = (result.model, result.data, result.templates, result.facts["classes"], result.facts["skipped"])
            if not scores or None in known:
                raise KeyError("methods")
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            if isinstance(error, BayesVLMError):
                raise
            raise BayesVLMError(f"{path} is no result of `bayesvlm eval` ({error!r}); measure again.") from None
        return result


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The entries of two results' inputs that differ, whatever the models and sets are called."""
    unnamed = [_without_names(json.loads(json.dumps(inputs))) for inputs in (before, now)]
    return [name for name in unnamed[1] if unnamed[0].get(name) != unnamed[1][name]]


def _without_names(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        entry: {name: of[name] for name in of if name != "name"} if isinstance(of, dict) else of
        for entry, of in inputs.items()
    }


def load_results(folder: str | Path) -> tuple[list[Result], list[str]]:
    """All results below a folder, by model and set, and why what looks like one is none."""
    results, reasons = [], []
    for path in sorted(path for path in Path(folder).glob("*/*.json") if path.with_suffix(".safetensors").exists()):
        try:
            results.append(Result.load(path))
        except BayesVLMError as error:
            reasons.append(str(error))
    return results, reasons


def place(folder: str | Path, model: str, data: str) -> Path:
    """Where the json of a model on a set lies; what a file name cannot hold becomes a dash."""
    return Path(folder) / _slug(model) / f"{_slug(data)}.json"


class ZeroShot:
    """One model, made ready to be measured on any number of sets.

    Args:
        vlm: the model, with a posterior where a Bayesian method is asked for.
        name: what tables call it.
        methods: some of `methods.METHODS`, or of `methods.PREDICTED`; None takes those that suit the model.
        validation: where temperatures are found; without it the methods that have one are left out, and said to be.
        views: for the methods that vote.
        keep: the share of views that vote.
        cache: of features; None keeps none.
        templates: prompts with {c} for the class, averaged; "all": every one that a set has; None: the first of each,
            as the paper does.
        encoder: of the same model, where there is one with a cache already.
    """

    def __init__(
        self,
        vlm: BayesVLM,
        name: str,
        *,
        methods: Sequence[str] | None = None,
        validation: LabelledSet | None = None,
        views: Views | None = None,
        keep: float = 0.3,
        cache: FeatureCache | None = None,
        templates: Sequence[str] | str | None = None,
        encoder: FeatureStore | None = None,
    ) -> None:
        if methods is None:
            methods = PREDICTED if vlm.predicts_variance else SINGLE
        for method in methods:
            check_suits(vlm, method)
        if any("Bayes" in method for method in methods) and not vlm.fitted:
            raise BayesVLMError(
                f"{name} has no posterior; fit one with `bayesvlm fit`, or leave the Bayesian methods out."
            )
        tempered = [method for method in methods if method in TEMPERED]
        self.left_out = dict.fromkeys(tempered, NO_VALIDATION) if validation is None else {}
        methods = [method for method in methods if method not in self.left_out]
        if not methods:
            raise BayesVLMError(
                f"The method {(tempered or TEMPERED)[0]!r} needs labelled images to find it on; name a validation set."
            )
        if not 0 < keep <= 1:
            raise BayesVLMError(f"keep={keep}; it is the share of views that vote, above 0 and at most 1.")
        if templates != ALL:
            check_templates(templates)
        self.vlm, self.name, self.methods, self.templates = vlm, name, tuple(methods), templates
        self.views = (views or Views()) if set(methods) & set(VOTING) else None
        self.encoder = encoder or FeatureStore(vlm, cache)
        self.validation, self.keep = validation if tempered else None, keep

    @cached_property
    def ready(self) -> Methods:
        """The methods, their temperatures found on the validation set."""
        if self.validation is None:
            return Methods(self.vlm, None, self.keep)
        found = self.encoder.images(self.validation)
        classes = self.encoder.classes(self.prompts(self.validation))
        return Methods.tuned(self.vlm, found.features, found.labels, classes, self.keep)

    def templates_of(self, data: LabelledSet) -> list[Template]:
        """The prompts that a set's classes are asked with: as was said, else its own, else the model's."""
        return chosen_templates(data, self.templates, own_templates(self.vlm))

    def prompts(self, data: LabelledSet) -> ClassPrompts:
        """A set's classes in those prompts."""
        return set_prompts(data, self.templates, own_templates(self.vlm))

    def inputs(self, data: LabelledSet) -> dict[str, Any]:
        """What a result on this set will depend on: two runs with equal inputs give equal results."""
        validation = self.validation
        return {
            **model_inputs(self.vlm, self.name, self.encoder),
            "data": self._named(data),
            "validation": validation and self._named(validation),
            "methods": list(self.methods),
            "views": None if self.views is None else {**vars(self.views), "keep": self.keep},
            "versions": {
                "bayesvlm": __version__,
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "python": platform.python_version(),
            },
        }

    def run(self, data: LabelledSet) -> Result:
        """Encode (or take from the cache), predict with every method, score."""
        inputs, started = self.inputs(data), time.perf_counter()
        methods = self.ready
        found = self.encoder.images(data)
        views = None if self.views is None else self.encoder.images(data, self.views)
        asked = self.prompts(data)
        classes = self.encoder.classes(asked)
        encoded = time.perf_counter()
        scores = methods.scores(found.features, found.labels, classes, self.methods, views.features if views else None)
        facts = {
            "images": len(found.labels),
            "classes": len(data.classes),
            "classes_without_images": absent_classes(found.labels.tolist(), data.classes),
            "repeated_prompts": asked.repeated,
            "skipped": dict(found.skipped),
            "temperature": methods.temperature,
            "raised_temperature": methods.raised,
            "left_out": self.left_out,
            "scale": self.vlm.scale,
            "seconds": {"encode": encoded - started, "predict": time.perf_counter() - encoded},
        }
        return Result(inputs, facts, scores)

    def _named(self, data: LabelledSet) -> dict[str, Any]:
        used = self.templates_of(data)
        prompts = {"template": used[0]} if len(used) == 1 else {"templates": used}
        return {"name": data.name, "fingerprint": self.encoder.fingerprint(data), **prompts}


def model_inputs(vlm: BayesVLM, name: str, encoder: FeatureStore) -> dict[str, Any]:
    """What any result depends on of a model: weights, architecture, preprocessing, posterior."""
    return {
        "model": {
            "name": name,
            "revision": getattr(vlm.adapter, "revision", None),
            "encoder": encoder.identity,
            "projections": weight_hashes(vlm.image, vlm.text)["float32"],
        },
        "posterior": _identity(vlm) if vlm.fitted else None,
    }


def _identity(vlm: BayesVLM) -> dict[str, Any]:
    """What a posterior's predictions depend on: its tensors, by their hash, and how they are read."""
    tensors = [
        (f"{tower}.{name}", tensor) for tower in TOWERS for name, tensor in vlm.posterior[tower].tensors().items()
    ]
    return {"factors": tensor_fingerprint(tensors), "predicted": vlm.predicts_variance, **asdict(vlm.settings)}


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name).strip("-.") or "unnamed"
