"""An item: one table or figure of the paper, or a question beyond it, with what it is run on and how."""

from __future__ import annotations

import hashlib
import inspect
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from bayesvlm.artifacts.files import write_together
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.experiments.reproduction.findings import Finding
from bayesvlm.experiments.reproduction.lab import Lab
from bayesvlm.experiments.reproduction.plans import Plan

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
    """

    name: str
    title: str
    question: str
    part: Part
    world: Plan
    paper: Plan
    measure: Callable[[Lab], Finding]

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
    inputs = _inputs(item, lab)
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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_together(path.parent, {path.name: text.encode()})
    except OSError as error:
        raise BayesVLMError(f"{path} cannot be written: {error.strerror or error}.") from None
    return Done(item, command, Finding.from_json(json.loads(text)["finding"]), seconds)


def _inputs(item: Item, lab: Lab) -> dict[str, Any]:
    """What the finding depends on, the code that makes it among it."""
    measure = item.measure.func if isinstance(item.measure, partial) else item.measure
    source = inspect.getsourcefile(measure)
    code = hashlib.sha256(Path(source).read_bytes()).hexdigest() if source else ""
    return json.loads(json.dumps({**lab.inputs(), "code": code}))  # type: ignore[no-any-return]


def _read(path: Path, inputs: dict[str, Any]) -> dict[str, Any] | None:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["schema"] == SCHEMA and kept["inputs"] == inputs:
            Finding.from_json(kept["finding"])
            return kept  # type: ignore[no-any-return]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None
