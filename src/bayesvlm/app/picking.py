"""Where a visitor picks one of the example drawings or drops a picture: the beginning of three tabs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path

import gradio as gr
from gradio.utils import get_upload_folder

from bayesvlm.app.asking import CAME, NOTE, Asked, said
from bayesvlm.app.drawings import examples
from bayesvlm.app.markup import page, picture
from bayesvlm.app.uploads import LARGEST, MEGABYTES, Picture, picture_of, uploaded
from bayesvlm.core.errors import BayesVLMError

_ON_LOAD = (
    NOTE
    + """
element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-place]");
  if (!button) return;
  note("NAME", "place", Number(button.dataset.place));
  trigger("select");
});
"""
)
_REFUSING = (
    NOTE
    + """
noted.tell["NAME"] = () => trigger("select");
const tell = (event, file) => {
  if (!element.isConnected) return false;
  const place = element.querySelector(".bv");
  place.replaceChildren();
  if (!file) return false;
  if (file.size <= LARGEST) {
    note("NAME", "file");
    return false;
  }
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
  const given = event.target;
  if (given.matches("#NAME-upload input[type=file]") && tell(event, given.files[0])) given.value = "";
}, true);
document.addEventListener("drop", (event) => {
  if (event.target.closest("#NAME-upload") && tell(event, event.dataTransfer.files[0]))
    event.target.dispatchEvent(new DragEvent("dragleave", { bubbles: true }));
}, true);
"""
)
"""Says in the page what Gradio says for some seconds only, and before the file is sent anywhere."""


@dataclass(frozen=True)
class Box:
    """The components: a place to drop a file, who says when one came, and what is said of one that is not taken."""

    file: gr.File
    came: gr.HTML
    refused: gr.HTML


@dataclass(frozen=True)
class Picker(Box):
    """And drawings, each a button."""

    drawings: gr.HTML


def picker(name: str) -> Picker:
    """Put them on a tab; its name begins their ids."""
    drawings = gr.HTML(_buttons(), js_on_load=_ON_LOAD.replace("NAME", name), elem_id=f"{name}-drawings", padding=False)
    box = drop_box(name, "or drop a picture")
    return Picker(box.file, box.came, box.refused, drawings)


def drop_box(name: str, label: str) -> Box:
    """A place to drop a file; what is refused gets a sentence below it that stays until the next one.

    Any kind of file may be dropped: whether it is a picture is for the decoder to say, and not for its name.
    """
    file = gr.File(label=f"{label}, up to {MEGABYTES} MB", type="filepath", height=150, elem_id=f"{name}-upload")
    script = _REFUSING.replace("NAME", name).replace("LARGEST", str(LARGEST)).replace("MEGABYTES", str(MEGABYTES))
    came = gr.HTML(page(), js_on_load=script, elem_id=f"{name}-upload-refused", padding=False)
    file.upload(None, [file], [file], js=CAME.replace("TAB", name), api_visibility="private")
    return Box(file, came, gr.HTML(page(), elem_id=f"{name}-refused", padding=False))


def read(path: str) -> tuple[Picture | None, str]:
    """An uploaded file and nothing to say, or nothing and why not."""
    found: list[Picture] = []

    def opened() -> str:
        if "\0" in path or not Path(path).resolve().is_relative_to(Path(get_upload_folder()).resolve()):
            raise BayesVLMError("This is no file that was uploaded here; drop it into the box.")
        found.append(uploaded(path))
        return page()

    refused = said(opened)
    return (found[0] if found else None), refused


@dataclass(frozen=True)
class Kept:
    """What one visitor has on a tab: a picture, or words; and the number of the last file that was read for it."""

    shown: Picture | str
    came: int | None = None


def taken(asked: Asked, kept: Kept | None, other: Picture | str | None) -> tuple[Kept | None, str]:
    """What was chosen last, and what is to be said of a file that is refused.

    Args:
        asked: what was used last; it is meant though a file came, if that was dropped before.
        kept: from before: what stays if a file is refused, or still on its way.
        other: what is meant if no file is: a drawing, words. None: what was before.
    """
    if asked.by not in (None, "file") and other is not None:
        return Kept(other, asked.came), page()
    if asked.file is not None and (kept is None or asked.came != kept.came):
        shown, refused = read(asked.file)
        found = shown or (kept.shown if kept else other)
        return None if found is None else Kept(found, asked.came), refused
    return (kept or (None if other is None else Kept(other))), page()


def pictured(asked: Asked, kept: Kept | None, first: int) -> tuple[Kept, Picture, str]:
    """The same where there are drawings too, and a tab begins with the first: what is kept, a picture, a sentence."""
    place = first if asked.place is None or asked.place not in range(len(examples())) else asked.place
    found, refused = taken(asked, kept, example(place))
    if found is None or not isinstance(found.shown, Picture):
        raise TypeError(f"{found} is no picture")
    return found, found.shown, refused


@cache
def example(place: int) -> Picture:
    """One of the example drawings."""
    return picture_of(examples()[place].image, examples()[place].title)


def _buttons() -> str:
    made = "".join(
        f"<button type='button' data-place='{place}'>{picture(each.image, each.title, 'small')}"
        f"<span>{escape(each.name)}</span></button>"
        for place, each in enumerate(examples())
    )
    return page(f"<div class='picks' role='group' aria-label='Pick a drawing'>{made}</div>")
