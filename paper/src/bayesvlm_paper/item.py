"""An item: one table or figure of the paper, or a question beyond it, with what it is run on and how."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bayesvlm.artifacts.files import write_together
from bayesvlm_paper.findings import Finding
from bayesvlm_paper.lab import Lab, code_hash
from bayesvlm_paper.plans import Plan

SCHEMA = 1
Part = Literal["zero-shot", "robustness", "cost", "active learning", "the posterior", "beyond the paper"]


@dataclass(frozen=True)
class Item:
    """One table or figure.

    Args:
        name: what the command calls it: the paper's label without its prefix.
        title: a few words.
        question: what it answers.
        part: the chapter of the page it belongs to.
        world: what it is run on by default.
        paper: what the paper ran it on.
        measure: does it.
        reads_pairs: whether it needs the pairs themselves, not the posterior alone.
        distortions: how many times the pairs' images are encoded beside, each time distorted.
    """

    name: str
    title: str
    question: str
    part: Part
    world: Plan
    paper: Plan
    measure: Callable[[Lab], Finding]
    reads_pairs: bool = False
    distortions: int = 0

    @property
    def command(self) -> str:
        """What makes it again, by default."""
        return f"bayesvlm reproduce {self.name}"


@dataclass(frozen=True)
class Done:
    """An item that was run: its finding, or why there is none."""

    item: Item
    command: str
    finding: Finding | None
    seconds: float
    error: str = ""


def reproduce(item: Item, lab: Lab, command: str = "", again: bool = False) -> Done:
    """Run an item, or read what it came to from the same inputs before; NAME.json is written whole.

    Args:
        command: the one that asked for it, to be shown beside it.
        again: run it even so.
    """
    command = command or item.command
    inputs = _inputs(lab)
    path = lab.out / f"{item.name}.json"
    kept = None if again else _read(path, inputs)
    if kept is not None:
        return Done(item, command, Finding.from_json(kept["finding"]), kept["seconds"])
    started = time.perf_counter()
    finding = item.measure(lab)
    seconds = time.perf_counter() - started
    content = {
        "schema": SCHEMA,
        "item": item.name,
        "question": item.question,
        "command": command,
        "inputs": inputs,
        "seconds": seconds,
        "finding": finding.to_json(),
    }
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    write_together(path.parent, {path.name: text.encode()})
    return Done(item, command, Finding.from_json(json.loads(text)["finding"]), seconds)


def earlier_command(item: Item, out: Path) -> str | None:
    """The command that an item was last run into this folder with; None where it was not."""
    try:
        return str(json.loads((out / f"{item.name}.json").read_text(encoding="utf-8"))["command"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def last_seconds(item: Item, out: Path) -> float | None:
    """How long an item took when it was last run into this folder; None where it was not."""
    try:
        return float(json.loads((out / f"{item.name}.json").read_text(encoding="utf-8"))["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _inputs(lab: Lab) -> dict[str, Any]:
    """What the finding depends on, the code that makes it among it."""
    return json.loads(json.dumps({**lab.inputs(), "code": code_hash()}))  # type: ignore[no-any-return]


def _read(path: Path, inputs: dict[str, Any]) -> dict[str, Any] | None:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["schema"] == SCHEMA and kept["inputs"] == inputs:
            Finding.from_json(kept["finding"])
            return kept  # type: ignore[no-any-return]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None
