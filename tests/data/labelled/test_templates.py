"""Templates of data sets: files of them, those published for known sets, and which ones are used."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayesvlm import BayesVLMError
from bayesvlm.data.labelled import KNOWN, ImageFolder, read_templates, set_prompts
from bayesvlm.data.labelled.templates import chosen_templates


def things(templates: tuple[str, ...], classes: tuple[str, ...] = ("cat", "dog")) -> ImageFolder:
    return ImageFolder("things", (), (), classes, templates)


def test_a_file_as_clip_benchmark_writes_it(tmp_path: Path) -> None:
    file = tmp_path / "zeroshot_classification_templates.txt"
    file.write_bytes("\ufeffa photo of a {c}.\r\nart of the {c}.\r\n\r\n".encode())
    assert read_templates(file) == ("a photo of a {c}.", "art of the {c}.")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"", "is empty; expected one prompt per line"),
        (b" \n\n", "is empty; expected one prompt per line"),
        (b"a {c}\na photo\n", r"templates\[1\]='a photo' has no place for the class name"),
        (b"a {c}\na {c}\n", r"have 'a \{c\}' more than once"),
        (b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_files_that_are_none(tmp_path: Path, text: bytes, sentence: str) -> None:
    file = tmp_path / "templates.txt"
    file.write_bytes(text)
    with pytest.raises(BayesVLMError, match=sentence):
        read_templates(file)


def test_the_first_is_used_unless_more_are_asked_for() -> None:
    data = things(("a {c}", "the {c}", "a {c}"))
    assert chosen_templates(data) == ["a {c}"]
    assert chosen_templates(data, "all") == ["a {c}", "the {c}"], "each once"
    assert chosen_templates(data, "my {c}") == ["my {c}"]
    assert set_prompts(data, ["my {c}", "our {}"]).texts == ("my cat", "our cat", "my dog", "our dog")


def test_classes_of_a_set_may_be_called_alike() -> None:
    asked = set_prompts(things(("a {c}",), ("crane", "boat", "crane")))
    assert (asked.texts, asked.groups, asked.repeated) == (("a crane", "a boat", "a crane"), (0, 1, 2), ["a crane"])
    several = set_prompts(things(("a {c}", "the {c}"), ("crane", "boat", "crane")), "all")
    assert several.repeated == ["a crane"]
    assert not set_prompts(things(("a {c}",))).repeated


def test_the_published_lists_are_as_long_as_their_authors_say() -> None:
    published = {name: len(entry.published) for name, entry in KNOWN.items() if entry.published}
    assert published == {
        **dict.fromkeys(("imagenet", "imagenet-100", "imagenet-a", "imagenet-r", "imagenet-sketch"), 80),
        "cifar10": 18,
        "cifar100": 18,
        "ucf101": 48,
        "sun397": 2,
        "eurosat": 3,
        "dtd": 8,
        "cars": 8,
    }
