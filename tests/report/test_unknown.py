"""The pages of what is unknown: figures from arrays, sentences from numbers, nothing but text from names."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from experiments.made_up import failures, outside
from matplotlib.figure import Figure
from PIL import Image
from scipy.stats import betabinom
from sklearn.metrics import roc_curve

from bayesvlm import BayesVLM, BayesVLMError, Features
from bayesvlm.experiments.answer_sets import AnswerSets, Sets
from bayesvlm.experiments.failures import Ranking
from bayesvlm.experiments.thumbnails import Thumbnail, extremes
from bayesvlm.report import NARROW, WIDE, inline_svg, render
from bayesvlm.report.detection import DetectionReport, detection_page
from bayesvlm.report.familiar import class_coverage_plot, familiarity_plot, p_value_plot, roc, roc_plot, sizes_plot
from bayesvlm.report.unknown import Findings, failure_verdicts, outside_verdicts, unknown_page
from bayesvlm.safety import Detector

HOSTILE = "</svg><script>alert(1)</script>"


def numbers(count: int, shift: float = 0.0, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(shift, 1, count)


def drawn(figure: Figure) -> str:
    return inline_svg(figure, "plot", "a plot")


# Figures --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounded", [False, True])
def test_roc_is_scikit_learn_s(rounded: bool) -> None:
    inside, away = numbers(80, 1.0), numbers(60, seed=1)
    if rounded:
        inside, away = inside.round(), away.round()  # ties
    found = roc(inside, away)
    truth = np.concatenate([np.zeros(80), np.ones(60)])
    false, true, _ = roc_curve(truth, -np.concatenate([inside, away]), drop_intermediate=False)
    np.testing.assert_allclose(found.false, false)
    np.testing.assert_allclose(found.true, true)


def test_figures_of_every_width() -> None:
    panels = {f"score {n}": {"home": numbers(50, 1), "strangers": numbers(40, -1)} for n in range(4)}
    kinds = {"home": "seen", "strangers": "out of domain"}
    curves = {name: {"MSP": roc(numbers(50, 1), numbers(40)), "MCM": roc(numbers(50, 2), numbers(40))} for name in "ab"}
    size = {name: {"plain": (3.0, 0.1), "Bayes": (5.0, None)} for name in ("home", "drift")}
    held = {name: {"plain": (0.8, 0.1), "Bayes": (0.9, 0.02)} for name in ("home", "drift")}
    for width in (WIDE, NARROW):
        for figure in (
            familiarity_plot(panels, kinds, {"score 0": 0.0}, width=width),
            roc_plot(curves, width=width),
            sizes_plot(size, held, 0.9, width=width),
            class_coverage_plot(["cat", "dog", "cow"], [3, 5, 0], [4, 5, 0], 0.9, width=width),
            class_coverage_plot([f"c{n}" for n in range(90)], np.ones(90), np.ones(90), 0.9, width=width),
            p_value_plot([0.1, 0.5, 1.0], 0.05, width=width),
        ):
            assert figure.get_figwidth() <= width + 1e-9
            assert "<svg" in drawn(figure)


def test_names_stay_text_and_colours_follow_the_theme() -> None:
    svg = drawn(familiarity_plot({HOSTILE: {HOSTILE: numbers(20)}}, {HOSTILE: "seen"}))
    assert "<script" not in svg
    assert "var(--seen)" in svg
    assert "#1a9a89" not in svg


def test_what_cannot_be_drawn_is_refused() -> None:
    for draw, sentence in (
        (lambda: roc([], [1.0]), "needs images of both kinds"),
        (lambda: roc([1.0, np.nan], [1.0]), "The familiar scores is or has nan"),
        (lambda: familiarity_plot({}, {}), "panels is empty"),
        (lambda: roc_plot({}), "panels is empty"),
        (lambda: class_coverage_plot(["a"], [1, 1], [1, 1], 0.9), "give one per class"),
        (lambda: class_coverage_plot(["a"], [0], [0], 0.9), "No class has an image"),
        (lambda: p_value_plot([], 0.05), "There are no p-values"),
        (lambda: p_value_plot([1.2], 0.05), "not between 0 and 1"),
    ):
        with pytest.raises(BayesVLMError, match=sentence):
            draw()


def test_equal_scores_can_be_drawn() -> None:
    assert drawn(familiarity_plot({"flat": {"home": np.zeros(9), "away": np.zeros(3)}}, {"home": "seen", "away": "x"}))


# The page of eval -----------------------------------------------------------------------------------------------------


def answer_sets() -> AnswerSets:
    def sets(seed: int, count: int) -> Sets:
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(3, (count,), generator=generator)
        return Sets(torch.randint(1, 4, (count,), generator=generator), torch.rand(count) < 0.9, labels)

    kinds = {kind: {"home": sets(1, 100), "drift": sets(2, 90)} for kind in ("lac", "aps", "raps")}
    return AnswerSets(0.1, {"plain": kinds, "Bayes": kinds})


def thumbnails(name: str = "a.png") -> list[Thumbnail]:
    return [Thumbnail(Image.new("RGB", (8, 8)), name, "", 0.5)]


def test_the_page_is_whole() -> None:
    findings = Findings(outside(), answer_sets(), ("cat", "dog", "cow"), thumbnails(), thumbnails())
    html = render(unknown_page([findings], [failures()], "bayesvlm eval ..."))
    for title in (
        "known or unknown?",
        "what would be flagged?",
        "which classes may it be?",
        "which answers are wrong?",
    ):
        assert f"a model: {title}" in html
    assert html.count("<img") == 2
    assert "<script" not in html
    assert "Coverage by class" in html
    assert "ICPE was left out: there are no images." in html


def test_verdicts() -> None:
    (first, flat) = outside_verdicts(outside())
    assert first.startswith("On strangers the best score is good (AUROC 9")
    assert "entropy, Bayes" not in first, "there is no such score here"
    assert flat == "All familiar images have the same score by flat, which then tells nothing."
    made = outside()
    renamed = {
        name: {"entropy, Bayes" if t == "good" else t: v for t, v in of.items()} for name, of in made.scores.items()
    }
    (better, _) = outside_verdicts(replace(made, scores=renamed))
    assert "entropy, Bayes, the score a detector has unless told otherwise, is better than MCM (+" in better
    swapped = {name: {**of, "entropy, Bayes": of["MCM"]} for name, of in made.scores.items()}
    assert "is level with MCM (+0.0 ± 0.0 points, p = 1)" in outside_verdicts(replace(made, scores=swapped))[0]
    known = replace(made, facts={**made.facts, "known_all_the_same": {"strangers": ["cat"]}})
    assert "1 classes of strangers are known ones, such as cat" in outside_verdicts(known)[1]


def test_verdicts_of_wrong_answers() -> None:
    (said,) = failure_verdicts(failures())
    assert said.startswith("On home wrong answers are found best by Bayes (AUROC 9")
    assert "; plain " in said
    right = Ranking(torch.rand(9).double(), torch.ones(9, dtype=torch.bool))
    (said,) = failure_verdicts(replace(failures(), rankings={"plain": right}))
    assert "there is nothing to find" in said


def test_hostile_names_stay_text() -> None:
    made = outside()
    scores = {HOSTILE if name == "strangers" else name: of for name, of in made.scores.items()}
    kinds = {HOSTILE if name == "strangers" else name: kind for name, kind in made.kinds.items()}
    page = unknown_page([Findings(replace(made, scores=scores, kinds=kinds), mistaken=thumbnails(HOSTILE))], [])
    assert "<script" not in render(page)


def test_a_page_without_unknown_sets_or_calibration() -> None:
    made = outside(familiar=30)
    html = render(unknown_page([Findings(made)], []))
    assert "what would be flagged?" not in html
    assert "known or unknown?" in html


# The page of detect run -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def detector() -> Detector:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    vlm = BayesVLM.from_projections(draw(8, 16), draw(8, 12), logit_scale=2.0)
    return Detector.calibrate(vlm, Features(draw(200, 16)), Features(draw(4, 12)), 0.1, "mcm", predictive="plain")


def test_the_page_of_a_detection(detector: Detector) -> None:
    low = torch.full((30,), float(detector.scores[0]) - 1)
    for values, said in (
        (detector.scores, "no more than so many familiar"),
        (low, "more than so many familiar images"),
    ):
        found = detector.of(values)
        report = DetectionReport(detector, "home", values, found.p_value, thumbnails(), thumbnails(HOSTILE))
        html = render(detection_page(report, "bayesvlm detect run"))
        assert said in html
        assert f"{int(found.unknown.sum())} of {len(values)} images are flagged as unknown" in html
        assert "<script" not in html
        assert html.count("<img") == 2
        assert "Which classes, and whether to answer" not in html


def test_how_many_familiar_images_may_be_flagged(detector: Detector) -> None:
    bound = int(betabinom.ppf(0.95, 109, 20, 181))
    found = detector.of(detector.scores[:109].clone())
    html = render(detection_page(DetectionReport(detector, "home", found.familiarity, found.p_value, [], [])))
    assert f"(up to {bound} in 95 of 100 cases)" in html


def test_the_ends_of_a_score() -> None:
    values = torch.tensor([0.2, 0.9, 0.9, 0.1])
    assert extremes(values, 2, most=True) == [1, 2]
    assert extremes(values, 9, most=False) == [3, 0, 1, 2]
