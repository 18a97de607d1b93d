"""Labelled images in webdataset shards, laid out as CLIP-benchmark publishes its data sets.

classnames.txt                              one class per line; a label is an index into it
zeroshot_classification_templates.txt       one prompt per line, with {c} for the class
SPLIT/nshards.txt                           how many shards the split has
SPLIT/0.tar, SPLIT/1.tar ... or .tar.gz     KEY.webp (or .jpg, .png), KEY.cls, and maybe KEY.txt, the caption
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.labelled.samples import Sample
from bayesvlm.data.tars import BrokenShardError, read_samples
from bayesvlm.images.files import SUFFIXES, SkippedImages
from bayesvlm.progress import progress_bar


@dataclass(frozen=True)
class LabelledShards:
    """One split of a data set, a labelled set (`data.LabelledSet`): its samples shard after shard.

    A shard that cannot be read to its end gives the samples before the damage; the rest is skipped and noted.
    """

    name: str
    folder: Path
    shards: tuple[Path, ...]
    classes: tuple[str, ...]
    templates: tuple[str, ...]
    skipped: SkippedImages = field(default_factory=SkippedImages)

    @classmethod
    def open(cls, folder: str | Path, split: str, *, name: str | None = None, strict: bool = False) -> LabelledShards:
        """List the shards of a split, and read the class names and templates.

        Args:
            folder: the folder with classnames.txt.
            split: one of its subfolders.
            name: what to call the set; None takes the folder's name.
            strict: a shard or image that cannot be read is an error, not skipped.
        """
        folder = Path(folder)
        classes = _lines(folder / "classnames.txt", "one class name per line")
        templates = _lines(
            folder / "zeroshot_classification_templates.txt", "one prompt per line, with {c} for the class"
        )
        if not (folder / split).is_dir():
            splits = sorted(path.parent.name for path in folder.glob("*/nshards.txt"))
            raise BayesVLMError(f"{folder} has no split {split!r}; it has {', '.join(splits) or 'none'}.")
        shards = _shards(folder / split)
        return cls(name or folder.resolve().name, folder / split, shards, classes, templates, SkippedImages(strict))

    @property
    def size(self) -> None:
        """Not known before reading: shards do not say how many samples they hold."""

    def fingerprint(self) -> str:
        """A hash of the shards' contents and the class names."""
        digest = hashlib.sha256(json.dumps(self.classes).encode())
        with progress_bar(f"Hashing {self.name}", total=len(self.shards), unit="shards") as advance:
            for shard in self.shards:
                with shard.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
                advance(1)
        return digest.hexdigest()

    def __iter__(self) -> Iterator[Sample]:
        for shard in self.shards:
            try:
                for sample in read_samples(shard):
                    yield self._sample(sample, shard)
            except BrokenShardError as error:
                self.skipped.note(str(shard), error)

    def _sample(self, sample: Mapping[str, Any], shard: Path) -> Sample:
        key = sample["__key__"]
        image = next((content for suffix, content in sample.items() if f".{suffix}" in SUFFIXES), None)
        if image is None or "cls" not in sample:
            missing = "image" if image is None else "cls file"
            raise BayesVLMError(f"{shard}: the sample {key!r} has no {missing}; a sample is KEY.webp with KEY.cls.")
        written = sample["cls"].decode(errors="replace").strip()
        if not written.isdecimal() or int(written) >= len(self.classes):
            raise BayesVLMError(
                f"{shard}: the sample {key!r} has the label {written!r}; expected 0 to {len(self.classes) - 1}, "
                "a line of classnames.txt."
            )
        return Sample(key, image, int(written), self._caption(sample, shard), origin=f"{shard.name}/{key}")

    @staticmethod
    def _caption(sample: Mapping[str, Any], shard: Path) -> str | None:
        try:
            return sample["txt"].decode() if "txt" in sample else None
        except UnicodeDecodeError as error:
            raise BayesVLMError(
                f"{shard}: the caption of {sample['__key__']!r} is not UTF-8 text (byte {error.start}); "
                "write it as UTF-8."
            ) from None


def _shards(folder: Path) -> tuple[Path, ...]:
    """The shards that nshards.txt announces, every one of them there."""
    written = " ".join(_lines(folder / "nshards.txt", "the number of shards"))
    if not written.isdecimal() or int(written) == 0:
        raise BayesVLMError(f"{folder / 'nshards.txt'} says {written!r}; expected the number of shards, at least 1.")
    found = []
    for number in range(int(written)):
        shard = next((path for path in (folder / f"{number}.tar", folder / f"{number}.tar.gz") if path.is_file()), None)
        if shard is None:
            raise BayesVLMError(
                f"{folder} announces {written} shards, but {number}.tar (or {number}.tar.gz) is missing; fetch it "
                "again."
            )
        found.append(shard)
    return tuple(found)


def _lines(file: Path, content: str) -> tuple[str, ...]:
    """The lines of a file, none of them blank: a label is a line's number, so none may be passed over."""
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8-sig").rstrip().split("\n")]
    except (OSError, UnicodeDecodeError) as error:
        raise BayesVLMError(f"{file} cannot be read ({error}); a data set of shards has it, with {content}.") from None
    if lines == [""]:
        raise BayesVLMError(f"{file} is empty; expected {content}.")
    if "" in lines:
        raise BayesVLMError(f"{file}, line {lines.index('') + 1} is blank; expected {content}.")
    return tuple(lines)
