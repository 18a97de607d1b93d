"""A folder of calibrations: `detect calibrate` makes it, `detect run` and `classify --unknown` judge images by it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesvlm.core.errors import BayesVLMError

if TYPE_CHECKING:
    from bayesvlm.core.features import Features
    from bayesvlm.prompts import ClassNames, ClassPrompts, Templates
    from bayesvlm.safety import Detector, PredictionSets, Selector
    from bayesvlm.vlm import BayesVLM

ABOUT = "detect.json"
SCHEMA = 1
_KINDS = ("detector", "prediction-sets", "selector")
_FILES = (ABOUT, *(f"{kind}{suffix}" for kind in _KINDS for suffix in (".json", ".safetensors")))


@dataclass(frozen=True)
class About:
    """What a folder of calibrations remembers beside them.

    Args:
        posterior: where the posterior is, or what it is called.
        model: where its model is, if that has moved.
        images: what it was calibrated on.
    """

    posterior: str
    model: str | None
    images: str

    def save(self, folder: Path) -> None:
        """Write it into the folder."""
        from bayesvlm.artifacts.files import write_together

        kept = {"bayesvlm_detect": SCHEMA, "posterior": self.posterior, "model": self.model, "images": self.images}
        write_together(folder, {ABOUT: (json.dumps(kept, indent=1) + "\n").encode()})

    @classmethod
    def load(cls, folder: Path) -> About:
        """Read what `save` wrote."""
        path = folder / ABOUT
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["bayesvlm_detect"] != SCHEMA:
                raise BayesVLMError(f"{path} has schema {kept['bayesvlm_detect']!r}; upgrade bayesvlm.")
            model = kept["model"]
            return cls(str(kept["posterior"]), None if model is None else str(model), str(kept["images"]))
        except FileNotFoundError:
            raise BayesVLMError(
                f"{folder} is no folder of a detector: it has no {ABOUT}; make one with `bayesvlm detect calibrate`."
            ) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BayesVLMError(f"{path} is damaged ({error!r}); calibrate again.") from None


@dataclass(frozen=True)
class Judges:
    """What is asked of images beside their class.

    Args:
        detector: whether they are unfamiliar.
        sets: which classes they may be of; None: that is not asked.
        selector: whether to answer; None as before.
    """

    detector: Detector | None
    sets: PredictionSets | None = None
    selector: Selector | None = None

    @classmethod
    def load(
        cls,
        folder: Path,
        vlm: BayesVLM,
        classes: ClassNames | None = None,
        templates: Templates | None = None,
    ) -> Judges:
        """Everything that the folder has, for this model; `classes` are checked where they are given."""
        from bayesvlm.safety import Detector, PredictionSets, Selector

        given = {"templates": templates} if classes is not None else {}
        detector = Detector.load(folder, vlm, classes, **given)
        there = {kind: (folder / f"{kind}.json").is_file() for kind in ("prediction-sets", "selector")}
        sets = PredictionSets.load(folder, vlm, classes, **given) if there["prediction-sets"] else None
        selector = Selector.load(folder, vlm, classes, **given) if there["selector"] else None
        return cls(detector, sets, selector)

    def at(
        self, folder: Path, false_alarms: float | None = None, miss: float | None = None, risk: float | None = None
    ) -> Judges:
        """The same at other levels, where they are given: nothing has to be computed again."""
        judges = self
        if false_alarms is not None and judges.detector is not None:
            judges = replace(judges, detector=judges.detector.with_false_alarms(false_alarms))
        if miss is not None:
            if judges.sets is None:
                raise BayesVLMError(_no_labels(folder, "--sets", miss))
            judges = replace(judges, sets=judges.sets.with_miss(miss))
        if risk is not None:
            if judges.selector is None:
                raise BayesVLMError(_no_labels(folder, "--risk", risk))
            judges = replace(judges, selector=judges.selector.with_risk(risk))
        return judges

    def only(self, sets: bool, selector: bool) -> Judges:
        """The detector, and of the others those that are asked for."""
        return replace(self, sets=self.sets if sets else None, selector=self.selector if selector else None)

    @property
    def prompts(self) -> ClassPrompts:
        """The classes, and what was encoded of each."""
        found = None if self.detector is None else self.detector.calibrated_for.prompts
        if found is None:
            raise BayesVLMError("The detector's classes were given as Features, which have no names; use it in Python.")
        return found

    def facts(self) -> dict[str, Any]:
        """What was calibrated, for json."""
        found: dict[str, Any] = {}
        if (detector := self.detector) is not None:
            found["detector"] = {
                "score": detector.score,
                "predictive": detector.predictive,
                "false_alarms": detector.false_alarms,
                "threshold": _finite(detector.threshold),
                "images": detector.n,
            }
        if (sets := self.sets) is not None:
            found["sets"] = {"kind": sets.kind, "miss": sets.miss, "by_class": sets.by_class, "images": sets.n}
        if (selector := self.selector) is not None:
            found["selector"] = {
                "risk": selector.risk,
                "confidence": selector.confidence,
                "threshold": _finite(selector.threshold),
                "coverage": selector.coverage,
                "images": selector.calibration.images,
            }
        return found

    def described(self) -> list[str]:
        """A sentence for each."""
        judges = (self.detector, self.sets, self.selector)
        return [repr(judge) for judge in judges if judge is not None]

    def begin(self, already: int = 0) -> Callable[[Features], list[dict[str, Any]]]:
        """What says of each image, one batch after the other, what there is to say.

        Args:
            already: how many images were judged in an earlier run that this one goes on with.
        """
        import torch

        from bayesvlm.core.predict import tower_generators

        generator = None if self.sets is None else tower_generators(self.sets.seed)[1]
        if generator is not None and already:
            torch.rand(already, generator=generator, dtype=torch.float64, device=generator.device)

        def judge(features: Features) -> list[dict[str, Any]]:
            columns: dict[str, list[Any]] = {}
            if self.detector is not None:
                found = self.detector(features)
                columns["familiarity"] = found.familiarity.tolist()
                columns["p_value"] = found.p_value.tolist()
                columns["unknown"] = found.unknown.tolist()
            if self.sets is not None:
                columns["set"] = _named_sets(self.sets, features, generator)
                columns["set_size"] = [len(names) for names in columns["set"]]
            if self.selector is not None:
                columns["answered"] = self.selector(features).answered.tolist()
            return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

        return judge


SHOWN_OF_SET = 30  # letters in a cell of the table


def _named_sets(sets: PredictionSets, features: Features, generator: Any) -> list[list[str]]:
    """The names of the classes of each set, the most probable first."""
    names = sets.classes or ()
    probs = sets.basis.scorer.probs(features)
    held, order = sets.of_probs(probs, generator=generator), probs.argsort(dim=1, descending=True)
    sizes = held.sum(dim=1).tolist()
    ranked = order.gather(1, held.gather(1, order).int().argsort(dim=1, descending=True, stable=True))
    return [[names[k] for k in row[:size].tolist()] for row, size in zip(ranked, sizes, strict=True)]


def judged_columns(row: Mapping[str, Any]) -> list[str]:
    """What the terminal's columns of a judged image are called."""
    titles = {"p_value": "p", "unknown": "unknown", "set": "set", "answered": "answer"}
    return [title for name, title in titles.items() if name in row]


