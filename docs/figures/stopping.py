"""The tables of "When to stop" in docs/active.md: `python docs/figures/stopping.py stopping.json`.

Rounds of 50 labels by EPIG with an oracle, to 200, one seed: what every round gained on the validation images, NLPD on
the target, what a label was expected to tell, and where either rule and both together stop. A task that is in the file
already is not done again. The last lines are the standard errors of gains in docs/your-photos.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bayesvlm.active import Gain, Outlook, finetune, outlook, rank
from bayesvlm.active.stopping import WORTH
from bayesvlm.data.cache import FeatureCache
from bayesvlm.evaluation.outcomes import negative_log_likelihood
from bayesvlm.experiments.adaptation import Labelled
from bayesvlm.experiments.feature_store import FeatureStore
from bayesvlm.vlm import BayesVLM
from bayesvlm_world.domains import KINDS, world_task

TASKS = (
    ("emoji-clip", "openmoji-black", KINDS),
    ("emoji-clip", "emojione-black", KINDS),
    ("emoji-clip", "openmoji-colour", KINDS),
    ("emoji-clip", "fluent-high-contrast", KINDS),
    ("emoji-siglip", "openmoji-black", KINDS),
    ("emoji-clip-colour", "openmoji-black", KINDS),
    ("emoji-clip", "openmoji-black", "people-body/kinds"),
    ("emoji-clip-colour", "emojione-black", "symbols/kinds"),
    ("emoji-clip", "openmoji-black", "animals-nature"),
)
ROUNDS = (0, 50, 100, 150, 200)


def main() -> None:
    path = Path(sys.argv[1])
    found = json.loads(path.read_text()) if path.exists() else {}
    for model, target, classes in TASKS:
        name = ", ".join((model, target, *([] if classes == KINDS else [classes])))
        if name not in found:
            found[name] = rounds(model, target, classes)
            path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(row(name, found[name]), flush=True)
    for images in (1000, 100):
        print(f"{images} validation images: standard error of the gain", precision(found, images))


def rounds(model: str, target: str, classes: str) -> dict[str, Any]:
    """Per round: NLPD on the target, what was gained on the validation images, what a label is expected to tell."""
    vlm = BayesVLM.from_pretrained(model, device="cpu")
    task = world_task(FeatureStore(vlm, FeatureCache()), target, classes)
    pool, aimed, held = task.pool, task.target, task.validation

    def losses(of: BayesVLM, on: Labelled) -> torch.Tensor:  # [N]
        return negative_log_likelihood(of.classify(on.features, task.classes).probs.cpu(), on.labels)

    picks = rank(vlm, pool.features, aimed.features, task.classes, "epig", ROUNDS[-1], pool.labels).indices
    nlpd, checked, steps = {}, {}, {}
    for count in ROUNDS:
        images, labels = pool.features[picks[:count]], pool.labels[picks[:count]]
        adapted = vlm
        if count:
            adapted = finetune(vlm, images, labels, task.classes, (held.features, held.labels))
            expected = outlook(vlm, pool.features, aimed.features, task.classes, (images, labels))
        nlpd[count], checked[count] = float(losses(adapted, aimed).mean()), losses(adapted, held)
        if count:
            gains = [Gain(count - then, checked[then], checked[count]) for then in reversed(ROUNDS) if then < count]
            steps[count] = {
                "gain": [gains[0].nats.value, gains[0].nats.standard_error],
                "measured": any(gain.below() for gain in gains),
                "outlook": [expected.first, expected.now],
            }
    return {"images": len(held), "nlpd": nlpd, "rounds": steps}


def row(name: str, found: dict[str, Any]) -> str:
    """A line of the table."""
    nlpd = {int(count): value for count, value in found["nlpd"].items()}
    steps = {int(count): step for count, step in found["rounds"].items()}
    cells = [name, " ".join(f"{value:.2f}" for value in nlpd.values())]
    cells.append(" ".join("{:+.3f} ± {:.3f}".format(*step["gain"]).replace("+-", "-") for step in steps.values()))
    cells.append(" ".join(f"{100 * step['outlook'][1]:.3f}" for step in steps.values()))
    rules = {
        "measured": lambda step: step["measured"],
        "expected": lambda step: Outlook(*step["outlook"]).below(WORTH),
        "both": lambda step: step["measured"] and Outlook(*step["outlook"]).below(WORTH),
    }
    for says in rules.values():
        stop = next((count for count, step in steps.items() if says(step)), None)
        cells.append("-" if stop is None else f"{stop}: {nlpd[stop] - nlpd[ROUNDS[-1]]:+.3f}")
    return "| " + " | ".join(cells) + " |"


def precision(found: Mapping[str, Mapping[str, Any]], images: int) -> str:
    """Of what a round gained on so many validation images: the median of the tasks with eight kinds as classes."""
    errors: dict[bool, list[float]] = {True: [], False: []}  # by whether it is the first round
    for model, target, classes in TASKS:
        if classes == KINDS:
            task = found[f"{model}, {target}"]
            for count, step in task["rounds"].items():
                errors[int(count) == ROUNDS[1]].append(step["gain"][1] * (task["images"] / images) ** 0.5)
    return f"{median(errors[True]):.3f} in the first round, {median(errors[False]):.3f} in the later ones"


if __name__ == "__main__":
    main()
