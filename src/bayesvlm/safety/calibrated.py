"""What a calibration holds for, one model, its posterior and a class list, and the json file that it is kept in.

A number that was fitted on validation images (a threshold, a quantile) keeps its promise only where the scores are made
as they were then. So it is saved with what made them, and whoever loads it is asked for the same.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from torch import Tensor

from bayesvlm.artifacts.files import read_safetensors, write_together
from bayesvlm.artifacts.weights import same_encoder, same_weights, weight_hashes
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.estimation import TOWERS
from bayesvlm.core.features import Features
from bayesvlm.pretrained import hashes_of, model_name
from bayesvlm.prompts import ClassNames, ClassPrompts, Templates
from bayesvlm.vlm import BayesVLM

SCHEMA = 1
_KIND, _SCHEMA, _FOR, _HASH = "bayesvlm_calibration", "schema", "calibrated_for", "tensors_sha256"
_TENSORS = ".safetensors"
_SETTINGS = ("tau", "structure", "covariance", "link")
_LARGE = 1e300  # beyond it, a number of json is infinite or does not fit a tensor
_COSINE_OFF, _STD_OFF = (
    0.01,
    0.05,
)  # absolute, relative: what another dtype of the encoder may change, and more than that
_FACTORS_OFF = 1e-3  # relative: what rounded weights may change of lam


@dataclass(frozen=True, eq=False)
class CalibratedFor:
    """A model with its posterior, and a class list: what decides the scores of an image.

    Args:
        vlm: held as a copy, so that a later `fit` or `tune` does not change what was calibrated.
        classes: activations of the classes, [C].
        prompts: what the classes are called and what was encoded of each; None: they were given as Features.
        bayesian: whether the scores depend on the posterior; if not, there need not be one.
    """

    vlm: BayesVLM
    classes: Features
    prompts: ClassPrompts | None
    bayesian: bool = True

    @classmethod
    def of(
        cls,
        vlm: BayesVLM,
        classes: ClassNames | Features,
        templates: Templates | None,
        progress: bool | None = None,
        *,
        bayesian: bool = True,
    ) -> CalibratedFor:
        """The model as it is now, and the classes, encoded once."""
        if bayesian:
            _ = vlm.posterior  # without one there is nothing to calibrate
        prompts = None if isinstance(classes, Features) else ClassPrompts.of(classes, templates)
        return cls(vlm.copy(), vlm.class_features(classes, templates, progress=progress), prompts, bayesian)

    @property
    def names(self) -> tuple[str, ...] | None:
        """What each class is called; None: they were given as Features."""
        return None if self.prompts is None else self.prompts.names

    def name(self, index: int) -> str:
        """What a class is called, to speak of it in a sentence."""
        return f"class {index}" if self.prompts is None else repr(self.prompts.names[index])

    def to_json(self) -> dict[str, Any]:
        """What to recognise it by: hashes of the weights, settings, prompts, and how like each class a made-up image
        is, which every part of the model and of its posterior has a hand in."""
        vlm, (cosine, std) = self.vlm, self._sample()
        spread = {} if std is None else {"std": std.tolist()}
        return {
            "model": model_name(vlm, "projections"),
            "weights": weight_hashes(vlm.image, vlm.text),
            "encoder": hashes_of(vlm.adapter),
            "bayesian": self.bayesian,
            "settings": {name: getattr(vlm.settings, name) for name in _SETTINGS if self.bayesian},
            "classes": len(self.classes),
            "prompts": None if self.prompts is None else prompts_by_name(self.prompts),
            "sample": {"cosine": cosine.tolist(), **spread},
            **({"posterior": self._posterior()} if self.bayesian else {}),
        }

    @classmethod
    def from_json(
        cls,
        kept: Mapping[str, Any],
        vlm: BayesVLM,
        classes: ClassNames | Features | None,
        templates: Templates | None,
        what: str,
    ) -> CalibratedFor:
        """This model and the classes that were kept, if everything is as it was.

        Args:
            kept: made by `to_json`.
            vlm: the model to go on with.
            classes, templates: to check against those that were kept; they are needed where Features were given then.
            what: was calibrated, for errors; such as "thresholds.json".

        Raises:
            BayesVLMError: for another model, other settings, another posterior, other classes.
        """
        bayesian = _bayesian(kept)
        _check_model(kept, vlm, what)
        if classes is None:
            if templates is not None:
                raise BayesVLMError("templates without classes have no use; leave both out, or give both.")
            if kept["prompts"] is None:
                raise BayesVLMError(
                    f"{what} was calibrated for {kept['classes']} classes given as Features, which have no names to "
                    "encode them by; pass the same Features as classes=."
                )
            prompts = prompts_from_names(kept["prompts"])
            made = cls(vlm.copy(), vlm.encoder("texts").encode_classes(prompts), prompts, bayesian)
        else:
            made = cls.of(vlm, classes, templates, bayesian=bayesian)
            _check_classes(kept, made, what)
        made._check_sample(kept["sample"], what)
        made._check_posterior(kept.get("posterior"), what)
        return made

    def _posterior(self) -> dict[str, list[float]] | None:
        """Of each tower how many pairs, the traces of both factors and the prior precision: the standard deviations of
        posteriors from other pairs can be much alike. None where the model brings its variances."""
        if self.vlm.predicts_variance:
            return None
        lam = self.vlm.lam
        return {
            tower: [float(of.n), float(of.A_sum.trace()), float(of.B_sum.trace()), lam[tower]]
            for tower, of in self.vlm.factors.items()
        }

    def _check_posterior(self, kept: Mapping[str, Sequence[float]] | None, what: str) -> None:
        here = self._posterior() if self.bayesian else None
        if kept is None or here is None:  # files of before said nothing
            return
        for tower, then in kept.items():
            now = here[tower]
            if not all(map(partial(math.isclose, rel_tol=_FACTORS_OFF), now, then)):
                raise BayesVLMError(
                    f"{what} was calibrated with another posterior of this model, of other pairs or with another lam "
                    f"({tower}: {int(then[0]):,} pairs, lam = {then[-1]:.4g} then; {int(now[0]):,}, {now[-1]:.4g} "
                    "here); load that posterior, or calibrate again."
                )

    def _sample(self) -> tuple[Tensor, Tensor | None]:  # [C], [C]
        """The cosines of one made-up image with the classes, which the model decides, and their standard deviations,
        which its posterior does, where it matters."""
        vlm = self.vlm
        made_up = torch.arange(1, vlm.image.activation_width + 1).to(vlm.image.weight).cos()[None]
        nothing = torch.zeros(1, vlm.image.embedding_width).to(vlm.image.weight)
        image = Features(
            made_up,
            residual=nothing if vlm.image.residual else None,
            log_variance=nothing if vlm.predicts_variance else None,
        )
        std = vlm.similarity(image, self.classes).std[0] if self.bayesian else None
        return vlm.logits(image, self.classes)[0] / vlm.scale, std

    def _check_sample(self, kept: Mapping[str, Sequence[float]], what: str) -> None:
        cosine, std = self._sample()
        cosine_then = _like(kept["cosine"], cosine)
        off = (cosine - cosine_then).abs()
        if float(off.max()) > _COSINE_OFF:
            k = int(off.argmax())
            raise BayesVLMError(
                f"{what} was calibrated for other classes than these: a made-up image has a cosine of "
                f"{float(cosine_then[k]):.3f} with {self.name(k)} there, and of {float(cosine[k]):.3f} here; use "
                "those, or calibrate again."
            )
        if std is None:
            return
        std_then = _like(kept["std"], std)
        if bool(((std - std_then).abs() > _STD_OFF * std_then).any()):
            raise BayesVLMError(
                f"{what} was calibrated with another posterior of this model: standard deviations of cosines are "
                f"{float((std / std_then).mean()):.2g} times those of then; load that posterior, or calibrate again."
            )


def save_calibration(
    path: str | Path,
    kind: str,
    calibrated: CalibratedFor,
    content: Mapping[str, Any],
    tensors: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write a calibration whole or not at all, tensors in a safetensors file of the same name beside the json; a folder
    gets files of the kind's name."""
    path, files = _file(path, kind), {}
    if tensors is not None:
        packed = safetensors.torch.save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
        files[path.with_suffix(_TENSORS).name] = packed
        content = {**content, _HASH: hashlib.sha256(packed).hexdigest()}
    kept = {_KIND: kind, _SCHEMA: SCHEMA, **content, _FOR: calibrated.to_json()}
    files[path.name] = (json.dumps(kept, indent=1, allow_nan=False) + "\n").encode()
    write_together(path.parent, files)
    return path


