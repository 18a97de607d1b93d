"""The demo on a small world: every number it reports, computed again from the activations with numpy."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp, softmax
from sklearn.metrics import roc_auc_score

from bayesvlm import BayesVLM, Features
from bayesvlm.experiments import demo as demos
from bayesvlm.experiments.demo import SPREAD_ONLY, TESTS, Demo, run_demo
from bayesvlm.experiments.methods import SINGLE

from .test_scoring import by_hand
from .thinned import thinned


@dataclass(frozen=True)
class Ran:
    """A demo that has run: what it was given, what it found, what it said."""

    given: BayesVLM
    demo: Demo
    vlm: BayesVLM
    said: list[str]


@pytest.fixture(scope="module")
def ran() -> Ran:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demos, "load", thinned)
        given, said = BayesVLM.from_pretrained("emoji-clip", device="cpu"), []
        demo, vlm = run_demo(given, "a name", said.append)
    return Ran(given, demo, vlm, said)


class Numpy:
    """Plain, tempered and Bayesian probabilities from activations, in float64: the method, written out."""

    def __init__(self, vlm: BayesVLM) -> None:
        self.vlm, self.t = vlm, math.exp(vlm.logit_scale)

    def tower(self, name: str, features: Features) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Means [N, d], and the covariances a_i diag(r): [N], [d]."""
        phi = features.activations.double().numpy()
        weight = getattr(self.vlm, name).weight.double().numpy()
        A, B = (self.vlm.factors[name].A.double().numpy(), self.vlm.factors[name].B.double().numpy())
        tau, lam = math.sqrt(self.vlm.tau), math.sqrt(self.vlm.lam[name])
        a = (phi * np.linalg.solve(tau * A + lam * np.eye(len(A)), phi.T).T).sum(axis=1)
        return phi @ weight.T, a, np.diag(np.linalg.inv(tau * B + lam * np.eye(len(B))))

    def logits(self, images: Features, texts: Features) -> np.ndarray:
        (g, _, _), (h, _, _) = self.tower("image", images), self.tower("text", texts)
        return self.t * (g @ h.T) / np.outer(np.linalg.norm(g, axis=1), np.linalg.norm(h, axis=1))

    def moments(self, images: Features, texts: Features) -> tuple[np.ndarray, np.ndarray]:
        (g, a, r), (h, b, q) = self.tower("image", images), self.tower("text", texts)
        norms = np.outer((g**2).sum(axis=1) + a * r.sum(), (h**2).sum(axis=1) + b * q.sum())
        variance = a[:, None] * (h**2 @ r)[None] + b[None] * (g**2 @ q)[:, None] + np.outer(a, b) * (r @ q)
        return g @ h.T / np.sqrt(norms), variance / norms

    def bayes(self, images: Features, texts: Features) -> np.ndarray:
        mean, variance = self.moments(images, texts)
        return softmax(self.t * mean / np.sqrt(1 + math.pi / 8 * self.t**2 * variance), axis=1)

    def spread(self, name: str, features: Features) -> np.ndarray:
        mean, a, r = self.tower(name, features)
        return np.sqrt(a * r.sum()) / np.linalg.norm(mean, axis=1)


@pytest.fixture(scope="module")
def by_numpy(ran: Ran) -> Numpy:
    return Numpy(ran.vlm)


@pytest.fixture(scope="module")
def images(ran: Ran) -> dict[str, Features]:
    names = ("train", "validation", "new-drawing", "openmoji-black", "unseen-concepts", "flags")
    return {name: ran.given.image_features(list(thinned(name).images), progress=False) for name in names}


@pytest.fixture(scope="module")
def texts(ran: Ran) -> dict[str, Features]:
    """Class names that were trained on, and not."""
    names = {"seen": "validation", "unseen": "unseen-concepts"}
    return {which: ran.given.text_features(list(thinned(name).classes)) for which, name in names.items()}


def tempered(by_numpy: Numpy, images: dict[str, Features], texts: dict[str, Features]) -> float:
    logits, labels = by_numpy.logits(images["validation"], texts["seen"]), thinned("validation").labels

    def nlpd(log_temperature: float) -> float:
        scaled = logits / math.exp(log_temperature)
        return float(np.mean(logsumexp(scaled, axis=1) - scaled[np.arange(len(labels)), labels]))

    return math.exp(minimize_scalar(nlpd, bounds=(-4, 4), method="bounded", options={"xatol": 1e-9}).x)


def losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return logsumexp(logits, axis=1) - logits[np.arange(len(labels)), labels]


# Its numbers ---------------------------------------------------------------------------------------------------------


def test_it_measures_what_it_says_it_does(ran: Ran) -> None:
    assert ran.demo.model == "a name"
    assert ran.demo.pairs == len(thinned("train")) == ran.vlm.factors["image"].n
    assert list(ran.demo.sets) == [*TESTS, *SPREAD_ONLY]
    for name, found in ran.demo.sets.items():
        assert (found.title, found.kind) == {**TESTS, **SPREAD_ONLY}[name]
        assert found.size == len(thinned(name)) == len(found.spread)
        assert found.classes == (13 if name == "unseen-concepts" else 118)
        assert list(found.scores) == ([] if name == "flags" else [*SINGLE])


