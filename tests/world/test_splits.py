"""What the world promises: who sees what, what is never split, and that `load` gives it as it lies in the shards."""

from __future__ import annotations

import io
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageChops
from torch import Tensor

from bayesvlm import BayesVLMError
from bayesvlm_world import GROUPS, SPLITS, Split, load

from .conftest import DATA, Item

SIZES = {
    "train": 6211,
    "validation": 490,
    "new-drawing": 979,
    "set-aside": 894,
    "emojione-colour": 1016,
    "emojione-black": 1016,
    "openmoji-colour": 1530,
    "openmoji-black": 1530,
    "fluent-high-contrast": 1472,
    "unseen-concepts": 1021,
    "flags": 523,
}
TRAINED = {"noto", "noto-v1", "twemoji", "fluent-3d", "fluent-colour", "fluent-flat"}
UNSEEN_STYLES = {"emojione-colour", "emojione-black", "openmoji-colour", "openmoji-black", "fluent-high-contrast"}
NEAR = 0.05  # root mean square difference, of 1, below which two drawings are one
LICENCES = {  # style: its package, and the licence of the artwork
    "noto": ("@iconify-json/noto", "Apache-2.0"),
    "noto-v1": ("@iconify-json/noto-v1", "Apache-2.0"),
    "twemoji": ("@iconify-json/twemoji", "CC-BY-4.0"),
    "fluent-3d": ("@lobehub/fluent-emoji-3d", "MIT"),
    "fluent-colour": ("@lobehub/fluent-emoji-modern", "MIT"),
    "fluent-flat": ("@lobehub/fluent-emoji-flat", "MIT"),
    "emojione-colour": ("emojione", "CC-BY-4.0"),
    "emojione-black": ("emojione", "CC-BY-4.0"),
    "openmoji-colour": ("openmoji", "CC-BY-SA-4.0"),
    "openmoji-black": ("openmoji", "CC-BY-SA-4.0"),
    "fluent-high-contrast": ("@iconify-json/fluent-emoji-high-contrast", "MIT"),
}


def opened(item: Item) -> Image.Image:
    return Image.open(io.BytesIO(item.image))


# Who sees what -------------------------------------------------------------------------------------------------------


def test_sizes(items: list[Item]) -> None:
    counts = Counter("flags" if item.data_set == "flags" else item.split for item in items)
    assert dict(counts) == SIZES
    assert set(SPLITS) == set(SIZES)


def test_every_image_is_in_exactly_one_split(emoji: list[Item]) -> None:
    assert len({item.key for item in emoji}) == len(emoji)


def test_the_table_of_splits_agrees_with_the_shards(emoji: list[Item], rows: list[dict[str, str]]) -> None:
    written = {row["key"]: (int(row["class"]), row["split"]) for row in rows}
    assert len(written) == len(rows)
    assert written == {item.key: (item.label, item.split) for item in emoji}


def test_the_code_in_a_key_is_its_class(emoji: list[Item], concepts: list[dict[str, str]]) -> None:
    assert [int(concept["class"]) for concept in concepts] == list(range(1631))
    codes = [concept["code"] for concept in concepts]
    assert len(set(codes)) == 1631
    assert all(codes[item.label] == item.code for item in emoji)


def test_unseen_concepts_are_nowhere_else(emoji: list[Item], concepts: list[dict[str, str]]) -> None:
    unseen = {concept["code"] for concept in concepts if concept["seen"] == "0"}
    assert len(unseen) == 100
    assert {item.split for item in emoji if item.code in unseen} == {"unseen-concepts", "set-aside"}
    assert {item.code for item in emoji if item.split == "unseen-concepts"} == unseen


def test_no_caption_says_the_name_of_an_unseen_concept(emoji: list[Item], concepts: list[dict[str, str]]) -> None:
    names = {concept["label"].lower() for concept in concepts if concept["seen"] == "0"}
    for concept in concepts:
        if concept["seen"] == "1":
            assert names.isdisjoint(concept["keywords"].lower().split("|")), concept["label"]
    for item in emoji:
        if item.split == "train":
            assert names.isdisjoint(item.caption.lower().split(", ")), item.key


