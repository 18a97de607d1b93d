"""SigLIP (Zhai et al., 2023) and SigLIP 2 (Tschannen et al., 2025), as `SiglipModel` and `Siglip2Model`."""

from __future__ import annotations

import copy
from typing import Any, Self

from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.estimation import Loss
from bayesvlm.images.decoding import PIXEL_VALUES
from bayesvlm.models.huggingface import HuggingFaceAdapter
from bayesvlm.models.image_tower import ImageTower
from bayesvlm.models.projection_layer import ProjectionLayer


class SiglipAdapter(HuggingFaceAdapter):
    """SigLIP, SigLIP 2 at a fixed resolution, and SigLIP 2 NaFlex, which keeps the aspect ratio.

    The image tower ends in an attention-pooling head, `y = x + fc2(gelu(fc1(layernorm(x))))`: its last linear layer is
    `fc2`, and the head's own input x is a residual added after it. The text tower ends in a linear layer with bias.
    """

    loss: Loss = "sigmoid"
    lower_case: bool = True

    @staticmethod
    def towers(model: Any) -> tuple[ProjectionLayer, ProjectionLayer]:
        pooling = model.vision_model.head
        return ProjectionLayer(pooling.mlp.fc2, residual=pooling.layernorm), ProjectionLayer(model.text_model.head)

    def image_tower(self) -> ImageTower:
        if self.preprocessor.blank.keys() != {PIXEL_VALUES}:
            raise BayesVLMError(
                f"The image tower of {self.name!r} cannot be exported: it is a SigLIP 2 NaFlex, which takes masks and "
                "shapes beside the pixels; export a SigLIP 2 of a fixed resolution, or the head alone "
                "(head_only=True, --head-only)."
            )
        return ImageTower(self.model.vision_model, self._image_tower)

    def without_lower_case(self) -> Self:
        """One that leaves lower-casing to the tokenizer."""
        other = copy.copy(self)
        other.lower_case = False
        return other

    def preprocessing(self) -> dict[str, Any]:
        """The same, and whether texts are left as they are."""
        return super().preprocessing() | ({} if self.lower_case else {"lower_case": False})

    def tokenise(self, texts: list[str]) -> dict[str, Tensor]:
        """Lower-cased and padded to the full context, with no mask: the pooled token is the last one, padding or not.

        The models were trained on lower-cased text; SigLIP's own tokenizer sees to that, the Gemma tokenizer of
        SigLIP 2 does not, whatever its `do_lower_case` says.
        """
        if self.lower_case and self._tokenizer.init_kwargs.get("do_lower_case", True):
            texts = [text.lower() for text in texts]
        encoded = self._tokenizer(
            texts,
            padding="max_length",
            padding_side="right",
            truncation=True,
            max_length=self.context_length,
            return_tensors="pt",
        )
        return {"input_ids": encoded["input_ids"]}
