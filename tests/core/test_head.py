"""Heads for fixed classes against `classify` and `plain`, which share no line with them, and by their operations."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bayesvlm import BayesVLM, BayesVLMError, Features, world
from bayesvlm.core.head import BayesHead, PlainHead
from bayesvlm.core.inverted import InvertedPosterior
from bayesvlm.core.posterior import Posterior
from bayesvlm.core.projection import Projection
from bayesvlm.testing.tiny import save_tiny_siglip

D, P_IMAGE, P_TEXT, PAIRS = 6, 11, 8, 60
SETTINGS = {"covariance": ["diagonal", "full"], "biased": [False, True], "residual": [False, True]}


class Case:
    """A fitted model, inputs and classes."""

    def __init__(self, loss: str, covariance: str, biased: bool, residual: bool, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(3)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

        def features(count: int) -> Features:
            return Features(draw(count, P_IMAGE), draw(count, D) if residual else None)

        extra: dict[str, Any] = {"image_bias": draw(D), "text_bias": draw(D)} if biased else {}
        extra |= {"logit_bias": -3.0} if loss == "sigmoid" else {}
        weights = draw(D, P_IMAGE), draw(D, P_TEXT)
        vlm = BayesVLM.from_projections(*weights, 2.5, loss=loss, **extra)  # type: ignore[arg-type]
        vlm.fit([(features(PAIRS), Features(draw(PAIRS, P_TEXT)))], progress=False)
        self.vlm = vlm.replace(covariance=covariance, tau=0.3, lam={"image": 0.2, "text": 0.5})  # type: ignore[arg-type]
        self.images, self.draw = features(9), draw

    def classes(self, count: int) -> Features:
        return Features(self.draw(count, P_TEXT))


class Counted(TorchDispatchMode):
    """Counts the operations that compute something; a view starts no kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def operations(head: BayesHead | PlainHead, features: Features, what: str = "probs") -> list[str]:
    with Counted() as counted, torch.inference_mode():
        getattr(head, what)(features.activations, features.residual)
    return counted.names