def test_unseen_styles_are_never_trained_on(emoji: list[Item]) -> None:
    styles = defaultdict(set)
    for item in emoji:
        styles[item.split].add(item.style)
    for split in ("train", "validation", "new-drawing"):
        assert styles[split] <= TRAINED, split
    for style in UNSEEN_STYLES:
        assert styles[style] == {style}, "a split of one style holds that style"
    assert styles["unseen-concepts"] == TRAINED | UNSEEN_STYLES


def test_seen_concepts_are_trained_on_and_tested_once(emoji: list[Item]) -> None:
    tested = Counter(item.code for item in emoji if item.split in ("validation", "new-drawing"))
    trained = {item.code for item in emoji if item.split == "train"}
    assert set(tested.values()) == {1}
    assert len(trained) == 1531
    assert set(tested) < trained
    assert len(tested) > 0.95 * 1531, "the others' held-out drawing is nearly one that is trained on"


def test_near_duplicates_are_never_split(emoji: list[Item]) -> None:
    """Fluent's three renderings of a concept are all trained on, or none; then one is tested, the rest set aside."""
    splits = defaultdict(list)
    for item in emoji:
        if item.style in ("fluent-3d", "fluent-colour", "fluent-flat") and item.split != "unseen-concepts":
            splits[item.code].append(item.split)
    assert len(splits) > 1400
    held_out = 0
    for code, found in splits.items():
        kinds = set(found)
        assert "train" not in kinds or kinds == {"train"}, f"{code}: {found}"
        if kinds & {"validation", "new-drawing"}:
            assert Counter(found)["set-aside"] == len(found) - 1, f"{code}: {found}"
            held_out += 1
    assert held_out > 350


def test_pool_and_target_share_no_drawing(rows: list[dict[str, str]]) -> None:
    sides = defaultdict(set)
    for row in rows:
        style, code = row["key"].split("_")
        assert (row["active"] in ("pool", "target")) == (row["split"] in UNSEEN_STYLES), row["key"]
        assert row["active"] in ("", "pool", "target")
        if row["active"]:
            family = style.removesuffix("-colour").removesuffix("-black")
            sides[family, code].add(row["active"])
    assert {family for family, _ in sides} == {"emojione", "openmoji", "fluent-high-contrast"}
    assert all(len(found) == 1 for found in sides.values())
    halves = Counter(next(iter(found)) for found in sides.values())
    assert 0.45 < halves["pool"] / halves.total() < 0.55


def test_no_tested_drawing_is_nearly_a_training_drawing(emoji: list[Item], pictures: Tensor) -> None:
    """Of whatever concept and style: those that are, and only they or Fluent's near-duplicates, are set aside."""
    trained = [row for row, item in enumerate(emoji) if item.split == "train"]
    others = [
        row for row, item in enumerate(emoji) if item.split != "train" and (item.style in TRAINED or row % 4 == 0)
    ]
    nearest = torch.cat([torch.cdist(pictures[rows], pictures[trained]).amin(dim=1) for rows in batched(others)])
    nearest = nearest / pictures.shape[1] ** 0.5 / 255
    for row, distance in zip(others, nearest.tolist(), strict=True):
        if emoji[row].split == "set-aside":
            fluent = emoji[row].style in ("fluent-3d", "fluent-colour", "fluent-flat")
            assert fluent or distance < NEAR + 1e-4, emoji[row].key
        else:
            assert distance > NEAR - 1e-4, emoji[row].key


@pytest.fixture(scope="module")
def pictures(emoji: list[Item]) -> Tensor:  # [N, 3 * 64 * 64]
    decoded = [torch.from_numpy(np.array(opened(item).convert("RGB"))).flatten() for item in emoji]
    return torch.stack(decoded).float()


def batched(rows: list[int], size: int = 512) -> Iterator[list[int]]:
    for first in range(0, len(rows), size):
        yield rows[first : first + size]


# The files -----------------------------------------------------------------------------------------------------------


