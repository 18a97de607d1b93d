"""The objects a user holds: they print in a few lines, refuse what would make them stale, and pickle."""

from __future__ import annotations

import copy
import io
import json
import operator
import pickle
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
import transformers
from PIL import Image
from torch import Tensor, nn

from bayesvlm import BayesVLM, BayesVLMError, Features, world
from bayesvlm.active.selection import rank
from bayesvlm.core.errors import BayesVLMWarning
from bayesvlm.core.joint import joint_logit_covariance
from bayesvlm.core.prediction import Prediction
from bayesvlm.core.settings import Link, Settings
from bayesvlm.testing.tiny import save_tiny_clip, save_tiny_siglip

CLASSES = [f"class number {index}" for index in range(300)]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def projections(loss: str = "infonce", width: int = 16) -> BayesVLM:
    bias = {"logit_bias": -3.0} if loss == "sigmoid" else {}
    vlm = BayesVLM.from_projections(draw(8, width), draw(8, 12, seed=1), 2.0, loss=loss, **bias)
    return vlm.fit([(Features(draw(100, width, seed=2)), Features(draw(100, 12, seed=3)))])


def predict(vlm: BayesVLM, inputs: int = 6, classes: int = 4, **options: str) -> Prediction:
    images, texts = Features(draw(inputs, 16, seed=4)), Features(draw(classes, 12, seed=5))
    return vlm.classify(images, texts, **options)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_clip(tmp_path_factory.mktemp("held") / "clip")


# Printing ------------------------------------------------------------------------------------------------------------


def test_everything_prints_in_a_few_lines(clip: Path) -> None:
    vlm = projections()
    images, texts = Features(draw(3000, 16)), Features(draw(300, 12))
    named = replace(vlm.classify(images, texts), classes=tuple(CLASSES))
    held = [
        named, named.moments, named.monte_carlo, vlm, vlm.image, vlm.factors, vlm.posterior, vlm.settings, vlm.saved(),
        images, vlm.embed_images(images), rank(vlm, images, images, texts, "entropy", 1000), vlm.head(texts),
        BayesVLM.from_pretrained(clip), world.load("openmoji-black"),
    ]  # fmt: skip
    for each in held:
        text = repr(each)
        assert len(text) < 1500, text[:3000]
        assert text.count("\n") < 6, text
        assert "tensor(" not in text


def test_a_prediction_shows_its_first_answers() -> None:
    prediction = predict(projections())
    lines = repr(replace(prediction, classes=("a", "b", "c", "d"))).splitlines()
    assert lines[0] == "Prediction of 6 inputs among 4 classes ('a', 'b', 'c', ... 4 in all)"
    assert lines[-1].strip() == "..."
    best = int(prediction.labels[0])
    assert lines[1].startswith(f"  0: {'abcd'[best]!r} {float(prediction.probs[0, best]):.3f}, ")
    assert lines[1].endswith(f"entropy {float(prediction.entropy[0]):.3f}")
    assert repr(prediction).splitlines()[1].startswith(f"  0: class {best} ")
    assert len(repr(predict(projections(), inputs=1, classes=2)).splitlines()) == 2


# Staleness -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["settings", "tau", "lam", "factors", "posterior", "image", "text", "logit_scale", "logit_bias", "loss", "adapter",
     "provenance", "normalise", "device", "scale", "link"],
)  # fmt: skip
def test_what_is_seen_is_not_set(name: str) -> None:
    vlm = projections()
    before = predict(vlm).probs
    with pytest.raises(BayesVLMError, match=rf"vlm\.{name} is read-only, .* vlm\.replace\(") as refused:
        setattr(vlm, name, Settings(tau=50.0))
    assert isinstance(refused.value, AttributeError), "as with other objects that are read-only"
    assert vlm.tau == 1.0
    assert torch.equal(predict(vlm).probs, before)


def test_entries_are_not_set_either() -> None:
    vlm = projections().replace(lam={"image": 2.0, "text": 3.0})
    for held in (vlm.lam, vlm.settings.lam, vlm.factors, vlm.posterior):
        with pytest.raises(BayesVLMError, match=r"is read-only, .*vlm\.replace"):
            held["image"] = 5.0  # type: ignore[index]
        with pytest.raises(BayesVLMError, match="is read-only"):
            held.update(image=5.0)  # type: ignore[union-attr]
        assert copy.deepcopy(held).keys() == pickle.loads(pickle.dumps(held)).keys() == {"image", "text"}
    assert json.loads(json.dumps(vlm.lam)) == asdict(vlm.settings)["lam"] == {"image": 2.0, "text": 3.0}


