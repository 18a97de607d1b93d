"""What corruption does to the cosine of a picture and its caption: less of it expected, and less sure?

The paper replaces 0 to 5 characters of one prompt by x and puts 0 to 5 grey squares on one picture. Here growing shares
of the letters and of the picture are destroyed, from nothing to all of it, and averaged over many pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from PIL import Image
from scipy.stats import spearmanr

from bayesvlm.experiments.corruption import corrupt, crossed_out, matched, spread_pairs
from bayesvlm.vlm import BayesVLM
from bayesvlm_paper import catalogue
from bayesvlm_paper.exhibits import HeatMaps
from bayesvlm_paper.finding import Finding, Numbers
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.plans import Plan
from bayesvlm_paper.printed import published_curves
from bayesvlm_paper.wording import counted, rounded, signed

NAME = "perturbation_plot"
PICTURES = 100
"""Of a set, at most, each with the prompt of its class."""
CLEAR = 0.5
"""A rank correlation with corruption must be beyond this to be called a rise or a fall."""
MILD = (2, 5)
"""Mild is where at most two fifths of either input are destroyed: the first level above the paper's 5 of 17 letters."""
_SCALE = 100  # the paper's cosines are multiplied by CLIP's temperature


def rank_correlations(grid: ArrayLike) -> dict[str, float]:  # [text levels, image levels]
    """Spearman's between corruption and a quantity.

    Returns:
        both: over all cells, with the sum of the two levels.
        text, image: along one level, with the other input whole.
        text overall, image overall: along one level, averaged over those of the other.
        mild: as both, over the cells in which at most `MILD` of either is destroyed.
    """
    values = np.asarray(grid, dtype=np.float64)
    text, image = (np.arange(size) for size in values.shape)
    both = np.add.outer(text, image)
    mild = np.ix_(*(levels[: last + 1] for levels, last in zip((text, image), last_mild(values), strict=True)))
    compared = {
        "both": (both, values),
        "text": (text, values[:, 0]),
        "image": (image, values[0]),
        "text overall": (text, values.mean(axis=1)),
        "image overall": (image, values.mean(axis=0)),
        "mild": (both[mild], values[mild]),
    }
    return {  # 0 for what does not change at all
        name: float(spearmanr(levels.ravel(), found.ravel()).statistic) if np.ptp(found) else 0.0
        for name, (levels, found) in compared.items()
    }


def by_cut(grid: ArrayLike) -> list[float]:  # [levels, levels]
    """The rank correlation over the cells up to the second level of both, up to the third, ..., up to the last."""
    values = np.asarray(grid, dtype=np.float64)
    return [rank_correlations(values[:count, :count])["both"] for count in range(2, len(values) + 1)]


