"""Six methods on the same features: what each of them predicts, whole or in chunks."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from bayesvlm import BayesVLM, BayesVLMError, Features
from bayesvlm.core.blocks import row_blocks
from bayesvlm.evaluation import Estimate, Outcomes, fit_temperature, raised_temperature, vote
from bayesvlm.experiments import methods as module
from bayesvlm.experiments.methods import METHODS, SINGLE, Methods, losses


def world(seed: int, noise: float, loss: str = "infonce") -> tuple[BayesVLM, Features, Tensor, Features]:
    """A fitted model without an encoder, and labelled features that carry so much noise."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    bias = {"logit_bias": -2.0} if loss == "sigmoid" else {}
    vlm = BayesVLM.from_projections(draw(6, 10), draw(6, 8), 2.0, loss=loss, **bias)
    vlm.fit([(Features(draw(50, 10)), Features(draw(50, 8)))], progress=False)
    classes = Features(draw(4, 8))
    labels = torch.arange(40) % 4
    solve = torch.linalg.pinv(vlm.image.weight) @ vlm.text.weight  # activations that land on their class
    images = classes.activations[labels] @ solve.T + noise * draw(40, 10)
    return vlm, Features(images), labels, classes


def by_hand(vlm: BayesVLM, images: Features, classes: Features, temperature: float, raised: float) -> dict[str, Tensor]:
    logits = vlm.logits(images, classes)
    return {
        "plain": torch.softmax(logits, dim=1),
        "temperature": torch.softmax(logits / temperature, dim=1),
        "raised temperature": torch.softmax(logits / raised, dim=1),
        "Bayes": vlm.classify(images, classes).probs,
    }


def views_of(images: Features, count: int) -> Features:
    """Each image and noisy copies of it, one after the other."""
    noise = torch.randn(
        len(images), count, images.activations.shape[1], generator=torch.Generator().manual_seed(7), dtype=torch.float64
    )
    noise[:, 0] = 0
    return Features((images.activations[:, None] + noise).flatten(0, 1))


