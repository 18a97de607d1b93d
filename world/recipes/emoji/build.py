"""Build the embedded world's data from the pinned artwork: `python world/recipes/emoji/build.py`.

Renders every drawing (about a minute on two cores), splits them, and writes shards in CLIP-benchmark's webdataset
layout to world/src/bayesvlm_world/data. With the versions in requirements.txt the files come out byte for byte
the same; `--check` compares instead of writing. `--artwork FILE` also writes what train.py needs: the training
drawings with their transparency, and skin-tone variants, as one npz file.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import shutil
import sys
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from artwork import Artwork, slug, slugs
from bayesvlm_world.splits import TEMPLATES
from concepts import Concept, read_concepts
from splits import Key, Picture, assign, caption, half, near, set_aside_near, unsaid, unseen_concepts
from styles import STYLES, Style

HERE = Path(__file__).resolve().parent
PACKAGES = HERE / "node_modules"
DATA = HERE.parents[1] / "src/bayesvlm_world/data"
FLAG_STYLES = ("twemoji", "fluent-flat")  # styles the models know: what is new about a flag is its content
TONES = (0, 4)  # light and dark; the three between them are close to these

TESTED = ("validation", "new-drawing", "unseen-concepts", *(style.name for style in STYLES if not style.trained))

BY_NAME = {style.name: style for style in STYLES}

Pixels = NDArray[np.uint8]  # [64, 64, 4]
Drawings = dict[Key, Pixels]
Images = dict[Key, bytes]  # webp, on white
Splits = dict[Key, str]

_artwork: dict[str, Artwork] = {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed files instead of writing")
    parser.add_argument("--artwork", type=Path, help="also write the training drawings with transparency to this file")
    options = parser.parse_args()
    if not PACKAGES.is_dir():
        sys.exit(f"{PACKAGES} is missing; run `npm ci --ignore-scripts --prefix {HERE}` first.")
    concepts, flags = read_concepts(PACKAGES)
    concepts = unsaid(concepts)
    _open_artwork([*concepts, *flags])
    with ProcessPoolExecutor(initializer=_open_artwork, initargs=([*concepts, *flags],)) as pool:
        drawings = _render([concept.code for concept in concepts], STYLES, pool)
        banners = _render([flag.code for flag in flags], [s for s in STYLES if s.name in FLAG_STYLES], pool)
        images, pictured = _encode(drawings, pool), _encode(banners, pool)
        splits = set_aside_near(assign(concepts, _drawn(drawings)), {key: _decode(images[key]) for key in images})
        if options.artwork:
            _write_artwork(options.artwork, concepts, splits, drawings, pool)
    files = _emoji(concepts, splits, images) | _flags(flags, pictured)
    files["LICENSES.md"] = _licences().encode()
    files["LICENSE-Apache-2.0.txt"] = (HERE / "LICENSE-Apache-2.0.txt").read_bytes()
    if options.check:
        _compare(files)
        return
    shutil.rmtree(DATA, ignore_errors=True)
    for name, content in files.items():
        path = DATA / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    print(f"{len(files)} files, {sum(map(len, files.values())) / 1e6:.1f} MB, in {DATA}")


# Drawings -------------------------------------------------------------------------------------------------------------


def _open_artwork(concepts: Sequence[Concept]) -> None:
    """Index the drawings of every style, once a process."""
    names = {slug(concept): concept.code for concept in concepts} | slugs(PACKAGES)
    _artwork.update({style.name: Artwork(style, PACKAGES, names) for style in STYLES})


def _render(codes: Sequence[str], styles: Sequence[Style], pool: ProcessPoolExecutor) -> Drawings:
    """RGBA of all drawings there are, but for blank ones: a file may be empty."""
    wanted = [(code, style.name) for code in codes for style in styles if code in _artwork[style.name]]
    pixels = pool.map(_rgba, [style for _, style in wanted], [code for code, _ in wanted], chunksize=32)
    return {key: drawing for key, drawing in zip(wanted, pixels, strict=True) if drawing[..., 3].any()}


def _rgba(style: str, code: str) -> Pixels:
    return np.asarray(_artwork[style].draw(code))


def _drawn(drawings: Drawings) -> dict[str, list[Style]]:
    """The styles that draw each concept."""
    drawn = defaultdict(list)
    for code, style in drawings:
        drawn[code].append(BY_NAME[style])
    return drawn


def _encode(drawings: Drawings, pool: ProcessPoolExecutor) -> Images:
    return dict(zip(drawings, pool.map(_webp, drawings.values(), chunksize=32), strict=True))


def _webp(pixels: Pixels) -> bytes:
    """A drawing on white."""
    buffer = io.BytesIO()
    Image.fromarray(_on_white(pixels)).save(buffer, "webp", quality=75, method=6)
    return buffer.getvalue()


def _decode(image: bytes) -> Picture:
    return np.asarray(Image.open(io.BytesIO(image)).convert("RGB"))


def _on_white(pixels: Pixels) -> Picture:
    drawing = Image.fromarray(pixels)
    return np.asarray(Image.alpha_composite(Image.new("RGBA", drawing.size, "white"), drawing).convert("RGB"))


# The two data sets ----------------------------------------------------------------------------------------------------


def _emoji(concepts: Sequence[Concept], splits: Splits, images: Images) -> dict[str, bytes]:
    """Class names, splits and shards of the concepts."""
    classes = _classes(concepts)
    unseen = unseen_concepts(concepts)
    shards = defaultdict(lambda: defaultdict(list))
    rows = []
    for index, concept in enumerate(classes):
        for style in STYLES:
            if (concept.code, style.name) not in images:
                continue
            split, key = splits[concept.code, style.name], f"{style.name}_{concept.code}"
            rows.append([key, index, split, half(concept.code, style) if split == style.name else ""])
            shards[split][style.name].append((key, images[concept.code, style.name], index, caption(concept, key)))
    listed = [
        [index, c.code, c.label, c.group, c.subgroup, int(c.code not in unseen), "|".join(c.keywords)]
        for index, c in enumerate(classes)
    ]
    return {
        "emoji/classnames.txt": _lines(concept.label for concept in classes),
        "emoji/zeroshot_classification_templates.txt": _lines(TEMPLATES),
        "emoji/concepts.csv": _table(["class", "code", "label", "group", "subgroup", "seen", "keywords"], listed),
        "emoji/splits.csv.gz": _packed(_table(["key", "class", "split", "active"], rows)),
    } | _shards("emoji", shards)


def _classes(concepts: Sequence[Concept]) -> list[Concept]:
    """The seen ones first; Unicode's order within."""
    unseen = unseen_concepts(concepts)
    return sorted(concepts, key=lambda concept: concept.code in unseen)


