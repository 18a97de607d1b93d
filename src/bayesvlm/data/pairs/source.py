"""A source of image-text pairs, to be opened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.pairs.batches import PairSet
from bayesvlm.data.sources import IN_WORLD, Kind, Source


@dataclass(frozen=True)
class PairChoices:
    """How pairs are read; see `PairSource.open`."""

    captions: Path | None = None
    image_column: str | None = None
    text_column: str | None = None
    captions_per_image: int | None = None
    batch_size: int = 64
    strict: bool = False

    def refuse(self, source: str | Path, kind: str, split: str | None = None) -> None:
        """Refuse a captions file, split or column where there is none to choose, so that no choice is passed over."""
        choices = {
            "captions": self.captions and str(self.captions),
            "split": split,
            "image_column": self.image_column,
            "text_column": self.text_column,
        }
        for name, value in choices.items():
            if value is not None:
                raise BayesVLMError(f"{source} is {kind}, where {name}={value!r} chooses nothing; leave it out.")


@dataclass(frozen=True)
class PairSource(Source):
    """Where image-text pairs are, and how they are opened."""

    kind: ClassVar[Kind] = "pairs"

    @property
    def title(self) -> str:
        """What a posterior that was fitted on it calls it: the name, without the folders that lead there."""
        folder = self.folder
        return self.name if folder is None or self.where == IN_WORLD else folder.resolve().name

    def open(
        self,
        captions: str | Path | None = None,
        *,
        image_column: str | None = None,
        text_column: str | None = None,
        captions_per_image: int | None = None,
        batch_size: int = 64,
        strict: bool = False,
    ) -> PairSet:
        """List the pairs, fetching them from the Hub where they are not here.

        Args:
            captions: a captions file for the images in a folder, see `PairFolder.open`.
            image_column, text_column: of a data set, or of a csv, tsv or jsonl file; None looks for a usual name.
            captions_per_image: how many captions of an image to take, from its first; None takes them all.
            batch_size: pairs in a batch.
            strict: stop at the first image or shard that cannot be read, instead of skipping it.

        Raises:
            BayesVLMError: where it is not here and cannot be fetched, with a sentence on how to get it.
        """
        listed = None if captions is None else Path(captions)
        choices = PairChoices(listed, image_column, text_column, captions_per_image, batch_size, strict)
        found: PairSet = self.opener(choices)
        return found
