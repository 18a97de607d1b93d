"""What the model families of `transformers` share."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.images.decoding import PIXEL_VALUES, ImageLike, as_images, to_rgb
from bayesvlm.images.resizing import processor_resizing
from bayesvlm.models.adapter import Adapter, Reference, as_texts
from bayesvlm.models.pixel_table import PixelTable, table_of
from bayesvlm.models.preprocessing import PixelTensors, Preprocessor
from bayesvlm.models.projection_layer import ProjectionLayer

_OF_A_FILE = (
    "_name_or_path",
    "transformers_version",
    "dtype",
    "torch_dtype",
)  # they change nothing
_OF_A_CALL = ("padding", "truncation")  # what a tokenizer keeps of the last call, and is no part of what it does


@dataclass(frozen=True)
class ProcessorPixels:
    """The pixels that an image processor of `transformers` makes; by its table where that gives the same."""

    processor: Any

    def __call__(self, images: list[Image.Image]) -> PixelTensors:
        if self._table is not None and all(map(self._table.fits, images)):
            return {PIXEL_VALUES: self._table.pixels(images)}
        return self._processed(images)

    def __getstate__(self) -> dict[str, Any]:
        """A pickle holds no table."""
        return {"processor": self.processor}

    @cached_property
    def _table(self) -> PixelTable | None:
        return table_of(self._processed, processor_resizing(self.processor))

    def _processed(self, images: list[Image.Image]) -> PixelTensors:
        # Said outright, because an image one or three pixels high is otherwise taken for channels-first.
        made = self.processor(images=images, return_tensors="pt", input_data_format="channels_last")
        return dict(made)


class HuggingFaceAdapter(Adapter):
    """A `transformers` model with `get_image_features` and `get_text_features`; a family says where its layers are.

    The projections are taken from the weights as stored, before the encoder is cast, so that a posterior fitted with a
    half-precision encoder belongs to the same weights as one fitted in float32.
    """

    model: Any

    def __init__(
        self,
        model: Any,
        image_processor: Any,
        tokenizer: Any,
        name: str,
        revision: str | None,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.name, self.revision, self.device, self.dtype = name, revision, device, dtype
        self._image_processor, self._tokenizer = image_processor, tokenizer
        self.preprocessor = Preprocessor(ProcessorPixels(image_processor), processor_resizing(image_processor))
        self._image_tower, self._text_tower = self.towers(model)
        self.image = self._image_tower.projection(device, dtype)
        self.text = self._text_tower.projection(device, dtype)
        self.logit_scale = model.logit_scale.item()
        self.logit_bias = model.logit_bias.item() if hasattr(model, "logit_bias") else None
        self.model = model.to(device, dtype).eval().requires_grad_(False)
        self.context_length = int(model.config.text_config.max_position_embeddings)

    @staticmethod
    @abstractmethod
    def towers(model: Any) -> tuple[ProjectionLayer, ProjectionLayer]:
        """The image tower and the text tower."""

    @abstractmethod
    def tokenise(self, texts: list[str]) -> dict[str, Tensor]:
        """The text inputs of the model, padded and truncated as it was trained: input_ids [N, L] and maybe a mask."""

    def forward_pixels(self, pixels: PixelTensors) -> Features:
        return self._image_tower.activations(lambda: self.model.get_image_features(**pixels))

    def forward_texts(self, texts: list[str]) -> Features:
        inputs = self._tokens(texts)
        return self._text_tower.activations(lambda: self.model.get_text_features(**inputs))

    def embed_reference(self, images: ImageLike | Iterable[ImageLike], texts: str | Iterable[str]) -> Reference:
        rgb = [to_rgb(image, f"images[{index}]") for index, image in enumerate(as_images(images))]
        with torch.inference_mode():
            pixels = self.placed(self.preprocessor.to_pixels(rgb))
            output = self.model(**pixels, **self._tokens(as_texts(texts)))
        return Reference(output.image_embeds.clone(), output.text_embeds.clone(), output.logits_per_image.clone())

    def architecture(self) -> dict[str, Any]:
        return _plain(self.model.config.to_dict())

    def preprocessing(self) -> dict[str, Any]:
        pixels = _plain(self._image_processor.to_dict())
        return {**super().preprocessing(), "pixels": pixels, "tokens": tokenizer_hash(self._tokenizer)}

    def _tokens(self, texts: list[str]) -> dict[str, Tensor]:
        inputs = self.tokenise(texts)
        highest, vocabulary = int(inputs["input_ids"].max()), self.model.config.text_config.vocab_size
        if highest >= vocabulary:
            raise BayesVLMError(
                f"The tokenizer of {self.name!r} gave token {highest}, but the model knows only {vocabulary} tokens; "
                "its tokenizer files belong to another model, so fetch them again."
            )
        return {key: value.to(self.device) for key, value in inputs.items()}


def tokenizer_hash(tokenizer: Any) -> str:
    """A tokenizer of `transformers`, as its kind and a hash of what it does, padding and truncation apart."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    known = {"vocabulary": tokenizer.get_vocab()} if backend is None else json.loads(backend.to_str())
    known = {name: value for name, value in known.items() if name not in _OF_A_CALL}
    around = {"pad": tokenizer.pad_token_id, "lower": tokenizer.init_kwargs.get("do_lower_case")}
    digest = hashlib.sha256(json.dumps([known, around], sort_keys=True).encode()).hexdigest()
    return f"{type(tokenizer).__name__} {digest}"


def _plain(configuration: dict[str, Any]) -> dict[str, Any]:
    """A configuration as json, without what says only where it came from."""
    kept = {name: value for name, value in configuration.items() if name not in _OF_A_FILE}
    kept = {name: _plain(value) if isinstance(value, dict) else value for name, value in kept.items()}
    plain: dict[str, Any] = json.loads(json.dumps(kept, sort_keys=True, default=str))
    return plain