def _flags(flags: Sequence[Concept], images: Images) -> dict[str, bytes]:
    """The flags, out of domain: another list of classes, one split."""
    shards = defaultdict(lambda: defaultdict(list))
    for index, flag in enumerate(flags):
        for style in FLAG_STYLES:
            if (flag.code, style) in images:
                shards["test"][style].append((f"{style}_{flag.code}", images[flag.code, style], index, flag.label))
    return {
        "flags/classnames.txt": _lines(flag.label for flag in flags),
        "flags/zeroshot_classification_templates.txt": _lines(TEMPLATES),
    } | _shards("flags", shards)


def _shards(root: str, splits: Mapping[str, Mapping[str, Sequence[tuple[str, bytes, int, str]]]]) -> dict[str, bytes]:
    """One shard a style, so that no two licences share a file."""
    files = {}
    for split, styles in sorted(splits.items()):
        ordered = [style.name for style in STYLES if style.name in styles]
        for number, name in enumerate(ordered):
            members = []
            for key, image, index, text in styles[name]:
                members += [(f"{key}.webp", image), (f"{key}.cls", str(index).encode()), (f"{key}.txt", text.encode())]
            files[f"{root}/{split}/{number}.tar.gz"] = _tar(members)
        files[f"{root}/{split}/nshards.txt"] = _lines([str(len(ordered))])
    return files


def _write_artwork(
    path: Path, concepts: Sequence[Concept], splits: Splits, drawings: Drawings, pool: ProcessPoolExecutor
) -> None:
    """RGBA of the training split and of its skin-tone variants, with the class of each, deflated.

    A variant that is nearly a held-out drawing, of whatever concept, is left out.
    """
    pixels, classes, toned = [], [], []
    for index, concept in enumerate(_classes(concepts)):
        styles = [style for style in STYLES if splits.get((concept.code, style.name)) == "train"]
        tones = [concept.tones[tone] for tone in TONES if tone < len(concept.tones)]
        found = [drawings[concept.code, style.name] for style in styles]
        variants = [*_render(tones, styles, pool).values()] if tones and styles else []
        pixels += found + variants
        classes += [index] * (len(found) + len(variants))
        toned += [False] * len(found) + [True] * len(variants)
    held_out = [_on_white(drawing) for key, drawing in drawings.items() if splits[key] in TESTED]
    leaks = near([_on_white(drawing) for drawing in pixels], held_out) & np.array(toned)
    pixels = [drawing for drawing, leak in zip(pixels, leaks, strict=True) if not leak]
    classes = [index for index, leak in zip(classes, leaks, strict=True) if not leak]
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, pixels=np.stack(pixels), classes=np.array(classes))  # [N, 64, 64, 4], [N]
    print(f"{len(pixels)} drawings with transparency, {path.stat().st_size / 1e6:.1f} MB, in {path}")


# Files ----------------------------------------------------------------------------------------------------------------


def _tar(members: Iterable[tuple[str, bytes]]) -> bytes:
    """A gzip-compressed tar without times, owners or names of its own: the same members give the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return _packed(buffer.getvalue())


def _packed(content: bytes) -> bytes:
    """Compressed, without a name or a time."""
    packed = io.BytesIO()  # gzip.compress would write another header from Python 3.13 on
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, compresslevel=9, mtime=0) as file:
        file.write(content)
    return packed.getvalue()


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
    committed = {str(path.relative_to(DATA)): path.read_bytes() for path in DATA.rglob("*") if path.is_file()}
    if absent := sorted(set(committed) ^ set(files)):
        sys.exit(f"{len(absent)} files are here or committed, not both: {', '.join(absent[:10])}")
    wrong = [name for name in sorted(files) if committed[name] != files[name]]
    if any(_unpacked(name, committed[name]) != _unpacked(name, files[name]) for name in wrong):
        sys.exit(f"{len(wrong)} of {len(files)} files differ from the committed ones: {', '.join(wrong[:10])}")
    if wrong:
        sys.exit(f"{len(wrong)} shards hold the committed images but are compressed otherwise: another zlib made them.")
    print(f"all {len(files)} files are the committed ones, byte for byte")


def _unpacked(name: str, content: bytes) -> bytes:
    return gzip.decompress(content) if name.endswith(".gz") else content


if __name__ == "__main__":
    main()
