"""When labels stop paying: what the last ones gained, and what the next ones are expected to tell."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from core.references import normal
from scipy.stats import ttest_1samp

from bayesvlm import BayesVLM, BayesVLMError, Features
from bayesvlm.active import Epig, Gain, Outlook, outlook, stopped_paying
from bayesvlm.active.acquisition import epig
from bayesvlm.active.drawing import drawn_probabilities
from bayesvlm.active.rounds import FILE, Rounds
from bayesvlm.core.draws import Held

N = 400


@pytest.fixture(scope="module")
def vlm() -> BayesVLM:
    made = BayesVLM.from_projections(normal(5, 8, seed=0), normal(5, 7, seed=1), logit_scale=1.5)
    return made.fit([(Features(normal(60, 8, seed=2)), Features(normal(60, 7, seed=3)))]).replace(tau=0.5)


def losses(gained: float, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Before and after; the differences have exactly this mean and a standard deviation of 0.1."""
    before, noise = 1 + normal(N, seed=0).abs(), normal(N, seed=seed)
    return before, before - gained - 0.1 * (noise - noise.mean()) / noise.std()


@pytest.mark.parametrize("gained", [-0.02, 0.0, 0.007, 0.009, 0.011, 0.013, 0.05])
@pytest.mark.parametrize("labels", [50, 100])
def test_a_gain_is_judged_as_scipy_judges_it(gained: float, labels: int) -> None:
    before, after = losses(gained)
    gain, differences = Gain(labels, before, after), (before - after).numpy()
    assert gain.nats.value == pytest.approx(gained, abs=1e-9)
    assert gain.nats.standard_error == pytest.approx(0.1 / math.sqrt(N), rel=1e-6)
    assert gain.paid == (ttest_1samp(differences, 0, alternative="greater").pvalue < 0.05)
    for worth in (0.01, 0.02, 0.05):
        wanted = worth * labels / 100
        assert gain.below(worth) == (ttest_1samp(differences, wanted, alternative="less").pvalue < 0.05)


def test_both_must_say_so() -> None:
    nothing, much = Gain(100, *losses(0.0)), Gain(100, *losses(0.1))
    small, large = Outlook(first=1e-3, now=1e-4), Outlook(first=1e-3, now=9e-4)
    assert stopped_paying([nothing], small)
    assert stopped_paying([Gain(5, *losses(0.0)), nothing], small), "the last round alone is too small to tell"
    assert not stopped_paying([Gain(5, *losses(0.0))], small)
    assert not stopped_paying([much], small)
    assert not stopped_paying([nothing], large)
    assert stopped_paying([nothing], large, worth=0.1)
    assert small.share == pytest.approx(0.1)
    assert Outlook(first=-1e-9, now=0.0).share == 0


def test_the_outlook_is_the_information_that_many_draws_find(vlm: BayesVLM) -> None:
    pool, target, classes = (
        Features(normal(60, 8, seed=4)),
        Features(normal(12, 8, seed=5)),
        Features(normal(4, 7, seed=6)),
    )
    options = Epig(targets=12, candidates=60)
    both = Features.concatenate([target, pool])
    many = drawn_probabilities(vlm.posterior["image"], both, Held(vlm.text), classes, vlm.scale, 20_000, 99)
    best = epig(many[:, 12:], many[:, :12]).topk(20).values.mean()
    found = torch.tensor([
        outlook(vlm, pool, target, classes, options=options, draws=400, seed=seed).first for seed in range(8)
    ])  # fmt: skip
    assert float(found.mean()) == pytest.approx(float(best), rel=0.1), "without the bias, which is some 0.3 of it"
    few = drawn_probabilities(vlm.posterior["image"], both, Held(vlm.text), classes, vlm.scale, 100, 1)
    assert float(epig(few[:, 12:], few[:, :12]).topk(20).values.mean()) > 1.1 * float(best)


def test_labels_lower_the_outlook_and_no_labels_do_not(vlm: BayesVLM) -> None:
    pool, target, classes = (
        Features(normal(60, 8, seed=4)),
        Features(normal(12, 8, seed=5)),
        Features(normal(4, 7, seed=6)),
    )
    labels = torch.arange(40) % 4
    every = Epig(candidates=60)
    few, many = (outlook(vlm, pool, target, classes, (pool[:n], labels[:n]), options=every) for n in (5, 40))
    assert few.first == many.first
    assert many.now < 0.8 * few.now < 0.9 * few.first
    nothing = outlook(vlm, pool, target, classes, options=every)
    assert nothing.first == nothing.now
    everything = outlook(vlm, pool[:10], target, classes, (pool[:10], labels[:10]))
    assert everything.now == 0, "nothing is left"
    left_out = outlook(vlm, pool, target, classes, (pool[:5], labels[:5]), exclude=range(5, 60))
    with pytest.raises(BayesVLMError, match="All 60 images of the pool are excluded"):
        outlook(vlm, pool, target, classes, exclude=range(60))
    assert left_out.now == 0


def test_rounds_are_kept_and_compared(tmp_path: Path) -> None:
    before, after = losses(0.05)
    first = Rounds(("a",) * N, {0: before, 50: after})
    first.save(tmp_path)
    kept = Rounds.load(tmp_path)
    torch.testing.assert_close(kept.losses[50], after, rtol=0, atol=1e-5)
    later = Rounds(("a",) * N, {0: before + 1e-6, 120: after - 0.01}).after(kept, tmp_path)
    assert list(later.losses) == [0, 50, 120]
    assert [gain.labels for gain in later.gains()] == [70, 120]
    assert later.gains()[0].nats.value == pytest.approx(0.01, abs=1e-5)
    assert later.gains()[1].nats.value == pytest.approx(0.06, abs=1e-5)
    with pytest.raises(BayesVLMError, match="learnt from 50 labels and there are 50 now"):
        first.after(kept, tmp_path)
    with pytest.raises(BayesVLMError, match="was made from another model"):
        Rounds(("a",) * N, {0: before + 0.1, 120: after}).after(kept, tmp_path)
    with pytest.raises(BayesVLMError, match="other validation images"):
        Rounds(("b",) * N, {0: before, 120: after}).after(kept, tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"schema": 2, "images": [], "rounds": []}', '{"schema": 1}'])
def test_rounds_that_are_damaged(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(BayesVLMError, match="is damaged, or of another version"):
        Rounds.load(tmp_path)
    with pytest.raises(BayesVLMError, match=r"has no rounds.json: name a folder"):
        Rounds.load(tmp_path / "nowhere")


def test_what_is_refused(vlm: BayesVLM) -> None:
    with pytest.raises(BayesVLMError, match="labels is 0"):
        Gain(0, *losses(0.0))
    features = Features(normal(4, 8, seed=4))
    with pytest.raises(BayesVLMError, match="draws=1; give at least 2"):
        outlook(vlm, features, features, Features(normal(4, 7, seed=6)), draws=1)
