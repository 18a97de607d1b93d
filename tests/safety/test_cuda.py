"""On a GPU: the same scores, detections, sets and selections as on the processor."""

from __future__ import annotations

import pytest
import torch

from bayesvlm import Features
from bayesvlm.safety import SCORES, Detector, PredictionSets, Selector, familiarities
from safety.known import P, draw, fitted, known_classes, known_images

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_everything_is_as_on_the_processor() -> None:
    (images, labels), (new, _), classes = known_images(300, seed=1), known_images(80, seed=2), known_classes()
    negatives = Features(draw(torch.Generator().manual_seed(1), 9, P))
    vlm = fitted()
    vlm.tune(*known_images(60, seed=9), classes, progress=False)
    there = vlm.to("cuda")
    mine = familiarities(vlm, new, classes, SCORES, negatives=negatives)
    for name, value in familiarities(there, new.to("cuda"), classes, SCORES, negatives=negatives).items():
        torch.testing.assert_close(
            value.cpu(), mine[name], atol=1e-8, rtol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )
    for predictive in ("bayes", "plain"):
        one, other = (Detector.calibrate(m, images, classes, predictive=predictive) for m in (vlm, there))
        torch.testing.assert_close(one(new).p_value, other(new).p_value)
        for kind in ("lac", "aps", "raps"):
            sets = [
                PredictionSets.calibrate(m, images, labels, classes, kind=kind, predictive=predictive)
                for m in (vlm, there)
            ]
            assert torch.equal(sets[0](new), sets[1](new).cpu())
        picks = [Selector.calibrate(m, images, labels, classes, 0.3, predictive=predictive)(new) for m in (vlm, there)]
        assert torch.equal(picks[0].labels, picks[1].labels)
        assert torch.equal(picks[0].answered, picks[1].answered)
    with pytest.raises(ValueError, match="tau was tuned on"):
        Detector.calibrate(there, known_images(60, seed=9)[0], classes)
