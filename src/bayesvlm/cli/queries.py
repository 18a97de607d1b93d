"""What an index is asked, from words on the command line and from files: queries, conditions, and known answers."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesvlm.core.errors import BayesVLMError

if TYPE_CHECKING:
    from bayesvlm.retrieval import Index
    from bayesvlm.retrieval.filters import Kind

QUERY_COLUMNS = ("query", "text", "caption")
TABLES = (".csv", ".tsv", ".jsonl")
"""What files of queries end in that have columns; others have a query per line."""
_NUMBERS = ("vector", "white", "alpha", "beta")  # what nobody asks for
_CONDITION = re.compile(r"\s*(<=|>=|!=|=|<|>|\s[lL][iI][kK][eE]\s)(.*)", re.DOTALL)


def read_queries(file: Path) -> list[str]:
    """Queries of a file, one per line, or of a table's column `query`, each once; - is the standard input."""
    from bayesvlm.data.rows import read_text

    if file.suffix.lower() in TABLES:
        asked, rows = _query_rows(file)
        return list(dict.fromkeys(_said(row[asked]) for row in rows))
    lines = (sys.stdin.read() if str(file) == "-" else read_text(file)).splitlines()
    found = [line.strip() for line in lines if line.strip()]
    if not found:
        raise BayesVLMError(f"The file of queries {file} is empty; write one query per line.")
    return found


# Conditions -----------------------------------------------------------------------------------------------------------


def as_condition(given: Sequence[str], types: Mapping[str, Kind]) -> str | None:
    """Conditions such as `album=holiday` and `year>=2020`, all of which must hold, as SQL that values cannot break out
    of; several values of one column with = are alternatives.

    >>> as_condition(["album=it's", "album=b", "year >= 2020"], {"album": "text", "year": "whole numbers"})
    "(`album` IN ('it''s', 'b')) AND (`year` >= 2020)"

    Args:
        given: as they were typed.
        types: what the columns of the index hold.
    """
    from bayesvlm.retrieval.filters import as_sql

    equal: dict[str, list[Any]] = {}
    others: list[tuple[str, tuple[str, Any]]] = []
    for text in given:
        column, operator, value = _taken_apart(text, types)
        if operator == "=":
            equal.setdefault(column, []).append(value)
        else:
            others.append((column, (operator, value)))
    wanted: list[tuple[str, Any]] = [*((column, values) for column, values in equal.items()), *others]
    conditions = (as_sql({column: value}, types) for column, value in wanted)
    return " AND ".join(filter(None, conditions)) or None


def _taken_apart(text: str, types: Mapping[str, Kind]) -> tuple[str, str, Any]:
    for column in sorted(types, key=len, reverse=True):
        found = _CONDITION.fullmatch(text[len(column) :]) if text.startswith(column) else None
        if found is not None:
            return column, found[1].strip().lower(), _value(text, column, found[2].strip(), types[column])
    raise BayesVLMError(
        f"--where {text!r} is no condition on a column; write one such as album=holiday or year>=2020, with "
        f"{', '.join(name for name in types if name not in _NUMBERS)}."
    )


def _value(text: str, column: str, value: str, kind: Kind) -> Any:
    """A value as the column holds it."""
    try:
        if kind == "whole numbers" and re.fullmatch(r"[-+]?\d+", value):
            return int(value)
        if kind in ("whole numbers", "numbers"):
            return float(value)
        if kind == "True or False":
            return {"true": True, "false": False}[value.lower()]
        if kind in ("dates", "times"):
            return datetime.fromisoformat(value)
    except (ValueError, KeyError):
        raise BayesVLMError(f"--where {text!r}: {column} holds {kind}, and {value!r} is nothing of the kind.") from None
    return value


# Queries with known answers -------------------------------------------------------------------------------------------


def read_relevant(file: Path, index: Index) -> tuple[list[str], list[list[str]] | None]:
    """Queries of a csv or jsonl, each with the ids of what answers it; None where the file says nothing of answers."""
    from bayesvlm.data.rows import find_column

    asked, rows = _query_rows(file)
    columns = _columns(rows)
    others = [name for name in columns if name != asked]
    answer = find_column(others, ("id",)) or next((name for name in others if name in ("path", *index.columns)), None)
    if others and answer is None:
        raise BayesVLMError(
            f"{file} has the columns {', '.join(columns)}; beside {asked} one must be id, path or a column of the "
            f"index ({', '.join(index.columns) or 'it has none'})."
        )
    answers: dict[str, list[str]] = {}
    for row in rows:
        of = answers.setdefault(_said(row[asked]), [])
        if answer is not None and (said := _said(row.get(answer))) and said not in of:
            of.append(said)
    if answer is None:
        return list(answers), None
    ids = _ids(index, answer, {said for of in answers.values() for said in of}, file)
    return list(answers), [[name for said in of for name in ids[said]] for of in answers.values()]