def last_mild(values: NDArray[np.float64]) -> tuple[int, ...]:  # [text levels, image levels]
    """Row and column of the last cell that is mild, levels being equally far apart."""
    share, of = MILD
    return tuple(share * (size - 1) // of for size in values.shape)


def corners(grid: ArrayLike) -> dict[str, float]:  # [text levels, image levels]
    """Whole, with only the text, only the image, both destroyed, and with as much of both destroyed as is mild."""
    values = np.asarray(grid, dtype=np.float64)
    places = {"whole": (0, 0), "text": (-1, 0), "image": (0, -1), "both": (-1, -1), "mild": last_mild(values)}
    return {name: float(values[place]) for name, place in places.items()}


@torch.no_grad()
def one_letter(
    vlm: BayesVLM, pictures: Sequence[Image.Image], captions: Sequence[str], seed: int = 0
) -> dict[str, float]:
    """One letter of each caption replaced: how often the expected cosine rises, and the variance with it.

    `told` is the share, among pairs whose expected cosine rises, of those whose variance rises too.
    """
    generator = torch.Generator().manual_seed(seed)
    changed = [crossed_out(text, 1 / max(1, len("".join(text.split()))), generator) for text in captions]
    images = vlm.image_features(list(pictures), progress=False)
    mean, variance = matched(vlm, images, vlm.text_features(list(captions), progress=False))
    new_mean, new_variance = matched(vlm, images, vlm.text_features(changed, progress=False))
    rises, spreads = new_mean > mean, new_variance > variance
    return {
        "mean rises": float(rises.double().mean()),
        "variance rises": float(spreads.double().mean()),
        "told": float((rises & spreads).double().sum() / rises.double().sum().clamp_min(1)),
        "change of the mean": float((new_mean - mean).mean()),
        "change of the variance": float((new_variance / variance).log().mean().expm1()),
    }


def measure(lab: Lab) -> Numbers:
    """Both moments over all combinations of corruption."""
    vlm = lab.vlm(lab.models[0])
    pictures, captions = spread_pairs(lab.set(lab.sets[0]), PICTURES)
    found = corrupt(vlm, pictures, captions)
    grids = {name: getattr(found, name).tolist() for name in ("mean", "std", "variance")}
    return {
        "pairs": found.pairs,
        "levels": list(found.levels),
        **grids,
        "rank correlations": {name: rank_correlations(grid) for name, grid in grids.items()},
        "rank correlations up to a level": {name: by_cut(grid) for name, grid in grids.items()},
        "corners": {name: corners(grid) for name, grid in grids.items()},
        "one letter": one_letter(vlm, pictures, captions),
    }


def tell(numbers: Mapping[str, Any]) -> Finding:
    """What becomes of the cosine, and of its variance."""
    plan = Plan.of(numbers)
    model, data, pairs = plan.model, plan.sets[0], counted(numbers["pairs"], "pair")
    ranks, ends, letter = numbers["rank correlations"], numbers["corners"], numbers["one letter"]
    mean, variance = ends["mean"], ends["variance"]
    cosine = {where: rounded(value, 2) for where, value in mean.items()}
    answer = (
        f"Destroying two fifths of caption and picture of {pairs} of {data} takes the expected "
        f"cosine of {model} from {cosine['whole']} to {cosine['mild']} and changes its variance by "
        f"{_change(variance, 'mild')}; destroying all of both takes it to {cosine['both']} ({cosine['text']} when only "
        f"the caption goes, {cosine['image']} when only the picture goes) and changes the variance by "
        f"{_change(variance, 'both')} ({_change(variance, 'text')} and {_change(variance, 'image')}). With the caption "
        f"gone, greying out the picture takes the expected cosine from {cosine['text']} to {cosine['both']}."
    )
    judged = ("mild", "both")  # among the rank correlations, and the last of those cells among the corners
    falls = {on: ranks["mean"][on] < -CLEAR and mean[on] < mean["whole"] for on in judged}
    rises = {on: ranks["variance"][on] > CLEAR and variance[on] > variance["whole"] for on in judged}
    percent = {name: f"{100 * letter[name]:.0f} %" for name in ("mean rises", "told", "variance rises")}
    claims = catalogue.judged(
        NAME,
        (
            falls["mild"],
            f"{cosine['whole']} to {cosine['mild']} (all destroyed: {cosine['both']}); "
            f"{_ranked(ranks['mean'], f'below {-CLEAR:g}')}",
        ),
        (
            rises["mild"],
            f"{_change(variance, 'mild')} (all destroyed: {_change(variance, 'both')}); "
            f"{_ranked(ranks['variance'], f'above {CLEAR:g}')}",
        ),
        (
            letter["mean rises"] > 0 and letter["told"] > 0.5,
            f"the expected cosine rises for {percent['mean rises']} of the pairs (wanted: any), and for "
            f"{percent['told']} of these the variance rises too (wanted: most; of all pairs it rises for "
            f"{percent['variance rises']}); on average the cosine changes by {signed(letter['change of the mean'], 2)}",
        ),
    )
    cuts = _cuts(numbers["levels"], numbers["rank correlations up to a level"]["mean"])
    remarks = [_rule(ranks, falls["both"], rises["both"]), cuts, _printed()]
    return Finding(answer, claims, [_maps(f"{model} on {pairs} of {data}", numbers)], remarks)


def _rule(ranks: Mapping[str, Mapping[str, float]], falls: bool, rises: bool) -> str:
    """By what the claims are judged, and what the whole grid would have said."""
    verdict = {True: "holds", False: "does not hold"}
    return (
        "The first two claims are judged where at most two fifths of either input are destroyed, for the paper "
        "replaces no more than 5 of 17 characters; how much of the picture its 5 squares cover it does not say. This "
        "rule was chosen after the whole grid had been seen on the embedded world. By the whole grid, down to inputs "
        f"of which nothing is left, the first claim {verdict[falls]} (rank correlation "
        f"{signed(ranks['mean']['both'], 2)}) and the second {verdict[rises]} "
        f"({signed(ranks['variance']['both'], 2)})."
    )


def _cuts(levels: Sequence[float], correlations: Sequence[float]) -> str:
    """How much the first claim owes to where mild ends."""
    by_level = dict(zip(levels[1:], correlations, strict=True))
    each = ", ".join(f"{signed(value, 2)} up to {100 * level:.0f} %" for level, value in by_level.items())
    enough = sum(value < -CLEAR for value in correlations)
    return (
        f"The rank correlation of the expected cosine by how much of either may be destroyed: {each}. It is below "
        f"{-CLEAR:g}, as the first claim wants, at {enough} of these {len(correlations)} cuts."
    )


def _change(ends: Mapping[str, float], which: str) -> str:
    return f"{signed(100 * (ends[which] / ends['whole'] - 1), 0)} %"


def _ranked(ranks: Mapping[str, float], wanted: str) -> str:
    by = {name: signed(value, 2) for name, value in ranks.items()}
    return (
        f"rank correlation with corruption {by['mild']} where at most two fifths of either are destroyed (wanted: "
        f"{wanted}), {by['both']} over the whole grid; along the caption {by['text']} with the picture whole and "
        f"{by['text overall']} on average, along the picture {by['image']} with the caption whole and "
        f"{by['image overall']} on average"
    )


def _maps(what: str, numbers: Mapping[str, Any]) -> HeatMaps:
    levels = [f"{level:.0%}" for level in numbers["levels"]]
    titles = {"mean": "Expected cosine", "variance": "Variance", "std": "Standard deviation"}
    return HeatMaps(
        {title: numbers[name] for name, title in titles.items()},
        levels,
        levels,
        "letters of the caption crossed out",
        "picture greyed out",
        f"{what}, means over the pairs.",
        "Expected cosine, variance and standard deviation of the cosine when caption and picture are destroyed.",
    )


def _printed() -> str:
    """What the paper's own grid says, in units of the cosine."""
    curves = published_curves(NAME)
    mean, variance = corners(curves["mean"]), corners(curves["variance"])
    ranks = {name: rank_correlations(curves[name])["both"] for name in ("mean", "variance")}
    return (
        "The paper's grid is of one picture and one prompt, with up to 5 of 17 characters (spaces too) and up to 5 "
        f"grey squares. On its scale, most likely {_SCALE} times the cosine, the mean goes from {mean['whole']:.1f} to "
        f"{mean['both']:.1f} and the variance from {variance['whole']:.2f} to {variance['both']:.2f} (a standard "
        f"deviation of the cosine of {variance['whole'] ** 0.5 / _SCALE:.4f} to "
        f"{variance['both'] ** 0.5 / _SCALE:.4f}); its rank correlations with corruption are "
        f"{signed(ranks['mean'], 2)} and {signed(ranks['variance'], 2)}. With one character replaced its mean "
        f"rises to {curves['mean'][1][0]:.1f}."
    )


ITEMS = {NAME: (measure, tell)}
