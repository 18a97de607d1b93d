"""Links from moments to probabilities, and the split of the entropy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bayesvlm.core.cosine import CosineMoments, prob_cosine
from bayesvlm.core.draws import Held
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.factors import KroneckerFactors
from bayesvlm.core.features import Features
from bayesvlm.core.posterior import Posterior
from bayesvlm.core.predict import (
    EntropySplit,
    centred_probit,
    entropy,
    monte_carlo,
    plain_softmax,
    probit,
    sample_cosines,
    sigmoid_probit,
)
from bayesvlm.core.prediction import ParameterDraws, Prediction
from bayesvlm.core.projection import Projection

from .references import assert_close, generator, normal, positive_definite, unit

N, C, d, SCALE = 6, 4, 5, 20.0


def moments(seed: int = 0, rows: int = N) -> CosineMoments:
    """Cosines around 0.2 with standard deviations up to 0.2."""
    mean = 0.2 + 0.1 * normal(rows, C, seed=seed)
    return CosineMoments(mean, (0.1 * normal(rows, C, seed=seed + 1)).square())


def posteriors(lam: float = 50.0, structure: Any = "damped", covariance: Any = "full") -> tuple[Posterior, Posterior]:
    """Image and text posteriors in one space."""
    made = []
    for seed, width in ((0, 4), (10, 3)):
        factors = KroneckerFactors(positive_definite(width, seed=seed), positive_definite(d, seed=seed + 1), 4)
        made.append(Posterior(Projection(normal(d, width, seed=seed + 2)), factors, 1.0, lam, structure, covariance))
    return made[0], made[1]


def inputs() -> tuple[Features, Features]:
    return Features(normal(N, 4, seed=20)), Features(normal(C, 3, seed=21))


# ---------------------------------------------------------------------------------------------------------------- links


def test_probit_is_the_formula() -> None:
    given = moments()
    expected = torch.stack(
        [
            torch.softmax(SCALE * mean / (1 + math.pi / 8 * SCALE**2 * variance).sqrt(), dim=0)
            for mean, variance in zip(given.mean, given.variance, strict=True)
        ]
    )
    assert_close(probit(given, SCALE), expected, 1e-13)


def test_centred_probit_is_the_formula() -> None:
    given = moments()
    expected = torch.stack(
        [
            torch.softmax(SCALE * (mean - mean.mean()) / (1 + math.pi / 8 * SCALE**2 * variance).sqrt(), dim=0)
            for mean, variance in zip(given.mean, given.variance, strict=True)
        ]
    )
    assert_close(centred_probit(given, SCALE), expected, 1e-13)


def test_centred_ignores_a_shift_of_the_mean_and_plain_does_not() -> None:
    given = moments()
    moved = CosineMoments(given.mean + normal(N, 1, seed=3), given.variance)
    assert_close(centred_probit(moved, SCALE), centred_probit(given, SCALE), 1e-12)
    assert float((probit(moved, SCALE) - probit(given, SCALE)).abs().max()) > 0.1


@pytest.mark.parametrize("link", [probit, centred_probit])
def test_without_variance_every_link_is_the_softmax(link: Any) -> None:
    given = moments()
    certain = CosineMoments(given.mean, torch.zeros_like(given.mean))
    assert_close(link(certain, SCALE), torch.softmax(SCALE * given.mean, dim=1), 1e-12)


@pytest.mark.parametrize("link", [probit, centred_probit])
def test_blocks_of_rows_do_not_matter(link: Any) -> None:
    """Enough rows for several blocks, in both memory layouts, float32 close to float64."""
    given = moments(rows=150_000)
    whole = link(given, SCALE)
    for part in (slice(0, 3), slice(65_534, 65_540), slice(149_998, None)):
        assert_close(link(CosineMoments(given.mean[part], given.variance[part]), SCALE), whole[part], 1e-14)
    turned = CosineMoments(given.mean.T.contiguous().T, given.variance.T.contiguous().T)
    assert_close(link(turned, SCALE), whole, 1e-14)
    single = link(CosineMoments(given.mean.float(), given.variance.float()), SCALE)
    assert single.dtype == torch.float32
    assert_close(single, whole, 1e-5)


@pytest.mark.parametrize("link", [probit, centred_probit])
def test_probabilities_and_no_change_of_the_moments(link: Any) -> None:
    given = moments()
    before = given.mean.clone(), given.variance.clone()
    probs = link(given, SCALE)
    assert_close(probs.sum(dim=1), torch.ones(N).double(), 1e-12)
    assert float(probs.min()) >= 0
    assert torch.equal(given.mean, before[0])
    assert torch.equal(given.variance, before[1])


def test_with_three_classes_the_centred_probit_can_flip_the_argmax_too() -> None:
    """Two good classes above the row's mean, the better one uncertain: Monte Carlo 0.56, centred 0.08, plain 2e-6."""
    given = CosineMoments(torch.tensor([[0.26, 0.255, 0.10]]).double(), torch.tensor([[9e-4, 1e-6, 1e-6]]).double())
    noise = torch.randn(200_000, 3, generator=generator(0), dtype=torch.float64)
    sampled = torch.softmax(100 * (given.mean + given.std * noise), dim=1).mean(dim=0)[0]
    centred, plain = centred_probit(given, 100.0)[0, 0], probit(given, 100.0)[0, 0]
    assert float(sampled) == pytest.approx(0.557, abs=0.01)
    assert float(plain) < float(centred) < 0.1


