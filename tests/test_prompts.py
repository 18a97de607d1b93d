"""Class names, synonyms and templates, as users write them, through everything that takes classes."""

from __future__ import annotations

import pickle

import numpy as np
import pandas
import pytest
import torch

from bayesvlm import BayesVLM, BayesVLMError, Features, world
from bayesvlm.active import finetune, select
from bayesvlm.prompts import ClassPrompts

NAMES = ["grinning face", "dog", "red apple", "soccer ball"]
TEMPLATES = ["{c}", "a drawing of {c}.", "{c}, an emoji"]


@pytest.fixture(scope="module")
def vlm() -> BayesVLM:
    return BayesVLM.from_pretrained("emoji-clip", device="cpu")


@pytest.fixture(scope="module")
def images(vlm: BayesVLM) -> Features:
    return vlm.image_features(list(world.load("new-drawing").images[:6]))


def test_templates_go_round_the_names() -> None:
    asked = ClassPrompts.of(["cat", "dog"], ["a {c}.", "the {}!", lambda name: f"{name.upper()}"])
    assert asked.texts == ("a cat.", "the cat!", "CAT", "a dog.", "the dog!", "DOG")
    assert asked.groups == (0, 0, 0, 1, 1, 1)
    assert (asked.names, len(asked), asked.single) == (("cat", "dog"), 2, False)
    assert ClassPrompts.of(["cat"], "a {c}").texts == ("a cat",)
    assert ClassPrompts.of(["a {}"], "see {c}").texts == ("see a {}",), "a brace in a name is no place for one"
    assert ClassPrompts.of(["a {c}"]).texts == ("a {c}",)


def test_a_function_is_asked_for_the_names_and_for_nothing_else() -> None:
    said = {"cat": "a cat, which purrs", "dog": "a dog, which barks"}
    assert ClassPrompts.of(["cat", "dog"], said.__getitem__).texts == tuple(said.values())


def test_what_is_one_prompt_counts_once() -> None:
    asked = ClassPrompts.of([["cat", "a cat"], "dog"], ["{c}", "a {c}"])
    assert asked.texts == ("cat", "a cat", "a a cat", "dog", "a dog")
    assert asked.groups == (0, 0, 0, 1, 1)


@pytest.mark.parametrize(
    "classes",
    [
        [["couch", "sofa"], "bed"],
        {"couch": ["couch", "sofa"], "bed": "bed"},
        (("couch", "sofa"), ("bed",)),
        [np.array(["couch", "sofa"]), "bed"],
    ],
)
def test_synonyms_are_names_of_one_class(classes: object) -> None:
    asked = ClassPrompts.of(classes, ["{c}"])  # type: ignore[arg-type]
    assert (asked.names, asked.texts, asked.groups) == (("couch", "bed"), ("couch", "sofa", "bed"), (0, 0, 1))


def test_names_may_be_an_array_or_a_column() -> None:
    for names in (np.array(["cat", "dog"]), pandas.Series(["cat", "dog"])):
        assert ClassPrompts.of(names).names == ("cat", "dog")


def test_blocks_hold_whole_classes() -> None:
    asked = ClassPrompts.of(list("abcde"), ["{c}", "{c}!", "{c}?"])
    blocks = list(asked.blocks(4))
    assert [len(texts) for texts, _ in blocks] == [6, 6, 3]
    assert [groups for _, groups in blocks] == [[0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1], [0, 0, 0]]
    assert tuple(text for texts, _ in blocks for text in texts) == asked.texts


@pytest.mark.parametrize(
    ("classes", "templates", "sentence"),
    [
        (["cat"], "a photo", r"templates='a photo' has no place for the class name; put \{c\}"),
        (["cat"], ["{c}", "a photo"], r"templates\[1\]='a photo' has no place for the class name"),
        (
            ["cat", "dog"],
            ["{c}", lambda name: "a photo"],
            r"templates\[1\], a function, has no place for the class name",
        ),
        (["cat"], ["a {c}", "a {}"], r"The templates have 'a \{c\}' more than once"),
        (["cat"], {"dog": "a dog"}.get, "gives 'None', a NoneType, for 'cat'"),
        (["cat"], [], "templates is an empty list"),
        (["cat"], 3, "templates is '3', a int"),
        (["cat"], [""], r"templates\[0\]='' has no place"),
        (["cat"], ["{c}", 3], r"templates\[1\] is '3', a int"),
        (["cat"], [lambda name: 3], "gives '3', a int, for 'cat'"),
        (["cat"], ["{c}", "a {c}", "{c}"], r"The templates have '\{c\}' more than once"),
        ([["cat", "kitten"], ["dog", "kitten"]], None, "The synonyms have 'kitten' more than once"),
        ([["cat", "cat"], "dog"], None, "The synonyms have 'cat' more than once"),
        ({"cat": [], "dog": "dog"}, None, r"classes\[0\] is an empty list"),
        ({0: "cat", 1: "dog"}, None, r"classes has the key 0; keys are the names that are shown"),
        ([["cat", 3], "dog"], None, r"classes\[0\] is '3', one of \['cat', 3\], of type int, and no name"),
        ([[], "dog"], None, r"classes\[0\] is an empty list"),
        (["cat", " "], None, r"classes\[1\] is ' ' of type str, and no name"),
        ([], None, "class list is empty"),
        ("cat", None, "it must be a list of class names"),
        ({"cat", "dog"}, None, "it must be a list of class names"),
        ((name for name in ("cat", "dog")), None, "it must be a list of class names"),
        ([3, 4], None, r"classes\[0\] is '3', a int"),
        (["cat", "cat"], None, "names 'cat' more than once"),
    ],
)
def test_mistakes_end_in_a_sentence(classes: object, templates: object, sentence: str) -> None:
    with pytest.raises(BayesVLMError, match=sentence):
        ClassPrompts.of(classes, templates)  # type: ignore[arg-type]


