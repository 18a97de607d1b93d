"""One model on one caption set, both ways: what was found, how well doubt orders it, and what was kept of it."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save
from torch import Tensor

from bayesvlm import __version__
from bayesvlm.artifacts.files import read_safetensors, write_together
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.estimation import Tower
from bayesvlm.core.features import Features
from bayesvlm.data.cache import tensor_fingerprint
from bayesvlm.data.captions import CaptionSet
from bayesvlm.evaluation import (
    Estimate,
    HeldOut,
    Ranked,
    Relevance,
    RiskCoverage,
    compare_areas,
    delong,
    detection,
    hold_out,
    not_worse_than_best,
    risk_coverage,
    risk_coverage_area,
)
from bayesvlm.experiments.caption_search import DOUBTS, RANKINGS, Searched, search, shares_draws
from bayesvlm.experiments.feature_store import FeatureStore
from bayesvlm.experiments.zero_shot import LEVEL, model_inputs, place
from bayesvlm.progress import progress_bar
from bayesvlm.vlm import BayesVLM

SCHEMA = 1
DIRECTIONS: Mapping[str, Tower] = {"text to image": "text", "image to text": "image"}
"""Each direction, and the tower that asks."""
RECALLS = (1, 5, 10)
BASELINE = "cosine"
"""The doubt that the others are compared with: what people abstain by."""
HELD_OUT = 0.5
"""The share of queries that lose their match, so that they should be answered by none."""
SEED = 0
FEWEST = 4
"""Queries of each kind that saying "nothing matches" is measured on."""


@dataclass(frozen=True)
class CaptionResult:
    """What came out of one model on one caption set.

    Args:
        inputs: everything it depends on, by name and hash.
        facts: sizes, what was skipped, what was left out and why, seconds.
        searched: by direction.
    """

    inputs: Mapping[str, Any]
    facts: Mapping[str, Any]
    searched: Mapping[str, Searched]

    @property
    def model(self) -> str:
        return str(self.inputs["model"]["name"])

    @property
    def data(self) -> str:
        return str(self.inputs["data"]["name"])

    @property
    def left_out(self) -> list[str]:
        """A sentence for each thing that could not be measured."""
        return [f"{name} was left out: {why}." for name, why in self.facts["left_out"].items()]

    @cached_property
    def table(self) -> dict[str, dict[str, Any]]:
        """By direction: sizes, the figures of each way to rank, and those of each doubt."""
        return {direction: _figures(searched) for direction, searched in self.searched.items()}

    @cached_property
    def curves(self) -> dict[str, dict[str, RiskCoverage]]:
        """By direction: the error rate among the first answers that a doubt spares."""
        return {
            direction: {name: risk_coverage(*searched.answers(name)) for name in searched.doubts}
            for direction, searched in self.searched.items()
        }

    @property
    def numbers(self) -> dict[str, Any]:
        """All figures, for json."""
        return {"schema": SCHEMA, "inputs": self.inputs, "facts": self.facts, "directions": self.table}

    def save(self, folder: str | Path) -> Path:
        """Write the figures as json, and what they were made from as safetensors beside it; returns the json's path."""
        path = captions_place(folder, self.model, self.data)
        columns = {
            f"{direction}/{name}": value
            for direction, searched in self.searched.items()
            for name, value in _tensors(searched).items()
        }
        numbers = {**self.numbers, "columns": tensor_fingerprint(columns.items())}
        text = json.dumps(numbers, indent=2, allow_nan=False) + "\n"
        write_together(path.parent, {f"{path.stem}.safetensors": save(columns), path.name: text.encode()})
        return path

    @classmethod
    def load(cls, path: str | Path) -> CaptionResult:
        """Read what `save` wrote; refuses files that do not belong together."""
        path = Path(path)
        try:
            written = json.loads(path.read_text(encoding="utf-8"))
            if written["schema"] != SCHEMA:
                raise BayesVLMError(f"{path} has schema {written['schema']}; this version reads {SCHEMA}.")
            columns = read_safetensors(path.with_suffix(".safetensors"))
            if tensor_fingerprint(columns.items()) != written["columns"]:
                raise BayesVLMError(f"{path} and its .safetensors are of different runs; measure again.")
            searched = {
                direction: _of_tensors(of["items"], _below(columns, f"{direction}/"))
                for direction, of in written["directions"].items()
            }
            return cls(written["inputs"], written["facts"], searched)
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, BayesVLMError):
                raise
            raise BayesVLMError(
                f"{path} is no result of `bayesvlm eval --retrieval` ({error!r}); measure again."
            ) from None


