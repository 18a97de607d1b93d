"""Does doubt help a search? Abstaining, queries that nothing matches, probabilities: tables of docs/retrieval.md.

python docs/figures/retrieval.py             # some ten minutes; retrieval.json, and the tables
python docs/figures/retrieval.py --tables    # the tables from retrieval.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesvlm import BayesVLM, Features, world
from bayesvlm.evaluation import Doubted, Relevance, auroc, compare_areas, delong, fpr95, hold_out, risk_coverage_area
from bayesvlm.experiments.caption_search import Searched, search
from bayesvlm.experiments.retrieval import asked, calibration, decisions, distorted
from bayesvlm.retrieval.matching import FITTED, Asked, MatchModel

HERE = Path(__file__).parent
PAGE = HERE.parent / "retrieval.md"
KEPT = HERE / "retrieval.json"
MODELS = ("emoji-clip", "emoji-clip-colour", "emoji-siglip")
SIX = ("new-drawing", "emojione-colour", "openmoji-colour", "fluent-high-contrast", "emojione-black", "openmoji-black")
COLLECTIONS = {"openmoji-colour": ("openmoji-colour",), "six styles": SIX}
WORDINGS = ("names", "... emoji", "typos", "first word")
CLEAN = WORDINGS[:2]
STRANGE = ("unseen concepts", "flags", "shuffled letters")
KINDS = ("taken away", *STRANGE)
DOUBTS = (
    "cosine",
    "margin",
    "standardised",
    "softmax",
    "expected cosine",
    "lower bound",
    "probit",
    "p_best",
    "deviation",
    "query variance",
)
BOTH = "expected cosine and query variance"
RULES = {"cosine": "flat cut-off on the cosine", "both": "`calibrate`", "unlabelled": "`calibrate` without labels"}
ERROR, RESAMPLES, SPLITS = 0.05, 500, 20


def main() -> None:
    if "--tables" not in sys.argv:
        found: dict[str, Any] = {}
        for model in MODELS:
            vlm = BayesVLM.from_pretrained(model, device="cpu")
            encoded = {style: vlm.image_features(list(world.load(style).images)) for style in SIX}
            for title, styles in COLLECTIONS.items():
                found.setdefault(model, {})[title] = measured(Collection(vlm, encoded, styles))
                print(model, title, flush=True)
        KEPT.write_text(json.dumps(found, separators=(",", ":"), allow_nan=False) + "\n")
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), json.loads(KEPT.read_text())), encoding="utf-8")


@dataclass(frozen=True, eq=False)
class Collection:
    """Drawings of half of the concepts, asked for in words.

    Args:
        vlm: the model.
        encoded: the drawings, by split.
        styles: splits of the world.
    """

    vlm: BayesVLM
    encoded: dict[str, Features]
    styles: Sequence[str]

    @cached_property
    def labels(self) -> Tensor:  # [N]
        return torch.cat([torch.tensor(world.load(style).labels) for style in self.styles])

    @cached_property
    def classes(self) -> tuple[str, ...]:
        return tuple(world.load(self.styles[0]).classes)

    @cached_property
    def drawings(self) -> Features:
        return Features.concatenate([self.encoded[style] for style in self.styles])

    @cached_property
    def concepts(self) -> Tensor:
        """Those that there are drawings of."""
        return self.labels.unique()

    @cached_property
    def kept(self) -> Tensor:  # [N] bool
        """Drawings of a random half of the concepts, as `bayesvlm eval --retrieval` holds the others out."""
        return hold_out(self.relevant(self.concepts, torch.ones(len(self.labels), dtype=torch.bool))).kept

    def relevant(self, concepts: Tensor, kept: Tensor) -> Relevance:
        there = self.labels[kept]
        return Relevance.of([(there == concept).nonzero()[:, 0].tolist() for concept in concepts], len(there))

    def names(self, concepts: Tensor) -> list[str]:
        return [self.classes[concept] for concept in concepts.tolist()]

    def words(self, wording: str, names: Sequence[str]) -> list[str]:
        if wording == "... emoji":
            return [f"{name} emoji" for name in names]
        if wording == "first word":
            return [_first(name) for name in names]
        return list(names) if wording == "names" else distorted(names, wording)

    def searched(self, texts: Sequence[str], relevant: Relevance) -> Searched:
        features = self.vlm.text_features(list(texts), progress=False)
        return search(self.vlm, features, self.drawings[self.kept.nonzero()[:, 0]], relevant, "text")

    def asked_in(self, wording: str) -> tuple[Searched, Tensor]:
        """A query for each concept; and whether anything in what was kept answers it."""
        words = self.words(wording, self.names(self.concepts))
        relevant = self.relevant(self.concepts, self.kept)
        if wording == "first word":  # whatever is called so
            there = [set(_words(self.classes[label])) for label in self.labels[self.kept].tolist()]
            relevant = Relevance.of([[row for row, of in enumerate(there) if word in of] for word in words], len(there))
        return self.searched(words, relevant), relevant.counts > 0

    def strange(self, kind: str, wording: str) -> Searched:
        """Queries that nothing answers, in words that the model was not trained on."""
        if kind == "shuffled letters":
            texts = distorted(self.names(self.concepts), kind)
        else:
            texts = sorted(set(world.load({"unseen concepts": "unseen-concepts"}.get(kind, kind)).classes))
        return self.searched(self.words(wording, texts), Relevance.of([[] for _ in texts], int(self.kept.sum())))


def measured(of: Collection) -> dict[str, Any]:
    """All figures of one model and collection."""
    torch.manual_seed(0)
    found = {wording: of.asked_in(wording) for wording in WORDINGS}
    strange = {wording: {kind: of.strange(kind, wording) for kind in STRANGE} for wording in CLEAN}
    return {
        "concepts": len(of.concepts),
        "drawings": int(of.kept.sum()),
        "queries": {kind: len(searched.doubts["cosine"]) for kind, searched in strange["names"].items()},
        "areas": {wording: areas(searched) for wording, (searched, _) in found.items()} | {"all": areas_of_all(found)},
        "detection": {wording: detection(*found[wording], strange[wording]) for wording in CLEAN},
        "decisions": {wording: decided(*found[wording], strange[wording]) for wording in CLEAN},
        "asked otherwise": otherwise(found),
        "p_match": probabilities(of),
        "ranks": ranks(of),
    }


# Abstaining -----------------------------------------------------------------------------------------------------------


def areas(searched: Searched) -> dict[str, list[float]]:
    return compared({doubt: searched.answers(doubt) for doubt in DOUBTS})


def areas_of_all(found: dict[str, tuple[Searched, Tensor]]) -> dict[str, list[float]]:
    """All wordings in one."""
    together = {}
    for doubt in DOUBTS:
        parts = [searched.answers(doubt) for searched, _ in found.values()]
        together[doubt] = Doubted(*(torch.cat(of) for of in zip(*parts, strict=True)))
    return compared(together)


def compared(answers: dict[str, Doubted]) -> dict[str, list[float]]:
    """By doubt: area, its standard error, less that of the cosine, the error of that, p; and the share of errors."""
    rows = {}
    for doubt, of in answers.items():
        test, area = compare_areas(of, answers["cosine"], RESAMPLES), risk_coverage_area(of, RESAMPLES)
        rows[doubt] = rounded([area.value, area.standard_error, test.difference, test.standard_error, test.p])
    wrong = 1 - float(answers["cosine"].correct.double().mean())
    return {**rows, "wrong": rounded([wrong])}


# Queries that nothing matches -----------------------------------------------------------------------------------------


def detection(searched: Searched, matched: Tensor, strange: dict[str, Searched]) -> dict[str, Any]:
    """By kind and score: AUROC, false answers at 95 % kept, AUROC less that of the cosine, its error, p.

    Half of the queries that have a match calibrate the ranks of both signs, the other half is judged.
    """
    rows = matched.nonzero()[:, 0]
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    first, second = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    both = asked(searched)
    ranks = calibration(Asked(both.score[first], both.variance[first]))
    familiar = {doubt: -searched.doubts[doubt][second] for doubt in DOUBTS}
    familiar[BOTH] = ranks.p_values(Asked(both.score[second], both.variance[second]))
    found = {}
    for kind in KINDS:
        other = searched if kind == "taken away" else strange[kind]
        chosen = ~matched if kind == "taken away" else torch.ones(len(other.doubts["cosine"]), dtype=torch.bool)
        signs = asked(other)
        unknown = {doubt: -other.doubts[doubt][chosen] for doubt in DOUBTS}
        unknown[BOTH] = ranks.p_values(Asked(signs.score[chosen], signs.variance[chosen]))
        found[kind] = {}
        flags = torch.arange(len(second) + int(chosen.sum())) < len(second)
        cosine = torch.cat([familiar["cosine"], unknown["cosine"]])
        for score in familiar:
            values = torch.cat([familiar[score], unknown[score]])
            test = delong(values.double(), cosine.double(), flags)
            of = [auroc(values, flags), fpr95(values, flags), test.difference, test.standard_error, test.p]
            found[kind][score] = rounded(of)
    return found


def decided(searched: Searched, matched: Tensor, strange: dict[str, Searched]) -> dict[str, Any]:
    """By rule: turned away of those with a match, answered of those without, over random halves."""
    found = {}
    for rule in RULES:
        signs = asked(searched, rule)
        others = {"taken away": Asked(signs.score[~matched], signs.variance[~matched])}
        others |= {kind: asked(other, rule) for kind, other in strange.items()}
        made = decisions(Asked(signs.score[matched], signs.variance[matched]), others, ERROR, SPLITS)
        answered = {kind: rounded([of.value, of.standard_error]) for kind, of in made.answered.items()}
        away = rounded([made.turned_away.value, made.turned_away.standard_error])
        found[rule] = {"calibrated on": made.queries, "turned away": away, "answered": answered}
    return found


def otherwise(found: dict[str, tuple[Searched, Tensor]]) -> dict[str, Any]:
    """Calibrated on names, asked in other words: the share of queries with a match that is turned away."""
    kept = {}
    for rule in ("cosine", "both"):
        names, matched = found["names"]
        signs = asked(names, rule)
        made = calibration(Asked(signs.score[matched], signs.variance[matched]), ERROR)
        kept[rule] = {}
        for wording in WORDINGS[1:]:
            searched, matched_so = found[wording]
            other = asked(searched, rule)
            away = made.p_values(Asked(other.score[matched_so], other.variance[matched_so])) <= ERROR
            kept[rule][wording] = rounded([float(away.double().mean())])
    return kept


# Hits -----------------------------------------------------------------------------------------------------------------


def probabilities(of: Collection) -> dict[str, Any]:
    """P(relevant) of the first hits, fitted on half of the concepts' names and judged on the others.

    NLL in nats per hit, ECE with 15 bins; the difference of NLL to the cosine alone with its error over queries.
    """
    moments, relevant = hits(of)
    rows = torch.randperm(len(relevant), generator=torch.Generator().manual_seed(1))
    fit, test = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    cosine, std, right = moments["cosine"], moments["std"], relevant
    losses, kept = {}, {}
    for name, spread in (("cosine", torch.zeros_like(std)), ("cosine and deviation", std)):
        model = MatchModel.fit(cosine[fit].flatten(), spread[fit].flatten(), right[fit].flatten())
        p = model(cosine[test], spread[test]).clamp(1e-9, 1 - 1e-9)
        losses[name] = -torch.where(right[test], p.log(), (1 - p).log()).mean(dim=1)
        kept[name] = rounded([float(losses[name].mean()), calibration_error(p.flatten(), right[test].flatten())])
    base = right[fit].double().mean()
    flat = -torch.where(right[test], base.log(), (1 - base).log()).mean()
    difference = losses["cosine and deviation"] - losses["cosine"]
    kept["difference"] = rounded([float(difference.mean()), float(difference.std() / len(difference) ** 0.5)])
    return {**kept, "share of relevant": rounded([float(base), float(flat)])}


def hits(of: Collection) -> tuple[dict[str, Tensor], Tensor]:  # [Q, 20] each
    names, rows = of.names(of.concepts), of.kept.nonzero()[:, 0]
    drawings = of.drawings[rows]
    texts = of.vlm.text_features(names, progress=False)
    found = of.vlm.similarity(drawings, texts)
    mean, std = found.mean.T.double(), found.std.T.double()
    top = mean.topk(FITTED, dim=1).indices
    right = of.labels[rows][top] == of.concepts[:, None]
    return {"cosine": mean.gather(1, top), "std": std.gather(1, top)}, right


def calibration_error(p: Tensor, right: Tensor, bins: int = 15) -> float:  # [n], [n]
    place = (p * bins).long().clamp(max=bins - 1)
    gaps = torch.zeros(bins, dtype=torch.float64).index_add_(0, place, p - right.double())
    return float(gaps.abs().sum() / len(p))


def ranks(of: Collection) -> dict[str, Any]:
    """Recall@1 by name in the whole collection, and its difference to the expected cosine with its error."""
    texts = of.vlm.text_features(of.names(of.concepts), progress=False)
    found = of.vlm.similarity(of.drawings, texts)
    mean, half = found.mean.T.double(), 1.96 * found.std.T.double()
    plain = of.vlm.logits(of.drawings, texts).T.double()
    scores = {"cosine": plain, "mean": mean, "lower": mean - half, "upper": mean + half}
    first = {name: (of.labels[values.argmax(dim=1)] == of.concepts).double() for name, values in scores.items()}
    kept = {}
    for name, right in first.items():
        less = right - first["mean"]
        kept[name] = rounded([float(right.mean()), float(less.mean()), float(less.std() / len(less) ** 0.5)])
    return kept


def rounded(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


def _words(name: str) -> list[str]:
    return [word.strip(",:.") for word in name.split()]


def _first(name: str) -> str:
    return _words(name)[0]


# Tables ---------------------------------------------------------------------------------------------------------------


def written(text: str, found: dict[str, Any]) -> str:
    """The page with these numbers in its tables."""
    tables = {
        "abstaining counted": area_counts(found),
        "signs counted": sign_counts(found),
        "abstaining": area_table(found),
        "signs": sign_table(found),
        "decisions": decision_table(found),
        "otherwise": otherwise_table(found),
        "p_match": probability_table(found),
        "ranks": rank_table(found),
    }
    for title, lines in tables.items():
        begin, end = f"<!-- retrieval: {title} -->\n", "<!-- end -->"
        before, after = text.split(begin)
        text = before + begin + "\n".join([*lines, end]) + after.split(end, 1)[1]
    return text


def each(found: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for model in MODELS:
        for title in COLLECTIONS:
            yield model, title, found[model][title]


def area_counts(found: dict[str, Any]) -> Iterator[str]:
    """On how many of the models and collections a doubt has a smaller area than the cosine, and a larger one."""
    shown = (
        "margin",
        "standardised",
        "softmax",
        "expected cosine",
        "lower bound",
        "probit",
        "p_best",
        "query variance",
    )
    yield from head("better / level / worse than abstaining by cosine, of 6", "by name", "all wordings")
    for doubt in shown:
        rows = ([of["areas"][wording][doubt][2:] for _, _, of in each(found)] for wording in ("names", "all"))
        yield line(doubt, *(counted(row, -1) for row in rows))


def sign_counts(found: dict[str, Any]) -> Iterator[str]:
    """The same of the AUROC for queries without a match, asked by name."""
    shown = ("expected cosine", "lower bound", "p_best", "query variance", BOTH)
    yield from head("better / level / worse than the cosine, of 6", "taken away", *STRANGE)
    for score in shown:
        rows = ([of["detection"]["names"][kind][score][2:] for _, _, of in each(found)] for kind in KINDS)
        yield line(score, *(counted(row, 1) for row in rows))


def counted(differences: Sequence[Sequence[float]], sign: int) -> str:
    """Better, level and worse, and from where to where the difference goes in points; sign: of what is better."""
    counts = [0, 0, 0]
    for difference, _, p in differences:
        counts[1 if p >= 0.05 else 0 if sign * difference > 0 else 2] += 1
    apart = sorted(100 * difference for difference, *_ in differences)
    return f"{' / '.join(map(str, counts))} ({apart[0]:+.1f} to {apart[-1]:+.1f})"


def area_table(found: dict[str, Any]) -> Iterator[str]:
    """Areas in percent: bold where they are smaller than the cosine's (p < 0.05), italic where larger."""
    shown = [doubt for doubt in DOUBTS if doubt != "deviation"]
    yield from head("model", "collection", "asked in", "wrong", *shown)
    for model, title, of in each(found):
        for wording in (*WORDINGS, "all"):
            row = of["areas"][wording]
            cells = []
            for doubt in shown:
                area, error, difference, _, p = row[doubt]
                mark = "" if p >= 0.05 else "**" if difference < 0 else "*"
                text = f"{mark}{100 * area:.1f}{mark}"
                cells.append(f"{text} ± {100 * error:.1f}" if doubt == "cosine" else text)
            yield line(model, title, wording, f"{100 * row['wrong'][0]:.0f}", *cells)


