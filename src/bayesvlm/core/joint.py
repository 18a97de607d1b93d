r"""Joint covariance of the logits of several inputs and several classes, in closed form.

The mathematics: docs/method.md, "Joint covariance of logits".

For unnormalised dot products `z_ni = g_n . h_i` of independent Gaussian towers:

    Cov[z_ni, z_mj] = h_i^T Cov[g_n, g_m] h_j + g_n^T Cov[h_i, h_j] g_m + tr(Cov[g_n, g_m] Cov[h_i, h_j])

where every cross-covariance is diagonal in the eigenbasis of B: `Cov[g_n, g_m] = U diag(v_nm) U^T`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesvlm.core.features import Features
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


def _cross_spectra(posterior: Posterior, features: Features) -> tuple[Tensor, Tensor]:  # [N, N, d], [d, d]
    """v_nm and U, with Cov[g_n, g_m] = U diag(v_nm) U^T."""
    phi = posterior.rotated_inputs(features)
    variances = posterior.variances.to(phi)
    return torch.einsum("np,mp,kp->nmk", phi, phi, variances), posterior.factors.B_spectrum.vectors.to(phi)
