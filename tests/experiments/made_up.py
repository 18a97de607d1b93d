"""Results made up for tests: every figure is what a test says it is."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesvlm.experiments.failures import Failures, Ranking
from bayesvlm.experiments.outside import Outside


def outside(seed: int = 0, familiar: int = 200) -> Outside:
    """Scores made up: "good" tells strangers apart, MCM a little, "flat" not at all."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(count: int, shift: float) -> dict[str, Tensor]:
        noise = torch.randn(count, 2, generator=generator, dtype=torch.float64)
        good, mcm = (noise + torch.tensor([shift, 0.3 * shift])).unbind(dim=1)
        return {"MCM": mcm, "good": good, "flat": torch.zeros(count, dtype=torch.float64)}

    scores = {"home": drawn(familiar, 0.0), "drift": drawn(90, -0.5), "strangers": drawn(120, -3.0)}
    inputs = {"model": {"name": "a model"}, "data": {"name": "home"}}
    facts = {"classes": 3, "skipped": {}, "known_all_the_same": {}, "all_equal": ["flat"]}
    kinds = {"home": "familiar", "drift": "shifted", "strangers": "unknown"}
    return Outside(inputs, facts, kinds, scores, torch.arange(0, familiar, 2), 0.05)  # type: ignore[arg-type]


def failures() -> Failures:
    generator = torch.Generator().manual_seed(0)
    correct = torch.rand(300, generator=generator) < 0.7
    noise = torch.randn(300, generator=generator, dtype=torch.float64)
    rankings = {"plain": Ranking(noise - correct.double(), correct), "Bayes": Ranking(noise - 3 * correct, correct)}
    inputs = {"model": {"name": "a model"}, "data": {"name": "home"}}
    return Failures(inputs, {"left_out": {"ICPE": "there are no images"}}, rankings)
