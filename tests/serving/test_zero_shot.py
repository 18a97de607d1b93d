"""The pipeline, against transformers' own and against `BayesVLM.classify`."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import pipeline as transformers_pipeline
from transformers.pipelines.pt_utils import KeyDataset

from bayesvlm import BayesVLM, world
from bayesvlm.core.errors import BayesVLMError, BayesVLMWarning
from bayesvlm.core.marginal import TextDraws
from bayesvlm.embedded import embedded_model
from bayesvlm.serving import ZeroShotImageClassificationPipeline, label_sets, pipeline
from bayesvlm.serving.label_sets import LabelSets

LABELS = ["grinning face", "house", "banana", "dog", "rocket", "umbrella", "bicycle"]
TEMPLATE = "This is a photo of {}."
PROMPTS = [TEMPLATE.format(label) for label in LABELS]
NAMES = ("emoji-clip", "emoji-siglip")


@pytest.fixture(scope="module")
def images() -> list[Image.Image]:
    """Drawings of the labels, and of one thing that is none of them."""
    drawings = world.load("openmoji-colour")
    places = {drawings.classes[label]: place for place, label in enumerate(drawings.labels)}
    files = [drawings.images[places[name]] for name in (*LABELS, "octopus")]
    return [Image.open(BytesIO(file)).convert("RGB") for file in files]


@pytest.fixture(scope="module")
def vlms() -> dict[str, BayesVLM]:
    return {name: BayesVLM.from_pretrained(name, device="cpu") for name in (*NAMES, "emoji-prolip")}


@pytest.fixture(scope="module")
def pipe(vlms: dict[str, BayesVLM]) -> ZeroShotImageClassificationPipeline:
    return pipeline(vlms["emoji-clip"])


def scores(answer: list[dict[str, Any]], key: str = "score") -> list[Any]:
    """In the order of the labels."""
    found = {each["label"]: each[key] for each in answer}
    return [found[label] for label in LABELS]


def same(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Answers of one image each: the same labels and keys, numbers as near as batches of another size are."""
    assert [list(each) for each in found] == [list(each) for each in expected]
    ours, theirs = ({each["label"]: each for each in answer} for answer in (found, expected))
    assert ours.keys() == theirs.keys()
    for label, each in ours.items():
        for key, value in each.items():
            if key != "label":
                assert value == pytest.approx(theirs[label][key], abs=tolerance)


# What it answers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("template", [None, "{}", "a {}, flat"])
def test_plain_scores_are_those_of_transformers(
    name: str, template: str | None, vlms: dict[str, BayesVLM], images: list[Image.Image]
) -> None:
    # It loads weights as they were stored, here in half precision, unless told; and pads texts of SigLIP to 64 tokens,
    # twice of what this one has, which only the step that pads can be told.
    theirs = transformers_pipeline(
        "zero-shot-image-classification", model=str(embedded_model(name)), device="cpu", dtype=torch.float32
    )
    if name == "emoji-siglip":
        theirs._preprocess_params["tokenizer_kwargs"] = {"max_length": vlms[name].adapter.context_length}  # type: ignore[union-attr]
    given: dict[str, Any] = {} if template is None else {"hypothesis_template": template}
    expected = theirs(images, candidate_labels=LABELS, **given)
    found = pipeline(vlms[name], plain=True)(images, candidate_labels=LABELS, **given)
    assert len(found) == len(images)
    for ours, each in zip(found, expected, strict=True):
        assert [list(label) for label in ours] == [list(label) for label in each], "the same keys in the same order"
        assert [label["label"] for label in ours] == [label["label"] for label in each]
        assert [label["score"] for label in ours] == pytest.approx([label["score"] for label in each], abs=1e-5)
    if template == "{}":  # as these models were trained
        right = [answer[0]["label"] == label for answer, label in zip(found, LABELS, strict=False)]
        assert sum(right) >= len(LABELS) - 1
        assert max(answer[0]["score"] for answer in found) > 0.5


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("emoji-clip", {}),
        ("emoji-clip", {"link": "centred"}),
        ("emoji-clip", {"structure": "exact", "covariance": "full"}),
        ("emoji-siglip", {}),
        ("emoji-prolip", {}),
    ],
)
def test_the_numbers_are_those_of_classify(
    name: str, settings: dict[str, Any], vlms: dict[str, BayesVLM], images: list[Image.Image]
) -> None:
    vlm = vlms[name].replace(**settings)
    expected = vlm.classify(images, LABELS, draws=2000, seed=1)
    found = pipeline(vlm, draws=2000)(images, candidate_labels=LABELS, hypothesis_template=None, level=0.9)
    probs = expected.probs if expected.label_probs is None else expected.label_probs
    low, high = expected.moments.interval(0.9)
    for row, answer in enumerate(found):
        assert scores(answer) == pytest.approx(probs[row].tolist(), abs=1e-5)
        assert scores(answer, "std") == pytest.approx(expected.variance[row].sqrt().tolist(), abs=1e-5)
        for column, (lowest, highest) in enumerate(scores(answer, "interval")):
            assert (lowest, highest) == pytest.approx((float(low[row, column]), float(high[row, column])), abs=1e-5)
        (epistemic,) = {each["epistemic"] for each in answer}
        # Draws of others: 2000 of each leave a few percent.
        assert epistemic == pytest.approx(float(expected.epistemic[row]), rel=0.1, abs=0.003)
        assert [each["score"] for each in answer] == sorted(scores(answer), reverse=True)
    assert float(expected.epistemic.max()) > 0.1


