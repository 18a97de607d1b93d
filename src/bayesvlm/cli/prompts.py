"""Class names and the prompts made from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bayesvlm.core.errors import BayesVLMError


def prompts(classes: Sequence[str], template: str) -> list[str]:
    """Each class name in its template."""
    if "{c}" not in template:
        raise BayesVLMError(f"--template {template!r} has no place for the class name; put {{c}} where it goes.")
    return [template.replace("{c}", name) for name in classes]


def read_classes(listed: str | None, file: Path | None) -> list[str]:
    """Class names from `--classes a,b,c` or one per line from `--classes-file`."""
    if (listed is None) == (file is None):
        raise BayesVLMError("Give the classes once: --classes 'cat,dog' or --classes-file names.txt (one per line).")
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise BayesVLMError(
                f"The class file {file} cannot be read ({error}); it must be UTF-8, one name per line."
            ) from None
    else:
        lines = (listed or "").split(",")
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        where = f"--classes-file {file}" if file else f"--classes {listed!r}"
        raise BayesVLMError(f"{where} names no class; give at least one, such as cat.")
    return names
