"""Class probabilities of images under parameter draws that all of them share: what BALD and EPIG are made from.

The mathematics: docs/method.md, "Draws".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from bayesvlm.active.online import OnlineLaplace
from bayesvlm.core.distribution import Drawn
from bayesvlm.core.draws import Held
from bayesvlm.core.features import Features
from bayesvlm.core.held import HeldCosines
from bayesvlm.core.predict import cosine_groups, draw_cost
from bayesvlm.core.threads import threads_for
from bayesvlm.vlm import BayesVLM


def drawn_probabilities(
    image: Drawn, images: Features, text: Drawn, texts: Features, scale: float, draws: int, seed: int
) -> Tensor:  # [S, N, C]
    """Class probabilities of all inputs under the same parameter draws."""
    probs, done = torch.empty(0), 0
    with threads_for(draw_cost(image, images, text, texts, draws)):
        for cosines in cosine_groups(image, images, text, texts, draws, seed):
            if done == 0:
                probs = cosines.new_empty(draws, *cosines.shape[1:])
            torch.softmax(cosines.mul_(scale), dim=2, out=probs[done : done + len(cosines)])
            done += len(cosines)
    return probs


@dataclass(frozen=True, eq=False)
class SharedDraws:
    """Draws of the parameters as they are after some labels, for any images.

    Where the text projection is held at its mean and the classes are few beside d, cosines are drawn without their
    embeddings (`HeldCosines`); elsewhere the embeddings are.
    """

    online: OnlineLaplace
    text: Drawn
    texts: Features
    scale: float
    held: HeldCosines | None

    @classmethod
    def of(cls, online: OnlineLaplace, vlm: BayesVLM, texts: Features, *, hold_text: bool) -> SharedDraws:
        """All that draws need is decomposed here, rather than at the first draw."""
        if not hold_text:
            return cls(online.decomposed(), vlm.posterior["text"], texts, vlm.scale, None)
        held, d = Held(vlm.text), vlm.text.embedding_width
        if not HeldCosines.pay(len(texts), d):
            return cls(online.decomposed(), held, texts, vlm.scale, None)
        directions = functional.normalize(vlm.text.embed(texts).double(), dim=1)
        cosines = HeldCosines.of(directions, online.output_factor, online.projection.weight)
        return cls(online, held, texts, vlm.scale, cosines)

    def probabilities(self, images: Features, draws: int, seed: int) -> Tensor:  # [S, N, C]
        """Class probabilities of all images under the draws of this seed."""
        if self.held is None:
            return drawn_probabilities(self.online, images, self.text, self.texts, self.scale, draws, seed)
        with threads_for(self.cost(len(images), draws)):
            mean, inputs = self.online.projection.embed(images), self.online.whitened_inputs(images)
            probs = mean.new_empty(len(mean), len(self.texts), draws)
            for rows, these, cosines in self.held.blocks(mean, inputs, draws, seed):
                probs[rows, :, these] = torch.softmax(cosines.mul_(self.scale), dim=2).transpose(1, 2)
        return probs.permute(2, 0, 1)

    def cost(self, images: int, draws: int) -> float:
        """Floating-point operations of so many draws, about."""
        if self.held is None:
            return draws * (self.online.draw_cost(images) + self.text.draw_cost(len(self.texts)))
        return draws * self.held.cost(images, self.online.projection.input_width)
