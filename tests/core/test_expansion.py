"""Epistemic without draws: against dense algebra, against draws with little and with much variance, its bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.expansion import bounded, expanded_epistemic, second_order
from bayesvlm.core.factors import KroneckerFactors
from bayesvlm.core.features import Features
from bayesvlm.core.joint import joint_logit_covariance
from bayesvlm.core.posterior import Posterior
from bayesvlm.core.predict import entropy, monte_carlo
from bayesvlm.core.projection import Projection

from .references import assert_close, generator, normal, positive_definite

D, P, Q, N, C, SCALE = 6, 8, 5, 40, 12, 9.0


def towers(lam: float, seed: int = 0) -> tuple[Posterior, Posterior]:
    """Posteriors of two widths, sure where lam is large; the image tower has a bias."""
    image = Projection(normal(D, P, seed=seed), normal(D, seed=seed + 1))
    text = Projection(normal(D, Q, seed=seed + 2))
    of_image = KroneckerFactors(positive_definite(P + 1, seed=seed + 3), positive_definite(D, seed=seed + 4), 4)
    of_text = KroneckerFactors(positive_definite(Q, seed=seed + 5), positive_definite(D, seed=seed + 6), 4)
    return Posterior(image, of_image, 2.0, lam, "damped", "full"), Posterior(text, of_text, 0.7, lam, "damped", "full")


def inputs(seed: int = 0) -> tuple[Features, Features]:
    """Images with a residual, some of them far from the rest; texts without."""
    far = torch.linspace(0.2, 3, N, dtype=torch.float64)[:, None]
    return Features(normal(N, P, seed=seed + 7) * far, normal(N, D, seed=seed + 8)), Features(
        normal(C, Q, seed=seed + 9)
    )


def brute_force(image: Posterior, images: Features, text: Posterior, texts: Features) -> Tensor:  # [N]
    """The formula with dense covariances of one input's logits at a time, lengths held."""
    s, t = image.marginals(images).expected_norm, text.marginals(texts).expected_norm
    found = []
    for row in range(len(images)):
        cov = joint_logit_covariance(image, images[row : row + 1], text, texts, SCALE)[0, :, 0]
        cov = cov / torch.outer(t, t) / s[row] ** 2
        mean = SCALE * text.projection.embed(texts) @ image.projection.embed(images[row : row + 1])[0] / t / s[row]
        flat = mean / (1 + torch.pi / 8 * cov.diagonal()).sqrt()
        p = (torch.softmax(mean, dim=0) + torch.softmax(flat, dim=0)) / 2
        information = torch.trace(cov @ (torch.diag(p) - torch.outer(p, p))) / 2
        entropies = -(p * p.log()).sum()
        found.append(entropies * information / (entropies + information))
    return torch.stack(found)


def test_is_the_trace_with_the_joint_covariance() -> None:
    (image, text), (images, texts) = towers(2.0), inputs()
    actual = expanded_epistemic(image, images, text, texts, SCALE)
    assert_close(actual, brute_force(image, images, text, texts), 1e-12, "epistemic without draws")


@pytest.mark.parametrize("seed", [0, 20, 40])
def test_with_little_variance_it_is_the_mutual_information_of_draws(seed: int) -> None:
    """Of Gaussian logits with the same covariance, whose mutual information 400,000 draws estimate."""
    random = generator(seed)
    mean, root = 2 * normal(C, seed=seed), 0.05 * normal(C, C, seed=seed + 1)
    logits = mean + torch.randn(400_000, C, generator=random, dtype=torch.float64) @ root.T
    probs, p, cov = torch.softmax(logits, dim=1), torch.softmax(mean, dim=0), root @ root.T
    drawn = entropy(probs.mean(dim=0)) - entropy(probs).mean()
    expanded = second_order(p[None], cov.diagonal()[None], (p @ cov @ p)[None])[0]
    print(f"drawn {float(drawn):.3e}, expanded {float(expanded):.3e}")
    assert float(expanded) == pytest.approx(float(drawn), rel=0.08)


@pytest.mark.parametrize("seed", [0, 20, 40, 60])
def test_ranks_as_draws_do_where_there_is_much_variance(seed: int) -> None:
    (image, text), (images, texts) = towers(100.0, seed), inputs(seed)
    drawn = monte_carlo(image, images, text, texts, SCALE, 4000, seed).epistemic
    expanded = expanded_epistemic(image, images, text, texts, SCALE)
    correlation = float(spearmanr(expanded, drawn).statistic)
    ratio = float(expanded.mean() / drawn.mean())
    print(f"rank correlation {correlation:.3f}, mean {ratio:.2f} of the drawn one")
    assert correlation > 0.65
    assert 0.5 < ratio < 2


def test_lies_between_zero_and_the_entropy() -> None:
    (image, text), (images, texts) = towers(1e-4), inputs()
    found = expanded_epistemic(image, images, text, texts, SCALE)
    assert bool(((found >= 0) & (found <= torch.tensor(float(C)).log())).all())
    entropies, information = torch.tensor([0.0, 0.0, 1.0, 2.0]), torch.tensor([0.0, 1.0, 0.0, 1e9])
    assert torch.allclose(bounded(information, entropies), torch.tensor([0.0, 0.0, 0.0, 2.0]))


def test_single_precision_agrees() -> None:
    (image, text), (images, texts) = towers(2.0), inputs()
    single = [
        replace(tower, projection=Projection(tower.projection.weight.float(), _float(tower.projection.bias)))
        for tower in (image, text)
    ]
    asked = Features(images.activations.float(), _float(images.residual)), Features(texts.activations.float())
    expected = expanded_epistemic(image, images, text, texts, SCALE)
    actual = expanded_epistemic(single[0], asked[0], single[1], asked[1], SCALE)
    assert actual.dtype == torch.float64
    assert_close(actual, expected, 1e-4, "in single precision")


def test_does_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    (image, text), (images, texts) = towers(2.0), inputs()
    whole = expanded_epistemic(image, images, text, texts, SCALE)
    monkeypatch.setattr("bayesvlm.core.expansion._NUMBERS", 3 * C)
    assert_close(expanded_epistemic(image, images, text, texts, SCALE), whole, 1e-12)


def test_an_exact_posterior_is_refused() -> None:
    (image, text), (images, texts) = towers(2.0), inputs()
    with pytest.raises(BayesVLMError, match="structure='damped'"):
        expanded_epistemic(replace(image, structure="exact"), images, text, texts, SCALE)


def _float(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.float()
