"""The pictures of the README and docs/world.md: runs the demo on the embedded models, keeps its plots and numbers."""

from __future__ import annotations

import json
from pathlib import Path

from bayesvlm.embedded import MODELS, embedded_posterior
from bayesvlm.experiments.demo import run_demo
from bayesvlm.report import save_png
from bayesvlm.report.demo import figures
from bayesvlm.vlm import BayesVLM

HERE = Path(__file__).parent
METHODS = ("plain", "temperature", "raised temperature", "Bayes")
SHOWN = ("scores", "reliability", "risk-coverage", "uncertainty-by-style", "corruption")


def main() -> None:
    numbers = {}
    for name in filter(embedded_posterior, MODELS):
        demo, _ = run_demo(BayesVLM.from_pretrained(name, device="cpu"), name, print)
        numbers[name] = {key: value for key, value in demo.numbers().items() if key != "seconds"}
        if name == "emoji-clip":
            drawn = figures(demo)
            for plot in SHOWN:
                save_png(drawn[plot], HERE / f"world-{plot}.png")
    (HERE / "world.json").write_text(json.dumps(numbers, separators=(",", ":")) + "\n", encoding="utf-8")
    print(markdown(numbers))


def markdown(numbers: dict[str, dict]) -> str:
    """The table of docs/world.md: plain / temperature / raised temperature / Bayes."""
    lines = []
    for name, found in numbers.items():
        lines += [f"\n`{name}` (tau {found['tau']:.3g}, T {found['temperature']:.3g})\n"]
        lines += ["| set | images | top-1 % | NLPD | ECE % |", "|---|---|---|---|---|"]
        for test, of in found["sets"].items():
            if of["scores"]:
                methods = [of["scores"][method] for method in METHODS]
                cells = [
                    " / ".join(f"{100 * scores['top1']:.1f}" for scores in methods),
                    " / ".join(f"{scores['nlpd']:.2f}" for scores in methods),
                    " / ".join(f"{100 * scores['ece']:.1f}" for scores in methods),
                ]
                lines.append(f"| {test} | {of['images']:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
