r"""When further labels have stopped paying: what the last ones gained, and what the next ones are expected to tell.

*Gained*: the paired difference of the losses -log p_y of the same validation images before and after, its mean over the
images and standard error. It is judged one-sided at 5 %: labels paid if it is above zero, and were not worth it if it
is below `worth` for each hundred of them; between the two it cannot be told.

*Expected*: by the posterior in which every labelled image counts as one pair (beta = 1), the expected information gain
of the best items that are left about the target's labels, in nats per label and target image, which is how much the
model expects its NLPD to fall; several tell the same in part. Draws bias it upwards, whatever the dependence; what pool
and target have in common once their draws are permuted is that bias, and is taken off. One half of the draws finds the
best, the other values them.

Either alone misleads: gains come in steps, and the model may expect what it does not get. Labels have stopped paying
when both say so (docs/active.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesvlm.active.acquisition import epig
from bayesvlm.active.contrast import ClassContrast
from bayesvlm.active.drawing import SharedDraws
from bayesvlm.active.finetune import Labels
from bayesvlm.active.known import Known
from bayesvlm.active.online import OnlineLaplace
from bayesvlm.active.selection import BLOCK, Epig, candidates
from bayesvlm.classes import class_names
from bayesvlm.core.blocks import row_blocks
from bayesvlm.core.errors import BayesVLMError, check_count
from bayesvlm.core.features import Features
from bayesvlm.evaluation import Estimate, paired_t_test
from bayesvlm.prompts import ClassNames, Templates
from bayesvlm.vlm import BayesVLM

WORTH = 0.02  # nats that a hundred labels must gain: probabilities of what is true 2 % higher
LEVEL = 0.05  # of the one-sided tests
BEST = 20  # items that are left, whose mean is the value of a label
PERMUTATIONS = 4  # of the draws, whose mean is the bias


@dataclass(frozen=True, eq=False)
class Gain:
    """What some labels gained.

    Args:
        labels: how many.
        before, after: [N], losses -log p_y of the same validation images.
    """

    labels: int
    before: Tensor  # [N]
    after: Tensor  # [N]

    def __post_init__(self) -> None:
        check_count("labels", self.labels)

    @property
    def nats(self) -> Estimate:
        """Per image."""
        return Estimate.of(self.before - self.after)

    @property
    def paid(self) -> bool:
        """Whether the loss fell, beyond what the choice of the images can explain."""
        return self._above(0.0)

    def below(self, worth: float = WORTH) -> bool:
        """Whether they gained less than `worth` nats for each hundred, beyond what the choice of images can explain."""
        wanted = worth * self.labels / 100
        test = paired_t_test(self.before - self.after, torch.full_like(self.before, wanted))
        return test.difference < 0 and test.p < 2 * LEVEL

    def _above(self, nats: float) -> bool:
        test = paired_t_test(self.before - self.after, torch.full_like(self.before, nats))
        return test.difference > 0 and test.p < 2 * LEVEL


@dataclass(frozen=True)
class Outlook:
    """What a label is expected to tell about the target: nats per label and target image.

    Args:
        first: before the first label.
        now: of the best items that are left.
    """

    first: float
    now: float

    def below(self, worth: float = WORTH) -> bool:
        """Whether a hundred more are expected to tell less than `worth` nats."""
        return 100 * self.now < worth

    @property
    def share(self) -> float:
        """Now as a share of first."""
        return self.now / self.first if self.first > 0 else 0.0


def stopped_paying(gains: Sequence[Gain], outlook: Outlook, worth: float = WORTH) -> bool:
    """Whether what was gained and what is expected are both below `worth` nats for a hundred labels.

    Args:
        gains: since every earlier round, the last one first; one that is below is enough, so that rounds too small to
            tell are judged together.
    """
    return outlook.below(worth) and any(gain.below(worth) for gain in gains)


@torch.no_grad()
def outlook(
    vlm: BayesVLM,
    pool: Features,
    target: Features,
    classes: ClassNames | Features,
    labelled: tuple[Features, Labels] | None = None,
    *,
    exclude: Sequence[int] | Tensor | None = None,
    draws: int = 400,
    options: Epig | None = None,
    templates: Templates | None = None,
    seed: int = 0,
) -> Outlook:
    """What a label is expected to tell about the target, before the labelled images and after.

    Args:
        vlm: a fitted model, as it was before the labels.
        pool, target, classes, templates, labelled, exclude: as for `rank`.
        draws: of the parameters, in two halves.
        options: EPIG's: the rate gamma of the online steps, targets, candidates, text; beta is 1 here.
        seed: of the draws and of the target images that are looked at.
    """
    check_count("draws", draws)
    if draws < 2:
        raise BayesVLMError("draws=1; give at least 2: one half finds the best items, the other values them.")
    options = options or Epig()
    pool, target, texts = vlm.image_features(pool), vlm.image_features(target), vlm.class_features(classes, templates)
    known = Known.of(vlm, pool, labelled, exclude, class_names(classes), len(texts))
    if bool(known.excluded.all()):
        raise BayesVLMError(
            f"All {len(pool)} images of the pool are excluded, so that there is no label to expect anything of; leave "
            "some in."
        )
    generator = torch.Generator().manual_seed(seed)
    near = candidates(vlm, pool, target, known, 1, "cosine", options, generator, keep_labelled=True)
    left = near[~known.taken[near]]
    looked_at = target[torch.randperm(len(target), generator=generator)[: options.targets]]
    online = OnlineLaplace.begin(vlm.posterior["image"], ClassContrast.of(vlm, texts), beta=1.0)
    value = _Value(vlm, texts, looked_at, options.text == "held", draws)
    first = value.of(online, pool[near], seed)
    if known.images is None:
        return Outlook(first, first)
    for row, label in enumerate(known.labels.tolist()):
        online = online.step(known.images[row], label, options.gamma)
    return Outlook(first, value.of(online, pool[left], seed) if len(left) else 0.0)


@dataclass(frozen=True, eq=False)
class _Value:
    """Values the best of some images by what their labels would tell about others."""

    vlm: BayesVLM
    texts: Features
    target: Features
    hold_text: bool
    draws: int

    def of(self, online: OnlineLaplace, images: Features, seed: int) -> float:
        """Mean over the best, nats per label."""
        shared = SharedDraws.of(online, self.vlm, self.texts, hold_text=self.hold_text)
        count, half, found = len(self.target), self.draws // 2, []
        for part in row_blocks(len(images), half * len(self.texts), BLOCK):
            probs = shared.probabilities(Features.concatenate([self.target, images[part]]), half, seed)
            found.append(epig(probs[:, count:], probs[:, :count]).cpu())
        best = torch.cat(found).topk(min(BEST, len(images))).indices
        both = Features.concatenate([self.target, images[best]])
        probs = shared.probabilities(both, self.draws - half, seed + 1)
        pool, target = probs[:, count:], probs[:, :count]
        generator = torch.Generator().manual_seed(seed)
        orders = [torch.randperm(len(probs), generator=generator) for _ in range(PERMUTATIONS)]
        bias = torch.stack([epig(pool[order], target) for order in orders]).mean()
        return max(0.0, float(epig(pool, target).mean() - bias))  # as information is