def load_tensors(path: str | Path, kind: str, raw: Mapping[str, Any], names: Sequence[str]) -> dict[str, Tensor]:
    """The tensors that `save_calibration` was given, if they are those that the json file was written with.

    Args:
        raw: what `load_calibration` read.
        names: that there must be.
    """
    file = _file(path, kind).with_suffix(_TENSORS)
    found = read_safetensors(file)
    if hashlib.sha256(file.read_bytes()).hexdigest() != raw.get(_HASH):
        raise BayesVLMError(f"{file} is not the file that was saved with {_file(path, kind).name}; copy both together.")
    missing = [name for name in names if name not in found]
    if missing:
        raise BayesVLMError(f"{file} has no tensor {missing[0]!r}; it is incomplete, copy or make it again.")
    return found


def load_calibration(path: str | Path, kind: str, entries: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `save_calibration` was given, and what the calibration is for.

    Args:
        path: the file, or its folder.
        kind: what it must be a calibration of.
        entries: that the content must have.
    """
    path = _file(path, kind)
    try:
        raw = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except FileNotFoundError:
        raise BayesVLMError(
            f"{path} does not exist; name the file, or the folder, that the {kind} was saved to."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise BayesVLMError(f"{path} is not readable json ({error}); copy or make it again.") from None
    found = raw.get(_KIND) if isinstance(raw, dict) else None
    if found != kind:
        raise BayesVLMError(f"{path} holds {found or 'something else'}, not {kind}; name the file that was saved.")
    if raw.get(_SCHEMA) != SCHEMA:
        raise BayesVLMError(f"{path} has schema {raw.get(_SCHEMA)!r}, this version reads {SCHEMA}; upgrade bayesvlm.")
    identity = ("model", "weights", "encoder", "settings", "classes", "prompts", "sample")
    kept = raw.get(_FOR, {})
    if not isinstance(kept, dict):
        raise BayesVLMError(f"{path} is damaged ({_FOR} is {str(kept)[:40]}); copy or make it again.")
    missing = [name for name in (*entries, _FOR) if name not in raw]
    missing += [name for name in identity if name not in kept]
    if missing:
        raise BayesVLMError(f"{path} has no entry {missing[0]!r}; it is incomplete, copy or make it again.")
    wrong = next((name for name, right in _well_formed(kept).items() if not right), None)
    if wrong is not None:
        raise BayesVLMError(f"{path} is damaged ({wrong} is {str(kept[wrong])[:40]}); copy or make it again.")
    return raw, cast(dict[str, Any], kept)


def _no_number(word: str) -> float:
    raise ValueError(f"{word} where a number belongs")


def _well_formed(kept: Mapping[str, Any]) -> dict[str, bool]:
    """Of each entry of `CalibratedFor.to_json`, whether it has the form that is written there."""
    classes, prompts, sample = kept["classes"], kept["prompts"], kept["sample"]
    posterior = kept.get("posterior")

    def are_texts(value: Any) -> bool:
        return isinstance(value, dict) and bool(value) and all(isinstance(text, str) for text in value.values())

    def are_prompts(texts: Any) -> bool:
        return isinstance(texts, list) and bool(texts) and all(isinstance(text, str) for text in texts)

    def are_numbers(values: Any) -> bool:
        return isinstance(values, list) and len(values) == classes and all(map(is_finite_number, values))

    def are_sums(values: Any) -> bool:
        return isinstance(values, list) and len(values) == 4 and all(map(is_finite_number, values))

    summed = isinstance(posterior, dict) and set(posterior) <= set(TOWERS) and all(map(are_sums, posterior.values()))
    sampled = ("cosine", "std") if kept.get("bayesian", True) else ("cosine",)
    counted = isinstance(classes, int) and not isinstance(classes, bool) and classes > 0
    named = isinstance(prompts, dict) and len(prompts) == classes and all(map(are_prompts, prompts.values()))
    return {
        "model": isinstance(kept["model"], str),
        "weights": are_texts(kept["weights"]),
        "encoder": kept["encoder"] is None or are_texts(kept["encoder"]),
        "settings": isinstance(kept["settings"], dict),
        "classes": counted,
        "prompts": prompts is None or named,
        "bayesian": isinstance(kept.get("bayesian", True), bool),
        "sample": isinstance(sample, dict) and all(are_numbers(sample.get(name)) for name in sampled),
        "posterior": posterior is None or summed,
    }


def is_finite_number(value: object) -> bool:
    """Whether a value of a json file is a number that can be reckoned with."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGE


def _file(path: str | Path, kind: str) -> Path:
    if not str(path):
        raise BayesVLMError(f"The file for {kind} is ''; name one, such as {kind.replace(' ', '-')}.json.")
    path = Path(path)
    return path if path.suffix == ".json" or path.is_file() else path / f"{kind.replace(' ', '-')}.json"


def _bayesian(kept: Mapping[str, Any]) -> bool:
    return bool(kept.get("bayesian", True))  # files of before said nothing: there was always a posterior


def _check_model(kept: Mapping[str, Any], vlm: BayesVLM, what: str) -> None:
    here, there = model_name(vlm, "these projections"), kept["model"]
    if not same_weights(kept["weights"], vlm.image, vlm.text):
        raise BayesVLMError(
            f"{what} was calibrated for another model, {there}: the projections of {here} are others; load that model, "
            "or calibrate again."
        )
    encoder = None if vlm.adapter is None else vlm.adapter.model.parameters()
    if kept["encoder"] is not None and encoder is not None and not same_encoder(kept["encoder"], encoder):
        raise BayesVLMError(
            f"{what} was calibrated for {there}, and {here} has the same projections behind another encoder (one that "
            "was fine-tuned?); load that model, or calibrate again."
        )
    for name in _SETTINGS if _bayesian(kept) else ():
        then, now = kept["settings"].get(name), getattr(vlm.settings, name)
        if then != now and not (name == "tau" and isinstance(then, float) and math.isclose(then, now, rel_tol=1e-6)):
            raise BayesVLMError(
                f"{what} was calibrated with {name} = {then}, and it is {now} here; use "
                f"vlm.replace({name}={then!r}), or calibrate again."
            )


def _check_classes(kept: Mapping[str, Any], made: CalibratedFor, what: str) -> None:
    if len(made.classes) != kept["classes"]:
        raise BayesVLMError(
            f"{what} was calibrated for {kept['classes']} classes, and {len(made.classes)} are given; it holds for the "
            "class list it was calibrated with, so leave classes out, or calibrate again."
        )
    if made.prompts is None or kept["prompts"] is None:
        return
    then = prompts_from_names(kept["prompts"])
    for place, (was, now) in enumerate(zip(then.names, made.prompts.names, strict=True)):
        if was != now:
            raise BayesVLMError(
                f"{what} was calibrated for another class list: class {place} is {was!r} there and {now!r} here; leave "
                "classes out, or calibrate again."
            )
    for name, was_all, now_all in zip(then.names, _by_class(then), _by_class(made.prompts), strict=True):
        for was, now in zip_longest(was_all, now_all):
            if was != now:
                there, here = ("no more" if text is None else repr(text) for text in (was, now))
                raise BayesVLMError(
                    f"{what} was calibrated with other prompts: {there} there, {here} here, of class {name!r}; use the "
                    "same."
                )


def prompts_by_name(prompts: ClassPrompts) -> dict[str, list[str]]:
    """Prompts as json keeps them."""
    return dict(zip(prompts.names, _by_class(prompts), strict=True))


def _by_class(prompts: ClassPrompts) -> list[list[str]]:
    """The prompts of each class."""
    found: list[list[str]] = [[] for _ in prompts.names]
    for text, group in zip(prompts.texts, prompts.groups, strict=True):
        found[group].append(text)
    return found


def prompts_from_names(prompts: Mapping[str, Sequence[str]]) -> ClassPrompts:
    """What `prompts_by_name` was given."""
    groups = (place for place, texts in enumerate(prompts.values()) for _ in texts)
    return ClassPrompts(tuple(prompts), tuple(text for texts in prompts.values() for text in texts), tuple(groups))


def _like(values: Sequence[float], tensor: Tensor) -> Tensor:
    return torch.tensor(values).to(tensor)
