r"""Joint covariance of pairs of two towers, in closed form: logits of several inputs and classes, a query and its hits.

The mathematics: docs/method.md, "Joint covariance of logits" and "Search".

For unnormalised dot products `z_ni = g_n . h_i` of independent Gaussian towers:

    Cov[z_ni, z_mj] = h_i^T Cov[g_n, g_m] h_j + g_n^T Cov[h_i, h_j] g_m + tr(Cov[g_n, g_m] Cov[h_i, h_j])

where every cross-covariance is diagonal in the eigenbasis of B: `Cov[g_n, g_m] = U diag(v_nm) U^T`. Cosines are such
products over the expected lengths s, which are held, as ProbCosine holds them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesvlm.core.embeddings import Shape
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.core.linearised import Directed
from bayesvlm.core.posterior import Posterior


def joint_logit_covariance(
    image: Posterior, images: Features, text: Posterior, texts: Features, scale: float = 1.0
) -> Tensor:  # [N, C, N, C]
    """Covariance of `scale * g_n . h_i` between all pairs, with the towers' full covariances.

    Takes (N C)^2 numbers: meant for the handful of inputs whose dependence matters, not for a data set.
    """
    G, H = image.projection.embed(images), text.projection.embed(texts)
    Vg, Ug = _cross_spectra(image, images)  # [N, N, d], [d, d]
    Vh, Uh = _cross_spectra(text, texts)  # [C, C, d], [d, d]
    from_images = torch.einsum("nmk,ik,jk->nimj", Vg, H @ Ug, H @ Ug)
    from_texts = torch.einsum("ijk,nk,mk->nimj", Vh, G @ Uh, G @ Uh)
    from_both = torch.einsum("nmk,kl,ijl->nimj", Vg, (Ug.T @ Uh).square(), Vh)
    return scale**2 * (from_images + from_texts + from_both)


def query_cosines(
    query: Directed, query_shape: Shape | None, items: Directed, shape: Shape
) -> tuple[Tensor, Tensor]:  # [k], [k, k]
    """Mean and joint covariance of the cosines of one query with k items of the other tower, as `prob_cosine` has each.

    With m = mu / s of the items and q of the query, k_ij and a the inner products of their whitened activations over s:

        Cov_ij = k_ij q^T R q + a m_i^T R_q m_j + a k_ij <R, R_q>

    Args:
        query: one row, over its expected length s; likewise the items.
        query_shape: R_q of the query's tower; None: a vector without variance, whose `white` is not looked at.
        items: what was found.
        shape: R of the items' tower.
    """
    if len(query.mean) != 1:
        raise BayesVLMError(f"The query has {len(query.mean)} rows; pass one query, as one row.")
    together = items.white @ items.white.T
    covariance = together * shape.quadratic(query.mean)
    if query_shape is not None:
        own = query.white.square().sum()
        covariance = covariance + own * (query_shape.gram(items.mean) + shape.inner(query_shape) * together)
    return items.mean @ query.mean[0], covariance


def _cross_spectra(posterior: Posterior, features: Features) -> tuple[Tensor, Tensor]:  # [N, N, d], [d, d]
    """v_nm and U, with Cov[g_n, g_m] = U diag(v_nm) U^T."""
    phi = posterior.rotated_inputs(features)
    variances = posterior.variances.to(phi)
    return torch.einsum("np,mp,kp->nmk", phi, phi, variances), posterior.factors.B_spectrum.vectors.to(phi)
