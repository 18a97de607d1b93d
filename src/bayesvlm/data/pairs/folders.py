"""Image-text pairs in a folder: a captions file (csv, tsv, jsonl, json), or `image.txt` beside each image."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.pairs.batches import ListedPairs, Pair, in_rounds, refuse_choices
from bayesvlm.data.pairs.captions import find_captions_file, read_captions_file
from bayesvlm.data.rows import read_text
from bayesvlm.images.files import SkippedImages, find_images


@dataclass(frozen=True)
class PairFolder(ListedPairs):
    """A set of pairs (`data.pairs.PairSet`): image files with their captions, decoded batch by batch.

    Args:
        pairs: (image file, caption), in order.
        batch_size: pairs in a batch.
        skipped: where images that cannot be read, or have no caption, are counted.
    """

    pairs: tuple[tuple[Path, str], ...]
    batch_size: int = 64
    skipped: SkippedImages = field(default_factory=SkippedImages)

    @classmethod
    def open(
        cls,
        folder: str | Path,
        captions: str | Path | None = None,
        batch_size: int = 64,
        strict: bool = False,
        *,
        split: str | None = None,
        image_column: str | None = None,
        text_column: str | None = None,
        captions_per_image: int | None = None,
    ) -> PairFolder:
        """List the pairs of a folder. Every caption of an image is a pair of its own.

        Args:
            folder: where the images are.
            captions: a csv, tsv or jsonl file with an image and a caption column, or the json of COCO's captions or
                of Karpathy's splits; None looks for `captions.csv`, `.tsv`, `.jsonl` or `.json` in the folder, then
                for an `image.txt` beside each image.
            batch_size: pairs in a batch.
            strict: stop at the first image that cannot be read or has no caption, instead of skipping it.
            split: of Karpathy's json, the split to take; None takes all of them.
            image_column, text_column: of a csv, tsv or jsonl file; None looks for one with a usual name.
            captions_per_image: how many captions of an image to take, from its first; None takes them all.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise BayesVLMError(f"{folder} is not a folder; give the folder with the images and their captions.")
        skipped = SkippedImages(strict)
        file = Path(captions) if captions is not None else find_captions_file(folder)
        choices = {"split": split, "image_column": image_column, "text_column": text_column}
        if file is None:
            refuse_choices(folder, "a folder of images without a captions file", **choices)
            pairs = _sidecar_pairs(folder, skipped)
        else:
            pairs = read_captions_file(file, folder, skipped, **choices)
        return cls(tuple(in_rounds(pairs, captions_per_image)), batch_size, skipped)

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def size(self) -> int:
        """The number of pairs listed."""
        return len(self.pairs)

    @property
    def title(self) -> str:
        """The name of the folder that the first image lies in."""
        return self.pairs[0][0].absolute().parent.name if self.pairs else "no pairs"

    def pair(self, row: int) -> Pair:
        """One of the pairs, not decoded."""
        path, text = self.pairs[row]
        return Pair(str(path), path, text)

    def fingerprint(self) -> str:
        """A hash of the file names, sizes and captions: what a resumed fit must find unchanged."""
        digest = hashlib.sha256()
        for path, text in self.pairs:
            size = path.stat().st_size if path.exists() else -1
            digest.update(json.dumps([path.name, size, text]).encode())
        return digest.hexdigest()


def _sidecar_pairs(folder: Path, skipped: SkippedImages) -> list[tuple[Path, str]]:
    images = find_images(folder, skipped)
    if not images:
        raise BayesVLMError(f"{folder} holds no images; put image files there, with their captions{skipped.beside}.")
    if not any(path.with_suffix(".txt").is_file() for path in images):
        raise BayesVLMError(
            f"{folder} holds {len(images)} images but no captions; add captions.csv, captions.tsv or captions.jsonl "
            f"(columns image, caption), or a text file beside each image such as {images[0].with_suffix('.txt').name}."
        )
    pairs = []
    for path in images:
        try:
            pairs.append((path, _caption_beside(path)))
        except BayesVLMError as error:
            skipped.note(str(path), error)
    if not pairs:
        raise BayesVLMError(
            f"None of the {len(images)} images of {folder} has a caption: {next(iter(skipped.reasons.values()))}"
        )
    return pairs


def _caption_beside(image: Path) -> str:
    file = image.with_suffix(".txt")
    if not file.is_file():
        raise BayesVLMError(f"{image} has no caption; write one into {file.name} beside it.")
    text = read_text(file).strip()
    if not text:
        raise BayesVLMError(f"{image} has no caption; {file.name} beside it is empty.")
    return text