def test_the_posterior_is_of_the_training_pairs(ran: Ran, images: dict[str, Features]) -> None:
    phi = images["train"].activations.double()
    A = phi.T @ phi / math.sqrt(len(phi))
    torch.testing.assert_close(ran.vlm.factors["image"].A.double(), A, rtol=1e-4, atol=1e-4 * float(A.abs().max()))
    assert ran.vlm.provenance["source"] == "the embedded world, split train"
    assert ran.vlm.provenance["validation_nlpd"] == ran.demo.grid.best.nlpd
    assert ran.vlm.tau == ran.demo.grid.best.tau
    assert ran.demo.lam == ran.vlm.lam


def test_tau_and_temperature_are_of_the_validation_images(
    ran: Ran, by_numpy: Numpy, images: dict[str, Features], texts: dict[str, Features]
) -> None:
    labels = thinned("validation").labels
    probs = by_numpy.bayes(images["validation"], texts["seen"])
    nlpd = -np.log(probs[np.arange(len(labels)), labels]).mean()
    assert ran.demo.grid.best.nlpd == pytest.approx(nlpd, rel=1e-3)
    assert min(point.nlpd for point in ran.demo.grid) == ran.demo.grid.best.nlpd
    assert ran.demo.temperature == pytest.approx(tempered(by_numpy, images, texts), rel=1e-4)
    logits = by_numpy.logits(images["validation"], texts["seen"])
    best, raised = (losses(logits / t, np.array(labels)) for t in (ran.demo.temperature, ran.demo.raised_temperature))
    assert ran.demo.raised_temperature > ran.demo.temperature
    assert raised.mean() == pytest.approx(best.mean() + best.std(ddof=1) / math.sqrt(len(best)), rel=1e-4)


@pytest.mark.parametrize("name", ["new-drawing", "openmoji-black", "unseen-concepts"])
def test_scores(name: str, ran: Ran, by_numpy: Numpy, images: dict[str, Features], texts: dict[str, Features]) -> None:
    classes = texts["unseen" if name == "unseen-concepts" else "seen"]
    logits, labels = by_numpy.logits(images[name], classes), np.array(thinned(name).labels)
    expected = {
        "plain": softmax(logits, axis=1),
        "temperature": softmax(logits / tempered(by_numpy, images, texts), axis=1),
        "raised temperature": softmax(logits / ran.demo.raised_temperature, axis=1),
        "Bayes": by_numpy.bayes(images[name], classes),
    }
    for method, probs in expected.items():
        found = ran.demo.sets[name].scores[method].numbers()
        figures = {key: value for key, value in found.items() if key not in ("ece_low", "ece_high")}
        assert figures == pytest.approx(by_hand(probs, labels), rel=2e-3, abs=1e-4), method


def test_spread_and_novelty(ran: Ran, by_numpy: Numpy, images: dict[str, Features], texts: dict[str, Features]) -> None:
    usual = by_numpy.spread("image", images["new-drawing"])
    assert ran.demo.sets["new-drawing"].novelty is None
    for name in ("openmoji-black", "unseen-concepts", "flags"):
        spread = by_numpy.spread("image", images[name])
        np.testing.assert_allclose(ran.demo.sets[name].spread.numpy(), spread, rtol=1e-3)
        assert ran.demo.sets[name].novelty == pytest.approx(novelty(usual, spread), abs=2e-3), name
    labels = {which: by_numpy.spread("text", texts[which]) for which in ("seen", "unseen")}
    for which, spread in labels.items():
        np.testing.assert_allclose(ran.demo.label_spread[which].numpy(), spread, rtol=1e-3)
    assert ran.demo.label_novelty == pytest.approx(novelty(labels["seen"], labels["unseen"]), abs=2e-3)


def novelty(usual: np.ndarray, new: np.ndarray) -> float:
    return float(roc_auc_score([0] * len(usual) + [1] * len(new), np.concatenate([usual, new])))


def test_the_corruption_grid_begins_with_whole_pairs(
    ran: Ran, by_numpy: Numpy, images: dict[str, Features], texts: dict[str, Features]
) -> None:
    split = thinned("new-drawing")
    assert ran.demo.corruption.pairs == len(split)
    mean, variance = by_numpy.moments(images["new-drawing"], texts["seen"][list(split.labels)])
    assert float(ran.demo.corruption.mean[0, 0]) == pytest.approx(np.diag(mean).mean(), rel=1e-3)
    assert float(ran.demo.corruption.std[0, 0]) == pytest.approx(np.sqrt(np.diag(variance)).mean(), rel=1e-3)


