r"""How good ProbCosine is: its Gaussian against the cosines of draws, as the two means move apart.

A matching pair's caption is moved away from its picture, `mu_h + k |mu_h - mu_g| u`, along a random unit vector u of
its own that does not point back to the picture; covariances stay. At each k the cosines of draws are compared with
`N(mean, variance)` of ProbCosine in three ways:

    marginals     each embedding by itself from N(mu, diag Sigma), which is what ProbCosine assumes (the paper's way)
    projections   both projections from the posterior, whose embeddings have the full covariance: what is really meant,
                  compared with ProbCosine by the diagonal and by the full covariance

The measure is the total variation distance between a kernel density estimate of the draws and the Gaussian: by how much
the two can differ in the probability of anything. So many draws of that very Gaussian are not at zero either: theirs is
the noise floor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.integrate import trapezoid
from scipy.stats import gaussian_kde, norm
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from bayesvlm.core.cosine import prob_cosine
from bayesvlm.core.distribution import Drawn
from bayesvlm.core.embeddings import GaussianEmbeddings
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.core.predict import embedding_groups
from bayesvlm.report.blocks import Table
from bayesvlm.vlm import BayesVLM
from bayesvlm_paper import catalogue
from bayesvlm_paper.exhibits import Lines, Panel, Series
from bayesvlm_paper.finding import Finding, Numbers
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.plans import Plan

NAME = "cosine_similarity"
MOST_PAIRS, DRAWS = 200, 500
SHIFTS = (0.0, 0.5, 1.0, 2.0, 4.0)
"""k: how far the caption is moved, in distances between the two means."""
BANDWIDTH = 0.3
"""Of the kernel, in standard deviations of the draws."""
SLACK = 0.1
"""A total variation distance so far above the noise floor is still called low."""

_POINTS = 240  # of the grid on which densities are compared
_SHOWN = 81  # points of a curve
_AWAY, _MARGINALS, _PROJECTIONS, _FLOOR = range(4)  # seeds: with one for all, draws would point where captions move
MARGINALS, DIAGONAL, FULL = "marginals", "projections, diagonal", "projections, full"
_DRAWN = {
    MARGINALS: "draws of the embeddings",
    DIAGONAL: "draws of the projections, diagonal",
    FULL: "draws of the projections, full",
}
_CURVES = {
    MARGINALS: ("draws of each embedding", "ProbCosine (diagonal)"),
    FULL: ("draws of the projections", "ProbCosine (full)"),
}
"""Comparison -> what its two curves are called."""
_QUANTITIES = {
    "distance": ("total variation", ".3f"),
    "distance, 90 %": ("total variation, 90th percentile", ".3f"),
    "std ratio": ("std by ProbCosine / std", ".2f"),
    "bias": ("bias of the mean / std", "+.3f"),
    "absolute bias": ("|bias of the mean| / std", ".3f"),
}
"""Of `summary` -> what a table calls it, and its format."""


# Draws ---------------------------------------------------------------------------------------------------------------

Draws = Iterable[tuple[Tensor, Tensor]]  # embeddings of the pictures and of the captions, [N, d] each


def marginal_draws(
    x: GaussianEmbeddings, y: GaussianEmbeddings, draws: int, seed: int = _MARGINALS
) -> Iterator[tuple[Tensor, Tensor]]:
    """Every embedding by itself; diagonal covariances."""
    generator = torch.Generator().manual_seed(seed)
    spreads = x.covariance.per_item(), y.covariance.per_item()
    if any(spread.basis is not None for spread in spreads):
        raise BayesVLMError("Marginals are drawn with diagonal covariances; embed with covariance='diagonal'.")
    g_std, h_std = (spread.variance.sqrt() for spread in spreads)
    for _ in range(draws):
        g_noise, h_noise = (_randn(std, generator) for std in (g_std, h_std))
        yield x.mean + g_std * g_noise, y.mean + h_std * h_noise


def projection_draws(
    image: Drawn, images: Features, text: Drawn, texts: Features, draws: int, seed: int = _PROJECTIONS
) -> Iterator[tuple[Tensor, Tensor]]:
    """Both projections, one draw of them for all pairs."""
    for g_draws, h_draws in embedding_groups(image, images, text, texts, draws, seed):
        yield from zip(g_draws, h_draws, strict=True)


def cosines(draws: Draws, away: Tensor, shifts: Sequence[float] = SHIFTS) -> Tensor:  # [N, d] -> [K, N, S]
    """Cosines of each picture with its own caption, moved by every multiple of `away`."""
    found = [torch.stack([cosine_similarity(g, h + shift * away, dim=1) for shift in shifts]) for g, h in draws]
    return torch.stack(found, dim=2).double().cpu()


def directions_away(x: Tensor, y: Tensor, seed: int = _AWAY) -> Tensor:  # [N, d], [N, d] -> [N, d]
    """For each pair a random direction, as long as y is away from x, that takes y further away from x."""
    apart = y - x
    unit = normalize(_randn(y, torch.Generator().manual_seed(seed)), dim=1)
    back = (unit * apart).sum(dim=1, keepdim=True) < 0
    away: Tensor = torch.where(back, -unit, unit) * apart.norm(dim=1, keepdim=True)
    return away


def _randn(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)


# Comparing -----------------------------------------------------------------------------------------------------------


def total_variation(samples: Tensor, mean: float, std: float, bandwidth: float = BANDWIDTH) -> float:  # [S]
    """Half the integral of |kernel density of samples - N(mean, std^2)| over where either has any mass."""
    margin = 5 * bandwidth * float(samples.std())
    low = min(float(samples.min()) - margin, mean - 6 * std)
    high = max(float(samples.max()) + margin, mean + 6 * std)
    points = np.linspace(low, high, _POINTS)
    gap = gaussian_kde(samples.numpy(), bandwidth)(points) - norm.pdf(points, mean, std)
    return float(trapezoid(np.abs(gap), points)) / 2


def compare(samples: Tensor, mean: Tensor, std: Tensor) -> dict[str, Tensor]:  # [N, S], [N], [N]; float64
    """Draws against a Gaussian, per pair [N].

    Returns:
        distance: total variation distance.
        ratio: analytic standard deviation over that of the draws.
        bias: analytic mean minus that of the draws, in standard deviations of the draws.
    """
    each = zip(samples, mean.tolist(), std.tolist(), strict=True)
    distance = torch.tensor([total_variation(*one) for one in each], dtype=torch.float64)
    spread = samples.std(dim=1)
    return {"distance": distance, "ratio": std / spread, "bias": (mean - samples.mean(dim=1)) / spread}


def summary(compared: Mapping[str, Tensor]) -> dict[str, float]:
    """Medians over the pairs, and how bad the worst tenth is at least."""
    return {
        "distance": float(compared["distance"].median()),
        "distance, 90 %": float(compared["distance"].quantile(0.9)),
        "std ratio": float(compared["ratio"].median()),
        "bias": float(compared["bias"].median()),
        "absolute bias": float(compared["bias"].abs().median()),
    }


def noise_floor(pairs: int, draws: int, seed: int = _FLOOR) -> dict[str, float]:
    """So many draws of a Gaussian against itself: no comparison can be expected to do better."""
    one = torch.ones(pairs, dtype=torch.float64)
    drawn = _randn(one.new_empty(pairs, draws), torch.Generator().manual_seed(seed))
    return summary(compare(drawn, 0 * one, one))


@dataclass(frozen=True)
class Moved:
    """The pairs with their captions moved by one shift.

    Args:
        apart: distance between the two means, of each pair.
        cosine: between the two means.
        moments: comparison -> mean and standard deviation by ProbCosine.
        samples: comparison -> cosines of the draws.
    """

    apart: Tensor  # [N]
    cosine: Tensor  # [N]
    moments: Mapping[str, tuple[Tensor, Tensor]]  # [N], [N]
    samples: Mapping[str, Tensor]  # [N, S]

    def compared(self, name: str) -> dict[str, Tensor]:
        return compare(self.samples[name], *self.moments[name])


@torch.no_grad()
def move_apart(vlm: BayesVLM, images: Features, texts: Features, draws: int = DRAWS) -> dict[float, Moved]:
    """Every shift of these pairs, row i of the images belongs to row i of the texts.

    What comes with variances of its own has them diagonal, and then there is no more to compare with than marginals.
    """
    image, text = vlm.posterior["image"], vlm.posterior["text"]
    fitted = not vlm.predicts_variance and bool(image.tensors().keys() & {"A"})
    diagonal = vlm.replace(covariance="diagonal") if fitted else vlm
    x, y = diagonal.embed_images(images), diagonal.embed_texts(texts)
    away = directions_away(x.mean, y.mean)
    sides, samples = {MARGINALS: (x, y)}, {MARGINALS: cosines(marginal_draws(x, y, draws), away)}
    if fitted:
        full = vlm.replace(covariance="full")
        drawn = cosines(projection_draws(image, images, text, texts, draws), away)
        sides |= {DIAGONAL: (x, y), FULL: (full.embed_images(images), full.embed_texts(texts))}
        samples |= {DIAGONAL: drawn, FULL: drawn}
    moved = {}
    for place, shift in enumerate(SHIFTS):
        further = {n: (g, GaussianEmbeddings(h.mean + shift * away, h.covariance)) for n, (g, h) in sides.items()}
        mean = further[MARGINALS][1].mean
        moved[shift] = Moved(
            (mean - x.mean).norm(dim=1).double().cpu(),
            cosine_similarity(x.mean, mean, dim=1).double().cpu(),
            {name: moments(*pair) for name, pair in further.items()},
            {name: found[place] for name, found in samples.items()},
        )
    return moved


def moments(x: GaussianEmbeddings, y: GaussianEmbeddings) -> tuple[Tensor, Tensor]:  # [N], [N]
    """ProbCosine's mean and standard deviation for every x with its own y."""
    found = prob_cosine(x, y)
    return found.mean.diagonal().double().cpu(), found.variance.diagonal().double().cpu().sqrt()


