"""Detector, PredictionSets and Selector: what they promise, kept and loaded, and refused where they do not hold."""

from __future__ import annotations

import json
import math
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from bayesvlm import BayesVLM, BayesVLMError, Features
from bayesvlm.core.blocks import row_blocks
from bayesvlm.core.errors import BayesVLMWarning
from bayesvlm.safety import Detector, PredictionSets, Selector, conformal, familiarity, prediction_sets
from bayesvlm.safety.selective import fewest_answers
from bayesvlm.testing.tiny import save_tiny_clip
from safety.known import C, draw, fitted, known_classes, known_images, unknown_images

PREDICTIVES: list[Any] = ["bayes", "plain", 1.7]
Any3 = Detector | PredictionSets | Selector


def each(vlm: BayesVLM, count: int = 400, **options: Any) -> list[Any3]:
    images, labels = known_images(count, seed=1)
    classes = known_classes()
    return [
        Detector.calibrate(vlm, images, classes, **options),
        PredictionSets.calibrate(vlm, images, labels, classes, **options),
        Selector.calibrate(vlm, images, labels, classes, 0.2, **options),
    ]


@pytest.mark.parametrize("predictive", PREDICTIVES)
@pytest.mark.parametrize("score", ["entropy", "msp", "mcm"])
def test_a_detector_flags_by_its_p_values(score: str, predictive: Any) -> None:
    vlm, classes, (images, _) = fitted(), known_classes(), known_images(199, seed=1)
    detector = Detector.calibrate(vlm, images, classes, 0.1, score, predictive=predictive)
    found, new = detector(unknown_images(300)), unknown_images(300)
    scores = familiarity(vlm, new, classes, score, predictive=predictive)
    torch.testing.assert_close(found.familiarity, scores)
    assert torch.equal(found.unknown, found.familiarity < detector.threshold)
    assert torch.equal(found.p_value, conformal.p_values(detector.scores, found.familiarity))
    assert torch.equal(found.unknown, found.p_value <= 0.1 + 1e-12)
    assert detector.n == 199
    assert float(detector(images).unknown.double().mean()) <= 20 / 199
    assert torch.equal(detector.of(scores).unknown, detector(new).unknown)
    assert len(found) == 300
    assert len(detector(images[:0])) == 0


