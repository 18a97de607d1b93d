"""Searches of the world's drawings by their names, and of names by drawings: tables of docs/retrieval.md, "Evaluation".

python docs/figures/captions.py              # some ten minutes the first time; captions.json, and the tables
python docs/figures/captions.py --tables     # the tables from captions.json
python docs/figures/captions.py --size       # how long a search of COCO's size takes, and its memory: printed
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from bayesvlm import BayesVLM, Features
from bayesvlm.data import resolve
from bayesvlm.data.cache import FeatureCache
from bayesvlm.evaluation import Relevance, hold_out
from bayesvlm.experiments.caption_results import CaptionStudy
from bayesvlm.experiments.caption_search import search
from bayesvlm.experiments.feature_store import FeatureStore

HERE = Path(__file__).parent
PAGE = HERE.parent / "retrieval.md"
KEPT = HERE / "captions.json"
MODELS = ("emoji-clip", "emoji-clip-colour", "emoji-siglip")
TABULATED = ("emoji-clip", "emoji-siglip")
"""The others are in captions.json."""
STYLES = "new-drawing+emojione-colour+openmoji-colour+fluent-high-contrast+emojione-black+openmoji-black"
SETS = {
    "new-drawing": "new-drawing",
    "openmoji-colour": "openmoji-colour",
    "openmoji-black": "openmoji-black",
    "six styles": STYLES,
    "unseen-concepts": "unseen-concepts",
}
DIRECTIONS = {"text to image": "names to drawings", "image to text": "drawings to names"}
RANKINGS = ("cosine", "cosine, cut off", "expected cosine", "lower bound", "probit", "p_best")
DOUBTS = (
    "cosine", "margin", "standardised", "softmax", "expected cosine", "lower bound", "probit", "p_best",
    "deviation", "query variance",
)  # fmt: skip
SCORES = ("cosine", "softmax", "expected cosine", "lower bound", "probit", "p_best", "query variance")


def main() -> None:
    if "--size" in sys.argv:
        size()
        return
    if "--tables" not in sys.argv:
        found = {model: measured(model) for model in MODELS}
        KEPT.write_text(json.dumps(found, separators=(",", ":"), allow_nan=False) + "\n")
    text = written(PAGE.read_text(encoding="utf-8"), json.loads(KEPT.read_text()))
    PAGE.write_text(text, encoding="utf-8")


def measured(model: str) -> dict[str, Any]:
    """By set and direction: the figures that the tables show."""
    vlm = BayesVLM.from_pretrained(model, device="cpu")
    study = CaptionStudy(vlm, model, FeatureStore(vlm, FeatureCache()))
    found: dict[str, Any] = {}
    for title, name in SETS.items():
        table = study.run(resolve(name, kind="captions").open()).table
        found[title] = {direction: shown(of) for direction, of in table.items()}
        print(model, title, flush=True)
    return found


def shown(of: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a direction, in short: [value, standard error], differences with their p."""
    rankings = {
        name: {figure: errors(row[figure]) for figure in ("recall@1", "map_at_r")}
        for name, row in of["rankings"].items()
    }
    doubts = {}
    for name in DOUBTS:
        row = of["doubts"][name]
        nothing = row["nothing_matches"]
        doubts[name] = {
            "area": errors(row["aurc"]),
            "over cosine": tested(row["aurc_over_cosine"]),
            "auroc": rounded(nothing["auroc"]),
            "auroc over cosine": tested(nothing["auroc_over_cosine"]),
            "false answers": rounded(nothing["false_answers"]),
        }
        if plain := row.get("aurc_over_best_plain"):
            doubts[name]["over best plain"] = [plain["doubt"], *tested(plain)]
    sizes = {key: of[key] for key in ("queries", "items")}
    return {**sizes, "answers_per_query": rounded(of["answers_per_query"]), "rankings": rankings, "doubts": doubts}


def errors(found: dict[str, float]) -> list[float]:
    return [rounded(found["value"]), rounded(found["standard_error"])]


def tested(over: dict[str, float]) -> list[float]:
    return [rounded(over["difference"]), rounded(over["standard_error"]), float(f"{over['p']:.2g}")]


def rounded(value: float) -> float:
    return round(value, 4)


# Tables ---------------------------------------------------------------------------------------------------------------


def written(text: str, found: dict[str, Any]) -> str:
    """The page with these numbers in its tables."""
    tables = {
        "rankings": rankings(found),
        "doubts": areas(found),
        "nothing matches": nothing(found),
        "summary": summary(found),
    }
    for title, lines in tables.items():
        begin, end = f"<!-- captions: {title} -->\n", "<!-- end -->"
        before, after = text.split(begin)
        text = before + begin + "\n".join([*lines, end]) + after.split(end, 1)[1]
    return text


def each(found: dict[str, Any]) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    for direction, called in DIRECTIONS.items():
        for model in TABULATED:
            for title in SETS:
                yield called, model, title, found[model][title][direction]


