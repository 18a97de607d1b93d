r"""One step of `select(strategy="epig")` against the textbook: draws of W from its covariance, and the definition

    EPIG(x) = H[y] + 1/M sum_m ( H[y_m] - H[y, y_m] ),   p(y, y_m) = 1/S sum_k p_k(y|x) p_k(y_m|x_m)

with the joint probabilities of all pairs of labels written out, in float64. The scores alone are compared on the same
draws, so that they must agree; the whole steps draw for themselves.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bayesvlm.active import Epig, rank
from bayesvlm.active.acquisition import epig
from bayesvlm.core.features import Features
from bayesvlm.core.predict import entropy
from bayesvlm.experiments.bench.measured import Comparison, Measured, Plan
from bayesvlm.experiments.bench.turns import take_turns
from bayesvlm.vlm import BayesVLM

SCALE = 100.0
REFERENCE = "the definition, float64"
_CELLS = 2**23  # joint probabilities that the definition holds at a time


def measure(plan: Plan) -> Measured:
    """Of a pool and targets with noisy classes, about as hard as a real set."""
    pool, targets, classes, draws, p, d = (30, 12, 5, 20, 24, 16) if plan.quick else (1000, 150, 65, 100, 768, 512)
    vlm, images, names, labels = problem(pool + targets, classes, p, d, plan.device)
    items, others = images[:pool], images[pool:]
    asked: dict[str, Any] = {"draws": draws, "options": Epig(candidates=pool, targets=targets), "progress": False}
    probs = textbook_draws(vlm, images, names, draws)
    right = definition(probs[:, :pool], probs[:, pool:])
    single = probs.float()
    runs: dict[str, Any] = {
        "step": partial(rank, vlm, items, others, names, "epig", 1, labels[:pool], **asked),
        f"step, {REFERENCE}": partial(textbook_step, vlm, items, others, names, draws),
        "scores": lambda: epig(single[:, :pool].contiguous(), single[:, pool:].contiguous()),
        f"scores, {REFERENCE}": partial(definition, probs[:, :pool], probs[:, pool:]),
    }
    error = float((epig(single[:, :pool], single[:, pool:]).double() - right).abs().max())
    runs["step"]()  # everything else was done once by now
    seconds = take_turns(runs, plan.device, plan.repeats or 3, warm_ups=0)
    facts: dict[str, dict[str, Any]] = {"step": {}, "scores": {"largest_difference": error}}
    return Measured(
        REFERENCE,
        "step",
        {"pool": pool, "targets": targets, "classes": classes, "draws": draws, "p": p, "d": d},
        {way: Comparison(seconds[way], seconds[f"{way}, {REFERENCE}"], facts[way]) for way in facts},
        {"largest_score": float(right.max()), "median_score": float(right.median())},
    )


def problem(images: int, classes: int, p: int, d: int, device: str) -> tuple[BayesVLM, Features, Features, Tensor]:
    """A fitted model, images of noisy classes, the classes and the labels."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    weight = draw(d, p) / math.sqrt(p)
    vlm = BayesVLM.from_projections(weight, weight, math.log(SCALE))
    shared, names, pairs = draw(1, p), draw(classes, p), draw(4 * p, p)  # shared: cosines far from zero, as CLIP's
    vlm.fit([(Features(shared + pairs + 2 * draw(4 * p, p)), Features(shared + pairs))], progress=False)
    labels = torch.randint(classes, (images,), generator=generator)
    noise = 5.3 * math.sqrt(p / 768) * draw(images, p)
    known = Features(3 * shared + names[labels.to(names.device)] + noise)
    return vlm.replace(tau=10.0), known, Features(3 * shared + names), labels


def textbook_step(vlm: BayesVLM, pool: Features, target: Features, names: Features, draws: int) -> int:
    """The item that the definition chooses."""
    probs = textbook_draws(vlm, Features.concatenate([pool, target]), names, draws)
    return int(definition(probs[:, : len(pool)], probs[:, len(pool) :]).argmax())


def textbook_draws(
    vlm: BayesVLM, images: Features, names: Features, draws: int, seed: int = 0
) -> Tensor:  # [S, N, C] float64
    """Class probabilities under draws `W + L_B Z L_A^T` of the image projection, the text projection at its mean."""
    factors, tau, lam = vlm.factors["image"], vlm.tau, vlm.lam["image"]
    roots = [torch.linalg.cholesky(_damped_inverse(of.double(), tau, lam)) for of in (factors.A, factors.B)]
    weight, phi = vlm.image.augmented.double(), vlm.image.inputs(images).double()
    classes = vlm.scale * functional.normalize(vlm.embed_texts(names).mean.double(), dim=1)
    root_A, root_B = (root.to(weight.device) for root in roots)
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(draws):
        Z = torch.randn(weight.shape, generator=generator, dtype=torch.float64).to(weight.device)
        embedded = phi @ (weight + root_B @ Z @ root_A.T).T
        found.append(torch.softmax(functional.normalize(embedded, dim=1) @ classes.T, dim=1))
    return torch.stack(found)


def definition(pool: Tensor, target: Tensor) -> Tensor:  # [S, N, C], [S, M, C] -> [N]
    """EPIG as it is defined; a few pool items at a time, whose joint probabilities would take gigabytes otherwise."""
    draws, _, classes = pool.shape
    cells = target.shape[1] * classes**2
    scores: list[Tensor] = []
    for part in torch.split(pool, max(1, _CELLS // cells), dim=1):
        joint: Tensor = torch.einsum("snc,smk->nmck", part, target) / draws
        both: Tensor = entropy(joint.flatten(2)).mean(dim=1)
        scores.append(entropy(part.mean(dim=0)) + entropy(target.mean(dim=0)).mean() - both)
    return torch.cat(scores)


def _damped_inverse(factor: Tensor, tau: float, lam: float) -> Tensor:
    identity = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
    inverse: Tensor = torch.linalg.inv(math.sqrt(tau) * factor + math.sqrt(lam) * identity)
    return inverse
