"""Features on disk: encoded once, mapped into memory when asked for again, resumed where a run was cut off.

DIGEST.safetensors                an entry: its tensors, its notes and the key it was made for
DIGEST.part-00000.safetensors     the first rows of an entry that is not finished yet
DIGEST.lock                       held by the process that is making the entry
.NAME.RANDOM.bayesvlm-tmp         a file that is being written; never read, removed a day after its writer died

DIGEST is the sha256 of the key, and the key itself is written into the file: what is renamed, made for another key, of
another schema or cut off counts as absent and is made again. Only damage inside the tensors' own bytes goes unseen,
because finding it would take reading all of them, where a mapped file is read row by row as rows are used.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError, check_count, writing
from bayesvlm.core.printing import described
from bayesvlm.locks import locked

SCHEMA = 1
_ROWS, _NOTES = "rows.", "notes"  # tensors' names in a file: a prefix for the entry's own, one more for its notes
_TEMPORARY = ".bayesvlm-tmp"
_STALE = 24 * 3600  # seconds after which a temporary file has no writer any more
_CHUNK = 2**24  # bytes handled at once
_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Entry:
    """What the cache holds for a key. The tensors are mapped: changing them in place does not change the file."""

    tensors: dict[str, Tensor]  # each [N, ...]
    notes: dict[str, list[Any]]

    __repr__ = described


@dataclass(frozen=True, eq=False)
class Part:
    """Some consecutive rows of an entry.

    Args:
        tensors: each [n, ...], on any device; none at all where no sample could be read.
        notes: lists, put one after another over the parts.
        read: samples of the data set these rows were made from, with those that were skipped.
    """

    tensors: Mapping[str, Tensor]
    notes: Mapping[str, list[Any]]
    read: int

    __repr__ = described

    @property
    def rows(self) -> int:
        return next((len(tensor) for tensor in self.tensors.values()), 0)


Encode = Callable[[int], Iterable[Part]]  # the number of the first sample wanted -> its rows and all after it


def default_cache() -> Path:
    """$BAYESVLM_CACHE, else bayesvlm in $XDG_CACHE_HOME, else ~/.cache/bayesvlm."""
    if chosen := os.environ.get("BAYESVLM_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "bayesvlm"


class FeatureCache:
    """A folder of entries, each named by everything that decides it.

    Args:
        folder: made by the first write; None takes `default_cache()`.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> cache = FeatureCache(folder.name)
        >>> key = {"model": "emoji-clip", "data": "a hash of the images"}
        >>> cache.get(key) is None
        True
        >>> entry = cache.put(key, {"activations": torch.ones(2, 3)}, {"keys": ["a.png", "b.png"]})
        >>> cache.get(key).tensors["activations"].shape, cache.get({**key, "data": "another"})
        (torch.Size([2, 3]), None)
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = default_cache() if folder is None else Path(folder).expanduser()
        if os.path.exists(self.folder) and not os.path.isdir(self.folder):
            raise BayesVLMError(f"The cache {self.folder} is a file; expected a folder: name another one.")

    def get(self, key: Mapping[str, Any]) -> Entry | None:
        """The entry of exactly this key, or None; one that cannot be used is logged and counts as none."""
        found = _read(self._path(key), _identity(key))
        return None if found is None else Entry(dict(found.tensors), dict(found.notes))

    def put(
        self, key: Mapping[str, Any], tensors: Mapping[str, Tensor], notes: Mapping[str, list[Any]] | None = None
    ) -> Entry:
        """Write an entry whole, in place of one that may be there; returns it as `get` would.

        Args:
            key: everything that decides the tensors, as json: model, weights, preprocessing, data, prompts, dtype.
            tensors: each [N, ...], finite.
            notes: lists of anything json can write.
        """
        path, identity = self._path(key), _identity(key)
        whole = _checked(Part(tensors, notes or {}, 0), first_row=0)
        _check_alike([whole], path)
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            self._sweep()
            return self._finish(path, identity, [whole])

    def collect(self, key: Mapping[str, Any], encode: Encode, part_rows: int = 4096) -> Entry:
        """The entry of a key, encoded now if it is not there; what an interrupted call had finished is not done again.

        Args:
            key: everything that decides the tensors, as json.
            encode: called with the number of samples that need no encoding any more; gives the rows after them.
            part_rows: rows that are gathered before they are written; so many are lost at most.
        """
        check_count("part_rows", part_rows)
        path, identity = self._path(key), _identity(key)
        if (entry := self.get(key)) is not None:
            return entry
        with self._locked(path.with_suffix(".lock")):
            if path.exists() and (entry := self.get(key)) is not None:  # made while this process waited
                return entry
            with self._writing():
                self._sweep()
            parts = self._finished(key)  # mapped: whole even where another process removes or replaces the files
            waiting: list[Part] = []
            for part in encode(sum(part.read for part in parts)):
                waiting.append(_copied(_checked(part, sum(part.rows for part in (*parts, *waiting)))))
                if sum(part.rows for part in waiting) >= part_rows:
                    _check_alike([*parts, *waiting], path)
                    start = sum(part.read for part in parts)
                    with self._writing():
                        number = len(parts)
                        parts.append(_write(self._part(path, number), _identity(key, number, start), waiting))
                    waiting = []
            _check_alike([*parts, *waiting], path)
            with self._writing():
                return self._finish(path, identity, [*parts, *waiting])

    def _path(self, key: Mapping[str, Any]) -> Path:
        return self.folder / f"{hashlib.sha256(_identity(key).encode()).hexdigest()}.safetensors"

    @staticmethod
    def _part(path: Path, number: int) -> Path:
        return path.with_suffix(f".part-{number:05d}.safetensors")

    def _finished(self, key: Mapping[str, Any]) -> list[Part]:
        """The parts an interrupted run left, as far as each begins where the one before it ends."""
        parts: list[Part] = []
        while True:
            number, start = len(parts), sum(part.read for part in parts)
            part = _read(self._part(self._path(key), number), _identity(key, number, start))
            if part is None:
                if parts:
                    logger.info("%s: going on at sample %d, the first that is not encoded", self.folder, start)
                return parts
            parts.append(part)

    @staticmethod
    def _finish(path: Path, identity: str, parts: Sequence[Part]) -> Entry:
        whole = _write(path, identity, parts)
        for part in path.parent.glob(f"{path.stem}.part-*.safetensors"):
            part.unlink(missing_ok=True)
        return Entry(dict(whole.tensors), dict(whole.notes))

    def _sweep(self) -> None:
        """Remove what writers that died left behind: files never finished, and parts of entries that are."""
        parts = self.folder.glob("[0-9a-f]" * 64 + ".part-*.safetensors")
        finished = (part for part in parts if part.with_name(f"{part.name[:64]}.safetensors").exists())
        for leftover in [*self.folder.glob(f".*{_TEMPORARY}"), *finished]:
            with suppress(OSError):  # another process was first
                if leftover.stat().st_mtime < time.time() - _STALE:
                    leftover.unlink()

    @contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        """One process at a time; where files cannot be locked all work at once, and the last to finish stays."""

        def say_so() -> None:
            logger.warning("%s: another process is making this entry; waiting for it", path)

        with ExitStack() as held:
            with self._writing():
                held.enter_context(locked(path, busy=say_so))
            yield

    def _writing(self) -> AbstractContextManager[None]:
        remedy = "make room or give access to it, or name another folder in BAYESVLM_CACHE"
        return writing(f"The cache {self.folder}", remedy)


