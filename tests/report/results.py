"""Results made up for the report's tests: every figure is what a test says it is."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from bayesvlm.evaluation import Outcomes
from bayesvlm.experiments.scoring import Scores
from bayesvlm.experiments.zero_shot import Result


def scores(seed: int, sharpness: float = 3.0, shift: float = 0.0, n: int = 200, classes: int = 7) -> Scores:
    """Predictions that know something of their labels; `shift` adds as much to every NLL."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=torch.Generator().manual_seed(0))
    logits = torch.randn(n, classes, generator=generator, dtype=torch.float64)
    logits[torch.arange(n), labels] += 1
    found = Outcomes.of(torch.softmax(sharpness * logits, dim=1), labels)
    columns = {name: getattr(found, name) for name in found.__dataclass_fields__}
    return Scores(Outcomes(**{**columns, "nll": found.nll + shift}))


def result(data: str, methods: Mapping[str, Scores], model: str = "some-model", classes: int = 7) -> Result:
    inputs = {"model": {"name": model}, "data": {"name": data, "template": "{c}"}}
    return Result(inputs, {"images": 200, "classes": classes}, methods)