def judged(row: Mapping[str, Any]) -> list[str]:
    """What the terminal shows of a judged image."""
    cells = []
    if "p_value" in row:
        cells += [f"{row['p_value']:.3g}", "unknown" if row["unknown"] else ""]
    if "set" in row:
        named = ", ".join(row["set"]) or "none"
        cells.append(named if len(named) <= SHOWN_OF_SET else f"{len(row['set'])} classes")
    if "answered" in row:
        cells.append("yes" if row["answered"] else "no")
    return cells


def check_replaceable(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that cannot be written to, or that has calibrations or anything else in it."""
    from bayesvlm.artifacts.files import check_writable

    check_writable(folder, "A detector")
    if not folder.is_dir():
        return
    there = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    if there and not set(there) & set(_FILES):
        raise BayesVLMError(
            f"{folder} holds other files, such as {there[0]}; name a folder of its own for the detector with --out."
        )
    if there and not overwrite:
        raise BayesVLMError(
            f"{folder} holds a detector already; name another folder with --out, or replace it with --overwrite."
        )


def remove_earlier(folder: Path) -> None:
    """Remove calibrations that an earlier command left in the folder."""
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)


def read_words(file: Path) -> list[str]:
    """Words of a file, one per line."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BayesVLMError(
            f"The file of negatives {file} cannot be read ({error}); it must be UTF-8, one word per line."
        ) from None
    words = [line.strip() for line in lines if line.strip()]
    if not words:
        raise BayesVLMError(f"The file of negatives {file} has no words; write one per line.")
    return words


def loaded(vlm_name: str, model: str | None, device: str | None, strict: bool) -> BayesVLM:
    """The posterior with its model."""
    from bayesvlm.vlm import BayesVLM

    return BayesVLM.from_pretrained(vlm_name, model=model, device=device, strict=strict)


def stored_name(name: str) -> str:
    """A posterior's name as it is found from another folder too."""
    path = Path(name).expanduser()
    return str(path.resolve()) if path.exists() else name


def _no_labels(folder: Path, option: str, value: float) -> str:
    return (
        f"{option} {value:g} needs labelled calibration images, and {folder} was calibrated without labels; make it "
        f"again with `bayesvlm detect calibrate ... {option} {value:g}` on a labelled set."
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
