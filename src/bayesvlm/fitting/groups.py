"""The pass over the groups of a plan: pairs through decode workers and encoders into factors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch

from bayesvlm.core.contrast import Precision
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.estimation import Beside, FactorEstimator, Normalise
from bayesvlm.core.groups import NAMED, GroupFactors, OpenGroup, Tally
from bayesvlm.data.pairs.batches import Pair
from bayesvlm.data.pairs.plan import Group, PairPlan
from bayesvlm.fitting.beside import ThreadBeside, pays_beside
from bayesvlm.fitting.encoding import encoded_pairs
from bayesvlm.fitting.stages import CHECKPOINT, CURVATURE, Stages
from bayesvlm.images.files import SkippedImages
from bayesvlm.images.workers import Pool, Workers, choose_workers
from bayesvlm.models.streaming import PixelBatch, stream_pixel_batches
from bayesvlm.plain import PlainVLM


@dataclass(frozen=True)
class FitSettings:
    """How factors are computed from the pairs of a group.

    Args:
        normalise: of the sigmoid loss: "paper" (divide by the contrast batch) or "sum".
        precision, memory: of the curvature, see `bayesvlm.core.curvature`.
        workers: processes that decode; 0 has threads do it, None chooses.
        beside: compute the curvature of a contrast batch while the next one is encoded, and begin to encode batches
            before the last one is there; None does so on a GPU. The factors are the same to the bit.
    """

    normalise: Normalise = "paper"
    precision: Precision | None = None
    memory: int | None = None
    workers: int | None = None
    beside: bool | None = None

    def estimator(
        self, vlm: PlainVLM, negatives: int, beside: Beside | None = None, opened: OpenGroup | None = None
    ) -> FactorEstimator:
        """One for a model: fresh, or going on with a group."""
        state = {} if opened is None else opened.estimation(vlm.device)
        return FactorEstimator(
            vlm.image,
            vlm.text,
            vlm.scale,
            vlm.logit_bias or 0.0,
            vlm.loss,
            negatives,
            self.normalise,
            self.precision,
            self.memory,
            beside=beside,
            **state,
        )

    def aside(self, device: torch.device) -> AbstractContextManager[Beside | None]:
        """Where the curvature is computed; None in the encoder's own thread."""
        wanted = pays_beside(device, self.precision) if self.beside is None else self.beside
        return ThreadBeside(device) if wanted else nullcontext()


def group_factors(
    vlm: PlainVLM,
    plan: PairPlan,
    group: Group,
    settings: FitSettings | None = None,
    *,
    pool: Pool | None = None,
    advance: Callable[[int], None] | None = None,
) -> GroupFactors:
    """The factors of one group: what a worker of a cluster computes, and a retry computes again.

    Args:
        vlm: the model.
        plan: that the group is of.
        group: one of its groups.
        settings: None has the usual ones.
        pool: what decodes in the place of workers of this process.
        advance: told how many pairs more were read, now and then.
    """
    (found,) = factors_of_groups(vlm, plan, [group], settings or FitSettings(), pool=pool, advance=advance)
    return found


