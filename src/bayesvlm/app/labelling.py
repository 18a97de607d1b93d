"""Label: which drawings to label next and why, and what the labels gained so far."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

import torch
from torch import Tensor

from bayesvlm.active import Strategy, finetune, rank
from bayesvlm.app.curve import Series, curve
from bayesvlm.app.markup import page, percent, picture, quiet
from bayesvlm.app.models import Opened
from bayesvlm.core.errors import BayesVLMError, check_choice
from bayesvlm.core.features import Features
from bayesvlm.embedded import world
from bayesvlm.evaluation import accuracy, nlpd
from bayesvlm.vlm import BayesVLM

GROUP = "food-drink"
TARGET = "openmoji-black"
_POOL = ("emojione-black", "fluent-high-contrast", "openmoji-colour")
HELD = 5  # one pool drawing in so many picks the epoch
AT_ONCE = 10
MOST = 100
STRATEGIES: dict[str, Strategy] = {
    "EPIG: tells most of the target": "epig",
    "entropy: least sure of these": "entropy",
    "near the target's doubtful ones": "targeted-entropy",
    "at random": "random",
}
_WHY = {
    "EPIG: tells most of the target": "its label is expected to take {score:.4f} nats of doubt off a target drawing's "
    "answer",
    "entropy: least sure of these": "the answer to it has {score:.4f} nats of entropy, from 0 (sure) to {most:.2f} (no "
    "idea)",
    "near the target's doubtful ones": "it is like a target drawing whose answer has {score:.4f} nats of entropy, from "
    "0 (sure) to {most:.2f} (no idea)",
    "at random": "chosen by chance",
}
"""What the number of a choice is of, by strategy."""
RATE = 1e-4


@dataclass(frozen=True, eq=False)
class Task:
    """Drawings to choose from, those the model should get right, and the names of what they show.

    Attributes:
        pool, target: features; their drawings; the labels as indices into `kinds`.
        validation: rows of the pool that pick the epoch and are not chosen.
    """

    kinds: tuple[str, ...]
    classes: Features  # [C]
    pool: Features  # [N]
    pool_images: Sequence[bytes]
    pool_names: Sequence[str]
    pool_labels: Tensor  # [N]
    target: Features  # [M]
    target_images: Sequence[bytes]
    target_names: Sequence[str]
    target_labels: Tensor  # [M]
    validation: Tensor  # [V]

    @classmethod
    def of_world(cls, opened: Opened) -> Task:
        """Kinds of food and drink in a line-art style that no embedded model was trained on."""
        splits = world("What there is to label")
        target = splits.load(TARGET).half("target").group(GROUP)
        parts = [splits.load(TARGET).half("pool").group(GROUP)]
        parts += [splits.load(name).group(GROUP) for name in _POOL]
        kinds = splits.subgroups(GROUP)
        concepts = [name for name in splits.load("train").classes if splits.group_of(name) == GROUP]
        of = {name: kinds.index(splits.subgroup_of(name)) for name in concepts}
        vlm = opened.vlm
        images = [image for part in parts for image in part.images]
        names = [part.classes[label] for part in parts for label in part.labels]
        own = [target.classes[label] for label in target.labels]
        classes = vlm.text_features(concepts, progress=False)
        return cls(
            kinds,
            classes.pooled(torch.tensor([of[name] for name in concepts]), len(kinds)),
            vlm.image_features(images, progress=False),
            images,
            names,
            torch.tensor([of[name] for name in names]),
            vlm.image_features(list(target.images), progress=False),
            target.images,
            own,
            torch.tensor([of[name] for name in own]),
            torch.arange(0, len(images), HELD),
        )


@dataclass(frozen=True)
class Point:
    """How good the model is on the target after some labels."""

    labels: int
    top1: float
    nlpd: float
    nlpd_error: float


@dataclass(frozen=True)
class Pick:
    """One chosen drawing: its row in the pool, its score, what the model took it for, the target row nearest to it."""

    row: int
    score: float | None
    taken_for: str
    prob: float
    near: int


@dataclass(frozen=True)
class Labelling:
    """What one visitor chose so far, and what it led to; beside it what as many random labels lead to."""

    strategy: str
    picks: tuple[Pick, ...] = ()
    points: tuple[Point, ...] = ()
    random: tuple[Point, ...] = ()

    @property
    def over(self) -> bool:
        """Whether as much is labelled as may be here."""
        return len(self.picks) + AT_ONCE > MOST


class Labeller:
    """One model at one task."""

    def __init__(self, opened: Opened) -> None:
        if opened.vlm.predicts_variance:
            raise BayesVLMError(
                f"{opened.name} predicts its variances and has no posterior that labels could teach; open another "
                "model on the tab Model."
            )
        self.vlm, self.task = opened.vlm, Task.of_world(opened)
        self.before = self.score(self.vlm, 0)

    def begin(self, strategy: str) -> Labelling:
        """Nothing chosen yet."""
        check_choice("strategy", strategy, tuple(STRATEGIES))
        return Labelling(strategy, points=(self.before,), random=(self.before,))

    def go_on(self, so_far: Labelling, count: int = AT_ONCE) -> Labelling:
        """So many drawings more, labelled by those who drew them, and the model fine-tuned on all."""
        if len(so_far.picks) + count > MOST:
            raise BayesVLMError(f"{len(so_far.picks)} drawings are labelled, which is enough here; start again.")
        picks = so_far.picks + self.choose(STRATEGIES[so_far.strategy], [pick.row for pick in so_far.picks], count)
        rows = [pick.row for pick in picks]
        others = [pick.row for pick in self.choose("random", [], len(picks))]
        return replace(
            so_far,
            picks=picks,
            points=(*so_far.points, self.score(self.taught(rows), len(rows))),
            random=(*so_far.random, self.score(self.taught(others), len(others))),
        )

    def choose(self, strategy: Strategy, labelled: Sequence[int], count: int) -> tuple[Pick, ...]:
        """The next drawings of the pool, as `active.rank` has them."""
        task, rows = self.task, torch.tensor(list(labelled), dtype=torch.long)
        known = (task.pool[rows], task.pool_labels[rows]) if labelled else None
        chosen = rank(
            self.vlm,
            task.pool,
            task.target,
            task.classes,
            strategy,
            count,
            task.pool_labels,
            labelled=known,
            exclude=torch.cat([task.validation, rows]),
            progress=False,
        )
        images = task.pool[chosen.indices]
        said, near = self.vlm.classify(images, task.classes), self._nearest(images)
        return tuple(
            Pick(row, None if score != score else score, task.kinds[label], prob, place)
            for row, score, label, prob, place in zip(
                chosen.indices.tolist(),
                chosen.scores.tolist(),
                said.labels.tolist(),
                said.probs.amax(dim=1).tolist(),
                near,
                strict=True,
            )
        )

    def taught(self, rows: Sequence[int]) -> BayesVLM:
        """The model fine-tuned on the labels of these drawings."""
        task, chosen = self.task, torch.tensor(list(rows))
        held = task.pool[task.validation], task.pool_labels[task.validation]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # small sets are the point here
            return finetune(
                self.vlm, task.pool[chosen], task.pool_labels[chosen], task.classes, validation=held, lr=RATE, seed=0
            )

    def score(self, vlm: BayesVLM, labels: int) -> Point:
        """On the target."""
        probs = vlm.classify(self.task.target, self.task.classes).probs.cpu()
        loss = nlpd(probs, self.task.target_labels)
        return Point(labels, accuracy(probs, self.task.target_labels).value, loss.value, loss.standard_error)

    def _nearest(self, images: Features) -> list[int]:
        """Of each drawing, the target's that is most like it by expected cosine."""
        one, other = self.vlm.embed_images(images), self.vlm.embed_images(self.task.target)
        unit = (each.mean / each.expected_norm[:, None] for each in (one, other))
        first, second = unit
        nearest: list[int] = (first @ second.T).argmax(dim=1).tolist()
        return nearest