# The figure ----------------------------------------------------------------------------------------------------------


def measure(lab: Lab) -> Numbers:
    """ProbCosine's Gaussian against draws, at every shift."""
    model = lab.models[0]
    images, texts = lab.pairs(model)
    rows = torch.linspace(0, len(images) - 1, min(MOST_PAIRS, len(images)), dtype=torch.float64).long()
    moved = move_apart(lab.vlm(model), images[rows], texts[rows])
    return {
        "pairs": len(rows),
        "draws": DRAWS,
        "bandwidth": BANDWIDTH,
        "noise floor": noise_floor(len(rows), DRAWS),
        "shifts": {
            f"{shift:g}": {
                "apart": float(each.apart.median()),
                "cosine": float(each.cosine.median()),
                "first-order std ratio": float((1 - each.cosine.square()).rsqrt().median()),
                **{name: summary(each.compared(name)) for name in each.moments},
            }
            for shift, each in moved.items()
        },
        "std of the cosine": float(moved[SHIFTS[0]].samples[MARGINALS].std(dim=1).median()),
        "one pair": one_pair(moved),
    }


def one_pair(moved: Mapping[float, Moved]) -> list[dict[str, Any]]:
    """Densities for the pair with the median distance before it is moved, at every shift."""
    distance = moved[SHIFTS[0]].compared(MARGINALS)["distance"]
    row = int(distance.argsort()[(len(distance) - 1) // 2])
    found = []
    for each in moved.values():
        densities = {}
        for name in (name for name in _CURVES if name in each.moments):
            samples, (mean, std) = each.samples[name][row], (float(moment[row]) for moment in each.moments[name])
            reach = max(4 * std, float((samples - mean).abs().max()) + BANDWIDTH * std)
            x = np.linspace(mean - reach, mean + reach, _SHOWN)
            drawn, gaussian = gaussian_kde(samples.numpy(), BANDWIDTH)(x), norm.pdf(x, mean, std)
            densities[name] = {"x": x.tolist(), "drawn": drawn.tolist(), "gaussian": gaussian.tolist()}
        found.append({"apart": float(each.apart[row]), "densities": densities})
    return found


def tell(numbers: Mapping[str, Any]) -> Finding:
    """How far ProbCosine is from what it approximates."""
    model, pairs = Plan.of(numbers).model, numbers["pairs"]
    shifts, floor = list(numbers["shifts"].values()), numbers["noise floor"]
    near, far = shifts[0], shifts[-1]
    answer = (
        f"For {pairs} pairs of {model} the median total variation distance between the cosines of {DRAWS} draws "
        f"and ProbCosine's Gaussian is {_span(shifts, MARGINALS)} ({floor['distance']:.3f} for draws of that very "
        f"Gaussian); ProbCosine's standard deviation is {near[MARGINALS]['std ratio']:.2f} times that of the draws for "
        f"the pairs as they are (cosine of the means {near['cosine']:.2f}) and {far[MARGINALS]['std ratio']:.2f} times "
        f"furthest apart ({far['cosine']:.2f})."
    )
    if FULL in near:
        answer += (
            f" Against draws of the projections themselves the distance is {_span(shifts, DIAGONAL)} with the diagonal "
            f"covariance and {_span(shifts, FULL)} with the full one, and the standard deviation of unmoved pairs is "
            f"{near[DIAGONAL]['std ratio']:.2f} and {near[FULL]['std ratio']:.2f} times theirs."
        )
    worst = max(each[MARGINALS]["distance"] for each in shifts)
    claims = catalogue.judged(
        NAME,
        (
            worst <= floor["distance"] + SLACK,
            f"against draws with the diagonal covariance the median total variation distance is at most {worst:.3f}, "
            f"{worst - floor['distance']:+.3f} from the noise floor (low: at most {SLACK:+g})",
        ),
    )
    first_order = "first-order std ratio"
    remarks = [
        *catalogue.remarks(NAME),
        f"Its length scale of {BANDWIDTH} is taken in standard deviations of the draws (scipy's bw_method): in units "
        f"of the cosine it would blur distributions whose standard deviation is {numbers['std of the cosine']:.3f} "
        "here.",
        "ProbCosine divides by fixed norms, so it counts noise along an embedding too, which changes no cosine. For "
        "small variances, equal in all directions, that makes its standard deviation 1 / sqrt(1 - cos^2) times too "
        f"large: {near[first_order]:.2f} for these pairs as they are, {far[first_order]:.2f} furthest apart.",
    ]
    return Finding(answer, claims, [_curves(model, numbers["one pair"]), _table(model, shifts, floor)], remarks)


_Shifts = Sequence[Mapping[str, Any]]  # of every shift: medians of the means, and comparison -> quantity -> value


def _span(shifts: _Shifts, name: str) -> str:
    distances = [each[name]["distance"] for each in shifts]
    return f"{min(distances):.3f} to {max(distances):.3f}"


def _curves(model: str, pair: Sequence[Mapping[str, Any]]) -> Lines:
    """One pair, a panel for each shift."""
    panels = []
    for each in pair:
        series = []
        for name, of in each["densities"].items():
            drawn, gaussian = _CURVES[name]
            series.append(Series(drawn, of["x"], of["drawn"]))
            series.append(Series(gaussian, of["x"], of["gaussian"], dashed=True))
        panels.append(Panel(f"means {each['apart']:.1f} apart", "cosine similarity", "density", series))
    return Lines(
        panels,
        f"One pair of {model} (the one with the median distance) as it is and with its caption moved away by "
        f"{', '.join(f'{shift:g}' for shift in SHIFTS[1:])} times the distance of the means: kernel density of "
        f"{DRAWS} draws (solid) and ProbCosine (dashed).",
        "Kernel densities of drawn cosines and ProbCosine's Gaussian density over them, a panel for each shift.",
    )


def _table(model: str, shifts: _Shifts, floor: Mapping[str, float]) -> Table:
    """Quantities below one another, a column for each shift and one for the noise floor."""
    rows = [
        ["distance of the means", *(f"{each['apart']:.1f}" for each in shifts), ""],
        ["cosine of the means", *(f"{each['cosine']:.2f}" for each in shifts), ""],
    ]
    rows += [
        [f"{title}: {drawn}", *(f"{each[name][quantity]:{form}}" for each in shifts), f"{floor[quantity]:{form}}"]
        for quantity, (title, form) in _QUANTITIES.items()
        for name, drawn in _DRAWN.items()
        if name in shifts[0]
    ]
    columns = ["", *(f"shift {shift:g}" for shift in SHIFTS), "noise floor"]
    caption = (
        f"{model}: medians over the pairs, ProbCosine by the diagonal or the full covariance against draws. The noise "
        f"floor is that of {DRAWS} draws of a Gaussian against itself."
    )
    return Table(columns, rows, caption=caption)


ITEMS = {NAME: (measure, tell)}
