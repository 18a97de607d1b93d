"""Rows of an index as tables of Arrow: what each column is called and holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError, first_line
from bayesvlm.retrieval.filters import Kind
from bayesvlm.retrieval.rows import Rows

if TYPE_CHECKING:
    import pyarrow as pa

VECTOR = "vector"
OWN = ("id", "path", VECTOR, "white", "alpha", "beta")
"""Columns that every index has; whatever else there is came with the items."""
OF_FILES: dict[str, Kind] = {"source": "text", "bytes": "whole numbers", "modified": "times", "content": "text"}
"""Columns by which `sync` knows what has changed since, and what each holds."""
FOUND = ("_distance", "query_index")
"""Columns that LanceDB adds to what a search finds."""
_RESERVED = (*OWN, "query_index")


def schema(d: int, p: int) -> pa.Schema:
    """Columns of an index whose items have so wide embeddings and activations."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("id", pa.string(), nullable=False),
            pa.field("path", pa.string()),
            pa.field(VECTOR, pa.list_(pa.float32(), d), nullable=False),
            pa.field("white", pa.list_(pa.float16(), p), nullable=False),
            pa.field("alpha", pa.float32(), nullable=False),
            pa.field("beta", pa.float32(), nullable=False),
        ]
    )


def kinds(schema: pa.Schema) -> dict[str, Kind]:
    """What each column holds, for conditions."""
    return {field.name: _kind(field.type) for field in schema}


def _kind(of: pa.DataType) -> Kind:
    import pyarrow as pa

    tests: tuple[tuple[Callable[[pa.DataType], bool], Kind], ...] = (
        (pa.types.is_string, "text"),
        (pa.types.is_large_string, "text"),
        (pa.types.is_boolean, "True or False"),
        (pa.types.is_integer, "whole numbers"),
        (pa.types.is_floating, "numbers"),
        (pa.types.is_date, "dates"),
        (pa.types.is_timestamp, "times"),
    )
    return next((kind for test, kind in tests if test(of)), "lists")


def to_arrow(ids: Sequence[str], paths: Sequence[str | None], rows: Rows, columns: Mapping[str, pa.Array]) -> pa.Table:
    """A table of items, to be added."""
    import pyarrow as pa

    own = schema(rows.mean.shape[1], rows.white.shape[1])
    arrays = [
        pa.array(ids, pa.string()),
        pa.array(paths, pa.string()),
        _lists(rows.mean.float()),
        _lists(rows.white.half()),
        pa.array(rows.alpha.float().numpy()),
        pa.array(rows.beta.float().numpy()),
    ]
    table = pa.table(arrays, schema=own)
    for name, values in columns.items():
        table = table.append_column(name, values)
    return table


def fitted(rows: pa.Table, to: pa.Schema) -> pa.Table:
    """Rows with the columns of a table: in its order, of its kinds, empty where they have none.

    Raises:
        BayesVLMError: where values are of another kind, or would lose digits.
    """
    import pyarrow as pa

    whole = []
    for field in to:
        if field.name not in rows.column_names:
            whole.append(pa.nulls(rows.num_rows, field.type))
            continue
        column = rows[field.name]
        whole.append(column if column.type == field.type else _cast(column, field))
    return pa.table(whole, schema=to)


def from_arrow(table: pa.Table) -> Rows:
    """What was kept of items."""
    return Rows(
        _matrix(table[VECTOR], np.float32),
        _matrix(table["white"], np.float16),
        torch.from_numpy(table["alpha"].to_numpy().copy()),
        torch.from_numpy(table["beta"].to_numpy().copy()),
    )


def check_columns(columns: Mapping[str, Sequence[Any]] | None, count: int) -> dict[str, pa.Array]:
    """What comes with items, by name, if it can be kept: a value for each of them."""
    found: dict[str, pa.Array] = {}
    for name, values in _by_name(columns).items():
        usable = isinstance(name, str) and name.strip() and not name.startswith("_") and name not in _RESERVED
        if not usable or any(mark in name for mark in ".`"):
            raise BayesVLMError(
                f"A column is called {name!r}; it must be text without dots and backticks, begin with no underscore, "
                f"and be none of {', '.join(_RESERVED)}."
            )
        alone = isinstance(values, str | bytes) or not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0
        listed: Any = [values] * count if alone else values if _is_arrow(values) else list(values)
        if len(listed) != count:
            raise BayesVLMError(
                f"The column {name!r} has {len(listed)} values for {count} items; give one per item, or a single one."
            )
        if not _is_arrow(listed):
            listed = _column(name, [_plain(value) for value in listed])
        found[name] = _of_file(name, listed) if name in OF_FILES else listed
    return found


