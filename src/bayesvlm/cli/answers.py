"""The file `bayesvlm classify` writes: answers as they come, under a name that says so until all of them are there."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

from bayesvlm.artifacts.files import check_new_file
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.locks import locked


class AnswerFile:
    """Rows on their way to a file.

    Args:
        out: the file; its ending decides the form.
        question: what is asked, as json; the same question goes on in the same unfinished file, another has its own.
        overwrite: replace `out` where it is there.
    """

    def __init__(self, out: Path, question: Mapping[str, Any], overwrite: bool) -> None:
        if out.suffix not in FORMS:
            raise BayesVLMError(
                f"--out {out}: answers are written as csv (.csv) or json lines (.jsonl, .json); choose one of these "
                "endings."
            )
        check_new_file(out, overwrite)
        digest = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()
        self.overwrite = overwrite
        self.out, self.partial = out, out.with_name(f"{out.stem}.partial-{digest[:8]}{out.suffix}")
        self.lock = self.partial.with_name(f".{self.partial.name}.lock")
        self._rows = 0
        self._file: TextIO | None = None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Take rows in this block; at its end the file is whole and has its name, unless it ends in an error."""
        with ExitStack() as held:
            with self._writing():
                held.enter_context(locked(self.lock, busy=self._refuse))
                # What an interrupted run had written comes again, from the kept features.
                self._file = held.enter_context(self.partial.open("w", encoding="utf-8", newline=""))
            try:
                yield
                check_new_file(self.out, self.overwrite)  # another command may have been here meanwhile
                with self._writing():
                    os.fsync(self._file.fileno())
                    os.replace(self.partial, self.out)
            finally:
                if self._rows == 0:
                    self.partial.unlink(missing_ok=True)

    def _refuse(self) -> None:
        raise BayesVLMError(
            f"Another command is writing to {self.partial} at this moment; wait until it is done, or name another "
            "file with --out."
        )

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows to the disk."""
        assert self._file is not None
        with self._writing():
            write = FORMS[self.out.suffix]
            self._file.write(write(rows, self._rows == 0))
            self._file.flush()
        self._rows += len(rows)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BayesVLMError(
                f"{self.partial} cannot be written: {error.strerror or error}; make room, or name another file."
            ) from None


def _csv(rows: Sequence[Mapping[str, Any]], first: bool) -> str:
    """A line per image and class that is shown, after a header."""
    text = io.StringIO()
    nats = [name for name in rows[0] if name not in ("image", "top")]
    of_class = ("class", "prob", "label_prob", "cosine")
    writer = csv.writer(text, lineterminator="\n")
    if first:
        writer.writerow(["image", "rank", *of_class, "low", "high", *nats])
    for row in rows:
        for rank, best in enumerate(row["top"], start=1):
            cells = [*(best.get(name) for name in of_class), *best["interval"], *(row[name] for name in nats)]
            writer.writerow([row["image"], rank, *cells])
    return text.getvalue()


def _json_lines(rows: Sequence[Mapping[str, Any]], first: bool) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


FORMS = {".csv": _csv, ".jsonl": _json_lines, ".json": _json_lines}
