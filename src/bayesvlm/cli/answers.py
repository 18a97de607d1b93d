"""The file `bayesvlm classify` and `detect run` write: answers as they come, under another name until all are there.

What a run that was killed has written is kept: the same command goes on after the last answer that is whole.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from bayesvlm.artifacts.files import check_new_file
from bayesvlm.core.errors import BayesVLMError, writing
from bayesvlm.images.files import shown_path
from bayesvlm.locks import locked

Row = dict[str, Any]
"""An image's answer: its path under "image", its classes under "top", and numbers of the image."""


@dataclass(frozen=True)
class Form:
    """How answers are written one after another, and read again.

    Args:
        write: rows as text, after a header where they are the first.
        read: every row of such a text that is whole, and nothing after one that is not.
        suffix: of the file they are collected in.
        finish: makes the last form of that file, where it is another.
    """

    write: Callable[[Sequence[Row], bool], str]
    read: Callable[[TextIO], Iterator[Row]]
    suffix: str
    finish: Callable[[Iterator[Row], Path], None] | None = None


@dataclass
class Resumed:
    """What an earlier run has left.

    Args:
        done: how many of the images it had looked at, from the first.
        answered: how many of those have an answer.
        passed: the others, which could not be read then.
        rows: the first answers.
    """

    done: int = 0
    answered: int = 0
    passed: list[Path] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)


class AnswerFile:
    """Rows on their way to a file.

    Args:
        out: the file; its ending decides the form.
        overwrite: replace `out` where it is there.
    """

    def __init__(self, out: Path, overwrite: bool) -> None:
        suffix = out.suffix.lower()
        if suffix not in FORMS:
            raise BayesVLMError(
                f"--out {out}: answers are written as csv (.csv), json lines (.jsonl, .json) or parquet (.parquet); "
                "choose one of these endings."
            )
        if suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
            raise BayesVLMError(
                f"--out {out}: parquet files are written with pyarrow, which is not installed: "
                "`pip install 'bayesvlm[parquet]'`, or choose .csv or .jsonl."
            )
        check_new_file(out, overwrite)
        self.out, self.overwrite, self.form = out, overwrite, FORMS[suffix]
        self.partial = out
        self._empty = True
        self._file: TextIO | None = None

    @contextmanager
    def open(self, question: Mapping[str, Any]) -> Iterator[None]:
        """Take rows in this block; at its end the file is whole and has its name, unless it ends in an error.

        Args:
            question: what is asked, as json; the same one goes on in the same unfinished file, another has its own.
        """
        digest = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()
        self.partial = self.out.with_name(f"{self.out.stem}.partial-{digest[:8]}{self.form.suffix}")
        lock = self.partial.with_name(f".{self.partial.name}.lock")
        with ExitStack() as held:
            with self._writing():
                held.enter_context(locked(lock, busy=self._refuse))
                self.partial.touch()
                self._file = held.enter_context(self.partial.open("r+", encoding="utf-8", newline=""))
            self._empty = self.partial.stat().st_size == 0
            try:
                yield
                check_new_file(self.out, self.overwrite)  # another command may have been here meanwhile
                with self._writing():
                    self._finish()
            finally:
                if self._empty:
                    self.partial.unlink(missing_ok=True)

    def _refuse(self) -> None:
        raise BayesVLMError(
            f"Another command is writing to {self.partial} at this moment; wait until it is done, or name another "
            "file with --out."
        )

    def resume(self, paths: Sequence[Path], shown: int | None) -> Resumed:
        """What is here already of the answers for these images; what was cut off in the middle of one is removed.

        Args:
            paths: all images that are asked about, in order.
            shown: how many rows to return; None returns all.
        """
        assert self._file is not None
        found, length = Resumed(), 0
        self._file.seek(0)
        for row in self.form.read(self._file):
            place = next((n for n in range(found.done, len(paths)) if shown_path(paths[n]) == row["image"]), None)
            if place is None:
                return self.restart()
            found.passed += paths[found.done : place]
            found.done, found.answered = place + 1, found.answered + 1
            if shown is None or len(found.rows) < shown:
                found.rows.append(row)
            length += len(self.form.write([row], length == 0).encode())
        self._cut(length)
        return found

    def restart(self) -> Resumed:
        """Begin again from nothing."""
        self._cut(0)
        return Resumed()

    def add(self, rows: Sequence[Row]) -> None:
        """Write rows to the disk."""
        assert self._file is not None
        with self._writing():
            self._file.write(self.form.write(rows, self._empty))
            self._file.flush()
        self._empty = False

    def _cut(self, length: int) -> None:
        assert self._file is not None
        with self._writing():
            self._file.seek(length)
            self._file.truncate(length)
        self._empty = length == 0

    def _finish(self) -> None:
        assert self._file is not None
        os.fsync(self._file.fileno())
        if self.form.finish is None:
            os.replace(self.partial, self.out)
            return
        self._file.seek(0)
        whole = self.partial.with_suffix(self.out.suffix)
        self.form.finish(self.form.read(self._file), whole)
        os.replace(whole, self.out)
        self.partial.unlink()

    def _writing(self) -> AbstractContextManager[None]:
        return writing(self.partial, "make room, or name another file")


