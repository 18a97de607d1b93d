"""Slow float64 references for the mathematics of `bayesvlm.core`, sharing no code with it.

Everything here is written the long way round: automatic differentiation one sample at a time, dense Kronecker
matrices, Decimal arithmetic, Monte Carlo.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import torch
from torch import Tensor
from torch.func import hessian, jacrev

# ------------------------------------------------------------------------------------------------ comparing arrays


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """|actual - expected| / |expected| in the Frobenius norm; the absolute error where nothing is expected."""
    actual, expected = actual.detach().double(), expected.detach().double()
    difference, size = float((actual - expected).norm()), float(expected.norm())
    return difference / size if size > 0 else difference


def assert_close(actual: Tensor, expected: Tensor, rtol: float, what: str = "arrays") -> float:
    """Require a relative Frobenius error of at most `rtol`; on failure say where the two differ, and by how much.

    Returns the error, so that a test can print or tighten it.
    """
    actual, expected = torch.as_tensor(actual), torch.as_tensor(expected)
    assert actual.shape == expected.shape, f"{what}: shape {list(actual.shape)}, expected {list(expected.shape)}"
    error = relative_error(actual, expected)
    if not error <= rtol:  # NaN fails too
        raise AssertionError(_report(actual.double(), expected.double(), error, rtol, what))
    return error


def _report(actual: Tensor, expected: Tensor, error: float, rtol: float, what: str) -> str:
    gap = (actual - expected).abs().nan_to_num(nan=math.inf).flatten()
    lines = [
        f"{what} differ: relative error {error:.3e}, at most {rtol:.1e} was allowed.",
        f"  norms: actual {float(actual.norm()):.6e}, expected {float(expected.norm()):.6e}, "
        f"ratio {float(actual.norm()) / max(float(expected.norm()), 1e-300):.6f}",
        f"  not finite: {int((~torch.isfinite(actual)).sum())} of actual, {int((~torch.isfinite(expected)).sum())} "
        f"of expected, out of {actual.numel()}",
        "  largest gaps (index: actual, expected):",
    ]
    for place in gap.topk(min(5, len(gap))).indices.tolist():
        index = tuple(int(i) for i in np.unravel_index(place, tuple(actual.shape))) if actual.ndim else ()
        lines.append(f"    {index}: {float(actual[index]):+.9e}, {float(expected[index]):+.9e}")
    return "\n".join(lines)


# ------------------------------------------------------------------------------------- curvature, by differentiation


def unit(vectors: Tensor) -> Tensor:
    """Rows of length one, in float64."""
    vectors = vectors.double()
    return vectors / vectors.square().sum(dim=-1, keepdim=True).sqrt()


def _unit_vector(g: Tensor) -> Tensor:  # [d] -> [d]
    return g / (g @ g).sqrt()


def infonce_loss(logits: Tensor, label: Tensor) -> Tensor:  # [K], [] -> []
    """Cross-entropy of one row of logits."""
    return torch.logsumexp(logits, dim=0) - logits[int(label)]


def sigmoid_loss(logits: Tensor, label: Tensor) -> Tensor:  # [K], [] -> []
    """Pairwise sigmoid loss of one row, averaged over its K pairs: sign +1 at the match, -1 elsewhere."""
    sign = torch.where(torch.arange(len(logits)) == label, 1.0, -1.0).to(logits)
    return torch.logaddexp(torch.zeros_like(logits), -sign * logits).mean()  # no linear branch, unlike softplus


def autograd_ggn(
    source: Tensor,  # [N, d]
    target: Tensor,  # [K, d]
    scale: float,
    bias: float = 0.0,
    loss: str = "infonce",
    labels: Tensor | None = None,  # [N]
) -> Tensor:  # [N, d, d]
    """Per-sample Gauss-Newton matrices with respect to the raw embedding: Jacobian^T Hessian Jacobian.

    The loss is a function of the normalised embedding, its Hessian is taken with respect to the logits, the Jacobian
    of the normalisation by reverse-mode differentiation.
    """
    source, hhat = source.double(), unit(target)
    labels = torch.arange(len(source)) % len(target) if labels is None else labels
    objective = infonce_loss if loss == "infonce" else sigmoid_loss

    def one(g: Tensor, label: Tensor) -> Tensor:
        to_unit = jacrev(_unit_vector)(g)  # [d, d]
        to_logits = jacrev(lambda ghat: scale * hhat @ ghat + bias)(_unit_vector(g))  # [K, d]
        curvature = hessian(lambda z: objective(z, label))(scale * hhat @ _unit_vector(g) + bias)  # [K, K]
        jacobian = to_logits @ to_unit
        return jacobian.T @ curvature @ jacobian

    return torch.stack([one(g, label) for g, label in zip(source, labels, strict=True)])


def shifted_ggn(source: Tensor, target: Tensor, scale: float) -> Tensor:  # [d, d]
    """Sum over rows of the InfoNCE curvature in float64, accurate however saturated the softmax is.

    Each row's targets are shifted by its most probable one: `D_k = h_k - h_a` (no rounding beyond one ulp), so that
    `C = sum_k pi_k D_k D_k^T - v v^T` with v = sum_k pi_k D_k subtracts O(e^2) from O(e) and cancels nothing. The test
    suite checks it against 60-digit Decimal arithmetic.
    """
    ghat, hhat, source = unit(source), unit(target), source.double()
    width = source.shape[1]
    total = torch.zeros(width, width, dtype=torch.float64)
    for g, direction in zip(source, ghat, strict=True):
        anchor = int((hhat @ direction).argmax())
        moved = hhat - hhat[anchor]
        share = torch.exp(scale * (moved @ direction))
        share[anchor] = 0
        pi = share / (1 + share.sum())
        v = pi @ moved
        covariance = (moved * pi[:, None]).T @ moved - torch.outer(v, v)
        project = (torch.eye(width, dtype=torch.float64) - torch.outer(direction, direction)) / (g @ g).sqrt()
        total += scale**2 * project @ covariance @ project
    return total


def textbook_ggn(source: Tensor, target: Tensor, scale: float) -> Tensor:  # [d, d]
    """The form of the paper, E[hh^T] - m m^T per sample, in the dtype of its inputs: what loses digits."""
    ghat = torch.nn.functional.normalize(source, dim=1)
    hhat = torch.nn.functional.normalize(target, dim=1)
    total = torch.zeros(source.shape[1], source.shape[1], dtype=source.dtype)
    eye = torch.eye(source.shape[1], dtype=source.dtype)
    for g, direction in zip(source, ghat, strict=True):
        pi = torch.softmax(scale * hhat @ direction, dim=0)
        m = pi @ hhat
        covariance = (hhat * pi[:, None]).T @ hhat - torch.outer(m, m)
        project = (eye - torch.outer(direction, direction)) / g.norm()
        total += scale**2 * project @ covariance @ project
    return total


def decimal_infonce(source: Tensor, target: Tensor, scale: float, digits: int = 60) -> Tensor:  # [d, d]
    """The InfoNCE curvature in Decimal arithmetic, from the definition. For a handful of tiny vectors only."""
    with localcontext() as context:
        context.prec = digits
        rows = [[Decimal(float(x)) for x in row] for row in source.double()]
        columns = [_decimal_unit([Decimal(float(x)) for x in row]) for row in target.double()]
        width, t = len(rows[0]), Decimal(float(scale))
        total = [[Decimal(0)] * width for _ in range(width)]
        for row in rows:
            norm = _decimal_dot(row, row).sqrt()
            direction = [x / norm for x in row]
            weights = [(t * _decimal_dot(column, direction)).exp() for column in columns]
            pi = [weight / sum(weights) for weight in weights]
            mean = [sum(p * column[j] for p, column in zip(pi, columns, strict=True)) for j in range(width)]
            # J^T C J = sum_k pi_k (J d_k)(J d_k)^T with d_k = h_k - m
            for p, column in zip(pi, columns, strict=True):
                away = [x - y for x, y in zip(column, mean, strict=True)]
                along = _decimal_dot(away, direction)
                image = [(x - along * y) / norm for x, y in zip(away, direction, strict=True)]
                for i in range(width):
                    for j in range(width):
                        total[i][j] += t * t * p * image[i] * image[j]
        return torch.tensor([[float(x) for x in row] for row in total], dtype=torch.float64)


def _decimal_dot(left: list[Decimal], right: list[Decimal]) -> Decimal:
    return sum((x * y for x, y in zip(left, right, strict=True)), Decimal(0))


def _decimal_unit(vector: list[Decimal]) -> list[Decimal]:
    norm = _decimal_dot(vector, vector).sqrt()
    return [x / norm for x in vector]


# -------------------------------------------------------------------------------------------------- dense posteriors


def dense_precision(A: Tensor, B: Tensor, tau: float, lam: float, structure: str) -> Tensor:  # [dp, dp]
    """Precision of W.flatten() (row-major, W [d, p]), written out as one matrix."""
    A, B = A.double(), B.double()
    eye_A, eye_B = torch.eye(len(A), dtype=torch.float64), torch.eye(len(B), dtype=torch.float64)
    if structure == "exact":
        return tau * torch.kron(B, A) + lam * torch.kron(eye_B, eye_A)
    return torch.kron(math.sqrt(tau) * B + math.sqrt(lam) * eye_B, math.sqrt(tau) * A + math.sqrt(lam) * eye_A)


def dense_covariance(A: Tensor, B: Tensor, tau: float, lam: float, structure: str) -> Tensor:  # [dp, dp]
    """Covariance of W.flatten(), by inverting the whole matrix."""
    return torch.linalg.inv(dense_precision(A, B, tau, lam, structure))


def embedding_covariance(covariance: Tensor, phi: Tensor, width: int) -> Tensor:  # [N, N, d, d]
    """Cov[W phi_n, W phi_m] for all inputs, from the dense covariance of W.flatten()."""
    blocks = covariance.reshape(width, phi.shape[1], width, phi.shape[1])
    return torch.einsum("np,apbq,mq->nmab", phi.double(), blocks, phi.double())


def gaussian_draws(covariance: Tensor, draws: int, generator: torch.Generator) -> Tensor:  # [S, D]
    """Zero-mean Gaussian draws by Cholesky."""
    noise = torch.randn(draws, len(covariance), generator=generator, dtype=torch.float64)
    return noise @ torch.linalg.cholesky(covariance).T


# -------------------------------------------------------------------------------------------------------- test inputs


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers from a generator of their own."""
    return torch.randn(*shape, generator=generator(seed), dtype=dtype)


