"""An extension of griffe: doctests of a docstring are code on the page, wherever they stand in it."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object


def fenced(text: str) -> str:
    """A docstring whose doctests are marked as code.

    >>> fenced(">" ">> twice(1)\\n2")
    '```python\\n>>> twice(1)\\n2\\n```'
    """
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)  # the section that griffe reads doctests in
    return re.sub(r"^>>> .*(?:\n.+)*", lambda match: f"```python\n{match.group()}\n```", text, flags=re.MULTILINE)


class Doctests(Extension):
    """Marks the doctests of every docstring that is read."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called with each object once it is complete."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
