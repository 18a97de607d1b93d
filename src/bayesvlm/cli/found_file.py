"""What `bayesvlm search --out` writes: a row per hit, for a spreadsheet or the next command."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from bayesvlm.artifacts.files import check_new_file
from bayesvlm.cli.output import finite
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.report.writing import write_whole

_FORMS = (".csv", ".jsonl")
_OF_HIT = ("query", "rank", "id", "path", "cosine", "std", "low", "high", "p_best", "p_match", "matches", "p_value")


class FoundFile:
    """A file that is refused before anything is searched, and written whole at the end.

    Args:
        out: the file; its ending decides the form.
        overwrite: replace it where it is there.
    """

    def __init__(self, out: Path, overwrite: bool) -> None:
        if out.suffix.lower() not in _FORMS:
            raise BayesVLMError(f"--out {out}: hits are written as csv (.csv) or json lines (.jsonl); choose one.")
        check_new_file(out, overwrite)
        self.out = out

    def write(self, searches: Sequence[Mapping[str, Any]]) -> None:
        """Write what searches found, as `found.as_json_of` has them; one that abstained has no rows."""
        rows = list(_rows(searches))
        in_lines = self.out.suffix.lower() == ".jsonl"
        write_whole(self.out, (_lines(rows) if in_lines else _csv(rows)).encode())


def _rows(searches: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for search in searches:
        for rank, hit in enumerate(search["hits"], start=1):
            low, high = hit["interval"]
            of_hit = (search["query"], rank, hit["id"], hit["path"], hit["mean"], hit["std"], low, high)
            judged = (hit["p_best"], hit["p_match"], search["matches"], search["p_value"])
            row = dict(zip(_OF_HIT, (*of_hit, *judged), strict=True))
            kept = {f"{name} (column)" if name in row else name: of for name, of in hit["columns"].items()}
            yield {**row, **kept}


def _lines(rows: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(finite(row)) + "\n" for row in rows)


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = StringIO()
    names = dict.fromkeys([*_OF_HIT, *(name for row in rows for name in row)])
    writer = csv.DictWriter(text, list(names), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: str(of).lower() if isinstance(of, bool) else of for name, of in row.items()})
    return text.getvalue()
