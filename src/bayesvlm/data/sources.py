"""Where data is, before it is opened: in a folder, in the embedded world, on the Hub, or nowhere that is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, Self

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.names import DataName, own_path
from bayesvlm.embedded import SPLITS, world

Kind = Literal["labelled", "pairs", "images", "captions"]

NOT_HERE = "not here"
IN_WORLD = "in bayesvlm-world"
FETCHED = "would be fetched from the Hub:"


@dataclass(frozen=True)
class Source:
    """What a name stands for, found without the network and without reading an image; `open` makes a set of it.

    Attributes:
        kind: "labelled", "pairs", "images" or "captions".
        name: as it was asked for.
        split: the split that was asked for, by NAME:SPLIT or beside it; None takes the usual one.
        where: the folder or file it is in, "in bayesvlm-world", "would be fetched from the Hub: OWNER/NAME", or
            "not here".
        here: whether it is read without the network. Whether a folder has the split, `open` finds out.
        opener: what `open` calls.
        note: how to get it, where it is not here; what is wrong with the name, where it is none.
        paths: the folders or files on this machine that it is read from.
        count: images or pairs, where that is known before they are read: of the embedded world, and of known sets as
            published.
        published_size: about how many bytes have to be fetched, where that is published; `size` is the one to ask.
    """

    kind: ClassVar[Kind]

    name: str
    split: str | None
    where: str
    here: bool
    opener: Callable[..., Any] = field(repr=False, compare=False)
    note: str = ""
    paths: tuple[Path, ...] = ()
    count: int | None = None
    published_size: int | None = None

    @classmethod
    def local(cls, name: DataName, paths: Sequence[Path], opener: Callable[..., Any], **facts: Any) -> Self:
        """A folder, or files of one, on this machine."""
        where = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
        return cls(name.given, name.split, where, True, opener, paths=tuple(paths), **facts)

    @classmethod
    def hub(cls, name: DataName, repo: str, opener: Callable[..., Any], **facts: Any) -> Self:
        """A data set that `open` fetches, or takes from the Hub's cache."""
        note = f"connect, and unset HF_HUB_OFFLINE, so that {repo} can be fetched"
        return cls(name.given, name.split, f"{FETCHED} {repo}", False, opener, **{"note": note, **facts})

    @classmethod
    def embedded(cls, name: DataName, opener: Callable[..., Any]) -> Self:
        """Splits of the embedded world, which may be installed or not; `opener` takes their names first."""
        parts = embedded_splits(name)
        if own_path(name.base).is_dir():
            sentence = (
                f"{name.base!r} is a split of the embedded world and a folder here; write ./{name.base} for the "
                "folder, or run the command where there is no such folder."
            )
            return cls.missing(name, sentence, where=f"{IN_WORLD}, or here")
        if name.split is not None:
            sentence = (
                f"{name.base!r} is a split of the embedded world and has no splits itself; leave {name.split!r} out."
            )
            return cls.missing(name, sentence)
        try:
            package = world(name.base)
        except BayesVLMError as error:
            return cls.missing(name, str(error), where=f"{IN_WORLD}, which is not installed")
        return cls(
            name.given,
            None,
            IN_WORLD,
            True,
            partial(opener, parts),
            paths=tuple(map(package.folder_of, parts)),
            count=sum(map(package.count_of, parts)),
        )

    @classmethod
    def missing(cls, name: DataName, sentence: str, *, where: str = NOT_HERE) -> Self:
        """Nothing that could be opened: `open` says the sentence."""
        return cls(name.given, name.split, where, False, partial(_refuse, sentence), note=sentence)

    @property
    def folder(self) -> Path | None:
        """The one folder or file it is read from; None where there are none or several."""
        return self.paths[0] if len(self.paths) == 1 else None

    @cached_property
    def size(self) -> int | None:
        """Bytes: of the files that are here, else what is published; None where nobody can say before it is fetched."""
        return sum(map(bytes_in, self.paths)) if self.paths and self.here else self.published_size


def embedded_splits(name: DataName) -> tuple[str, ...]:
    """The splits of the embedded world that a name joins by +; none where a part of it is no split."""
    parts = tuple(name.base.split("+"))
    return parts if not name.table and all(part in SPLITS for part in parts) else ()


def bytes_in(place: Path) -> int:
    """Of a file, or of all files below a folder; one that several links lead to counts once."""
    found = [place] if place.is_file() else place.rglob("*")
    return sum(path.stat().st_size for path in {path.resolve() for path in found if path.is_file()})


def _refuse(sentence: str, *_: object, **__: object) -> NoReturn:
    raise BayesVLMError(sentence)
