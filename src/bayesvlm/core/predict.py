r"""From cosine moments to class probabilities.

The mathematics: docs/method.md, "Predictions".

probit (the paper):  softmax( t E / sqrt(1 + pi/8 t^2 V) )
centred:             the same after subtracting each row's mean logit: the softmax itself ignores a constant added
                     to all logits, the plain probit does not
mc:                  average of softmax(t cos) over draws of both projections; what the other two approximate
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from bayesvlm.core.cosine import CosineMoments
from bayesvlm.core.distribution import Drawn
from bayesvlm.core.draws import group_sizes
from bayesvlm.core.errors import BayesVLMError, check_positive
from bayesvlm.core.features import Features
from bayesvlm.core.printing import described
from bayesvlm.core.threads import threads_for

LEAST_LENGTH = 1e-12  # of an embedding that is divided by its length


class EntropySplit(NamedTuple):
    """Class probabilities averaged over parameter draws, and their entropy in two parts (nats)."""

    probs: Tensor  # [N, C], E p
    total: Tensor  # [N], H[E p]
    aleatoric: Tensor  # [N], E H[p]

    def __repr__(self) -> str:
        return described(self)

    @property
    def epistemic(self) -> Tensor:  # [N]
        """H[E p] - E H[p]: the mutual information between label and parameters, at least 0 by concavity."""
        return (self.total - self.aleatoric).clamp_min(0)

    @property
    def epistemic_share(self) -> Tensor:  # [N]
        """`epistemic / total`, between 0 and 1; 0 where there is no entropy to share."""
        return torch.where(self.total > 0, self.epistemic / self.total, 0.0).clamp_max(1)


def probit(moments: CosineMoments, scale: float) -> Tensor:  # [N, C]
    """The paper's link."""
    return _scaled_softmax(moments, scale, centred=False)


def centred_probit(moments: CosineMoments, scale: float) -> Tensor:  # [N, C]
    """The probit around each row's mean logit."""
    return _scaled_softmax(moments, scale, centred=True)


def sigmoid_probit(moments: CosineMoments, scale: float, bias: float) -> Tensor:  # [N, C]
    """Per-label probabilities of the sigmoid loss: sigma((t E + bias) / sqrt(1 + pi/8 t^2 V))."""
    return torch.sigmoid((scale * moments.mean + bias) / (1 + math.pi / 8 * scale**2 * moments.variance).sqrt())


def plain_logits(images: Tensor, texts: Tensor, scale: float) -> Tensor:  # [N, d], [C, d] -> [N, C]
    """The model without a posterior: scaled cosines of raw embeddings."""
    ghat = functional.normalize(images, dim=1)
    hhat = functional.normalize(texts, dim=1)
    return (ghat * scale) @ hhat.T


def plain_softmax(images: Tensor, texts: Tensor, scale: float) -> Tensor:  # [N, d], [C, d] -> [N, C]
    """Class probabilities of the model without a posterior."""
    return torch.softmax(plain_logits(images, texts, scale), dim=1)


@torch.no_grad()
def monte_carlo(
    image: Drawn, images: Features, text: Drawn, texts: Features, scale: float, draws: int, seed: int = 0
) -> EntropySplit:
    """Average softmax and its entropy split over `draws` joint draws of both projections, one pass."""
    if draws < 1:
        raise BayesVLMError(f"draws={draws}; Monte Carlo needs at least 1, and 100 or more to be of use.")
    total, conditional = torch.zeros(()), torch.zeros(())
    with threads_for(draw_cost(image, images, text, texts, draws)):
        for cosines in cosine_groups(image, images, text, texts, draws, seed):
            probs = torch.softmax(scale * cosines, dim=2)
            total = total + probs.sum(dim=0) / draws
            conditional = conditional + entropy(probs).sum(dim=0) / draws
        return EntropySplit(total, entropy(total), conditional)


