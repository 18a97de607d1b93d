"""Image-text pairs in a folder: a captions file (csv, tsv, jsonl), or `image.txt` beside each image."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.images import SkippedImages, find_images

CAPTION_FILES = ("captions.csv", "captions.tsv", "captions.jsonl")
IMAGE_COLUMNS = ("image", "file_name", "filename", "file", "path", "filepath", "image_path")
CAPTION_COLUMNS = ("caption", "text", "title", "description")


@dataclass(frozen=True)
class PairFolder:
    """A list of image files with their captions, decoded batch by batch.

    Args:
        pairs: (image file, caption), in order.
        batch_size: pairs in a batch.
        skipped: where unreadable images are counted.
    """

    pairs: tuple[tuple[Path, str], ...]
    batch_size: int = 64
    skipped: SkippedImages = field(default_factory=SkippedImages)

    @classmethod
    def open(
        cls, folder: str | Path, captions: str | Path | None = None, batch_size: int = 64, strict: bool = False
    ) -> PairFolder:
        """List the pairs of a folder.

        Args:
            folder: where the images are.
            captions: a csv, tsv or jsonl file with an image and a caption column; None looks for `captions.csv`,
                `.tsv` or `.jsonl` in the folder, then for an `image.txt` beside each image.
            batch_size: pairs in a batch.
            strict: stop at the first image that cannot be read, instead of skipping it.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise BayesVLMError(f"{folder} is not a folder; give the folder with the images and their captions.")
        file = Path(captions) if captions is not None else _captions_file(folder)
        pairs = _sidecar_pairs(folder) if file is None else _table_pairs(file, folder)
        return cls(tuple(pairs), batch_size, SkippedImages(strict))

    def __len__(self) -> int:
        return len(self.pairs)

    def __iter__(self) -> Iterator[tuple[list[Image.Image], list[str]]]:
        for start in range(0, len(self.pairs), self.batch_size):
            batch = self.pairs[start : start + self.batch_size]
            images = self.skipped.decode([path for path, _ in batch])
            read = [(image, text) for image, (_, text) in zip(images, batch, strict=True) if image is not None]
            if read:
                yield [image for image, _ in read], [text for _, text in read]

    def fingerprint(self) -> str:
        """A hash of the file names, sizes and captions: what a resumed fit must find unchanged."""
        digest = hashlib.sha256()
        for path, text in self.pairs:
            size = path.stat().st_size if path.exists() else -1
            digest.update(json.dumps([path.name, size, text]).encode())
        return digest.hexdigest()


def _captions_file(folder: Path) -> Path | None:
    found = [folder / name for name in CAPTION_FILES if (folder / name).is_file()]
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise BayesVLMError(f"{folder} has several captions files ({names}); say which with --captions.")
    return found[0] if found else None


def _sidecar_pairs(folder: Path) -> list[tuple[Path, str]]:
    images = find_images(folder)
    if not images:
        raise BayesVLMError(f"{folder} holds no images; put image files there, with their captions.")
    captioned = [path for path in images if path.with_suffix(".txt").is_file()]
    if not captioned:
        raise BayesVLMError(
            f"{folder} holds {len(images)} images but no captions; add {' or '.join(CAPTION_FILES)} "
            f"(columns image, caption), or a text file beside each image such as {images[0].with_suffix('.txt').name}."
        )
    if len(captioned) < len(images):
        bare = next(path for path in images if path not in set(captioned))
        raise BayesVLMError(
            f"{len(images) - len(captioned)} of {len(images)} images have no caption file (first: {bare}); "
            f"add {bare.with_suffix('.txt').name} or move the image away."
        )
    pairs = [(path, _read_text(path.with_suffix(".txt")).strip()) for path in captioned]
    empty = next((path for path, text in pairs if not text), None)
    if empty is not None:
        raise BayesVLMError(
            f"The caption file {empty.with_suffix('.txt')} is empty; write a caption or move the image away."
        )
    return pairs


def _table_pairs(file: Path, folder: Path) -> list[tuple[Path, str]]:
    if not file.is_file():
        raise BayesVLMError(f"The captions file {file} does not exist; give a csv, tsv or jsonl file.")
    suffix = file.suffix.lower()
    if suffix not in (".csv", ".tsv", ".jsonl"):
        raise BayesVLMError(f"The captions file {file} is a {suffix or 'file without suffix'}; use csv, tsv or jsonl.")
    rows = _jsonl_rows(file) if suffix == ".jsonl" else _csv_rows(file, "," if suffix == ".csv" else "\t")
    if not rows:
        raise BayesVLMError(f"The captions file {file} lists no pairs.")
    image, caption = _column(rows[0], IMAGE_COLUMNS, file), _column(rows[0], CAPTION_COLUMNS, file)
    pairs = []
    for number, row in enumerate(rows, start=1):
        for name in (image, caption):
            if not isinstance(row.get(name), str) or not row[name].strip():
                raise BayesVLMError(
                    f"{file}, entry {number}: {name!r} must be text that is not empty, got {row.get(name)!r}."
                )
        pairs.append((folder / row[image], row[caption]))
    return pairs


def _csv_rows(file: Path, delimiter: str) -> Sequence[Mapping[str, str]]:
    """Rows of a csv file with quotes, or of a tsv file, where a quote is a character like any other."""
    lines = io.StringIO(_read_text(file), newline="")
    try:
        if delimiter == ",":
            rows = list(csv.DictReader(lines, restkey="", strict=True))
        else:
            rows = list(csv.DictReader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE, restkey=""))
    except csv.Error as error:
        raise BayesVLMError(f"The captions file {file} is not readable: {error}.") from None
    for number, row in enumerate(rows, start=1):
        if "" in row:
            raise BayesVLMError(
                f"{file}, entry {number} has more fields than there are columns (from {row['']!r} on); "
                "put captions with a comma in double quotes."
            )
    return rows


def _jsonl_rows(file: Path) -> Sequence[Mapping[str, str]]:
    rows = []
    for number, line in enumerate(_read_text(file).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise BayesVLMError(f"{file}, line {number} is not json ({error}).") from None
        if not isinstance(row, dict):
            raise BayesVLMError(f"{file}, line {number} is a {type(row).__name__}; each line must be an object.")
        rows.append(row)
    return rows


def _column(row: Mapping[str, str], known: Sequence[str], file: Path) -> str:
    for name in row:
        if isinstance(name, str) and name.strip().lower() in known:
            return name
    raise BayesVLMError(
        f"{file} has the columns {', '.join(map(repr, row))}; one of them must be called {' or '.join(known)}."
    )


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BayesVLMError(f"{file} is not UTF-8 text (byte {error.start}); save it as UTF-8.") from None
    except OSError as error:
        raise BayesVLMError(f"{file} cannot be read: {error.strerror}.") from None
