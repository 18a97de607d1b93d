"""Which making of an index the tables at a place are of.

Each has a random name, which the schema of the items carries and the names of its files begin with. So one commit, of
an empty table of items, puts a new index in the place of another as a whole; and who opened the other one is told,
instead of finding rows of another posterior. LanceDB hands the schema out with whatever is read, so that to look
costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_KEY = b"bayesvlm_index"


def stamped(schema: pa.Schema, making: str) -> pa.Schema:
    """Columns of the items of an index that was made so."""
    return schema.with_metadata({_KEY: making.encode()})


def making_of(read: Any) -> str | None:
    """Which one a table is of, or what was read of it; None: of none."""
    found = None if read is None else (read.schema.metadata or {}).get(_KEY)
    return None if found is None else str(found.decode())


def named(making: str, name: str) -> str:
    """What a file of an index is called beside those of others."""
    return f"{making}/{name}"


def all_named(making: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Files, each by what it is called there."""
    return {named(making, name): content for name, content in files.items()}