def test_with_two_classes_the_plain_probit_can_flip_the_argmax_and_the_centred_does_not() -> None:
    """Two classes with logits near 25, the better one uncertain: Monte Carlo and centred choose it, plain does not."""
    given = CosineMoments(torch.tensor([[0.252, 0.250]]).double(), torch.tensor([[4e-4, 1e-6]]).double())
    noise = torch.randn(200_000, 2, generator=generator(0), dtype=torch.float64)
    sampled = torch.softmax(100 * (given.mean + given.std * noise), dim=1).mean(dim=0)
    assert int(sampled.argmax()) == 0
    assert int(centred_probit(given, 100.0).argmax()) == 0
    assert int(probit(given, 100.0).argmax()) == 1


@pytest.mark.parametrize("scale", [0.0, -20.0, float("nan")])
@pytest.mark.parametrize("link", [probit, centred_probit])
def test_a_scale_that_is_no_temperature_is_refused(link: Any, scale: float) -> None:
    """Passing logit_scale for exp(logit_scale) is an easy mistake; a negative scale must not pass for its square."""
    with pytest.raises(BayesVLMError, match="scale"):
        link(moments(), scale)


def test_sigmoid_probit_against_numerical_integration() -> None:
    """MacKay's approximation, E sigma(N(m, v)) by Gauss-Hermite: within 0.02 everywhere, within 0.002 for v < 0.25."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(201)
    x, w = torch.from_numpy(nodes), torch.from_numpy(weights / weights.sum())
    scale, bias = 100.0, -15.0
    mean, std = torch.meshgrid(torch.linspace(0.0, 0.35, 36), torch.linspace(0.0, 0.05, 26), indexing="ij")
    given = CosineMoments(mean.double(), std.double().square())
    logits = scale * given.mean + bias
    exact = (torch.sigmoid(logits[..., None] + scale * given.std[..., None] * x) * w).sum(dim=-1)
    gap = (sigmoid_probit(given, scale, bias) - exact).abs()
    small = scale * given.std < 0.5
    print(f"sigmoid probit against integration: {float(gap.max()):.2e}, {float(gap[small].max()):.2e} for v < 0.25")
    assert float(gap.max()) <= 0.02
    assert float(gap[small].max()) <= 0.002
    plain = torch.sigmoid(logits)
    assert float((plain - exact).abs().max()) > 0.1  # what ignoring the variance would cost


def test_sigmoid_probit_is_the_formula() -> None:
    given = moments()
    expected = 1 / (1 + torch.exp(-(SCALE * given.mean - 3) / (1 + math.pi / 8 * SCALE**2 * given.variance).sqrt()))
    assert_close(sigmoid_probit(given, SCALE, -3.0), expected, 1e-13)


def test_plain_softmax_is_the_model_itself() -> None:
    g, h = normal(N, d, seed=4), normal(C, d, seed=5)
    assert_close(plain_softmax(g, h, SCALE), torch.softmax(SCALE * unit(g) @ unit(h).T, dim=1), 1e-12)
    assert_close(plain_softmax(7 * g, h / 3, SCALE), plain_softmax(g, h, SCALE), 1e-12)


# ---------------------------------------------------------------------------------------------------------- Monte Carlo


def test_monte_carlo_without_uncertainty_is_the_plain_softmax() -> None:
    image, text = posteriors(lam=1e20)
    images, texts = inputs()
    split = monte_carlo(image, images, text, texts, SCALE, draws=5)
    expected = plain_softmax(image.projection.embed(images), text.projection.embed(texts), SCALE)
    assert_close(split.probs, expected, 1e-7)
    assert float(split.epistemic.max()) <= 1e-9


@pytest.mark.parametrize("structure", ["damped", "exact"])
def test_entropy_split_on_the_same_draws(structure: Any) -> None:
    """total = aleatoric + epistemic, recomputed from the very draws; bounds hold."""
    image, text = posteriors(structure=structure)
    images, texts = inputs()
    split = monte_carlo(image, images, text, texts, SCALE, draws=50, seed=3)
    drawn = torch.stack(list(sample_cosines(image, images, text, texts, 50, seed=3)))
    probs = torch.softmax(SCALE * drawn, dim=2)
    average = probs.mean(dim=0)
    assert_close(split.probs, average, 1e-12)
    assert_close(split.total, -(average * average.log()).sum(dim=1), 1e-12)
    assert_close(split.aleatoric, -(probs * probs.log()).sum(dim=2).mean(dim=0), 1e-12)
    assert_close(split.total, split.aleatoric + split.epistemic, 1e-12)
    assert float((split.total - split.aleatoric).min()) >= 0
    assert float(split.total.max()) <= math.log(C) + 1e-12
    assert float(split.aleatoric.min()) >= 0
    assert float(split.epistemic.max()) > 0.01  # there is something to split


def test_epistemic_uncertainty_vanishes_as_the_prior_tightens() -> None:
    images, texts = inputs()
    values = []
    for lam in (1e1, 1e3, 1e5, 1e8):
        image, text = posteriors(lam=lam)
        values.append(float(monte_carlo(image, images, text, texts, SCALE, draws=200).epistemic.mean()))
    assert values[0] > values[1] > values[2] > values[3] >= 0
    assert values[3] < 1e-6


def test_monte_carlo_repeats_with_its_seed() -> None:
    image, text = posteriors()
    images, texts = inputs()
    once, twice, other = (monte_carlo(image, images, text, texts, SCALE, 10, seed=seed).probs for seed in (0, 0, 1))
    assert torch.equal(once, twice)
    assert not torch.equal(once, other)


def test_draws_of_the_two_towers_are_independent() -> None:
    """One posterior and one input on both sides: noise that was shared would give cosines of exactly one."""
    tower, _ = posteriors(lam=10.0)
    features = inputs()[0][:1]
    cosines = torch.stack(list(sample_cosines(tower, features, tower, features, 20)))
    assert float(cosines.max()) < 1 - 1e-6


def test_a_draw_is_shared_by_all_inputs() -> None:
    """Two equal images have equal cosines in every draw (rows of a product to rounding); they average to the mean's."""
    image, text = posteriors(lam=1e4)
    images, texts = inputs()
    doubled = images[[0, 0]]
    for cosine in sample_cosines(image, doubled, text, texts, 20):
        assert_close(cosine[0], cosine[1], 1e-12)
    average = torch.stack(list(sample_cosines(image, images, text, texts, 400))).mean(dim=0)
    plain = unit(image.projection.embed(images)) @ unit(text.projection.embed(texts)).T
    assert float((average - plain).abs().max()) < 0.02


