"""Labelled sets by name, the embedded world's splits among them, and the prompts that go with them."""

from __future__ import annotations

from pathlib import Path

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.labelled import LabelledSet, open_labelled
from bayesvlm.world import SPLITS, load


def open_set(
    name: str, *, root: str | Path | None = None, template: str | None = None, strict: bool = False
) -> LabelledSet:
    """A split of the world, or whatever `open_labelled` finds: a known set, a folder, a Hub id; `NAME:SPLIT`."""
    if template is not None and "{c}" not in template:
        raise BayesVLMError(f"template={template!r} has no place for the class name; put {{c}} where it goes.")
    return load(name) if name in SPLITS else open_labelled(name, root=root, template=template, strict=strict)


def prompts(data: LabelledSet, template: str | None = None) -> list[str]:
    """The class names in a template with {c}: the one given, or the set's first."""
    return [(template or data.templates[0]).replace("{c}", name) for name in data.classes]
