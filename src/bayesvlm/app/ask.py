"""Ask: a picture and names; probabilities with intervals, what is unknown, the set that holds the right one."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from bayesvlm.app.drawings import of_classes, undrawn
from bayesvlm.app.markup import (
    axis_line,
    axis_of,
    bar,
    called,
    cosine,
    facts,
    interval,
    page,
    pair,
    percent,
    picture,
    quiet,
    rounded,
)
from bayesvlm.app.models import Opened, Recent
from bayesvlm.app.naming import Ways, ways
from bayesvlm.app.uploads import Picture
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.safety import Detector, PredictionSets

if TYPE_CHECKING:
    from bayesvlm.core.features import Features

FALSE_ALARMS = 0.05
MISS = 0.1
SHOWN = 12
"""Classes with a row of their own, the most probable ones."""
LISTED = 6
"""Names that a sentence lists."""


@dataclass(frozen=True)
class Judged:
    """What calibration on drawings of the classes says: tools for these classes, or why there are none."""

    drawings: int
    detector: Detector | None = None
    sets: PredictionSets | None = None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """One class of an answer."""

    name: str
    prob: float
    plain: float
    mean: float
    low: float
    high: float
    in_set: bool | None


@dataclass(frozen=True)
class Answer:
    """What the library says of one picture.

    Attributes:
        rows: the classes, the most probable first.
        ways: what its two probabilities are called.
        entropy, aleatoric, epistemic: in nats.
        p_value: how often a drawing of these classes looks as unfamiliar as this; None without a calibration.
        unknown: whether that is at most `FALSE_ALARMS`.
        drawings: it was calibrated on.
        reasons: why something is missing.
    """

    rows: Sequence[Row]
    ways: Ways
    entropy: float
    aleatoric: float
    epistemic: float
    p_value: float | None = None
    unknown: bool | None = None
    drawings: int = 0
    reasons: Sequence[str] = field(default_factory=tuple)

    @property
    def named(self) -> list[str] | None:
        """The prediction set; None without a calibration."""
        return None if self.rows[0].in_set is None else [row.name for row in self.rows if row.in_set]


class Asker:
    """Answers about pictures, with one model; calibrations for recent class lists are kept."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self.judged: Recent[tuple[str, ...], Judged] = Recent(32, self._judged)

    def __call__(self, shown: Picture, names: tuple[str, ...]) -> Answer:
        """What the model says of a picture among these names."""
        vlm = self.opened.vlm
        texts, images = self.opened.texts(names), vlm.image_features([shown.image], progress=False)
        judged = self.judged(names)
        prediction, plain = vlm.classify(images, texts), vlm.plain(images, texts)[0]
        low, high = prediction.moments.interval(0.95)
        inside = None if judged.sets is None else judged.sets(images)[0]
        found = None if judged.detector is None else judged.detector(images)
        rows = [
            Row(
                names[k],
                float(prediction.probs[0, k]),
                float(plain[k]),
                float(prediction.mean[0, k]),
                float(low[0, k]),
                float(high[0, k]),
                None if inside is None else bool(inside[k]),
            )
            for k in prediction.probs[0].argsort(descending=True, stable=True).tolist()
        ]
        return Answer(
            rows,
            ways(vlm),
            float(prediction.entropy[0]),
            float(prediction.aleatoric[0]),
            float(prediction.epistemic[0]),
            None if found is None else float(found.p_value[0]),
            None if found is None else bool(found.unknown[0]),
            judged.drawings,
            judged.reasons,
        )

    def _judged(self, names: tuple[str, ...]) -> Judged:
        """Calibrated on drawings of all the names, or not at all: a drawing of one says nothing of the others."""
        found, missing = of_classes(names), undrawn(names)
        if missing:
            return Judged(len(found), reasons=(_uncovered(len(set(names)), missing),))
        vlm, texts = self.opened.vlm, self.opened.texts(names)
        images: Features = vlm.image_features([each.image for each in found], progress=False)
        labels = torch.tensor([names.index(each.name) for each in found])
        detector = sets = None
        reasons = []
        if too_few := _too_few(len(found), FALSE_ALARMS, "p-value"):
            reasons.append(too_few)
        if none := _too_few(len(found), MISS, "set"):
            reasons.append(none)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # drawings that look alike are no news here
            try:
                if not too_few:
                    detector = Detector.calibrate(vlm, images, texts, false_alarms=FALSE_ALARMS)
                if not none:
                    sets = PredictionSets.calibrate(vlm, images, labels, texts, miss=MISS)
            except BayesVLMError as error:
                reasons.append(str(error))
        return Judged(len(found), detector, sets, tuple(reasons))


