"""`bayesvlm bench`: how fast each part is on this machine, against the textbook way, and what got slower."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesvlm.cli.options import Device, Json, Overwrite
from bayesvlm.cli.output import emit, remark, table

if TYPE_CHECKING:
    from bayesvlm.experiments.bench.kept import Kept


def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="Any of curvature, head, epig, stream, cache, fit; none: all. With --check also a folder or file of "
            "results to compare with.",
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Compare ratios with kept ones of the same kind of device and the same sizes, and end with 1 where "
            "something got slower. [default: compare with benchmarks/results of the checkout]",
        ),
    ] = False,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Turns that count. [default: 2 to 15, fewer where one takes long]")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny sizes, in seconds: to see that everything runs, not how fast.")
    ] = False,
    pairs: Annotated[
        int | None, typer.Option(min=2, help="Pairs of the end-to-end fit. [default: 20,000 on a GPU, else 512]")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A json file for the results, to be kept.")] = None,
    overwrite: Overwrite = False,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Measure each part of the library against its reference, the two in turns, in one process.

    A ratio of 2x means twice as fast as the reference; in brackets are the slowest and the fastest turn. Seconds depend
    on the machine and its mood, ratios much less: --check compares only those, and calls slower what lies beyond the
    spread of both runs.

    Everything is generated: no data set, no model, no network. All of it takes some minutes on two cores.

    Examples:

        bayesvlm bench

        bayesvlm bench curvature head --device cuda --out results.json

        bayesvlm bench --check

        bayesvlm bench fit --pairs 20000 --check results/
    """
    from bayesvlm.artifacts.files import check_new_file
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.experiments.bench.kept import check as compare
    from bayesvlm.experiments.bench.measured import Plan
    from bayesvlm.experiments.bench.running import BENCHMARKS, chosen, disturbances, run_benchmarks
    from bayesvlm.models import resolve_device
    from bayesvlm.report.writing import write_whole

    places = [name for name in names or [] if check and name not in BENCHMARKS]
    for place in places:
        if not Path(place).exists():
            raise BayesVLMError(
                f"{place!r} is no benchmark ({', '.join(BENCHMARKS)}) and no file or folder with results to compare "
                "with; name one that is there."
            )
    benchmarks = chosen([name for name in names or [] if name not in places])
    if len(places) > 1:
        raise BayesVLMError(f"Results can be compared with those of one place, not of {', '.join(places)}; name one.")
    if check and repeats == 1:
        raise BayesVLMError("One turn has no spread to compare with; give --repeats of at least 2 with --check.")
    kept = _kept(places) if check else []
    if out is not None:
        check_new_file(out, overwrite)
    plan = Plan(str(resolve_device(device)), repeats, quick, pairs)

    def keep(found: dict[str, Any]) -> None:
        if out is not None:
            write_whole(out, (json.dumps(found, indent=2) + "\n").encode())

    result = run_benchmarks(benchmarks, plan, remark, keep)
    lines = compare(result, kept) if check else []
    slower = [line for line in lines if line.verdict == "slower"]
    if check:
        result = result | {"check": [line.numbers() for line in lines], "slower": len(slower)}
    text: list[Any] = [*_tables(result), *disturbances(result), *(line.sentence for line in lines)]
    if known := [line for line in lines if line.kept is not None]:
        text.append(f"{len(slower)} of {len(known)} got slower." if slower else "Nothing got slower.")
    emit(result, text, as_json)
    if slower:
        raise typer.Exit(1)


def _kept(places: Sequence[str]) -> list[Kept]:
    """What to compare with; said where there is none."""
    from bayesvlm.experiments.bench.kept import find_kept, kept_in_checkout

    place = Path(places[0]) if places else kept_in_checkout()
    if place is None:
        remark("No results are kept with an installed library; name a folder or a file of yours after --check.")
        return []
    return find_kept(place, remark)


def _tables(result: dict[str, Any]) -> list[Any]:
    from bayesvlm.experiments.bench.kept import Speed, shown_seconds

    machine = result["machine"]
    rows = []
    for name, each in result["benchmarks"].items():
        for way, numbers in each["ways"].items():
            medians = [shown_seconds(numbers[side]) for side in ("seconds", "reference_seconds")]
            what = name if way == "ours" else f"{name}, {way}"
            rows.append([what, f"{each['reference']}, per {each['per']}", *medians, str(Speed.of(numbers))])
    about = f"{machine['name']}, {machine['cores']} cores, {machine['threads']} threads, torch {machine['torch']}"
    columns = ["benchmark", "against", "ours", "reference", "times as fast (turns)"]
    if machine["device"] == "cuda":
        about = f"{machine['name']}, torch {machine['torch']}"
    text: list[Any] = [table(about, columns, rows, texts=2)]
    for way in result["benchmarks"].get("fit", {}).get("ways", {}).values():
        rate, share = (median(way[fact]) for fact in ("pairs_per_second", "share_outside_the_encoder"))
        text.append(f"fit: {rate:,.1f} pairs per second, {100 * share:.1f} % of the time outside the encoder")
    if result["quick"]:
        text.append("Tiny sizes: everything runs, and the ratios say nothing.")
    return text
