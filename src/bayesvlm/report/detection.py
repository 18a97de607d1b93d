"""The page of `bayesvlm detect run`: how the images compare with the familiar ones, and the ends of the scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from bayesvlm.experiments.thumbnails import Thumbnail
from bayesvlm.report.blocks import Card, Commands, Gallery, Page, Plot, Section, Table, Text
from bayesvlm.report.familiar import familiarity_plot, p_value_plot
from bayesvlm.report.page import write_page
from bayesvlm.report.theme import NARROW, WIDE
from bayesvlm.safety import Detector, PredictionSets, Selector

HERE, FAMILIAR = "these images", "calibration images"
_KINDS = {FAMILIAR: "seen", HERE: "out of domain"}
_EDGES = ((1, 1), (2, 2), (3, 5), (6, 10), (11, 10**9))  # sizes of prediction sets that are counted together


@dataclass(frozen=True, eq=False)
class DetectionReport:
    """What a page is made of.

    Args:
        detector: what the images were judged by.
        calibrated_on: what its images are called.
        familiarity, p_values: of the images, [N].
        least, most: the images at both ends.
        sizes: of their prediction sets, [N]; None: there are none.
        answered: whether to answer each, [N] bool; None: that was not asked.
        sets, selector: what those are of.
    """

    detector: Detector
    calibrated_on: str
    familiarity: Tensor
    p_values: Tensor
    least: Sequence[Thumbnail]
    most: Sequence[Thumbnail]
    sizes: Tensor | None = None
    answered: Tensor | None = None
    sets: PredictionSets | None = None
    selector: Selector | None = None

    @property
    def unknown(self) -> Tensor:  # [N] bool
        """Which of the images are flagged."""
        return self.detector.of(self.familiarity).unknown


def write_detection(
    report: DetectionReport, path: str | Path, command: str = "", made_from: Mapping[str, Any] | None = None
) -> Path:
    """Write the page; `made_from` says what it shows, for `page.check_replaces`."""
    return write_page(detection_page(report, command, made_from), Path(path))


def detection_page(report: DetectionReport, command: str = "", made_from: Mapping[str, Any] | None = None) -> Page:
    """The page: the verdict, both histograms, the images at both ends, the sets."""
    detector, count = report.detector, len(report.familiarity)
    flagged = int(report.unknown.sum())
    score = f"{detector.score.replace('_', ' ')}{_whose(detector)}"
    sections = [
        Section("Are these images familiar?", [Text(_verdict(report)), _spread(report, score), _p_values(report)]),
    ]
    ends: list[Text | Gallery] = []
    for text, shown in (
        ("**The least familiar.** What the model has not seen the like of, if anything here.", report.least),
        ("**The most familiar.**", report.most),
    ):
        if shown:
            ends += [Text(text), Gallery([_card(each, score) for each in shown])]
    if ends:
        sections.append(Section("The ends of the scale", ends))
    if report.sizes is not None or report.answered is not None:
        sections.append(Section("Which classes, and whether to answer", _answers(report)))
    if command:
        sections.append(Section("Make it again", [Commands([(command, "this page, from the cached features")])]))
    facts = {
        "images": f"{count:,}",
        "flagged": f"{flagged:,} ({100 * flagged / count:.1f} %)",
        "score": score,
        "calibrated on": f"{report.calibrated_on}, {detector.n:,} images",
    }
    lead = (
        "Each image is compared with familiar ones that the detector was calibrated on. Its p-value is how often a "
        "familiar image looks as unfamiliar as this one; it is flagged where that is at most "
        f"{100 * detector.false_alarms:g} %."
    )
    return Page("Known or unknown?", lead, facts, sections, made_from=made_from or {})


def _whose(detector: Detector) -> str:
    """Whose probabilities the score is of; a score of plain cosines alone is nobody's."""
    if isinstance(detector.predictive, str):
        by = {"bayes": "Bayes", "plain": "plain"}[detector.predictive]
        return "" if by == "Bayes" and not detector.calibrated_for.bayesian else f", {by}"
    return f", temperature {detector.predictive:g}"


def _verdict(report: DetectionReport) -> str:
    """How many are flagged, beside how many would be if all were familiar."""
    detector, count, flagged = report.detector, len(report.familiarity), int(report.unknown.sum())
    expected, most = detector.false_alarms * count, round(count * detector.bound(images=count))
    if flagged <= most:
        judged = f"no more than so many familiar images may well give (up to {most:,} in 95 of 100 cases)"
    else:
        judged = f"more than so many familiar images would give (up to {most:,} in 95 of 100 cases)"
    return (
        f"{flagged:,} of {count:,} images are flagged as unknown; if all were familiar, {expected:.1f} would be on "
        f"average. That is {judged}. Known things in another style or from another camera are flagged too: the promise "
        "is for images like those it was calibrated on."
    )


def _spread(report: DetectionReport, score: str) -> Plot:
    detector = report.detector
    panels = {score: {FAMILIAR: detector.scores, HERE: report.familiarity}}
    limits = {score: detector.threshold}

    def drawn(width: float) -> Figure:
        return familiarity_plot(panels, _KINDS, limits, width=width)

    return Plot(
        drawn(WIDE),
        "**How familiar they are.** Images left of the dotted line are flagged.",
        "Histogram of the score of calibration images and of these images, with the threshold.",
        drawn(NARROW),
    )


def _p_values(report: DetectionReport) -> Plot:
    rate = report.detector.false_alarms
    return Plot(
        p_value_plot(report.p_values, rate),
        "**p-values.** Of familiar images they would be spread evenly (dashed line); a peak on the left is images that "
        "familiar ones do not look like.",
        "Histogram of the p-values of these images.",
        p_value_plot(report.p_values, rate, width=NARROW),
    )


def _card(each: Thumbnail, score: str) -> Card:
    return Card(each.image, each.name, f"{score}: {each.score:.4g}", (), each.label)


def _answers(report: DetectionReport) -> list[Text | Table]:
    blocks: list[Text | Table] = []
    if report.answered is not None and report.selector is not None:
        number, share = int(report.answered.sum()), float(report.answered.double().mean())
        text = (
            f"{number:,} of {len(report.answered):,} images ({100 * share:.1f} %) are answered, with at most "
            f"{100 * report.selector.risk:g} % of the answers wrong (with a confidence of "
            f"{100 * report.selector.confidence:g} %, for images like the calibration images)."
        )
        if not report.selector.calibration.answered:
            text = f"No image is answered: no threshold keeps a risk of {100 * report.selector.risk:g} %."
        blocks.append(Text(text))
    if report.sizes is not None and report.sets is not None:
        sizes, rows = report.sizes, []
        for kind, chosen in (
            ("all", torch.ones_like(report.unknown)),
            ("flagged", report.unknown),
            ("not flagged", ~report.unknown),
        ):
            own = sizes[chosen]
            if len(own):
                counts = [int((own == 0).sum())]
                counts += [int(((own >= low) & (own <= high)).sum()) for low, high in _EDGES]
                rows.append([kind, f"{len(own):,}", f"{float(own.double().mean()):.2f}", *map(str, counts)])
        columns = ["images", "number", "mean size", "empty", "1", "2", "3 to 5", "6 to 10", "more"]
        caption = (
            f"Prediction sets ({report.sets.kind.upper()}), made to hold the right class of "
            f"{100 * (1 - report.sets.miss):g} % of images like the calibration images: how many classes they hold."
        )
        blocks.append(Table(columns, rows, caption=caption))
    return blocks
