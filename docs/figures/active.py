"""The pictures and tables of docs/active.md: `python docs/figures/active.py adaptation/`.

Reads the runs that are there and does those that are missing, one task after the other. Several may be started at once
over one folder: `python docs/figures/active.py adaptation/ 1/2`, then `2/2`, and at last without a share.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bayesvlm.data.cache import FeatureCache
from bayesvlm.experiments.adaptation import Adaptation, Run, Schedule, advantage, curves
from bayesvlm.experiments.feature_store import FeatureStore
from bayesvlm.report import save_png
from bayesvlm.report.adaptation import curves_plot, quadrants, told_apart
from bayesvlm.vlm import BayesVLM
from bayesvlm_world.domains import KINDS, world_task

HERE = Path(__file__).parent
TASKS = (
    ("emoji-clip", "openmoji-black", KINDS),
    ("emoji-clip", "emojione-black", KINDS),
    ("emoji-clip", "openmoji-colour", KINDS),
    ("emoji-clip", "emojione-colour", KINDS),
    ("emoji-clip", "fluent-high-contrast", KINDS),
    ("emoji-siglip", "openmoji-black", KINDS),
    ("emoji-siglip", "emojione-black", KINDS),
    ("emoji-clip-colour", "openmoji-black", KINDS),
    ("emoji-clip-colour", "emojione-black", KINDS),
)
OTHER_TASKS = (
    # chosen before anything was run on them; the first of them then settled how few candidates EPIG may have
    ("emoji-clip", "openmoji-black", "people-body/kinds"),
    ("emoji-siglip", "openmoji-black", "objects/kinds"),
    ("emoji-clip-colour", "openmoji-black", "travel-places/kinds"),
    ("emoji-clip", "fluent-high-contrast", "symbols/kinds"),
    # chosen after that, and nothing was changed after they were run
    ("emoji-clip", "openmoji-colour", "objects/kinds"),
    ("emoji-siglip", "fluent-high-contrast", "people-body/kinds"),
    ("emoji-clip-colour", "emojione-black", "symbols/kinds"),
    ("emoji-clip", "openmoji-black", "travel-places/kinds"),
)
FEW = ("random", "targeted-random", "epig")
DRAWN = TASKS[0]
JUDGED = (50, 100, 200)
ORDER = ("epig", "targeted-bald", "targeted-entropy", "targeted-random", "bald", "entropy", "random")


def main() -> None:
    folder, share = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "1/1"
    turn, of = map(int, share.split("/"))
    numbers: dict[str, dict] = {}
    everything: dict[str, Sequence[Run]] = {}
    for model, target, classes in (TASKS + OTHER_TASKS)[turn - 1 :: of]:
        vlm = BayesVLM.from_pretrained(model, device="cpu")
        task = world_task(FeatureStore(vlm, FeatureCache()), target, classes)
        asked = Schedule() if classes == KINDS else Schedule(strategies=FEW)
        experiment = Adaptation(vlm, task, asked, folder / model / task.name)
        runs = experiment.run()
        name = titled((model, target, classes))
        numbers[name], everything[name] = points(runs), runs
        if of == 1 and (model, target, classes) == DRAWN:
            save_png(curves_plot(runs), HERE / "active-curves.png")
            answers = experiment.before_and_after(runs)
            save_png(quadrants(target, answers, len(task.classes)), HERE / "active-quadrants.png")
    if of > 1:
        return
    for over in ("random", "targeted-random"):
        for budget in JUDGED:
            for tasks in (TASKS, OTHER_TASKS):
                names = {name: everything[name] for name in map(titled, tasks)}
                print(table(names, over, budget))
    (HERE / "active.json").write_text(json.dumps(numbers, separators=(",", ":")) + "\n", encoding="utf-8")


def titled(task: tuple[str, str, str]) -> str:
    """What a row of a table is called."""
    model, target, classes = task
    return f"{model}, {target}" if classes == KINDS else f"{model}, {target}, {classes.removesuffix('/' + KINDS)}"


def points(runs: Sequence[Run]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Metric -> strategy -> labels -> mean over the seeds and its standard error."""
    return {
        metric: {
            strategy: {
                str(count): [round(found.value, 4), round(found.standard_error, 4)] for count, found in of.items()
            }
            for strategy, of in curves(runs, metric).items()
        }
        for metric in ("nlpd", "plain_nlpd", "balanced_accuracy", "accuracy", "ece")
    }


def table(everything: Mapping[str, Sequence[Run]], over: str, budget: int) -> str:
    """Nats gained over a strategy; bold beyond what the seeds can explain (paired t-test, p = 0.05)."""
    there = {run.strategy for runs in everything.values() for run in runs}
    shown = [strategy for strategy in ORDER if strategy != over and strategy in there]
    lines = [f"\nover {over}, {budget} labels\n", f"| | {' | '.join(shown)} |", "|---" * (1 + len(shown)) + "|"]
    for name, runs in everything.items():
        cells = []
        for strategy in shown:
            gap = advantage(runs, strategy, over, budget)
            text = f"{gap.value:+.3f} ± {gap.standard_error:.3f}"
            cells.append(f"**{text}**" if told_apart(gap, runs) else text)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