def test_a_detector_bounds_its_false_alarms_by_the_beta_distribution() -> None:
    """Flagged shares of calibrations with n uniform scores are order statistics: counted over 4000 of them."""
    vlm, classes, (images, _) = fitted(), known_classes(), known_images(99, seed=1)
    detector = Detector.calibrate(vlm, images, classes, 0.1)
    uniform = torch.rand(4000, 99, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    shares = uniform.sort(dim=1).values[:, 9]  # below the tenth smallest: of 100 places
    assert float(shares.mean()) == pytest.approx(0.1, abs=0.003)
    assert float((shares <= detector.bound(0.95)).double().mean()) == pytest.approx(0.95, abs=0.015)
    rate = torch.distributions.Binomial(50, shares).sample() / 50
    assert float((rate <= detector.bound(0.95, images=50)).double().mean()) == pytest.approx(0.96, abs=0.03)
    assert detector.bound(0.95, images=50) > detector.bound(0.95)
    stricter = detector.with_false_alarms(0.02)
    assert stricter.threshold < detector.threshold
    with pytest.raises(BayesVLMError, match=r"99 calibration images, and a false-alarm rate of 0.001 needs 999"):
        detector.with_false_alarms(0.001)


def test_false_alarms_coverage_and_risk_on_fresh_images() -> None:
    """Averages over 40 splits: standard errors are 0.004 for the first two."""
    vlm, classes = fitted(), known_classes()
    alarms, covered, broken = [], [], 0
    for seed in range(40):
        images, labels = known_images(500, seed=100 + seed)
        calibrate, fresh = slice(0, 199), slice(199, None)
        alarms.append(Detector.calibrate(vlm, images[calibrate], classes, 0.1)(images[fresh]).unknown.double().mean())
        sets = PredictionSets.calibrate(vlm, images[calibrate], labels[calibrate], classes, 0.1, seed=seed)
        covered.append(sets(images[fresh]).gather(1, labels[fresh, None]).double().mean())
        selector = Selector.calibrate(vlm, images[calibrate], labels[calibrate], classes, 0.3)
        selection = selector(images[fresh])
        wrong = (selection.labels != labels[fresh])[selection.answered]
        broken += bool(len(wrong)) and float(wrong.double().mean()) > 0.3
    assert 0.08 < float(torch.stack(alarms).mean()) < 0.12
    assert 0.88 < float(torch.stack(covered).mean()) < 0.92
    assert broken <= 8


@pytest.mark.parametrize("kind", ["lac", "aps", "raps"])
@pytest.mark.parametrize("predictive", PREDICTIVES)
@pytest.mark.parametrize("by_class", [False, True])
def test_sets_are_those_of_the_pure_functions(kind: Any, predictive: Any, by_class: bool) -> None:
    vlm, classes, (images, labels) = fitted(), known_classes(), known_images(300, seed=1)
    options: dict[str, Any] = {"predictive": predictive, "by_class": by_class, "penalty": 0.2, "rank": 1}
    sets = PredictionSets.calibrate(vlm, images, labels, classes, 0.2, kind, **options)
    T = 1.0 if predictive == "plain" else predictive
    new = known_images(50, seed=2)[0]
    probs = vlm.classify(new, classes).probs if T == "bayes" else torch.softmax(vlm.logits(new, classes) / T, dim=1)
    found = sets(new)
    assert found.shape == (50, C)
    assert torch.equal(found, sets(new)), "the same call gives the same sets"
    assert torch.equal(found, sets.of_probs(probs))
    assert sets.n == 300
    for k in range(C):
        mine = sets.scores[labels == k] if by_class else sets.scores
        assert float(sets.thresholds[k]) == conformal.threshold(mine, 0.2)
    generator = torch.Generator().manual_seed(3)
    u = torch.rand(50, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    scores = {"lac": conformal.lac(probs), "aps": conformal.aps(probs, u), "raps": conformal.raps(probs, u, 0.2, 1)}
    assert torch.equal(sets.of_probs(probs, generator=generator), scores[kind] <= sets.thresholds)


def test_one_generator_serves_several_calls() -> None:
    sets = each(fitted())[1]
    assert isinstance(sets, PredictionSets)
    new, generator = known_images(60, seed=2)[0], torch.Generator().manual_seed(1)
    parts = torch.cat([sets(new[rows], generator=generator) for rows in (slice(0, 25), slice(25, 60))])
    assert torch.equal(parts, sets(new, generator=torch.Generator().manual_seed(1)))


def test_classes_with_too_few_images_are_in_every_set() -> None:
    vlm, classes, (images, labels) = fitted(), known_classes(), known_images(300, seed=1)
    rows = torch.cat([(labels != 2).nonzero()[:, 0], (labels == 2).nonzero()[:3, 0]])
    with pytest.warns(BayesVLMWarning, match=r"1 of 5 classes have fewer than the 9 images.*every set: class 2 \(3\)"):
        sets = PredictionSets.calibrate(vlm, images[rows], labels[rows], classes, by_class=True)
    assert sets.always.tolist() == [False, False, True, False, False]
    assert bool(sets(known_images(40, seed=3)[0])[:, 2].all())
    assert "of each class" in repr(sets)
    assert "threshold" in sets._repr_html_()


@pytest.mark.parametrize("predictive", PREDICTIVES)
def test_a_selector_answers_above_its_threshold(predictive: Any) -> None:
    vlm, classes, (images, labels) = fitted(), known_classes(), known_images(400, seed=1, noise=0.5)
    selector = Selector.calibrate(vlm, images, labels, classes, 0.2, predictive=predictive)
    found = selector(images)
    assert 0 < selector.coverage == float(found.answered.double().mean())
    T = 1.0 if predictive == "plain" else predictive
    probs = vlm.classify(images, classes).probs if T == "bayes" else torch.softmax(vlm.logits(images, classes) / T, 1)
    assert torch.equal(found.labels, probs.argmax(dim=1))
    torch.testing.assert_close(found.confidence, probs.amax(dim=1))
    assert torch.equal(found.answered, found.confidence >= selector.threshold)
    assert torch.equal(selector.of(found.confidence, found.labels).answered, found.answered)
    assert len(found) == 400
    with pytest.raises(BayesVLMError, match="one number per input"):
        selector.of(found.confidence[1:], found.labels)


def test_a_selector_that_can_promise_nothing_says_so(tmp_path: Path) -> None:
    vlm, classes, (images, labels) = fitted(), known_classes(), known_images(200, seed=1)
    with pytest.warns(BayesVLMWarning, match="No threshold on msp .bayes. keeps a risk of 0.05"):
        selector = Selector.calibrate(vlm, images, labels.roll(1), classes)
    assert (selector.coverage, selector.threshold) == (0.0, math.inf)
    assert not selector(images).answered.any()
    again = Selector.load(selector.save(tmp_path), vlm, classes)
    assert again.threshold == math.inf
    assert "none" in again._repr_html_()


@pytest.mark.parametrize("predictive", PREDICTIVES)
def test_saved_loaded_pickled_and_printed(tmp_path: Path, predictive: Any) -> None:
    vlm, classes, new = fitted(), known_classes(), known_images(40, seed=2)[0]
    other = fitted().replace(tau=7.0)
    for made in each(vlm, predictive=predictive, source="new drawings"):
        file = made.save(tmp_path)
        assert file.suffix == ".json"
        assert made.save(tmp_path / "alpha-0.05").parent == tmp_path / "alpha-0.05"  # a folder, no suffix
        assert file.with_suffix(".safetensors").exists()
        for again in (
            type(made).load(tmp_path, vlm, classes),
            type(made).load(file, vlm, classes),
            pickle.loads(pickle.dumps(made)),
        ):
            assert repr(again) == repr(made)
            assert "400 images of 'new drawings'" in repr(again)
            first, second = made(new), again(new)
            parts = [vars(each) for each in (first, second)] if not isinstance(first, torch.Tensor) else []
            if parts:
                assert all(torch.equal(parts[0][name], parts[1][name]) for name in parts[0])
            else:
                assert torch.equal(first, second)  # type: ignore[arg-type]
        assert "new drawings" in made._repr_html_()
        assert "\n" not in repr(made)
        if predictive == "bayes":
            with pytest.raises(BayesVLMError, match=r"calibrated with tau = 0\.1, and it is 7\.0 here"):
                type(made).load(file, other, classes)
            with pytest.raises(BayesVLMError, match="no posterior yet"):
                type(made).load(file, vlm.without_posterior().replace(tau=0.1), classes)
        else:
            type(made).load(file, other, classes)  # tau has no part in it
            again = type(made).load(file, vlm.without_posterior(), classes)
            assert repr(again) == repr(made)
        with pytest.raises(BayesVLMError, match="given as Features"):
            type(made).load(file, vlm)
        with pytest.raises(BayesVLMError, match="for other classes than these"):
            type(made).load(file, vlm, classes[[1, 0, 2, 3, 4]])
        with pytest.raises(BayesVLMError, match="for 5 classes, and 4 are given"):
            type(made).load(file, vlm, classes[:4])
        generator = torch.Generator().manual_seed(77)
        stranger = BayesVLM.from_projections(draw(generator, 8, 12), draw(generator, 8, 12), 2.3)
        stranger.fit([(Features(draw(generator, 50, 12)), Features(draw(generator, 50, 12)))], progress=False)
        with pytest.raises(BayesVLMError, match="calibrated for another model"):
            type(made).load(file, stranger, classes)


def test_a_calibration_does_not_change_with_the_model() -> None:
    vlm, new = fitted(), known_images(40, seed=2)[0]
    detector = each(vlm)[0]
    assert isinstance(detector, Detector)
    before = detector(new).familiarity
    vlm.tune(*known_images(100, seed=5), known_classes(), progress=False)
    assert torch.equal(detector(new).familiarity, before)


def test_with_names_templates_and_negatives(tmp_path: Path) -> None:
    vlm = BayesVLM.from_pretrained(save_tiny_clip(tmp_path / "model"), device="cpu")
    generator = torch.Generator().manual_seed(0)
    images = list(torch.randint(0, 256, (30, 3, 40, 40), generator=generator).to(torch.uint8))
    names, labels = {"dog": ["a dog", "the dog"], "cat": "a cat"}, ["dog", "cat"] * 15
    vlm.fit([(images, [f"a {label} {k}" for k, label in enumerate(labels)])], progress=False)
    options: dict[str, Any] = {"templates": ["a drawing of {c}", "{c}!"], "progress": False}
    for negatives in (["the sun", "the sea"], vlm.class_features(["the sun", "the sea"])):
        detector = Detector.calibrate(vlm, images, names, 0.1, "neglabel", negatives=negatives, **options)
        folder = detector.save(tmp_path / "detector").parent
        for again in (Detector.load(folder, vlm), Detector.load(folder, vlm, names, templates=options["templates"])):
            new, then = again(images).familiarity, detector(images).familiarity
            torch.testing.assert_close(new, then, atol=1e-5, rtol=1e-4)  # of texts encoded in other batches
    sets = PredictionSets.calibrate(vlm, images, labels, names, 0.2, **options)
    again = PredictionSets.load(sets.save(tmp_path / "sets.json"), vlm)
    assert again.classes == ("dog", "cat")
    assert again.names_of(torch.tensor([[True, False], [True, True], [False, False]])) == [["dog"], ["dog", "cat"], []]
    with pytest.raises(BayesVLMError, match=r"'rabbit'.* are not among the 2 classes"):
        PredictionSets.calibrate(vlm, images, ["rabbit", *labels[1:]], names, 0.2, **options)
    with pytest.raises(BayesVLMError, match="class 1 is 'cat' there and 'sun' here"):
        PredictionSets.load(tmp_path / "sets.json", vlm, ["dog", "sun"])
    with pytest.raises(BayesVLMError, match=r"prediction-sets.json does not exist"):
        PredictionSets.load(tmp_path, vlm)
    with pytest.raises(BayesVLMError, match="holds prediction sets, not detector"):
        Detector.load(tmp_path / "sets.json", vlm)


def test_bad_input_is_one_sentence() -> None:
    vlm, classes, (images, labels) = fitted(), known_classes(), known_images(100, seed=1)
    for alpha in (0, 1, -0.1, 1.5, math.nan, "5 %", None, True):
        with pytest.raises(BayesVLMError, match=r"false_alarms=.*between 0 and 1, such as 0.05"):
            Detector.calibrate(vlm, images, classes, alpha)  # type: ignore[arg-type]
        with pytest.raises(BayesVLMError, match=r"miss=.*between 0 and 1, such as 0.1"):
            PredictionSets.calibrate(vlm, images, labels, classes, alpha)  # type: ignore[arg-type]
        with pytest.raises(BayesVLMError, match=r"risk=.*between 0 and 1, such as 0.05"):
            Selector.calibrate(vlm, images, labels, classes, alpha)  # type: ignore[arg-type]
    with pytest.raises(BayesVLMError, match="confidence=95"):
        Selector.calibrate(vlm, images, labels, classes, confidence=95)
    with pytest.raises(
        BayesVLMError, match=r"There are 100 calibration images, and a false-alarm rate of 0.001 needs 999"
    ):
        Detector.calibrate(vlm, images, classes, 0.001)
    with pytest.raises(BayesVLMError, match=r"There are 8 calibration images, and a miss rate of 0.1 needs 9 at least"):
        PredictionSets.calibrate(vlm, images[:8], labels[:8], classes)
    with pytest.raises(
        BayesVLMError, match=f"a risk of 0.01 with a confidence of 0.95 needs {fewest_answers(0.01, 0.95)}"
    ):
        Selector.calibrate(vlm, images, labels, classes, 0.01)
    with pytest.raises(BayesVLMError, match="There are 0 calibration images"):
        Detector.calibrate(vlm, images[:0], classes)
    alike = Features(images.activations[:1].repeat(50, 1))
    with pytest.raises(BayesVLMError, match="'entropy' of all 50 calibration images is -"):
        Detector.calibrate(vlm, alike, classes)
    with pytest.raises(BayesVLMError, match="'msp' of all 100 calibration images is 1, so"):
        Selector.calibrate(vlm, images, labels * 0, classes[:1])
    with pytest.raises(BayesVLMError, match="The probability of the label of all 50"):
        PredictionSets.calibrate(vlm, alike, labels[:50] * 0, classes, kind="lac")
    with pytest.raises(BayesVLMError, match="Labels run from 0 to 4, but there are 3 classes"):
        PredictionSets.calibrate(vlm, images, labels, classes[:3])
    with pytest.raises(BayesVLMError, match="100 inputs and 99 labels"):
        Selector.calibrate(vlm, images, labels[1:], classes, 0.2)
    with pytest.raises(BayesVLMError, match="kind='naps' is not known; use 'lac', 'aps' or 'raps'"):
        PredictionSets.calibrate(vlm, images, labels, classes, kind="naps")  # type: ignore[arg-type]
    with pytest.raises(BayesVLMError, match="penalty=-1"):
        PredictionSets.calibrate(vlm, images, labels, classes, penalty=-1)
    with pytest.raises(BayesVLMError, match="source=3"):
        PredictionSets.calibrate(vlm, images, labels, classes, predictive="plain", source=3)  # type: ignore[arg-type]
    with pytest.raises(BayesVLMError, match="seed is -1"):
        PredictionSets.calibrate(vlm, images, labels, classes, seed=-1)
    with pytest.raises(BayesVLMError, match="this model has none; fit or load one, or take predictive='plain'"):
        Selector.calibrate(vlm.without_posterior(), images, labels, classes, score="mcm")
    Detector.calibrate(vlm.without_posterior(), images, classes, score="mcm")
    detector, sets, _ = each(vlm)
    assert isinstance(detector, Detector)
    assert isinstance(sets, PredictionSets)
    with pytest.raises(BayesVLMError, match="scores holds NaN"):
        detector.of(torch.tensor([math.nan]))
    with pytest.raises(BayesVLMError, match=r"probs is \[3, 4\] and the sets are of 5 classes"):
        sets.of_probs(torch.full((3, 4), 0.25))
    with pytest.raises(BayesVLMError, match="have no names"):
        sets.names_of(torch.ones(1, C, dtype=torch.bool))


def test_files_that_hold_something_else(tmp_path: Path) -> None:
    vlm, classes = fitted(), known_classes()
    for made in each(vlm):
        file = made.save(tmp_path)
        whole, tensors = json.loads(file.read_text()), load_file(file.with_suffix(".safetensors"))

        def refused(message: str, file: Path = file, made: Any3 = made) -> None:
            with pytest.raises(BayesVLMError, match=message):
                type(made).load(file, vlm, classes)

        for name, value in (
            ("false_alarms", 2),
            ("miss", "x"),
            ("risk", None),
            ("kind", "x"),
            ("seed", -1),
            ("rank", "x"),
            ("penalty", -1),
            ("by_class", 3),
            ("score", "odin"),
            ("predictive", "map"),
            ("predictive", None),
            ("source", 3),
        ):
            if name in whole:
                file.write_text(json.dumps(whole | {name: value}))
                refused("is damaged")
        file.write_text(json.dumps({name: whole[name] for name in whole if name != "predictive"}))
        refused("no entry 'predictive'")
        file.write_text(json.dumps(whole | {"tensors_sha256": "0"}))
        refused("is not the file that was saved with")
        file.write_text(json.dumps(whole))
        save_file(
            {name: value + 0 for name, value in tensors.items()} | {"more": torch.zeros(1)},
            file.with_suffix(".safetensors"),
        )
        refused("is not the file that was saved with")
        file.with_suffix(".safetensors").write_bytes(b"nothing of the kind")
        refused("not a readable safetensors file")
        file.with_suffix(".safetensors").unlink()
        refused("does not exist")


def test_a_score_of_cosines_alone_is_not_called_bayesian() -> None:
    vlm, (images, labels), classes = fitted(), known_images(100), known_classes()
    assert "by mcm: below" in repr(Detector.calibrate(vlm, images, classes, score="mcm"))
    assert "by entropy (bayes): below" in repr(Detector.calibrate(vlm, images, classes))
    chosen = Selector.calibrate(vlm, images, labels, classes, 0.5, score="mcm")
    assert "by mcm (bayes)" in repr(chosen), "the answers are"


def test_sets_of_many_images_are_those_of_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    vlm, (images, labels), classes = fitted(), known_images(300), known_classes()
    sets = PredictionSets.calibrate(vlm, images, labels, classes, 0.2)
    whole = sets(images)
    assert torch.equal(sets.of_probs(sets.basis.scorer.probs(images)), whole)
    few = partial(row_blocks, numbers=7 * C)
    monkeypatch.setattr(prediction_sets, "row_blocks", lambda count, width, numbers: few(count, width))
    again = PredictionSets.calibrate(vlm, images, labels, classes, 0.2)
    torch.testing.assert_close(again.scores, sets.scores, rtol=1e-9, atol=1e-12)
    assert int((again(images) != whole).sum()) <= 1, "but for rounding at the threshold"
