"""Conditions on columns, `where={"year": (">=", 2020)}`, as the SQL that LanceDB takes. Values cannot break out."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from itertools import islice
from typing import Any, Literal

import numpy as np

from bayesvlm.core.errors import BayesVLMError

Where = str | Mapping[str, Any]
Kind = Literal["text", "whole numbers", "numbers", "True or False", "dates", "times", "lists"]
"""What a column holds."""
IDS = 1000
"""In one condition."""
_OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "like")
_HOW = 'a value, a list of values, None, or a pair such as (">=", 2020)'


def as_sql(where: Where | None, columns: Mapping[str, Kind]) -> str | None:
    """The condition as SQL.

    >>> columns = {"path": "text", "year": "whole numbers", "tag": "text"}
    >>> as_sql({"path": "it's.jpg", "year": (">=", 2020), "tag": ["a", "b"]}, columns)
    "(`path` = 'it''s.jpg') AND (`year` >= 2020) AND (`tag` IN ('a', 'b'))"

    Args:
        where: of each column a value, a list of which it is one, None where it has none, or (operator, value) with
            = != < <= > >= like, where ("!=", "a") is met where there is no value, and ("!=", None) where there is one;
            or SQL of your own, which is passed on as it is: never build it from what others type.
            Times are in UTC unless they have an offset.
        columns: that there are, and what each holds.
    """
    if where is None:
        return None
    if isinstance(where, str):
        if not where.strip():
            raise BayesVLMError("where is empty; leave it out, or give a condition such as {'year': ('>=', 2020)}.")
        return where
    if not isinstance(where, Mapping) or not where:
        raise BayesVLMError(
            f"where={str(where)[:60]!r}; it must be a mapping such as {{'year': ('>=', 2020)}}, or a condition in SQL."
        )
    return " AND ".join(f"({_condition(column, wanted, columns)})" for column, wanted in where.items())


def one_of(column: str, values: Iterable[str]) -> str:
    """`column IN (...)`, of texts."""
    return f"{quoted(column)} IN ({', '.join(literal(value) for value in values)})"


def by_ids(ids: Iterable[str], also: str | None = None) -> Iterator[str]:
    """Conditions that rows with these ids fulfil, one for some hundred ids each; and another condition besides."""
    rest = iter(ids)
    while some := list(islice(rest, IDS)):
        yield one_of("id", some) + ("" if also is None else f" AND ({also})")


def quoted(column: str) -> str:
    """A column's name in SQL."""
    return f"`{column}`"


def _condition(column: str, wanted: Any, columns: Mapping[str, Kind]) -> str:
    if column not in columns:
        raise BayesVLMError(f"where names the column {column!r}; the index has {', '.join(sorted(columns))}.")
    kind, empty = columns[column], f"{quoted(column)} IS NULL"
    wanted = _listed(wanted)
    if wanted is None:
        return empty
    if isinstance(wanted, tuple):
        known = len(wanted) == 2 and isinstance(wanted[0], str) and wanted[0].lower() in _OPERATORS
        if not known or (wanted[0].lower() == "like" and kind != "text"):
            raise BayesVLMError(
                f"where[{column!r}] is {wanted!r}; it must be {_HOW}, with one of {' '.join(_OPERATORS)}, and like "
                "only for text."
            )
        if wanted[1] is None and wanted[0] in ("=", "!="):
            return empty if wanted[0] == "=" else f"{quoted(column)} IS NOT NULL"
        left, right = _operands(column, wanted[1], kind)
        compared = f"{left} {wanted[0].upper()} {right}"
        return f"{compared} OR {empty}" if wanted[0] == "!=" else compared  # LanceDB has no IS DISTINCT FROM
    if isinstance(wanted, list | set | frozenset):
        if not wanted:
            raise BayesVLMError(f"where[{column!r}] is an empty list, which nothing is in; it must be {_HOW}.")
        sides = [_operands(column, each, kind) for each in sorted(wanted, key=repr) if each is not None]
        if not sides:
            return empty
        lefts, rights = zip(*sides, strict=True)
        among = f"{max(lefts, key=len)} IN ({', '.join(rights)})"
        return f"{among} OR {empty}" if len(sides) < len(wanted) else among
    left, right = _operands(column, wanted, kind)
    return f"{left} = {right}"


def _operands(column: str, value: Any, kind: Kind) -> tuple[str, str]:
    """A column and a value that it can be compared with, as SQL."""
    value = _plain(value)
    whole = isinstance(value, int) and not isinstance(value, bool)
    number = (whole or isinstance(value, float)) and math.isfinite(value)
    left, right = quoted(column), None
    if kind == "text" and isinstance(value, str):
        right = literal(value)
    elif kind == "True or False" and isinstance(value, bool):
        right = "true" if value else "false"
    elif kind == "whole numbers" and number and value == int(value):
        right = str(int(value)) if abs(value) < 2**63 else None
    elif kind == "whole numbers" and number:
        left, right = f"CAST({left} AS DOUBLE)", repr(value)
    elif kind == "numbers" and number:
        right = repr(float(value))
    elif kind in ("dates", "times"):
        right = _time(value, kind)
    if right is None:
        given = f"{str(value)[:40]!r} ({type(value).__name__})"
        raise BayesVLMError(f"where compares {column!r} with {given}; the column holds {kind}, compare it with those.")
    return left, right


def _listed(wanted: Any) -> Any:
    """An array, a Series or a range as a list, in which nothing is where a Series has nothing; else as it is."""
    if isinstance(wanted, range):
        return list(wanted)
    if getattr(wanted, "ndim", 0) != 1 or not hasattr(wanted, "tolist"):
        return wanted
    if hasattr(wanted, "isna"):
        return [None if gone else value for value, gone in zip(wanted.tolist(), wanted.isna().tolist(), strict=True)]
    return list(wanted) if getattr(wanted.dtype, "kind", "") == "M" else wanted.tolist()


def _plain(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, np.datetime64):
        return value.astype("datetime64[us]").item()
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:  # a number of numpy or torch
        return value.item()
    return value


def literal(value: str) -> str:
    """Text in SQL: quotes in it are doubled, which is all that can end it."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BayesVLMError(
            f"where compares with {value[:40]!r}, which is no text (a file name that is not UTF-8?); nothing has it."
        ) from None
    return "'" + value.replace("'", "''") + "'"


def _time(value: Any, kind: Kind) -> str | None:
    """A day, or a moment in UTC, which is what a time without an offset is taken to be in."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if not isinstance(value, date):
        return None
    if kind == "dates":
        return f"date '{(value.date() if isinstance(value, datetime) else value).isoformat()}'"
    moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
    if moment.tzinfo is not None:
        try:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
        except OverflowError:  # in the first or last hours of the calendar
            return None
    return f"timestamp '{moment.isoformat(sep=' ')}'"
