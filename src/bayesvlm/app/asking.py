"""Answers that belong to what is on the page: one question at a time, and the last one is asked as the page is by then.

Gradio drops a second press while the first is worked on, and lets two kinds of events, such as an upload and a press,
write one answer in whatever order they end. So all that asks on a tab is one event, which waits for itself
(`always_last`); what a visitor chose last, of things that come by different ways, is noted in the browser when they do
it; and requests are numbered there, so that of two that were sent at the same time the older one is dropped.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from bayesvlm.app.markup import alert, page
from bayesvlm.core.errors import BayesVLMError

log = logging.getLogger(__name__)

WRONG = "Something went wrong here that should not; the terminal has the details."
NOTE = """
const noted = (window.bayesvlm ??= { turn: 0, last: {}, came: {}, tell: {} });
const note = (tab, by, place = null) => {
  noted.last[tab] = { by, place, noted: ++noted.turn };
};
"""
"""For a component's script: `note(tab, by)` is to be called as soon as somebody does something."""
CAME = """file => {
  const noted = (window.bayesvlm ??= { turn: 0, last: {}, came: {}, tell: {} });
  if (file) {
    noted.came["TAB"] = { file: file.path, came: ++noted.turn };
    noted.tell["TAB"]();
  }
  return [null];
}"""
"""Takes what was uploaded out of its box at once, and has it told by `noted.tell`. The box itself neither asks nor is
asked with: what does would wait until nothing is being uploaded any more."""
_ASKED = """(asked, ...given) => {
  const noted = (window.bayesvlm ??= { turn: 0, last: {}, came: {}, tell: {} });
  return [{ ...noted.last["TAB"], ...noted.came["TAB"], turn: ++noted.turn }, ...given];
}"""


@dataclass(frozen=True)
class Asked:
    """What the browser says of a request.

    Attributes:
        by: what was used last on this tab, such as "place" for a drawing or "file"; None: nothing yet.
        place: which drawing it was.
        noted: the number of that; the same as before: nothing was used since.
        file, came: the path of the last file that was uploaded here, and the number of that.
        turn: the number of this request; None for a program's, which are answered as they come.
    """

    by: str | None = None
    place: int | None = None
    noted: int | None = None
    file: str | None = None
    came: int | None = None
    turn: int | None = None

    @classmethod
    def of(cls, given: Any) -> Asked:
        """What is no such note, as a program may send anything, notes nothing."""
        if not isinstance(given, dict):
            return cls()
        kinds = {"by": str, "place": int, "noted": int, "file": str, "came": int, "turn": int}
        found: dict[str, Any] = {name: given[name] for name, kind in kinds.items() if type(given.get(name)) is kind}
        return cls(**found)


class Turns:
    """The newest request of one visitor on one tab."""

    def __init__(self) -> None:
        self._newest, self._lock = 0, threading.Lock()

    def __deepcopy__(self, memo: Any) -> Turns:
        return Turns()  # every visitor begins at the beginning

    def old(self, turn: int | None) -> bool:
        """Whether a newer one came than this."""
        if turn is None:
            return False
        with self._lock:
            self._newest = max(self._newest, turn)
            return turn < self._newest


def asks(
    tab: str,
    triggers: Sequence[Any],
    function: Callable[..., tuple[Any, ...]],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    progress: bool = True,
) -> None:
    """Have all of these lead to one question, whose answer belongs to the page as it is when the answer comes.

    Args:
        tab: under whose name the browser notes what is used.
        triggers: events, such as a button's click.
        function: gets an `Asked` and the inputs, and makes the outputs.
        progress: cover the last output while it is made.
    """
    asked, turns = gr.JSON(visible=False, elem_id=f"{tab}-asked"), gr.State(Turns())

    def handler(note: Any, turns: Turns, *given: Any) -> tuple[Any, ...]:
        found = Asked.of(note)
        skipped = tuple(gr.skip() for _ in outputs)
        if turns.old(found.turn):
            return skipped
        made = function(found, *given)
        return skipped if turns.old(found.turn) else made

    gr.on(
        list(triggers),
        handler,
        [asked, turns, *inputs],
        list(outputs),
        js=_ASKED.replace("TAB", tab),
        trigger_mode="always_last",
        show_progress="full" if progress else "hidden",
        show_progress_on=outputs[-1],
        api_visibility="private",
    )


def said(make: Callable[[], str]) -> str:
    """What is made, or a sentence about what went wrong."""
    try:
        return make()
    except BayesVLMError as error:
        return alert(str(error))
    except Exception:
        log.exception("the page could not answer")
        return alert(WRONG)


def noting(tab: str, pressed: Mapping[str, str], entered: Mapping[str, str]) -> None:
    """Have the browser note which button was pressed last, or in which box Enter was: both by their ids."""
    script = NOTE + "".join(
        f"document.addEventListener({event!r}, event => {{ if (event.target.closest?.({'#' + box!r}){more}) "
        f"note({tab!r}, {by!r}); }}, true);\n"
        for event, more, boxes in (("click", "", pressed), ("keydown", " && event.key === 'Enter'", entered))
        for box, by in boxes.items()
    )
    gr.HTML(page(), js_on_load=script, elem_id=f"{tab}-noting", padding=False)


def dial(*given: Any, **more: Any) -> gr.Slider:
    """A slider whose number box may hold anything while somebody types: what is beyond an end counts as the end.

    The box says so itself as soon as it is left.
    """
    made = gr.Slider(*given, **more)
    checked = made.preprocess

    def clamped(payload: float | None) -> float:
        given = made.minimum if payload is None else payload  # nothing typed
        return checked(min(max(given, made.minimum), made.maximum))

    setattr(made, "preprocess", clamped)  # noqa: B010  # of a class of its own Gradio would write a file into this folder
    return made