def test_one_template_is_no_template(vlm: BayesVLM, images: Features) -> None:
    prompts = [f"a drawing of {name}." for name in NAMES]
    plain = vlm.classify(images, prompts)
    for templates in ("a drawing of {c}.", ["a drawing of {}."], [lambda name: f"a drawing of {name}."]):
        one = vlm.classify(images, NAMES, templates=templates)
        torch.testing.assert_close(one.probs, plain.probs, rtol=0, atol=1e-6)
        torch.testing.assert_close(one.variance, plain.variance, rtol=1e-6, atol=0)
        torch.testing.assert_close(one.epistemic, plain.epistemic, rtol=1e-4, atol=1e-6)
    assert one.classes == tuple(NAMES)
    assert plain.classes == tuple(prompts)


def test_an_ensemble_where_one_class_has_one_prompt_leaves_that_class_alone(vlm: BayesVLM, images: Features) -> None:
    some = vlm.classify(images, [["dog", "hound", "puppy"], "red apple"])
    alone = vlm.classify(images, ["dog", "red apple"])
    torch.testing.assert_close(some.mean[:, 1], alone.mean[:, 1], rtol=0, atol=1e-5)
    torch.testing.assert_close(some.variance[:, 1], alone.variance[:, 1], rtol=1e-5, atol=0)
    assert float((some.mean[:, 0] - alone.mean[:, 0]).abs().max()) > 1e-3, "the other is another"


def test_the_plain_model_averages_unit_embeddings_as_clip_users_do(vlm: BayesVLM, images: Features) -> None:
    unit = torch.nn.functional.normalize
    prompts = [[template.replace("{c}", name) for template in TEMPLATES] for name in NAMES]
    texts = torch.stack([unit(vlm.text.embed(vlm.text_features(of)), dim=1).mean(0) for of in prompts])
    logits = vlm.scale * unit(vlm.image.embed(images), dim=1) @ unit(texts, dim=1).T
    torch.testing.assert_close(vlm.logits(images, NAMES, templates=TEMPLATES), logits, rtol=0, atol=2e-5 * vlm.scale)
    torch.testing.assert_close(vlm.plain_head(NAMES, templates=TEMPLATES)(images), logits.softmax(1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["emoji-clip", "emoji-siglip", "emoji-prolip"])
def test_everything_that_takes_classes_takes_templates(name: str) -> None:
    vlm = BayesVLM.from_pretrained(name, device="cpu")
    split = world.load("validation")
    images, labels = vlm.image_features(list(split.images[:40])), [n % len(NAMES) for n in range(40)]
    encoded = vlm.class_features(NAMES, TEMPLATES)
    assert len(encoded) == len(NAMES)
    expected = vlm.classify(images, encoded)
    found = vlm.classify(images, NAMES, templates=TEMPLATES)
    torch.testing.assert_close(found.probs, expected.probs)
    assert found.classes == tuple(NAMES)
    streamed = torch.cat([p.probs for p in vlm.stream(images, NAMES, templates=TEMPLATES, batch_size=16)])
    torch.testing.assert_close(streamed, expected.probs, rtol=0, atol=1e-5)
    torch.testing.assert_close(vlm.plain(images, NAMES, templates=TEMPLATES), vlm.plain(images, encoded))
    assert not torch.allclose(vlm.plain(images, NAMES), vlm.plain(images, encoded), atol=1e-3)
    if vlm.predicts_variance:
        native = vlm.classify(images, NAMES, templates=TEMPLATES, method="native")
        torch.testing.assert_close(native.probs.sum(1), torch.ones(40))
        return
    torch.testing.assert_close(vlm.head(NAMES, templates=TEMPLATES)(images), expected.probs, rtol=0, atol=1e-5)
    covariance = vlm.joint_logit_covariance(images[:2], NAMES, templates=TEMPLATES)
    torch.testing.assert_close(covariance, vlm.joint_logit_covariance(images[:2], encoded))
    both = ((NAMES, TEMPLATES), (encoded, None))
    tuned = [vlm.copy().tune(images, labels, of, taus=[0.1, 1, 10], refine=False, templates=t) for of, t in both]
    for one, other in zip(*(found.tuning for found in tuned), strict=True):  # type: ignore[arg-type]
        assert one.nlpd == pytest.approx(other.nlpd, rel=1e-4)
    picks = [select(vlm, images, images[:8], of, "entropy", 4, templates=t).tolist() for of, t in both]
    assert picks[0] == picks[1]
    trained = [finetune(vlm, images, labels, of, templates=t, epochs=1) for of, t in both]
    torch.testing.assert_close(trained[0].image.weight, trained[1].image.weight)


def test_features_take_no_templates(vlm: BayesVLM, images: Features) -> None:
    with pytest.raises(BayesVLMError, match="encoded already"):
        vlm.classify(images, vlm.class_features(NAMES), templates="a {c}")


def test_ensembles_pickle_and_move(vlm: BayesVLM) -> None:
    encoded = vlm.class_features(NAMES, TEMPLATES)
    again = pickle.loads(pickle.dumps(encoded))
    assert {name: value.shape for name, value in again.tensors().items()} == {
        name: value.shape for name, value in encoded.tensors().items()
    }
    assert len(again[[0, 2]].to(torch.float64)) == 2
