"""The pictures and tables of docs/active.md: `python docs/figures/active.py adaptation/`.

Reads the runs of `bayesvlm adapt MODEL -o adaptation/MODEL --target ...` and does those that are missing: half an hour
on two cores for emoji-clip with all five styles, a quarter for each of the others with two.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bayesvlm.data.cache import FeatureCache
from bayesvlm.experiments.adaptation import Adaptation, Run, advantage, curves
from bayesvlm.experiments.encoding import Encoder
from bayesvlm.experiments.styles import world_task
from bayesvlm.report import save_png
from bayesvlm.report.adaptation import curves_plot, quadrants, told_apart
from bayesvlm.vlm import BayesVLM

HERE = Path(__file__).parent
TARGETS = {
    "emoji-clip": ("openmoji-black", "emojione-black", "openmoji-colour", "emojione-colour", "fluent-high-contrast"),
    "emoji-siglip": ("openmoji-black", "emojione-black"),
    "emoji-clip-colour": ("openmoji-black", "emojione-black"),
}
DRAWN = "emoji-clip", "openmoji-black"
JUDGED = (50, 100, 200)
ORDER = ("epig", "targeted-bald", "targeted-entropy", "targeted-random", "bald", "entropy", "random")


def main() -> None:
    numbers: dict[str, dict[str, dict]] = {}
    everything: dict[str, Sequence[Run]] = {}
    for model, targets in TARGETS.items():
        vlm = BayesVLM.from_pretrained(model, device="cpu")
        encoder = Encoder(vlm, FeatureCache())
        for target in targets:
            task = world_task(encoder, target)
            experiment = Adaptation(vlm, task, out=Path(sys.argv[1]) / model / target)
            runs = experiment.run()
            numbers.setdefault(model, {})[target] = points(runs)
            everything[f"{model}, {target}"] = runs
            if (model, target) == DRAWN:
                save_png(curves_plot(runs), HERE / "active-curves.png")
                answers = experiment.before_and_after(runs)
                save_png(quadrants(target, answers, len(task.classes)), HERE / "active-quadrants.png")
    for over in ("random", "targeted-random"):
        for budget in JUDGED:
            print(table(everything, over, budget))
    (HERE / "active.json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


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
    shown = [strategy for strategy in ORDER if strategy != over]
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