def captions_place(folder: str | Path, model: str, data: str) -> Path:
    """Where the json of a model on a caption set lies."""
    return place(folder, model, data).with_suffix("") / "retrieval.json"


class CaptionStudy:
    """One model, made ready to be measured on caption sets.

    Args:
        vlm: the model, with a posterior or without.
        name: what tables call it.
        encoder: of the same model, with the cache it has.
    """

    def __init__(self, vlm: BayesVLM, name: str, encoder: FeatureStore) -> None:
        self.vlm, self.name, self.encoder = vlm, name, encoder

    def inputs(self, data: CaptionSet) -> dict[str, Any]:
        """What a result on this set will depend on: two runs with equal inputs give equal results."""
        parts = [self.encoder.fingerprint(part) for part in data.parts]
        return {
            **model_inputs(self.vlm, self.name, self.encoder),
            "data": {"name": data.name, "fingerprint": data.fingerprint(parts)},
            "held_out": {"share": HELD_OUT, "seed": SEED},
            "versions": {
                "bayesvlm": __version__,
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "python": platform.python_version(),
            },
        }

    def run(self, data: CaptionSet) -> CaptionResult:
        """Encode (or take from the cache), search in both directions."""
        inputs, started = self.inputs(data), time.perf_counter()
        images, rows, skipped = self._images(data)
        texts = self.encoder.texts(data.texts)
        encoded = time.perf_counter()
        relevant = data.relevant.among(range(len(data.texts)), rows)
        if not int(relevant.counts.sum()):
            raise BayesVLMError(f"{data.name} has no image that can be read; look at what was skipped.")
        left_out = {}
        if why := shares_draws(self.vlm):
            left_out["p_best" if self.vlm.fitted else "everything but the cosine"] = why
        searched = {}
        for direction, tower in DIRECTIONS.items():
            sides = (texts, images, relevant) if tower == "text" else (images, texts, relevant.transposed())
            held = _held(sides[2])
            if isinstance(held, str):
                left_out[f"saying that nothing matches, {direction},"] = held
            searched[direction] = self._search(f"{data.name}, {direction}", *sides, tower, held)
        facts = {
            "texts": len(texts),
            "images": len(images),
            "skipped": skipped,
            "left_out": left_out,
            "seconds": {"encode": encoded - started, "search": time.perf_counter() - encoded},
        }
        return CaptionResult(inputs, facts, searched)

    def _images(self, data: CaptionSet) -> tuple[Features, list[int], dict[str, str]]:
        """Features of the images that can be read, their places in the set, and what was skipped."""
        places = {identity: row for row, identity in enumerate(data.ids)}
        features: list[Features] = []
        rows: list[int] = []
        skipped: dict[str, str] = {}
        for part in data.parts:
            found = self.encoder.unlabelled(part)
            features.append(found.features)
            rows += [places[key] for key in found.keys]
            skipped.update(found.skipped)
        return Features.concatenate(features), rows, skipped

    def _search(
        self, what: str, queries: Features, items: Features, relevant: Relevance, tower: Tower, held: HeldOut | str
    ) -> Searched:
        with torch.no_grad(), progress_bar(f"Searching {what}", total=len(queries), unit="queries") as advance:
            left = None if isinstance(held, str) else held
            return search(self.vlm, queries, items, relevant, tower, left, advance)


def _held(relevant: Relevance) -> HeldOut | str:
    """Items to hold out, or why that cannot be done."""
    try:
        found = hold_out(relevant, HELD_OUT, SEED)
    except BayesVLMError as error:
        return str(error).rstrip(".")
    asked = relevant.counts > 0
    fewest = min(int(found.answerable.sum()), int((asked & ~found.answerable).sum()))
    if fewest < FEWEST or int(found.kept.sum()) < 2:
        return f"{fewest} queries with a match, or without one, are too few to measure it on"
    return found


