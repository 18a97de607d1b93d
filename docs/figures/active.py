"""The pictures and tables of docs/active.md: `python docs/figures/active.py adaptation/`.

Reads the runs of `bayesvlm adapt MODEL -o adaptation/MODEL --target ...` and does those that are missing: half an hour
on two cores for emoji-clip with all five styles, a quarter for each of the others with two.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bayesvlm.active import STRATEGIES
from bayesvlm.data.cache import FeatureCache
from bayesvlm.experiments.adaptation import Adaptation, Run, advantage, curves
from bayesvlm.experiments.encoding import Encoder
from bayesvlm.experiments.styles import STYLES, world_task
from bayesvlm.report import save_png
from bayesvlm.report.adaptation import curves_plot, quadrants
from bayesvlm.vlm import BayesVLM

HERE = Path(__file__).parent
TARGETS = {
    "emoji-clip": STYLES,
    "emoji-clip-colour": ("openmoji-black", "emojione-black"),
    "emoji-siglip": ("openmoji-black", "emojione-black"),
}
DRAWN = "emoji-clip", "openmoji-black"
JUDGED = (50, 100, 200)


def main() -> None:
    numbers: dict[str, dict[str, dict]] = {}
    for model, targets in TARGETS.items():
        vlm = BayesVLM.from_pretrained(model, device="cpu")
        encoder = Encoder(vlm, FeatureCache())
        for target in targets:
            task = world_task(encoder, target)
            experiment = Adaptation(vlm, task, out=Path(sys.argv[1]) / model / target)
            runs = experiment.run()
            numbers.setdefault(model, {})[target] = points(runs)
            print(table(f"`{model}`, {target}", runs))
            if (model, target) == DRAWN:
                save_png(curves_plot(runs), HERE / "active-curves.png")
                answers = experiment.before_and_after(runs)
                save_png(quadrants(target, answers, len(task.classes)), HERE / "active-quadrants.png")
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


def table(title: str, runs: Sequence[Run]) -> str:
    """NLPD, and nats gained over random and over targeted random."""
    nlpd, right = curves(runs), curves(runs, "balanced_accuracy")
    over = " | ".join(f"{name}, {count}" for name in ("over random", "over targeted random") for count in JUDGED)
    lines = [f"\n{title}\n", f"| strategy | NLPD, 200 | balanced accuracy %, 200 | {over} |", "|---" * 9 + "|"]
    for strategy in STRATEGIES:
        cells = [f"{nlpd[strategy][200].value:.3f} ± {nlpd[strategy][200].standard_error:.3f}"]
        cells.append(f"{100 * right[strategy][200].value:.1f} ± {100 * right[strategy][200].standard_error:.1f}")
        for other in ("random", "targeted-random"):
            for count in JUDGED:
                gap = None if strategy == other else advantage(runs, strategy, other, count)
                cells.append("" if gap is None else f"{gap.value:+.3f} ± {gap.standard_error:.3f}")
        lines.append(f"| {strategy} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
