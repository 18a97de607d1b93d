"""One model on one set: what is measured, what is written down, and that no result passes for another."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bayesvlm import BayesVLM, BayesVLMError
from bayesvlm.core.estimation import TOWERS, Tower
from bayesvlm.core.inverted import InvertedPosterior
from bayesvlm.data.cache import FeatureCache
from bayesvlm.data.views import Views
from bayesvlm.evaluation import Outcomes, fit_temperature, not_worse_than_best, raised_temperature
from bayesvlm.experiments.methods import METHODS, TEMPERED
from bayesvlm.experiments.zero_shot import Result, ZeroShot, place
from experiments.thinned import thinned

VIEWS = Views(4)


class Prompted:
    """A set with another template of its own."""

    templates = ("an emoji of {c}",)

    def __init__(self, whole: object) -> None:
        self.whole = whole

    def __getattr__(self, name: str) -> object:
        return getattr(self.whole, name)


@pytest.fixture(scope="module")
def vlm() -> BayesVLM:
    return BayesVLM.from_pretrained("emoji-clip", device="cpu")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> FeatureCache:
    return FeatureCache(tmp_path_factory.mktemp("cache"))


def ready(vlm: BayesVLM, cache: FeatureCache | None, **options: object) -> ZeroShot:
    chosen = {"methods": METHODS, "validation": thinned("validation"), "views": VIEWS, "cache": cache} | options
    return ZeroShot(vlm, "emoji-clip", **chosen)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def result(vlm: BayesVLM, cache: FeatureCache) -> Result:
    return ready(vlm, cache).run(thinned("openmoji-black"))


def test_every_method_is_what_it_says(vlm: BayesVLM, result: Result) -> None:
    split, validation = thinned("openmoji-black"), thinned("validation")
    labels = torch.tensor(split.labels)
    logits = vlm.logits(list(split.images), list(split.classes))
    found_on = (
        vlm.logits(list(validation.images), list(validation.classes)).double(),
        torch.tensor(validation.labels),
    )
    tuned, raised = fit_temperature(*found_on), raised_temperature(*found_on)
    assert tuple(result.scores) == METHODS
    for name, probs in {
        "plain": torch.softmax(logits, dim=1),
        "temperature": torch.softmax(logits / tuned.value, dim=1),
        "raised temperature": torch.softmax(logits / raised.value, dim=1),
        "Bayes": vlm.classify(list(split.images), list(split.classes)).probs,
    }.items():
        expected = Outcomes.of(probs, labels)
        torch.testing.assert_close(result.scores[name].nll, expected.nll, rtol=1e-4, atol=1e-4)
        assert torch.equal(result.scores[name].correct, expected.correct)
    assert result.facts["temperature"] == pytest.approx(tuned.value, rel=1e-4)
    assert result.facts["raised_temperature"] == pytest.approx(raised.value, rel=1e-4)
    assert raised.value > 1.01 * tuned.value
    assert (result.facts["images"], result.facts["classes"]) == (len(split), len(split.classes))
    assert result.scores["TTA"].voted is not None
    assert result.scores["Bayes + TTA"].voted is not None


def test_a_warm_cache_changes_nothing(vlm: BayesVLM, cache: FeatureCache, result: Result) -> None:
    again = ready(vlm, cache).run(thinned("openmoji-black"))
    assert again.inputs == result.inputs
    assert again.numbers["methods"] == result.numbers["methods"]
    for name in METHODS:
        assert torch.equal(again.scores[name].nll, result.scores[name].nll)


def test_without_a_cache_the_same(vlm: BayesVLM, result: Result) -> None:
    bare = ready(vlm, None, methods=("plain", "Bayes"), validation=None).run(thinned("openmoji-black"))
    for name in ("plain", "Bayes"):
        torch.testing.assert_close(bare.scores[name].nll, result.scores[name].nll, rtol=1e-4, atol=1e-4)


def test_written_and_read_again(result: Result, tmp_path: Path) -> None:
    path = result.save(tmp_path)
    assert path == place(tmp_path, "emoji-clip", "openmoji-black") == tmp_path / "emoji-clip/openmoji-black.json"
    read = Result.load(path)
    assert read.inputs == json.loads(json.dumps(result.inputs))
    assert read.numbers["methods"] == result.numbers["methods"]
    assert (read.model, read.data) == ("emoji-clip", "openmoji-black")
    for name in METHODS:
        assert torch.equal(read.scores[name].nll, result.scores[name].nll)
        assert torch.equal(read.scores[name].correct, result.scores[name].correct)
    written = json.loads(path.read_text())
    assert written["inputs"]["model"]["encoder"]["weights"]
    assert written["inputs"]["posterior"]["factors"]
    assert written["inputs"]["data"]["fingerprint"] == thinned("openmoji-black").fingerprint()
    assert set(written["inputs"]["versions"]) == {"bayesvlm", "torch", "transformers", "python"}


def test_inputs_name_everything_that_matters(vlm: BayesVLM, cache: FeatureCache) -> None:
    data = thinned("openmoji-black")
    usual = ready(vlm, cache).inputs(data)
    others = [
        ready(vlm.replace(tau=vlm.tau * 2), cache).inputs(data),
        ready(vlm.replace(link="centred"), cache).inputs(data),
        ready(vlm, cache, views=Views(5)).inputs(data),
        ready(vlm, cache, keep=0.5).inputs(data),
        ready(vlm, cache, methods=("plain",)).inputs(data),
        ready(vlm, cache, validation=thinned("new-drawing")).inputs(data),
        ready(vlm, cache, templates="a drawing of {c}").inputs(data),
        ready(vlm, cache, validation=Prompted(thinned("validation"))).inputs(data),
        ready(vlm, cache).inputs(replace(data, labels=tuple(reversed(data.labels)))),
        ready(BayesVLM.from_pretrained("emoji-siglip", device="cpu"), cache).inputs(data),
    ]
    written = [json.dumps(inputs, sort_keys=True) for inputs in (usual, *others)]
    assert len(set(written)) == len(written)
    assert ready(vlm, cache).inputs(data) == usual


def test_a_posterior_known_by_its_inverses(vlm: BayesVLM, cache: FeatureCache, result: Result) -> None:
    """It has neither tau nor lam to name; with equal inverses the scores are equal."""
    inverted: dict[Tower, InvertedPosterior] = {}
    for tower in TOWERS:
        root, factors = math.sqrt(vlm.lam[tower]), vlm.factors[tower]
        A, B = (math.sqrt(vlm.tau) * of + root * torch.eye(len(of)) for of in (factors.A, factors.B))
        inverted[tower] = InvertedPosterior(getattr(vlm, tower), A.inverse(), B.inverse().diagonal())
    parts = vlm.image, vlm.text, vlm.logit_scale, vlm.logit_bias, vlm.loss, vlm.adapter
    published = BayesVLM(*parts).with_distributions(inverted)
    found = ready(published, cache).run(thinned("openmoji-black"))
    assert found.inputs["posterior"]["factors"] != result.inputs["posterior"]["factors"]
    expected, scored = result.scores["Bayes"].outcomes, found.scores["Bayes"].outcomes
    torch.testing.assert_close(scored.nll, expected.nll, atol=1e-4, rtol=1e-4)


def test_winners_are_those_of_the_paired_test(result: Result) -> None:
    nll = {name: found.nll for name, found in result.scores.items()}
    assert result.winners("nlpd") == not_worse_than_best(nll)
    assert result.winners("ece") == {min(result.scores, key=lambda name: result.scores[name].ece)}
    assert result.numbers["not_worse_than_best"]["nlpd"] == sorted(result.winners("nlpd"))


# What is refused -----------------------------------------------------------------------------------------------------


def test_files_of_different_runs(result: Result, vlm: BayesVLM, cache: FeatureCache, tmp_path: Path) -> None:
    path = result.save(tmp_path / "a")
    other = ready(vlm.replace(tau=99.0), cache).run(thinned("openmoji-black")).save(tmp_path / "b")
    shutil.copy(other.with_suffix(".safetensors"), path.with_suffix(".safetensors"))
    with pytest.raises(BayesVLMError, match=r"and its \.safetensors are of different runs; measure again"):
        Result.load(path)


@pytest.mark.parametrize("content", ["", "{}", "[]"])
def test_files_that_are_no_results(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(BayesVLMError, match="is no result of `bayesvlm eval`"):
        Result.load(tmp_path / "x.json")


@pytest.mark.parametrize("missing", ["columns", "inputs", "facts", "methods", "schema"])
def test_results_with_something_missing(result: Result, tmp_path: Path, missing: str) -> None:
    path = result.save(tmp_path)
    written = json.loads(path.read_text())
    del written[missing]
    path.write_text(json.dumps(written))
    with pytest.raises(BayesVLMError, match=f"is no result of `bayesvlm eval` .*{missing}"):
        Result.load(path)


def test_a_later_schema(result: Result, tmp_path: Path) -> None:
    path = result.save(tmp_path)
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 7', 1))
    with pytest.raises(BayesVLMError, match="has schema 7; this version reads 1"):
        Result.load(path)


def test_what_is_missing_is_said(vlm: BayesVLM) -> None:
    with pytest.raises(BayesVLMError, match="emoji-clip has no posterior; fit one with `bayesvlm fit`"):
        ready(vlm.without_posterior(), None)
    with pytest.raises(BayesVLMError, match=r"The method 'temperature' needs labelled .* name a validation set"):
        ready(vlm, None, methods=("temperature",), validation=None)
    left = ready(vlm, None, validation=None)
    assert left.methods == tuple(method for method in METHODS if method not in TEMPERED)
    assert tuple(left.left_out) == TEMPERED
    assert ready(vlm, None, methods=("plain", "raised temperature")).validation is not None
    with pytest.raises(BayesVLMError, match="has no place for the class name"):
        ready(vlm, None, templates="a photo of a cat")
    ready(vlm.without_posterior(), None, methods=("plain",), validation=None).run(thinned("openmoji-black"))


def test_one_class(vlm: BayesVLM) -> None:
    split = thinned("openmoji-black")
    one = replace(split, classes=split.classes[:1], labels=(0,) * len(split))
    with pytest.raises(BayesVLMError, match="has the one class 'grapes'; telling classes apart takes two"):
        ready(vlm, None, methods=("plain",), validation=None).run(one)


@pytest.mark.parametrize(
    ("model", "data", "file"),
    [("a/b", "c:test", "a-b/c-test.json"), ("../x", "..", "x/unnamed.json"), ("é", "ü ü", "é/ü-ü.json")],
)
def test_names_stay_inside_the_folder(tmp_path: Path, model: str, data: str, file: str) -> None:
    assert place(tmp_path, model, data) == tmp_path / file