def labelling_html(so_far: Labelling, labeller: Labeller) -> str:
    """What was chosen and what it gained, as the page has it."""
    task, last = labeller.task, so_far.picks[-AT_ONCE:]
    first, why = len(so_far.picks) - len(last) + 1, _WHY[so_far.strategy]
    cards = "".join(_card(pick, first + place, task, why) for place, pick in enumerate(last))
    mine, others = (
        Series(name, [(p.labels, p.nlpd) for p in points], colour, [p.nlpd_error for p in points])
        for name, points, colour in (
            (so_far.strategy.partition(":")[0], so_far.points, "bayes"),
            ("at random", so_far.random, "plain"),
        )
    )
    now, chance, before = so_far.points[-1], so_far.random[-1], so_far.points[0]
    said = (
        f"NLPD on {len(task.target_labels)} drawings of the target: {before.nlpd:.3f} before, {now.nlpd:.3f} ± "
        f"{now.nlpd_error:.3f} after {now.labels} labels, {chance.nlpd:.3f} ± {chance.nlpd_error:.3f} with as many at "
        f"random; top-1 {percent(before.top1)}, {percent(now.top1)}, {percent(chance.top1)}."
    )
    remark = (
        "NLPD is minus the logarithm of the probability of the right answer, on average. The bars are a standard error "
        f"up and down: with {len(task.target_labels)} drawings and one run, curves whose bars overlap tell no "
        "difference."
    )
    enough = f"{len(so_far.picks)} are labelled, which is enough here; start again to choose in another way."
    return page(
        f"<h3>{len(so_far.picks)} labelled</h3>" if so_far.picks else "<h3>Nothing labelled yet</h3>",
        f"<p>{escape(said)}</p>" if so_far.picks else quiet("Choose drawings to label; the curve follows."),
        quiet(enough) if so_far.over else "",
        curve([mine, others], "labels", "NLPD on the target (lower is better)"),
        quiet(remark) if so_far.picks else "",
        "<h3>The last ones chosen</h3>" if last else "",
        f"<div class='cards'>{cards}</div>",
    )


def _card(pick: Pick, place: int, task: Task, reason: str) -> str:
    right = task.kinds[int(task.pool_labels[pick.row])]
    why = "chosen by chance" if pick.score is None else reason.format(score=pick.score, most=math.log(len(task.kinds)))
    return (
        "<div class='card'>"
        f"<span class='name'>{place}. {escape(task.pool_names[pick.row])}</span>"
        f"<div class='two'>{picture(task.pool_images[pick.row], task.pool_names[pick.row], 'hit')}"
        f"{picture(task.target_images[pick.near], 'the nearest target drawing', 'hit')}</div>"
        f"<dl><dt>why</dt><dd>{why}</dd><dt>taken for</dt><dd>{escape(pick.taken_for)}, {percent(pick.prob)}</dd>"
        f"<dt>label</dt><dd>{escape(right)}</dd><dt>near</dt><dd>{escape(task.target_names[pick.near])}</dd></dl></div>"
    )
