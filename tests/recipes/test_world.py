"""What the recipe decides without artwork: splits, captions, vocabularies, pictures to train on."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from augment import NUMBERS, Augmentation, gradient, luma, rotate_hue
from bayesvlm.models.layout import save_clip_tokenizer, save_gemma_tokenizer
from bayesvlm_world import FOLDER
from captions import Named, captions, clip_merges, gemma_merges, read_classes
from concepts import Concept, code
from splits import NEAR, UNSEEN, VALIDATION, assign, caption, half, near, set_aside_near, unsaid, unseen_concepts
from styles import STYLES

TRAINED = [style for style in STYLES if style.trained]
GROUPS = [*UNSEEN, "people-body"]


def made(count: int) -> list[Concept]:
    """Concepts of all groups in turn."""
    return [
        Concept(f"{index:05x}", f"thing {index}", ("a", "b", "c"), group, f"{group}-{index % 3}", ())
        for index, group in zip(range(count), itertools.cycle(GROUPS), strict=False)
    ]


@pytest.fixture(scope="module")
def concepts() -> list[Concept]:
    return made(1600)


def test_the_scripts_write_where_the_package_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules, "resvg_py", ModuleType("resvg_py")
    )  # the renderer is installed for the recipe only
    build, train = import_module("build"), import_module("train")
    assert FOLDER / "data" == build.DATA == train.DATA
    assert FOLDER / "models" == train.MODELS
    root = Path(__file__).parents[2]
    assert root == train.ROOT, "where the README runs the scripts"
    assert (build.PACKAGES.parent / "package-lock.json").is_file()


def test_codes_are_compared_without_separators() -> None:
    assert code("1F469-200D-1F680") == code("1f469-1f680") == "1f469-1f680"
    assert code("2764-fe0f") == "2764"


def test_a_hundred_concepts_are_unseen_and_none_is_a_person(concepts: list[Concept]) -> None:
    unseen = unseen_concepts(concepts)
    assert len(unseen) == 100
    assert not any(concept.group == "people-body" for concept in concepts if concept.code in unseen)
    assert unseen == unseen_concepts(list(reversed(concepts))), "the order they are listed in is no matter"


def test_every_drawing_has_its_split(concepts: list[Concept]) -> None:
    drawn = {concept.code: list(STYLES) for concept in concepts}
    unseen = unseen_concepts(concepts)
    seen = [concept.code for concept in concepts if concept.code not in unseen]
    splits = assign(concepts, drawn)
    assert len(splits) == len(concepts) * len(STYLES)
    held_out = {}
    for concept in seen:
        where = {style: splits[concept, style.name] for style in TRAINED}
        families = {style.family for style, split in where.items() if split != "train"}
        assert len(families) == 1, "one whole family is held out"
        (held_out[concept],) = families
        tested = [split for split in where.values() if split in ("validation", "new-drawing")]
        assert len(tested) == 1
    counts = [list(splits.values()).count(split) for split in ("validation", "new-drawing")]
    assert counts == [VALIDATION, len(seen) - VALIDATION]
    shares = [list(held_out.values()).count(family) / len(seen) for family in {style.family for style in TRAINED}]
    assert all(0.2 < share < 0.3 for share in shares)


def test_what_is_nearly_trained_on_is_set_aside() -> None:
    random = np.random.default_rng(0)
    splits = {("a", "noto"): "train", ("a", "twemoji"): "new-drawing", ("b", "noto"): "unseen-concepts"}
    pictures = {key: random.integers(0, 200, (64, 64, 3), dtype=np.uint8) for key in splits}
    assert set_aside_near(splits, pictures) == splits
    for shift, aside in ((NEAR - 0.01, True), (NEAR + 0.01, False)):
        pictures["b", "noto"] = pictures["a", "noto"] + np.uint8(shift * 255)
        expected = splits | {("b", "noto"): "set-aside"} if aside else splits
        assert set_aside_near(splits, pictures) == expected


def test_near_is_the_distance_to_the_nearest() -> None:
    random = np.random.default_rng(0)
    references = [random.integers(0, 256, (4, 4, 3), dtype=np.uint8) for _ in range(5)]
    shifts = random.uniform(0, 2 * NEAR, size=300)
    noisy = [references[n % 5] + shift * 255 * np.sign(random.normal(size=(4, 4, 3))) for n, shift in enumerate(shifts)]
    assert near(noisy, references).tolist() == [shift < NEAR for shift in shifts]


def test_no_seen_concept_is_called_by_an_unseen_name() -> None:
    unseen = next(concept for concept in made(1600) if concept.code in unseen_concepts(made(1600)))
    spoken = [replace(concept, keywords=("a", unseen.label.upper())) for concept in made(1600)]
    for concept in unsaid(spoken):
        kept = concept.code in unseen_concepts(spoken)
        assert concept.keywords == (("a", unseen.label.upper()) if kept else ("a",))


def test_halves_follow_the_family(concepts: list[Concept]) -> None:
    by_name = {style.name: style for style in STYLES}
    sides = [half(concept.code, by_name["openmoji-colour"]) for concept in concepts]
    assert sides == [half(concept.code, by_name["openmoji-black"]) for concept in concepts]
    assert 0.45 < sides.count("pool") / len(sides) < 0.55
    assert sides != [half(concept.code, by_name["emojione-black"]) for concept in concepts]


def test_captions_begin_with_the_label(concepts: list[Concept]) -> None:
    said = [caption(concept, f"noto_{concept.code}") for concept in concepts]
    assert all(text.split(", ")[0] == concept.label for text, concept in zip(said, concepts, strict=True))
    assert 0.4 < sum("," in text for text in said) / len(said) < 0.6
    assert caption(Concept("1", "lone", ("lone",), "objects", "tool", ()), "noto_1") == "lone"


@pytest.mark.parametrize(
    ("label", "mirrors"),
    [
        ("teacup without handle", True),
        ("person playing handball", True),
        ("oncoming bus", True),
        ("soccer ball", True),
        ("ZZZ", False),
        ("1st place medal", False),
        ("tear-off calendar", False),
        ("euro banknote", False),
        ("musical notes", False),
        ("world map", False),
        ("newspaper", False),
        ("chart increasing", False),
        ("seven-thirty", False),
        ("twelve o\u2019clock", False),
        ("leftwards hand", False),
        ("right-facing fist", False),
        ("waning crescent moon", False),
    ],
)
def test_what_means_the_same_in_a_mirror(label: str, mirrors: bool) -> None:
    assert Named(label, (), "objects", True).mirrors is mirrors
    assert not Named(label, (), "symbols", True).mirrors


def test_training_captions_are_the_same_for_the_same_seed() -> None:
    named = read_classes(FOLDER / "data")[0]
    assert captions(named, 16, 0) == captions(named, 16, 0) != captions(named, 16, 1)
    assert captions(named, 16, 0).count(named.label) >= 8


@pytest.mark.parametrize(("merges", "save"), [(clip_merges, save_clip_tokenizer), (gemma_merges, save_gemma_tokenizer)])
def test_a_vocabulary_has_its_size_and_writes_anything(merges, save, tmp_path: Path) -> None:
    names = [named.label for named in read_classes(FOLDER / "data")]
    learnt = merges(names, 1200)
    extra = ("SiglipProcessor",) if merges is gemma_merges else ()
    assert len(save(tmp_path, learnt, 32, *extra)) == 1200
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    for text in ("face with tears of joy", "naïve 日本 ✓"):
        ids = tokenizer(text).input_ids
        assert tokenizer.decode(ids, skip_special_tokens=True).replace(" ", "") == text.replace(" ", "")
    assert len(tokenizer("face").input_ids) <= 4


# Pictures ------------------------------------------------------------------------------------------------------------


def drawings(count: int = 8) -> torch.Tensor:  # [N, 4, 64, 64]
    generator = torch.Generator().manual_seed(0)
    rgba = torch.randint(0, 256, (count, 4, 64, 64), generator=generator, dtype=torch.uint8)
    rgba[:, 3] = 0
    rgba[:, 3, 16:48, 16:48] = 255
    return rgba


def augmentation(line_art: float, count: int = 8, seed: int = 0) -> Augmentation:
    generator = torch.Generator().manual_seed(seed)
    uniforms = torch.rand(count, NUMBERS, generator=generator)
    return Augmentation(uniforms, torch.randn(count, 3, 64, 64, generator=generator), line_art)


@pytest.mark.parametrize("line_art", [0.0, 0.5, 1.0])
def test_pictures_are_pictures(line_art: float) -> None:
    made = augmentation(line_art)
    pictures = made(drawings(), torch.ones(8, dtype=torch.bool))
    assert pictures.shape == (8, 3, 64, 64)
    assert float(pictures.min()) >= 0
    assert float(pictures.max()) <= 1
    assert made.used <= NUMBERS, "every random number is used once"
    again = augmentation(line_art)(drawings(), torch.ones(8, dtype=torch.bool))
    torch.testing.assert_close(pictures, again, rtol=0, atol=0)
    other = augmentation(line_art, seed=1)(drawings(), torch.ones(8, dtype=torch.bool))
    assert not torch.equal(pictures, other)


def test_only_what_may_be_mirrored_is() -> None:
    flat = torch.zeros(512, 4, 64, 64)
    flat[:, 3] = 1
    flat[:, 0, :, :32] = 1  # red on the left
    for mirrors in (True, False):
        warped = augmentation(0.0, 512).warp(flat, torch.full((512,), mirrors))
        left, right = warped[:, 0, :, :32].mean(dim=(1, 2)), warped[:, 0, :, 32:].mean(dim=(1, 2))
        flipped = float((right > left).float().mean())
        assert 0.4 < flipped < 0.6 if mirrors else flipped == 0


def test_hue_turns_around_grey() -> None:
    picture = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    third = torch.full((4, 1, 1, 1), 2 * torch.pi / 3)
    torch.testing.assert_close(rotate_hue(picture, third), picture.roll(1, dims=1))
    grey = picture[:, :1].expand(-1, 3, -1, -1)
    torch.testing.assert_close(rotate_hue(grey, third), grey)
    torch.testing.assert_close(luma(grey), picture[:, :1], rtol=1e-5, atol=1e-6)


def test_the_gradient_of_a_step_and_of_nothing() -> None:
    step = torch.zeros(1, 3, 8, 8)
    step[:, 1, :, 4:] = 1
    found = gradient(step)
    assert float(found[..., 3:5].min()) == pytest.approx(1)
    assert float(found[..., :3].max()) == float(found[..., 5:].max()) == 0
