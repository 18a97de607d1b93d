"""The page of an evaluation: its sentences follow the numbers, its figures show every answer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from report.results import result, scores

from bayesvlm import BayesVLMError
from bayesvlm.evaluation import paired_t_test
from bayesvlm.experiments.zero_shot import Result
from bayesvlm.report import render
from bayesvlm.report.entropy import Answers, entropy_plot, quadrants_plot
from bayesvlm.report.theme import NARROW
from bayesvlm.report.zero_shot import lead, overconfident, verdicts, zero_shot_page


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return [
        result("new", {"plain": scores(1, sharpness=6), "temperature": scores(2), "Bayes": scores(1, shift=-0.1)}),
        result("old", {"plain": scores(3, sharpness=6), "temperature": scores(3), "Bayes": scores(3, shift=0.4)}),
    ]


def test_the_page_shows_all_of_it(results: list[Result]) -> None:
    page = zero_shot_page([*results, result("new", {"plain": scores(5)}, model="second")], "bayesvlm eval x -d new")
    assert [section.title.split(":")[0] for section in page.sections].count("some-model") == 3
    html = render(page)
    assert html.count("<svg") == 2 * 2 * 5, "five figures a model, for a wide screen and a phone"
    assert "bayesvlm eval x -d new" in html
    assert "nan" not in html.replace("nanosecond", "").lower().split("<svg")[0]
    for sentence in verdicts(results):
        assert sentence in html
    assert "3 ways to predict (plain, temperature, Bayes)" in lead(results)
    assert "Prompts: '{c}' for new, old." in lead(results)


def test_verdicts_are_those_of_the_paired_tests(results: list[Result]) -> None:
    against_plain, against_temperature, _ = verdicts(results)
    assert "Bayes against plain is" in against_plain
    for text, other in ((against_plain, "plain"), (against_temperature, "temperature")):
        for one in results:
            test = paired_t_test(one.scores[other].nll, one.scores["Bayes"].nll)
            word = "level" if test.p >= 0.05 else "better" if test.difference > 0 else "worse"
            part = next(part for part in text.split(";") if f"{one.data} (" in part)
            assert word in part
            assert f"{one.data} ({test.difference:+.2f})" in part


def test_a_verdict_on_temperature_scaling_names_the_raised_one_or_says_that_it_is_missing(
    results: list[Result],
) -> None:
    assert verdicts(results)[-1].startswith("How far a temperature gets that is raised")
    of = {name: scores(seed) for seed, name in enumerate(("plain", "temperature", "raised temperature", "Bayes"))}
    said = verdicts([result("new", of)])
    assert [text.partition(" is ")[0] for text in said] == [
        f"In NLPD, Bayes against {name}" for name in ("plain", "temperature", "raised temperature")
    ]
    assert not any("How far" in text for text in verdicts([result("new", {"plain": scores(1), "Bayes": scores(2)})]))


def test_without_bayes_there_is_no_verdict() -> None:
    assert verdicts([result("new", {"plain": scores(1), "temperature": scores(2)})]) == []


def test_the_share_of_sure_errors(results: list[Result]) -> None:
    found = results[0].scores["plain"]
    error = 1 - (-found.nll).exp()
    share = ((error > 0.5) & (found.outcomes.entropy < math.log(7) / 2)).double().mean()
    assert 0.1 < share < 0.9
    assert f"new: plain {float(share):.0%}" in overconfident(results)


# Figures -------------------------------------------------------------------------------------------------------------


def answers(entropy: list[float], error: list[float]) -> Answers:
    return Answers(torch.tensor(entropy), torch.tensor(error), torch.tensor(error) < 0.5, 10)


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_the_quarters_count_answers() -> None:
    most = math.log(10)
    corners = answers([0.1, 0.2, 0.1, most, most - 0.1], [0.9, 0.1, 0.2, 0.99, 0.4])
    figure = quadrants_plot({"a set": {"plain": corners}})
    assert texts(figure) == ["20%", "40%", "20%", "20%"], "sure and wrong, sure and right, unsure and wrong, the rest"
    assert figure.axes[0].get_title(loc="left") == "a set, plain"


def test_entropies_enclose_the_share_of_answers() -> None:
    figure = entropy_plot({"a set": {"plain": answers([0.1, 0.2, 2.0, 2.2], [0.1, 0.9, 0.1, 0.9])}})
    stairs = [patch.get_data().values for patch in figure.axes[0].patches]
    assert len(stairs) == 2
    assert [float(np.sum(values)) for values in stairs] == [0.5, 0.5]


@pytest.mark.parametrize("width", [NARROW, 9.0])
@pytest.mark.parametrize("sets", [1, 2, 5])
def test_many_sets_fit(sets: int, width: float) -> None:
    methods = {name: answers([0.1, 2], [0.1, 0.9]) for name in ("plain", "Bayes")}
    panels = {f"a set with a long name, number {number}": methods for number in range(sets)}
    for plot, expected in ((entropy_plot, sets), (quadrants_plot, 2 * sets)):
        figure = plot(panels, width=width)
        assert len(figure.axes) == expected
        figure.canvas.draw()


def test_numbers_that_cannot_be_drawn() -> None:
    with pytest.raises(BayesVLMError, match="The entropy of 'plain' on 'a' is or has nan"):
        quadrants_plot({"a": {"plain": answers([math.nan], [0.5])}})
    with pytest.raises(BayesVLMError, match="panels is empty"):
        quadrants_plot({})