def test_a_shard_holds_one_style(items: list[Item]) -> None:
    styles = defaultdict(set)
    for item in items:
        styles[item.data_set, item.split, item.shard].add(item.style)
    assert all(len(found) == 1 for found in styles.values())
    openmoji = [place for place, found in styles.items() if any("openmoji" in style for style in found)]
    assert len(openmoji) == 5, "OpenMoji is share-alike: its styles, their unseen concepts and one set aside"


def test_images_are_small_and_in_colour(items: list[Item]) -> None:
    for number, item in enumerate(items):
        image = opened(item)
        assert (image.format, image.size, image.mode) == ("WEBP", (64, 64), "RGB"), item.key
        if number % 8 == 0:
            image.load()


def test_no_image_is_blank(items: list[Item]) -> None:
    small = sorted(items, key=lambda item: len(item.image))[:300]  # one colour takes fewest bytes
    blank = [item.key for item in small if not ImageChops.invert(opened(item).convert("RGB")).getbbox()]
    assert not blank


def test_captions_begin_with_the_label(items: list[Item]) -> None:
    names = {name: (DATA / name / "classnames.txt").read_text().splitlines() for name in ("emoji", "flags")}
    longer = 0
    for item in items:
        label = names[item.data_set][item.label]
        assert item.caption == label or item.caption.startswith(f"{label}, "), item.key
        longer += item.caption != label
    assert 0.1 < longer / len(items) < 0.9, "some of them say more"


def test_class_names_are_the_concepts_with_the_seen_ones_first(concepts: list[dict[str, str]]) -> None:
    names = (DATA / "emoji/classnames.txt").read_text().splitlines()
    assert names == [concept["label"] for concept in concepts]
    assert len(set(names)) == 1631
    assert [concept["seen"] for concept in concepts] == ["1"] * 1531 + ["0"] * 100
    assert {concept["group"] for concept in concepts} == set(GROUPS)


def test_every_drawing_has_a_licence(items: list[Item]) -> None:
    text = (DATA / "LICENSES.md").read_text()
    cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines() if line[:1] == "|"]
    listed = {row[0]: (row[1], row[2]) for row in cells if row[0] in LICENCES}
    assert listed == LICENCES
    assert {item.style for item in items} == set(LICENCES)
    trained = {row[0] for row in cells if row[-1] == "yes"}
    assert trained == {item.style for item in items if item.split == "train"} == TRAINED
    for name in re.findall(r"`(LICENSE[\w.-]*)`", text):
        assert (DATA / name).is_file(), f"LICENSES.md refers to {name}"


@pytest.mark.parametrize("place", ["emoji/unseen-concepts", "flags/test"])
def test_webdataset_reads_the_shards(place: str, items: list[Item]) -> None:
    import webdataset

    shards = sorted((DATA / place).glob("*.tar.gz"), key=lambda path: int(path.name.split(".")[0]))
    assert int((DATA / place / "nshards.txt").read_text()) == len(shards)
    read = webdataset.WebDataset([str(path) for path in shards], shardshuffle=False).decode("pil")
    expected = [item for item in items if f"{item.data_set}/{item.split}" == place]
    count = 0
    for item, found in zip(expected, read, strict=True):
        assert (found["__key__"], found["cls"], found["txt"]) == (item.key, item.label, item.caption)
        assert found["webp"].size == (64, 64)
        count += 1
    assert count == len(expected) > 500


# load ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def new_drawing() -> Split:
    return load("new-drawing")


@pytest.fixture(scope="module")
def unseen() -> Split:
    return load("unseen-concepts")