# The forms ------------------------------------------------------------------------------------------------------------

_OF_CLASS = ("class", "prob", "label_prob", "cosine")
_INTERVAL = ("low", "high")
_FLAGS = ("unknown", "answered")
_SETS = ("set",)
_COUNTS = ("set_size",)
_BETWEEN = "|"  # class names of a set in a csv: no name holds a bar, which separates synonyms


def _flat(row: Row) -> Iterator[Row]:
    """An answer as a line per class that is shown."""
    of_image = {name: value for name, value in row.items() if name not in ("image", "top")}
    for rank, best in enumerate(row["top"], start=1):
        names = _OF_CLASS if "interval" in best else tuple(best)
        of_class = {name: best.get(name) for name in names}
        interval = dict(zip(_INTERVAL, best["interval"], strict=True)) if "interval" in best else {}
        yield {"image": row["image"], "rank": rank, **of_class, **interval, **of_image}


def _write_csv(rows: Sequence[Row], first: bool) -> str:
    """A line per image and class that is shown, after a header."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    lines = [line for row in rows for line in _flat(row)]
    if first:
        writer.writerow(lines[0])
    writer.writerows(map(_cell, line.values()) for line in lines)
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Flags and sets of names as a cell of a csv."""
    if isinstance(value, bool):
        return str(value).lower()
    return _BETWEEN.join(value) if isinstance(value, list) else value


def _of_cell(name: str, text: str) -> Any:
    if name in _FLAGS:
        return text == "true"
    if name in _COUNTS:
        return int(text)
    if name in _SETS:
        return text.split(_BETWEEN) if text else []
    return float(text)


def _read_csv(file: TextIO) -> Iterator[Row]:
    group: list[dict[str, str]] = []  # the lines of an image, which are whole once those of the next begin,
    shown = None  # or are as many as the first image has
    for line in csv.DictReader(_whole_lines(file)):
        if None in line.values():  # it ends in the middle of a name that holds a line break
            return
        if line["rank"] == "1" and group:
            shown = len(group)
            yield _unflat(group)
            group = []
        group.append(line)
    if len(group) == shown:
        yield _unflat(group)


def _unflat(lines: Sequence[Mapping[str, str]]) -> Row:
    top = []
    for line in lines:
        numbers = {name: float(line[name]) for name in ("prob", "cosine", "label_prob") if line.get(name)}
        interval = {"interval": [float(line[name]) for name in _INTERVAL]} if _INTERVAL[0] in line else {}
        top.append({"class": line["class"], **numbers, **interval})
    named = ("image", "rank", *_OF_CLASS, *_INTERVAL)
    of_image = {name: _of_cell(name, value) for name, value in lines[0].items() if name not in named}
    return {"image": lines[0]["image"], "top": top, **of_image}


def _write_json_lines(rows: Sequence[Row], first: bool) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _read_json_lines(file: TextIO) -> Iterator[Row]:
    return map(json.loads, _whole_lines(file))


def _whole_lines(file: TextIO) -> Iterator[str]:
    return (line for line in file if line.endswith("\n"))


def _finish_parquet(rows: Iterator[Row], path: Path) -> None:
    """A line per image and class that is shown, some ten thousand images in a row group."""
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    writer = None
    try:
        while group := list(islice(rows, 10_000)):
            lines = [line for row in group for line in _flat(row)]
            if writer is None:
                kinds = {"image": pyarrow.string(), "rank": pyarrow.int32(), "class": pyarrow.string()}
                kinds |= dict.fromkeys(_COUNTS, pyarrow.int32())
                kinds |= dict.fromkeys(_FLAGS, pyarrow.bool_()) | dict.fromkeys(_SETS, pyarrow.list_(pyarrow.string()))
                schema = pyarrow.schema([(name, kinds.get(name, pyarrow.float64())) for name in lines[0]])
                writer = ParquetWriter(path, schema)
            writer.write_table(pyarrow.Table.from_pylist(lines, schema))
    finally:
        if writer is not None:
            writer.close()


_CSV = Form(_write_csv, _read_csv, ".csv")
_JSON_LINES = Form(_write_json_lines, _read_json_lines, ".jsonl")
FORMS = {
    ".csv": _CSV,
    ".jsonl": _JSON_LINES,
    ".json": _JSON_LINES,
    ".parquet": Form(_write_json_lines, _read_json_lines, ".jsonl", _finish_parquet),
}
