r"""Epistemic without draws: the mutual information of label and parameters, expanded in the variance of the logits.

The mathematics: docs/method.md, "Epistemic without draws".

The logits of one input are z_i = t g.h_i / (s s_i), with lengths held at s^2 = E|g|^2 as ProbCosine holds them. With
a = phi^T At^-1 phi of the image and k_ij = psi_i^T At^-1 psi_j of the texts, their joint covariance is

    V_ij = t^2 / (s^2 s_i s_j) ( a h_i^T R_g h_j + k_ij (g^T R_h g + a <R_g, R_h>) )

To second order in V the mutual information is

    I_2 = 1/2 tr( V (diag p - p p^T) ) = 1/2 ( sum_i p_i V_ii - p^T V p )

V is never formed: p^T V p = t^2/s^2 ( a |sum_i p_i F_g h_i / s_i|^2 + (...) |sum_i p_i L psi_i / s_i|^2 ). Two things
make it hold where V is large: p is the mean of the probabilities without variance and with all of it, the two ends of
the path that the expansion follows; and I = H I_2 / (H + I_2), which is I_2 where that is small and never more than the
entropy H of p.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesvlm.core.blocks import row_blocks
from bayesvlm.core.cosine import CosineMoments
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.core.posterior import Posterior
from bayesvlm.core.predict import entropy, probit

_NUMBERS = 2**20  # of probabilities that are handled at a time, in float64


def second_order(
    probs: Tensor,  # [N, C], p
    variance: Tensor,  # [N, C], V_ii
    quadratic: Tensor,  # [N], p^T V p
) -> Tensor:  # [N]
    """1/2 (sum_i p_i V_ii - p^T V p): the mutual information of label and logits where the logits vary little."""
    return ((probs * variance).sum(dim=1) - quadratic).clamp_min(0) / 2


def bounded(information: Tensor, entropies: Tensor) -> Tensor:  # [N], [N] -> [N]
    """H I / (H + I): what I is where it is small, and never more than the entropy H of the label."""
    total = entropies + information
    return torch.where(total > 0, entropies * information / total, 0.0)


@torch.no_grad()
def expanded_epistemic(
    image: Posterior,
    images: Features,  # [N]
    text: Posterior,
    texts: Features,  # [C]
    scale: float,
) -> Tensor:  # [N], float64
    """The mutual information of label and parameters, in nats, without parameter draws.

    What `monte_carlo(...).epistemic` estimates, with the full covariance of both towers. Computed in float64: of sure
    inputs it is a small difference of large numbers. Damped posteriors only, whose inputs share a shape of covariance.

    Args:
        image, text: the towers' posteriors.
        images, texts: inputs and classes.
        scale: t.
    """
    for name, posterior in (("image", image), ("text", text)):
        if posterior.structure != "damped":
            raise BayesVLMError(
                f"The {name} posterior has structure={posterior.structure!r}, whose covariances share no shape to "
                "expand with; use structure='damped', or the drawn `.monte_carlo.epistemic`."
            )
    G, H = image.marginals(images), text.marginals(texts)
    g_shared, h_shared = G.covariance.shared(), H.covariance.shared()
    assert g_shared is not None  # damped
    assert h_shared is not None
    F_g, F_h = (_root(shared.shape.spectrum, shared.shape.basis) for shared in (g_shared, h_shared))
    lengths = H.expected_norm.double()
    h = H.mean.double() / lengths[:, None]
    spread = h @ F_g  # [C, d], F_g h_i / s_i
    inputs = text.projection.inputs(texts).double()
    whitened = inputs @ text.root.double() / lengths[:, None]  # [C, p], L psi_i / s_i
    of_images, of_texts = spread.square().sum(dim=1), whitened.square().sum(dim=1)  # [C]
    both = (F_g.T @ F_h).square().sum()  # <R_g, R_h>
    parts = []
    for rows in row_blocks(len(images), len(texts), _NUMBERS):
        squares = G.expected_norm[rows].double().square()
        a, g = g_shared.scale[rows].double() / squares, G.mean[rows].double() / squares.sqrt()[:, None]
        b = (g @ F_h).square().sum(dim=1) + a * both
        mean, variance = g @ h.T, torch.outer(a, of_images) + torch.outer(b, of_texts)
        ends = torch.softmax(scale * mean, dim=1), probit(CosineMoments(mean, variance), scale)
        probs = (ends[0] + ends[1]) / 2
        quadratic = a * (probs @ spread).square().sum(dim=1) + b * (probs @ whitened).square().sum(dim=1)
        parts.append(bounded(scale**2 * second_order(probs, variance, quadratic), entropy(probs)))
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def _root(spectrum: Tensor, basis: Tensor | None) -> Tensor:  # [d, d]
    """F with F F^T = R, in float64."""
    if basis is None:
        return torch.diag(spectrum.double().sqrt())
    return basis.double() * spectrum.double().sqrt()