def test_scores_by_draws(vlms: dict[str, BayesVLM], images: list[Image.Image]) -> None:
    vlm = vlms["emoji-clip"].replace(link="mc")
    expected = vlm.classify(images, LABELS, draws=2000, seed=1).probs
    made = pipeline(vlm, draws=2000, hypothesis_template=None, epistemic=False)
    for answer, row in zip(made(images, LABELS), expected, strict=True):
        assert scores(answer) == pytest.approx(row.tolist(), abs=0.03)
        assert list(answer[0]) == ["score", "label", "std", "interval"]


def test_a_seed_is_the_same_answer_every_time(vlms: dict[str, BayesVLM], pipe: Any, images: list[Image.Image]) -> None:
    again = pipeline(vlms["emoji-clip"])
    assert again(images[0], LABELS) == pipe(images[0], LABELS) == pipe(images[0], LABELS)
    other = pipeline(vlms["emoji-clip"], seed=1)(images[0], LABELS)
    assert scores(other) == scores(pipe(images[0], LABELS))
    assert other[0]["epistemic"] != pipe(images[0], LABELS)[0]["epistemic"]


def test_templates_synonyms_and_none(vlms: dict[str, BayesVLM], pipe: Any, images: list[Image.Image]) -> None:
    vlm, templates = vlms["emoji-clip"], ["a photo of {}.", "a drawing of {c}"]
    expected = vlm.classify(images[:1], LABELS, templates=templates).probs[0]
    assert scores(pipe(images[0], LABELS, hypothesis_template=templates)) == pytest.approx(expected.tolist(), abs=1e-5)
    same(pipe(images[0], LABELS, hypothesis_template=None), pipe(images[0], LABELS, hypothesis_template="{}"))
    classes = {"sofa": ["sofa", "couch"], "dog": "dog"}
    expected = vlm.classify(images[:1], classes, templates=[TEMPLATE]).probs[0]
    found = {each["label"]: each["score"] for each in pipe(images[0], classes)}
    assert [found["sofa"], found["dog"]] == pytest.approx(expected.tolist(), abs=1e-5)


def test_answers_are_plain_data(pipe: Any, images: list[Image.Image]) -> None:
    answer = pipe(images[0], candidate_labels=LABELS)
    first = json.loads(json.dumps(answer))[0]
    assert list(first) == ["score", "label", "std", "interval", "epistemic"]
    assert {type(value) for value in first.values()} == {float, str, list}
    low, high = first["interval"]
    assert high - low == pytest.approx(2 * 1.959964 * first["std"], rel=1e-4)


def test_what_a_tokenizer_does_anyway(pipe: Any, images: list[Image.Image]) -> None:
    asked = {"padding": "max_length", "truncation": True, "max_length": 32}
    assert pipe(images[0], LABELS, tokenizer_kwargs=asked) == pipe(images[0], LABELS)


def test_texts_are_lower_cased_but_for_plain_scores(vlms: dict[str, BayesVLM], images: list[Image.Image]) -> None:
    upper, lower = (f"{letter} drawing of a {{}}" for letter in "Aa")
    for plain in (False, True):
        made = pipeline(vlms["emoji-siglip"], plain=plain, epistemic=False)
        found = [made(images[0], LABELS, hypothesis_template=template) for template in (upper, lower)]
        assert (found[0] == found[1]) != plain
    adapter = vlms["emoji-siglip"].encoder("texts")
    assert adapter.without_lower_case().preprocessing() != adapter.preprocessing(), (
        "features of one are not the other's"
    )


