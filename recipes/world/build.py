"""Build the embedded world's data from the pinned artwork: `python recipes/world/build.py`.

Renders every drawing (about a minute on two cores), splits them, and writes shards in CLIP-benchmark's webdataset
layout to src/bayesvlm/world/data. With the versions in requirements.txt the files come out byte for byte the same;
`--check` compares instead of writing. `--artwork FILE` also writes what train.py needs: the training drawings with
their transparency, and skin-tone variants, as one npz file.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import sys
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from concepts import Concept, read_concepts
from PIL import Image
from splits import assign, caption, half, unseen_concepts

from artwork import STYLES, Artwork, Style, slug, slugs

HERE = Path(__file__).resolve().parent
PACKAGES = HERE / "node_modules"
DATA = HERE.parents[1] / "src/bayesvlm/world/data"
FLAG_STYLES = ("twemoji", "fluent-flat")  # styles the models know: what is new about a flag is its content
TONES = (0, 4)  # light and dark; the three between them are close to these

_artwork: dict[str, Artwork] = {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed files instead of writing")
    parser.add_argument("--artwork", type=Path, help="also write the training drawings with transparency to this file")
    options = parser.parse_args()
    if not PACKAGES.is_dir():
        sys.exit(f"{PACKAGES} is missing; run `npm ci --ignore-scripts --prefix {HERE}` first.")
    concepts, flags = read_concepts(PACKAGES)
    _open_artwork([*concepts, *flags])
    with ProcessPoolExecutor(initializer=_open_artwork, initargs=([*concepts, *flags],)) as pool:
        files = _emoji(concepts, pool) | _flags(flags, pool)
        if options.artwork:
            _write_artwork(options.artwork, concepts, pool)
    files["LICENSES.md"] = _licences().encode()
    files["LICENSE-Apache-2.0.txt"] = (HERE / "LICENSE-Apache-2.0.txt").read_bytes()
    if options.check:
        _compare(files)
    else:
        for name, content in files.items():
            path = DATA / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        print(f"{len(files)} files, {sum(map(len, files.values())) / 1e6:.1f} MB, in {DATA}")


# The two data sets ----------------------------------------------------------------------------------------------------


def _emoji(concepts: Sequence[Concept], pool: ProcessPoolExecutor) -> dict[str, bytes]:
    """Class names, splits and shards of the concepts; the seen ones come first in the list of classes."""
    unseen = unseen_concepts(concepts)
    classes = sorted(concepts, key=lambda concept: concept.code in unseen)  # stable: Unicode's order within
    splits = assign(concepts, {concept.code: _drawn(concept.code) for concept in concepts})
    shards = defaultdict(lambda: defaultdict(list))
    rows = []
    for index, concept in enumerate(classes):
        for style in _drawn(concept.code):
            split, key = splits[concept.code, style.name], f"{style.name}_{concept.code}"
            active = half(concept.code, style) if split == style.name else ""
            rows.append([key, index, split, active])
            shards[split][style.name].append((key, style.name, concept.code, index, caption(concept, key)))
    return {
        "emoji/classnames.txt": _lines(concept.label for concept in classes),
        "emoji/zeroshot_classification_templates.txt": _lines(["{c}"]),
        "emoji/concepts.csv": _table(
            ["class", "code", "label", "group", "seen", "keywords"],
            [
                [index, c.code, c.label, c.group, int(c.code not in unseen), "|".join(c.keywords)]
                for index, c in enumerate(classes)
            ],
        ),
        "emoji/splits.csv": _table(["key", "class", "split", "active"], rows),
    } | _shards("emoji", shards, pool)


def _flags(flags: Sequence[Concept], pool: ProcessPoolExecutor) -> dict[str, bytes]:
    """The flags, out of domain: another list of classes, one split."""
    shards = defaultdict(lambda: defaultdict(list))
    for index, concept in enumerate(flags):
        for style in _drawn(concept.code):
            if style.name in FLAG_STYLES:
                key = f"{style.name}_{concept.code}"
                shards["test"][style.name].append((key, style.name, concept.code, index, concept.label))
    return {
        "flags/classnames.txt": _lines(flag.label for flag in flags),
        "flags/zeroshot_classification_templates.txt": _lines(["{c}"]),
    } | _shards("flags", shards, pool)


def _shards(
    root: str,
    splits: Mapping[str, Mapping[str, Sequence[tuple[str, str, str, int, str]]]],
    pool: ProcessPoolExecutor,
) -> dict[str, bytes]:
    """One shard a style, so that no two licences share a file."""
    files = {}
    for split, styles in sorted(splits.items()):
        ordered = [style.name for style in STYLES if style.name in styles]
        for number, name in enumerate(ordered):
            samples = styles[name]
            images = pool.map(_webp, [name] * len(samples), [sample[2] for sample in samples], chunksize=32)
            members = []
            for (key, _, _, index, text), image in zip(samples, images, strict=True):
                members += [(f"{key}.webp", image), (f"{key}.cls", str(index).encode()), (f"{key}.txt", text.encode())]
            files[f"{root}/{split}/{number}.tar.gz"] = _tar(members)
        files[f"{root}/{split}/nshards.txt"] = _lines([str(len(ordered))])
    return files


def _write_artwork(path: Path, concepts: Sequence[Concept], pool: ProcessPoolExecutor) -> None:
    """RGBA of the training split and of its skin-tone variants, with the class of each, deflated."""
    splits = assign(concepts, {concept.code: _drawn(concept.code) for concept in concepts})
    unseen = unseen_concepts(concepts)
    classes = sorted(concepts, key=lambda concept: concept.code in unseen)
    wanted = []
    for index, concept in enumerate(classes):
        for style in _drawn(concept.code):
            if splits[concept.code, style.name] == "train":
                tones = [concept.tones[tone] for tone in TONES if tone < len(concept.tones)]
                codes = [concept.code, *(code for code in tones if code in _artwork[style.name])]
                wanted += [(index, style.name, code) for code in codes]
    drawings = pool.map(_rgba, [style for _, style, _ in wanted], [code for _, _, code in wanted], chunksize=32)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        pixels=np.stack(list(drawings)),  # [N, 64, 64, 4]
        classes=np.array([index for index, _, _ in wanted], dtype=np.int64),
        styles=np.array([style for _, style, _ in wanted]),
    )
    print(f"{len(wanted)} drawings with transparency, {path.stat().st_size / 1e6:.1f} MB, in {path}")


# One drawing ----------------------------------------------------------------------------------------------------------


def _open_artwork(concepts: Sequence[Concept]) -> None:
    """Index the drawings of every style, once a process."""
    names = {slug(concept): concept.code for concept in concepts} | slugs(PACKAGES)
    _artwork.update({style.name: Artwork(style, PACKAGES, names) for style in STYLES})


def _drawn(code: str) -> list[Style]:
    return [style for style in STYLES if code in _artwork[style.name]]


def _rgba(style: str, code: str) -> np.ndarray:
    return np.asarray(_artwork[style].draw(code))


def _webp(style: str, code: str) -> bytes:
    """The drawing on white."""
    drawing = _artwork[style].draw(code)
    image = Image.alpha_composite(Image.new("RGBA", drawing.size, "white"), drawing).convert("RGB")
    buffer = io.BytesIO()
    image.save(buffer, "webp", quality=80, method=6)
    return buffer.getvalue()


# Files ----------------------------------------------------------------------------------------------------------------


def _tar(members: Iterable[tuple[str, bytes]]) -> bytes:
    """A gzip-compressed tar without times, owners or names of its own: the same members give the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return gzip.compress(buffer.getvalue(), compresslevel=9, mtime=0)


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue().encode()


def _lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _licences() -> str:
    """The page of licences: its head, and a row for every style."""
    rows = [["style", "package", "licence of the artwork", "attribution", "trained on"], ["---"] * 5]
    rows += [
        [style.name, style.package, style.licence, style.attribution, "yes" if style.trained else "no"]
        for style in STYLES
    ]
    head = (HERE / "LICENSES.head.md").read_text(encoding="utf-8")
    return head.rstrip() + "\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _compare(files: Mapping[str, bytes]) -> None:
    committed = {str(path.relative_to(DATA)) for path in DATA.rglob("*") if path.is_file()}
    wrong = sorted(committed ^ set(files))
    wrong += [name for name in sorted(committed & set(files)) if (DATA / name).read_bytes() != files[name]]
    if wrong:
        sys.exit(f"{len(wrong)} of {len(files)} files differ from the committed ones: {', '.join(wrong[:10])}")
    print(f"all {len(files)} files are the committed ones, byte for byte")


if __name__ == "__main__":
    main()
