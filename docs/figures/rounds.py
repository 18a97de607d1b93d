"""The figures of "Rounds" in docs/active.md: `python docs/figures/rounds.py rounds.json`, a minute or two per run.

What the second round is to start from, and what choosing tau anew is worth: NLPD on the target after 100 labels by EPIG
with an oracle, then 100 more without one, each chosen three ways, and fine-tuning on all 200 from the first posterior.
A target and seed that is in the file already is not done again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesvlm.active import finetune, rank
from bayesvlm.data.cache import FeatureCache
from bayesvlm.evaluation import Estimate
from bayesvlm.evaluation.outcomes import negative_log_likelihood
from bayesvlm.experiments.feature_store import FeatureStore
from bayesvlm.vlm import BayesVLM
from bayesvlm_world.domains import world_task

MODEL = "emoji-clip"
TARGETS = ("openmoji-black", "emojione-black", "fluent-high-contrast")
SEEDS = (0, 1, 2)
LABELS = 100  # per round
WAYS = {
    "labelled": "the first posterior, `--labelled`",
    "fine-tuned": "the fine-tuned one, `--exclude`",
    "excluded": "the first posterior, `--exclude`",
}
STATES = ("no label", "no label, tuned", "one round", "one round, tuned", *WAYS)


def main() -> None:
    path = Path(sys.argv[1])
    found = json.loads(path.read_text()) if path.exists() else {}
    for seed in SEEDS:
        for target in TARGETS:
            name = f"{target}, seed {seed}"
            if name not in found:
                found[name] = rounds(target, seed)
                path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(name, json.dumps(found[name]), flush=True)
    print("| | " + " | ".join(TARGETS) + " |\n" + "|---" * (1 + len(TARGETS)) + "|")
    runs = {target: [found[f"{target}, seed {seed}"] for seed in SEEDS] for target in TARGETS}
    for state in STATES:
        cells = [over_seeds([run["nlpd"][state] for run in runs[target]]) for target in TARGETS]
        print(f"| {WAYS.get(state, state)} | " + " | ".join(cells) + " |")
    for way in list(WAYS)[1:]:
        gains = [over_seeds([run["nlpd"][way] - run["nlpd"]["labelled"] for run in runs[target]]) for target in TARGETS]
        print(f"| what `--labelled` gains over {WAYS[way]} | " + " | ".join(gains) + " |")


def rounds(target: str, seed: int) -> dict[str, Any]:
    """NLPD on the target of every state, and by how much `--labelled` is below the other ways on the same images."""
    vlm = BayesVLM.from_pretrained(MODEL, device="cpu")
    task = world_task(FeatureStore(vlm, FeatureCache()), target)
    pool, aimed, held, classes = task.pool, task.target, task.validation, task.classes
    checked = (held.features, held.labels)

    def losses(of: BayesVLM) -> Tensor:  # [N]
        return negative_log_likelihood(of.classify(aimed.features, classes).probs.cpu(), aimed.labels)

    def trained(start: BayesVLM, picks: Tensor) -> BayesVLM:
        return finetune(start, pool.features[picks], pool.labels[picks], classes, checked, seed=seed)

    def tuned(of: BayesVLM) -> BayesVLM:
        return of.copy().tune(*checked, classes, progress=False)

    def chosen(start: BayesVLM, **known: Any) -> Tensor:
        return rank(start, pool.features, aimed.features, classes, "epig", LABELS, seed=seed, **known).indices

    first = chosen(vlm, pool_labels=pool.labels)
    after = trained(vlm, first)
    second = {
        "labelled": chosen(vlm, labelled=(pool.features[first], pool.labels[first])),
        "fine-tuned": chosen(after, exclude=first),
        "excluded": chosen(vlm, exclude=first),
    }
    found = {"no label": losses(vlm), "one round": losses(after)}
    found["no label, tuned"] = losses(tuned(vlm))
    found["one round, tuned"] = losses(tuned(trained(tuned(vlm), first)))
    found |= {way: losses(trained(vlm, torch.cat([first, picks]))) for way, picks in second.items()}
    return {
        "nlpd": {state: float(found[state].mean()) for state in STATES},
        "labelled_gains_over": {way: vars(Estimate.of(found[way] - found["labelled"])) for way in list(WAYS)[1:]},
    }


def over_seeds(values: list[float]) -> str:
    """Mean and standard error."""
    mean = Estimate.of(torch.tensor(values))
    return f"{mean.value:.3f} ± {mean.standard_error:.3f}"


if __name__ == "__main__":
    main()