def positive_definite(size: int, seed: int, rank: int | None = None) -> Tensor:  # [size, size]
    """A random Gram matrix; singular when rank < size."""
    root = normal(size, size if rank is None else rank, seed=seed)
    return root @ root.T


def contrastive_batch(
    rows: int, targets: int, width: int, match: float, seed: int, *, spread: float = 0.04, rest: float = 0.12
) -> tuple[Tensor, Tensor]:  # [N, d], [K, d]
    """Raw embeddings whose cosines resemble a CLIP batch: `match` at (i, i), `rest` +- `spread` elsewhere.

    Each tower shares a direction of its own (the modality gap); what remains is random, and correlated at the match.
    """
    shared = 1 - spread * math.sqrt(width - 2)  # squared length of what a tower shares
    shared = min(max(shared, rest), 1.0)
    basis = torch.linalg.qr(normal(width, 2, seed=seed)).Q.T
    tilt = rest / shared
    h_common = basis[0] * math.sqrt(shared)
    g_common = (tilt * basis[0] + math.sqrt(1 - tilt**2) * basis[1]) * math.sqrt(shared)

    def private(vectors: Tensor) -> Tensor:
        return unit(vectors - vectors @ basis.T @ basis) * math.sqrt(1 - shared)

    h_own = private(normal(targets, width, seed=seed + 1))
    rho = (match - rest) / (1 - shared)
    g_own = rho * h_own[:rows] + math.sqrt(1 - rho**2) * private(normal(rows, width, seed=seed + 2))
    length = 0.5 + torch.rand(rows, 1, generator=generator(seed + 3), dtype=torch.float64)
    return (g_common + g_own) * length * 9, (h_common + h_own) * 7
