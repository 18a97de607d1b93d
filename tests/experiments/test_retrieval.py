"""Decisions on made-up queries whose rates are known, and the mistakes that are made in texts."""

from __future__ import annotations

import pytest
import torch

from bayesvlm import BayesVLMError
from bayesvlm.experiments.caption_search import Searched
from bayesvlm.experiments.retrieval import asked, decisions, distorted
from bayesvlm.retrieval.matching import Asked


def queries(count: int, score: float, variance: float, seed: int) -> Asked:
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(2, count, generator=generator, dtype=torch.float64)
    return Asked(score + noise[0], variance + noise[1])


def test_each_sign_finds_what_it_shows() -> None:
    matched = queries(400, 0.0, 0.0, 0)
    others = {"low": queries(300, -6.0, 0.0, 1), "strange": queries(300, 0.0, 6.0, 2), "alike": queries(300, 0, 0, 3)}
    both = decisions(matched, others, error=0.1)
    assert both.queries == 200
    assert both.turned_away.value == pytest.approx(0.1, abs=0.03)
    assert both.answered["low"].value < 0.01
    assert both.answered["strange"].value < 0.01
    assert both.answered["alike"].value == pytest.approx(0.9, abs=0.05)
    flat = {kind: Asked(of.score, torch.zeros(len(of))) for kind, of in {"matched": matched, **others}.items()}
    cosine = decisions(flat.pop("matched"), flat, error=0.1)
    assert cosine.turned_away.value == pytest.approx(0.1, abs=0.03)
    assert cosine.answered["low"].value < 0.01
    assert cosine.answered["strange"].value > 0.8, "a cosine does not show it"
    with pytest.raises(BayesVLMError, match="3 queries have a match"):
        decisions(queries(3, 0.0, 0.0, 0), {})


def test_signs_are_taken_from_what_a_search_says() -> None:
    values = {"cosine": 0.3, "expected cosine": 0.2, "p_best": 0.8}
    doubts = {name: torch.tensor([value, -value]) for name, value in values.items()}
    searched = Searched(4, {}, {**doubts, "query variance": torch.tensor([0.1, 0.2])}, None, {})
    assert asked(searched).score.tolist() == pytest.approx([-0.2, 0.2])
    assert asked(searched).variance.tolist() == pytest.approx([0.1, 0.2])
    assert asked(searched, "cosine").score.tolist() == pytest.approx([-0.3, 0.3])
    assert asked(searched, "cosine").variance.tolist() == [0, 0]
    assert asked(searched, "unlabelled").score.tolist() == pytest.approx([-0.8, 0.8])
    with pytest.raises(BayesVLMError, match="signs"):
        asked(searched, "margin")


def test_mistakes_are_few_and_the_same_for_a_seed() -> None:
    texts = ["grinning face with smiling eyes", "ox", "mate", "a"]
    found = distorted(texts, "typos")
    assert found == distorted(texts, "typos")
    assert found != distorted(texts, "typos", seed=1)
    assert all(abs(len(new) - len(old)) <= max(1, len(old) // 8) for new, old in zip(found, texts, strict=True))
    assert found[0] != texts[0]
    mixed = distorted(texts, "shuffled letters")
    assert [sorted(new) for new in mixed] == [sorted(old.replace(" ", "")) for old in texts]
    with pytest.raises(BayesVLMError, match="how"):
        distorted(texts, "rot13")
