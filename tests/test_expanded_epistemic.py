"""Epistemic without draws on the embedded world: it ranks images as draws do, and says where it cannot."""

from __future__ import annotations

import pytest
from scipy.stats import spearmanr

from bayesvlm import BayesVLM, BayesVLMError, world


def test_it_ranks_images_as_draws_do() -> None:
    vlm, split = BayesVLM.from_pretrained("emoji-clip", device="cpu"), world.load("openmoji-black").group("food-drink")
    images, classes = vlm.image_features(split.images, progress=False), vlm.class_features(list(split.classes))
    drawn = vlm.classify(images, classes).monte_carlo.epistemic
    found = vlm.expanded_epistemic(images, classes)
    correlation = float(spearmanr(found, drawn).statistic)
    print(
        f"rank correlation {correlation:.3f}, mean {float(found.mean() / drawn.double().mean()):.2f} of the drawn one"
    )
    assert correlation > 0.9
    assert 0.8 < float(found.mean() / drawn.double().mean()) < 1.4


def test_it_needs_a_damped_posterior() -> None:
    vlm = BayesVLM.from_pretrained("emoji-clip", device="cpu")
    images, classes = vlm.image_features(world.load("flags").images[:3]), ["dog", "cat"]
    with pytest.raises(BayesVLMError, match="structure='damped'"):
        vlm.replace(structure="exact").expanded_epistemic(images, classes)
    with pytest.raises(BayesVLMError, match="no posterior"):
        vlm.without_posterior().expanded_epistemic(images, classes)
