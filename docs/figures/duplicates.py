"""Near-duplicates of the world's drawings, and where linearised variances end: docs/retrieval.md, docs/method.md.

Of 200 drawings in each of five styles nine distorted copies are made. All pairs of the 2,000 pictures of a style are
compared: those of one drawing are the ones to find. Other drawings are often near each other too, a clock at one and
at half past one, and count as wrong all the same.

    python docs/figures/duplicates.py            # eight minutes on one core; duplicates.json, and the tables
    python docs/figures/duplicates.py --tables   # the tables alone
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import squareform
from torch import Tensor

from bayesvlm import BayesVLM, world
from bayesvlm.core.duplicates import Neighbours, Reach, stars
from bayesvlm.core.embeddings import Shape
from bayesvlm.core.linearised import Directed, same_tower_cosines
from bayesvlm.data.distortion import Distortion
from bayesvlm.images import to_rgb

HERE = Path(__file__).parent
DOCS = HERE.parent
MODELS = ("emoji-clip", "emoji-siglip")
STYLES = ("new-drawing", "openmoji-colour", "openmoji-black", "fluent-high-contrast", "unseen-concepts")
DRAWINGS, SIMILARITY, HALF = 200, 0.95, 1.959964
LEAST = 0.5  # cosine: pairs below are looked at by no score
RESAMPLES = 100
SCORES = ("cosine", "upper end", "lower end", "standardised")
RATIOS = (0.002, 0.005, 0.01, 0.03, 0.06, 0.1, 0.3)
DRAWS = 20_000


def scaled(share: float) -> Callable[[Image.Image], Image.Image]:
    return lambda image: image.resize((round(image.width * share),) * 2, Image.Resampling.BICUBIC)


def cropped(share: float) -> Callable[[Image.Image], Image.Image]:
    def crop(image: Image.Image) -> Image.Image:
        edge = round(share * image.width)
        return image.crop((edge, edge, image.width - edge, image.height - edge))

    return crop


COPIES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "JPEG, quality 75": Distortion("jpeg", 75),
    "JPEG, quality 30": Distortion("jpeg", 30),
    "JPEG, quality 10": Distortion("jpeg", 10),
    "half as wide": scaled(1 / 2),
    "a third as wide": scaled(1 / 3),
    "4 % cut off at each side": cropped(0.04),
    "8 % cut off at each side": cropped(0.08),
    "grey": Distortion("greyscale", 1.0),
    "a fifth darker": lambda image: ImageEnhance.Brightness(image).enhance(0.8),
}


def main() -> None:
    path = HERE / "duplicates.json"
    if "--tables" not in sys.argv:
        found: dict[str, Any] = {"drawings": DRAWINGS, "similarity": SIMILARITY, "copies": {}, "pairs": {}}
        found |= {"transfer": {}, "groups": {}, "kept": {}}
        for model in MODELS:
            measure(BayesVLM.from_pretrained(model, device="cpu"), model, found)
        found["linearised"] = linearised(BayesVLM.from_pretrained(MODELS[0], device="cpu"))
        path.write_text(json.dumps(rounded(found), separators=(",", ":"), allow_nan=False) + "\n")
    kept = json.loads(path.read_text())
    for page, tables in pages(kept).items():
        place = DOCS / page
        place.write_text(written(place.read_text(encoding="utf-8"), tables), encoding="utf-8")


def rounded(value: Any) -> Any:
    """Numbers to five digits, which is more than they are known to."""
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [rounded(entry) for entry in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


# Copies of drawings ---------------------------------------------------------------------------------------------------


def measure(vlm: BayesVLM, model: str, found: dict[str, Any]) -> None:
    """Everything of one model."""
    posterior = vlm.posterior["image"]
    shape = posterior.shared_covariance().shape
    seen = {}
    for style in STYLES:
        images = world.load(style).images
        drawings = [to_rgb(image) for image in images[:: len(images) // DRAWINGS][:DRAWINGS]]
        pictures = drawings + [copy(drawing) for copy in COPIES.values() for drawing in drawings]
        features = vlm.image_features(pictures, progress=False)
        embedded = posterior.embed(features)
        items = Directed(embedded.mean, posterior.whitened(features))
        seen[style] = Pairs(items, shape)
        print(model, style, flush=True)
        share = embedded.covariance.scale / embedded.expected_norm.square()
        of_drawing = share.reshape(len(COPIES) + 1, DRAWINGS)
        found["kept"].setdefault(model, {})[style] = float((of_drawing.argmin(dim=0) == 0).double().mean())
        found["copies"].setdefault(model, {})[style] = seen[style].of_copies()
        found["pairs"].setdefault(model, {})[style] = seen[style].judged()
        if model == MODELS[0]:
            found["groups"][style] = groups(items, shape, seen[style])
    found["transfer"][model] = transfer(seen)


class Pairs:
    """All pairs of the pictures of one style: cosines, standard deviations, whether both show one drawing."""

    def __init__(self, items: Directed, shape: Shape) -> None:
        moments = same_tower_cosines(items, items, shape)
        self.mean, self.std = moments.mean.double(), moments.variance.clamp(min=0).double().sqrt()
        count = len(self.mean)
        drawing = torch.arange(count) % DRAWINGS
        first, second = torch.triu_indices(count, count, 1)
        near = self.mean[first, second] >= LEAST
        self.drawings = drawing[first[near]], drawing[second[near]]
        self.cosine, self.deviation = self.mean[first, second][near], self.std[first, second][near]
        self.same = self.drawings[0] == self.drawings[1]
        self.positives = DRAWINGS * (count // DRAWINGS) * (count // DRAWINGS - 1) // 2

    def scores(self) -> dict[str, Tensor]:
        standardised = (self.cosine - SIMILARITY) / self.deviation.clamp(min=1e-6)
        ends = self.cosine + HALF * self.deviation, self.cosine - HALF * self.deviation
        return dict(zip(SCORES, (self.cosine, *ends, standardised), strict=True))

    def of_copies(self) -> dict[str, list[float]]:
        """Of each kind of copy its cosine with the drawing: mean, lowest tenth; the mean standard deviation."""
        rows = torch.arange(DRAWINGS)
        found = {}
        for place, kind in enumerate(COPIES, start=1):
            cosine = self.mean[rows, rows + place * DRAWINGS]
            std = self.std[rows, rows + place * DRAWINGS]
            found[kind] = [float(cosine.mean()), float(cosine.quantile(0.1)), float(std.mean())]
        return found

    def judged(self) -> dict[str, Any]:
        scores = self.scores()
        ordered = {name: average_precision(score, self.same, self.positives) for name, score in scores.items()}
        found: dict[str, Any] = {"average precision": ordered, "positives": self.positives}
        found["best F1"] = {name: self.best(score)[0] for name, score in scores.items()}
        found["standardised less cosine, error"] = self.error(scores["standardised"], scores["cosine"])
        rules = {name: self.at(scores[name], SIMILARITY) for name in SCORES[:3]}
        recall = rules["upper end"]["recall"]
        ranked = self.same[scores["cosine"].argsort(descending=True)].double().cumsum(0) / self.positives
        place = int((ranked >= recall).nonzero()[0])
        as_high = {"precision": float(ranked[place] * self.positives / (place + 1)), "recall": float(ranked[place])}
        threshold = float(scores["cosine"].sort(descending=True).values[place])
        found["rules"] = {**rules, "flat, same recall": {**as_high, "threshold": threshold}}
        return found

    def at(self, score: Tensor, threshold: float) -> dict[str, float]:
        taken = score >= threshold
        right = float((taken & self.same).sum())
        precision, recall = right / max(1.0, float(taken.sum())), right / self.positives
        return {"precision": precision, "recall": recall, "F1": 2 * right / (float(taken.sum()) + self.positives)}

    def best(self, score: Tensor) -> tuple[float, float]:
        """The highest F1, and the threshold that has it."""
        order = score.argsort(descending=True)
        right = self.same[order].double().cumsum(0)
        f1 = 2 * right / (torch.arange(1, len(order) + 1) + self.positives)
        place = int(f1.argmax())
        return float(f1[place]), float(score[order[place]])

    def error(self, score: Tensor, other: Tensor) -> float:
        """Standard error of the difference of two average precisions: drawings are resampled, the same for both."""
        generator = torch.Generator().manual_seed(0)
        differences = []
        for _ in range(RESAMPLES):
            picked = torch.randint(0, DRAWINGS, (DRAWINGS,), generator=generator)
            times = torch.bincount(picked, minlength=DRAWINGS).double()
            weight = torch.where(self.same, times[self.drawings[0]], times[self.drawings[0]] * times[self.drawings[1]])
            both = [average_precision(each, self.same, self.positives, weight) for each in (score, other)]
            differences.append(both[0] - both[1])
        return float(torch.tensor(differences).std())


def average_precision(score: Tensor, same: Tensor, positives: int, weight: Tensor | None = None) -> float:
    order = score.argsort(descending=True)
    weights = torch.ones(len(order), dtype=torch.float64) if weight is None else weight[order]
    right = same[order].double() * weights
    precision = right.cumsum(0) / weights.cumsum(0).clamp(min=1e-12)
    return float((precision * right).sum() / positives)


def transfer(seen: dict[str, Pairs]) -> dict[str, dict[str, float]]:
    """F1 on each style at the threshold that is best on another one, mean over the others."""
    found: dict[str, dict[str, float]] = {}
    for name in SCORES:
        thresholds = {style: pairs.best(pairs.scores()[name])[1] for style, pairs in seen.items()}
        found[name] = {}
        for style, pairs in seen.items():
            score = pairs.scores()[name]
            others = [pairs.at(score, threshold)["F1"] for of, threshold in thresholds.items() if of != style]
            found[name][style] = sum(others) / len(others)
    return found


def groups(items: Directed, shape: Shape, pairs: Pairs) -> dict[str, Any]:
    """What becomes of the pictures by three ways to group pairs; drawings are preferred to their copies."""
    found: dict[str, Any] = {}
    drawing = np.arange(len(pairs.mean)) % DRAWINGS
    for similarity in (0.95, 0.9):
        end = (pairs.mean + HALF * pairs.std).numpy()
        reaches = csr_array(end >= similarity)
        apart = np.clip(1 - (end + end.T) / 2, 0, None)
        np.fill_diagonal(apart, 0)
        tree = linkage(squareform(apart, checks=False), "complete")
        ways = {
            "stars": stars(Neighbours.of_items(items, shape, Reach(similarity, HALF))).numpy(),
            "components": first_of(connected_components(reaches, directed=False)[1]),
            "complete linkage": first_of(fcluster(tree, 1 - similarity, "distance")),
        }
        found[f"{similarity:g}"] = {way: outcome(keeper, drawing, end, similarity) for way, keeper in ways.items()}
    return found


def first_of(label: np.ndarray) -> np.ndarray:
    """Of each item the first of its group."""
    first = {each: place for place, each in reversed(list(enumerate(label.tolist())))}
    return np.array([first[each] for each in label.tolist()])


def outcome(keeper: np.ndarray, drawing: np.ndarray, end: np.ndarray, similarity: float) -> dict[str, int]:
    own = np.arange(len(keeper))
    dropped = keeper != own
    return {
        "dropped": int(dropped.sum()),
        "of another drawing": int((dropped & (drawing[keeper] != drawing)).sum()),
        "not near what is kept": int((dropped & (end[keeper, own] < similarity)).sum()),
        "largest": int(np.bincount(keeper).max()),
    }


# Linearised variances -------------------------------------------------------------------------------------------------


def linearised(vlm: BayesVLM) -> list[dict[str, float]]:
    """Linearised variances over those of draws, by how large the noise is: drawings with their copies and with others.

    "held" are those with lengths held at their expected ones, s in the place of |mu|, and the mean that goes with it,
    (mu_1 . mu_2 + k_12 tr R) / (s_1 s_2). One set of draws serves all ratios: noise is scaled.
    """
    posterior = vlm.replace(covariance="full").posterior["image"]
    drawings = [to_rgb(image) for image in world.load("openmoji-colour").images[::130][:12]]
    pictures = drawings + [COPIES[kind](each) for kind in ("half as wide", "grey") for each in drawings]
    features = vlm.image_features(pictures, progress=False)
    shape = posterior.shared_covariance().shape.to(torch.float64)
    assert shape.basis is not None
    mean, white = posterior.embed(features).mean.double(), posterior.whitened(features).double()
    length = mean.norm(dim=1, keepdim=True)
    own = float((white / length).square().sum(dim=1).mean() * shape.trace)
    first, second = torch.triu_indices(len(pictures), len(pictures), 1)
    sums = torch.zeros(len(RATIOS), 2, len(first), dtype=torch.float64)
    plain = same_tower_cosines(Directed(mean, white), Directed(mean, white), shape).mean[first, second]
    for noise in drawn(white, shape, torch.Generator().manual_seed(0)):
        for place, ratio in enumerate(RATIOS):
            g = torch.nn.functional.normalize(mean + (ratio / own) ** 0.5 * noise, dim=2)
            away = torch.einsum("snd,smd->snm", g, g)[:, first, second] - plain
            sums[place] += torch.stack([away.sum(dim=0), away.square().sum(dim=0)])
    near, found = plain > 0.8, []
    for ratio, (once, twice) in zip(RATIOS, sums / DRAWS, strict=True):
        sampled, scaled = twice - once.square(), (ratio / own) ** 0.5 * white
        s = (length.square() + scaled.square().sum(dim=1, keepdim=True) * shape.trace).sqrt()
        expected = ((mean @ mean.T + scaled @ scaled.T * shape.trace) / (s @ s.T))[first, second]
        row: dict[str, float] = {"ratio": ratio, "std": float(sampled.sqrt().median())}
        for name, items in (("", Directed(mean, scaled)), ("held ", Directed(mean, scaled * length / s))):
            over = same_tower_cosines(items, items, shape).variance[first, second] / sampled
            row |= {f"{name}all": float(over[~near].median()), f"{name}near": float(over[near].median())}
            row |= {f"{name}lowest": float(over.min()), f"{name}highest": float(over.max())}
        row |= {
            "mean off": float(once.abs().median()),
            "held mean off": float((once + plain - expected).abs().median()),
        }
        found.append(row)
    return [{"own": own, "pairs": len(first), "near": int(near.sum()), "draws": DRAWS}, *found]


def drawn(white: Tensor, shape: Shape, generator: torch.Generator, parts: int = 20) -> Iterator[Tensor]:
    """Noise of the embeddings, [S, N, d] at a time, all under the same draws: in the span of their activations."""
    values, vectors = torch.linalg.eigh(white @ white.T)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T  # [N, N]
    assert shape.basis is not None
    turned = shape.basis * shape.spectrum.sqrt()
    for _ in range(parts):
        noise = torch.randn(DRAWS // parts, len(white), len(turned), generator=generator, dtype=torch.float64)
        yield root @ noise @ turned.T


# Tables ---------------------------------------------------------------------------------------------------------------


def pages(kept: dict[str, Any]) -> dict[str, dict[str, list[str]]]:
    """Tables by page and name."""
    return {
        "retrieval.md": {
            "copies": list(copies_table(kept)),
            "pairs": list(pairs_table(kept)),
            "groups": list(groups_table(kept)),
            "scale": list(scale_table()),
            "kept": [least_variance(kept)],
        },
        "method.md": {"linearised": list(linearised_table(kept))},
    }


def written(text: str, tables: dict[str, list[str]]) -> str:
    """A page with these tables in their places."""
    for name, lines in tables.items():
        begin, end = f"<!-- duplicates: {name} -->\n", "<!-- end -->"
        if text.count(begin) != 1:
            raise SystemExit(f"There is no place for the table {name!r}; put {begin.strip()} and {end} where it goes.")
        before, after = text.split(begin)
        text = before + begin + "\n".join([*lines, end]) + after.split(end, 1)[1]
    return text


def copies_table(kept: dict[str, Any]) -> Iterator[str]:
    of = kept["copies"][MODELS[0]]
    yield "| copy | " + " | ".join(STYLES) + " |"
    yield "|---|" + "---|" * len(STYLES)
    for kind in COPIES:
        cells = (f"{of[style][kind][0]:.3f} ({of[style][kind][1]:.2f}), {of[style][kind][2]:.3f}" for style in STYLES)
        yield f"| {kind} | {' | '.join(cells)} |"


def pairs_table(kept: dict[str, Any]) -> Iterator[str]:
    yield (
        "| | average precision, cosine | standardised | difference | flat 0.95 | interval reaches 0.95 | flat, same "
        "recall | F1 elsewhere, flat | standardised |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for model in MODELS:
        for style in STYLES:
            of, moved = kept["pairs"][model][style], kept["transfer"][model]
            ap, rules = of["average precision"], of["rules"]
            difference = 100 * (ap["standardised"] - ap["cosine"])
            error = 100 * of["standardised less cosine, error"]
            flat, elsewhere = (
                rules["flat, same recall"],
                [100 * moved[name][style] for name in ("cosine", "standardised")],
            )
            yield (
                f"| {model}, {style} | {100 * ap['cosine']:.1f} | {100 * ap['standardised']:.1f} | {difference:+.1f} ± "
                f"{error:.1f} | {_rule(rules['cosine'])} | {_rule(rules['upper end'])} | "
                f"{100 * flat['precision']:.1f} at {flat['threshold']:.3f} | {elsewhere[0]:.1f} | {elsewhere[1]:.1f} |"
            )


def _rule(of: dict[str, float]) -> str:
    return f"{100 * of['precision']:.1f} / {100 * of['recall']:.1f}"


def groups_table(kept: dict[str, Any]) -> Iterator[str]:
    yield "| similarity | grouped by | dropped | of another drawing | not near what is kept | largest group |"
    yield "|---|---|---|---|---|---|"
    for similarity in ("0.95", "0.9"):
        for way in ("stars", "complete linkage", "components"):
            of = [kept["groups"][style][similarity][way] for style in STYLES]
            total = {name: sum(each[name] for each in of) for name in of[0]}
            largest = max(each["largest"] for each in of)
            yield (
                f"| {similarity} | {way} | {total['dropped']:,} | {total['of another drawing']:,} | "
                f"{total['not near what is kept']:,} | {largest} |"
            )


def scale_table() -> Iterator[str]:
    runs = json.loads((HERE / "near-copies-scale.json").read_text())["runs"]
    yield "| machine | pictures | seconds | memory |"
    yield "|---|---|---|---|"
    for machine, rows in runs.items():
        for row in rows:
            yield f"| {machine} | {row['rows']:,} | {row['seconds']:g} | {row['gigabytes']:g} GB |"


def least_variance(kept: dict[str, Any]) -> str:
    shares = [100 * share for of in kept["kept"].values() for share in of.values()]
    return f"{min(shares):.1f} to {max(shares):.1f} % of the drawings, by style and model,"


def linearised_table(kept: dict[str, Any]) -> Iterator[str]:
    yield (
        "| tr Cov[g] / \\|mu\\|² | variance over that of draws: unlike pairs | near pairs | lowest to highest "
        "| s held: unlike | near | lowest to highest | mean off by: c | s held |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in kept["linearised"][1:]:
        cells = [f"{row['ratio']:g}"]
        for name in ("", "held "):
            cells += [f"{row[name + 'all']:.3f}", f"{row[name + 'near']:.3f}"]
            cells.append(f"{row[name + 'lowest']:.2f} to {row[name + 'highest']:.2f}")
        cells += [f"{row['mean off']:.4f}", f"{row['held mean off']:.4f}"]
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