def factors_of_groups(
    vlm: PlainVLM,
    plan: PairPlan,
    groups: Iterable[Group],
    settings: FitSettings,
    *,
    pool: Pool | None = None,
    opened: OpenGroup | None = None,
    keep: Callable[[OpenGroup], None] | None = None,
    advance: Callable[[int], None] | None = None,
    stages: Stages | None = None,
) -> Generator[GroupFactors, None, None]:
    """The factors of groups, one after another; workers read on over the ends of groups.

    What is encoded together depends on the plan alone, not on where a run begins: batches end with the contrast batch.

    Args:
        pool: what decodes in the place of workers of this process.
        opened: where the first group is gone on with.
        keep: given the state of the group after each of its contrast batches but the last.
        stages: where the time of each stage is noted.
    """
    stages = stages or Stages()
    encoder = vlm.encoder("images")
    marks: deque[_Mark] = deque()
    first = 0 if opened is None else opened.position

    def batches() -> Iterator[list[Pair]]:
        position = first
        for group in groups:
            for batch, mark in _batches(plan, group, position):
                marks.append(mark)
                yield batch
            position = 0

    workers: Workers | None = settings.workers if pool is None else pool
    if workers is None:
        workers = choose_workers(plan.size, plan.batch_size * encoder.preprocessor.bytes)
    cuda = vlm.device.type == "cuda"
    ahead = cuda if settings.beside is None else settings.beside
    with (
        closing(_read_ahead(batches())) as read,
        closing(stream_pixel_batches(encoder.preprocessor, read, workers=workers, label="pairs", pin=cuda)) as pixels,
        closing(encoded_pairs(vlm, pixels, marks.popleft, _Mark.parts, stages, ahead=ahead)) as encoded,
        settings.aside(vlm.device) as beside,
    ):
        current: _Current | None = None
        begun = stages.taken()
        for batch, mark, images, texts in encoded:
            if current is None:
                estimator = settings.estimator(vlm, plan.negatives, beside, opened)
                tally = Tally() if opened is None else opened.tally
                current = _Current(estimator, mark.group.index, tally, stages, begun)
                opened = None
            current.note(batch, plan.source.skipped)
            if images is not None and texts is not None:
                with stages(CURVATURE):
                    current.estimator.add(images, texts)
            if mark.ends:
                finished, current, begun = current.finished(), None, stages.taken()
                yield finished
            elif mark.closes:
                current.close(mark.position, keep)
            if advance is not None:
                advance(batch.seen)


def _read_ahead(batches: Iterator[list[Pair]]) -> Generator[list[Pair], None, None]:
    """The batches, read from where they are stored by a thread, two ahead of who takes them."""
    end: list[Pair] = []
    with ThreadPoolExecutor(1) as pool:
        waiting = deque(pool.submit(next, batches, end) for _ in range(2))
        try:
            while (batch := waiting.popleft().result()) is not end:
                waiting.append(pool.submit(next, batches, end))
                yield batch
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class _Mark:
    """Where in its group a batch ends."""

    group: Group
    position: int
    closes: bool = False  # a contrast batch
    ends: bool = False  # the group

    def parts(self) -> bool:
        """Whether nothing after it may have a part in what is encoded: a run that goes on begins there."""
        return self.closes or self.ends


def _batches(plan: PairPlan, group: Group, position: int) -> Iterator[tuple[list[Pair], _Mark]]:
    """The pairs of a group in batches that end where a contrast batch does; the last one may be empty."""
    pairs = plan.stored(group, position)
    first = next(pairs, None)
    while True:
        room = min(plan.batch_size, plan.negatives - position % plan.negatives)
        batch = [] if first is None else [first, *islice(pairs, room - 1)]
        position += len(batch)
        first = next(pairs, None)
        yield batch, _Mark(group, position, position % plan.negatives == 0, first is None)
        if first is None:
            return


@dataclass
class _Current:
    """The group that is read at present."""

    estimator: FactorEstimator
    index: int
    tally: Tally
    stages: Stages
    begun: Mapping[str, float]  # what the stages had taken before

    def note(self, batch: PixelBatch, skipped: SkippedImages) -> None:
        """Count the pairs of a batch, and those that could not be read."""
        named = [(batch.input(place).name, reason) for place, reason in batch.unreadable.items()]
        for name, reason in named:
            skipped.count(name, BayesVLMError(reason), NAMED)
        self.tally += Tally(batch.seen, len(named), dict(named))

    def close(self, position: int, keep: Callable[[OpenGroup], None] | None) -> None:
        """End a contrast batch, and have the state after it kept."""
        then = None if keep is None else partial(self._keep, position, self._timed(), keep)
        with self.stages(CURVATURE):
            self.estimator.close(then)

    def _keep(self, position: int, tally: Tally, keep: Callable[[OpenGroup], None]) -> None:
        state = OpenGroup(self.index, position, dict(self.estimator.closed), self.estimator.recent, tally)
        with self.stages(CHECKPOINT) if self.estimator.beside is None else nullcontext():
            keep(state)

    def finished(self) -> GroupFactors:
        """End the group."""
        if self.estimator.pairs_seen < 2:
            return GroupFactors(self.index, None, self._timed())
        with self.stages(CURVATURE):
            factors = self.estimator.factors()
        return GroupFactors(self.index, factors, self._timed())

    def _timed(self) -> Tally:
        now = self.stages.taken()
        return self.tally + Tally(seconds={name: now[name] - self.begun[name] for name in now})
