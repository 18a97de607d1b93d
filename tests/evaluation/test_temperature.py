"""The temperature: better than a grid, stationary, and the one the labels were drawn with."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.evaluation import apply_temperature, fit_temperature, nlpd, raised_temperature

from .references import generator


def drawn(rows: int, classes: int, temperature: float, seed: int) -> tuple[Tensor, Tensor]:
    """Logits, and labels drawn from their softmax at this temperature."""
    draws = generator(seed)
    logits = 5 * torch.randn(rows, classes, generator=draws, dtype=torch.float64)
    return logits, torch.multinomial(torch.softmax(logits / temperature, dim=1), 1, generator=draws)[:, 0]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0, 20.0])
def test_recovers_the_temperature_of_the_labels(temperature: float) -> None:
    """From 20,000 labels, to five per cent."""
    fitted = fit_temperature(*drawn(20_000, 10, temperature, seed=0))
    assert fitted.value == pytest.approx(temperature, rel=0.05)
    assert not fitted.at_edge


@pytest.mark.parametrize(("rows", "classes"), [(40, 2), (300, 7)])
def test_better_than_a_dense_grid_and_stationary(rows: int, classes: int) -> None:
    logits, labels = drawn(rows, classes, 4.0, seed=1)
    fitted = fit_temperature(logits, labels)
    grid = np.geomspace(0.1, 100, 2001)
    values = [float(torch.nn.functional.cross_entropy(logits / t, labels)) for t in grid]
    assert fitted.nlpd <= min(values) + 1e-13
    assert abs(math.log(fitted.value / grid[int(np.argmin(values))])) <= math.log(grid[1] / grid[0])
    inverse = torch.tensor(1 / fitted.value, dtype=torch.float64, requires_grad=True)
    torch.nn.functional.cross_entropy(logits * inverse, labels).backward()  # type: ignore[no-untyped-call]
    assert inverse.grad is not None
    assert abs(float(inverse.grad)) < 1e-10


def test_the_nlpd_is_that_of_the_probabilities() -> None:
    logits, labels = drawn(200, 5, 2.0, seed=2)
    fitted = fit_temperature(logits, labels)
    assert fitted.nlpd == pytest.approx(nlpd(apply_temperature(logits, fitted.value), labels).value, rel=1e-13)
    assert fitted.nlpd < nlpd(apply_temperature(logits, 1.0), labels).value - 0.1


def test_scaled_logits_scale_the_temperature_and_shifted_ones_do_not() -> None:
    logits, labels = drawn(200, 5, 2.0, seed=3)
    plain = fit_temperature(logits, labels).value
    assert fit_temperature(7 * logits, labels).value == pytest.approx(7 * plain, rel=1e-10)
    shift = 100 * torch.randn(200, 1, generator=generator(4), dtype=torch.float64)
    assert fit_temperature(logits + shift, labels).value == pytest.approx(plain, rel=1e-10)


def test_float32_logits_are_fitted_in_float64() -> None:
    logits, labels = drawn(500, 5, 2.0, seed=5)
    single = logits.float()
    assert fit_temperature(single, labels) == fit_temperature(single.double(), labels)


def test_gradients_are_not_asked_for() -> None:
    logits, labels = drawn(50, 3, 2.0, seed=6)
    assert fit_temperature(logits.clone().requires_grad_(), labels) == fit_temperature(logits, labels)


def test_logits_that_are_always_right_go_to_the_lower_bound() -> None:
    logits = torch.eye(4, dtype=torch.float64)
    fitted = fit_temperature(logits, torch.arange(4))
    assert (fitted.value, fitted.at_edge) == (0.01, True)
    assert fitted.nlpd == pytest.approx(3 * math.exp(-100), rel=1e-10)


def test_logits_that_are_wrong_go_to_the_upper_bound() -> None:
    logits = torch.eye(2, dtype=torch.float64)
    fitted = fit_temperature(logits, torch.tensor([1, 0]))
    assert (fitted.value, fitted.at_edge) == (100.0, True)
    assert fitted.nlpd == pytest.approx(math.log(1 + math.exp(0.01)), rel=1e-13)


def test_equal_logits_are_as_good_at_any_temperature_and_get_the_highest() -> None:
    fitted = fit_temperature(torch.zeros(3, 4), torch.tensor([0, 1, 2]))
    assert (fitted.value, fitted.at_edge) == (100.0, True)
    assert fitted.nlpd == pytest.approx(math.log(4), rel=1e-14)


def test_bounds_bind() -> None:
    logits, labels = drawn(500, 5, 2.0, seed=7)
    inside = fit_temperature(logits, labels).value
    for bounds, edge in (((0.01, inside / 2), inside / 2), ((2 * inside, 100.0), 2 * inside)):
        fitted = fit_temperature(logits, labels, bounds)
        assert (fitted.value, fitted.at_edge) == (edge, True)
    assert fit_temperature(logits, labels, (inside / 2, 2 * inside)).value == pytest.approx(inside, rel=1e-10)


# ------------------------------------------------------------------------------------------------- as far as allowed


@pytest.mark.parametrize(("rows", "classes"), [(40, 2), (300, 7), (2000, 30)])
def test_the_raised_temperature_is_the_last_of_a_grid_within_a_standard_error(rows: int, classes: int) -> None:
    logits, labels = drawn(rows, classes, 2.0, seed=9)
    best, raised = fit_temperature(logits, labels), raised_temperature(logits, labels)
    losses = torch.nn.functional.cross_entropy(logits / best.value, labels, reduction="none").numpy()
    limit = losses.mean() + losses.std(ddof=1) / math.sqrt(rows)
    grid = np.geomspace(0.1, 100, 5001)
    within = [t for t in grid if float(torch.nn.functional.cross_entropy(logits / t, labels)) <= limit]
    assert not raised.at_edge
    assert raised.value > best.value
    assert within[-1] <= raised.value <= within[-1] * grid[1] / grid[0]
    assert raised.nlpd == pytest.approx(limit, rel=1e-11)
    assert raised.nlpd == pytest.approx(nlpd(apply_temperature(logits, raised.value), labels).value, rel=1e-12)


def test_more_images_allow_less() -> None:
    """The same images ten times over: the standard error falls by a factor of about root ten, the best T stays."""
    logits, labels = drawn(200, 5, 2.0, seed=10)
    often = logits.repeat(10, 1), labels.repeat(10)
    best = fit_temperature(logits, labels).value
    assert fit_temperature(*often).value == pytest.approx(best, rel=1e-9)
    assert best < 0.99 * raised_temperature(*often).value < 0.98 * raised_temperature(logits, labels).value


def test_scaled_logits_scale_the_raised_temperature() -> None:
    logits, labels = drawn(200, 5, 2.0, seed=3)
    plain = raised_temperature(logits, labels).value
    assert raised_temperature(7 * logits, labels).value == pytest.approx(7 * plain, rel=1e-9)
    single = logits.float()
    assert raised_temperature(single, labels) == raised_temperature(single.double(), labels)


def test_where_every_temperature_is_as_good_the_highest_is_taken() -> None:
    fitted = raised_temperature(torch.zeros(3, 4), torch.tensor([0, 1, 2]))
    assert (fitted.value, fitted.at_edge) == (100.0, True)
    assert fitted.nlpd == pytest.approx(math.log(4), rel=1e-14)
    noise = torch.randn(50, 4, generator=generator(11), dtype=torch.float64)
    assert raised_temperature(noise, torch.arange(50) % 4).value == 100.0, "the logits say nothing of the labels"


def test_labels_that_are_always_right_and_cost_the_same_allow_nothing() -> None:
    """The standard error of equal losses is zero."""
    raised = raised_temperature(torch.eye(4, dtype=torch.float64), torch.arange(4))
    assert raised.value == pytest.approx(0.01, rel=1e-9)


def test_the_raised_temperature_keeps_its_bounds() -> None:
    logits, labels = drawn(300, 5, 2.0, seed=12)
    raised = raised_temperature(logits, labels)
    bounded = raised_temperature(logits, labels, (0.01, (fit_temperature(logits, labels).value + raised.value) / 2))
    assert bounded.at_edge
    assert bounded.value < raised.value
    with pytest.raises(BayesVLMError, match="the first must be below the second"):
        raised_temperature(logits, labels, (2.0, 1.0))
    with pytest.raises(BayesVLMError, match="one labelled input, whose NLPD has no standard error; give at least two"):
        raised_temperature(logits[:1], labels[:1])
    with pytest.raises(BayesVLMError, match="labels run from 0 to 4, but logits has 2 classes"):
        raised_temperature(logits[:, :2], labels)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-15), (torch.float32, 1e-7), (torch.float16, 1e-3)])
def test_apply_is_the_softmax_in_the_dtype_given(dtype: torch.dtype, tolerance: float) -> None:
    logits = (20 * torch.randn(50, 6, generator=generator(8), dtype=torch.float64)).to(dtype)
    probs = apply_temperature(logits, 3.0)
    exact = torch.exp(logits.double() / 3.0)
    assert probs.dtype == dtype
    assert float((probs.double() - exact / exact.sum(dim=1, keepdim=True)).abs().max()) <= tolerance


# ----------------------------------------------------------------------------------------------------------- errors

LOGITS, LABELS = torch.tensor([[1.0, -2.0], [0.5, 3.0]]), torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("logits", "labels", "sentence"),
    [
        (torch.tensor([[0.0, 1.0], [-math.inf, 1.0]]), LABELS, "logits holds NaN or Inf, first in row 1; all must be"),
        (torch.tensor([[0.0, math.nan], [0.0, 1.0]]), LABELS, "logits holds NaN or Inf, first in row 0"),
        (LOGITS[0], LABELS, r"logits has shape \[2\] and torch.float32; it must be floating-point numbers \[N, C\]"),
        (LOGITS[:, :1], LABELS, r"logits has shape \[2, 1\]; give at least one input and two classes"),
        (LOGITS, LABELS + 1, "labels run from 1 to 2, but logits has 2 classes"),
        (LOGITS, LABELS[:1], "logits has 2 rows and there are 1 labels"),
    ],
)
def test_bad_inputs_are_refused_in_a_sentence(logits: Tensor, labels: Tensor, sentence: str) -> None:
    with pytest.raises(BayesVLMError, match=sentence):
        fit_temperature(logits, labels)


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 1.0), (1.0, math.inf)])
def test_bounds_are_positive_and_finite(bounds: tuple[float, float]) -> None:
    with pytest.raises(BayesVLMError, match=r"bounds=.*; it must be a finite number above zero"):
        fit_temperature(LOGITS, LABELS, bounds)


@pytest.mark.parametrize("bounds", [(1.0, 1.0), (2.0, 1.0)])
def test_bounds_ascend(bounds: tuple[float, float]) -> None:
    with pytest.raises(
        BayesVLMError, match=rf"bounds=\({bounds[0]}, {bounds[1]}\); the first must be below the second"
    ):
        fit_temperature(LOGITS, LABELS, bounds)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_a_temperature_is_positive(temperature: float) -> None:
    with pytest.raises(BayesVLMError, match=f"temperature={temperature}; it must be a finite number above zero"):
        apply_temperature(LOGITS, temperature)


def test_a_temperature_does_not_mend_nan() -> None:
    with pytest.raises(BayesVLMError, match="The logits hold NaN or Inf"):
        apply_temperature(torch.tensor([[math.nan, 1.0]]), 2.0)


@pytest.mark.parametrize("numbers", [1, 30, 10**9])
def test_rows_at_a_time_change_nothing(numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(50, 7, generator=generator)
    labels = torch.randint(7, (50,), generator=generator)
    whole, raised = fit_temperature(logits, labels), raised_temperature(logits, labels).value
    monkeypatch.setattr("bayesvlm.evaluation.temperature._NUMBERS", numbers)
    part = fit_temperature(logits, labels)
    assert (part.value, part.nlpd) == pytest.approx((whole.value, whole.nlpd), rel=1e-9)
    assert raised_temperature(logits, labels).value == pytest.approx(raised, rel=1e-9)
