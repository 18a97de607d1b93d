"""What a search says of a cosine is what the direct computation says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bayesvlm import BayesVLM, Features
from bayesvlm.core.cosine import prob_cosine
from bayesvlm.retrieval import Hits, Index
from retrieval.conftest import P_TEXT, P, draw, model

CLOSE = 1e-5
HALF = 1e-3  # relative, of variances within a tower: directions of 20 and 24 numbers are kept in half precision


def places(hits: Hits) -> Tensor:
    return torch.tensor([int(each.removeprefix("item ")) for each in hits.ids])


def jacobian_variance(
    vlm: BayesVLM, tower: str, x: Features, y: Features
) -> tuple[Tensor, Tensor]:  # [N, M] cosines of means and their variances
    """Section 10 of the method, term by term in float64, with dense matrices and no trick."""
    posterior = vlm.posterior[tower]
    shape = posterior.shape.to(torch.float64)
    basis = torch.eye(len(shape.spectrum), dtype=torch.float64) if shape.basis is None else shape.basis
    covariance = basis @ torch.diag(shape.spectrum) @ basis.T
    mu = [posterior.embed(each).mean.double() for each in (x, y)]
    white = [posterior.whitened(each).double() for each in (x, y)]
    cosines, variances = torch.zeros(2, len(x), len(y), dtype=torch.float64)
    for i in range(len(x)):
        for j in range(len(y)):
            a, b = mu[0][i], mu[1][j]
            u, v = a / a.norm(), b / b.norm()
            c = u @ v
            f, g = (v - c * u) / a.norm(), (u - c * v) / b.norm()
            k = [w @ z for w, z in ((white[0][i],) * 2, (white[1][j],) * 2, (white[0][i], white[1][j]))]
            variances[i, j] = k[0] * f @ covariance @ f + k[1] * g @ covariance @ g + 2 * k[2] * f @ covariance @ g
            cosines[i, j] = c
    return cosines, variances


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
@pytest.mark.parametrize("tower", ["image", "text"])
def test_pairs_of_both_towers_are_those_of_prob_cosine(tower: str, covariance: str, tmp_path: Path) -> None:
    vlm = model(covariance=covariance)
    images, texts = draw(40, P, 1), draw(30, P_TEXT, 2)
    items, asked = (images, texts) if tower == "image" else (texts, images)
    index = Index.create(tmp_path / "index", vlm, tower=tower)
    index.add(items, [f"item {place}" for place in range(len(items))])
    direct = prob_cosine(vlm.posterior["image"].embed(images), vlm.posterior["text"].embed(texts))
    mean, std = (direct.mean, direct.std) if tower == "text" else (direct.mean.T, direct.std.T)
    for place, hits in enumerate(index.search(asked, k=7)):
        found = places(hits)
        torch.testing.assert_close(hits.mean, mean[place, found].double(), atol=CLOSE, rtol=0)
        torch.testing.assert_close(hits.std**2, std[place, found].double() ** 2, atol=0, rtol=CLOSE)
        best = mean[place].double().topk(7).values
        torch.testing.assert_close(hits.mean, best, atol=CLOSE, rtol=0)


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
@pytest.mark.parametrize("tower", ["image", "text"])
def test_pairs_of_one_tower_are_those_of_the_dense_jacobian(tower: str, covariance: str, tmp_path: Path) -> None:
    vlm = model(covariance=covariance)
    width = P if tower == "image" else P_TEXT
    items, asked = draw(25, width, 5), draw(4, width, 6)
    index = Index.create(tmp_path / "index", vlm, tower=tower)
    index.add(items, [f"item {place}" for place in range(len(items))])
    mean, variance = jacobian_variance(vlm, tower, asked, items)
    for place, hits in enumerate(index.search(asked, k=25, tower=tower)):
        found = places(hits)
        torch.testing.assert_close(hits.mean, mean[place, found], atol=CLOSE, rtol=0)
        torch.testing.assert_close(hits.std**2, variance[place, found], atol=1e-9, rtol=HALF)
        assert (hits.mean.diff() <= CLOSE).all()


def test_an_item_that_is_searched_for_finds_itself_without_doubt(make: Callable[..., Index], images: Features) -> None:
    hits = make().search(images[7:8], k=3, tower="image")[0]
    assert hits.ids[0] == "item 7"
    assert abs(float(hits.mean[0]) - 1) < 1e-6
    assert float(hits.std[0] ** 2) < 1e-12
    assert float(hits.p_best[0]) == 1
    assert float(hits.std[1] ** 2) > 1e-8


def test_a_vector_has_no_variance_of_its_own(make: Callable[..., Index], vlm: BayesVLM, images: Features) -> None:
    vector = torch.randn(16, generator=torch.Generator().manual_seed(3))
    hits = make().search(vector, k=60)
    embedded = vlm.posterior["image"].embed(images)
    unit, length = vector.double() / vector.double().norm(), embedded.expected_norm.double()
    expected = embedded.mean.double() @ unit / length
    torch.testing.assert_close(hits.mean, expected[places(hits)], atol=CLOSE, rtol=0)
    shape = vlm.posterior["image"].shape
    scale = embedded.covariance.shared().scale.double()
    variance = scale * float(shape.quadratic(unit[None].float())[0]) / length**2
    torch.testing.assert_close(hits.std**2, variance[places(hits)], atol=CLOSE, rtol=1e-3)
    assert hits.query_variance == 0


def test_how_uncertain_the_query_is(make: Callable[..., Index], vlm: BayesVLM, texts: Features) -> None:
    embedded = vlm.posterior["text"].embed(texts)
    shares = 1 - (embedded.mean.norm(dim=1) / embedded.expected_norm) ** 2
    found = [hits.query_variance for hits in make().search(texts, k=2)]
    torch.testing.assert_close(torch.tensor(found), shares, atol=1e-5, rtol=0)


@pytest.mark.parametrize("asked", ["text", "image", "vector"])
def test_the_best_is_the_best_of_draws(asked: str, make: Callable[..., Index], vlm: BayesVLM, images: Features) -> None:
    """p_best against draws of the projections themselves, in float64."""
    index = make()
    query = {"text": draw(1, P_TEXT, 8), "image": draw(1, P, 8), "vector": torch.ones(16)}[asked]
    hits = index.search(query, k=5, tower=None if asked == "vector" else asked)
    hits = hits if isinstance(hits, Hits) else hits[0]
    generator = torch.Generator().manual_seed(11)
    draws = 20_000

    def embeddings(tower: str, features: Features, noise: Tensor) -> Tensor:  # [S, N, d]
        posterior = vlm.posterior[tower]
        shape = posterior.shape
        root = shape.spectrum.double().sqrt()
        return posterior.embed(features).mean.double() + torch.einsum(
            "d,sdp,np->snd", root, noise, posterior.whitened(features).double()
        )

    def noise(width: int) -> Tensor:
        return torch.randn(draws, 16, width, generator=generator, dtype=torch.float64)

    of_images = noise(P)
    items = embeddings("image", images[places(hits)], of_images)
    if asked == "vector":
        of_query = query.double().expand(draws, 1, 16)
    elif asked == "image":
        of_query = embeddings("image", query, of_images)
    else:
        of_query = embeddings("text", query, noise(P_TEXT))
    cosines = torch.nn.functional.cosine_similarity(items, of_query, dim=2)
    best = torch.bincount(cosines.argmax(dim=1), minlength=5) / draws
    assert (hits.p_best - best).abs().max() < 0.08, "512 draws, and the linearisation"
    assert abs(float(hits.p_best.sum()) - 1) < 1e-9