def sample_cosines(
    image: Drawn, images: Features, text: Drawn, texts: Features, draws: int, seed: int = 0
) -> Iterator[Tensor]:  # [N, C] each
    """Cosines of all pairs under joint draws of both projections, each draw shared by all inputs."""
    for cosines in cosine_groups(image, images, text, texts, draws, seed):
        yield from cosines


def cosine_groups(
    image: Drawn, images: Features, text: Drawn, texts: Features, draws: int, seed: int = 0
) -> Iterator[Tensor]:  # [s, N, C] each
    """The same, several draws at a time."""
    for g, h in embedding_groups(image, images, text, texts, draws, seed):
        lengths = torch.linalg.vector_norm(g, dim=2, keepdim=True).clamp_min(LEAST_LENGTH)
        yield (g @ functional.normalize(h, dim=2, eps=LEAST_LENGTH).transpose(1, 2)).div_(lengths)


def embedding_groups(
    image: Drawn, images: Features, text: Drawn, texts: Features, draws: int, seed: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:  # [s, N, d], [s, C, d] each
    """Embeddings under joint draws of both projections, as many at a time as fit into memory.

    How many that are changes no draw. The two projections are drawn independently.
    """
    of_image, of_text = tower_generators(seed)
    p = max(images.activations.shape[1], texts.activations.shape[1])
    per_draw = p**2 + 2 * p * (len(images) + len(texts)) + 2 * len(images) * len(texts)
    for count in group_sizes(draws, 4 * per_draw):
        yield image.drawn_embeddings(images, count, of_image), text.drawn_embeddings(texts, count, of_text)


def tower_generators(seed: int) -> tuple[torch.Generator, torch.Generator]:
    """One for the draws of the image projection and one for those of the text projection."""
    seeds = torch.randint(2**62, (2,), generator=torch.Generator().manual_seed(seed)).tolist()
    return torch.Generator().manual_seed(seeds[0]), torch.Generator().manual_seed(seeds[1])


def draw_cost(image: Drawn, images: Features, text: Drawn, texts: Features, draws: int) -> float:
    """Floating-point operations of so many joint draws, about."""
    width = min(images.activations.shape[1], texts.activations.shape[1])
    cosines = 2.0 * len(images) * len(texts) * width
    return draws * (image.draw_cost(len(images)) + text.draw_cost(len(texts)) + cosines)


def entropy(probs: Tensor) -> Tensor:  # [..., C] -> [...]
    """Shannon entropy in nats; between 0 and log C."""
    summands: Tensor = torch.special.entr(probs)
    return summands.sum(dim=-1)


def scaled_logits(moments: CosineMoments, scale: float, *, centred: bool) -> Tensor:  # [N, C]
    """E / sqrt(1/t^2 + pi/8 V): the logits of `probit`, or of `centred_probit`, whose softmax they are."""
    return _logits_of(moments, slice(None), check_positive("scale", scale), centred)


def _scaled_softmax(moments: CosineMoments, scale: float, *, centred: bool) -> Tensor:  # [N, C]
    """The softmax of `scaled_logits`, a block of rows at a time so that it stays in the processor's cache."""
    check_positive("scale", scale)
    mean = moments.mean
    probs = torch.empty_like(mean)
    rows = len(mean) if mean.is_cuda else max(1, 2**19 // max(1, mean.shape[1]))
    for start in range(0, len(mean), rows):
        block = slice(start, start + rows)
        torch.softmax(_logits_of(moments, block, scale, centred), dim=1, out=probs[block])
    return probs


def _logits_of(moments: CosineMoments, rows: slice, scale: float, centred: bool) -> Tensor:  # [n, C]
    mean = moments.mean[rows]
    floor = torch.tensor(scale**-2, dtype=mean.dtype, device=mean.device)
    logit = torch.add(floor, moments.variance_of(rows), alpha=math.pi / 8).rsqrt_()
    return logit.mul_(mean - mean.mean(dim=1, keepdim=True) if centred else mean)