@pytest.mark.parametrize("structure", ["damped", "exact"])
def test_links_are_close_to_monte_carlo_at_small_uncertainty(structure: Any) -> None:
    """Standard deviations of the logits around 0.3: both links within 0.02 of 2,000 draws (error of those: 0.003)."""
    image, text = posteriors(lam=4e3 if structure == "damped" else 6e3, structure=structure)
    images, texts = inputs()
    given = prob_cosine(image.embed(images), text.embed(texts))
    spread = 5 * float(given.std.mean())
    assert 0.05 < spread < 0.5, spread
    sampled = monte_carlo(image, images, text, texts, 5.0, draws=2000).probs
    for link in (probit, centred_probit):
        assert float((link(given, 5.0) - sampled).abs().max()) <= 0.02, link.__name__


@pytest.mark.parametrize("draws", [0, -5])
def test_monte_carlo_needs_draws(draws: int) -> None:
    with pytest.raises(BayesVLMError, match=f"draws={draws}"):
        monte_carlo(*posteriors()[:1], inputs()[0], posteriors()[1], inputs()[1], SCALE, draws)


# ------------------------------------------------------------------------------------------------------------ entropies


def test_entropy_of_known_distributions() -> None:
    probs = torch.tensor([[0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]]).double()
    assert_close(entropy(probs), torch.tensor([math.log(4), 0.0, math.log(2)], dtype=torch.float64), 1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entropy_is_bounded(dtype: torch.dtype) -> None:
    probs = torch.softmax(30 * normal(1000, 7, seed=6), dim=1).to(dtype)
    values = entropy(torch.cat([probs, torch.full((1, 7), 1 / 7, dtype=dtype)]))
    assert float(values.min()) >= 0
    assert float(values.max()) <= math.log(7) * (1 + 4 * torch.finfo(dtype).eps)


def test_prediction_reads_off_its_probabilities() -> None:
    given = moments()
    probs = probit(given, SCALE)
    prediction = Prediction(probs, given)
    assert len(prediction) == N
    assert torch.equal(prediction.labels, probs.argmax(dim=1))
    assert_close(prediction.entropy, -(probs * probs.log()).sum(dim=1), 1e-12)
    assert torch.equal(prediction.moments.variance, given.variance)
    with pytest.raises(BayesVLMError, match="its entropy has no parts"):
        _ = prediction.epistemic


def test_prediction_splits_its_entropy_once() -> None:
    calls = []

    class Counted(ParameterDraws):
        def split(self) -> EntropySplit:
            calls.append(1)
            return EntropySplit(torch.ones(1, 2) / 2, torch.tensor([0.5]), torch.tensor([0.2]))

    nothing = Features(torch.ones(1, 2))
    held = Held(Projection(torch.ones(2, 2)))
    prediction = Prediction(torch.ones(1, 4) / 4, moments(), draws=Counted(held, nothing, held, nothing, 1.0))
    assert not calls
    assert_close(prediction.epistemic, torch.tensor([math.log(4) * 0.6]), 1e-6)
    assert_close(prediction.aleatoric, torch.tensor([math.log(4) * 0.4]), 1e-6)
    assert_close(prediction.monte_carlo.epistemic, torch.tensor([0.3]), 1e-6)
    assert len(calls) == 1


def test_an_entropy_of_nothing_has_no_parts() -> None:
    certain = torch.tensor([[1.0, 0.0]])
    split = EntropySplit(certain, torch.zeros(1), torch.zeros(1))
    prediction = Prediction(certain, moments(), draws=split)
    assert float(prediction.epistemic) == float(prediction.aleatoric) == 0.0


def test_epistemic_is_cut_at_zero() -> None:
    """Rounding may leave -1e-8; a mutual information is not negative."""
    split = EntropySplit(torch.ones(1, 2) / 2, torch.tensor([0.5]), torch.tensor([0.5000001]))
    values: Tensor = split.epistemic
    assert float(values) == 0.0
