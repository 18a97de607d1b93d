"""What `bayesvlm select` starts from: images that have labels already, images to leave out, what is left to learn."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from bayesvlm.cli.output import remark

if TYPE_CHECKING:
    from bayesvlm.active import Outlook
    from bayesvlm.core.features import Features
    from bayesvlm.data import SkippedImages
    from bayesvlm.data.labelled.class_names import ClassNames
    from bayesvlm.data.labelled.label_files import LabelRow
    from bayesvlm.experiments.feature_store import FeatureStore


class Pool(Protocol):
    """Images to choose from: what each is called, and its features."""

    @property
    def names(self) -> list[str]: ...

    @property
    def features(self) -> Features: ...


@dataclass(frozen=True)
class SeedSet:
    """What is labelled already, and which rows of the pool are among it."""

    learnt: tuple[Features, list[int]] | None
    rows: set[int]


def check_file(file: Path) -> None:
    """Refuse what follows `--labelled` where it was given as the flag that it once was."""
    from bayesvlm.core.errors import BayesVLMError

    if str(file).startswith("-"):
        raise BayesVLMError(
            f"--labelled takes a file of labels and got {file}; to learn the pool's own classes, give --oracle."
        )


def seed_set(
    encoder: FeatureStore,
    files: list[Path],
    images: Pool,
    names: ClassNames,
    root: Path | None,
    skipped: SkippedImages,
) -> SeedSet:
    """The labelled images, each once: those of the pool by its features, the others encoded."""
    from bayesvlm.cli.labelled import check_one_label, encode_rows, labelled_rows
    from bayesvlm.core.features import Features

    if not files:
        return SeedSet(None, set())
    places = _places(images)
    shown = [each[0] for each in names.names]
    parts: list[Features] = []
    labels: list[int] = []
    rows: set[int] = set()
    said: dict[int | str, int] = {}  # of each image its label, by its row in the pool or where its file is
    for file in files:
        listed = labelled_rows(file, root)
        indices = names.places([row.label or "" for row in listed], str(file))
        found = [_place(row, places) for row in listed]
        new: list[int] = []  # of the rows of the file
        for number, (row, place, label) in enumerate(zip(listed, found, indices, strict=True)):
            image = str(row.path.resolve()) if place is None else place
            if image not in said:
                new.append(number)
            check_one_label(row.image, said.setdefault(image, label), label, shown)
        fresh = [number for number in new if found[number] is None]
        encoded = encode_rows(encoder, [listed[number] for number in fresh], str(file), skipped) if fresh else None
        at = {} if encoded is None else {fresh[number]: row for row, number in enumerate(encoded.read)}
        for number in new:
            place = found[number]
            if place is not None:
                rows.add(place)
                parts.append(images.features[[place]])
            elif encoded is not None and number in at:
                parts.append(encoded.features[[at[number]]])
            else:
                continue  # cannot be read
            labels.append(indices[number])
    if not parts:
        return SeedSet(None, rows)
    return SeedSet((Features.concatenate(parts), labels), rows)


def excluded(files: list[Path], images: Pool, root: Path | None) -> set[int]:
    """Rows of the pool that the files list; images that are not in it are counted and said."""
    from bayesvlm.data.labelled.label_files import read_labels

    places = _places(images) if files else {}
    rows: set[int] = set()
    for file in files:
        listed = read_labels(file, root=root, labels_needed=False)
        found = [_place(row, places) for row in listed]
        if elsewhere := found.count(None):
            remark(
                f"{file}: {elsewhere} of {len(found)} images are not in the pool, so that there is nothing to exclude"
            )
        rows.update(place for place in found if place is not None)
    return rows


def _places(images: Pool) -> dict[str, int]:
    """Rows of the pool by what an image may be called in a file: its name, and its path in full."""
    from bayesvlm.data.names import own_path

    by_path = {str(own_path(name).resolve()): row for row, name in enumerate(images.names)}
    return by_path | {name: row for row, name in enumerate(images.names)}


def _place(row: LabelRow, places: dict[str, int]) -> int | None:
    return places.get(row.image, places.get(str(row.path.resolve())))


def expectation(expected: Outlook, worth: float) -> str:
    """What further labels are expected to tell, and what follows."""
    told = (
        f"a label of the images that are left is expected to tell {expected.now:.2g} nats about the target, "
        f"{100 * expected.share:.0f} % of what one did before any label ({expected.first:.2g}); a hundred, "
        f"{100 * expected.now:.2g}"
    )
    if expected.below(worth):
        return f"{told}, less than --worth {worth:g}: stop, if `bayesvlm finetune --previous` has gained no more either"
    return told