def test_fewer_labels(pipe: Any, images: list[Image.Image]) -> None:
    answer = pipe(images[0], candidate_labels=LABELS)
    assert pipe(images[0], candidate_labels=LABELS, top_k=2) == answer[:2]
    assert pipe(images[0], candidate_labels=LABELS, top_k=99) == answer
    assert "epistemic" not in pipe(images[0], candidate_labels=LABELS, epistemic=False)[0]


# What it takes --------------------------------------------------------------------------------------------------------


def test_one_or_many(pipe: Any, images: list[Image.Image]) -> None:
    each = [pipe(image, LABELS) for image in images]
    stack = np.stack([np.asarray(image) for image in images])
    forms = [images, tuple(images), stack, torch.from_numpy(stack).permute(0, 3, 1, 2)]
    for form in (*forms, iter(images), (image for image in images), map(Image.Image.copy, images)):
        found = pipe(form, candidate_labels=LABELS)
        assert isinstance(found, list) == any(form is of for of in forms)
        for answer, expected in zip(found, each, strict=True):
            same(answer, expected, 1e-5)
    for batch_size in (1, 3):
        for answer, expected in zip(pipe(images, LABELS, batch_size=batch_size), each, strict=True):
            same(answer, expected, 1e-5)
    same(pipe(images=images[0], candidate_labels=LABELS), each[0])
    same(pipe(image=images[0], candidate_labels=LABELS), each[0])
    same(pipe(np.asarray(images[0]), LABELS), each[0])


def test_data_sets_and_loaders(pipe: Any, images: list[Image.Image]) -> None:
    expected = [pipe(image, LABELS) for image in images]
    rows: Any = [{"picture": image} for image in images]
    found = pipe(KeyDataset(rows, "picture"), candidate_labels=LABELS)
    assert len(found) == len(images)
    for _ in range(2):  # as often as it is read
        for answer, each in zip(found, expected, strict=True):
            same(answer, each, 1e-5)
    for answer, each in zip(pipe(KeyDataset(rows, "picture"), LABELS, batch_size=3), expected, strict=True):
        same(answer, each, 1e-5)
    tensors = [torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1) for image in images]
    loader: Any = torch.utils.data.DataLoader(tensors, batch_size=3)  # type: ignore[arg-type]
    for options in ({}, {"batch_size": 4}):
        for answer, each in zip(pipe(loader, LABELS, **options), expected, strict=True):
            same(answer, each, 1e-5)


def test_a_stream_is_read_as_its_answers_are_taken(pipe: Any, images: list[Image.Image]) -> None:
    read: list[int] = []

    def live() -> Iterator[Image.Image]:
        for place, image in enumerate(images):
            read.append(place)
            yield image

    answers = pipe(live(), candidate_labels=LABELS)
    assert read == []
    next(answers)
    assert read == [0]
    next(answers)
    assert read == [0, 1]
    assert list(pipe(iter([]), candidate_labels=LABELS)) == []


