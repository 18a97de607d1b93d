"""A source of images with the texts that ask for them, to be opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bayesvlm.data.captions.sets import CaptionSet
from bayesvlm.data.sources import Kind, Source


@dataclass(frozen=True)
class CaptionSource(Source):
    """Where a caption set is, and how it is opened."""

    kind: ClassVar[Kind] = "captions"

    def open(
        self, *, image_column: str | None = None, text_column: str | None = None, strict: bool = False
    ) -> CaptionSet:
        """List the images and texts.

        Args:
            image_column, text_column: of a csv, tsv or jsonl file; None looks for one with a usual name.
            strict: stop at the first image or caption that cannot be used, instead of skipping it.

        Raises:
            BayesVLMError: where it is not here, with a sentence on how to get it.
        """
        found: CaptionSet = self.opener(image_column=image_column, text_column=text_column, strict=strict)
        return found
