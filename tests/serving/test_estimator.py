"""A BayesVLM as a scikit-learn classifier: its conventions, its tools, and the same numbers as `classify`."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from datetime import date
from io import BytesIO
from pathlib import Path
from typing import Any

import joblib
import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV, CalibrationDisplay, calibration_curve
from sklearn.ensemble import VotingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import _safe_indexing
from sklearn.utils.estimator_checks import parametrize_with_checks

from bayesvlm import BayesVLM, BayesVLMError, Features, world
from bayesvlm.core.errors import BayesVLMWarning
from bayesvlm.evaluation import nlpd
from bayesvlm.serving import BayesianZeroShotClassifier
from bayesvlm.serving.estimator import _loaded

from .any_width import AnyWidthVLM

mpl.use("Agg")
pytestmark = [
    pytest.mark.filterwarnings("ignore:The best tau"),  # a handful of images
    pytest.mark.filterwarnings("ignore:There are no labels, so"),  # classes in the order of the world
    pytest.mark.filterwarnings("ignore:y holds numbers and"),  # which count them in that order
]

# scikit-learn's own checks --------------------------------------------------------------------------------------------

EXCLUDED = {
    "check_estimators_overwrite_params": "it compares parameters by joblib.hash, which differs between equal tensors "
    "of torch; test_fit_changes_no_parameter compares them by value",
}
"""Checks of scikit-learn that cannot pass, and why; one that passes all the same is an error."""


@parametrize_with_checks(
    [BayesianZeroShotClassifier(AnyWidthVLM.fitted_on_noise(), templates="{c}")],
    expected_failed_checks=lambda _: EXCLUDED,
    xfail_strict=True,
)
def test_scikit_learn_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def test_why_a_check_is_excluded_is_true() -> None:
    tensor = torch.ones(3)
    assert joblib.hash(tensor) != joblib.hash(copy.deepcopy(tensor))


def test_fit_changes_no_parameter(emoji: BayesVLM, drawings: Drawings) -> None:
    before = pickle.dumps(emoji.settings), emoji.tau, emoji.factors["image"].A.clone()
    classifier = BayesianZeroShotClassifier(emoji, drawings.classes, link="centred").fit(drawings.features, drawings.y)
    assert classifier.model is emoji
    assert classifier.model_.tau != emoji.tau
    assert (pickle.dumps(emoji.settings), emoji.tau) == before[:2]
    assert torch.equal(emoji.factors["image"].A, before[2])
    classifier.fit([drawings.pairs])
    assert torch.equal(emoji.factors["image"].A, before[2])
    assert not torch.equal(classifier.model_.factors["image"].A, before[2])


# What is classified ---------------------------------------------------------------------------------------------------


class Drawings:
    """Drawings of ten dishes in five styles, which are easy for the embedded model, but not too easy."""

    def __init__(self, vlm: BayesVLM, classes: int = 10) -> None:
        styles = ("openmoji-black", "openmoji-colour", "fluent-high-contrast", "emojione-black", "emojione-colour")
        splits = [world.load(style).group("food-drink") for style in styles]
        self.classes = splits[0].classes[:classes]
        assert self.classes != tuple(sorted(self.classes))
        rows = [
            (image, self.classes.index(split.classes[label]))
            for split in splits
            for image, label in zip(split.images, split.labels, strict=True)
            if split.classes[label] in self.classes
        ]
        self.images = [image for image, _ in rows]
        self.y = np.array([label for _, label in rows])
        self.names = np.array(self.classes)[self.y]
        self.features = vlm.image_features(self.images)
        self.table = self.features.activations.numpy()
        self.pairs = (self.images, [f"a drawing of {name}" for name in self.names])


@pytest.fixture(scope="module")
def emoji() -> BayesVLM:
    return BayesVLM.from_pretrained("emoji-clip", device="cpu")


@pytest.fixture(scope="module")
def drawings(emoji: BayesVLM) -> Drawings:
    return Drawings(emoji)


@pytest.fixture
def ready(emoji: BayesVLM, drawings: Drawings) -> BayesianZeroShotClassifier:
    return BayesianZeroShotClassifier(emoji, drawings.classes).fit()


def test_probabilities_are_those_of_classify(emoji: BayesVLM, drawings: Drawings, tmp_path: Path) -> None:
    classifier = BayesianZeroShotClassifier(emoji, drawings.classes).fit()
    expected = emoji.classify(drawings.images[:6], drawings.classes).probs.double().numpy()
    pictures = [Image.open(BytesIO(image)).convert("RGB") for image in drawings.images[:6]]
    paths = [tmp_path / f"{place}.png" for place in range(6)]
    for picture, path in zip(pictures, paths, strict=True):
        picture.save(path)
    flat = Features(drawings.features.activations[:6])
    of_pictures = emoji.classify(pictures, drawings.classes).probs.numpy()
    given = {
        "list": drawings.images[:6],
        "tuple": tuple(drawings.images[:6]),
        "objects": np.array(drawings.images[:6], dtype=object),
        "column of an array": np.array(drawings.images[:6], dtype=object)[:, None],
        "series": pd.Series(drawings.images[:6], index=range(7, 13)),
        "table": pd.DataFrame({"image": drawings.images[:6]}),
        "features": drawings.features[:6],
        "activations": drawings.table[:6],
        "table of activations": pd.DataFrame(drawings.table[:6]),
        "lists of activations": drawings.table[:6].tolist(),
        "tensor": flat.activations,
        "pictures": pictures,
        "paths": [str(path) for path in paths],
        "array of paths": np.array([str(path) for path in paths]),
        "path objects": paths,
        "array of images": np.stack([np.asarray(picture) for picture in pictures]),
        "tensor of images": torch.stack([torch.from_numpy(np.array(picture)).movedim(2, 0) for picture in pictures]),
        "generator": iter(drawings.images[:6]),
    }
    for kind, X in given.items():
        probs = classifier.predict_proba(X)
        assert probs.dtype == np.float64, kind
        np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-12)
        # Opaque white instead of transparent, so that what is decoded again is compared with itself.
        reference = of_pictures if any(word in kind for word in ("picture", "path", "of images")) else expected
        np.testing.assert_allclose(probs, reference, atol=2e-5, err_msg=kind)
    log = classifier.predict_log_proba(drawings.features)
    np.testing.assert_allclose(np.exp(log), classifier.predict_proba(drawings.features))


def test_grey_images_in_an_array(ready: BayesianZeroShotClassifier, emoji: BayesVLM, drawings: Drawings) -> None:
    grey = np.random.default_rng(0).integers(0, 255, (3, 20, 30), dtype=np.uint8)
    expected = emoji.classify(list(grey), drawings.classes).probs.numpy()
    np.testing.assert_allclose(ready.predict_proba(grey), expected, atol=2e-5)


def test_a_later_fit_forgets_the_table_of_an_earlier_one(emoji: BayesVLM, drawings: Drawings) -> None:
    classifier = BayesianZeroShotClassifier(emoji, drawings.classes).fit(pd.DataFrame(drawings.table).add_prefix("phi"))
    assert classifier.n_features_in_ == 256
    assert classifier.feature_names_in_[0] == "phi0"
    for given in ((), (drawings.images[:2],)):
        assert not hasattr(classifier.fit(drawings.table).fit(*given), "n_features_in_")


def test_siglip_and_a_model_that_predicts_its_variances(drawings: Drawings) -> None:
    for name in ("emoji-siglip", "emoji-prolip"):
        vlm = BayesVLM.from_pretrained(name, device="cpu")
        features = vlm.image_features(drawings.images)
        classifier = BayesianZeroShotClassifier(vlm, drawings.classes).fit(features, drawings.y)
        expected = classifier.model_.classify(features, drawings.classes).probs.numpy()
        np.testing.assert_allclose(classifier.predict_proba(features), expected, atol=1e-5)
        assert classifier.model_.predicts_variance == (name == "emoji-prolip")  # no tau there: fit(X, y) learns nothing


# What fit learns ------------------------------------------------------------------------------------------------------


def test_labels_choose_tau(emoji: BayesVLM, drawings: Drawings) -> None:
    tuned = emoji.copy().tune(drawings.features, torch.from_numpy(drawings.y), drawings.classes)
    for y in (drawings.y, drawings.names, list(drawings.names), pd.Series(drawings.names, dtype="category")):
        classifier = BayesianZeroShotClassifier(emoji, drawings.classes).fit(drawings.features, y)
        assert classifier.model_.tau == pytest.approx(tuned.tau, rel=1e-3)
    kept = BayesianZeroShotClassifier(emoji, drawings.classes, tune=False).fit(drawings.features, drawings.y)
    assert kept.model_.tau == emoji.tau
    mean = BayesianZeroShotClassifier(emoji, drawings.classes, method="mean").fit(drawings.features, drawings.y)
    assert mean.model_.tau == emoji.tau
    plain = emoji.plain(drawings.features, drawings.classes).numpy()
    np.testing.assert_allclose(mean.predict_proba(drawings.features), plain, atol=1e-5)


def test_pairs_estimate_a_posterior(emoji: BayesVLM, drawings: Drawings) -> None:
    bare = emoji.without_posterior()
    fitted = bare.copy().fit([drawings.pairs], negatives=20)
    for pairs in ([drawings.pairs], iter([drawings.pairs]), ((a, b) for a, b in [drawings.pairs])):
        classifier = BayesianZeroShotClassifier(bare, drawings.classes, negatives=20).fit(pairs)
        for tower in ("image", "text"):
            torch.testing.assert_close(classifier.model_.factors[tower].B, fitted.factors[tower].B)
    assert not bare.fitted


def test_images_without_labels_teach_nothing(emoji: BayesVLM, drawings: Drawings) -> None:
    classifier = BayesianZeroShotClassifier(emoji, drawings.classes).fit(drawings.images)
    np.testing.assert_array_equal(classifier.classes_, drawings.classes)
    assert classifier.model_.tau == emoji.tau


def test_templates_and_synonyms(emoji: BayesVLM, drawings: Drawings) -> None:
    templates = ["{c}", "a drawing of a {c}"]
    expected = emoji.classify(drawings.features, drawings.classes, templates=templates).probs.numpy()
    classifier = BayesianZeroShotClassifier(emoji, drawings.classes, templates=templates).fit()
    np.testing.assert_allclose(classifier.predict_proba(drawings.features), expected, atol=1e-5)
    synonyms = {"grape": ["grapes", "bunch of grapes"], "melon": "watermelon"}
    classifier = BayesianZeroShotClassifier(emoji, synonyms).fit(drawings.features, ["melon"] * len(drawings.y))
    expected = classifier.model_.classify(drawings.features, synonyms).probs.numpy()
    np.testing.assert_allclose(classifier.predict_proba(drawings.features), expected, atol=1e-5)
    np.testing.assert_array_equal(classifier.classes_, ["grape", "melon"])


# Labels ---------------------------------------------------------------------------------------------------------------


def test_classes_follow_the_labels(emoji: BayesVLM, drawings: Drawings) -> None:
    given = emoji.classify(drawings.features, drawings.classes).probs.numpy()
    in_order = np.argsort(drawings.classes)
    keyed = {3 * place: name for place, name in reversed([*enumerate(drawings.classes)])}
    cases: list[tuple[Any, Any, Any, Any]] = [  # classes, y, classes_, order of the columns
        (drawings.classes, None, drawings.classes, np.arange(10)),
        (drawings.classes, drawings.names, sorted(drawings.classes), in_order),
        (drawings.classes, drawings.names.astype(object), sorted(drawings.classes), in_order),
        (None, drawings.names, sorted(drawings.classes), in_order),
        (np.array(drawings.classes), drawings.y, np.arange(10), np.arange(10)),
        (drawings.classes, drawings.y.astype(np.uint8), np.arange(10, dtype=np.uint8), np.arange(10)),
        (drawings.classes, drawings.y.astype(float), np.arange(10.0), np.arange(10)),
        (drawings.classes, list(map(int, drawings.y)), np.arange(10), np.arange(10)),
        (drawings.classes, torch.from_numpy(drawings.y), np.arange(10), np.arange(10)),
        (emoji.class_features(drawings.classes), drawings.y, np.arange(10), np.arange(10)),
        (emoji.class_features(drawings.classes), None, np.arange(10), np.arange(10)),
        (keyed, 3 * drawings.y, 3 * np.arange(10), np.arange(10)),
        (keyed, None, 3 * np.arange(10), np.arange(10)),
    ]
    for classes, y, expected, order in cases:
        classifier = BayesianZeroShotClassifier(emoji, classes, tune=False).fit(drawings.features, y)
        np.testing.assert_array_equal(classifier.classes_, expected)
        np.testing.assert_allclose(classifier.predict_proba(drawings.features), given[:, order], atol=1e-5)
        predicted = classifier.predict(drawings.features)
        np.testing.assert_array_equal(predicted, np.asarray(expected)[given[:, order].argmax(axis=1)])
        if isinstance(y, np.ndarray):
            assert predicted.dtype.kind == y.dtype.kind


def test_score_takes_names_and_numbers(ready: BayesianZeroShotClassifier, emoji: BayesVLM, drawings: Drawings) -> None:
    weights = np.linspace(0, 1, len(drawings.y))
    expected = accuracy_score(drawings.names, ready.predict(drawings.features), sample_weight=weights)
    assert 0.3 < expected < 0.95
    by_number = BayesianZeroShotClassifier(emoji, drawings.classes, tune=False).fit(drawings.features, drawings.y)
    by_name = clone(by_number).fit(drawings.features, drawings.names)
    for classifier in (ready, by_number, by_name):
        for y in (drawings.names, drawings.y):
            assert classifier.score(drawings.features, y, sample_weight=weights) == pytest.approx(expected)


def test_numbers_that_scikit_learn_made_of_names_are_not_taken_for_places(emoji: BayesVLM, drawings: Drawings) -> None:
    for tune in (True, False):
        unsorted = BayesianZeroShotClassifier(emoji, drawings.classes, tune=tune)
        with pytest.raises(BayesVLMError, match=r"alphabetical order.*sorted\(classes\)"):
            cross_val_predict(unsorted, drawings.features, drawings.names, cv=2, method="predict_proba")
        cross_val_predict(unsorted, drawings.features, drawings.y, cv=2, method="predict_proba")


# Its tools ------------------------------------------------------------------------------------------------------------


def test_cross_validation(emoji: BayesVLM, drawings: Drawings) -> None:
    folds = StratifiedKFold(3)
    by_hand = []
    for train, test in folds.split(drawings.y, drawings.y):
        tuned = emoji.copy().tune(drawings.features[train], torch.from_numpy(drawings.y[train]), drawings.classes)
        probs = tuned.classify(drawings.features[test], drawings.classes).probs
        by_hand.append(-nlpd(probs, torch.from_numpy(drawings.y[test])).value)
    score: dict[str, Any] = {"cv": folds, "scoring": "neg_log_loss"}
    classifier = BayesianZeroShotClassifier(emoji, drawings.classes)
    for X, y in (
        (drawings.images, drawings.y),
        (drawings.features, drawings.names),
        (drawings.table, drawings.names),
        (pd.DataFrame({"image": drawings.images}), pd.Series(drawings.names)),
    ):
        np.testing.assert_allclose(cross_val_score(classifier, X, y, **score), by_hand, rtol=1e-3)
    accuracy = cross_val_score(classifier, drawings.features, drawings.y, cv=folds)
    assert accuracy.mean() > 0.5
    unnamed = BayesianZeroShotClassifier(emoji)  # whose classes are the labels
    np.testing.assert_allclose(cross_val_score(unnamed, drawings.features, drawings.names, **score), by_hand, rtol=1e-3)


def test_cross_val_predict_gives_columns_in_the_order_of_the_labels(emoji: BayesVLM, drawings: Drawings) -> None:
    names = sorted(drawings.classes)
    classifier = BayesianZeroShotClassifier(emoji, names, tune=False)
    probs = cross_val_predict(classifier, drawings.features, drawings.names, cv=2, method="predict_proba")
    np.testing.assert_allclose(probs, emoji.classify(drawings.features, names).probs.numpy(), atol=1e-5)
    expected = nlpd(torch.from_numpy(probs), torch.from_numpy(np.searchsorted(names, drawings.names))).value
    assert log_loss(drawings.names, probs) == pytest.approx(expected)
    predicted = cross_val_predict(classifier, drawings.features, drawings.names, cv=2)
    np.testing.assert_array_equal(predicted, np.array(names)[probs.argmax(axis=1)])


@pytest.mark.parametrize("labels", ["names", "numbers"])
def test_calibration_display(emoji: BayesVLM, drawings: Drawings, labels: str) -> None:
    pair = ("tangerine", "peach")
    rows = np.flatnonzero(np.isin(drawings.names, pair))
    X, y = drawings.features[rows], drawings.names[rows]
    if labels == "numbers":
        y = (y == "peach").astype(int)
    classifier = BayesianZeroShotClassifier(emoji, pair).fit(X, y)
    positive = classifier.classes_[1]
    p = classifier.predict_proba(X)[:, 1]
    true, predicted = calibration_curve(y, p, pos_label=positive, n_bins=4)
    shown = CalibrationDisplay.from_estimator(classifier, X, y, n_bins=4)
    np.testing.assert_allclose(shown.prob_true, true)
    np.testing.assert_allclose(shown.prob_pred, predicted)
    shown = CalibrationDisplay.from_predictions(y, p, pos_label=positive, n_bins=4)
    np.testing.assert_allclose(shown.prob_pred, predicted)
    unasked = BayesianZeroShotClassifier(emoji, pair).fit()
    assert CalibrationDisplay.from_estimator(unasked, X, drawings.names[rows]).pos_label == "peach"


def test_grid_search_and_pipeline(emoji: BayesVLM, drawings: Drawings) -> None:
    tried = {"zeroshot__templates": [None, "{c} {c}"], "zeroshot__method": ["probcosine", "mean"]}
    steps = make_pipeline(FunctionTransformer(), BayesianZeroShotClassifier(emoji, drawings.classes))
    steps.steps[1] = ("zeroshot", steps.steps[1][1])
    search = GridSearchCV(steps, tried, cv=2, scoring="neg_log_loss").fit(drawings.features, drawings.y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert len(set(search.cv_results_["mean_test_score"].round(6))) == 4
    again = clone(steps).set_params(**search.best_params_)
    best = cross_val_score(again, drawings.features, drawings.y, cv=2, scoring="neg_log_loss").mean()
    assert search.best_score_ == pytest.approx(best)
    assert search.predict(drawings.features).shape == drawings.y.shape


def test_ensembles_and_calibration(emoji: BayesVLM, drawings: Drawings) -> None:
    names = sorted(drawings.classes)
    one = BayesianZeroShotClassifier(emoji, names, tune=False)
    other = clone(one).set_params(templates="a drawing of a {c}")
    both = VotingClassifier([("one", one), ("other", other)], voting="soft").fit(drawings.features, drawings.names)
    mean = sum(clone(each).fit().predict_proba(drawings.features) for each in (one, other)) / 2
    np.testing.assert_allclose(both.predict_proba(drawings.features), mean, atol=1e-12)
    frozen = FrozenEstimator(BayesianZeroShotClassifier(emoji, names).fit())
    before = frozen.score(drawings.features, drawings.names)
    for method in ("temperature", "sigmoid"):
        calibrated = CalibratedClassifierCV(frozen, method=method, cv=2).fit(drawings.features, drawings.names)
        assert calibrated.score(drawings.features, drawings.names) > before - 0.1


def test_columns_that_are_not_in_alphabetical_order_are_announced(emoji: BayesVLM, drawings: Drawings) -> None:
    classifier = BayesianZeroShotClassifier(emoji, drawings.classes, tune=False)
    with pytest.warns(BayesVLMWarning, match=r"as given.*sorted\(classes\)"):
        classifier.fit()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classifier.fit(drawings.features, drawings.names)
        clone(classifier).set_params(classes=sorted(drawings.classes)).fit()
        clone(classifier).set_params(classes=dict(enumerate(drawings.classes))).fit()


@pytest.mark.parametrize("keys", [(0, "b"), (0, None), (None, "b"), ((0, 1), (0, 2)), (0, float("nan")), (1j, 2j)])
def test_labels_of_classes_are_of_one_kind(emoji: BayesVLM, keys: tuple[Any, Any]) -> None:
    with pytest.raises(BayesVLMError, match=r"The labels in classes are .*all as numbers or all as names"):
        BayesianZeroShotClassifier(emoji, dict(zip(keys, ("dog", "cat"), strict=True))).fit()


@pytest.mark.parametrize("keys", [(2.5, 1), (True, False), (np.int64(3), 1), (date(2026, 2, 1), date(2026, 1, 1))])
def test_labels_of_classes_may_be_numbers_or_what_has_an_order(emoji: BayesVLM, keys: tuple[Any, Any]) -> None:
    classifier = BayesianZeroShotClassifier(emoji, dict(zip(keys, ("dog", "cat"), strict=True))).fit()
    assert classifier.classes_.tolist() == sorted(keys)


@pytest.mark.filterwarnings("default:y holds numbers and")
def test_numbers_for_names_out_of_order_are_announced_however_few_images_there_are(
    emoji: BayesVLM, drawings: Drawings
) -> None:
    for rows in (slice(None), slice(0, 4)):
        X, y = drawings.features[rows], drawings.y[rows]
        for tune in (True, False):
            classifier = BayesianZeroShotClassifier(emoji, drawings.classes, tune=tune)
            with pytest.warns(BayesVLMWarning, match=r"y holds numbers.*\{number: name\}"):
                classifier.fit(X, y)
            with warnings.catch_warnings():
                warnings.filterwarnings("error", "y holds numbers")
                clone(classifier).set_params(classes=dict(enumerate(drawings.classes))).fit(X, y)
                clone(classifier).set_params(classes=sorted(drawings.classes)).fit(X, y)
                clone(classifier).set_params(classes=emoji.class_features(drawings.classes)).fit(X, y)


def test_tables_in_bfloat16(emoji: BayesVLM, drawings: Drawings) -> None:
    classifier = BayesianZeroShotClassifier(emoji, drawings.classes).fit()
    table = drawings.features.activations.to(torch.bfloat16)
    expected = classifier.predict_proba(table.float())
    for X in (table, list(table), drawings.features.to(torch.bfloat16)):
        np.testing.assert_allclose(classifier.predict_proba(X), expected, atol=0.05)


def test_cleanlab_finds_flipped_labels(emoji: BayesVLM) -> None:
    from cleanlab.filter import find_label_issues

    many = Drawings(emoji, classes=50)
    probs = BayesianZeroShotClassifier(emoji, many.classes).fit().predict_proba(many.features)
    sure = np.flatnonzero((probs.argmax(axis=1) == many.y) & (probs.max(axis=1) > 0.5))
    assert len(sure) > 80
    true, p = many.y[sure], probs[sure]
    found, wrongly = [], []
    for seed in range(5):
        flipped = np.random.default_rng(seed).permutation(len(true))[: len(true) // 10]
        given = true.copy()
        given[flipped] = (given[flipped] + 1) % len(many.classes)
        issues = find_label_issues(given, p)
        found.append(issues[flipped].mean())
        wrongly.append(np.delete(issues, flipped).mean())
    assert np.mean(found) > 0.6  # 0.8 of them; chance is 0.1
    assert np.mean(wrongly) < 0.05


# What it says of its doubt --------------------------------------------------------------------------------------------


def test_uncertainty(ready: BayesianZeroShotClassifier, emoji: BayesVLM, drawings: Drawings) -> None:
    p = emoji.classify(drawings.features, drawings.classes)
    said = ready.predict_uncertainty(drawings.features)
    table = pd.DataFrame(said)
    assert list(table) == ["entropy", "epistemic", "aleatoric", "std"]
    assert len(table) == len(drawings.y)
    np.testing.assert_allclose(said.entropy, p.entropy.numpy(), rtol=1e-4)
    np.testing.assert_allclose(said.epistemic, p.epistemic.numpy(), atol=1e-4)
    np.testing.assert_allclose(said.epistemic + said.aleatoric, said.entropy, atol=1e-5)
    rows = torch.arange(len(p))
    np.testing.assert_allclose(said["std"], p.variance[rows, p.labels].sqrt().numpy(), rtol=1e-4)
    names = ready.fit(drawings.features, drawings.names).prediction(drawings.features[:2])
    assert names.classes == tuple(sorted(drawings.classes))


# Copies, pickles, and models by name ----------------------------------------------------------------------------------


def test_clones_share_the_encoder_and_pickles_work(emoji: BayesVLM, drawings: Drawings) -> None:
    classifier = BayesianZeroShotClassifier(emoji, drawings.classes)
    copied = clone(classifier)
    assert copied.model is not emoji
    assert copied.model.adapter is emoji.adapter
    assert copied.model.tau == emoji.tau
    assert len(pickle.dumps(BayesianZeroShotClassifier("emoji-clip", drawings.classes))) < 1000
    fitted = classifier.fit(drawings.features, drawings.names)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_allclose(again.predict_proba(drawings.images), fitted.predict_proba(drawings.images), atol=1e-5)
    assert "BayesianZeroShotClassifier" in fitted._repr_html_()


def test_a_model_is_loaded_once_per_name(drawings: Drawings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _loaded.cache_clear()
    folder = tmp_path / "posterior"
    BayesVLM.from_pretrained("emoji-clip", device="cpu").save_pretrained(folder)
    asked, load = [], BayesVLM.from_pretrained
    monkeypatch.setattr(
        BayesVLM, "from_pretrained", lambda name, **options: asked.append(name) or load(name, **options)
    )
    classifier = BayesianZeroShotClassifier(str(folder), drawings.classes, device="cpu")
    cross_val_score(classifier, drawings.features, drawings.y, cv=3)
    assert asked == [str(folder)]
    assert classifier.fit().model_.tau == pytest.approx(classifier.fit(drawings.features, None).model_.tau)
    load(folder, device="cpu").replace(tau=7.0).save_pretrained(folder)  # as a new fit would
    assert classifier.fit().model_.tau == 7.0
    assert len(asked) == 2
    _loaded.cache_clear()


def test_scikit_learn_slices_features_in_one_go(drawings: Drawings) -> None:
    for rows in ([3, 1], np.array([0, 4]), slice(2, 5), np.arange(len(drawings.y)) % 2 == 0):
        chosen = _safe_indexing(drawings.features, rows)
        assert isinstance(chosen, Features)
        assert torch.equal(chosen.activations, drawings.features[rows].activations)


# Bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "fit", "said"),
    [
        ({}, ("images", ["grape", "pear"] * 23), r"none of the 10 classes .* has: 'grape'; spell them as in classes"),
        ({}, ("images", [0, 10] * 23), r"has: 10; number them from 0 to 9\.$"),
        ({"classes": {1: "cat", 5: "dog"}}, ("images", [1, 2] * 23), r"has: 2; use those that classes has\.$"),
        ({}, ("images", [0, 1]), "inconsistent numbers of samples"),
        ({}, ("images", [0.5, 1.5] * 23), "Unknown label type"),
        ({}, ("images", [float("nan"), 1] * 23), "NaN"),
        ({}, ([], []), "X is empty"),
        ({}, ("images", []), "y is empty"),
        ({}, (None, [0, 1]), "labels but no images"),
        ({}, ("one.png", None), r"X is one str.*\[X\]"),
        ({}, (["nowhere.png"] * 2, [0, 1]), r"images\[0\] \('nowhere.png'\) does not exist"),
        ({"classes": None}, (), "There are no classes: pass"),
        ({"classes": None}, ("images", [0, 1] * 23), r"numbers, .*pass classes=\[...\] in the order"),
        ({"classes": ["cat"]}, (), "There is one class only"),
        ({"classes": None}, ("images", ["cat"] * 46), "There is one class only"),
        ({"classes": "cat"}, (), "must be a list of class names"),
        ({"classes": ["cat", "cat"]}, (), "more than once"),
        ({"classes": Features(torch.ones(2, 256))}, ("images", ["cat", "dog"] * 23), "pass integers from 0"),
        ({"templates": "a photo"}, (), "no place for the class name"),
        ({"method": "plain"}, (), "method='plain' is not known"),
        ({"link": "logit"}, (), "link='logit' is not known"),
        ({"model": 3}, (), "model is a int; expected a BayesVLM"),
        ({"model": "emoji-clop"}, (), "did you mean .?emoji-clip"),
        ({"negatives": 0}, ("pairs",), "negatives"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_input_gets_a_sentence(
    emoji: BayesVLM, drawings: Drawings, given: dict[str, Any], fit: tuple[Any, ...], said: str
) -> None:
    parts: dict[str, Any] = {"images": drawings.images, "pairs": [drawings.pairs]}
    X = [parts[part] if isinstance(part, str) and part in parts else part for part in fit]
    classifier = BayesianZeroShotClassifier(**{"model": emoji, "classes": drawings.classes, **given})
    with pytest.raises(ValueError, match=said):
        classifier.fit(*X)


@pytest.mark.parametrize(
    ("X", "said"),
    [
        ([], "X is empty"),
        (np.zeros((0, 256)), "0 sample"),
        (None, "X is None; pass a list"),
        (np.zeros((8, 8, 3), np.uint8), r"one image.*X\[None\]"),
        (np.zeros((1, 1, 8, 8, 3), np.uint8), r"\[1, 1, 8, 8, 3\]; expected a list"),
        (np.zeros((4, 5)), "5 wide but this tower's projection takes 256"),
        (np.zeros(5), "Expected 2D array"),
        (np.array([b"a", b"b"]), "array of bytes"),
        (pd.DataFrame({"path": ["a.png"], "label": ["cat"]}), r"columns path, label; .*X\[\['path'\]\]"),
        (Image.new("RGB", (4, 4)), r"one Image.*\[X\]"),
        (5, "got int"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_bad_images_get_a_sentence(ready: BayesianZeroShotClassifier, X: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ready.predict(X)


def test_an_unreadable_image_is_named_by_its_place(ready: BayesianZeroShotClassifier, drawings: Drawings) -> None:
    with pytest.raises(BayesVLMError, match=r"images\[2\].*not an image"):
        ready.predict_proba([*drawings.images[:2], b"no image"])


def test_not_fitted_and_no_posterior(emoji: BayesVLM, drawings: Drawings) -> None:
    classifier = BayesianZeroShotClassifier(emoji.without_posterior(), drawings.classes)
    with pytest.raises(NotFittedError, match=r"call fit\(\)"):
        classifier.predict(drawings.images)
    for given in ((), (drawings.images, drawings.y)):
        with pytest.raises(BayesVLMError, match=r"no posterior yet; call fit\(pairs\)"):
            classifier.fit(*given)


def test_without_scikit_learn() -> None:
    program = """
import sys
sys.modules["sklearn"] = None
import bayesvlm.serving
assert "torch" not in sys.modules
from bayesvlm.serving import *
try:
    from bayesvlm.serving import BayesianZeroShotClassifier
except ValueError as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "`pip install 'bayesvlm[sklearn]'`" in ran.stdout, ran.stderr
    assert ran.stdout.count("\n") == 1