@pytest.mark.parametrize("loss", ["infonce", "sigmoid"])
@pytest.mark.parametrize("noise", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("seed", range(3))
def test_temperature_is_never_worse_where_it_was_found(seed: int, noise: float, loss: str) -> None:
    vlm, images, labels, classes = world(seed, noise, loss)
    methods = Methods.tuned(vlm, images, labels, classes)
    assert methods.temperature is not None
    scores = methods.scores(images, labels, classes)
    assert tuple(scores) == SINGLE
    assert scores["temperature"].nlpd.value <= scores["plain"].nlpd.value + 1e-12
    assert scores["temperature"].top1 == scores["plain"].top1, "dividing logits changes no order"
    for factor in (0.9, 1.1):
        other = Methods(vlm, min(100.0, max(0.01, methods.temperature * factor)), raised=1.0)
        assert (
            scores["temperature"].nlpd.value <= other.scores(images, labels, classes)["temperature"].nlpd.value + 1e-12
        )


@pytest.mark.parametrize("loss", ["infonce", "sigmoid"])
@pytest.mark.parametrize("noise", [0.1, 1.0, 5.0])
def test_the_raised_temperature_costs_one_standard_error_where_it_was_found(noise: float, loss: str) -> None:
    vlm, images, labels, classes = world(0, noise, loss)
    methods = Methods.tuned(vlm, images, labels, classes)
    assert methods.temperature is not None
    assert methods.raised is not None
    scores = methods.scores(images, labels, classes)
    assert methods.raised >= methods.temperature
    assert methods.raised == pytest.approx(raised_temperature(vlm.logits(images, classes), labels).value, rel=1e-9)
    best, raised = scores["temperature"], scores["raised temperature"]
    limit = best.nlpd.value + Estimate.of(best.nll).standard_error
    assert raised.nlpd.value <= limit + 1e-9
    assert methods.raised == 100.0 or raised.nlpd.value == pytest.approx(limit, rel=1e-9)
    assert raised.top1 == scores["plain"].top1


def test_the_temperature_is_exact_for_single_precision_too() -> None:
    vlm, images, labels, classes = world(0, 1.0)
    single = BayesVLM.from_projections(vlm.image.weight.float(), vlm.text.weight.float(), vlm.logit_scale)
    found = Methods.tuned(single, images.to(torch.float32), labels, classes.to(torch.float32)).temperature
    assert found == pytest.approx(fit_temperature(vlm.logits(images, classes), labels).value, rel=1e-5)


def test_what_each_method_predicts() -> None:
    vlm, images, labels, classes = world(0, 1.0)
    scores = Methods(vlm, 2.5, raised=4.0).scores(images, labels, classes)
    for name, probs in by_hand(vlm, images, classes, 2.5, 4.0).items():
        expected = Outcomes.of(probs, labels)
        torch.testing.assert_close(scores[name].nll, expected.nll)
        assert torch.equal(scores[name].correct, expected.correct)
    assert not torch.allclose(scores["plain"].nll, scores["Bayes"].nll, atol=1e-3)


@pytest.mark.parametrize(("name", "single"), [("TTA", "plain"), ("Bayes + TTA", "Bayes")])
def test_views_vote(name: str, single: str) -> None:
    vlm, images, labels, classes = world(2, 2.0)
    views = views_of(images, 8)
    found = Methods(vlm, keep=0.5).scores(images, labels, classes, [name], views)[name]
    probs = by_hand(vlm, views, classes, 1.0, 1.0)[single].unflatten(0, (40, 8))
    expected = vote(probs, 0.5)
    torch.testing.assert_close(found.nll, Outcomes.of(expected.probs, labels).nll)
    assert torch.equal(found.correct, expected.labels == labels)
    assert found.ece == pytest.approx(float(Outcomes.of(expected.probs, labels).ece())), "of the mean, not of the vote"


@pytest.mark.parametrize("numbers", [1, 50, 10**9])
def test_chunks_change_nothing(numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    vlm, images, labels, classes = world(3, 1.0)
    views = views_of(images, 4)
    whole = Methods(vlm, 1.5, raised=2.5).scores(images, labels, classes, METHODS, views)
    monkeypatch.setattr(module, "row_blocks", partial(row_blocks, numbers=numbers))
    parts = Methods(vlm, 1.5, raised=2.5).scores(images, labels, classes, METHODS, views)
    for name in METHODS:
        torch.testing.assert_close(parts[name].nll, whole[name].nll, rtol=1e-9, atol=1e-9)
        assert torch.equal(parts[name].correct, whole[name].correct)


def test_what_a_paired_test_compares() -> None:
    vlm, images, labels, classes = world(1, 1.0)
    scores = Methods(vlm, 0.7, raised=0.9).scores(images, labels, classes)
    assert torch.equal(losses(scores, "nlpd")["Bayes"], scores["Bayes"].nll)
    assert losses(scores, "top1")["plain"].mean() == pytest.approx(1 - scores["plain"].top1.value)


def test_what_is_missing_is_said() -> None:
    vlm, images, labels, classes = world(0, 1.0)
    with pytest.raises(BayesVLMError, match="No temperature was found; tune on a validation set"):
        Methods(vlm).scores(images, labels, classes)
    with pytest.raises(BayesVLMError, match=r"No temperature was found; tune on .* or leave 'raised temperature' out"):
        Methods(vlm, 2.0).scores(images, labels, classes)
    with pytest.raises(BayesVLMError, match="The method 'TTA' needs views"):
        Methods(vlm).scores(images, labels, classes, ["TTA"])
    with pytest.raises(BayesVLMError, match="method='best' is not known; use 'plain', "):
        Methods(vlm).scores(images, labels, classes, ["best"])  # type: ignore[list-item]