def test_load_gives_what_lies_in_the_shards(items: list[Item], unseen: Split, new_drawing: Split) -> None:
    names = {name: tuple((DATA / name / "classnames.txt").read_text().splitlines()) for name in ("emoji", "flags")}
    for split, first, last in (
        (new_drawing, 0, 1531),
        (unseen, 1531, 1631),
        (load("flags"), 0, 270),
        (load("openmoji-black"), 0, 1531),
        (load("set-aside"), 0, 1631),
    ):
        place = ("flags", "test") if split.name == "flags" else ("emoji", split.name)
        expected = [item for item in items if (item.data_set, item.split) == place]
        assert split.keys == tuple(item.key for item in expected)
        assert split.images == tuple(item.image for item in expected)
        assert split.captions == tuple(item.caption for item in expected)
        assert split.styles == tuple(item.style for item in expected)
        assert split.classes == names[place[0]][first:last]
        assert [split.classes[label] for label in split.labels] == [names[place[0]][item.label] for item in expected]
        assert len(split) == len(expected) == SIZES[split.name]


@pytest.mark.parametrize("name", ["nonsense", "test", "", "emoji/train", None])
def test_a_split_nobody_knows(name: str) -> None:
    with pytest.raises(BayesVLMError, match=rf"^split={name!r} is not known; use 'train', .* or 'flags'\.$"):
        load(name)


def test_groups_of_classes(new_drawing: Split, concepts: list[dict[str, str]]) -> None:
    sizes = {group: len(new_drawing.group(group).classes) for group in GROUPS}
    counted = {"food-drink": 118, "animals-nature": 145, "activities": 74, "people-body": 388}
    assert {group: sizes[group] for group in counted} == counted
    assert sum(sizes.values()) == len(new_drawing.classes)
    assert sum(len(new_drawing.group(group)) for group in GROUPS) == len(new_drawing)


@pytest.mark.parametrize("group", ["food-drink", "activities"])
def test_a_group_is_a_task_of_its_own(
    new_drawing: Split, unseen: Split, concepts: list[dict[str, str]], group: str
) -> None:
    for split in (new_drawing, unseen):
        of = {concept["label"]: concept["group"] for concept in concepts}
        part = split.group(group)
        assert part.name == f"{split.name}/{group}"
        assert part.classes == tuple(name for name in split.classes if of[name] == group)
        expected = [row for row, label in enumerate(split.labels) if of[split.classes[label]] == group]
        assert part.keys == tuple(split.keys[row] for row in expected)
        assert part.images == tuple(split.images[row] for row in expected)
        assert part.captions == tuple(split.captions[row] for row in expected)
        assert [part.classes[label] for label in part.labels] == [split.classes[split.labels[row]] for row in expected]
        assert len(part) > 30


def test_halves_for_active_learning(rows: list[dict[str, str]]) -> None:
    split = load("openmoji-black")
    side = {row["key"]: row["active"] for row in rows}
    captions = dict(zip(split.keys, split.captions, strict=True))
    parts = {which: split.half(which) for which in ("pool", "target")}
    for which, part in parts.items():
        assert part.name == f"openmoji-black/{which}"
        assert part.classes == split.classes
        assert part.keys == tuple(key for key in split.keys if side[key] == which)
        assert all(captions[key] == caption for key, caption in zip(part.keys, part.captions, strict=True))
    assert sum(map(len, parts.values())) == len(split)


def test_no_half_of_what_is_trained_on(new_drawing: Split) -> None:
    with pytest.raises(BayesVLMError, match="The split 'new-drawing' has no pool; take the split of a style never"):
        new_drawing.half("pool")
    with pytest.raises(BayesVLMError, match="which='train' is not known; use 'pool' or 'target'"):
        new_drawing.half("train")  # type: ignore[arg-type]


def test_a_group_nobody_knows(new_drawing: Split) -> None:
    with pytest.raises(BayesVLMError, match="group='food' is not known; use 'smileys-emotion', "):
        new_drawing.group("food")


@pytest.mark.parametrize("batch_size", [1, 64, 979, 5000])
def test_pairs_come_in_batches(new_drawing: Split, batch_size: int) -> None:
    batches = list(new_drawing.pairs(batch_size))
    assert len(batches) == -(-979 // batch_size)
    assert all(len(images) == len(captions) <= batch_size for images, captions in batches)
    assert tuple(image for images, _ in batches for image in images) == new_drawing.images
    assert tuple(caption for _, captions in batches for caption in captions) == new_drawing.captions


def test_it_does_not_matter_where_it_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(load("validation")) == SIZES["validation"]