def test_files_in_processes(pipe: Any, images: list[Image.Image], tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        image.save(path)
    expected = [pipe(image, LABELS) for image in images]
    for answer, each in zip(pipe(map(str, paths), LABELS, num_workers=1, batch_size=4), expected, strict=True):
        same(answer, each, 1e-5)


def test_ready_pixels(vlms: dict[str, BayesVLM], pipe: Any, images: list[Image.Image]) -> None:
    ready = vlms["emoji-clip"].encoder("images").preprocessor.to_pixels(images[:2])
    for found in (pipe(ready, LABELS), pipe([ready], LABELS), list(pipe(iter([ready]), LABELS))):
        assert len(found) == 2
        same(found[1], pipe(images[1], LABELS), 1e-5)


@pytest.mark.parametrize(
    "labels",
    [
        tuple(LABELS),
        ", ".join(LABELS),
        np.array(LABELS),
        dict.fromkeys(LABELS).keys(),
        (label for label in LABELS),
        {label: label for label in LABELS},
    ],
)
def test_labels_in_other_forms(labels: Any, pipe: Any, images: list[Image.Image]) -> None:
    same(pipe(images[0], candidate_labels=labels), pipe(images[0], candidate_labels=LABELS))


# What is wrong --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, r"There are no candidate_labels; pass a list"),
        ({"candidate_labels": []}, "candidate_labels is empty"),
        ({"candidate_labels": " , "}, "candidate_labels is empty"),
        ({"candidate_labels": 3}, "candidate_labels=3, a int; it must be a list"),
        ({"candidate_labels": ["cat", 3]}, "classes.1. is '3'"),
        ({"candidate_labels": ["cat", "dog", "cat"]}, "names 'cat' more than once"),
        ({"candidate_labels": LABELS, "hypothesis_template": "a photo"}, "hypothesis_template='a photo' has no place"),
        ({"candidate_labels": LABELS, "hypothesis_template": ["a photo"]}, "has no place for the class name"),
        ({"candidate_labels": LABELS, "hypothesis_template": 3}, "hypothesis_template=3, a int; it must be a str"),
        ({"candidate_labels": LABELS, "tokenizer_kwargs": 3}, "tokenizer_kwargs is 3, a int; it is a dict"),
        ({"candidate_labels": LABELS, "hypothesis_template": []}, "templates is an empty list"),
        ({"candidate_labels": LABELS, "multi_label": True}, "multi_label='True' is not known to a call"),
        ({"candidate_labels": LABELS, "top_k": 0}, "top_k is 0; expected a whole number of at least 1"),
        ({"candidate_labels": LABELS, "batch_size": 0}, "batch_size is 0"),
        ({"candidate_labels": LABELS, "num_workers": -1}, "num_workers is -1"),
        ({"candidate_labels": LABELS, "level": 95}, "level=95; a credible level lies strictly between 0 and 1"),
        ({"candidate_labels": LABELS, "timeout": -1}, "timeout=-1; it must be a finite number above zero"),
        ({"candidate_labels": LABELS, "tokenizer_kwargs": {"max_length": 7}}, "tokenizer_kwargs has max_length=7"),
    ],
)
def test_bad_arguments(given: dict[str, Any], sentence: str, pipe: Any, images: list[Image.Image]) -> None:
    with pytest.raises(BayesVLMError, match=sentence):
        pipe(images[0], **given)
    with pytest.raises(BayesVLMError, match=sentence):
        pipe((image for image in images), **given)  # at the call, not at the first answer


def test_an_unreadable_image_is_named(pipe: Any, images: list[Image.Image], tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"no image")
    bad = str(tmp_path / "bad.png")
    given = [images[0], images[1], bad, images[2]]
    for form in (given, KeyDataset([{"x": each} for each in given], "x"), iter(given)):  # type: ignore[arg-type]
        with pytest.raises(BayesVLMError, match=r"images\[2\] \('.*bad.png'\) is not an image"):
            list(pipe(form, candidate_labels=LABELS))
    with pytest.raises(BayesVLMError, match=r"^the image \('nothing.png'\) does not exist"):
        pipe("nothing.png", candidate_labels=LABELS)
    with pytest.raises(BayesVLMError, match=r"images\[1\] is a NoneType"):
        pipe([images[0], None], candidate_labels=LABELS)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ((), "There is no image"),
        (([],), "There are no images: the list is empty"),
        ((3,), "Images must be a PIL image, a path"),
        (({"image": "cat.png"},), "Images are a dict with image in it"),
    ],
)
def test_no_images(given: tuple[Any, ...], sentence: str, pipe: Any) -> None:
    with pytest.raises(BayesVLMError, match=sentence):
        pipe(*given, candidate_labels=LABELS)


def test_two_names_of_one_argument(pipe: Any, images: list[Image.Image]) -> None:
    with pytest.raises(BayesVLMError, match="two names of one argument"):
        pipe(images[0], images=images, candidate_labels=LABELS)


def test_one_label(vlms: dict[str, BayesVLM], pipe: Any, images: list[Image.Image]) -> None:
    with pytest.warns(BayesVLMWarning, match="one class only") as said:
        answer = pipe(images[0], candidate_labels=["dog"])
    assert said[0].filename == __file__
    assert (answer[0]["score"], answer[0]["epistemic"]) == (1.0, 0.0)
    siglip = pipeline(vlms["emoji-siglip"])(images[0], candidate_labels=["dog"])  # a probability by itself: no warning
    assert 0 < siglip[0]["score"] < 1


# Making one -----------------------------------------------------------------------------------------------------------


