"""Image-text pairs in a data set of the Hugging Face package `datasets`, which is an optional extra."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.pairs.batches import ListedPairs, Pair, in_rounds
from bayesvlm.data.pairs.captions import CAPTION_COLUMNS, COLUMN_OPTIONS, IMAGE_COLUMNS
from bayesvlm.data.rows import choose_column
from bayesvlm.data.tables import load_table
from bayesvlm.images.decoding import ImageLike
from bayesvlm.images.files import SkippedImages

_IMAGES = (*IMAGE_COLUMNS, "img", "jpg", "jpeg", "png", "webp")
_TEXTS = (*CAPTION_COLUMNS, "captions", "texts", "txt")


@dataclass(frozen=True)
class PairDataset(ListedPairs):
    """A set of pairs (`data.pairs.PairSet`): the rows of a data set; a row with several captions is several pairs.

    Args:
        name: what errors call it.
        images: a `datasets.Dataset`, its images not decoded.
        image_column: the column of it to read.
        pairs: (row, caption), in order.
        batch_size: pairs in a batch.
        skipped: where rows that cannot be read are counted.
    """

    name: str
    images: Any
    image_column: str
    pairs: tuple[tuple[int, str], ...]
    batch_size: int = 64
    skipped: SkippedImages = field(default_factory=SkippedImages)

    @classmethod
    def open(
        cls,
        source: str | Path,
        split: str | None = None,
        image_column: str | None = None,
        text_column: str | None = None,
        *,
        batch_size: int = 64,
        captions_per_image: int | None = None,
        strict: bool = False,
    ) -> PairDataset:
        """Load a data set and list its pairs.

        Args:
            source: an id on the Hub, a folder written by `save_to_disk`, or a folder of parquet files.
            split: which of its splits; a folder with a single one needs none.
            image_column, text_column: None looks for columns with a usual name.
            batch_size: pairs in a batch.
            captions_per_image: how many captions of a row to take, from its first; None takes them all.
            strict: stop at the first row that cannot be read, instead of skipping it.
        """
        return cls.of(
            load_table(str(source), split),
            str(source),
            image_column,
            text_column,
            batch_size=batch_size,
            captions_per_image=captions_per_image,
            strict=strict,
        )

    @classmethod
    def of(
        cls,
        dataset: Any,
        name: str = "the data set",
        image_column: str | None = None,
        text_column: str | None = None,
        *,
        batch_size: int = 64,
        captions_per_image: int | None = None,
        strict: bool = False,
    ) -> PairDataset:
        """List the pairs of a `datasets.Dataset` that is loaded already; see `open`."""
        image = choose_column(dataset.column_names, image_column, _IMAGES, name, COLUMN_OPTIONS)
        text = choose_column(dataset.column_names, text_column, _TEXTS, name, COLUMN_OPTIONS)
        skipped = SkippedImages(strict)
        pairs = in_rounds(_captions(dataset, text, name, skipped), captions_per_image)
        if not pairs:
            raise BayesVLMError(
                f"{name} holds no captions in its column {text!r}; name another with text_column=... or --text-column."
            )
        return cls(name, _undecoded(dataset, image, name), image, tuple(pairs), batch_size, skipped)

    @property
    def size(self) -> int:
        """The number of pairs listed."""
        return len(self.pairs)

    @property
    def title(self) -> str:
        """What errors call it."""
        return self.name

    def pair(self, row: int) -> Pair:
        """One of the pairs, not decoded."""
        place, text = self.pairs[row]
        return Pair(f"{self.name}, row {place}", _image(self.images[place][self.image_column]), text)

    def fingerprint(self) -> str:
        """A hash of the rows and their captions; a resumed fit compares the images it has had as well."""
        digest = hashlib.sha256(json.dumps([len(self.images), self.image_column]).encode())
        for pair in self.pairs:
            digest.update(json.dumps(pair).encode())
        return digest.hexdigest()


def _captions(dataset: Any, column: str, name: str, skipped: SkippedImages) -> Iterator[tuple[int, str]]:
    """(row, caption) of every caption; a blank one is skipped and noted."""
    batches = dataset.select_columns([column]).iter(batch_size=1000)
    for row, value in enumerate(value for batch in batches for value in batch[column]):
        where, captions = f"{name}, row {row}", value if isinstance(value, list) else [value]
        for caption in captions:
            if not isinstance(caption, str | None):
                raise BayesVLMError(
                    f"{where}: the column {column!r} holds {type(caption).__name__}, not text; name the column of the "
                    "captions with text_column=... or --text-column."
                )
        said = [(caption or "").strip() for caption in captions]
        if not any(said):
            skipped.note(where, BayesVLMError(f"{where} has no caption."))
            continue
        for number, caption in enumerate(said, start=1):
            if caption:
                yield row, caption
            else:
                place = f"{where}, caption {number}"
                skipped.note(place, BayesVLMError(f"{place} is blank."))


def _undecoded(dataset: Any, column: str, name: str) -> Any:
    """The image column alone, as the bytes or paths of the files, so that a damaged image can be skipped."""
    feature = dataset.features[column]
    if hasattr(feature, "decode"):
        return dataset.select_columns([column]).cast_column(column, type(feature)(decode=False))
    images = dataset.select_columns([column])
    first = images[0][column]
    if isinstance(first, str) and first.startswith(("http://", "https://")):
        raise BayesVLMError(
            f"{name}: the column {column!r} holds web addresses; download the images first, with img2dataset for one."
        )
    return images


def _image(value: Any) -> ImageLike:
    """What `to_rgb` reads: the package keeps an image file as its bytes, or as the path to it."""
    if isinstance(value, dict):
        value = value.get("bytes") or value.get("path")
    return Path(value) if isinstance(value, str) else value
