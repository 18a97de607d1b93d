"""Labelled sets by name, the embedded world's splits among them, and the prompts that go with them."""

from __future__ import annotations

import difflib
from pathlib import Path

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.labelled import KNOWN, LabelledSet, open_labelled
from bayesvlm_world import SPLITS, load


def open_set(
    name: str, *, root: str | Path | None = None, template: str | None = None, strict: bool = False
) -> LabelledSet:
    """A split of the world, or whatever `open_labelled` finds: a known set, a folder, a Hub id; `NAME:SPLIT`."""
    if template is not None and "{c}" not in template:
        raise BayesVLMError(f"template={template!r} has no place for the class name; put {{c}} where it goes.")
    if name in SPLITS:
        if Path(name).is_dir():
            raise BayesVLMError(
                f"{name!r} is a split of the embedded world and a folder here; write ./{name} for the folder, or run "
                "the command where there is no such folder."
            )
        return load(name)
    bare = name.partition(":")[0]
    near = [bare] if bare in SPLITS else difflib.get_close_matches(name, SPLITS, n=1)
    if near and bare not in KNOWN and not Path(name).exists():
        raise BayesVLMError(f"There is no set {name!r}; did you mean {near[0]!r}, of the embedded world?")
    return open_labelled(name, root=root, template=template, strict=strict)


def prompts(data: LabelledSet, template: str | None = None) -> list[str]:
    """The class names in a template with {c}: the one given, or the set's first."""
    return [(template or data.templates[0]).replace("{c}", name) for name in data.classes]
