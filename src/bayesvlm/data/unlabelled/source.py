"""A source of images whose labels are not asked for, to be opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bayesvlm.data.labelled.samples import LabelledSet
from bayesvlm.data.sources import Kind, Source


@dataclass(frozen=True)
class ImageSource(Source):
    """Where images are, and how they are opened."""

    kind: ClassVar[Kind] = "images"

    def open(self, strict: bool = False) -> LabelledSet:
        """List the images, fetching them from the Hub where they are not here.

        Args:
            strict: stop at the first image that cannot be read, instead of skipping it.

        Raises:
            BayesVLMError: where it is not here and cannot be fetched, with a sentence on how to get it.
        """
        found: LabelledSet = self.opener(strict=strict)
        return found
