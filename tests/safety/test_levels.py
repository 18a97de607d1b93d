"""Another level of the same calibration: what a new calibration on the same images would give."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bayesvlm import BayesVLM, BayesVLMError, Features
from bayesvlm.safety import PredictionSets, Selector


@pytest.fixture(scope="module")
def asked() -> tuple[BayesVLM, Features, Tensor, Features]:
    """A small model, images, the classes that it would draw for them, classes."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    vlm = BayesVLM.from_projections(draw(8, 16), draw(8, 12), logit_scale=2.0)
    vlm.fit([(Features(draw(200, 16)), Features(draw(200, 12)))], progress=False)
    images, classes = Features(draw(300, 16)), Features(draw(5, 12))
    labels = torch.multinomial(vlm.classify(images, classes).probs, 1, generator=generator)[:, 0]
    return vlm, images, labels, classes


@pytest.mark.parametrize("kind", ["lac", "aps", "raps"])
@pytest.mark.parametrize("by_class", [False, True])
def test_sets_at_another_miss_rate(asked, kind: str, by_class: bool) -> None:
    first = PredictionSets.calibrate(*asked, 0.1, kind, by_class=by_class)  # type: ignore[arg-type]
    other = PredictionSets.calibrate(*asked, 0.3, kind, by_class=by_class)  # type: ignore[arg-type]
    again = first.with_miss(0.3)
    assert (again.miss, again.kind, again.by_class, again.n) == (0.3, kind, by_class, 300)
    torch.testing.assert_close(again.thresholds, other.thresholds)
    assert first.miss == 0.1, "it is as it was"
    for miss, sentence in ((0.0, "must lie between 0 and 1"), (0.001, "needs 999 at least; calibrate on more")):
        with pytest.raises(BayesVLMError, match=sentence):
            first.with_miss(miss)


def test_a_selector_at_another_risk(asked) -> None:
    first, other = (Selector.calibrate(*asked, risk) for risk in (0.6, 0.8))
    again = first.with_risk(0.8)
    assert (again.risk, again.threshold, again.coverage) == (0.8, other.threshold, other.coverage)
    assert first.risk == 0.6, "it is as it was"
    with pytest.raises(BayesVLMError, match=r"with a confidence of 0\.95 needs .* at least; calibrate on more"):
        first.with_risk(0.001)
    with pytest.warns(UserWarning, match="so nothing is answered"):
        assert first.with_risk(0.05).coverage == 0
