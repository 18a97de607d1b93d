"""The main job end to end on the embedded world: load, fit, tune, predict, and see what the uncertainty is worth.

Nothing is read but the model's weights and the images: every number is computed here, as a user's own run would.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from bayesvlm.core.embeddings import GaussianEmbeddings
from bayesvlm.core.features import Features
from bayesvlm.core.tuning import TauGrid
from bayesvlm.evaluation import auroc
from bayesvlm.experiments.corruption import Corruption, corrupt, spread_pairs
from bayesvlm.experiments.methods import Methods
from bayesvlm.experiments.scoring import Scores
from bayesvlm.progress import progress_bar
from bayesvlm.vlm import BayesVLM
from bayesvlm_world import Split, load

Kind = Literal["seen", "unseen style", "unseen concept", "out of domain"]

TESTS: dict[str, tuple[str, Kind]] = {
    "new-drawing": ("new drawings, seen styles", "seen"),
    "emojione-colour": ("EmojiOne colour", "unseen style"),
    "openmoji-colour": ("OpenMoji colour", "unseen style"),
    "fluent-high-contrast": ("Fluent high contrast", "unseen style"),
    "emojione-black": ("EmojiOne black", "unseen style"),
    "openmoji-black": ("OpenMoji black", "unseen style"),
    "unseen-concepts": ("unseen concepts", "unseen concept"),
}
"""What is measured, with its title and what is new about it."""
SPREAD_ONLY: dict[str, tuple[str, Kind]] = {"flags": ("flags", "out of domain")}


@dataclass(frozen=True)
class TestSet:
    """One set: how each method does on it, and how uncertain its images are."""

    title: str
    kind: Kind
    size: int
    classes: int
    scores: Mapping[str, Scores]  # empty where there is nothing right to answer
    spread: Tensor  # [N], relative spread of the image embeddings
    novelty: float | None  # AUROC of the spread against new drawings of seen styles; None for those themselves


@dataclass(frozen=True)
class Example:
    """One image and what the model says about it."""

    title: str
    image: bytes
    truth: str | None
    answers: Sequence[tuple[str, float, float, float, float]]  # name, probability, cosine: mean, low, high
    plain: tuple[str, float]  # what the model says without a posterior
    epistemic: float  # nats, its share of the entropy by Monte Carlo
    entropy: float  # nats, of the probabilities that are shown
    rank: float  # share of the validation images whose embedding is less uncertain


@dataclass(frozen=True)
class Demo:
    """Everything the demo found out."""

    model: str
    pairs: int
    grid: TauGrid
    temperature: float
    raised_temperature: float
    lam: Mapping[str, float]
    sets: Mapping[str, TestSet]
    label_spread: Mapping[str, Tensor]  # relative spread of the class names' embeddings: seen, unseen
    label_novelty: float  # AUROC of that spread
    corruption: Corruption
    examples: Sequence[Example]
    seconds: Mapping[str, float]

    def numbers(self) -> dict[str, Any]:
        """The figures, for json."""
        return {
            "model": self.model,
            "pairs": self.pairs,
            "tau": self.grid.best.tau,
            "temperature": self.temperature,
            "raised_temperature": self.raised_temperature,
            "lam": dict(self.lam),
            "sets": {
                name: {
                    "images": test.size,
                    "classes": test.classes,
                    "kind": test.kind,
                    "spread": float(test.spread.mean()),
                    "novelty_auroc": test.novelty,
                    "scores": {method: scores.numbers() for method, scores in test.scores.items()},
                }
                for name, test in self.sets.items()
            },
            "label_novelty_auroc": self.label_novelty,
            "corruption": {
                "expected_cosine": self.corruption.mean.tolist(),
                "standard_deviation": self.corruption.std.tolist(),
            },
            "seconds": dict(self.seconds),
        }


def run_demo(vlm: BayesVLM, name: str, say: Callable[[str], None] = lambda text: None) -> tuple[Demo, BayesVLM]:
    """Run it on a model without a posterior; returns what was found and the model with its posterior.

    Args:
        vlm: a model that reads 64-pixel pictures of emoji; what it already knows of a posterior is not used.
        name: what to call it.
        say: told what is being done, a line at a time.
    """
    clock = _Clock()
    vlm = vlm.without_posterior()
    estimated = estimate(vlm, say)
    grid, images, classes = estimated.grid, estimated.images, estimated.classes
    clock.lap("estimate")
    methods = Methods.tuned(vlm, images, torch.tensor(estimated.labels), classes)
    temperature, raised = methods.temperature or 1.0, methods.raised or 1.0
    say(f"          tau = {grid.best.tau:.3g}; temperature scaling, on the same images: T = {temperature:.3g},")
    say(f"          or as far as one standard error of their NLPD allows: T = {raised:.3g}")
    splits = {test: load(test) for test in {**TESTS, **SPREAD_ONLY}}
    say(f"predict   {sum(map(len, splits.values())):,} test images, plain, with temperature, Bayesian")
    features = _encode(vlm, splits)
    names = {"seen": classes, "unseen": vlm.text_features(list(splits["unseen-concepts"].classes))}
    sets = _test_sets(methods, splits, features, names)
    clock.lap("predict")
    say("corrupt   captions and pictures, step by step")
    corruption = corrupt(vlm, *spread_pairs(splits["new-drawing"]))
    labels = {which: spread(vlm.embed_texts(names[which])) for which in ("seen", "unseen")}
    say("explain   a few images")
    usual = spread(vlm.embed_images(images))
    examples = _examples(vlm, splits, features, names, usual)
    clock.lap("explain")
    demo = Demo(
        name,
        estimated.pairs,
        grid,
        temperature,
        raised,
        vlm.lam,
        sets,
        labels,
        _novelty(labels["seen"], labels["unseen"]),
        corruption,
        examples,
        clock.seconds,
    )
    return demo, vlm


@dataclass(frozen=True)
class Estimated:
    """What estimating a posterior on the world leaves behind: the search for tau, and the features it was made on."""

    pairs: int
    grid: TauGrid
    images: Features  # of the validation split
    labels: Sequence[int]
    classes: Features


def estimate(vlm: BayesVLM, say: Callable[[str], None] = lambda text: None) -> Estimated:
    """Give a model its posterior: fit on the training split, tune on the validation split."""
    train, validation = load("train"), load("validation")
    say(f"fit       {len(train):,} image-caption pairs, one pass, both towers")
    vlm.fit(train.pairs(), provenance={"source": "the embedded world, split train"}, total=len(train))
    say(f"tune      tau by NLPD on {len(validation)} validation images, lam by the evidence at each tau")
    images, classes = vlm.image_features(list(validation.images)), vlm.text_features(list(validation.classes))
    vlm.tune(images, validation.labels, classes, provenance={"tuned_on": "the embedded world, split validation"})
    assert vlm.tuning is not None
    return Estimated(len(train), vlm.tuning, images, validation.labels, classes)


def spread(embeddings: GaussianEmbeddings) -> Tensor:  # [N]
    """How uncertain an embedding is for its length: sqrt(tr Sigma) / |mu|."""
    relative: Tensor = embeddings.covariance.trace().sqrt() / embeddings.mean.norm(dim=1)
    return relative.cpu()


def _encode(vlm: BayesVLM, splits: Mapping[str, Split]) -> dict[str, Features]:
    """Image features of every split, under one progress bar."""
    features = {}
    with progress_bar("Encoding test sets", total=sum(map(len, splits.values())), unit="images") as advance:
        for name, split in splits.items():
            parts = []
            for images, _ in split.pairs(batch_size=256):
                parts.append(vlm.image_features(images, progress=False))
                advance(len(images))
            features[name] = Features.concatenate(parts)
    return features


def _test_sets(
    methods: Methods, splits: Mapping[str, Split], features: Mapping[str, Features], names: Mapping[str, Features]
) -> dict[str, TestSet]:
    spreads = {name: spread(methods.vlm.embed_images(images)) for name, images in features.items()}
    sets = {}
    for name, (title, kind) in {**TESTS, **SPREAD_ONLY}.items():
        classes = names["unseen" if kind == "unseen concept" else "seen"]
        scored = kind != "out of domain"
        sets[name] = TestSet(
            title,
            kind,
            len(splits[name]),
            len(classes),
            methods.scores(features[name], torch.tensor(splits[name].labels), classes) if scored else {},
            spreads[name],
            None if name == "new-drawing" else _novelty(spreads["new-drawing"], spreads[name]),
        )
    return sets


def _novelty(usual: Tensor, new: Tensor) -> float:
    """How well the spread alone tells new from usual: the chance that a new one's is larger."""
    return auroc(torch.cat([usual, new]), torch.cat([torch.zeros(len(usual)), torch.ones(len(new))]).bool())


