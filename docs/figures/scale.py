"""The tables of docs/scale.md, and that of `bayesvlm bench` in docs/speed.md, anew: `python docs/figures/scale.py`.

Rates are what benchmarks/results/ has, where `bayesvlm bench --out` puts them; everything else on the page about scale
is arithmetic on them, done here.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from bayesvlm.experiments.bench.kept import Speed, shown_seconds
from bayesvlm.progress import duration

ROOT = Path(__file__).parents[2]
RESULTS, DOCS = ROOT / "benchmarks" / "results", ROOT / "docs"
PAIRS = (10**6, 10**8, 10**10)
P_IMAGE, P_TEXT, D = 768, 512, 512  # of a ViT-B/32: what enters the two projections, and what leaves them
WEEK = 7 * 86400
SHARD = 10_000  # pairs per tar file, as img2dataset writes them
GROUP = 32_768  # pairs of a contrast batch


def main() -> None:
    rates = Rates()
    tables = {"rates": rates_table(rates), "cost": cost_table(rates), "stored": stored_table()}
    for name, of in (("scale.md", tables), ("speed.md", {"bench": bench_table()})):
        page = DOCS / name
        page.write_text(filled(page.read_text(encoding="utf-8"), of), encoding="utf-8")


def filled(page: str, tables: dict[str, str]) -> str:
    """The page with each table between its marks."""
    for name, table in tables.items():
        begin, end = f"<!-- {name}: docs/figures/scale.py -->", f"<!-- end of {name} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if len(pattern.findall(page)) != 1:
            raise SystemExit(f"The page has no place for {name}: {begin} ... {end}")
        head, tail = pattern.split(page)
        page = f"{head}{begin}\n{table}\n{end}{tail}"
    return page


class Rates:
    """Units per second, from the kept results; None where nothing was measured."""

    def __init__(self) -> None:
        cpu = kept("bench-cpu.json")["benchmarks"]
        gpu = kept("bench-cuda.json")["benchmarks"]
        model = kept("runtime-cuda.json")["models"]["CLIP-Base"]
        stream, fit = cpu["stream"]["facts"], cpu["fit"]
        self.machine = kept("bench-cpu.json")["machine"]
        self.cores = self.machine["threads"]
        self.decode = stream["decoded_per_core_second"]
        self.prepare = stream["made_ready_per_core_second"]
        self.images = fit["facts"]["images_encoded_per_second"]
        self.texts = fit["facts"]["texts_encoded_per_second"]
        self.fit = median(fit["ways"]["ours"]["pairs_per_second"])
        self.outside = median(fit["ways"]["ours"]["share_outside_the_encoder"])
        self.fit_pairs = fit["sizes"]["pairs"]
        self.alone = 1 / median(fit["ways"]["ours"]["reference_seconds"])
        self.bytes = fit["facts"]["bytes_stored_per_pair"]
        self.curvature = 1 / (2 * median(cpu["curvature"]["ways"]["float32"]["seconds"]))
        seconds = {precision: way["seconds"][0] for precision, way in gpu["curvature"]["ways"].items()}
        self.gpu_curvature = {precision: 1 / (2 * each) for precision, each in seconds.items()}
        self.gpu_image = 1e3 / model["captured"]["plain"]["median"]  # one image at a time
        gpu_fit, beside_gpu = gpu["fit"], gpu["stream"]["facts"]
        self.gpu_images = gpu_fit["facts"]["images_encoded_per_second"]
        self.gpu_texts = gpu_fit["facts"]["texts_encoded_per_second"]
        self.gpu_fit = median(gpu_fit["ways"]["ours"]["pairs_per_second"])
        self.gpu_alone = 1 / median(gpu_fit["ways"]["ours"]["reference_seconds"])
        self.gpu_fit_pairs = gpu_fit["sizes"]["pairs"]
        self.gpu_decode = beside_gpu["decoded_per_core_second"]
        self.gpu_prepare = beside_gpu["made_ready_per_core_second"]

    @property
    def reading(self) -> float:
        """Images that one core decodes and makes ready per second."""
        return 1 / (1 / self.decode + 1 / self.prepare)


def kept(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return found


def median(values: list[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


# Tables ---------------------------------------------------------------------------------------------------------------


def rates_table(rates: Rates) -> str:
    cpu = f"{rates.machine['name']}, {rates.cores} cores"
    tf32, float32 = (rates.gpu_curvature[precision] for precision in ("tf32", "float32"))
    return markdown(
        ["per second", cpu, "one H200 and its 16 cores"],
        [
            ["decode a JPEG of 256 x 256, per core", number(rates.decode), number(rates.gpu_decode)],
            ["crop, normalise, to tensors, per core", number(rates.prepare), number(rates.gpu_prepare)],
            ["encode images, ViT-B/32, float32, batches of 64", number(rates.images), number(rates.gpu_images)],
            ["encode images one at a time", "not measured", f"{number(rates.gpu_image)} (CUDA graph)"],
            ["encode captions of about 25 tokens, batches of 64", number(rates.texts), number(rates.gpu_texts)],
            ["both towers of pairs in memory, one after the other", number(rates.alone), number(rates.gpu_alone)],
            [
                "curvature of pairs, both towers, K = 32,768",
                f"{number(rates.curvature)} (float32)",
                f"{number(tf32)} (tf32), {number(float32)} (float32)",
            ],
            [
                f"`bayesvlm fit` of {rates.fit_pairs:,} and {rates.gpu_fit_pairs:,} pairs, everything included",
                number(rates.fit),
                number(rates.gpu_fit),
            ],
        ],
    )


def cost_table(rates: Rates) -> str:
    gpu, columns = rates.gpu_fit, [f"{count:.0e}".replace("+", "").replace("e0", "e") for count in PAIRS]
    return markdown(
        ["arithmetic, not measured", *(f"{column} pairs" for column in columns)],
        [
            ["one machine of two cores", *(time(count / rates.fit) for count in PAIRS)],
            ["such machines, to be done in a week", *(machines(count / rates.fit) for count in PAIRS)],
            ["one H200", *(time(count / gpu) for count in PAIRS)],
            ["such GPUs, to be done in a week", *(machines(count / gpu) for count in PAIRS)],
            ["curvature alone on one H200, tf32", *(time(count / rates.gpu_curvature["tf32"]) for count in PAIRS)],
            ["decoding alone, hours of one core", *(number(count / rates.reading / 3600) for count in PAIRS)],
            ["shards to read", *(size(count * rates.bytes) for count in PAIRS)],
            ["shard files of 10,000 pairs", *(number(count / SHARD) for count in PAIRS)],
        ],
    )


def stored_table() -> str:
    tower = {"image": 8 * (P_IMAGE**2 + D**2), "text": 8 * (P_TEXT**2 + D**2)}
    total, recent = sum(tower.values()), 2 * 4 * GROUP * D
    halves = total / 2
    return markdown(
        ["arithmetic, for a ViT-B/32 (p = 768 and 512, d = 512)", "bytes"],
        [
            ["the sums of a group, or of everything: 8 (p² + d²) per tower", size(total)],
            ["a checkpoint between two groups", size(total)],
            [
                "a checkpoint inside a group: that twice, and the last contrast batch's embeddings",
                size(2 * total + recent),
            ],
            ["a saved posterior: the upper triangles", size(halves)],
            ["100 parts of a Slurm array, saved", size(100 * halves)],
            ["what was read, in a posterior's config.json, per shard", f"{record_bytes()} bytes"],
            ["per pair", "0"],
        ],
    )


def bench_table() -> str:
    found = kept("bench-cpu.json")
    rows = []
    for name, each in found["benchmarks"].items():
        for way, numbers in each["ways"].items():
            sides = [shown_seconds(numbers[side]) for side in ("reference_seconds", "seconds")]
            what = name if way == "ours" else f"{name}, {way}"
            sizes = ", ".join(f"{size} {value}" for size, value in each["sizes"].items())
            rows.append([what, sizes, f"{each['reference']}, per {each['per']}", *sides, str(Speed.of(numbers))])
    machine = f"{found['machine']['name']}, {found['machine']['cores']} cores"
    return markdown([machine, "sizes", "reference", "its time", "ours", "times as fast (turns)"], rows)


def record_bytes() -> int:
    """Of one shard in what a posterior says it read: its name and two hashes, as its config.json has them."""
    lengths = []
    for count in (1, 2):
        read = {"provenance": {"read": {"shards": [["00000.tar", "0" * 16, "0" * 16]] * count}}}
        lengths.append(len(json.dumps(read, indent=2)))
    return lengths[1] - lengths[0]


def markdown(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def number(value: float) -> str:
    """Two digits, or three from a hundred on."""
    if value < 10:
        return f"{value:.2g}"
    digits = 2 - math.floor(math.log10(value))
    return f"{round(value, digits):,.0f}"


def size(count: float) -> str:
    for unit, of in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9)):
        if count >= of:
            return f"{count / of:.3g} {unit}"
    return f"{count / 1e6:.3g} MB"


def time(seconds: float) -> str:
    years = seconds / (365.25 * 86400)
    return f"{years:,.3g} years" if years >= 2 else duration(seconds)


def machines(seconds: float) -> str:
    return number(math.ceil(seconds / WEEK))


if __name__ == "__main__":
    main()