def _uncovered(asked: int, missing: Sequence[str]) -> str:
    """Why nothing is promised, and what stands nevertheless."""
    if len(missing) == asked:
        return (
            "No p-value and no set can be promised, since there are no drawings of these names to calibrate on. "
            "The probabilities stand."
        )
    listed = ", ".join(missing[:LISTED]) + (f" and {len(missing) - LISTED} more" if len(missing) > LISTED else "")
    return (
        f"No p-value and no set can be promised: there are drawings of {asked - len(missing)} of the {asked} names to "
        f"calibrate on, and none of {listed}. The probabilities stand."
    )


def _too_few(drawings: int, rate: float, what: str) -> str | None:
    """Why so few drawings give no p-value or set at a rate."""
    needed = math.ceil(1 / rate - 1e-9) - 1
    if drawings >= needed:
        return None
    return (
        f"There are {drawings} drawings of these names to calibrate on, and a {what} at {rounded(rate)} needs {needed}"
        ": more names of those on the lists bring about five each."
    )


def answer_html(answer: Answer, shown: Picture) -> str:
    """An answer as the page has it."""
    rows, rest = answer.rows[:SHOWN], answer.rows[SHOWN:]
    axis = axis_of([row.low for row in rows], [row.high for row in rows])
    drawn = "".join(f"<li>{_row(row, axis, answer.ways)}</li>" for row in rows)
    more = (
        quiet(f"and {len(rest)} less probable ones, {percent(sum(row.prob for row in rest))} together") if rest else ""
    )
    legend = (
        f"<p class='quiet'><span class='key bayes'></span>{answer.ways.bayes} &ensp;"
        f"<span class='key plain'></span>{answer.ways.plain}<br>The line below a name is where the cosine of picture "
        "and name lies, by the model's own account, with 95\u00a0% probability: the longer, the less it knows.</p>"
    )
    return page(
        facts(
            ("picture", picture(shown.packed, shown.title)),
            ("entropy", _entropy(answer)),
            ("one of these at all?", _unknown(answer)),
            (f"holds the right one in {rounded(1 - MISS)}", _set(answer)),
        ),
        f"<h3>{_headline(answer)}</h3>",
        legend,
        f"<ul class='rows'>{drawn}</ul>",
        axis_line(axis),
        more,
    )


def _headline(answer: Answer) -> str:
    best = answer.rows[0]
    said = f"{called(best.name)}: {percent(best.prob)}, {answer.ways.plain} {percent(best.plain)}"
    return f"Unknown (p = {answer.p_value:.3f}); among the names {said}" if answer.unknown else said


def _row(row: Row, axis: tuple[float, float], by: Ways) -> str:
    mark = " <span class='mark'>in the set</span>" if row.in_set else ""
    return (
        f"<div class='line'><span class='name'>{called(row.name)}{mark}</span>"
        f"<span class='quiet'>cosine {cosine(row.mean, row.low, row.high)}</span></div>"
        + pair(
            (by.short, bar((row.prob, "bayes")), percent(row.prob)),
            ("plain", bar((row.plain, "plain")), percent(row.plain)),
        )
        + interval(row.mean, row.low, row.high, axis)
    )


def _entropy(answer: Answer) -> str:
    open_ended = math.log(len(answer.rows))
    most = max(answer.entropy, open_ended, 1e-9)
    return (
        f"<p><strong>{answer.entropy:.3f} nats</strong></p>"
        + bar((answer.aleatoric / most, "plain"), (answer.epistemic / most, "model"))
        + f"<p class='quiet'><span class='key plain'></span>{answer.aleatoric:.3f} the picture leaves open<br>"
        f"<span class='key model'></span>{answer.epistemic:.3f} the model does not know<br>"
        f"0: sure of one name; {open_ended:.2f}: all {len(answer.rows)} alike</p>"
    )


def _unknown(answer: Answer) -> str:
    if answer.p_value is None:
        return "<p>not calibrated</p>" + "".join(map(quiet, answer.reasons[:1]))
    said = "<span class='mark doubt'>unknown</span>" if answer.unknown else "familiar"
    return f"<p><strong>p = {answer.p_value:.3f}</strong> {said}</p>" + quiet(
        f"{percent(answer.p_value)} of drawings of these names look at least as unfamiliar, judged by "
        f"{answer.drawings}. At {rounded(FALSE_ALARMS)} or less it is called unknown, which one in "
        f"{1 / FALSE_ALARMS:.0f} drawings of these names is too: a false alarm."
    )


def _set(answer: Answer) -> str:
    if answer.named is None:
        uncovered = answer.p_value is None and len(answer.reasons) == 1
        return "<p>not calibrated</p>" + "".join(
            map(quiet, ["For the same reason."] if uncovered else answer.reasons[-1:])
        )
    if not answer.named:
        return "<p><strong>none of them</strong></p>" + quiet("No class fits well enough.")
    listed = ", ".join(map(called, answer.named[:SHOWN]))
    more = f" and {len(answer.named) - SHOWN} more" if len(answer.named) > SHOWN else ""
    return f"<p><strong>{listed}</strong>{more}</p>" + quiet(
        f"In {rounded(1 - MISS)} of drawings like the {answer.drawings} it was calibrated on."
    )
