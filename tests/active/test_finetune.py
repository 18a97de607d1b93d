"""Fine-tuning the image projection: it learns, keeps the best, and brings a posterior that fits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from core.references import assert_close, normal

from bayesvlm import BayesVLM, BayesVLMError, Features
from bayesvlm.active import finetune
from bayesvlm.core.curvature import infonce_curvature, sigmoid_curvature
from bayesvlm.evaluation import nlpd

CLASSES = 3


@pytest.fixture(scope="module")
def vlm() -> BayesVLM:
    made = BayesVLM.from_projections(normal(5, 8, seed=0).float(), normal(5, 7, seed=1).float(), logit_scale=1.5)
    return made.fit([(Features(normal(60, 8, seed=2)), Features(normal(60, 7, seed=3)))])


@pytest.fixture(scope="module")
def classes() -> Features:
    return Features(normal(CLASSES, 7, seed=6))


def drawings(count: int, seed: int) -> tuple[Features, torch.Tensor]:
    """Inputs whose class can be read from them."""
    labels = torch.arange(count) % CLASSES
    return Features(normal(CLASSES, 8, seed=4)[labels] + 0.5 * normal(count, 8, seed=seed)), labels


def test_it_learns_and_the_given_model_stays(vlm: BayesVLM, classes: Features) -> None:
    (images, labels), validation, (test, truth) = drawings(30, 1), drawings(30, 2), drawings(90, 3)
    before = vlm.image.weight.clone()
    adapted = finetune(vlm, images, labels, classes, validation, lr=1e-2, epochs=30)
    assert torch.equal(vlm.image.weight, before)
    assert torch.equal(adapted.text.weight, vlm.text.weight)
    was, now = (nlpd(model.classify(test, classes).probs, truth).value for model in (vlm, adapted))
    assert now < was - 0.3
    again = finetune(vlm, images, labels, classes, validation, lr=1e-2, epochs=30)
    assert torch.equal(again.image.weight, adapted.image.weight)


def test_the_posterior_fits_the_new_weights(vlm: BayesVLM, classes: Features) -> None:
    images, labels = drawings(30, 1)
    adapted = finetune(vlm, images, labels, classes, lr=1e-2, epochs=5)
    assert adapted.posterior["image"].projection is adapted.image
    phi = images.activations
    assert_close(adapted.factors["image"].A_sum - vlm.factors["image"].A_sum, phi.T @ phi, 1e-5)
    B = infonce_curvature(adapted.image.embed(images), adapted.text.embed(classes), vlm.scale)
    assert_close(adapted.factors["image"].B_sum - vlm.factors["image"].B_sum, B, 1e-5)
    assert adapted.factors["image"].n == vlm.factors["image"].n + 30
    assert adapted.factors["text"] is vlm.factors["text"]
    assert adapted.lam["image"] != vlm.lam["image"], "the evidence of the new weights"
    assert adapted.lam["text"] == vlm.lam["text"]


def test_the_best_epoch_is_kept_even_if_it_is_none(vlm: BayesVLM, classes: Features) -> None:
    images, labels = drawings(30, 1)
    good = finetune(vlm, images, labels, classes, lr=1e-2, epochs=30)
    wrong = (labels + 1) % CLASSES
    kept = finetune(good, images, wrong, classes, (images, labels), lr=1e-2, epochs=5)
    assert torch.equal(kept.image.weight, good.image.weight)
    spoilt = finetune(good, images, wrong, classes, lr=1e-2, epochs=5)
    assert not torch.equal(spoilt.image.weight, good.image.weight)


def test_a_bias_and_a_residual(classes: Features) -> None:
    bias, extra = normal(5, seed=9).float(), normal(90, 5, seed=8).float()
    made = BayesVLM.from_projections(
        normal(5, 8, seed=0).float(), normal(5, 7, seed=1).float(), logit_scale=1.5, image_bias=bias
    )
    fitted = made.fit([(Features(normal(60, 8, seed=2), extra[:60]), Features(normal(60, 7, seed=3)))])
    activations, labels = drawings(90, 1)
    images = Features(activations.activations, extra)
    adapted = finetune(fitted, images, labels, classes, lr=1e-2, epochs=20)
    assert adapted.image.bias is not None
    assert not torch.equal(adapted.image.bias, bias)
    was, now = (nlpd(model.classify(images, classes).probs, labels).value for model in (fitted, adapted))
    assert now < was - 0.3


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"labels": [0, 1]}, "There are 30 inputs and 2 labels"),
        ({"lr": 0.0}, "lr=0.0; it must be a finite number above zero"),
        ({"weight_decay": -1.0}, "it must be a finite number of at least 0"),
        ({"epochs": 0}, "epochs is 0; expected a whole number"),
        ({"classes": Features(torch.ones(1, 7)), "labels": [0] * 30}, "one class only, and nothing to tell apart"),
    ],
)
def test_what_is_refused(vlm: BayesVLM, classes: Features, change: dict, sentence: str) -> None:
    images, labels = drawings(30, 1)
    with pytest.raises(BayesVLMError, match=sentence):
        finetune(vlm, images, **{"labels": labels, "classes": classes, **change})


def test_a_given_lam_stays_given(vlm: BayesVLM, classes: Features) -> None:
    images, labels = drawings(30, 1)
    given = {"image": 3.0, "text": 5.0}
    assert finetune(vlm.replace(lam=given), images, labels, classes, lr=1e-2, epochs=2).lam == given


def test_it_trains_where_gradients_are_off(vlm: BayesVLM, classes: Features) -> None:
    images, labels = drawings(30, 1)
    with torch.no_grad():
        adapted = finetune(vlm, images, labels, classes, lr=1e-2, epochs=2)
    assert not torch.equal(adapted.image.weight, vlm.image.weight)


def test_of_siglip_a_labelled_image_weighs_what_a_pair_weighs(classes: Features) -> None:
    made = BayesVLM.from_projections(
        normal(5, 8, seed=0).float(), normal(5, 7, seed=1).float(), 1.5, logit_bias=-2.0, loss="sigmoid"
    )
    fitted = made.fit([(Features(normal(60, 8, seed=2)), Features(normal(60, 7, seed=3)))])
    images, labels = drawings(30, 1)
    adapted = finetune(fitted, images, labels, classes, lr=1e-2, epochs=2)
    added = adapted.factors["image"].B_sum - fitted.factors["image"].B_sum
    expected = sigmoid_curvature(adapted.image.embed(images), fitted.text.embed(classes), fitted.scale, -2.0)
    assert_close(added, expected, 1e-6)
    per_pair = float(fitted.factors["image"].B_sum.trace()) / 60
    assert 0.2 < float(added.trace()) / 30 / per_pair < 5


def test_a_fine_tuned_model_is_saved_with_its_projection(tmp_path: Path) -> None:
    vlm = BayesVLM.from_pretrained("emoji-clip", device="cpu")
    images = Features(normal(6, 256, seed=0).float())
    classes = vlm.text_features(["cat", "dog"])
    adapted = finetune(vlm, images, [0, 1, 0, 1, 0, 1], classes, epochs=3, lr=1e-2)
    again = BayesVLM.from_pretrained(adapted.save_pretrained(tmp_path / "adapted"), device="cpu")
    assert torch.equal(again.image.weight, adapted.image.weight)
    assert torch.equal(again.classify(images, classes).probs, adapted.classify(images, classes).probs)
    assert not torch.allclose(again.plain(images, classes), vlm.plain(images, classes))
    assert again.adapter is not None, "it encodes images too"
    assert again.image.residual is vlm.image.residual, "what the tower adds is known as before"
    assert torch.equal(adapted.with_posterior(adapted.saved()).image.weight, adapted.image.weight)
    assert "was fine-tuned" in (tmp_path / "adapted/README.md").read_text()
    once_more = BayesVLM.from_pretrained(again.save_pretrained(tmp_path / "again"), device="cpu")
    assert torch.equal(once_more.image.weight, adapted.image.weight)
    with pytest.raises(BayesVLMError, match="estimated for other weights"):
        BayesVLM.from_pretrained(tmp_path / "adapted", model="emoji-clip-colour", device="cpu")
    vlm.save_pretrained(tmp_path / "adapted")
    assert torch.equal(BayesVLM.from_pretrained(tmp_path / "adapted", device="cpu").image.weight, vlm.image.weight)
    (tmp_path / "again/projections.safetensors").unlink()
    with pytest.raises(BayesVLMError, match=r"after it was fine-tuned, and .*projections.safetensors is missing"):
        BayesVLM.from_pretrained(tmp_path / "again", device="cpu")