def sign_table(found: dict[str, Any]) -> Iterator[str]:
    """AUROC / false answers in percent; bold where the AUROC is above the cosine's (p < 0.05), italic where below."""
    shown = ("cosine", "standardised", "softmax", "expected cosine", "lower bound", "p_best", "query variance", BOTH)
    yield from head("model", "collection", "asked in", "nothing matches", *shown)
    for model, title, of in each(found):
        for wording, kinds in of["detection"].items():
            for kind, row in kinds.items():
                cells = []
                for score in shown:
                    area, false, difference, _, p = row[score]
                    mark = "" if p >= 0.05 else "**" if difference > 0 else "*"
                    cells.append(f"{mark}{100 * area:.1f}{mark} / {100 * false:.0f}")
                yield line(model, title, wording, kind, *cells)


def decision_table(found: dict[str, Any]) -> Iterator[str]:
    """Percent, over 20 random halves of the queries with a match, with the standard deviation from half to half."""
    yield from head("model", "collection", "asked in", "rule", "turned away", "taken away", *STRANGE)
    for model, title, of in each(found):
        for wording, rules in of["decisions"].items():
            for rule, called in RULES.items():
                row = rules[rule]
                away, apart = row["turned away"]
                shares = [f"{100 * row['answered'][kind][0]:.0f}" for kind in KINDS]
                yield line(model, title, wording, called, f"{100 * away:.1f} ± {100 * apart:.1f}", *shares)