def tensor_fingerprint(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """A hash of named tensors, in any order: names, dtypes, shapes and every byte; a model's weights, for instance."""
    digests = []
    for name, tensor in tensors:
        digest = hashlib.sha256(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        for chunk in _chunks(tensor):
            digest.update(chunk)
        digests.append(digest.hexdigest())
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()


def _identity(key: Mapping[str, Any], part: int | None = None, start: int = 0) -> str:
    """The one way to write down what a file is for; files are compared with it letter by letter."""
    place = {} if part is None else {"part": part, "start": start}
    try:
        named = {"schema": SCHEMA, "key": dict(key), **place}
        return json.dumps(named, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BayesVLMError(
            f"The key {str(key)[:200]} cannot be written as json ({error}); use strings, finite numbers, booleans, "
            "None, lists and mappings with names."
        ) from None


def _checked(part: Part, first_row: int) -> Part:
    """The part, if every tensor of it has as many rows, all of them finite, and its notes are lists."""
    for name, tensor in part.tensors.items():
        if tensor.ndim == 0 or tensor.dtype not in _DTYPES:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
            raise BayesVLMError(
                f"{name} is {tensor.dtype} of shape {list(tensor.shape)}; a cache holds tensors with a row for each "
                f"input, of {known}."
            )
        if len(tensor) != part.rows:
            raise BayesVLMError(
                f"{name} has {len(tensor)} rows, {next(iter(part.tensors))} has {part.rows}; the tensors of an entry "
                "describe the same N inputs and need equally many rows."
            )
        if tensor.is_floating_point():
            _check_finite(name, tensor, first_row)
    for name, note in part.notes.items():
        if not isinstance(note, list | tuple):
            raise BayesVLMError(f"The note {name!r} is {str(note)[:80]!r}; expected a list.")
    return part


def _copied(part: Part) -> Part:
    """The part in memory of its own: the encoder may write the next one over this one."""
    if isinstance(part.read, bool) or not isinstance(part.read, int) or part.read < part.rows:
        raise BayesVLMError(
            f"A part of {part.rows} rows says that {part.read!r} samples were read; expected at least as many samples "
            "as rows, or a run that goes on later would encode some of them twice."
        )
    tensors = {name: tensor.detach().to("cpu", copy=True) for name, tensor in part.tensors.items()}
    return Part(tensors, {name: list(note) for name, note in part.notes.items()}, part.read)


def _check_finite(name: str, tensor: Tensor, first_row: int) -> None:
    for number, rows in enumerate(torch.split(tensor, 4096)):
        finite = torch.isfinite(rows.flatten(1) if rows.ndim > 1 else rows[:, None]).all(dim=1)
        if not bool(finite.all()):
            row = first_row + number * 4096 + int(finite.logical_not().nonzero()[0])
            raise BayesVLMError(
                f"{name} holds NaN or Inf in row {row}, so it is not cached; check that input, or run the encoder in a "
                "wider dtype than the one that overflowed."
            )


def _check_alike(parts: Sequence[Part], path: Path) -> None:
    """Refuse parts that are not rows of one table, and tables without any."""
    kinds = [
        {name: (tensor.dtype, tensor.shape[1:]) for name, tensor in part.tensors.items()}
        for part in parts
        if part.tensors
    ]
    if not kinds:
        read = sum(part.read for part in parts)
        raise BayesVLMError(f"There is nothing to cache: {read} samples were read and gave no row; look at the data.")
    for kind in kinds:
        if kind != kinds[0]:
            raise BayesVLMError(
                f"A part holds {_described(kind)}, the first one {_described(kinds[0])}; parts of an entry need the "
                f"same tensors, dtypes and widths: encode them alike, and delete {path.stem}.part-* in {path.parent} "
                "if an earlier run wrote others."
            )


def _described(kind: Mapping[str, tuple[torch.dtype, torch.Size]]) -> str:
    return " and ".join(f"{name} {str(dtype)[6:]} {['n', *shape]}" for name, (dtype, shape) in kind.items())


def _write(path: Path, identity: str, parts: Sequence[Part]) -> Part:
    """Write the parts, one after another, as a single file that is whole or not there; returns it mapped.

    The file is put together by hand, because safetensors' own writer would need all parts in memory at once.
    """
    notes: dict[str, list[Any]] = {}
    for part in parts:
        for name, note in part.notes.items():
            notes.setdefault(name, []).extend(note)
    columns: dict[str, list[Tensor]] = {}
    for part in parts:
        for name, tensor in part.tensors.items():
            columns.setdefault(_ROWS + name, []).append(tensor)
    columns = dict(sorted(columns.items(), key=lambda column: (-column[1][0].itemsize, column[0])))  # all aligned
    columns[_NOTES] = [torch.frombuffer(bytearray(_written(notes)), dtype=torch.uint8)]
    head = _header(columns, identity, sum(part.read for part in parts))
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{_TEMPORARY}")
    try:
        with temporary.open("xb") as file:
            file.write(len(head).to_bytes(8, "little") + head)
            for column in columns.values():
                for tensor in column:
                    for chunk in _chunks(tensor):
                        file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        mapped = _read(temporary, identity)
        if mapped is None:
            raise OSError(f"what was written to {temporary} cannot be read back")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return mapped


def _written(notes: Mapping[str, list[Any]]) -> bytes:
    try:
        return json.dumps(notes, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BayesVLMError(f"The notes {', '.join(notes)} cannot be written as json ({error}).") from None


def _header(columns: Mapping[str, Sequence[Tensor]], identity: str, read: int) -> bytes:
    """The head of a safetensors file: where each tensor lies, and what the file is."""
    head: dict[str, Any] = {}
    layout, offset = {}, 0
    for name, column in columns.items():
        shape, size = [sum(map(len, column)), *column[0].shape[1:]], sum(tensor.nbytes for tensor in column)
        layout[name] = [str(column[0].dtype), shape]
        head[name] = {"dtype": _DTYPES[column[0].dtype], "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    seal = _seal(identity, str(read), layout, columns[_NOTES][0])
    text = json.dumps({"__metadata__": {"identity": identity, "read": str(read), "seal": seal}, **head}).encode()
    return text + b" " * (-len(text) % 8)


def _seal(identity: str, read: str, layout: Mapping[str, Any], notes: Tensor) -> str:
    """A hash of everything in a file but the rows."""
    digest = hashlib.sha256(json.dumps([identity, read, layout], sort_keys=True).encode())
    digest.update(notes.numpy().data)
    return digest.hexdigest()


def _read(path: Path, identity: str) -> Part | None:
    """The file, if it is whole and was written for this identity; its rows are read from the disk only when used."""
    try:
        with safe_open(str(path), framework="pt") as file:
            said = file.metadata() or {}
            if said.get("identity") != identity:
                raise ValueError("it was made for another key, or by another version")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        layout = {name: [str(tensor.dtype), list(tensor.shape)] for name, tensor in tensors.items()}
        if said["seal"] != _seal(identity, said["read"], layout, tensors[_NOTES]):
            raise ValueError("it is damaged")
        notes = json.loads(bytes(tensors.pop(_NOTES).numpy()))
        return Part({name.removeprefix(_ROWS): tensor for name, tensor in tensors.items()}, notes, int(said["read"]))
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        if os.path.exists(path):  # safetensors says "no such file" also of one that may not be opened
            logger.warning("%s is not used: %s; it is made again when needed", path, str(error).partition("\n")[0])
        return None


def _chunks(tensor: Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor in row-major order, a few at a time, whatever its dtype, strides or device."""
    tensor = tensor.detach()
    if not tensor.is_contiguous():
        for rows in torch.split(tensor, max(1, _CHUNK // max(1, tensor[0].nbytes))):
            yield from _chunks(rows.contiguous())
        return
    for piece in torch.split(tensor.view(-1), _CHUNK // tensor.itemsize):
        yield piece.cpu().view(torch.uint8).numpy().data
