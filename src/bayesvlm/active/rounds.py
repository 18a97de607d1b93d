"""What rounds of labelling gained, kept beside the posterior that the last one led to: `rounds.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bayesvlm.active.stopping import Gain
from bayesvlm.artifacts.files import write_together
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.evaluation import Estimate

FILE = "rounds.json"
SCHEMA = 1
ROUNDING = 1e-3  # nats by which the losses of one model on one image may differ between two runs


@dataclass(frozen=True, eq=False)
class Rounds:
    """The losses of the same validation images after each round, from the model that learnt from no label on.

    Args:
        images: which images they are, [N].
        losses: number of labels -> -log p_y of each image, in the order of the rounds.
    """

    images: tuple[str, ...]
    losses: Mapping[int, Tensor]  # [N] each

    @property
    def nlpd(self) -> dict[int, Estimate]:
        """After each round."""
        return {labels: Estimate.of(losses) for labels, losses in self.losses.items()}

    def gains(self) -> list[Gain]:
        """What the last round's labels gained, then those of the last two together, and so on back to the first."""
        counts = list(self.losses)
        now = counts[-1]
        return [Gain(now - then, self.losses[then], self.losses[now]) for then in reversed(counts[:-1])]

    def after(self, previous: Rounds, folder: Path) -> Rounds:
        """These two rounds, none and all labels, with earlier ones between them, which must be about the same thing."""
        if previous.images != self.images:
            raise BayesVLMError(
                f"{folder} was measured on {len(previous.images)} other validation images than these "
                f"{len(self.images)}; give the same --validation, or leave --previous out."
            )
        first, now = self.losses[0], max(self.losses)
        if not torch.allclose(previous.losses[0], first, rtol=0, atol=ROUNDING):
            raise BayesVLMError(
                f"{folder} was made from another model, or with other classes, prompts or tau: the same validation "
                "images had other losses before the first label; give the posterior it was made from, or leave "
                "--previous out."
            )
        learnt = max(previous.losses)
        if now <= learnt:
            raise BayesVLMError(
                f"{folder} learnt from {learnt} labels and there are {now} now; give all labels so far, the earlier "
                "ones too."
            )
        return Rounds(self.images, {**previous.losses, now: self.losses[now]})

    def save(self, folder: Path) -> None:
        """Write the file."""
        rounds = [
            {
                "labels": labels,
                "nlpd": self.nlpd[labels].value,
                "standard_error": self.nlpd[labels].standard_error,
                "losses": [round(loss, 6) for loss in losses.tolist()],
            }
            for labels, losses in self.losses.items()
        ]
        content = {"schema": SCHEMA, "images": self.images, "rounds": rounds}
        write_together(folder, {FILE: (json.dumps(content) + "\n").encode()})

    @classmethod
    def load(cls, folder: Path) -> Rounds:
        """Read the file of a folder."""
        path = folder / FILE
        if not path.is_file():
            raise BayesVLMError(
                f"{folder} has no {FILE}: name a folder that `bayesvlm finetune` wrote with --validation, or leave "
                "--previous out."
            )
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            images = tuple(content["images"])
            losses = {each["labels"]: torch.tensor(each["losses"], dtype=torch.float64) for each in content["rounds"]}
            whole = (
                content["schema"] == SCHEMA and 0 in losses and all(len(of) == len(images) for of in losses.values())
            )
        except (ValueError, KeyError, TypeError):
            whole = False
        if not whole:
            raise BayesVLMError(f"{path} is damaged, or of another version; make {folder} again.")
        return cls(images, losses)
