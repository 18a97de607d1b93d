"""Results that lie where a command is to write its own: kept, refused or replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar


class Measured(Protocol):
    """A result that says what it was made from."""

    @property
    def inputs(self) -> Mapping[str, Any]: ...


Kept = TypeVar("Kept", bound=Measured)


def earlier_result(path: Path, inputs: Mapping[str, Any], overwrite: bool, load: Callable[[Path], Kept]) -> Kept | None:
    """The result that is there, if it was made from these inputs; one made from others is refused, or None.

    Args:
        path: where it would be.
        inputs: of the result that is to be written.
        overwrite: take any other as none.
        load: reads one.
    """
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.experiments.zero_shot import differing

    if not path.is_file():
        return None
    try:
        result = load(path)
        others = differing(result.inputs, inputs)
        reason = f"{path} was made from other inputs ({', '.join(others)}) and would be replaced" if others else ""
    except BayesVLMError:
        reason = f"{path} is there, and is no result that this version can read"
    if reason and not overwrite:
        raise BayesVLMError(f"{reason}; name another folder with --out, or replace it with --overwrite.")
    return None if reason else result


def check_places(out: Path, models: Sequence[str], sets: Sequence[str]) -> None:
    """Refuse two results of one command in one file, before any work is done."""
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.experiments.zero_shot import place

    for names, where in (
        (models, [place(out, name, "") for name in models]),
        (sets, [place(out, "", n) for n in sets]),
    ):
        for number, path in enumerate(where):
            if path in where[:number]:
                raise BayesVLMError(
                    f"{names[where.index(path)]!r} and {names[number]!r} would be kept in one file; name each "
                    "once, or rename a folder."
                )
