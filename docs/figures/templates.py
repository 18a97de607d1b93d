"""What prompt ensembles do: one template against all, for plain and Bayes, and to the variance of the text embeddings.

python docs/figures/templates.py     # some 13 minutes of processor time; CIFAR-10 by world/recipes/cifar10 first
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from torch import Tensor

from bayesvlm.data import resolve
from bayesvlm.data.cache import FeatureCache
from bayesvlm.data.labelled import KNOWN, LabelledSet, set_prompts
from bayesvlm.data.labelled.templates import ALL, chosen_templates
from bayesvlm.experiments.feature_store import FeatureStore
from bayesvlm.experiments.methods import Methods
from bayesvlm.prompts import ClassPrompts, Template
from bayesvlm.vlm import BayesVLM
from bayesvlm_world import Split
from bayesvlm_world.splits import DATA, TEMPLATES

HERE = Path(__file__).parent
MODELS = ("emoji-clip", "emoji-siglip")
METHODS = ("plain", "temperature", "Bayes", "Bayes, tuned so")
SETS = ("new-drawing", "openmoji-colour", "fluent-high-contrast", "openmoji-black", "unseen-concepts", "cifar10")
KEYWORDS = 6  # captions of a concept that are averaged, at most
IMAGENET = KNOWN["imagenet"].templates


def asked(data: LabelledSet) -> dict[str, list[ClassPrompts]]:
    """The prompts that are compared on a set, each way with the single prompts that it is made of."""
    every = chosen_templates(data, ALL)
    ways: dict[str, list[Template]] = {"one": every[:1], f"all {len(every)}": every}
    found = {
        said: [set_prompts(data, each) for each in (templates, *([one] for one in templates))]
        for said, templates in ways.items()
    }
    if not isinstance(data, Split):
        found["ImageNet's 80"] = [set_prompts(data, each) for each in (IMAGENET, *([one] for one in IMAGENET))]
    else:
        captions = _captions()  # a name alone, and with a keyword, as it was trained on
        synonyms = [captions[name] for name in data.classes]
        found["with keywords"] = [
            ClassPrompts.filled(data.classes, of, None)
            for of in (synonyms, *([[each[min(n, len(each) - 1)]] for each in synonyms] for n in range(KEYWORDS)))
        ]
    return found


def _captions() -> dict[str, list[str]]:
    with (DATA / "emoji/concepts.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    named = {
        row["label"]: [word for word in row["keywords"].split("|") if word not in ("", row["label"])] for row in rows
    }
    return {name: [name, *(f"{name}, {word}" for word in words[: KEYWORDS - 1])] for name, words in named.items()}


def relative_variance(vlm: BayesVLM, store: FeatureStore, prompts: ClassPrompts) -> Tensor:  # [C]
    """tr Cov[h] / |mu_h|^2: of a Gaussian embedding, whatever its length."""
    embedded = vlm.embed_texts(store.classes(prompts))
    return embedded.expected_norm.square() / embedded.mean.square().sum(dim=1) - 1


def measure(name: str, data: LabelledSet, validation: LabelledSet) -> dict[str, Any]:
    """Every way to ask. The temperature is found with the same prompts, and so is tau beside the saved one."""
    vlm = BayesVLM.from_pretrained(name, device="cpu")
    store = FeatureStore(vlm, FeatureCache())
    found, held = store.images(data), store.images(validation)
    drawings = asked(validation)
    result: dict[str, Any] = {}
    for said, (prompts, *alone) in asked(data).items():
        way = "one" if said == "one" else "with keywords" if said == "with keywords" else f"all {len(TEMPLATES)}"
        classes, seen = store.classes(prompts), (held.features, held.labels, store.classes(drawings[way][0]))
        scores = Methods.tuned(vlm, *seen).scores(found.features, found.labels, classes)
        again = vlm.copy().tune(*seen, progress=False)
        scores["Bayes, tuned so"] = Methods(again).scores(found.features, found.labels, classes, ["Bayes"])["Bayes"]
        variance = [float(relative_variance(vlm, store, of).mean()) for of in (prompts, *alone)]
        result[said] = {
            "scores": {method: score.numbers() for method, score in scores.items()},
            "text_variance": variance[0],
            "of_its_prompts": sum(variance[1:]) / len(alone),
            "prompts": len(alone),
            "tau": again.tau,
        }
        result[said]["to_the_first"] = variance[0] / next(iter(result.values()))["text_variance"]
        print(name, data.name, said, line(result[said]), flush=True)
    return result


def line(found: dict[str, Any]) -> str:
    """Cells of the table: the methods one after another, and what became of the text variance."""
    scores = [found["scores"][method] for method in METHODS]
    return " | ".join(
        [
            " / ".join(f"{100 * score['top1']:.1f}" for score in scores),
            " / ".join(f"{score['nlpd']:.2f}" for score in scores),
            " / ".join(f"{100 * score['ece']:.1f}" for score in scores),
            f"{found['to_the_first']:.2f} / {found['text_variance'] / found['of_its_prompts']:.2f}",
        ]
    )


def main() -> None:
    validation = resolve("validation").open()
    numbers = {name: {each: measure(name, resolve(each).open(), validation) for each in SETS} for name in MODELS}
    (HERE / "templates.json").write_text(json.dumps(numbers, separators=(",", ":")) + "\n", encoding="utf-8")
    print(
        "| model | set | prompts | top-1 % | NLPD | ECE % | text variance: to one / to its own |\n" + "|---" * 7 + "|"
    )
    for name, sets in numbers.items():
        for data, ways in sets.items():
            for said, found in ways.items():
                print(f"| {name} | {data} | {said} | {line(found)} |")


if __name__ == "__main__":
    main()
