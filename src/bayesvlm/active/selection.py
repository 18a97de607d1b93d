"""What to label next: the strategies of the paper, on Features.

The mathematics: docs/method.md, "Active learning".

random, entropy and bald rank the pool. Their targeted forms rank the target's images and take the pool item nearest to
each. epig asks how much a label would tell about the target, chooses one item at a time, and learns from each.

A label teaches the image projection: fine-tuning and the online step move nothing else. What it would tell about the
text projection is not information to be had, so EPIG holds that one at its mean. Drawn with the other, it counts in the
scores, and labels are chosen for what they say about the prompts (docs/active.md has what that cost).
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from bayesvlm.active.acquisition import FIRST, GROUPS, bald, most_informative
from bayesvlm.active.contrast import ClassContrast
from bayesvlm.active.drawing import SharedDraws, drawn_probabilities
from bayesvlm.active.finetune import Labels
from bayesvlm.active.known import Known
from bayesvlm.active.online import OnlineLaplace
from bayesvlm.active.targeting import Metric, nearest_distinct
from bayesvlm.classes import class_names, label_indices
from bayesvlm.core.blocks import row_blocks
from bayesvlm.core.errors import BayesVLMError, BayesVLMWarning, check_choice, check_count
from bayesvlm.core.features import Features
from bayesvlm.core.predict import entropy
from bayesvlm.core.printing import described
from bayesvlm.core.threads import threads_for
from bayesvlm.progress import progress_bar
from bayesvlm.prompts import ClassNames, Templates
from bayesvlm.vlm import BayesVLM

Strategy = Literal["random", "targeted-random", "entropy", "targeted-entropy", "bald", "targeted-bald", "epig"]
"""How items are chosen; `targeted` ones among the neighbours of the targets only."""
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
"""The names of the strategies, in the order in which tables have them."""
BLOCK = 2**26  # class probabilities under all draws that are held at once: 256 MiB in float32
LEAST_CHOICE = 1.25  # candidates for every label, where the target is small: with twice as many it chooses worse
MOST_CANDIDATES = 1000  # that EPIG considers by itself: farther from the target it chooses worse, and takes longer


@dataclass(frozen=True)
class Epig:
    """How EPIG chooses; the paper finds gamma and beta by validation.

    Args:
        gamma: rate of the online gradient step on the image projection; 0 leaves it.
        beta: weight of a chosen image in the online factors.
        targets: random target images an item is judged by, drawn again at every step.
        candidates: pool items considered, the targets' nearest; None: as many as the target has images, up to 1,000. At
            least a quarter more than the budget.
        text: the text projection in the draws: "held" at its mean, or "drawn" as the image projection is (the paper).
        solve_lam: find the prior precision again after every step.
    """

    gamma: float = 1e-3
    beta: float = 100.0
    targets: int = 150
    candidates: int | None = None
    text: Literal["held", "drawn"] = "held"
    solve_lam: bool = False

    def __post_init__(self) -> None:
        for name in ("gamma", "beta"):
            if not 0 <= getattr(self, name) < math.inf:
                raise BayesVLMError(f"{name}={getattr(self, name)}; it must be a finite number of at least 0.")
        check_count("targets", self.targets)
        if self.candidates is not None:
            check_count("candidates", self.candidates)
        check_choice("text", self.text, ("held", "drawn"))


@dataclass(frozen=True, eq=False)
class Selection:
    """Chosen items, in order, and their scores.

    `scores` are what the strategy ranked by: of the item itself, for targeted strategies of the target image that chose
    it, for random ones nothing (NaN). `seconds` says where EPIG's time went.
    """

    indices: Tensor  # [budget]
    scores: Tensor  # [budget]
    seconds: dict[str, float] = field(default_factory=dict)

    __repr__ = described


def select(
    vlm: BayesVLM,
    pool: Features,
    target: Features,
    classes: ClassNames | Features,
    strategy: Strategy = "epig",
    budget: int = 200,
    pool_labels: Sequence[int] | Tensor | None = None,
    seed: int = 0,
    *,
    labelled: tuple[Features, Labels] | None = None,
    exclude: Sequence[int] | Tensor | None = None,
    **options: object,
) -> Tensor:  # [budget]
    """Indices into the pool of the items to label, in order; `rank` has the arguments and gives scores too.

    Warns where EPIG is asked for what a simpler strategy does as well (`better_without_epig`).
    """
    if strategy == "epig" and (advice := better_without_epig(check_count("budget", budget), len(target))):
        warnings.warn(advice, BayesVLMWarning, stacklevel=2)
    known: dict[str, Any] = {"labelled": labelled, "exclude": exclude, **options}
    return rank(vlm, pool, target, classes, strategy, budget, pool_labels, seed, **known).indices


def better_without_epig(budget: int, targets: int) -> str | None:
    """What to say where the budget reaches the number of target images; None elsewhere.

    The neighbours of all of them are then within reach, and there is little left to choose (docs/active.md).
    """
    if budget < targets:
        return None
    return (
        f"The budget of {budget} reaches the target's {targets} images, so that 'targeted-random' can label a "
        "neighbour of every one; with that many labels it did as well as 'epig' where both were tried, in a moment. "
        "EPIG is mostly ahead with fewer labels, and its order is of use if you stop early."
    )


@torch.no_grad()
def rank(
    vlm: BayesVLM,
    pool: Features,
    target: Features,
    classes: ClassNames | Features,
    strategy: Strategy = "epig",
    budget: int = 200,
    pool_labels: Sequence[int] | Tensor | None = None,
    seed: int = 0,
    *,
    labelled: tuple[Features, Labels] | None = None,
    exclude: Sequence[int] | Tensor | None = None,
    draws: int = 100,
    metric: Metric = "cosine",
    options: Epig | None = None,
    templates: Templates | None = None,
    progress: bool | None = None,
) -> Selection:
    """Choose what to label.

    With the same seed, a choice that is given what was labelled before goes on where that one ended: two of n items are
    one of 2n.

    Args:
        vlm: a fitted model.
        pool: what may be chosen, [N].
        target: what the model is to be good at; its labels are not needed, [M].
        classes, templates: as for `classify`, [C].
        strategy: see the module.
        budget: how many.
        pool_labels: the oracle EPIG asks for the label of what it chose; without it, its online steps leave W alone.
        seed: of everything random.
        labelled: images that have labels already, of the pool or not, and the labels. EPIG learns them before it
            chooses; every strategy leaves out those that are in the pool (equal features, up to
            rounding).
        exclude: rows of the pool that are not to be chosen.
        draws: of the parameters, for bald and epig.
        metric: by which targeted strategies and EPIG's candidates are near, "cosine" (expected) or "wasserstein".
        options: EPIG's.
    """
    check_choice("strategy", strategy, STRATEGIES)
    check_choice("metric", metric, get_args(Metric))
    check_count("budget", budget)
    check_count("draws", draws)
    names = class_names(classes)
    pool, target, texts = vlm.image_features(pool), vlm.image_features(target), vlm.class_features(classes, templates)
    known = Known.of(vlm, pool, labelled, exclude, names, len(texts))
    known.check_budget(budget)
    if len(target) == 0:
        raise BayesVLMError("The target has no images; give at least one, without labels.")
    if len(texts) < 2 and not strategy.endswith("random"):
        raise BayesVLMError(
            f"There is one class only, so {strategy} scores every image zero; name two classes or more, or use random."
        )
    labels = None if pool_labels is None else label_indices(pool_labels, names, len(pool), len(texts))
    generator = torch.Generator().manual_seed(seed)
    if strategy == "epig":
        loop = _EpigLoop(vlm, pool, target, texts, labels, known, draws, metric, options or Epig(), generator)
        return loop.run(budget, progress)
    targeted = strategy.startswith("targeted-")
    ranked = target if targeted else pool
    score = _SCORES[strategy.removeprefix("targeted-")](vlm, ranked, texts, draws, seed)
    order = _descending(score, generator)
    if not targeted:
        chosen = order[~known.taken[order]][:budget]
        return Selection(chosen, score[chosen])
    order = order.roll(-int(known.taken.sum()))  # the first ones have chosen
    chosen = nearest_distinct(vlm.embed_images(pool), vlm.embed_images(target), order, budget, metric, known.taken)
    return Selection(chosen, score[order[torch.arange(budget) % len(order)]])


# Scores of single inputs ----------------------------------------------------------------------------------------------


def _none(vlm: BayesVLM, inputs: Features, texts: Features, draws: int, seed: int) -> Tensor:  # [N]
    return torch.full((len(inputs),), torch.nan)


def _entropy(vlm: BayesVLM, inputs: Features, texts: Features, draws: int, seed: int) -> Tensor:  # [N]
    """Of the model's own probabilities, at the mean of the posterior (the paper's baseline)."""
    parts = row_blocks(len(inputs), len(texts), BLOCK)
    return torch.cat([entropy(vlm.plain(inputs[part], texts)).cpu() for part in parts])


def _bald(vlm: BayesVLM, inputs: Features, texts: Features, draws: int, seed: int) -> Tensor:  # [N]
    """Every chunk sees the same draws."""
    image, text = vlm.posterior["image"], vlm.posterior["text"]
    parts = row_blocks(len(inputs), draws * len(texts), BLOCK)
    probs = (drawn_probabilities(image, inputs[part], text, texts, vlm.scale, draws, seed) for part in parts)
    return torch.cat([bald(of).cpu() for of in probs])


_SCORES: dict[str, Callable[[BayesVLM, Features, Features, int, int], Tensor]] = {
    "random": _none,
    "entropy": _entropy,
    "bald": _bald,
}


def _descending(score: Tensor, generator: torch.Generator) -> Tensor:  # [N]
    """Highest score first, equal scores (and none) in random order."""
    shuffled = torch.randperm(len(score), generator=generator)
    return shuffled[score[shuffled].nan_to_num(0).sort(descending=True, stable=True).indices]


# EPIG -----------------------------------------------------------------------------------------------------------------


def candidates(
    vlm: BayesVLM,
    pool: Features,
    target: Features,
    known: Known,
    budget: int,
    metric: Metric,
    options: Epig,
    generator: torch.Generator,
    *,
    keep_labelled: bool = False,
) -> Tensor:  # [n]
    """The target's nearest pool items, in pool order. Those that are labelled were candidates too, and are left out
    unless they are to be kept."""
    size = len(pool) - int(known.excluded.sum())
    wanted = options.candidates or min(len(target), MOST_CANDIDATES)
    count = min(size, max(wanted, math.ceil(LEAST_CHOICE * (budget + int(known.labelled.sum())))))
    if count == size:
        near = (~known.excluded).nonzero().flatten()
    else:
        order = torch.randperm(len(target), generator=generator)
        embedded = vlm.embed_images(pool), vlm.embed_images(target)
        near = nearest_distinct(*embedded, order, count, metric, known.excluded).sort().values
    return near if keep_labelled else near[~known.labelled[near]]


@dataclass(eq=False)
class _EpigLoop:
    """Chooses one item, learns from it, and so on."""

    vlm: BayesVLM
    pool: Features
    target: Features
    texts: Features
    labels: Tensor | None
    known: Known
    draws: int
    metric: Metric
    options: Epig
    generator: torch.Generator
    seconds: dict[str, float] = field(default_factory=lambda: {"draws": 0.0, "scores": 0.0, "online": 0.0})

    def run(self, budget: int, progress: bool | None) -> Selection:
        contrast = ClassContrast.of(self.vlm, self.texts)
        options = (self.metric, self.options, self.generator)
        left = candidates(self.vlm, self.pool, self.target, self.known, budget, *options)
        online = self._learnt(OnlineLaplace.begin(self.vlm.posterior["image"], contrast, self.options.beta))
        chosen, scores = [], []
        with progress_bar("choosing by EPIG", total=budget, unit="items", show=progress) as advance:
            for _ in range(budget):
                with self._timed("online"), threads_for(online.step_cost):
                    shared = SharedDraws.of(online, self.vlm, self.texts, hold_text=self.options.text == "held")
                best, score = self._best(shared, left)
                item = int(left[best])
                chosen.append(item)
                scores.append(score)
                left = torch.cat([left[:best], left[best + 1 :]])
                label = None if self.labels is None else int(self.labels[item])
                with self._timed("online"), threads_for(online.step_cost):
                    online = self._step(online, self.pool[item], label)
                advance(1)
        return Selection(torch.tensor(chosen), torch.tensor(scores), self.seconds)

    def _step(self, online: OnlineLaplace, image: Features, label: int | None) -> OnlineLaplace:
        return online.step(image, label, self.options.gamma, solve_lam=self.options.solve_lam)

    def _learnt(self, online: OnlineLaplace) -> OnlineLaplace:
        """After the images that are labelled already, as if they had been chosen here."""
        for row, label in enumerate(self.known.labels.tolist()):
            assert self.known.images is not None
            self._draw()
            with self._timed("online"), threads_for(online.step_cost):
                online = self._step(online, self.known.images[row], label)
        return online

    def _draw(self) -> tuple[Features, int]:
        """The target images that a step looks at, and the seed of its draws."""
        count = min(self.options.targets, len(self.target))
        looked_at = self.target[torch.randperm(len(self.target), generator=self.generator)[:count]]
        return looked_at, int(torch.randint(2**31, (), generator=self.generator))

    def _best(self, shared: SharedDraws, left: Tensor) -> tuple[int, float]:
        """Which of the items that are left has the largest EPIG, and that EPIG.

        A chunk of them at a time; every chunk sees the same draws.
        """
        looked_at, seed = self._draw()
        count, best, score = len(looked_at), -1, -math.inf
        with threads_for(self._score_cost(len(left), count) + shared.cost(len(left) + count, self.draws)):
            for part in row_blocks(len(left), self.draws * len(self.texts), BLOCK):
                with self._timed("draws"):
                    both = Features.concatenate([looked_at, self.pool[left[part]]])
                    probs = shared.probabilities(both, self.draws, seed)
                with self._timed("scores"):
                    found, score = most_informative(probs[:, count:], probs[:, :count], score)
                best = best if found < 0 else part.start + found
        return best, score

    def _score_cost(self, candidates: int, targets: int) -> float:
        """Floating-point operations of bounding all items' scores and computing the least number of them, about."""
        classes = len(self.texts)
        bounded = (candidates * GROUPS + targets) * classes * self.draws
        return 2.0 * self.draws * (bounded + FIRST * targets * classes**2)

    def _timed(self, name: str) -> _Stopwatch:
        return _Stopwatch(self.seconds, name)


@dataclass
class _Stopwatch:
    """Adds the time spent inside it."""

    seconds: dict[str, float]
    name: str

    def __enter__(self) -> None:
        self.started = time.perf_counter()

    def __exit__(self, *problem: object) -> None:
        self.seconds[self.name] += time.perf_counter() - self.started