def _query_rows(file: Path) -> tuple[str, Sequence[Mapping[str, Any]]]:
    """The column of a table that has its queries, and its rows, each of which has one."""
    from bayesvlm.data.rows import choose_column, csv_rows, jsonl_rows

    rows: Sequence[Mapping[str, Any]]
    rows = jsonl_rows(file) if file.suffix.lower() == ".jsonl" else csv_rows(file, "queries")
    if not rows:
        raise BayesVLMError(f"{file} has no queries; expected a header with the column query, and a row per query.")
    asked = choose_column(_columns(rows), None, QUERY_COLUMNS, file)
    for number, row in enumerate(rows, start=1):
        if not _said(row.get(asked)):
            raise BayesVLMError(f"{file}, entry {number} has no query; fill in or remove the row.")
    return asked, rows


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row if isinstance(name, str)))


def _ids(index: Index, column: str, values: set[str], file: Path) -> dict[str, list[str]]:
    """The ids of the rows that each value stands for."""
    if column.strip().lower() == "id":
        return _by_id(index, values, file)
    found: dict[str, list[str]] = {value: [] for value in values}
    written = {_whole(value): value for value in values} if column == "path" else {}
    for row in index.rows(columns=["id", column]):
        said = "" if row[column] is None else str(row[column])
        if (said := said if said in found else written.get(said, said)) in found:
            found[said].append(row["id"])
    if column == "path" and (left := {value for value in values if not found[value]}):
        found |= _by_name(index, left, file)
    missing = next((value for value in sorted(values) if not found[value]), None)
    if missing is not None:
        raise BayesVLMError(f"{file} asks for the {column} {missing!r}, which no row of {index.place} has.")
    return found


def named_in(index: Index, values: Sequence[str], where: str) -> list[str]:
    """The ids of items that are called by their id, their path as it is seen from here, or their file's name."""
    found = _by_id(index, set(values), where)
    return [name for value in values for name in found[value]]


def _by_id(index: Index, values: set[str], file: Path | str) -> dict[str, list[str]]:
    """Ids as they are written; paths of files may be written as they are seen from here, or by the file's name."""
    whole = {value: _whole(value) for value in values}
    there = {row["id"] for row in index.get(sorted(values | set(whole.values())), ["id"])} if values else set()
    found = {value: [each] for value in values for each in (whole[value], value) if each in there}
    if left := values - set(found):
        named = _by_name(index, left, file)
        if unknown := sorted(value for value in left if not named[value]):
            raise BayesVLMError(_unknown(unknown, index, file))
        found |= named
    return found


def _by_name(index: Index, values: set[str], file: Path | str) -> dict[str, list[str]]:
    """The id whose file is called so, if there is one, and no other."""
    named: dict[str, list[str]] = {value: [] for value in values}
    for row in index.rows(columns=["id"]):
        if (name := os.path.basename(row["id"])) in named:
            named[name].append(row["id"])
    for value, ids in sorted(named.items()):
        if len(ids) > 1:
            raise BayesVLMError(
                f"{file} says {value!r}, and {len(ids)} files of {index.place} are called so; write the path, such as "
                f"{seen_from_here(min(ids))!r}."
            )
    return named


def _unknown(values: Sequence[str], index: Index, file: Path | str) -> str:
    listed = ", ".join(map(repr, values[:3])) + (", ..." if len(values) > 3 else "")
    one = next((row["id"] for row in index.rows(columns=["id"])), None)
    like = "it is empty" if one is None else f"ids look like {seen_from_here(one)!r}"
    return (
        f"{file} names {len(values)} ids that {index.place} does not have: {listed}; {like}, so write them like that, "
        "or as the name of a file where only one is called so."
    )


def seen_from_here(name: str) -> str:
    """An item as it is seen from here: the path of a file below this folder, anything else as it is."""
    here = os.getcwd().rstrip(os.sep) + os.sep
    return name.removeprefix(here)


def _whole(path: str) -> str:
    return os.path.abspath(path)


def _said(value: Any) -> str:
    return "" if value is None else str(value).strip()


def texts_of(given: Iterable[str] | None, file: Path | None) -> list[str]:
    """All queries in words."""
    return [*(given or ()), *(() if file is None else read_queries(file))]
