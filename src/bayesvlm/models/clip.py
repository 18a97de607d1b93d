"""CLIP (Radford et al., 2021), as `transformers.CLIPModel`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bayesvlm.core.estimation import Loss
from bayesvlm.models.huggingface import HuggingFaceAdapter
from bayesvlm.models.image_tower import ImageTower
from bayesvlm.models.projection_layer import ProjectionLayer


class CLIPAdapter(HuggingFaceAdapter):
    """Both towers end in a linear layer without bias; attention is causal, so padding after the end is never seen."""

    loss: Loss = "infonce"

    @staticmethod
    def towers(model: Any) -> tuple[ProjectionLayer, ProjectionLayer]:
        return ProjectionLayer(model.visual_projection), ProjectionLayer(model.text_projection)

    def image_tower(self) -> ImageTower:
        return ImageTower(self.model.vision_model)

    def tokenise(self, texts: list[str]) -> dict[str, Tensor]:
        encoded = self._tokenizer(
            texts,
            padding=True,
            padding_side="right",
            truncation=True,
            max_length=self.context_length,
            return_tensors="pt",
        )
        return {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]}
