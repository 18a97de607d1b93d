"""Does EPIG choose as well by cosines drawn without their embeddings? `python docs/figures/held.py held.json`.

The learning curves of docs/active.md once with the draws that EPIG makes (`HeldCosines`), once with whole embeddings
drawn, which is what it did before, the same seeds: target images, fine-tuning and its noise are the same for both. A
minute per pair of runs, about; one that is in the file already is not done again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from bayesvlm.core.held import HeldCosines
from bayesvlm.data.cache import FeatureCache
from bayesvlm.evaluation import Estimate
from bayesvlm.experiments.adaptation import Adaptation, Run, Schedule, Task
from bayesvlm.experiments.feature_store import FeatureStore
from bayesvlm.vlm import BayesVLM
from bayesvlm_world.domains import KINDS, world_task

TASKS = (
    ("emoji-clip", "openmoji-black", KINDS),
    ("emoji-clip", "fluent-high-contrast", KINDS),
    ("emoji-siglip", "openmoji-black", "objects/kinds"),
    ("emoji-clip-colour", "openmoji-black", "travel-places/kinds"),
)
SEEDS = (0, 1, 2, 3, 4)
BUDGETS = (50, 100, 200)
WAYS = ("embeddings", "held")
METRICS = ("accuracy", "nlpd")


def main() -> None:
    path = Path(sys.argv[1])
    found: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    for task in TASKS:
        for seed in SEEDS:
            name = f"{', '.join(task)}, seed {seed}"
            if name not in found:
                found[name] = both_ways(task, seed)
                path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(name, json.dumps(found[name]), flush=True)
    print("\n| | labels | " + " | ".join(f"{m}, {w}" for m in METRICS for w in (*WAYS, "difference")) + " |")
    print("|---" * (2 + len(METRICS) * (1 + len(WAYS))) + "|")
    for task in TASKS:
        runs = [found[f"{', '.join(task)}, seed {seed}"] for seed in SEEDS]
        for budget in map(str, BUDGETS):
            cells = []
            for metric in METRICS:
                points = {way: [run[way]["points"][budget][metric] for run in runs] for way in WAYS}
                cells += [over_seeds(points[way]) for way in WAYS]
                cells.append(over_seeds([b - a for a, b in zip(*points.values(), strict=True)], sign="+"))
            print(f"| {', '.join(task)} | {budget} | {' | '.join(cells)} |")
    for task in TASKS:
        runs = [found[f"{', '.join(task)}, seed {seed}"] for seed in SEEDS]
        common = sum(run["picks in common"] for run in runs) / len(runs)
        times = {way: sum(sum(run[way]["seconds"].values()) for run in runs) / len(runs) for way in WAYS}
        print(f"{', '.join(task)}: {common:.0f} picks in common; seconds of choosing: {times}")


def both_ways(task: tuple[str, str, str], seed: int) -> dict[str, Any]:
    """What the choice of either way is worth, and how long it took."""
    model, target, classes = task
    vlm = BayesVLM.from_pretrained(model, device="cpu")
    asked = world_task(FeatureStore(vlm, FeatureCache()), target, classes)
    found: dict[str, Any] = {}
    picks = []
    for way in WAYS:
        with whole_embeddings(way == "embeddings"):
            run = curve(vlm, asked, seed)
        points = {str(budget): {name: round(of[name], 5) for name in METRICS} for budget, of in run.points.items()}
        found[way] = {"points": points, "seconds": {name: round(each, 2) for name, each in run.seconds.items()}}
        picks.append(set(run.picks))
    return {**found, "picks in common": len(picks[0] & picks[1])}


def curve(vlm: BayesVLM, task: Task, seed: int) -> Run:
    """One run of EPIG."""
    schedule = Schedule(strategies=("epig",), budgets=BUDGETS, seeds=(seed,))
    (run,) = Adaptation(vlm, task, schedule).run(progress=False)
    return run


@contextmanager
def whole_embeddings(wanted: bool) -> Iterator[None]:
    """Inside, whole embeddings are drawn however few the classes are."""
    rule = HeldCosines.pay
    HeldCosines.pay = staticmethod(lambda directions, width: False) if wanted else rule  # type: ignore[method-assign]
    try:
        yield
    finally:
        HeldCosines.pay = staticmethod(rule)  # type: ignore[method-assign]


def over_seeds(values: list[float], sign: str = "") -> str:
    estimate = Estimate.of(torch.tensor(values, dtype=torch.float64))
    return f"{estimate.value:{sign}.3f} ± {estimate.standard_error:.3f}"


if __name__ == "__main__":
    main()