def test_it_is_made_as_that_of_transformers(vlms: dict[str, BayesVLM], pipe: Any, images: list[Image.Image]) -> None:
    task, expected = "zero-shot-image-classification", pipe(images[0], LABELS)
    vlm = vlms["emoji-clip"]
    for made in (
        pipeline(vlm),
        pipeline(model=vlm, device="cpu"),
        pipeline(task, vlm, device=-1),
        pipeline(task=task, model="emoji-clip", device=torch.device("cpu")),
        pipeline(task, model="emoji-clip", device="cpu", dtype=torch.float32, batch_size=2, num_workers=0),
    ):
        assert (made.task, made.device.type) == (task, "cpu")
        same(made(images[0], candidate_labels=LABELS), expected)
    with_labels = pipeline(vlm, candidate_labels=(label for label in LABELS), hypothesis_template="a {}", top_k=3)
    for _ in range(2):
        assert with_labels(images[0]) == pipe(images[0], LABELS, hypothesis_template="a {}", top_k=3)
    assert len(with_labels(images[0], candidate_labels=["dog", "cat"])) == 2


def test_a_saved_posterior(vlms: dict[str, BayesVLM], pipe: Any, images: list[Image.Image], tmp_path: Path) -> None:
    folder = vlms["emoji-clip"].save_pretrained(tmp_path / "posterior")
    same(pipeline(folder, device="cpu")(images[0], LABELS), pipe(images[0], LABELS), 1e-5)
    same(pipeline(str(folder), device="cpu")(images[0], LABELS), pipe(images[0], LABELS), 1e-5)


def test_without_a_posterior(vlms: dict[str, BayesVLM], images: list[Image.Image]) -> None:
    bare = vlms["emoji-clip"].without_posterior()
    with pytest.raises(BayesVLMError, match=r"emoji-clip has no posterior.*plain=True"):
        pipeline(bare)
    answer = pipeline(bare, plain=True)(images[0], candidate_labels=LABELS)
    assert list(answer[0]) == ["score", "label"]
    assert scores(answer) == pytest.approx(bare.plain(images[:1], PROMPTS)[0].tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("given", "options", "sentence"),
    [
        ((), {}, "The model is missing"),
        (("zero-shot-image-classification",), {}, "The model is missing"),
        ((3,), {}, "The model is a int; pass a BayesVLM"),
        (("image-to-text", "emoji-clip"), {}, "The task 'image-to-text' is not one of this pipeline"),
        (("emoji-clip",), {"tokenizer": "x"}, "tokenizer='x' is not known to the making of this pipeline"),
        (("emoji-clip",), {"device": "cpu", "draws": 0}, "draws is 0"),
        (("emoji-clip",), {"device": "cpu", "remember": 0}, "remember is 0"),
        (("emoji-clip",), {"device": "nowhere"}, "The device 'nowhere' cannot be used here"),
        (("emoji-clip",), {"device": "cpu", "candidate_labels": ["cat", "cat"]}, "more than once"),
    ],
)
def test_bad_making(given: tuple[Any, ...], options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BayesVLMError, match=sentence):
        pipeline(*given, **options)


def test_a_model_that_is_here_is_not_loaded(vlms: dict[str, BayesVLM]) -> None:
    with pytest.raises(BayesVLMError, match="dtype and revision are of a model that is to be loaded"):
        pipeline(vlms["emoji-clip"], dtype=torch.float16)
    generator = torch.Generator().manual_seed(0)
    made = BayesVLM.from_projections(
        torch.randn(4, 6, generator=generator), torch.randn(4, 5, generator=generator), logit_scale=1.0
    )
    with pytest.raises(BayesVLMError, match="made from projections and cannot encode"):
        pipeline(made)


def test_what_is_done_to_the_model_does_not_change_it(vlms: dict[str, BayesVLM], images: list[Image.Image]) -> None:
    vlm = vlms["emoji-clip"].copy()
    made = pipeline(vlm)
    expected = made(images[0], LABELS)
    for each in (vlm, made.model):
        each.fit([(images, [*LABELS, "octopus"])], progress=False)
    assert made(images[0], LABELS) == expected


def test_pickle_and_print(vlms: dict[str, BayesVLM], pipe: Any, images: list[Image.Image]) -> None:
    expected = pipe(images[0], LABELS)
    again = pickle.loads(pickle.dumps(pipe))
    same(again(images[0], LABELS), expected)
    assert "emoji-clip" in repr(pipe)
    assert "128 draws with seed 0" in repr(pipe)
    assert "plain" in repr(pipeline(vlms["emoji-clip"], plain=True))


# Labels are remembered ------------------------------------------------------------------------------------------------


