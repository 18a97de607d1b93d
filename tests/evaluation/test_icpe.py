"""ICPE against scikit-learn's principal components, scipy's densities, and the formula written out class by class."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special
import torch
from scipy.stats import multivariate_normal
from sklearn.covariance import empirical_covariance
from sklearn.decomposition import PCA
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.evaluation import ICPE, auroc
from bayesvlm.evaluation import icpe as module

from .references import generator

CLASSES = 4


def labelled(rows: int, seed: int, size: int = 6, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    """Embeddings about the centre of their class, in each class with a covariance of its own."""
    fixed, draws = generator(0), generator(seed)
    centres = 2 * torch.randn(CLASSES, size, generator=fixed, dtype=torch.float64)
    roots = torch.randn(CLASSES, size, size, generator=fixed, dtype=torch.float64) / math.sqrt(size)
    labels = torch.arange(rows) % CLASSES
    noise = torch.randn(rows, size, generator=draws, dtype=torch.float64)
    return 3 + centres[labels] + spread * torch.einsum("nij,nj->ni", roots[labels], noise), labels


def by_scikit_learn(
    features: Tensor, labels: Tensor, new: Tensor, components: int, ridge: float, shrinkage: float = 0.0
) -> np.ndarray:  # [N, C]
    """Log densities of new embeddings: their PCA, its covariances, the densities of scipy."""
    pca = PCA(components, svd_solver="full").fit(features.numpy())
    points, fresh = pca.transform(features.numpy()), pca.transform(new.numpy())
    groups = [points[labels.numpy() == c] for c in range(CLASSES)]
    within = sum(len(group) * empirical_covariance(group) for group in groups) / (len(points) - CLASSES)
    columns = []
    for group in groups:
        own = empirical_covariance(group) * len(group) / (len(group) - 1)
        mixed = (1 - shrinkage) * own + shrinkage * within + ridge * np.eye(components)
        columns.append(multivariate_normal(group.mean(axis=0), mixed).logpdf(fresh))
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("components", [1, 3, 6])
@pytest.mark.parametrize(("ridge", "shrinkage"), [(1e-8, 0.0), (0.1, 0.0), (1e-8, 0.3), (1e-8, 1.0)])
def test_log_densities_against_scikit_learn_and_scipy(components: int, ridge: float, shrinkage: float) -> None:
    features, labels = labelled(80, seed=1)
    new, _ = labelled(30, seed=2)
    fitted = ICPE.fit(features, labels, CLASSES, components, ridge, shrinkage)
    expected = by_scikit_learn(features, labels, new, components, ridge, shrinkage)
    np.testing.assert_allclose(fitted.log_densities(new), expected, rtol=1e-8, atol=1e-8)


def test_the_score_is_the_mean_of_confidence_and_share() -> None:
    features, labels = labelled(80, seed=1)
    new, _ = labelled(30, seed=2)
    logits = torch.randn(30, CLASSES, generator=generator(3), dtype=torch.float64)
    confidence, predicted = torch.softmax(logits, dim=1).max(dim=1)
    shares = scipy.special.softmax(by_scikit_learn(features, labels, new, 3, 1e-8), axis=1)[range(30), predicted]
    fitted = ICPE.fit(features, labels, [f"class {c}" for c in range(CLASSES)], components=3)
    np.testing.assert_allclose(fitted.score(new, predicted), shares, rtol=1e-7)
    np.testing.assert_allclose(fitted.score(new, predicted, confidence), (shares + confidence.numpy()) / 2, rtol=1e-7)
    assert torch.equal(
        fitted.score(new, predicted.int(), confidence.float()), fitted.score(new, predicted, confidence.float())
    )


@pytest.mark.parametrize("seed", range(3))
def test_it_tells_wrong_answers_from_right_ones(seed: int) -> None:
    features, labels = labelled(200, seed=10 + seed)
    new, truth = labelled(400, seed=20 + seed)
    wrong = torch.rand(400, generator=generator(30 + seed)) < 0.3
    predicted = torch.where(wrong, (truth + 1) % CLASSES, truth)
    assert auroc(-ICPE.fit(features, labels, CLASSES).score(new, predicted), wrong) > 0.9


def test_a_turned_and_moved_space_changes_nothing() -> None:
    features, labels = labelled(80, seed=1)
    new, predicted = labelled(30, seed=2)
    turn, _ = torch.linalg.qr(torch.randn(6, 6, generator=generator(4), dtype=torch.float64))
    plain = ICPE.fit(features, labels, CLASSES, components=4).score(new, predicted)
    turned = ICPE.fit(features @ turn + 5, labels, CLASSES, components=4).score(new @ turn + 5, predicted)
    torch.testing.assert_close(turned, plain, rtol=1e-7, atol=1e-10)


def test_fewer_images_than_components_are_singular_but_for_the_ridge() -> None:
    """Eleven images of each class in twenty dimensions: what lies across their span is 1e-4 wide."""
    features, labels = labelled(11 * CLASSES, seed=1, size=20)
    new, predicted = labelled(40, seed=2, size=20)
    fitted = ICPE.fit(features, labels, CLASSES)
    assert tuple(fitted.roots.shape) == (CLASSES, 20, 20), "128 components are more than there are"
    np.testing.assert_allclose(fitted.log_densities(new), by_scikit_learn(features, labels, new, 20, 1e-8), rtol=1e-5)
    share = fitted.score(new, predicted)
    assert bool(((share < 1e-6) | (share > 1 - 1e-6)).all())
    shrunk = ICPE.fit(features, labels, CLASSES, shrinkage=0.5).score(new, predicted)
    assert bool(torch.isfinite(shrunk).all())


def test_a_class_of_one_image_has_the_covariance_of_all() -> None:
    features, labels = labelled(80, seed=1)
    alone = torch.cat([features, features[:1] + 1]), torch.cat([labels, torch.tensor([CLASSES])])
    fitted = ICPE.fit(*alone, CLASSES + 1, components=6, shrinkage=0.25, least=1)
    groups = [alone[0][alone[1] == c].numpy() for c in range(CLASSES)]
    within = sum(len(group) * empirical_covariance(group) for group in groups) / (81 - CLASSES - 1)
    turned = fitted.axes.numpy().T @ (0.25 * within) @ fitted.axes.numpy() + 1e-8 * np.eye(6)
    np.testing.assert_allclose((fitted.roots[-1] @ fitted.roots[-1].T).numpy(), turned, atol=1e-12)


def test_images_span_no_more_components_than_they_are() -> None:
    features, labels = labelled(8, seed=1, size=20)
    assert ICPE.fit(features, labels, CLASSES, least=2).axes.shape == (20, 7)


def test_single_precision_and_blocks_of_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = labelled(80, seed=1)
    new, predicted = labelled(30, seed=2)
    whole = ICPE.fit(features, labels, CLASSES, components=3).score(new, predicted)
    single = ICPE.fit(features.float(), labels.int(), CLASSES, components=3)
    assert single.mean.dtype == torch.float64
    torch.testing.assert_close(single.score(new.float(), predicted), whole, rtol=1e-3, atol=1e-5)
    blocks = module.row_blocks
    monkeypatch.setattr(module, "row_blocks", lambda rows, columns: blocks(rows, columns, numbers=1))
    torch.testing.assert_close(ICPE.fit(features, labels, CLASSES, components=3).score(new, predicted), whole)


def test_it_prints_in_a_line() -> None:
    features, labels = labelled(80, seed=1)
    assert repr(ICPE.fit(features, labels, CLASSES, components=3)).startswith(
        "ICPE(mean=float64 [6], axes=float64 [6, 3]"
    )


# -------------------------------------------------------------------------------------------------------------- errors


def test_every_class_needs_images() -> None:
    features, labels = labelled(36, seed=1)
    with pytest.raises(BayesVLMError, match="4 of 4 classes have fewer than 10 images, such as class 0 with 9; ICPE"):
        ICPE.fit(features, labels, CLASSES)
    with pytest.raises(BayesVLMError, match="1 of 5 classes have fewer than 2 images, such as class 'moon' with 0"):
        ICPE.fit(features, labels, ["sun", "rain", "snow", "fog", "moon"], least=2)
    with pytest.raises(BayesVLMError, match="least is 0; expected a whole number of at least 1"):
        ICPE.fit(features, labels, CLASSES, least=0)


def test_bad_inputs_of_a_fit() -> None:
    features, labels = labelled(80, seed=1)
    for given_features, given_labels, sentence in (
        (
            features[0],
            labels,
            r"features has shape \[6\] and torch.float64; it must be floating-point numbers \[N, d\]",
        ),
        (features.int(), labels, r"features has shape \[80, 6\] and torch.int32"),
        (features * math.nan, labels, "features holds NaN or Inf, first in row 0; mend or drop"),
        (features, labels[:3], r"labels has shape \[3\] and torch.int64; it must be integers \[80\]"),
        (features, labels.double(), r"labels has shape \[80\] and torch.float64; it must be integers"),
        (features, labels + 1, "The labels run from 1 to 4, but there are 4 classes; number them 0 to 3"),
    ):
        with pytest.raises(BayesVLMError, match=sentence):
            ICPE.fit(given_features, given_labels, CLASSES)
    with pytest.raises(BayesVLMError, match="classes is 1; expected a whole number of at least 2"):
        ICPE.fit(features, labels * 0, 1)
    with pytest.raises(BayesVLMError, match="components is 0; expected a whole number"):
        ICPE.fit(features, labels, CLASSES, components=0)
    with pytest.raises(BayesVLMError, match="ridge=0; it must be a finite number above zero"):
        ICPE.fit(features, labels, CLASSES, ridge=0)
    with pytest.raises(BayesVLMError, match=r"shrinkage=2; it is a share, from 0"):
        ICPE.fit(features, labels, CLASSES, shrinkage=2)
    with pytest.raises(BayesVLMError, match=r"ridge=1e-300 is too small: the covariance of class \d is singular"):
        ICPE.fit(*labelled(11 * CLASSES, seed=1, size=20), CLASSES, ridge=1e-300)


def test_bad_inputs_of_a_score() -> None:
    features, labels = labelled(80, seed=1)
    fitted = ICPE.fit(features, labels, CLASSES)
    for given_features, predicted, confidence, sentence in (
        (features[:, :5], labels, None, r"features has shape \[80, 5\]; it must be \[N, 6\], embeddings of the model"),
        (features, labels + 1, None, "The labels run from 1 to 4, but log densities has 4 classes"),
        (features, labels[:5], None, "log densities has 80 rows and there are 5 labels"),
        (features, labels, torch.ones(5), r"confidence has shape \[5\]; it must be \[80\] probabilities"),
        (features, labels, torch.full((80,), 1.5), r"it must be \[80\] probabilities of the predicted classes, from 0"),
    ):
        with pytest.raises(BayesVLMError, match=sentence):
            fitted.score(given_features, predicted, confidence)
