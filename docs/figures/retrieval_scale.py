"""The tables of "Scale and faults" in docs/retrieval.md: `python docs/figures/retrieval_scale.py`.

From retrieval-scale.json, which benchmarks/retrieval.py measures.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KEPT, PAGE = HERE / "retrieval-scale.json", HERE.parent / "retrieval.md"
KINDS = ("clustered", "isotropic")


def main() -> None:
    found = json.loads(KEPT.read_text())
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")


def written(page: str, found: dict[str, Any]) -> str:
    """The page with each table between its marks."""
    tables = {"size": size_table(found), "order": order_table(found["world"]), "faults": faults_table(found)}
    for name, table in tables.items():
        begin, end = f"<!-- {name}: docs/figures/retrieval_scale.py -->", f"<!-- end of {name} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if len(pattern.findall(page)) != 1:
            raise SystemExit(f"The page has no place for {name}: {begin} ... {end}")
        head, tail = pattern.split(page)
        page = f"{head}{begin}\n{table}\n{end}{tail}"
    return page


def size_table(found: dict[str, Any]) -> str:
    of = [found[kind] for kind in KINDS]
    first = of[0]
    heading = f"{first['rows']:,} items, d = {first['d']}, p = {first['p']}"
    rows = {
        "recall@10 against looking at every row": [share(each["recall"]) for each in of],
        "the same, of images that ask for images": [share(each["recall_same_tower"]) for each in of],
        "of plain LanceDB unless told otherwise (1 bit, 20 parts)": [
            share(each["recall_plain"]["1 bit, 20 parts"]) for each in of
        ],
        "of that with all parts, ten times as many refined": [
            share(each["recall_plain"]["1 bit, all parts, 10x refined"]) for each in of
        ],
        "to build, with the index of vectors": [
            f"{each['build_seconds']['index']:.0f} s ({each['build_ratio']:.2f}x plain LanceDB)" for each in of
        ],
        "a query": [f"{each['query_ms']['index']:.1f} ms ({each['query_ratio']:.2f}x)" for each in of],
        f"a query among {first['queries']} at once": [f"{each['batch_query_ms']:.1f} ms" for each in of],
        "GB per million rows": [
            f"{each['bytes_per_row']['index'] / 1e3:.2f} (plain: {each['bytes_per_row']['plain'] / 1e3:.2f})"
            for each in of
        ],
    }
    return table([heading, *KINDS], [[name, *cells] for name, cells in rows.items()])


def order_table(world: dict[str, Any]) -> str:
    names = {
        "recall": "expected cosine, by the index of vectors",
        "recall_lower": "lower bounds, among ten times as many",
        "recall_upper": "upper bounds, likewise",
        "recall_same_tower": "images by an image, likewise",
    }
    rows = [[name, share(world[key])] for key, name in names.items()]
    return table([f"{world['images']:,} drawings, {world['queries']:,} names", "recall@10"], rows)


def faults_table(found: dict[str, Any]) -> str:
    kills, writers, soak = found["kills"], found["writers"], found["soak"]
    first, second, third = (f"{max(held):,}" for held in soak["resident_mib"])
    rows = [
        [
            f"{kills['points']} processes killed while they add",
            f"{kills['lost']} rows lost that were promised, {kills['twice']} twice, {kills['half_written']} calls half "
            f"written, {kills['unreadable']} times unreadable",
        ],
        ["2 processes that add 1,000 rows each, ten at a time", f"{writers['rows']:,} rows, {writers['twice']} twice"],
        [
            f"{soak['rows']:,} rows added, then replaced twice, 2,000 at a time; {soak['searches']:,} searches",
            f"{soak['failures']} failures; at most {first} MiB while adding, {second} and {third} while replacing, "
            "in a process that had held a million rows",
        ],
    ]
    return table(["what was done", "what came of it"], rows)


def share(value: float) -> str:
    return f"{value:.4f}".rstrip("0").rstrip(".") if value < 1 else "1"


def table(heading: list[str], rows: list[list[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


if __name__ == "__main__":
    main()
