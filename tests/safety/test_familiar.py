"""Familiarity: every score against its definition, through the model, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from bayesvlm import BayesVLM, BayesVLMError, Features
from bayesvlm.core.errors import BayesVLMWarning
from bayesvlm.core.predict import entropy
from bayesvlm.evaluation import auroc
from bayesvlm.safety import SCORES, familiarities, familiarity, mine_negatives
from bayesvlm.safety import familiar as module
from bayesvlm.testing.tiny import save_tiny_clip, save_tiny_siglip
from safety.known import C, D, P, draw, fitted, known_classes, known_images, unknown_images

WITHOUT = [name for name in SCORES if name != "neglabel"]


def plain_cosines(vlm: BayesVLM, images: Features, texts: Features) -> Tensor:
    g, h = vlm.image.embed(images), vlm.text.embed(texts)
    return (g @ h.T) / g.norm(dim=1, keepdim=True) / h.norm(dim=1)


@pytest.mark.parametrize("loss", ["infonce", "sigmoid"])
@pytest.mark.parametrize(
    "settings", [{}, {"covariance": "full"}, {"structure": "exact"}, {"link": "centred"}, {"link": "mc"}]
)
def test_every_score_is_its_definition(loss: Any, settings: dict[str, Any]) -> None:
    vlm, classes, (images, _) = fitted(loss, **settings), known_classes(), known_images(30)
    negatives = Features(draw(torch.Generator().manual_seed(1), 9, P))
    found = familiarities(vlm, images, classes, SCORES, negatives=negatives)
    prediction, cosines = vlm.classify(images, classes), plain_cosines(vlm, images, classes)
    at, aq = vlm.embed_images(images).covariance, vlm.embed_texts(classes).covariance
    shared = settings.get("structure") != "exact"
    of_text = aq.scale if shared else aq.trace()  # type: ignore[union-attr]
    expected = {
        "msp": prediction.probs.amax(dim=1),
        "entropy": -prediction.entropy,
        "epistemic": -prediction.epistemic,
        "mcm": torch.softmax(cosines, dim=1).amax(dim=1),
        "max_cosine": cosines.amax(dim=1),
        "energy": (vlm.scale * cosines).logsumexp(dim=1),
        "neglabel": torch.softmax(torch.cat([cosines, plain_cosines(vlm, images, negatives)], 1) / 0.01, 1)[:, :C].sum(
            dim=1
        ),
        "variance": -(at.scale if shared else at.trace()),  # type: ignore[union-attr]
        "text_variance": -of_text[prediction.labels],
    }
    for name in SCORES:
        assert found[name].dtype == torch.float64
        torch.testing.assert_close(found[name], expected[name], msg=lambda text, name=name: f"{name}: {text}")
        alone = familiarity(vlm, images, classes, name, negatives=negatives)
        torch.testing.assert_close(alone, found[name])


def test_a_text_variance_is_the_scale_of_the_shared_shape() -> None:
    vlm, classes, (images, _) = fitted(), known_classes(), known_images(5)
    a = vlm.embed_images(images).covariance.shared()
    assert a is not None
    torch.testing.assert_close(familiarity(vlm, images, classes, "variance"), -a.scale)


@pytest.mark.parametrize("predictive", ["plain", 0.5, 3])
def test_of_the_plain_model_and_with_a_temperature_no_posterior_is_needed(predictive: Any) -> None:
    vlm, classes, (images, _) = fitted(), known_classes(), known_images(30)
    bare, T = vlm.without_posterior(), 1.0 if predictive == "plain" else predictive
    probs = torch.softmax(vlm.logits(images, classes) / T, dim=1)
    asked = ["msp", "entropy", "mcm", "max_cosine", "energy"]
    found = familiarities(bare, images, classes, asked, predictive=predictive)
    torch.testing.assert_close(found["msp"], probs.amax(dim=1))
    torch.testing.assert_close(found["entropy"], -entropy(probs))
    torch.testing.assert_close(found["energy"], T * (vlm.logits(images, classes) / T).logsumexp(dim=1))
    for name in ("mcm", "max_cosine"):
        torch.testing.assert_close(found[name], familiarity(bare, images, classes, name))  # bayes by default


def test_single_precision_is_near_and_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    vlm, classes, (images, _) = fitted(), known_classes(), known_images(200)
    double = familiarities(vlm, images, classes, WITHOUT)
    monkeypatch.setattr(module, "row_blocks", lambda rows, columns: [slice(s, s + 7) for s in range(0, rows, 7)])
    blocks = familiarities(vlm, images, classes, WITHOUT)
    for name in WITHOUT:
        torch.testing.assert_close(blocks[name], double[name])
    assert all(len(value) == 0 for value in familiarities(vlm, images[:0], classes, WITHOUT).values())
    single = BayesVLM.from_projections(vlm.image.weight.float(), vlm.text.weight.float(), vlm.logit_scale)
    single = single.with_factors(vlm.factors).replace(tau=0.1)
    for name, value in familiarities(single, images, classes, ["msp", "entropy", "mcm", "energy"]).items():
        torch.testing.assert_close(value, double[name], atol=2e-5, rtol=1e-5)


def test_unknown_images_are_less_familiar() -> None:
    """AUROC over 400 images of each kind, far above the standard error of 0.02 around a half."""
    vlm, classes, (images, _) = fitted(), known_classes(), known_images(400, noise=0.4)
    inside = torch.arange(800) < 400
    for name in ("msp", "entropy", "mcm", "max_cosine", "energy", "epistemic"):
        found = torch.cat([familiarity(vlm, x, classes, name) for x in (images, unknown_images(400))])
        assert float(auroc(found, inside)) > 0.7, name


@pytest.mark.parametrize("name", ["Max Cosine", "max-cosine", " MAX_COSINE "])
def test_names_in_any_spelling(name: str) -> None:
    vlm, classes, (images, _) = fitted(), known_classes(), known_images(5)
    assert list(familiarities(vlm, images, classes, [name])) == ["max_cosine"]


def test_words_images_and_negatives(tmp_path: Path) -> None:
    vlm = BayesVLM.from_pretrained(save_tiny_siglip(tmp_path), device="cpu")
    generator = torch.Generator().manual_seed(0)
    images = list(torch.randint(0, 256, (6, 3, 40, 40), generator=generator).to(torch.uint8))
    names = {"dog": ["a dog", "the dog"], "cat": "a cat"}
    words = ["the sun", "a cloud", "the sea", "the sun"]
    found = familiarity(vlm, images, names, "neglabel", negatives=words, templates="{c}!")
    features = vlm.class_features(words[:3], "{c}!")
    expected = familiarity(
        vlm, images, vlm.class_features(names, "{c}!"), "neglabel", negatives=features, batch_size=2, progress=False
    )
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    for negatives, said in (
        (["The Dog", "x", " A CAT "], "The classes have 'The Dog', ' A CAT ' of the negatives, too"),
        (vlm.class_features(["the sea", "a cat"], "{c}!"), "negative 1 is class 1"),
        ([], "negatives is empty"),
        (["", " "], "negatives is empty"),
        ("a cat", "negatives='a cat'"),
        ([1, 2], "it must be a list of words"),
        (None, "score='neglabel' needs negatives="),
        (features[:0], "negatives is empty"),
    ):
        with pytest.raises(BayesVLMError, match=said):
            familiarity(vlm, images, names, "neglabel", negatives=negatives, templates="{c}!")
    with pytest.raises(BayesVLMError, match="'a cat' is class 1 to this model"):
        familiarity(vlm, images, vlm.class_features(["a dog", "a cat"]), "neglabel", negatives=["the sea", "a cat"])


def test_negatives_are_mined_from_words(tmp_path: Path) -> None:
    vlm = BayesVLM.from_pretrained(save_tiny_clip(tmp_path), device="cpu")
    names, words = ["a dog", "a cat"], ["a dog", "the sun", "the sea", "a house", "trees"]
    mined = mine_negatives(vlm, words, names, share=0.5)
    unit = functional.normalize(vlm.text.embed(vlm.text_features(words[1:])), dim=1)
    known = functional.normalize(vlm.text.embed(vlm.text_features(names)), dim=1)
    likeness = (unit @ known.T).double().quantile(0.95, dim=1)
    assert mined == [words[1:][k] for k in likeness.argsort().tolist()[:2]]
    with pytest.raises(BayesVLMError, match="All of the words are classes"):
        mine_negatives(vlm, names, names)


def test_what_it_refuses() -> None:
    vlm, classes, (images, _) = fitted(), known_classes(), known_images(5)
    with pytest.raises(BayesVLMError, match="score='odin' is not known; use 'msp'"):
        familiarity(vlm, images, classes, "odin")
    with pytest.raises(BayesVLMError, match="score=3 is not known"):
        familiarity(vlm, images, classes, 3)  # type: ignore[arg-type]
    for predictive in ("map", None, True):
        with pytest.raises(BayesVLMError, match="predictive="):
            familiarity(vlm, images, classes, predictive=predictive)  # type: ignore[arg-type]
    for predictive in (0.0, -1.0, float("nan")):
        with pytest.raises(BayesVLMError, match=r"predictive=.*finite number above zero"):
            familiarity(vlm, images, classes, predictive=predictive)
    for name in ("epistemic", "variance", "text_variance"):
        with pytest.raises(BayesVLMError, match=f"score='{name}' is made of the posterior, and predictive='plain'"):
            familiarity(vlm, images, classes, name, predictive="plain")
        with pytest.raises(BayesVLMError, match=f"score='{name}'.* this model has none; fit or load one"):
            familiarity(vlm.without_posterior(), images, classes, name)
    with pytest.raises(BayesVLMError, match="give a list of names"):
        familiarities(vlm, images, classes, "msp")
    with pytest.raises(BayesVLMError, match="class list is empty"):
        familiarity(vlm, images, classes[:0])
    with pytest.raises(BayesVLMError, match="templates have no use"):
        familiarity(vlm, images, classes, templates="a {c}")
    with pytest.warns(BayesVLMWarning, match="one class only"):
        assert familiarity(vlm, images, classes[:1], "msp").tolist() == [1.0] * 5
    familiarity(vlm, images, classes[:1], "max_cosine")  # a warning would be an error


def test_models_with_variances_of_their_own() -> None:
    from bayesvlm.core.predicted import PredictedVariance

    identity = torch.eye(D, dtype=torch.float64)
    spread = PredictedVariance(identity, D)
    vlm = BayesVLM.from_projections(identity, identity, 2.0).with_distributions({"image": spread, "text": spread})
    generator = torch.Generator().manual_seed(0)
    images, texts = (Features(draw(generator, n, D), log_variance=draw(generator, n, D) - 2) for n in (12, 4))
    found = familiarities(vlm, images, texts, WITHOUT)
    assert images.log_variance is not None
    torch.testing.assert_close(found["variance"], -images.log_variance.exp().sum(dim=1))
    torch.testing.assert_close(found["entropy"], -vlm.classify(images, texts).entropy)