@pytest.mark.parametrize("loss", ["infonce", "sigmoid"])
@pytest.mark.parametrize("covariance", SETTINGS["covariance"])
@pytest.mark.parametrize("biased", SETTINGS["biased"])
@pytest.mark.parametrize("residual", SETTINGS["residual"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_heads_equal_classify_and_plain(
    loss: str, covariance: str, biased: bool, residual: bool, dtype: torch.dtype, tolerance: float
) -> None:
    case = Case(loss, covariance, biased, residual, dtype)
    vlm, images = case.vlm, case.images
    for count in (2, 40):  # folded into one product, and not
        classes = case.classes(count)
        expected, probs = vlm.classify(images, classes).probs, vlm.head(classes)(images)
        plain = vlm.plain(images, classes)
        assert probs.dtype == dtype
        assert float((expected - plain).abs().max()) > 0.01  # the posterior does something
        torch.testing.assert_close(probs, expected, rtol=0, atol=tolerance)
        torch.testing.assert_close(vlm.plain_head(classes)(images), plain, rtol=0, atol=tolerance)


@pytest.mark.filterwarnings("ignore:There is one class only")
@pytest.mark.parametrize("link", ["probit", "centred"])
@pytest.mark.parametrize("covariance", SETTINGS["covariance"])
@pytest.mark.parametrize("biased", SETTINGS["biased"])
@pytest.mark.parametrize("residual", SETTINGS["residual"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-6)])
def test_each_label_by_itself_equals_classify_and_the_plain_sigmoid(
    link: str, covariance: str, biased: bool, residual: bool, dtype: torch.dtype, tolerance: float
) -> None:
    case = Case("sigmoid", covariance, biased, residual, dtype)
    vlm, images = case.vlm.replace(link=link), case.images  # type: ignore[arg-type]
    for count in (1, 2, 40):
        classes = case.classes(count)
        expected = vlm.classify(images, classes).label_probs
        assert expected is not None
        found, plain = vlm.head(classes).label_probs(images), torch.sigmoid(vlm.logits(images, classes) - 3.0)
        assert found.dtype == dtype
        assert float((expected - plain).abs().max()) > 0.01
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
        torch.testing.assert_close(vlm.plain_head(classes).label_probs(images), plain, rtol=0, atol=tolerance)


def test_each_label_by_itself_on_a_trained_model() -> None:
    """float32, t = 50 and inputs the encoder makes."""
    vlm, drawn = BayesVLM.from_pretrained("emoji-siglip", device="cpu"), world.load("openmoji-black")
    classes = list(drawn.classes[:30])
    prediction = vlm.classify(drawn.images[:40], classes)
    head = vlm.head(classes)
    torch.testing.assert_close(head.label_probs(drawn.images[:40]), prediction.label_probs, rtol=0, atol=1e-6)
    torch.testing.assert_close(head(drawn.images[:40]), prediction.probs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("covariance", SETTINGS["covariance"])
def test_folding_and_the_centred_link(covariance: str) -> None:
    case = Case("infonce", covariance, True, True, torch.float64)
    vlm, classes = case.vlm.replace(link="centred"), case.classes(5)
    expected = vlm.classify(case.images, classes).probs
    assert float((expected - case.vlm.classify(case.images, classes).probs).abs().max()) > 1e-3
    for folded in (False, True):
        head = BayesHead(
            vlm.image, vlm.posterior["image"], vlm.embed_texts(classes), vlm.scale, "centred", folded=folded
        )
        torch.testing.assert_close(head(case.images), expected, rtol=0, atol=1e-10)


def test_a_posterior_given_by_its_inverses() -> None:
    case = Case("infonce", "diagonal", False, False, torch.float64)
    given = {}
    for tower, posterior in case.vlm.posterior.items():
        assert isinstance(posterior, Posterior)
        A = posterior.factors.A
        damped = math.sqrt(posterior.tau) * A + math.sqrt(posterior.lam) * torch.eye(len(A), dtype=A.dtype)
        given[tower] = InvertedPosterior(posterior.projection, damped.inverse(), posterior.shape.spectrum)
    own = case.vlm
    vlm = BayesVLM(own.image, own.text, own.logit_scale, own.logit_bias, own.loss).with_distributions(given)
    classes = case.classes(4)
    torch.testing.assert_close(vlm.head(classes)(case.images), case.vlm.head(classes)(case.images), rtol=0, atol=1e-10)


@pytest.mark.parametrize("covariance", SETTINGS["covariance"])
@pytest.mark.parametrize("residual", SETTINGS["residual"])
def test_the_posterior_costs_two_operations_or_three(covariance: str, residual: bool) -> None:
    case = Case("infonce", covariance, True, residual, torch.float32)
    for count, more in ((2, 2), (40, 3)):
        classes, one = case.classes(count), case.images[0]
        plain, bayes = (operations(head, one) for head in (case.vlm.plain_head(classes), case.vlm.head(classes)))
        assert len(plain) == 5 + residual, plain  # linear, norm, divide, multiply, softmax
        assert len(bayes) == len(plain) + more, bayes


@pytest.mark.parametrize("covariance", SETTINGS["covariance"])
@pytest.mark.parametrize("residual", SETTINGS["residual"])
def test_each_label_by_itself_costs_two_operations_more(covariance: str, residual: bool) -> None:
    case = Case("sigmoid", covariance, True, residual, torch.float32)
    for count in (2, 40):
        head, one = case.vlm.head(case.classes(count)), case.images[0]
        by_itself, among = operations(head, one, "sigmoid_probs"), operations(head, one)
        assert len(by_itself) == len(among) + 2, by_itself  # the length of g: a product and a root


def test_images_are_encoded(tmp_path: Path) -> None:
    vlm = BayesVLM.from_pretrained(save_tiny_siglip(tmp_path), device="cpu")
    images = list(torch.randint(0, 256, (6, 3, 40, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)))
    texts = ["a dog", "a cat", "the sun", "a tree", "a house", "a car"]
    vlm.fit([(images, texts)], progress=False)
    expected = vlm.classify(images, texts[:3]).probs
    torch.testing.assert_close(vlm.head(texts[:3])(images), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(vlm.plain_head(texts[:3])(images), vlm.plain(images, texts[:3]), rtol=0, atol=1e-5)


def test_averaged_images_have_no_head() -> None:
    """Their bias has another weight, which a head would leave out."""
    weight, classes = torch.eye(3), torch.eye(3)
    averaged = Features(torch.ones(2, 3), constant=torch.full((2, 1), 0.5))
    assert PlainHead(Projection(weight), classes, 2.0)(averaged).shape == (2, 3)
    with pytest.raises(BayesVLMError, match="These features are averages"):
        PlainHead(Projection(weight, torch.ones(3)), classes, 2.0)(averaged)


def test_what_it_refuses() -> None:
    case = Case("infonce", "diagonal", False, False, torch.float64)
    classes = case.classes(3)
    with pytest.raises(BayesVLMError, match="use classify for link='mc'"):
        case.vlm.replace(link="mc").head(classes)
    with pytest.raises(BayesVLMError, match="needs a damped posterior"):
        case.vlm.replace(structure="exact").head(classes)
    with pytest.raises(BayesVLMError, match="no posterior yet"):
        case.vlm.without_posterior().head(classes)
    head = case.vlm.head(classes)
    with pytest.raises(BayesVLMError, match="activations are 4 wide"):
        head(Features(torch.randn(2, 4)))
    with pytest.raises(BayesVLMError, match="residual is 4 wide"):
        head(Features(case.images.activations, torch.randn(9, 4)))
    with pytest.raises(BayesVLMError, match=r"needs \[C, 6\]"):
        BayesHead(
            case.vlm.image,
            case.vlm.posterior["image"],
            replace(case.vlm.embed_texts(classes), mean=torch.ones(3, 5)),
            2.0,
        )
    with pytest.raises(BayesVLMError, match="class list is empty"):
        case.vlm.plain_head([])
    for softmax in (head, case.vlm.plain_head(classes)):
        with pytest.raises(BayesVLMError, match=r"trained with a softmax.*call head\(inputs\)"):
            softmax.label_probs(case.images)
        with pytest.raises(BayesVLMError, match="trained with a softmax"):
            softmax.sigmoid_probs(case.images.activations)