def otherwise_table(found: dict[str, Any]) -> Iterator[str]:
    """Percent of queries with a match that are turned away, where the calibration asked by name."""
    yield from head("model", "collection", "rule", *WORDINGS[1:])
    for model, title, of in each(found):
        for rule, row in of["asked otherwise"].items():
            yield line(model, title, RULES[rule], *(f"{100 * row[wording][0]:.0f}" for wording in WORDINGS[1:]))


def probability_table(found: dict[str, Any]) -> Iterator[str]:
    """NLL in nats and ECE in percent."""
    yield from head(
        "model", "collection", "relevant", "their share alone", "cosine", "cosine and deviation", "difference"
    )
    for model, title, of in each(found):
        row = of["p_match"]
        share, flat = row["share of relevant"]
        cells = [f"{row[name][0]:.4f} / {100 * row[name][1]:.1f}" for name in ("cosine", "cosine and deviation")]
        difference, error = row["difference"]
        cells.append(f"{difference:+.4f} ± {error:.4f}")
        yield line(model, title, f"{100 * share:.1f} %", f"{flat:.4f}", *cells)


def rank_table(found: dict[str, Any]) -> Iterator[str]:
    """Recall@1 in percent; the difference to the mean with its standard error."""
    yield from head("model", "collection", "cosine", "mean", "lower", "upper")
    for model, title, of in each(found):
        row = of["ranks"]
        cells = [f"{100 * row['mean'][0]:.1f}"]
        cells += [f"{100 * row[n][0]:.1f} ({100 * row[n][1]:+.1f} ± {100 * row[n][2]:.1f})" for n in ("lower", "upper")]
        plain = row["cosine"]
        yield line(model, title, f"{100 * plain[0]:.1f} ({100 * plain[1]:+.1f} ± {100 * plain[2]:.1f})", *cells)


def head(*titles: str) -> Iterator[str]:
    yield line(*titles)
    yield line(*["---"] * len(titles))


def line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