def rankings(found: dict[str, Any]) -> Iterator[str]:
    """Recall@1, and mAP@R where queries have many answers."""
    yield from head("", "model", "set", "answers", *RANKINGS)
    for called, model, title, of in each(found):
        cells = []
        for name in RANKINGS:
            row = of["rankings"][name]
            text = f"{100 * row['recall@1'][0]:.1f}"
            cells.append(f"{text} / {100 * row['map_at_r'][0]:.1f}" if of["answers_per_query"] > 1 else text)
        yield line(called, model, title, f"{of['answers_per_query']:.1f} of {of['items']:,.0f}", *cells)


def areas(found: dict[str, Any]) -> Iterator[str]:
    """Areas under risk and coverage, a star where the difference to the cosine is significant."""
    yield from head("", "model", "set", *DOUBTS)
    for called, model, title, of in each(found):
        best = min(of["doubts"][name]["area"][0] for name in DOUBTS)
        cells = []
        for name in DOUBTS:
            row = of["doubts"][name]
            text = f"{100 * row['area'][0]:.1f}"
            text += f" ± {100 * row['area'][1]:.1f}" if name == "cosine" else ""
            star = "\\*" if row["over cosine"][2] < 0.05 else ""
            cells.append(f"**{text}**{star}" if row["area"][0] == best else f"{text}{star}")
        yield line(called, model, title, *cells)


def nothing(found: dict[str, Any]) -> Iterator[str]:
    """AUROC and false answers, a star where the AUROC differs from the cosine's."""
    yield from head("", "model", "set", *SCORES)
    for called, model, title, of in each(found):
        cells = []
        for name in SCORES:
            row = of["doubts"][name]
            star = "\\*" if row["auroc over cosine"][2] < 0.05 else ""
            cells.append(f"{100 * row['auroc']:.1f}{star} / {100 * row['false answers']:.0f}")
        yield line(called, model, title, *cells)


def summary(found: dict[str, Any]) -> Iterator[str]:
    """What all models, sets and directions say together."""
    every = [of for model in found.values() for directions in model.values() for of in directions.values()]
    firsts = [{name: of["rankings"][name]["recall@1"][0] for name in RANKINGS} for of in every]
    most = {name: max(abs(each[name] - each["cosine"]) for each in firsts) for name in ("expected cosine", "p_best")}
    judged = {name: [of["doubts"][name] for of in every] for name in ("p_best", "probit")}
    expected = [of["doubts"]["expected cosine"]["auroc over cosine"] for of in every]
    yield f"Of all {len(every)} (three models, five sets, both directions):"
    yield ""
    yield (
        f"- recall@1 by the expected cosine differs from that by the plain one by {100 * most['expected cosine']:.1f} "
        f"points at most, by `p_best` by {100 * most['p_best']:.1f};"
    )
    for name, rows in judged.items():
        yield f"- abstaining by `{name}` against abstaining by cosine: {counted(row['over cosine'] for row in rows)};"
        yield (
            f"- `{name}` against the best doubt that needs no posterior (chosen for each after the fact): "
            f"{counted(row['over best plain'][1:] for row in rows)};"
        )
    yield (
        "- saying that nothing matches by the expected cosine against a flat cut-off of the plain one: "
        f"{counted(expected, sign=-1)}; by {100 * max(abs(row[0]) for row in expected):.1f} points of AUROC at most."
    )


def counted(differences: Iterable[list[float]], sign: int = 1) -> str:
    """How many are better (below zero, or above with sign=-1), level and worse."""
    counts = dict.fromkeys(("better", "level", "worse"), 0)
    for difference, _, p in differences:
        counts["level" if p >= 0.05 else "better" if sign * difference < 0 else "worse"] += 1
    return ", ".join(f"{how} on {count}" for how, count in counts.items())


def head(*titles: str) -> Iterator[str]:
    yield line(*titles)
    yield line(*["---"] * len(titles))


def line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


# Size -----------------------------------------------------------------------------------------------------------------


def size(images: int = 5_000, captions: int = 5, width: int = 512, activations: int = 768) -> None:
    """Random features as many and as wide as COCO's test split has them for ViT-B/32, both ways."""
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(width, activations, generator=generator) / 28 for _ in range(2)]
    vlm = BayesVLM.from_projections(*weights, 4.6)
    drawn = [Features(torch.randn(n, activations, generator=generator)) for n in (images, images * captions)]
    vlm.fit([(drawn[0][:2000], drawn[1][:2000])], progress=False)
    relevant = Relevance.of(([row // captions] for row in range(images * captions)), images)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for tower, sides in (("text", (drawn[1], drawn[0], relevant)), ("image", (*drawn, relevant.transposed()))):
        started = time.perf_counter()
        search(vlm, *sides, tower, hold_out(sides[2]))
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10
        print(f"{tower}: {time.perf_counter() - started:.0f} s, memory {grown:.0f} MiB above the features")


if __name__ == "__main__":
    main()
