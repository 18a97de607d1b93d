"""Text files that hold a table, csv, tsv and jsonl, as rows; and which of their columns is meant."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesvlm.core.errors import BayesVLMError

_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab"}
_SURPLUS = "\0surplus"  # what fields beyond the last column go by: the name of no column


def read_text(file: Path) -> str:
    """The contents of a UTF-8 file, with or without its mark."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BayesVLMError(f"{file} is not UTF-8 text (byte {error.start}); save it as UTF-8.") from None
    except OSError as error:
        raise BayesVLMError(f"{file} cannot be read: {error.strerror}.") from None


def csv_rows(file: Path, what: str) -> list[dict[str, str]]:
    """Rows of a csv file with quotes, or of a tsv file, where a quote is a character like any other unless the header
    has some.

    Args:
        file: .tsv is separated by tabs, anything else by what its first line has most of.
        what: the text in it, for a sentence about quotes.
    """
    text = read_text(file)
    head = text.partition("\n")[0]
    tabs = file.suffix.lower() == ".tsv"
    quoted = not tabs or '"' in head
    delimiter = "\t" if tabs else max(_DELIMITERS, key=head.count)  # spreadsheets of many countries write semicolons
    lines = io.StringIO(text, newline="")
    if quoted:
        reader = csv.DictReader(lines, delimiter=delimiter, restkey=_SURPLUS, strict=True)
    else:
        reader = csv.DictReader(lines, delimiter=delimiter, restkey=_SURPLUS, quoting=csv.QUOTE_NONE)
    try:
        rows = list(reader)
    except csv.Error as error:
        raise BayesVLMError(f"{file} is not readable: {error}; look at its quotes.") from None
    twice = next((name for name, count in Counter(reader.fieldnames or ()).items() if name and count > 1), None)
    if twice is not None:
        raise BayesVLMError(f"{file} has two columns called {twice!r}; rename or remove one.")
    for number, row in enumerate(rows, start=1):
        if _SURPLUS in row:
            mend = f"put {what} with a {_DELIMITERS[delimiter]} in double quotes" if quoted else "remove its tabs"
            raise BayesVLMError(
                f"{file}, entry {number} has more fields than there are columns (from {row[_SURPLUS]!r} on); {mend}."
            )
    return rows


def jsonl_rows(file: Path) -> list[dict[str, Any]]:
    """Rows of a file with a json object per line."""
    rows = []
    for number, line in enumerate(read_text(file).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BayesVLMError(f"{file}, line {number} is not json ({error}); write one object per line.") from None
        if not isinstance(row, dict):
            raise BayesVLMError(f"{file}, line {number} is a {type(row).__name__}; each line must be an object.")
        rows.append(row)
    return rows


def choose_column(
    columns: Sequence[str], wanted: str | None, known: Sequence[str], source: str | Path, otherwise: str = ""
) -> str:
    """The column that was asked for, or the first with a usual name.

    Args:
        columns: what there is.
        wanted: what was asked for; None looks for a usual name.
        known: the usual names.
        source: whose columns they are.
        otherwise: what else may be done where no name is usual.
    """
    names = [name for name in columns if isinstance(name, str)]
    if wanted is not None and wanted not in names:
        raise BayesVLMError(f"{source} has no column {wanted!r}; it has {', '.join(map(repr, names)) or 'none'}.")
    found = wanted or find_column(names, known)
    if found is None:
        more = f", {otherwise}" if otherwise else ""
        raise BayesVLMError(
            f"{source} has the columns {', '.join(map(repr, names))}; one of them must be called {' or '.join(known)}"
            f"{more}."
        )
    return found


def find_column(columns: Sequence[Any], known: Sequence[str]) -> str | None:
    """The first column with a usual name; None where there is none."""
    return next((name for name in columns if isinstance(name, str) and name.strip().lower() in known), None)


def as_mappings(rows: object, source: str | Path, expected: str) -> Sequence[Mapping[str, Any]]:
    """What a json file holds, if it is a list of objects."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        wrong = next(row for row in rows if not isinstance(row, dict)) if isinstance(rows, list) else rows
        raise BayesVLMError(f"{source} holds {str(wrong)[:40]!r}; {expected}.")
    return rows
