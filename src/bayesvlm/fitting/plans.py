"""A fit of a plan on one machine: its groups one after another, with a checkpoint that a later run goes on from."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from bayesvlm.artifacts.checkpoint import restore_checkpoint, save_checkpoint
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.groups import NAMED, GroupSums, OpenGroup, Tally
from bayesvlm.data.pairs.plan import PairPlan
from bayesvlm.fitting.groups import FitSettings, factors_of_groups
from bayesvlm.fitting.stages import CHECKPOINT, Stages, shares
from bayesvlm.plain import PlainVLM
from bayesvlm.progress import duration, progress_bar

_EVERY = 60  # seconds between two lines that say how far it is, where no bar does

logger = logging.getLogger("bayesvlm.fitting")


def identified(plan: PairPlan) -> dict[str, Any]:
    """What tells a run over this plan from others: a checkpoint of another is refused."""
    record = plan.record()
    pairs = [record["plan"], record.get("shards") or record.get("lists")]
    return {**plan.settings, "pairs": hashlib.sha256(json.dumps(pairs).encode()).hexdigest()[:16]}


class SumGroups(Protocol):
    """What goes over the groups of a plan: `sum_groups`, or an engine that has more than one machine."""

    def __call__(
        self,
        vlm: PlainVLM,
        plan: PairPlan,
        settings: FitSettings,
        *,
        checkpoint: Path | None,
        run: Mapping[str, Any],
        progress: bool | None,
    ) -> GroupSums: ...


def sum_groups(
    vlm: PlainVLM,
    plan: PairPlan,
    settings: FitSettings,
    *,
    checkpoint: Path | None,
    run: Mapping[str, Any],
    progress: bool | None,
) -> GroupSums:
    """The sums of all groups of a plan, on this machine.

    Args:
        checkpoint: where they are kept after every contrast batch, or None.
        run: what identifies the run.
        progress: None shows a bar on a terminal.
    """
    sums, opened = restore_checkpoint(checkpoint, run) if checkpoint else (GroupSums(), None)
    for earlier in [sums.tally, *([] if opened is None else [opened.tally])]:
        note_skipped(plan, earlier)
    left = [group for group in plan.groups if group.index not in sums.groups]
    if opened is not None:  # first, whatever its place
        left.sort(key=lambda group: (group.index != opened.index, group.index))
    done = sum(group.size for group in plan.groups if group.index in sums.groups)
    done += 0 if opened is None else opened.position
    if checkpoint is not None and (sums.groups or opened is not None):
        pairs = sums.pairs + (opened.closed["image"].n if opened is not None and opened.closed else 0)
        logger.info("going on from %s, which holds %d pairs", checkpoint, pairs)

    def keep(state: OpenGroup) -> None:
        if checkpoint is not None:
            save_checkpoint(checkpoint, run, sums, state)

    stages = Stages()
    bar = progress_bar(
        "estimating the posterior", total=plan.size, done=done, unit="pairs", show=progress, note=lambda: str(stages)
    )
    began = said = time.perf_counter()
    read = 0
    with bar as advance:
        found = factors_of_groups(
            vlm, plan, left, settings, opened=opened, keep=keep if checkpoint else None, advance=advance, stages=stages
        )
        with closing(found):
            for number, group in enumerate(found, start=1):
                sums = sums.add(group)
                if checkpoint is not None and sums.pairs:
                    with stages(CHECKPOINT):
                        save_checkpoint(checkpoint, run, sums)
                read += group.tally.read
                now = time.perf_counter()
                if not advance.shown and number < len(left) and now - said > _EVERY:
                    said = now
                    _say(sums, plan, read / (now - began))
    return sums


def note_skipped(plan: PairPlan, tally: Tally) -> None:
    """Count what could not be read elsewhere, or by an earlier run."""
    for name, reason in tally.reasons.items():
        plan.source.skipped.count(name, BayesVLMError(reason), NAMED)
    plan.source.skipped.more += tally.skipped - len(tally.reasons)


def _say(sums: GroupSums, plan: PairPlan, speed: float) -> None:
    """How far it is, for a log file."""
    left = max(0, plan.size - sums.tally.read)
    logger.info(
        "group %d of %d: %d of %d pairs, %.3g pairs/s (%s), %s left",
        len(sums.groups),
        len(plan.groups),
        sums.tally.read,
        plan.size,
        speed,
        shares(sums.tally.seconds),
        duration(left / speed) if speed > 0 else "?",
    )