def _by_name(columns: Any) -> Mapping[str, Any]:
    """Columns as a mapping, also those of a DataFrame."""
    if columns is None:
        return {}
    if isinstance(columns, Mapping):
        return columns
    if hasattr(columns, "columns") and hasattr(columns, "iloc"):
        return {name: columns[name] for name in columns.columns}
    raise BayesVLMError(
        f"columns is {str(columns)[:40]!r} ({type(columns).__name__}); give a mapping of names to values, one per "
        "item, such as {'year': [2020, 2021]}, or a DataFrame."
    )


def arrow_type(kind: Kind) -> pa.DataType:
    """How a new column of some kind is kept."""
    import pyarrow as pa

    types: dict[Kind, pa.DataType] = {
        "text": pa.string(),
        "whole numbers": pa.int64(),
        "numbers": pa.float64(),
        "True or False": pa.bool_(),
        "dates": pa.date32(),
        "times": pa.timestamp("us"),
    }
    return types[kind]


def column_of(values: Sequence[Any], to: pa.DataType | None) -> Any:
    """Values as an array of a type, also where there is none among them; as they are where they are of another."""
    import pyarrow as pa

    try:
        return list(values) if to is None else pa.array(values, to)
    except (pa.ArrowException, UnicodeError, OverflowError):
        return list(values)  # `check_columns` and `fitted` say what is wrong


def _is_arrow(values: Any) -> bool:
    import pyarrow as pa

    return isinstance(values, pa.Array)


def _of_file(name: str, values: pa.Array) -> pa.Array:
    """A column of `OF_FILES` as it is kept: of one kind in every index, so that `sync` can write there too."""
    import pyarrow as pa

    wanted, given = OF_FILES[name], _kind(values.type)
    if values.null_count == len(values):
        return pa.nulls(len(values), arrow_type(wanted))
    try:
        if given == wanted:
            return values.cast(arrow_type(wanted))
    except pa.ArrowException:
        pass
    example = next(value for value in values.to_pylist() if value is not None)
    raise BayesVLMError(
        f"The column {name!r} is given {str(example)[:40]!r} ({values.type}); it must hold {wanted}, since "
        "`bayesvlm index` keeps there what it knows of files: give the column another name."
    )


def _plain(value: Any) -> Any:
    """A value of numpy or torch as Python has it; the nanoseconds of times are dropped, for which it has no place."""
    if isinstance(value, np.datetime64) and np.datetime_data(value.dtype)[0] in ("ns", "ps"):
        value = value.astype("datetime64[us]")
    return value.item() if hasattr(value, "item") else value


def _column(name: str, values: Sequence[Any]) -> pa.Array:
    import pyarrow as pa

    try:
        made = pa.array(values, from_pandas=True)  # which writes NaN where a text is missing
    except (pa.ArrowException, UnicodeError, OverflowError) as error:
        raise BayesVLMError(
            f"The column {name!r} cannot be kept: {first_line(error)}; its values must be of one kind, text, numbers, "
            "True or False, or dates."
        ) from None
    if pa.types.is_timestamp(made.type) and made.type.tz is not None:  # else LanceDB compares with it by the wrong hour
        return made.cast(pa.timestamp(made.type.unit, "UTC"))
    return made.cast(pa.string()) if pa.types.is_null(made.type) else made


def _cast(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    import pyarrow as pa

    kinds = pa.types.is_integer, pa.types.is_floating, pa.types.is_temporal
    alike = [any(kind(each) for kind in kinds) for each in (column.type, field.type)]
    try:
        if column.null_count == len(column) or all(alike):
            return column.cast(field.type)
    except pa.ArrowException:
        pass
    example = next(value for value in column.to_pylist() if value is not None)
    raise BayesVLMError(
        f"The column {field.name!r} holds {field.type} in this index, and {str(example)[:40]!r} ({column.type}) is "
        "given; give values of that kind, or the column another name."
    )


def _lists(matrix: Tensor) -> pa.Array:  # [N, m]
    import pyarrow as pa

    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.contiguous().numpy().ravel()), matrix.shape[1])


def _matrix(column: pa.ChunkedArray, dtype: Any) -> Tensor:
    width = column.type.list_size
    flat = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    numbers = np.concatenate(flat) if flat else np.zeros(0, dtype)
    return torch.from_numpy(numbers.astype(dtype, copy=True).reshape(-1, width))
