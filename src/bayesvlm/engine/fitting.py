"""A fit on a cluster: Ray Data hands the groups of a plan to actors, and each gives back the factors of a group."""

from __future__ import annotations

import logging
import pickle
import time
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.groups import GroupFactors, GroupSums
from bayesvlm.data.pairs.plan import PairPlan
from bayesvlm.engine.cluster import Resources, busy, end_with_node, on_workers
from bayesvlm.engine.decoding import DecodingTasks
from bayesvlm.engine.groups import FinishedGroups
from bayesvlm.fitting.groups import FitSettings, group_factors
from bayesvlm.fitting.plans import note_skipped
from bayesvlm.fitting.stages import shares
from bayesvlm.plain import PlainVLM
from bayesvlm.progress import duration, progress_bar
from bayesvlm.vlm import BayesVLM

_EVERY = 60  # seconds between two lines that say how far it is, where no bar does

logger = logging.getLogger("bayesvlm.fitting")


class RayFit:
    """`bayesvlm.fitting.plans.sum_groups` on a cluster.

    Every group ends at one actor, which reads its pairs, has them decoded by tasks on any node, and gives back its sums
    alone. What is encoded together, and contrasted with what, depends on the plan and on nothing else.

    Args:
        resources: of the cluster that this process is connected to.
    """

    def __init__(self, resources: Resources) -> None:
        self.resources = resources

    def __call__(
        self,
        vlm: PlainVLM,
        plan: PairPlan,
        settings: FitSettings,
        *,
        checkpoint: Path | None,
        run: Mapping[str, Any],
        progress: bool | None,
    ) -> GroupSums:
        """The sums of all groups of a plan; arguments as for `sum_groups`.

        A group whose actor or node is lost is begun again by another; one that comes twice counts once.
        """
        finished = FinishedGroups([group.index for group in plan.groups], checkpoint, run)
        note_skipped(plan, finished.tally)
        if before := finished.tally.read:
            logger.info(
                "going on from %s, which holds %d of %d groups", checkpoint, _done(plan, finished), len(plan.groups)
            )
        bar = progress_bar(
            f"estimating the posterior ({self.resources.actors} actors)",
            total=plan.size,
            done=before,
            unit="pairs",
            show=progress,
            note=lambda: shares(finished.tally.seconds),
        )
        began = said = time.perf_counter()
        with bar as advance, closing(self._finish(vlm, plan, finished.left, settings)) as arriving:
            for group in arriving:
                if not finished.add(group):
                    continue
                note_skipped(plan, group.tally)
                advance(group.tally.read)
                now = time.perf_counter()
                if not advance.shown and finished.left and now - said > _EVERY:
                    said = now
                    _say(plan, finished, (finished.tally.read - before) / (now - began))
        return finished.sums

    def _finish(
        self, vlm: PlainVLM, plan: PairPlan, groups: Sequence[int], settings: FitSettings
    ) -> Generator[GroupFactors, None, None]:
        """The factors of these groups, as they come."""
        if not groups:
            return
        if wait := busy(self.resources):
            logger.info(wait)
        import ray

        assert isinstance(vlm, BayesVLM)
        shared = ray.put((vlm.without_posterior().to("cpu"), plan, settings))  # kept here: a new actor gets it again
        with on_workers():
            for batch in _results(groups, [shared], self.resources).iter_batches(batch_size=None, prefetch_batches=0):
                for content in batch["result"]:
                    found = pickle.loads(content)
                    if isinstance(found, BayesVLMError):
                        raise found
                    yield found


def _results(groups: Sequence[int], shared: list[Any], resources: Resources) -> Any:
    """The data set of what actors give back for groups: a block each, so that a group is what is tried again."""
    import ray
    from ray.data import ActorPoolStrategy, DataContext
    from ray.util.annotations import RayDeprecationWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of settings that a copy of the context reads,
        warnings.simplefilter("ignore", RayDeprecationWarning)  # and of the way to say how often an actor is retried
        context = DataContext.get_current().copy()
        context.enable_progress_bars = context.print_on_execution_start = False
        context.execution_no_progress_timeout_s = -1  # a group may take hours
        context.execution_options.preserve_order = False
        with DataContext.current(context):
            given = ray.data.from_items([{"group": index} for index in groups], override_num_blocks=len(groups))
            size = min(resources.actors, len(groups))
            return given.map_batches(
                _GroupActor,
                fn_constructor_args=(shared, resources),
                batch_size=1,
                compute=ActorPoolStrategy(size=size, max_tasks_in_flight_per_actor=1),
                **resources.of_actor,
            )


def _done(plan: PairPlan, finished: FinishedGroups) -> int:
    return len(plan.groups) - len(finished.left)


def _say(plan: PairPlan, finished: FinishedGroups, speed: float) -> None:
    """How far it is, for a log file."""
    tally, left = finished.tally, max(0, plan.size - finished.tally.read)
    logger.info(
        "%d of %d groups: %d of %d pairs, %.3g pairs/s (%s), %s left",
        _done(plan, finished),
        len(plan.groups),
        tally.read,
        plan.size,
        speed,
        shares(tally.seconds),
        duration(left / speed) if speed > 0 else "?",
    )


class _GroupActor:
    """What an actor of Ray Data is: one copy of the model, and a group at a time."""

    def __init__(self, shared: list[Any], resources: Resources) -> None:
        import ray

        end_with_node()
        vlm, self.plan, settings = ray.get(shared[0])
        self.vlm: BayesVLM = vlm.to(resources.device)
        self.settings: FitSettings = settings
        self.decoding = DecodingTasks(resources)
        self.groups = {group.index: group for group in self.plan.groups}

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        (index,) = batch["group"]
        found: GroupFactors | BayesVLMError
        try:
            group = self.groups[int(index)]
            found = group_factors(self.vlm, self.plan, group, self.settings, pool=self.decoding).to("cpu")
        except BayesVLMError as error:  # the user's to mend: no other actor need try it
            found = error
        return {"result": [pickle.dumps(found)]}