@pytest.fixture
def counted(vlms: dict[str, BayesVLM], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many texts went through the encoder, call by call."""
    adapter: Any = vlms["emoji-clip"].adapter
    forward, seen = adapter.forward_texts, []

    def counting(texts: list[str]) -> Any:
        seen.append(len(texts))
        return forward(texts)

    monkeypatch.setattr(adapter, "forward_texts", counting)
    return seen


def test_labels_are_encoded_once(vlms: dict[str, BayesVLM], images: list[Image.Image], counted: list[int]) -> None:
    made = pipeline(vlms["emoji-clip"], remember=2)
    first = made(images[0], candidate_labels=LABELS, epistemic=False)
    for labels in (tuple(LABELS), np.array(LABELS), ",".join(LABELS), iter(LABELS)):
        made(images[:2], candidate_labels=labels)
    assert sum(counted) == len(LABELS)
    made(images[0], candidate_labels=LABELS, hypothesis_template="a {}")
    assert sum(counted) == 2 * len(LABELS), "another template is another prompt"
    made(images[0], candidate_labels={"a": ["a", "b"]} | {"c": "c"})
    assert sum(counted) == 2 * len(LABELS) + 3
    again = made(images[0], candidate_labels=LABELS, epistemic=False)
    assert sum(counted) == 3 * len(LABELS) + 3, "the first was the one asked for longest ago"
    assert again == first


def test_draws_of_many_lists_are_bounded_in_bytes(vlms: dict[str, BayesVLM], monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = vlms["emoji-clip"]
    lists = [["banana", "house"], ["dog", "cat"], ["sun", "moon"], ["car", "bus"]]

    def kept(sets: LabelSets) -> list[bool]:
        return ["draws" in sets.of(names, None, drawn=False).__dict__ for names in lists]

    sets = LabelSets(vlm, TextDraws(vlm.posterior["text"], vlm.text, 16, 0), 32)
    draws = [sets.of(names, None, drawn=True).draws for names in lists]
    assert kept(sets) == [True] * 4
    one = draws[0].own_bytes
    assert one >= 4 * 16 * vlm.text.embedding_width * 2, "S d C numbers of float32"
    monkeypatch.setattr(label_sets, "DRAWS_BYTES", 2 * one)
    sets = LabelSets(vlm, TextDraws(vlm.posterior["text"], vlm.text, 16, 0), 32)
    encoded = [sets.of(names, None, drawn=True) for names in lists]
    assert kept(sets) == [False, False, True, True]
    again = sets.of(lists[0], None, drawn=True)
    assert again is encoded[0], "only the draws were forgotten"
    torch.testing.assert_close(again.draws.table, draws[0].table)
    monkeypatch.setattr(label_sets, "DRAWS_BYTES", 0)
    assert "draws" in sets.of(["tree", "leaf"], None, drawn=True).__dict__, "those asked for last are always there"
    assert kept(sets) == [False] * 4


def test_labels_that_look_alike_are_kept_apart(pipe: Any, images: list[Image.Image]) -> None:
    pairs = [["sofa", "couch"], ["dog", "hound"]]
    found = pipe(images[0], candidate_labels=pairs)
    other = pipe(images[0], candidate_labels={"sofa": "couch", "dog": "hound"})
    assert {each["label"] for each in found} == {each["label"] for each in other} == {"sofa", "dog"}
    assert found[0]["score"] != other[0]["score"]


def test_several_threads(vlms: dict[str, BayesVLM], images: list[Image.Image], counted: list[int]) -> None:
    sets = [LABELS, LABELS[:4], LABELS[2:]]
    asked = [(place, labels) for place in range(len(images)) for labels in sets]
    alone = pipeline(vlms["emoji-clip"])
    expected = [alone(images[place], candidate_labels=labels) for place, labels in asked]
    encoded = sum(counted)
    shared, start = pipeline(vlms["emoji-clip"]), threading.Barrier(6)

    def call(worker: int) -> list[Any]:
        start.wait()
        return [shared(images[place], candidate_labels=labels) for place, labels in asked]

    with ThreadPoolExecutor(6) as pool:
        for answers in pool.map(call, range(6)):
            for found, each in zip(answers, expected, strict=True):
                same(found, each, 1e-5)
    assert sum(counted) == 2 * encoded, "each set once, whoever came first"


def test_the_room_is_cheap_to_enter() -> None:
    source = "import sys, bayesvlm.serving; dir(bayesvlm.serving); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == 0
