"""Where a visitor picks one of the example drawings or drops a picture: the beginning of two tabs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from html import escape

import gradio as gr

from bayesvlm.app.drawings import examples
from bayesvlm.app.markup import page, picture
from bayesvlm.app.uploads import LARGEST, MEGABYTES, Picture, picture_of
from bayesvlm.core.errors import BayesVLMError

_ON_LOAD = """
element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-place]");
  if (button) trigger("select", { place: Number(button.dataset.place) });
});
"""
_REFUSING = """
const tell = (event, file) => {
  if (!element.isConnected) return false;
  const place = element.querySelector(".bv");
  place.replaceChildren();
  if (!file || file.size <= LARGEST) return false;
  event.preventDefault();
  event.stopImmediatePropagation();
  const said = document.createElement("p");
  said.className = "alert";
  said.setAttribute("role", "alert");
  said.textContent = `${file.name} has ${(file.size / 1048576).toFixed(1)} MB, which is too large: ` +
    "the page takes files of up to MEGABYTES MB, so make it smaller.";
  place.append(said);
  return true;
};
document.addEventListener("change", (event) => {
  if (event.target.matches("#NAME input[type=file]") && tell(event, event.target.files[0])) event.target.value = "";
}, true);
document.addEventListener("drop", (event) => {
  if (event.target.closest("#NAME") && tell(event, event.dataTransfer.files[0]))
    event.target.dispatchEvent(new DragEvent("dragleave", { bubbles: true }));
}, true);
"""
"""Says in the page what Gradio says for some seconds only, and before the file is sent anywhere."""


@dataclass(frozen=True)
class Picker:
    """The components: drawings, each a button, and a place to drop a file."""

    drawings: gr.HTML
    file: gr.File


def picker(name: str) -> Picker:
    """Put them on the page; `name` begins their ids."""
    drawings = gr.HTML(_buttons(), js_on_load=_ON_LOAD, elem_id=f"{name}-drawings", padding=False)
    return Picker(drawings, drop_box(f"{name}-upload", "or drop a picture"))


def drop_box(name: str, label: str) -> gr.File:
    """A place to drop a file; what is too large gets a sentence below it that stays until the next one.

    Any kind of file may be dropped: whether it is a picture is for the decoder to say, and not for its name.
    """
    file = gr.File(label=f"{label}, up to {MEGABYTES} MB", type="filepath", height=150, elem_id=name)
    script = _REFUSING.replace("NAME", name).replace("LARGEST", str(LARGEST)).replace("MEGABYTES", str(MEGABYTES))
    gr.HTML(page(), js_on_load=script, elem_id=f"{name}-refused", padding=False)
    return file


@cache
def example(place: int) -> Picture:
    """One of the example drawings."""
    return picture_of(examples()[place].image, examples()[place].title)


def picked(event: gr.EventData) -> Picture:
    """The drawing whose button was pressed."""
    place = getattr(event, "place", None)
    if not isinstance(place, int) or not 0 <= place < len(examples()):
        raise BayesVLMError(f"Drawing {place!r} is none of the {len(examples())} examples; press one of their buttons.")
    return example(place)


def _buttons() -> str:
    made = "".join(
        f"<button type='button' data-place='{place}'>{picture(each.image, each.title, 'small')}"
        f"<span>{escape(each.name)}</span></button>"
        for place, each in enumerate(examples())
    )
    return page(f"<div class='picks' role='group' aria-label='Pick a drawing'>{made}</div>")
