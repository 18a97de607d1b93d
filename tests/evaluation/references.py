"""Slow references for the metrics, one input at a time in plain Python, and the predictions they are tried on."""

from __future__ import annotations

from itertools import groupby, pairwise, permutations

import torch
from torch import Tensor


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def predictions(
    rows: int, classes: int, seed: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:  # [N, C], [N]
    """Overconfident probabilities, and labels drawn from flatter ones."""
    draws = generator(seed)
    logits = 2 * torch.randn(rows, classes, generator=draws, dtype=torch.float64)
    labels = torch.multinomial(torch.softmax(logits / 2, dim=1), 1, generator=draws)[:, 0]
    return torch.softmax(logits, dim=1).to(dtype), labels


def two_classes(
    confidence: list[float], correct: list[bool], dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Two classes, the first predicted with this confidence (at least 0.5)."""
    first = torch.tensor(confidence, dtype=dtype)
    return torch.stack([first, 1 - first], dim=1), torch.tensor([0 if right else 1 for right in correct])


def ece(confidence: list[float], correct: list[bool], bins: int) -> float:
    """Equal-width bins closed on the left, the last on both sides."""
    total = 0.0
    for b in range(bins):
        inside = [
            (right, p)
            for right, p in zip(correct, confidence, strict=True)
            if b / bins <= p and (p < (b + 1) / bins or b == bins - 1)
        ]
        if inside:
            accuracy = sum(right for right, _ in inside) / len(inside)
            total += len(inside) / len(correct) * abs(accuracy - sum(p for _, p in inside) / len(inside))
    return total


def adaptive_ece(confidence: list[float], correct: list[bool], bins: int) -> float:
    """Every input fills [rank, rank + 1), a bin takes what overlaps it, and tied inputs have their common mean."""
    pairs = sorted(zip(confidence, correct, strict=True))
    gaps: list[float] = []
    for p, members in groupby(pairs, key=lambda pair: pair[0]):
        rights = [right for _, right in members]
        gaps += [sum(rights) / len(rights) - p] * len(rights)
    width = len(gaps) / bins
    total = 0.0
    for b in range(bins):
        low, high = b * width, (b + 1) * width
        total += abs(sum(max(0.0, min(high, k + 1) - max(low, k)) * gap for k, gap in enumerate(gaps)))
    return total / len(gaps)


def risks(uncertainty: list[float], correct: list[bool]) -> list[float]:
    """Risk at every coverage, averaged over all orders of the inputs in which the uncertainty does not fall."""
    count = len(correct)
    total, orders = [0.0] * count, 0
    for order in permutations(range(count)):
        if all(uncertainty[i] <= uncertainty[j] for i, j in pairwise(order)):
            orders += 1
            for k in range(1, count + 1):
                total[k - 1] += sum(not correct[i] for i in order[:k]) / k
    return [value / orders for value in total]


def best_risks(correct: list[bool]) -> list[float]:
    """Risk at every coverage when all errors come last."""
    order = sorted(correct, reverse=True)
    return [sum(not right for right in order[:k]) / k for k in range(1, len(order) + 1)]


def trapezoid_augrc(uncertainty: list[float], correct: list[bool]) -> float:
    """AUGRC as torch-uncertainty 0.13 computes it where there are no ties, written out: it asks for torchvision.

    The trapezoidal rule on the generalised risks at 1/N ... 1, stretched to a support of length one.
    """
    count = len(correct)
    order = sorted(range(count), key=lambda i: uncertainty[i])
    risks = [sum(not correct[i] for i in order[:k]) / count for k in range(1, count + 1)]
    area = sum((low + high) / 2 / count for low, high in pairwise(risks))
    return area / (1 - 1 / count)


def pair_components(scores: list[float], positives: list[bool]) -> tuple[list[float], list[float]]:
    """Structural components of DeLong, one comparison of a positive with a negative at a time."""
    above = [score for score, flag in zip(scores, positives, strict=True) if flag]
    below = [score for score, flag in zip(scores, positives, strict=True) if not flag]

    def won(x: float, y: float) -> float:
        return 1.0 if x > y else 0.5 if x == y else 0.0

    return (
        [sum(won(x, y) for y in below) / len(below) for x in above],
        [sum(won(x, y) for x in above) / len(above) for y in below],
    )