# Figures --------------------------------------------------------------------------------------------------------------


def _figures(searched: Searched) -> dict[str, Any]:
    asked = searched.asked
    losses = {name: _losses(ranked, asked) for name, ranked in searched.ranked.items()}
    doubts = {name: _doubt(searched, name, BASELINE) for name in searched.doubts}
    plain = min((name for name in doubts if needs_nothing(name)), key=lambda name: doubts[name]["aurc"]["value"])
    for name in doubts:
        if not needs_nothing(name):
            doubts[name]["aurc_over_best_plain"] = {"doubt": plain, **_over(searched, name, plain)}
    return {
        "queries": int(asked.sum()),
        "queries_without_an_answer": int((~asked).sum()),
        "items": searched.items,
        "answers_per_query": float(searched.ranked[BASELINE].counts[asked].double().mean()),
        "rankings": {
            name: {figure: asdict(Estimate.of(1 - loss)) for figure, loss in of.items()} for name, of in losses.items()
        },
        "not_worse_than_best": {
            figure: sorted(not_worse_than_best({name: losses[name][figure] for name in losses}, LEVEL))
            for figure in next(iter(losses.values()))
        },
        "doubts": doubts,
    }


def needs_nothing(doubt: str) -> bool:
    """Whether a doubt can be had without a posterior."""
    return DOUBTS[doubt] == BASELINE


def _losses(ranked: Ranked, asked: Tensor) -> dict[str, Tensor]:  # [Q] each
    """What each figure lacks to 1, query by query."""
    found = {f"recall@{k}": ranked.found(k).double() for k in RECALLS}
    found |= {"r_precision": ranked.precision(), "map_at_r": ranked.average_precision()}
    return {figure: 1 - values[asked] for figure, values in found.items()}


def _doubt(searched: Searched, name: str, baseline: str) -> dict[str, Any]:
    """Of one doubt: its area under risk and coverage, and how well it says that nothing matches."""
    answers = searched.answers(name)
    found: dict[str, Any] = {
        "ranking": DOUBTS[name],
        "right": float(answers.correct.double().mean()),
        "aurc": asdict(risk_coverage_area(answers)),
        "aurc_over_cosine": _over(searched, name, baseline),
        "nothing_matches": None,
    }
    if searched.answerable is not None:
        there = searched.answerable[searched.asked]
        scores, cosine = (-searched.held[of][searched.asked] for of in (name, baseline))
        over = delong(scores, cosine, there)
        found["nothing_matches"] = {
            **asdict(detection(scores, there)),
            "auroc_over_cosine": {"difference": over.difference, "standard_error": over.standard_error, "p": over.p},
        }
    return found


def _over(searched: Searched, name: str, other: str) -> dict[str, float]:
    """The area of one doubt less that of another."""
    found = compare_areas(searched.answers(name), searched.answers(other))
    return {part: getattr(found, part) for part in ("difference", "standard_error", "low", "high", "p")}


# On disk --------------------------------------------------------------------------------------------------------------


def _tensors(searched: Searched) -> dict[str, Tensor]:
    """What a search is made again from."""
    found: dict[str, Tensor] = {}
    for name, ranked in searched.ranked.items():
        found |= {f"ranks/{name}": ranked.ranks, f"scores/{name}": ranked.scores}
    found |= {f"doubts/{name}": values for name, values in searched.doubts.items()}
    found |= {f"held/{name}": values for name, values in searched.held.items()}
    if searched.answerable is not None:
        found["answerable"] = searched.answerable
    return {name: value.contiguous().clone() for name, value in found.items()}


def _of_tensors(items: int, columns: Mapping[str, Tensor]) -> Searched:
    ranks, scores = _below(columns, "ranks/"), _below(columns, "scores/")
    ranked = {name: Ranked(ranks[name], scores[name]) for name in RANKINGS if name in ranks}
    doubts, held = _below(columns, "doubts/"), _below(columns, "held/")
    ordered = {name: doubts[name] for name in DOUBTS if name in doubts}
    rest = {name: held[name] for name in DOUBTS if name in held}
    return Searched(items, ranked, ordered, columns.get("answerable"), rest)


def _below(columns: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in columns.items() if name.startswith(prefix)}