# Pickling ------------------------------------------------------------------------------------------------------------


def _through_torch(prediction: Prediction) -> Prediction:
    file = io.BytesIO()
    torch.save(prediction, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize(("loss", "link", "method"), [
    ("infonce", "probit", "probcosine"), ("infonce", "mc", "probcosine"), ("sigmoid", "centred", "probcosine"),
    ("sigmoid", "probit", "mean"),
])  # fmt: skip
def test_a_prediction_pickles_with_all_it_can_say(loss: str, link: Link, method: str, asked: bool) -> None:
    prediction = predict(projections(loss).replace(link=link), method=method)
    if asked:
        _ = prediction.epistemic, prediction.variance, prediction.label_probs
    ways: list[Callable[[Prediction], Prediction]] = [
        lambda p: pickle.loads(pickle.dumps(p)), copy.deepcopy, copy.copy, _through_torch,
    ]  # fmt: skip
    for way in ways:
        again = way(prediction)
        assert len(again) == len(prediction)
        for name in ("probs", "labels", "mean", "variance", "entropy", "epistemic", "aleatoric"):
            torch.testing.assert_close(getattr(again, name), getattr(prediction, name), msg=name)
        torch.testing.assert_close(again.monte_carlo.total, prediction.monte_carlo.total)
        assert (again.label_probs is None) == (loss == "infonce")
        if again.label_probs is not None:
            torch.testing.assert_close(again.label_probs, prediction.label_probs)


def test_a_prediction_crosses_to_another_process() -> None:
    prediction = predict(projections())
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        epistemic = pool.submit(operator.attrgetter("epistemic"), prediction).result()
    torch.testing.assert_close(epistemic, prediction.epistemic)


def test_a_pickle_holds_what_it_needs_only() -> None:
    """Not the rows beside the ones it was given, and nothing that draws were made from once they are made."""
    vlm = projections()
    archive = Features(draw(20_000, 16))
    prediction = vlm.classify(archive[:5], Features(draw(3, 12)))
    before = len(pickle.dumps(prediction))
    assert before < 100_000 < archive.activations.nbytes
    _ = prediction.epistemic
    assert len(pickle.dumps(prediction)) < 10_000 < before


def test_a_prediction_of_an_encoder_leaves_the_encoder(clip: Path) -> None:
    vlm = BayesVLM.from_pretrained(clip)
    vlm.fit([(Features(draw(80, vlm.image.activation_width)), Features(draw(80, vlm.text.activation_width)))])
    prediction = vlm.classify([Image.new("RGB", (32, 32), "red")], ["red", "blue"])
    assert "Adapter" not in str(pickle.dumps(prediction))
    torch.testing.assert_close(pickle.loads(pickle.dumps(prediction)).epistemic, prediction.epistemic)


@pytest.mark.parametrize("save", [save_tiny_clip, save_tiny_siglip])
def test_a_model_with_its_encoder_pickles(save: Callable[[Path], Path], tmp_path: Path) -> None:
    vlm = BayesVLM.from_pretrained(save(tmp_path / "model"))
    again, image = pickle.loads(pickle.dumps(vlm)), Image.new("RGB", (90, 60), "red")
    torch.testing.assert_close(again.plain([image], ["red", "blue"]), vlm.plain([image], ["red", "blue"]))


def test_a_model_from_projections_pickles() -> None:
    vlm = projections().replace(tau=3.0)
    again = pickle.loads(pickle.dumps(vlm))
    torch.testing.assert_close(predict(again).probs, predict(vlm).probs)
    assert (again.tau, again.lam, again.provenance) == (vlm.tau, vlm.lam, vlm.provenance)
    with pytest.raises(BayesVLMError, match="read-only"):
        again.settings = Settings()


# The encoder before the projections ----------------------------------------------------------------------------------


def _change_a_tower(folder: Path, changed: Path) -> Path:
    """The same model after LoRA was merged into a layer of its vision tower."""
    vlm = BayesVLM.from_pretrained(folder)
    model = vlm.adapter.model
    layer = next(m for name, m in model.vision_model.named_modules() if isinstance(m, nn.Linear))
    with torch.no_grad():
        layer.weight += 0.01 * draw(layer.weight.shape[0], 1) @ draw(1, layer.weight.shape[1], seed=1)
    for each in folder.iterdir():
        changed.mkdir(exist_ok=True)
        (changed / each.name).write_bytes(each.read_bytes())
    model.save_pretrained(changed)
    return changed


@pytest.fixture(scope="module", params=["clip", "siglip"])
def estimated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model and a posterior estimated with it."""
    root = tmp_path_factory.mktemp(request.param)
    folder = (save_tiny_clip if request.param == "clip" else save_tiny_siglip)(root / "model")
    vlm = BayesVLM.from_pretrained(folder)
    residual = draw(80, vlm.image.embedding_width) if vlm.image.residual else None
    images = Features(draw(80, vlm.image.activation_width), residual)
    vlm.fit([(images, Features(draw(80, vlm.text.activation_width)))])
    return folder, vlm.save_pretrained(root / "posterior")


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16, torch.float64])
def test_the_same_encoder_in_any_precision_is_silent(estimated: tuple[Path, Path], dtype: torch.dtype | None) -> None:
    if (
        dtype == torch.float64
        and estimated[0].parent.name.startswith("clip")
        and transformers.__version__.startswith("4.")
    ):
        pytest.skip("CLIP of transformers 4 builds its attention mask in float32 and cannot run in float64")
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayesVLMWarning)
        BayesVLM.from_pretrained(estimated[1], dtype=dtype, strict=True)


def test_a_changed_tower_warns_and_strict_refuses(estimated: tuple[Path, Path], tmp_path: Path) -> None:
    model, posterior = estimated
    changed = _change_a_tower(model, tmp_path / "merged")
    sentence = "merged is not the encoder this posterior was estimated with .* weights differ"
    with pytest.warns(BayesVLMWarning, match=sentence) as heard:
        vlm = BayesVLM.from_pretrained(posterior, model=changed)
    assert len(heard) == 1
    with pytest.raises(BayesVLMError, match=sentence):
        BayesVLM.from_pretrained(posterior, model=changed, strict=True)
    again = vlm.save_pretrained(tmp_path / "again")  # saving it does not make the encoder the right one
    with pytest.warns(BayesVLMWarning, match=sentence):
        BayesVLM.from_pretrained(again)


def test_a_posterior_without_the_hash_loads_as_before(estimated: tuple[Path, Path], tmp_path: Path) -> None:
    model, posterior = estimated
    changed = _change_a_tower(model, tmp_path / "merged")
    config = json.loads((posterior / "config.json").read_text())
    assert set(config.pop("all_weights")) == {"float32", "float16", "bfloat16"}
    old = tmp_path / "old"
    old.mkdir()
    for each in posterior.iterdir():
        (old / each.name).write_bytes(each.read_bytes())
    (old / "config.json").write_text(json.dumps(config))
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayesVLMWarning)
        assert BayesVLM.from_pretrained(old, model=changed, strict=True).fitted


# Fits and inputs that deserve a word ---------------------------------------------------------------------------------


def test_few_pairs_are_said_and_the_contrast_is_recorded() -> None:
    vlm = BayesVLM.from_projections(draw(8, 16), draw(8, 12), 2.0)
    with pytest.warns(BayesVLMWarning, match=r"estimated from 2 pairs, fewer than the 16 numbers .* embeddings have 8"):
        vlm.fit([(Features(draw(2, 16)), Features(draw(2, 12)))])
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayesVLMWarning)
        vlm.fit([(Features(draw(16, 16)), Features(draw(16, 12)))])
    assert vlm.provenance == {"negatives": 32768, "contrast": 16, "pairs": 16}
    vlm.fit([(Features(draw(50, 16)), Features(draw(50, 12)))], negatives=20)
    assert vlm.provenance == {"negatives": 20, "contrast": 20, "pairs": 50}


def test_the_end_of_a_grid_is_said_and_a_single_tau_is_none() -> None:
    vlm = projections()
    images, texts = Features(draw(40, 16, seed=7)), Features(draw(5, 12, seed=8))
    labels = torch.arange(40) % 5
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayesVLMWarning)
        vlm.tune(images, labels, texts, taus=[1.0])
    with pytest.warns(BayesVLMWarning, match=r"The best tau, .*, is an end of the grid, .* still (smaller|larger) one"):
        vlm.tune(images, labels, texts, taus=[1.0, 2.0, 4.0])


def test_a_list_of_class_lists_is_one_sentence(clip: Path) -> None:
    vlm = BayesVLM.from_pretrained(clip)
    with pytest.raises(BayesVLMError, match=r"classes\[1\] is .*, of type list, and no name"):
        vlm.plain([Image.new("RGB", (32, 32))], ["bird", [["cat", "dog"], ["cow"]]])


def test_an_impossible_place_is_one_sentence(tmp_path: Path) -> None:
    vlm = projections()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere" / "at" / "all")
    for folder in (tmp_path / "dangling" / "posterior", "/proc/here/posterior", tmp_path / ("x" * 300)):
        with pytest.raises(BayesVLMError, match=r"cannot be saved to|cannot be written"):
            vlm.save_pretrained(folder)
    with pytest.raises(BayesVLMError, match="The folder to save to is ''"):
        vlm.save_pretrained("")


# What it turns into --------------------------------------------------------------------------------------------------


class Named(BayesVLM):
    """A user's subclass with a thing of its own."""

    nickname = "nobody"

    def called(self, name: str) -> Named:
        return self._changed(nickname=name)


def labelled(vlm: BayesVLM) -> tuple[Features, Tensor, Features]:
    classes = Features(draw(4, 12, seed=6))
    return Features(draw(20, 16, seed=7)), torch.arange(20) % 4, classes


def test_subclasses_survive() -> None:
    plain = projections()
    vlm = Named(plain.image, plain.text, plain.logit_scale).called("ours")
    vlm.fit([(Features(draw(100, 16, seed=2)), Features(draw(100, 12, seed=3)))])
    others = [vlm.replace(tau=3.0), vlm.copy(), vlm.without_posterior(), vlm.with_provenance(a=1), vlm.to("cpu")]
    others += [vlm.tune(*labelled(vlm), taus=[0.5, 1.0, 2.0, 4.0, 8.0], refine=False), pickle.loads(pickle.dumps(vlm))]
    for other in others:
        assert type(other) is Named
        assert other.nickname == "ours"


def test_fit_and_tune_change_it_and_return_it_and_a_copy_is_apart() -> None:
    vlm = projections()
    copied, before = vlm.copy(), predict(vlm).probs
    tuned = vlm.tune(*labelled(vlm), taus=[0.1, 1.0, 7.0, 30.0], refine=False, provenance={"tuned_on": "a test"})
    assert tuned is vlm
    assert vlm.tuning is not None
    assert [point.tau for point in vlm.tuning] == [0.1, 1.0, 7.0, 30.0]
    assert vlm.tau == vlm.tuning.best.tau
    assert vlm.provenance["tuned_on"] == "a test"
    assert vlm.provenance["validation_nlpd"] == vlm.tuning.best.nlpd
    assert copied.tuning is None
    assert "tuned_on" not in copied.provenance
    assert torch.equal(predict(copied).probs, before)
    assert vlm.replace(tau=2.0).tuning is None, "that tau is not of tune"
    assert vlm.replace(link="centred").tuning is None, "those NLPDs are of another link"


def test_provenance_is_added_to_a_new_one() -> None:
    vlm = projections()
    noted = vlm.with_provenance(source="a test", skipped=3)
    assert noted.provenance == {**vlm.provenance, "source": "a test", "skipped": 3}
    assert "source" not in vlm.provenance
    with pytest.raises(BayesVLMError, match="read-only"):
        noted.provenance["source"] = "another"  # type: ignore[index]
    with pytest.raises(BayesVLMError, match="provenance is kept as json"):
        vlm.with_provenance(what={1, 2})


def test_settings_and_predictions_cannot_part() -> None:
    """Every way to other settings gives the predictions of those settings."""
    vlm = projections()
    changed = vlm.replace(tau=9.0, covariance="full").replace(structure="exact", link="centred")
    fresh = vlm.without_posterior().replace(tau=9.0, covariance="full", structure="exact", link="centred")
    fresh = fresh.with_factors(vlm.factors)
    assert torch.equal(predict(changed).probs, predict(fresh).probs)
    assert changed.lam == fresh.lam
    with pytest.raises(BayesVLMError, match="The image tower"):
        vlm.with_factors({"image": vlm.factors["text"], "text": vlm.factors["text"]})


def test_the_joint_covariance_of_logits_is_at_hand() -> None:
    vlm = projections()
    images, texts = Features(draw(3, 16, seed=8)), Features(draw(2, 12, seed=9))
    found = vlm.joint_logit_covariance(images, texts)
    expected = joint_logit_covariance(vlm.posterior["image"], images, vlm.posterior["text"], texts, vlm.scale)
    assert torch.equal(found, expected)
    assert found.shape == (3, 2, 3, 2)


# Results are plain data ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["infonce", "sigmoid"])
@pytest.mark.parametrize("asked_first", [False, True])
def test_rows_of_a_prediction(loss: str, asked_first: bool) -> None:
    whole = predict(projections(loss), inputs=6)
    expected = {name: getattr(whole, name) for name in ("entropy", "variance", "mean")}
    if asked_first:
        expected["epistemic"] = whole.epistemic
    for index in (2, slice(1, 4), [5, 0], torch.tensor([True, False] * 3)):
        some = whole[index]
        rows = torch.arange(6)[[index] if isinstance(index, int) else index]
        assert torch.equal(some.probs, whole.probs[rows])
        for name, values in expected.items():
            torch.testing.assert_close(getattr(some, name), values[rows])
        if loss == "sigmoid":
            torch.testing.assert_close(some.label_probs, whole.label_probs[rows])  # type: ignore[index]
    torch.testing.assert_close(whole[1:3].epistemic, whole.epistemic[1:3], rtol=0, atol=1e-5)
    assert [len(row) for row in whole] == [1] * 6
    with pytest.raises(IndexError):
        whole[6]


@pytest.mark.parametrize("structure", ["damped", "exact"])
def test_results_are_cast_moved_and_pickled(structure: str) -> None:
    vlm = projections("sigmoid").replace(structure=structure)  # type: ignore[arg-type]
    images, texts = Features(draw(4, 16)), Features(draw(3, 12))
    moments, embedded, prediction = vlm.similarity(images, texts), vlm.embed_images(images), vlm.classify(images, texts)
    assert moments.to(torch.float64).variance.dtype == torch.float64
    torch.testing.assert_close(moments.to("cpu")[1:3].std, moments.std[1:3])
    assert embedded.to(torch.float64).expected_norm.dtype == torch.float64
    assert prediction.to(torch.float64).probs.dtype == torch.float64
    torch.testing.assert_close(prediction.to("cpu").epistemic, prediction.epistemic)
    torch.testing.assert_close(prediction.to(torch.float64).epistemic.float(), prediction.epistemic)
    for held in (moments, embedded, prediction):
        again = pickle.loads(pickle.dumps(held))
        assert torch.equal(again.mean, held.mean)


def test_a_notebook_shows_bars_intervals_and_the_split() -> None:
    vlm = projections()
    images, texts = Features(draw(3000, 16)), Features(draw(300, 12))
    prediction = replace(vlm.classify(images, texts), classes=tuple(f"<b>{name}</b>" for name in CLASSES))
    page = prediction._repr_html_()
    assert len(page) < 12_000
    assert "<b>class" not in page, "names are escaped"
    assert "&lt;b&gt;class number" in page
    best = prediction.probs[0].max()
    assert f"width:{100 * float(best):.4g}%" in page
    low, high = prediction.moments[0].interval(0.95)
    k = int(prediction.labels[0])
    assert f"{float(low[0, k]):.2f} to {float(high[0, k]):.2f}" in page
    assert "epistemic" in page
    assert "monte_carlo" not in prediction.__dict__, "only the rows that are shown are drawn for"
    for held in (prediction.moments, vlm.embed_images(images), vlm):
        assert len(held._repr_html_()) < 12_000


# Nothing stale -------------------------------------------------------------------------------------------------------


def test_provenance_says_nothing_of_a_tau_that_is_gone() -> None:
    vlm = projections()
    vlm.tune(*labelled(vlm), taus=[1.0], refine=False, provenance={"tuned_on": "a test"})
    for other in (vlm.replace(tau=3.0), vlm.replace(link="centred"), vlm.with_factors(projections().factors)):
        assert not {"tuned_on", "validation_nlpd"} & other.provenance.keys()
    assert "tuned_images" not in vlm.replace(tau=3.0).provenance
    assert "tuned_images" in vlm.replace(link="centred").provenance, "tau is still the one found on them"
    assert vlm.replace(tau=3.0).provenance["pairs"] == 100
    assert vlm.with_factors(projections().factors).provenance == {}
    facts = {"nested": {"list": [1]}}
    noted = vlm.with_provenance(**facts)
    facts["nested"]["list"].append(2)
    assert noted.provenance["nested"] == {"list": [1]}


def test_nothing_is_deleted() -> None:
    vlm = projections().replace(tau=5.0)
    with pytest.raises(BayesVLMError, match=r"vlm\.settings is read-only"):
        del vlm.settings
    assert vlm.tau == 5.0


def test_masks_and_steps_choose_rows() -> None:
    prediction = predict(projections(), inputs=6)
    assert torch.equal(prediction[::-1].probs, prediction.probs.flip(0))
    assert torch.equal(prediction[-1].probs, prediction.probs[-1:])
    assert len(prediction[[]]) == 0
    with pytest.raises(BayesVLMError, match=r"The mask has shape \[4\], but there are 6 rows"):
        prediction[torch.tensor([True] * 4)]