def test_examples_are_chosen_by_rule(
    ran: Ran, by_numpy: Numpy, images: dict[str, Features], texts: dict[str, Features]
) -> None:
    drawings = thinned("new-drawing")
    plain = softmax(by_numpy.logits(images["new-drawing"], texts["seen"]), axis=1)
    certain = by_numpy.bayes(images["new-drawing"], texts["seen"]).max(axis=1)
    right = plain.argmax(axis=1) == np.array(drawings.labels)
    rows = {
        0: int(np.where(right, certain, -1).argmax()),
        2: int(np.where(right, -1, certain).argmax()),
    }
    for place, row in rows.items():
        assert ran.demo.examples[place].image == drawings.images[row]
        assert ran.demo.examples[place].truth == drawings.classes[drawings.labels[row]]
    assert ran.demo.examples[0].plain[0] == ran.demo.examples[0].truth
    assert ran.demo.examples[2].plain[0] != ran.demo.examples[2].truth
    between = sorted(certain)
    middle = certain[drawings.images.index(ran.demo.examples[1].image)]
    assert between[len(between) // 2 - 1] - 1e-4 <= middle <= between[len(between) // 2] + 1e-4
    for place, name in ((3, "openmoji-black"), (5, "flags")):
        widest = int(by_numpy.spread("image", images[name]).argmax())
        assert ran.demo.examples[place].image == thinned(name).images[widest]
    assert [example.truth is None for example in ran.demo.examples] == [False, False, False, False, True, True]
    assert len({example.title for example in ran.demo.examples}) == 6


def test_what_is_said_of_an_example(
    ran: Ran, by_numpy: Numpy, images: dict[str, Features], texts: dict[str, Features]
) -> None:
    example, split = ran.demo.examples[3], thinned("openmoji-black")
    row = split.images.index(example.image)
    features, names = images["openmoji-black"][[row]], split.classes
    probs = by_numpy.bayes(features, texts["seen"])[0]
    mean, variance = (part[0] for part in by_numpy.moments(features, texts["seen"]))
    for (name, *found), index in zip(example.answers, np.argsort(-probs)[:3], strict=True):
        width = 1.959964 * math.sqrt(variance[index])
        assert name == names[index]
        assert found == pytest.approx([probs[index], mean[index], mean[index] - width, mean[index] + width], rel=2e-3)
    plain = softmax(by_numpy.logits(features, texts["seen"])[0])
    assert example.plain[0] == names[plain.argmax()]
    assert example.plain[1] == pytest.approx(plain.max(), rel=1e-3)
    usual, own = (by_numpy.spread("image", each) for each in (images["validation"], features))
    assert example.rank == pytest.approx((usual < own).mean())
    for each in ran.demo.examples:
        assert 0 <= each.epistemic <= each.entropy <= math.log(118)


# Its manners ---------------------------------------------------------------------------------------------------------


def test_the_figures_are_json(ran: Ran) -> None:
    numbers = json.loads(json.dumps(ran.demo.numbers(), allow_nan=False))
    assert set(numbers["sets"]) == {*TESTS, *SPREAD_ONLY}
    assert numbers["tau"] == ran.vlm.tau
    found = ran.demo.sets["openmoji-black"]
    written = numbers["sets"]["openmoji-black"]
    assert written["scores"]["Bayes"]["nlpd"] == found.scores["Bayes"].nlpd.value
    assert written["scores"]["plain"]["top1"] == found.scores["plain"].top1.value
    assert written["novelty_auroc"] == found.novelty
    assert written["spread"] == pytest.approx(float(found.spread.mean()))
    assert np.array(numbers["corruption"]["expected_cosine"]).shape == (6, 6)
    assert set(numbers["seconds"]) == {"estimate", "predict", "explain"}
    assert all(seconds > 0 for seconds in numbers["seconds"].values())


def test_it_says_what_it_does(ran: Ran) -> None:
    steps = [line.split()[0] for line in ran.said if not line.startswith(" ")]
    assert steps == ["fit", "tune", "predict", "corrupt", "explain"]
    assert f"{len(thinned('train'))} image-caption pairs" in ran.said[0]
    assert f"tau = {ran.vlm.tau:.3g}" in "".join(ran.said)


def test_the_caller_s_model_is_left_alone(ran: Ran) -> None:
    assert ran.vlm is not ran.given
    fresh = BayesVLM.from_pretrained("emoji-clip", device="cpu")
    assert ran.given.fitted == fresh.fitted
    assert ran.given.settings == fresh.settings


def test_a_posterior_it_is_given_is_not_used(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demos, "load", thinned)
    few = ("new-drawing", "openmoji-black", "unseen-concepts")
    monkeypatch.setattr(demos, "TESTS", {name: TESTS[name] for name in few})
    again, vlm = run_demo(ran.vlm.replace(tau=1e-3, structure="exact", link="mc"), "again")
    assert vlm.settings == ran.vlm.settings
    assert again.grid.best == ran.demo.grid.best
    for name, found in again.sets.items():
        assert {method: found.scores[method].numbers() for method in found.scores} == {
            method: scores.numbers() for method, scores in ran.demo.sets[name].scores.items()
        }, "and the same run gives the same numbers"
