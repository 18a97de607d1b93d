"""What a labelled image tells the image tower: its cross-entropy among the classes, and the curvature of the loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesvlm.core.curvature import infonce_curvature, sigmoid_curvature
from bayesvlm.core.estimation import Loss, Normalise
from bayesvlm.core.features import Features
from bayesvlm.vlm import BayesVLM


@dataclass(frozen=True, eq=False)
class ClassContrast:
    """The class prompts an image is held against, as its loss sees them.

    The curvature is that of the loss the model was trained with, so that it adds to factors estimated with it: a
    labelled image weighs what a pair weighs. The gradient is that of the cross-entropy among the classes, for either.

    Args:
        texts: [C, d], raw mean embeddings of the class prompts.
        scale: t.
        loss, bias, normalise: as the model and its posterior have them.
    """

    texts: Tensor  # [C, d]
    scale: float
    loss: Loss = "infonce"
    bias: float = 0.0
    normalise: Normalise = "paper"

    @classmethod
    def of(cls, vlm: BayesVLM, classes: Features) -> ClassContrast:
        """That of a model among some classes."""
        normalise = vlm.normalise or "paper"
        return cls(vlm.text.embed(classes), vlm.scale, vlm.loss, vlm.logit_bias or 0.0, normalise)

    def curvature(self, embeddings: Tensor) -> Tensor:  # [N, d] -> [d, d]
        """Summed over the images, float64."""
        if self.loss == "infonce":
            return infonce_curvature(embeddings, self.texts, self.scale)
        return sigmoid_curvature(embeddings, self.texts, self.scale, self.bias, self.normalise)

    def slope(self, embedding: Tensor, label: int) -> Tensor:  # [d] -> [d]
        """Gradient of one image's cross-entropy with respect to its raw embedding."""
        norm = embedding.norm()
        ghat, hhat = embedding / norm, torch.nn.functional.normalize(self.texts, dim=1)
        probs = torch.softmax(self.scale * hhat @ ghat, dim=0)
        pull = self.scale * (probs @ hhat - hhat[label])
        slope: Tensor = (pull - (pull @ ghat) * ghat) / norm
        return slope
