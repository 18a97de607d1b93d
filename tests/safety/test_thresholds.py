"""Thresholds of labels: calibrated, applied, saved and loaded, and refused where they do not hold."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bayesvlm import BayesVLM, BayesVLMError, Features
from bayesvlm.core.errors import BayesVLMWarning
from bayesvlm.core.factors import KroneckerFactors
from bayesvlm.safety import LabelThresholds
from bayesvlm.testing.tiny import save_tiny_clip, save_tiny_siglip

D, P, C, N = 8, 12, 4, 300
NAMES = ["a dog", "a cat", "the sun"]


def model(loss: str = "sigmoid") -> tuple[BayesVLM, Features, Features, Tensor]:
    """A fitted model from projections, classes, images each near one or two of them, and which."""
    generator = torch.Generator().manual_seed(5)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    weight, bias = draw(D, P), -4.0 if loss == "sigmoid" else None
    vlm = BayesVLM.from_projections(weight, weight, 2.3, bias, loss=loss)  # type: ignore[arg-type]
    vlm.fit([(Features(draw(200, P)), Features(draw(200, P)))], progress=False)
    vlm = vlm.replace(tau=0.1)
    classes, carried = draw(C, P), torch.rand(N, C, generator=generator) < 0.35
    images = carried.double() @ classes + 0.6 * draw(N, P)
    return vlm, Features(classes), Features(images), carried


@pytest.mark.parametrize(("loss", "score"), [("sigmoid", "label_probs"), ("infonce", "probs"), ("infonce", "mean")])
@pytest.mark.parametrize("confidence", [None, 0.9])
@pytest.mark.filterwarnings("ignore:. of 4 labels")
def test_they_keep_their_precision_on_the_images_and_flag_by_the_score(
    loss: str, score: Any, confidence: float | None
) -> None:
    vlm, classes, images, carried = model(loss)
    precision = 0.6 if score == "probs" else 0.8
    found = LabelThresholds.calibrate(vlm, images, carried, classes, precision, confidence=confidence, score=score)
    by_default = LabelThresholds.calibrate(vlm, images, carried, classes, precision).score
    assert by_default == ("label_probs" if loss == "sigmoid" else "probs")
    flags, prediction = found(images), vlm.classify(images, classes)
    assert flags.any()
    assert torch.equal(flags, getattr(prediction, score) >= found.thresholds)
    assert torch.equal(found.apply(prediction), flags)
    reached = (flags & carried).sum(dim=0) / flags.sum(dim=0)
    assert bool((reached[~found.never] >= precision).all())
    torch.testing.assert_close(reached.double(), found.validation.precision.double(), equal_nan=True)
    batches = [found.apply(batch) for batch in vlm.stream(images, classes, batch_size=64)]
    clear = (getattr(prediction, score) - found.thresholds).abs() > 1e-9  # a threshold is some image's own score
    assert torch.equal(torch.cat(batches)[clear], flags[clear])
    assert int((~clear).sum()) <= C, "one image per label"


@pytest.mark.filterwarnings("ignore:. of 4 labels")
def test_a_confidence_makes_them_stricter_and_a_larger_one_more_so() -> None:
    vlm, classes, images, carried = model()
    flagged = [
        LabelThresholds.calibrate(vlm, images, carried, classes, 0.7, confidence=confidence).validation.flagged
        for confidence in (None, 0.8, 0.99)
    ]
    assert bool((flagged[0] >= flagged[1]).all())
    assert bool((flagged[1] >= flagged[2]).all())
    assert int(flagged[0].sum()) > int(flagged[1].sum()) > int(flagged[2].sum()) > 0


def test_labels_without_a_threshold_are_named_with_what_they_would_need() -> None:
    vlm, classes, images, carried = model()
    rare = carried.clone()
    rare[:, 0] = False
    rare[:3, 1] = True
    rare[3:, 1] = False
    rare[:, 2] = torch.rand(N, generator=torch.Generator().manual_seed(0)) < 0.5  # nothing to do with the score
    with pytest.warns(BayesVLMWarning) as said:
        found = LabelThresholds.calibrate(vlm, images, rare, classes, 0.9)
    assert found.never.tolist()[:3] == [True, True, True]
    assert not found(images)[:, :3].any()
    text = str(said[0].message)
    assert "class 0 (0 images), class 1 (3 images) would need 29 images with the label at least" in text
    assert "about 2,900 validation images" in text  # 29 / 3 * 300
    assert "of class 2" in text
    assert "too many of the most confident images" in text


def test_one_label_alone_is_no_mistake() -> None:
    vlm, classes, images, carried = model()
    found = LabelThresholds.calibrate(vlm, images, carried[:, :1], classes[:1], 0.8)  # a warning would be an error
    assert found(images).shape == (N, 1)


def test_what_was_calibrated_does_not_change_with_the_model(recwarn: pytest.WarningsRecorder) -> None:
    vlm, classes, images, carried = model()
    found = LabelThresholds.calibrate(vlm, images, carried, classes, 0.7)
    before = found(images)
    vlm.tune(images, torch.randint(C, (N,), generator=torch.Generator().manual_seed(0)), classes, progress=False)
    assert torch.equal(found(images), before)
    assert torch.equal(pickle.loads(pickle.dumps(found))(images), before)


def test_names_and_how_it_prints(tmp_path: Path) -> None:
    vlm = BayesVLM.from_pretrained(save_tiny_siglip(tmp_path), device="cpu")
    images = pictures(12)
    vlm.fit([(images, [f"{name} {k}" for k in range(4) for name in NAMES])], progress=False)
    labels = [["a dog"], [], ["a cat", "the sun"]] * 4
    with pytest.warns(BayesVLMWarning, match=r"'a dog' \(4 images\)"):
        found = LabelThresholds.calibrate(vlm, images, labels, NAMES, 0.9, templates="{c}!")
    assert repr(found).startswith(
        "LabelThresholds(a precision of 0.9 with a confidence of 0.95, of label_probs: 0 of 3"
    )
    assert "never" in found._repr_html_()
    easy = LabelThresholds.calibrate(vlm, images, [NAMES] * 12, NAMES, 0.5, confidence=None)
    assert easy.names_of(easy(images)) == [NAMES] * 12
    assert "0.5, of label_probs: 3 of 3 labels" in repr(easy)


def pictures(count: int) -> list[Tensor]:
    return list(torch.randint(0, 256, (count, 3, 40, 40), generator=torch.Generator().manual_seed(0)).to(torch.uint8))


def test_saved_and_loaded_with_names_and_templates(tmp_path: Path) -> None:
    vlm = BayesVLM.from_pretrained(save_tiny_siglip(tmp_path / "model"), device="cpu")
    images = pictures(12)
    vlm.fit([(images, [f"{name} {k}" for k in range(4) for name in NAMES])], progress=False)
    labels = [[0, 1], [2], []] * 4
    options: dict[str, Any] = {"templates": ["a drawing of {c}", lambda name: f"{name}, a cat"], "confidence": None}
    found = LabelThresholds.calibrate(
        vlm, images, labels, {"dog": ["a dog", "the dog"], "cat": "a cat", "sun": "sun"}, 0.3, **options
    )
    file = found.save(tmp_path / "kept")
    assert file == tmp_path / "kept" / "label-thresholds.json"
    for path in (file, file.parent):
        again = LabelThresholds.load(path, vlm)
        assert torch.equal(again.thresholds, found.thresholds)
        assert torch.equal(again(images), found(images))
        assert again.classes == ("dog", "cat", "sun")
        assert (again.precision, again.confidence, again.score) == (0.3, None, "label_probs")
        for count in ("positives", "flagged", "correct", "images"):
            assert torch.equal(
                torch.as_tensor(getattr(again.validation, count)), torch.as_tensor(getattr(found.validation, count))
            )
    with pytest.raises(BayesVLMError, match="another class list: class 2 is 'sun' there and 'moon' here"):
        LabelThresholds.load(file, vlm, ["dog", "cat", "moon"])
    with pytest.raises(BayesVLMError, match="calibrated with other prompts: 'a drawing of a dog' there"):
        LabelThresholds.load(file, vlm, {"dog": ["a dog", "the dog"], "cat": "a cat", "sun": "sun"})
    dog, cat = ["a dog", "the dog"], ["a cat"]
    for given, said in (
        (
            {"dog": [*dog, "dogs"], "cat": cat, "sun": ["sun"]},
            r"no more there, 'a drawing of dogs' here, of class 'dog'",
        ),
        ({"dog": dog[:1], "cat": cat, "sun": ["sun"]}, r"'a drawing of the dog' there, no more here, of class"),
        (
            {"dog": dog, "cat": cat, "sun": ["sun", "sun!"]},
            r"no more there, 'a drawing of sun!' here, of class 'sun",
        ),
    ):
        with pytest.raises(BayesVLMError, match=f"calibrated with other prompts: {said}"):
            LabelThresholds.load(file, vlm, given, templates=options["templates"])
    with pytest.raises(BayesVLMError, match="for 3 classes, and 2 are given"):
        LabelThresholds.load(file, vlm, ["dog", "cat"])
    with pytest.raises(BayesVLMError, match="templates without classes"):
        LabelThresholds.load(file, vlm, templates="{c}")
    with torch.no_grad():  # fine-tuned in front of the projections
        tower = BayesVLM.from_pretrained(tmp_path / "model", device="cpu")
        assert tower.adapter is not None
        next(tower.adapter.model.parameters()).add_(0.1)
    tower = tower.with_factors(vlm.factors).replace(tau=vlm.tau)
    with pytest.raises(BayesVLMError, match="same projections behind another encoder"):
        LabelThresholds.load(file, tower)


def test_saved_and_loaded_with_features(tmp_path: Path) -> None:
    vlm, classes, images, carried = model()
    found = LabelThresholds.calibrate(vlm, images, carried, classes, 0.95, confidence=None)
    file = found.save(tmp_path / "t.json")
    assert torch.equal(LabelThresholds.load(file, vlm, classes)(images), found(images))
    with pytest.raises(BayesVLMError, match=r"given as Features.*pass the same Features"):
        LabelThresholds.load(file, vlm)
    with pytest.raises(BayesVLMError, match="calibrated for other classes than these"):
        LabelThresholds.load(file, vlm, classes[[1, 0, 2, 3]])
    with pytest.raises(BayesVLMError, match=r"calibrated with tau = 0\.1, and it is 3\.0 here"):
        LabelThresholds.load(file, vlm.replace(tau=3.0), classes)
    with pytest.raises(BayesVLMError, match="calibrated with covariance = diagonal, and it is full here"):
        LabelThresholds.load(file, vlm.replace(covariance="full"), classes)
    with pytest.raises(BayesVLMError, match=r"with another posterior.* are \S+ times those of then"):
        LabelThresholds.load(file, vlm.replace(lam={"image": 1e-4, "text": 1e-4}), classes)
    same_lam = vlm.replace(lam=dict(vlm.lam))
    near = {tower: KroneckerFactors(1.01 * of.A_sum, of.B_sum, of.n) for tower, of in vlm.factors.items()}
    other_lam = vlm.replace(lam={tower: 1.01 * value for tower, value in vlm.lam.items()})
    for another in (same_lam.with_factors(near), other_lam):  # whose spread is all but the same
        with pytest.raises(BayesVLMError, match="another posterior of this model, of other pairs or with another lam"):
            LabelThresholds.load(file, another, classes)
    LabelThresholds.load(file, same_lam, classes)
    other, *_ = model("infonce")
    other = BayesVLM.from_projections(torch.randn(D, P), torch.randn(D, P), 2.3, -4.0, loss="sigmoid")
    other.fit([(images, images)], progress=False)
    with pytest.raises(BayesVLMError, match="calibrated for another model"):
        LabelThresholds.load(file, other, classes)
    with pytest.raises(BayesVLMError, match="no posterior yet"):
        LabelThresholds.load(file, vlm.without_posterior().replace(tau=0.1), classes)


def test_a_label_without_a_threshold_is_kept_as_null(tmp_path: Path) -> None:
    vlm, classes, images, carried = model()
    carried[:, 1] = False
    with pytest.warns(BayesVLMWarning):
        found = LabelThresholds.calibrate(vlm, images, carried, classes, 0.7)
    file = found.save(tmp_path / "t.json")
    assert json.loads(file.read_text())["thresholds"][1] is None
    assert LabelThresholds.load(file, vlm, classes).thresholds[1] == math.inf


def test_files_that_hold_something_else(tmp_path: Path) -> None:
    vlm, classes, images, carried = model()
    file = LabelThresholds.calibrate(vlm, images, carried, classes, 0.5).save(tmp_path / "t.json")
    whole = json.loads(file.read_text())

    def refused(content: str, message: str) -> None:
        file.write_text(content)
        with pytest.raises(BayesVLMError, match=message):
            LabelThresholds.load(file, vlm, classes)

    refused("{", "is not readable json")
    refused("[]", "holds something else, not label thresholds")
    refused(json.dumps(whole | {"bayesvlm_calibration": "prediction sets"}), "holds prediction sets, not label thresh")
    refused(json.dumps(whole | {"schema": 2}), "schema 2, this version reads 1")
    refused(json.dumps({name: whole[name] for name in whole if name != "validation"}), "no entry 'validation'")
    refused(json.dumps(whole | {"calibrated_for": {}}), "no entry 'model'")
    refused(json.dumps(whole | {"thresholds": [0.5]}), "1 thresholds for 4 classes")
    refused(json.dumps(whole | {"thresholds": ["x"] * 4}), "is damaged")
    refused(json.dumps(whole | {"precision": 2}), r"is damaged \(precision=2")
    refused("[" * 10**5, "is not readable json")
    refused(json.dumps(whole | {"thresholds": [math.nan, 0.5, 0.5, 0.5]}), r"not readable json \(NaN where a number")
    refused(
        json.dumps(whole).replace('"thresholds": [', '"thresholds": [-1e999, ', 1), r"damaged \(a threshold is -inf"
    )
    refused(json.dumps(whole | {"thresholds": 3}), "is damaged")
    refused(json.dumps(whole | {"validation": 3}), "is damaged")
    refused(json.dumps(whole | {"validation": whole["validation"] | {"flagged": [10**30] * 4}}), "is damaged")
    refused(json.dumps(whole | {"calibrated_for": 3}), r"is damaged \(calibrated_for is 3\)")
    many = whole["calibrated_for"]["sample"] | {"std": [1.0] * 3}
    for name, value in (
        *(("model", value) for value in (None, 3)),
        *(("weights", value) for value in (None, [], {"float32": 1})),
        *(("encoder", value) for value in (3, ["a"])),
        *(("settings", value) for value in (None, [])),
        *(("classes", value) for value in ("4", True, 0, None)),
        *(("prompts", value) for value in ([1], {"a": "b"}, {"a": ["b"]})),
        *(("sample", value) for value in ({}, None, {"cosine": [1], "std": ["x"]}, many)),
    ):
        changed = json.dumps(whole | {"calibrated_for": whole["calibrated_for"] | {name: value}})
        refused(changed, rf"is damaged \({name} is ")
    with pytest.raises(BayesVLMError, match="does not exist"):
        LabelThresholds.load(tmp_path / "other.json", vlm, classes)
    (tmp_path / "file").write_text("")
    with pytest.raises(BayesVLMError, match="cannot be written"):
        LabelThresholds.calibrate(vlm, images, carried, classes, 0.5).save(tmp_path / "file" / "t.json")


def test_what_it_refuses() -> None:
    vlm, classes, images, carried = model()
    with pytest.raises(BayesVLMError, match=r"precision=1\.5"):
        LabelThresholds.calibrate(vlm, images, carried, classes, 1.5)
    with pytest.raises(BayesVLMError, match="confidence=95"):
        LabelThresholds.calibrate(vlm, images, carried, classes, confidence=95)
    with pytest.raises(BayesVLMError, match="score='logits' is not known"):
        LabelThresholds.calibrate(vlm, images, carried, classes, score="logits")  # type: ignore[arg-type]
    with pytest.raises(BayesVLMError, match=r"matrix of labels is \[300, 3\]"):
        LabelThresholds.calibrate(vlm, images, carried[:, :3], classes)
    with pytest.raises(BayesVLMError, match="no posterior yet"):
        LabelThresholds.calibrate(vlm.without_posterior(), images, carried, classes)
    clip, *_ = model("infonce")
    with pytest.raises(BayesVLMError, match=r"trained with a softmax.*score='mean'"):
        LabelThresholds.calibrate(clip, images, carried, classes, score="label_probs")
    found = LabelThresholds.calibrate(vlm, images, carried, classes, 0.5)
    with pytest.raises(BayesVLMError, match="of 4 labels and the prediction of 3 classes"):
        found.apply(vlm.classify(images, classes[:3]))
    with pytest.raises(BayesVLMError, match="does not have; classify with the model"):
        found.apply(clip.classify(images, classes))
    with pytest.raises(BayesVLMError, match="have no names"):
        found.names_of(found(images))


def test_clip_names_in_another_order(tmp_path: Path) -> None:
    vlm = BayesVLM.from_pretrained(save_tiny_clip(tmp_path), device="cpu")
    images = pictures(9)
    vlm.fit([(images, [f"{name} {k}" for k in range(3) for name in NAMES])], progress=False)
    found = LabelThresholds.calibrate(vlm, images, NAMES * 3, NAMES, 0.2, confidence=None)
    with pytest.raises(BayesVLMError, match="class 0 is 'a dog' there and 'the sun' in the prediction"):
        found.apply(vlm.classify(images, NAMES[::-1]))
