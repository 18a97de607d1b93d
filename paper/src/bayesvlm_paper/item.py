"""An item: one table or figure of the paper, or a question beyond it, with what it is run on and how.

An item measures numbers, and tells a finding from them. Only the numbers are kept, in NAME.json, with the inputs they
depend on: as long as these and the item's version are the same, the finding is told from the file and no model is
loaded. Words, tables and drawings are made anew every time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from bayesvlm.artifacts.files import write_together
from bayesvlm.core.errors import BayesVLMError
from bayesvlm_paper.finding import Finding, Numbers, Tell
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.plans import PLAN, Plan

SCHEMA = 2
Measure = Callable[[Lab], Numbers]
Code = dict[str, tuple[Measure, Tell]]
"""Items by name: how each measures and tells."""
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
        measure: takes the numbers, and is all that needs a model.
        tell: makes the finding from the numbers, as json holds them, and the plan among them.
        version: raised when `measure` comes to give other numbers from the same inputs: then kept ones are not used.
        tunes: whether it looks for tau or a temperature on the validation set itself; else that set is only for a
            posterior that has to be fitted first.
        needs_posterior: whether a model without a posterior is fitted for it.
        reads_pairs: whether it needs the pairs themselves, not the posterior alone.
        distorts_pairs: whether the images of the pairs are encoded again with every distortion.
        pictures: of its first set it encodes so many pictures alone, at every level of corruption, and keeps no
            features of them; None where it encodes its sets whole.
        claims: what is judged, in the order of its finding; braces where a limit of the code stands.
        remarks: what its finding says whatever was measured.
    """

    name: str
    title: str
    question: str
    part: Part
    world: Plan
    paper: Plan
    measure: Measure
    tell: Tell
    version: int = 1
    tunes: bool = True
    needs_posterior: bool = True
    reads_pairs: bool = False
    distorts_pairs: bool = False
    pictures: int | None = None
    claims: Sequence[str] = ()
    remarks: Sequence[str] = ()

    @classmethod
    def of(cls, name: str, facts: Mapping[str, Any], measure: Measure, tell: Tell) -> Item:
        """From the catalogue's facts and its code."""
        plans = {which: Plan.from_json(facts[which]) for which in ("world", "paper")}
        return cls(**{**facts, **plans, "name": name, "measure": measure, "tell": tell})

    @property
    def command(self) -> str:
        """What makes it again, by default."""
        return f"bayesvlm reproduce {self.name}"


@dataclass(frozen=True)
class Reproduced:
    """An item that was run, or read: its numbers and what they tell, or why there are none."""

    item: Item
    command: str
    numbers: Mapping[str, Any]
    finding: Finding | None
    seconds: float
    error: str = ""


def reproduce(item: Item, lab: Lab, command: str = "", again: bool = False) -> Reproduced:
    """Run an item, or read what it came to from the same inputs before; NAME.json is written whole.

    Args:
        command: the one that asked for it, to be shown beside it.
        again: run it even so.
    """
    command = command or item.command
    record = None if again else kept_record(item, lab.out)
    if record is None or {**record, **_declared(item, lab)} != record or not isinstance(record.get("numbers"), dict):
        started = time.perf_counter()
        numbers = item.measure(lab)
        if PLAN in numbers:
            raise BayesVLMError(f"A model or set is called {PLAN!r}, which means something else here; rename it.")
        seconds = time.perf_counter() - started
        measured = {"command": command, "seconds": seconds, "numbers": {**numbers, PLAN: asdict(lab.plan)}}
        record = {**_declared(item, lab), **measured}
        text = json.dumps(record, indent=1, allow_nan=False) + "\n"
        write_together(lab.out, {f"{item.name}.json": text.encode()})
        record = json.loads(text)
    return Reproduced(item, command, record["numbers"], item.tell(record["numbers"]), record["seconds"])


def kept_record(item: Item, out: Path) -> dict[str, Any] | None:
    """What NAME.json holds, of whatever inputs; None where there is none, or one that cannot be read."""
    try:
        record = json.loads((out / f"{item.name}.json").read_text(encoding="utf-8"))
        return {**record, "command": str(record["command"]), "seconds": float(record["seconds"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _declared(item: Item, lab: Lab) -> dict[str, Any]:
    """What kept numbers must be of to be those that this item would measure in this lab, as json holds it."""
    declared = {"schema": SCHEMA, "item": item.name, "version": item.version, "inputs": lab.inputs()}
    return json.loads(json.dumps(declared))  # type: ignore[no-any-return]