# Examples -------------------------------------------------------------------------------------------------------------


def _examples(
    vlm: BayesVLM,
    splits: Mapping[str, Split],
    features: Mapping[str, Features],
    names: Mapping[str, Features],
    usual: Tensor,
) -> list[Example]:
    """Images chosen by rule, not by hand: sure and right, unsure, sure and wrong, and from where nobody has been."""
    drawings, lines = splits["new-drawing"], splits["openmoji-black"]
    plain = torch.softmax(vlm.logits(features["new-drawing"], names["seen"]), dim=1)
    right = plain.argmax(dim=1).cpu() == torch.tensor(drawings.labels)
    certain = vlm.classify(features["new-drawing"], names["seen"]).probs.max(dim=1).values.cpu()
    by_spread = {name: spread(vlm.embed_images(features[name])) for name in ("openmoji-black", "flags")}
    middle = int((certain - certain.median()).abs().argmin())
    chosen = [
        ("the surest right answer", "new-drawing", int(torch.where(right, certain, -1.0).argmax())),
        ("an answer of middling certainty", "new-drawing", middle),
        ("the surest wrong answer", "new-drawing", int(torch.where(right, -1.0, certain).argmax())),
        ("the least familiar line drawing", "openmoji-black", int(by_spread["openmoji-black"].argmax())),
        ("a concept never trained on, among the names that were", "unseen-concepts", 0),
        ("the least familiar flag: none of the names is right", "flags", int(by_spread["flags"].argmax())),
    ]
    truths = {"new-drawing": drawings, "openmoji-black": lines}
    made = []
    for title, name, row in chosen:
        split = splits[name]
        truth = split.classes[split.labels[row]] if name in truths else None
        made.append(
            _example(
                vlm, title, split.images[row], truth, features[name][[row]], names["seen"], drawings.classes, usual
            )
        )
    return made


def _example(
    vlm: BayesVLM,
    title: str,
    image: bytes,
    truth: str | None,
    features: Features,
    classes: Features,
    names: Sequence[str],
    usual: Tensor,
) -> Example:
    prediction = vlm.classify(features, classes, draws=64)
    low, high = prediction.moments.interval(0.95)
    top = prediction.probs[0].topk(3).indices.tolist()
    answers = [
        (
            names[index],
            float(prediction.probs[0, index]),
            float(prediction.mean[0, index]),
            float(low[0, index]),
            float(high[0, index]),
        )
        for index in top
    ]
    plain = vlm.plain(features, classes)[0]
    own = spread(vlm.embed_images(features))
    return Example(
        title,
        image,
        truth,
        answers,
        (names[int(plain.argmax())], float(plain.max())),
        float(prediction.epistemic[0]),
        float(prediction.entropy[0]),
        float((usual < own).double().mean()),
    )


class _Clock:
    """Seconds of each part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name], self._since = now - self._since, now
