"""The most confident views vote: against a transcription of the words, view by view."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor

from bayesvlm import BayesVLMError
from bayesvlm.evaluation import vote


def drawn(seed: int, n: int = 20, views: int = 16, classes: int = 5) -> Tensor:
    logits = 2 * torch.randn(n, views, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.softmax(logits, dim=2)


@pytest.mark.parametrize("keep", [0.05, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_against_the_words(seed: int, keep: float) -> None:
    probs = drawn(seed)
    found = vote(probs, keep)
    for row, views in enumerate(probs):
        entropies = [-(view * view.log()).sum().item() for view in views]
        surest = sorted(range(len(views)), key=lambda v: entropies[v])[: max(1, int(keep * len(views)))]
        mean = torch.stack([views[v] for v in surest]).mean(dim=0)
        torch.testing.assert_close(found.probs[row], mean)
        ballots = Counter(int(views[v].argmax()) for v in surest)
        most = max(ballots.values())
        expected = max((label for label, count in ballots.items() if count == most), key=lambda label: mean[label])
        assert int(found.labels[row]) == expected


def test_the_vote_may_differ_from_the_mean() -> None:
    views = torch.tensor([[[0.51, 0.49, 0.0], [0.51, 0.49, 0.0], [0.0, 1.0, 0.0]]])
    found = vote(views, keep=1.0)
    assert int(found.labels[0]) == 0, "two of three"
    assert int(found.probs[0].argmax()) == 1


def test_the_order_of_views_and_a_certain_view_are_no_matter() -> None:
    probs = drawn(1)
    probs[:, 3] = torch.eye(5, dtype=torch.float64)[2]
    found, shuffled = vote(probs), vote(probs[:, torch.randperm(16, generator=torch.Generator().manual_seed(0))])
    torch.testing.assert_close(found.probs, shuffled.probs)
    assert torch.equal(found.labels, shuffled.labels)
    assert not bool(found.probs.isnan().any())


def test_one_view_is_itself() -> None:
    probs = drawn(2, views=1)
    torch.testing.assert_close(vote(probs).probs, probs[:, 0])


@pytest.mark.parametrize("keep", [0.0, -0.1, 1.1, float("nan")])
def test_a_share_is_a_share(keep: float) -> None:
    with pytest.raises(BayesVLMError, match=r"keep=.*share of views that vote"):
        vote(drawn(0), keep)


def test_shapes() -> None:
    with pytest.raises(BayesVLMError, match=r"probs has shape \[20, 5\]; it must be \[N, V, C\]"):
        vote(drawn(0)[:, 0])
