"""The table of the README from results of `bayesvlm eval`: `python docs/figures/zero_shot.py results/`.

One row a model and method, in each cell top-1 / NLPD / ECE; bold as in the tables of `bayesvlm eval`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bayesvlm.experiments.methods import METHODS
from bayesvlm.experiments.zero_shot import Result, place

SETS = {
    "new-drawing": "new drawing",
    "emojione-colour": "EmojiOne colour",
    "openmoji-colour": "OpenMoji colour",
    "fluent-high-contrast": "high contrast",
    "emojione-black": "EmojiOne black",
    "openmoji-black": "OpenMoji black",
    "unseen-concepts": "unseen concepts",
}


def main() -> None:
    folder = Path(sys.argv[1])
    print("| | " + " | ".join(SETS.values()) + " |")
    print("|---" * (1 + len(SETS)) + "|")
    for model in ("emoji-clip", "emoji-siglip"):
        results = [Result.load(place(folder, model, name)) for name in SETS]
        for method in METHODS:
            print(f"| {model}, {method} | " + " | ".join(cell(result, method) for result in results) + " |")


def cell(result: Result, method: str) -> str:
    found = result.scores[method]
    texts = {
        "top1": f"{100 * found.top1.value:.1f}",
        "nlpd": f"{found.nlpd.value:.2f}",
        "ece": f"{100 * found.ece:.1f}",
    }
    return " / ".join(f"**{text}**" if method in result.winners(metric) else text for metric, text in texts.items())


if __name__ == "__main__":
    main()
