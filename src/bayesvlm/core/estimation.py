r"""Kronecker factors of both towers from a stream of image-text pairs, in one pass and bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from bayesvlm.core.contrast import PRECISIONS, Precision
from bayesvlm.core.curvature import infonce_curvature, sigmoid_curvature
from bayesvlm.core.errors import BayesVLMError, check_choice, check_positive
from bayesvlm.core.evidence import Evidence, Structure
from bayesvlm.core.factors import KroneckerFactors
from bayesvlm.core.features import Features
from bayesvlm.core.printing import described
from bayesvlm.core.projection import Projection

Loss = Literal["infonce", "sigmoid"]
Normalise = Literal["paper", "sum"]
Tower = Literal["image", "text"]
TOWERS: tuple[Tower, Tower] = ("image", "text")


class Beside(Protocol):
    """Does work beside what its owner does, one piece after the other."""

    def submit(self, work: Callable[[], None]) -> Future[None]: ...


@dataclass
class FactorEstimator:
    """Collects pairs into contrast batches of `negatives` and adds up each batch's curvature.

    What is left at the end of the stream is contrasted with itself and with pairs of the batch before, so that its
    rows too see `negatives` candidates (where that many pairs exist at all).

    Args:
        image, text: the towers' projections.
        scale: t = exp(logit_scale).
        bias: logit_bias, for the sigmoid loss.
        loss: "infonce" or "sigmoid".
        negatives: size K of a contrast batch; memory grows with it, not with the number of pairs.
        normalise: of the sigmoid loss: "paper" (divide by K) or "sum".
        precision, memory: as in `bayesvlm.core.curvature`.
        closed, recent: of an estimator that was interrupted; `recent` is the last contrast batch, which lends pairs.
        beside: runs the curvature of a contrast batch while the next one is taken; None runs it here. The sums are
            the same to the bit.
    """

    image: Projection
    text: Projection
    scale: float
    bias: float = 0.0
    loss: Loss = "infonce"
    negatives: int = 32768
    normalise: Normalise = "paper"
    precision: Precision | None = None
    memory: int | None = None
    closed: dict[Tower, KroneckerFactors] = field(default_factory=dict)  # sums over finished contrast batches
    recent: dict[Tower, Tensor] = field(default_factory=dict)  # embeddings [K, d] of the last finished batch
    beside: Beside | None = None
    _pending: dict[Tower, list[Tensor]] = field(default_factory=lambda: {"image": [], "text": []})
    _pending_gram: dict[Tower, Tensor] = field(default_factory=dict)
    _begun: int = 0  # pairs in contrast batches that were ended, whether their sums are complete or not
    _running: Future[None] | None = None

    __repr__ = described

    def __post_init__(self) -> None:
        if not isinstance(self.negatives, int) or self.negatives < 2:
            raise BayesVLMError(f"negatives={self.negatives}; a contrast batch needs at least 2 pairs.")
        check_choice("loss", self.loss, get_args(Loss))
        check_choice("normalise", self.normalise, get_args(Normalise))
        check_positive("scale", self.scale)
        if self.precision is not None:
            check_choice("precision", self.precision, PRECISIONS)
        if self.image.embedding_width != self.text.embedding_width:
            raise BayesVLMError(
                f"The towers' embeddings are {self.image.embedding_width} and {self.text.embedding_width} wide; "
                "both must map to one space."
            )
        self.closed, self.recent = dict(self.closed), dict(self.recent)
        self._begun = self.pairs_closed

    @property
    def pairs_closed(self) -> int:
        """Pairs in finished contrast batches: where a resumed run goes on."""
        return self.closed["image"].n if self.closed else 0

    @property
    def pairs_seen(self) -> int:
        return self._begun + self._pending_pairs

    def update(self, images: Features, texts: Features) -> None:
        """Take a batch of pairs, and end a contrast batch after every `negatives` of them."""
        if len(images) != len(texts):
            raise BayesVLMError(f"A batch has {len(images)} images and {len(texts)} texts; pairs need equally many.")
        while len(images):
            room = self.negatives - self._pending_pairs
            self.add(images[:room], texts[:room])
            images, texts = images[room:], texts[room:]
            if self._pending_pairs == self.negatives:
                self.close()

    @torch.no_grad()
    def add(self, images: Features, texts: Features) -> None:
        """Take a batch of pairs into the contrast batch that is open; row i of one belongs to row i of the other."""
        if len(images) != len(texts):
            raise BayesVLMError(f"A batch has {len(images)} images and {len(texts)} texts; pairs need equally many.")
        embeddings = {"image": self.image.embed(images), "text": self.text.embed(texts)}  # both, before either counts
        inputs = {"image": self.image.inputs(images).double(), "text": self.text.inputs(texts).double()}
        for tower in TOWERS:
            self._pending[tower].append(embeddings[tower])
            self._pending_gram[tower] = self._pending_gram.get(tower, 0) + inputs[tower].T @ inputs[tower]

    @torch.no_grad()
    def factors(self) -> dict[Tower, KroneckerFactors]:
        """The factors of all pairs seen so far. Closes the pending batch, so call it at the end of the stream."""
        if self.pairs_seen < 2:
            raise BayesVLMError(
                f"The posterior was given {self.pairs_seen} pair(s); contrasting needs at least 2, and a useful "
                "estimate thousands."
            )
        self.close()
        self.wait()
        return dict(self.closed)

    @property
    def _pending_pairs(self) -> int:
        return sum(map(len, self._pending["image"]))

    def close(self, then: Callable[[], None] | None = None) -> None:
        """End the contrast batch that is open, short as it may be.

        A single pair that has no batch before it to be contrasted with stays open, and waits for others.

        Args:
            then: called when the sums hold this batch; with `beside`, in its thread.
        """
        self.wait()
        count = self._pending_pairs
        if count == 0 or (count == 1 and not self.recent):
            if count == 0 and then is not None:
                then()
            return
        own = {tower: torch.cat(self._pending[tower]) for tower in TOWERS}
        borrowed = max(0, self.negatives - count) if self.recent else 0
        candidates = {
            tower: torch.cat([own[tower], self.recent[tower][:borrowed]]) if borrowed else own[tower]
            for tower in TOWERS
        }
        work = partial(self._contrast, own, candidates, self._pending_gram, then)
        self.recent, self._begun = own, self._begun + count
        self._pending, self._pending_gram = {"image": [], "text": []}, {}
        if self.beside is None:
            work()
        else:
            self._running = self.beside.submit(work)

    def wait(self) -> None:
        """Until the sums hold every contrast batch that was ended."""
        running, self._running = self._running, None
        if running is not None:
            running.result()

    @torch.no_grad()
    def _contrast(
        self,
        own: Mapping[Tower, Tensor],  # [n, d]
        candidates: Mapping[Tower, Tensor],  # [K, d]
        gram: Mapping[Tower, Tensor],  # [p, p]
        then: Callable[[], None] | None,
    ) -> None:
        for tower, other in zip(TOWERS, reversed(TOWERS), strict=True):
            B = self._curvature(own[tower], candidates[other])
            added = KroneckerFactors(gram[tower], B, len(own[tower]))
            self.closed[tower] = self.closed[tower].merge(added) if tower in self.closed else added
        if then is not None:
            then()

    def _curvature(self, source: Tensor, target: Tensor) -> Tensor:  # [d, d]
        if self.loss == "infonce":
            positives = torch.arange(len(source), device=source.device)
            return infonce_curvature(
                source, target, self.scale, positives, precision=self.precision, memory=self.memory
            )
        return sigmoid_curvature(
            source, target, self.scale, self.bias, self.normalise, precision=self.precision, memory=self.memory
        )


def best_lams(
    factors: Mapping[Tower, KroneckerFactors],
    weight_norm_squared: Mapping[str, float],
    tau: float,
    structure: Structure,
) -> dict[str, float]:
    """The prior precision of both towers by the evidence."""
    return {
        tower: Evidence(
            factors[tower].A_spectrum.values,
            factors[tower].B_spectrum.values,
            weight_norm_squared[tower],
            tau,
            structure,
        ).best_lam()
        for tower in TOWERS
    }
