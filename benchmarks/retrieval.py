"""An index against plain LanceDB, and what becomes of it when things go wrong: a million rows, recall of the index of
vectors, time to build and to answer in turns, bytes; processes killed while they add; a soak; the embedded drawings.

python benchmarks/retrieval.py --out docs/figures/retrieval-scale.json
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
import torch
from lancedb.index import IvfRq
from report import arguments, machine
from torch import Tensor

from bayesvlm import BayesVLM, Features, world
from bayesvlm.embedded import SPLITS
from bayesvlm.experiments.bench.turns import take_turns
from bayesvlm.retrieval import Hits, Index
from bayesvlm.retrieval import index as settings
from bayesvlm.retrieval.rows import Rows

CHUNK = 50_000
K = 10
FRESH = multiprocessing.get_context("forkserver")  # from a process in which nothing has begun
FRESH.set_forkserver_preload(["bayesvlm.retrieval"])


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--d", type=int, default=256)
    parser.add_argument("--p", type=int, default=256)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--soak", type=int, default=200_000)
    parser.add_argument("--folder", type=Path, help="where indexes are made; they are removed again")
    parser.add_argument("--only", nargs="*", default=["soak", "kills", "writers", "world", "isotropic", "clustered"])
    options = parser.parse_args()
    parts: dict[str, Callable[[Path], dict[str, Any]]] = {
        "isotropic": lambda at: scale(at, "isotropic", options.rows, options.d, options.p, options.queries),
        "clustered": lambda at: scale(at, "clustered", options.rows, options.d, options.p, options.queries),
        "kills": lambda at: kills(at, options.kills),
        "writers": writers,
        "soak": lambda at: soak(at, options.soak, options.d, options.p),
        "world": in_the_world,
    }
    kept = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    for name in options.only:
        with folder(options.folder) as at:
            started = time.perf_counter()
            kept[name] = {**parts[name](at), "seconds": round(time.perf_counter() - started)}
        print(name, json.dumps(kept[name], indent=1))
        kept["machine"] = {**machine("cpu"), "lancedb": lancedb.__version__}
        if options.out:
            options.out.write_text(json.dumps(kept, separators=(",", ":")) + "\n")


# A million rows -------------------------------------------------------------------------------------------------------


def model(d: int, p: int) -> BayesVLM:
    """A random projection, the same of both towers so that texts find images, with a posterior of random pairs."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(d, p, generator=generator) / p**0.5
    pairs = [(Features(torch.randn(1024, p, generator=generator)), Features(torch.randn(1024, p, generator=generator)))]
    vlm = BayesVLM.from_projections(weight, weight, math.log(50.0))
    return vlm.fit(pairs, negatives=1024, progress=False)


def activations(kind: str, count: int, p: int, seed: int) -> Features:
    """Isotropic: nothing is near to anything, the hardest case. Clustered: 2,000 centres, as things come in kinds."""
    generator = torch.Generator().manual_seed(seed)
    length = 0.5 + torch.rand(count, 1, generator=generator)  # variances differ
    noise = torch.randn(count, p, generator=generator)
    if kind == "isotropic":
        return Features(noise * length)
    centres = torch.randn(2000, p, generator=torch.Generator().manual_seed(7))
    return Features((centres[torch.randint(2000, (count,), generator=generator)] + 0.7 * noise) * length)


def scale(at: Path, kind: str, rows: int, d: int, p: int, queries: int) -> dict[str, Any]:
    """The same items into an index and into plain LanceDB, chunk by chunk in turns; the same queries to both."""
    vlm = model(d, p)
    index = Index.create(at / "bayes", vlm)
    plain = lancedb.connect(at / "plain").create_table("items", schema=plain_schema(d))
    asked = activations(kind, queries, p, seed=10**6)
    wanted, wanted_image = Rows.of(vlm, asked, "text").mean, unit_means(vlm, asked)
    seconds: dict[str, float] = Counter()
    truth, plain_truth, same_truth = Best(K), Best(K), Best(K)
    for start in range(0, rows, CHUNK):
        count = min(CHUNK, rows - start)
        features = activations(kind, count, p, seed=start)
        ids = [f"item {place}" for place in range(start, start + count)]
        with added(seconds, "plain: add"):
            vectors = unit_means(vlm, features)
            plain.add(plain_rows(ids, vectors))
        with added(seconds, "index: add"):
            index.add(features, ids, progress=False)
        truth.see(wanted, Rows.of(vlm, features, "image").mean, start)
        plain_truth.see(wanted, vectors, start)
        same_truth.see(wanted_image, vectors, start)
    with added(seconds, "plain: compact"):
        plain.optimize()
        plain.create_index("vector", config=IvfRq(distance_type="dot", num_bits=settings.BITS))
    with added(seconds, "index: compact"):
        index.compact()
    answers = answering(index, plain, asked)
    found = [places(hits) for hits in index.search(asked, k=K)]
    same = [places(hits) for hits in index.search(asked, k=K, tower="image")]
    batch = take_turns({"index": lambda: index.search(asked, k=K)}, "cpu", 3)["index"]
    for folder_of in ("bayes", "plain"):  # without what earlier states are kept for
        lancedb.connect(at / folder_of).open_table("items").optimize(cleanup_older_than=timedelta(0))
    ours, theirs = size(at / "bayes"), size(at / "plain")
    recall_plain = {f"{settings.BITS} bits": recall(plain_answers(plain, wanted, 2**20, 10), plain_truth.places)}
    plain.create_index("vector", config=IvfRq(distance_type="dot"), replace=True)  # what LanceDB does unless told
    recall_plain["1 bit, 20 parts"] = recall(plain_answers(plain, wanted, 20, None), plain_truth.places)
    recall_plain["1 bit, all parts, 10x refined"] = recall(plain_answers(plain, wanted, 2**20, 10), plain_truth.places)
    total = {
        name: sum(value for part, value in seconds.items() if part.startswith(name)) for name in ("index", "plain")
    }
    return {
        "rows": rows,
        "d": d,
        "p": p,
        "queries": queries,
        "recall": recall(found, truth.places),
        "recall_same_tower": recall(same, same_truth.places),
        "recall_plain": recall_plain,
        "build_seconds": {**seconds, **total},
        "build_ratio": total["index"] / total["plain"],
        "query_ms": {name: 1e3 * statistics.median(taken) for name, taken in answers.items()},
        "query_ratio": statistics.median(answers["index"]) / statistics.median(answers["plain"]),
        "batch_query_ms": 1e3 * statistics.median(batch) / queries,
        "bytes_per_row": {"index": ours / rows, "plain": theirs / rows},
    }


def answering(index: Index, plain: Any, asked: Features) -> dict[str, list[float]]:
    """Seconds of each query, from its features on, both in turns."""
    taken: dict[str, list[float]] = {"index": [], "plain": []}
    for row in range(len(asked)):
        query = asked[row : row + 1]
        runs = {
            "index": lambda query=query: index.search(query, k=K),
            "plain": lambda query=query: plain_answers(plain, unit_means(index.vlm, query, "text"), 2**20, 10),
        }
        for name, each in take_turns(runs, "cpu", 2, warm_ups=1 if row == 0 else 0).items():
            taken[name] += each
    return taken


def unit_means(vlm: BayesVLM, features: Features, tower: str = "image") -> Tensor:
    """What an index without uncertainty keeps of items, and takes of a query."""
    return torch.nn.functional.normalize((vlm.image if tower == "image" else vlm.text).embed(features), dim=1)


def plain_schema(d: int) -> pa.Schema:
    return pa.schema([pa.field("id", pa.string()), pa.field("vector", pa.list_(pa.float32(), d))])


def plain_rows(ids: list[str], vectors: Tensor) -> pa.Table:
    lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.numpy().ravel()), vectors.shape[1])
    return pa.table([pa.array(ids), lists], schema=plain_schema(vectors.shape[1]))


def plain_answers(
    table: Any, vectors: Tensor | np.ndarray[Any, Any], probes: int, refine: int | None
) -> list[set[int]]:
    """What LanceDB alone answers: ids and distances."""
    found = []
    for vector in np.asarray(vectors):
        search = table.search(vector, vector_column_name="vector").distance_type("dot").limit(K).nprobes(probes)
        search = search if refine is None else search.refine_factor(refine)
        table_found = search.select(["id", "_distance"]).to_arrow()
        found.append({int(each.removeprefix("item ")) for each in table_found["id"].to_pylist()})
    return found


class Best:
    """The exact nearest of each query, of rows that are seen a chunk at a time."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.scores: Tensor | None = None
        self.rows: Tensor | None = None

    def see(self, queries: Tensor, vectors: Tensor, start: int) -> None:
        scores, rows = (queries @ vectors.T).topk(min(self.k, len(vectors)), dim=1)
        rows = rows + start
        if self.scores is not None and self.rows is not None:
            scores, rows = torch.cat([self.scores, scores], 1), torch.cat([self.rows, rows], 1)
        self.scores, order = scores.topk(self.k, dim=1)
        self.rows = rows.gather(1, order)

    @property
    def places(self) -> list[set[int]]:
        assert self.rows is not None
        return [set(row) for row in self.rows.tolist()]


def places(hits: Hits) -> set[int]:
    return {int(each.removeprefix("item ")) for each in hits.ids}


def recall(found: list[set[int]], truth: list[set[int]]) -> float:
    return statistics.fmean(len(one & other) / len(other) for one, other in zip(found, truth, strict=True))


# Faults ---------------------------------------------------------------------------------------------------------------


def adder(at: str, start: int, count: int, step: int, acknowledged: Any) -> None:
    """Adds rows and says after each call that it returned."""
    vlm = model(32, 48)
    index = Index.open(at, vlm)
    acknowledged.put(-1)
    for first in range(start, start + count, step):
        features = activations("isotropic", step, 48, seed=first)
        index.add(features, [f"item {place}" for place in range(first, first + step)], existing="skip", progress=False)
        acknowledged.put(first)


def kills(at: Path, points: int) -> dict[str, Any]:
    """A process that adds, killed at a random moment, again and again; then one that finishes."""
    step, count, draws = 250, 250 * 200, random.Random(3)
    Index.create(at / "index", model(32, 48))
    promised: set[int] = set()
    lost = twice = partial = unreadable = 0
    for _ in range(points):
        queue = FRESH.Queue()
        process = FRESH.Process(target=adder, args=(str(at / "index"), 0, count, step, queue))
        process.start()
        queue.get(timeout=120)  # it is about to begin
        time.sleep(draws.uniform(0.0, 1.5))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        while not queue.empty():
            promised.add(queue.get())
        try:
            there = Counter(int(row["id"].removeprefix("item ")) for row in Index.open(at / "index").rows())
        except Exception as error:
            print("unreadable:", error)
            unreadable += 1
            continue
        promised.discard(-1)
        lost += sum(place not in there for first in promised for place in range(first, first + step))
        twice += sum(number > 1 for number in there.values())
        chunks = [sum(place in there for place in range(first, first + step)) for first in range(0, count, step)]
        partial += sum(0 < number < step for number in chunks)
        if len(there) >= count:  # all there: begin anew
            Index.open(at / "index").delete(where="true")
            promised = set()
    return {"points": points, "lost": lost, "twice": twice, "half_written": partial, "unreadable": unreadable}


def writers(at: Path) -> dict[str, Any]:
    """Two processes that add a thousand rows each, ten at a time."""
    Index.create(at / "index", model(32, 48))
    queue = FRESH.Queue()
    pair = [FRESH.Process(target=adder, args=(str(at / "index"), start, 1000, 10, queue)) for start in (0, 1000)]
    for process in pair:
        process.start()
    for process in pair:
        process.join()
    there = Counter(row["id"] for row in Index.open(at / "index").rows())
    return {"rows": len(there), "twice": sum(number > 1 for number in there.values())}


def soak(at: Path, rows: int, d: int, p: int) -> dict[str, Any]:
    """Rows that are added, and then replaced twice, while another thread searches; what the process holds in memory
    meanwhile: in the second and third pass their number stays the same, so whatever grows then would grow for good."""
    index = Index.create(at / "index", model(d, p))
    step, stop = 2_000, threading.Event()
    asked, failures, searches = activations("clustered", 4, p, seed=5), [], 0
    held: list[list[int]] = []

    def search() -> None:
        nonlocal searches
        while not stop.is_set():
            try:
                index.search(asked, k=K)
                searches += 1
            except Exception as error:
                failures.append(str(error))

    index.add(activations("clustered", step, p, seed=0), [f"item {place}" for place in range(step)], progress=False)
    thread = threading.Thread(target=search)
    thread.start()
    for turn in range(3):
        held.append([])
        for start in range(step, rows, step):
            ids = [f"item {place}" for place in range(start, start + step)]
            index.add(activations("clustered", step, p, seed=start), ids, existing="replace", progress=False)
            if start % 20_000 == 0:
                index.compact()
                held[-1].append(round(resident_mib()))
                print(f"pass {turn}, {start:>8} rows, {held[-1][-1]} MiB, {searches} searches", flush=True)
    stop.set()
    thread.join()
    return {"rows": len(index), "searches": searches, "failures": len(failures), "resident_mib": held}


# The drawings ---------------------------------------------------------------------------------------------------------


def in_the_world(at: Path) -> dict[str, Any]:
    """Every drawing of the world in one index; its names as queries. What is looked at against all there is."""
    vlm = BayesVLM.from_pretrained("emoji-clip")
    splits = [world.load(name) for name in SPLITS]
    images = [image for split in splits for image in split.images]
    names = sorted({name for split in splits for name in split.classes})
    features = vlm.image_features(images, progress=True)
    settings.ANN_ROWS = 1000
    index = Index.create(at / "index", vlm)
    index.add(features, [f"item {place}" for place in range(len(images))], progress=False)
    index.compact()
    assert index.info()["vector_index"] is not None
    texts = vlm.text_features(names, progress=True)
    found = [places(hits) for hits in index.search(texts, k=K)]
    exact = [places(hits) for hits in index.search(texts, k=K, exact=True)]
    kept = {"images": len(images), "queries": len(names), "recall": recall(found, exact)}
    moments = vlm.similarity(features, texts)
    for rank, sign in (("lower", -1), ("upper", 1)):
        bounds = (moments.mean + sign * 1.959964 * moments.std).T
        all_of_them = [set(row) for row in bounds.topk(K, dim=1).indices.tolist()]
        kept[f"recall_{rank}"] = recall([places(hits) for hits in index.search(texts, k=K, rank=rank)], all_of_them)
    some = features[:: len(features) // 500]
    cosines = unit_means(vlm, some) @ unit_means(vlm, features).T
    near = [set(row) for row in cosines.topk(K, dim=1).indices.tolist()]
    kept["recall_same_tower"] = recall([places(hits) for hits in index.search(some, k=K, tower="image")], near)
    return kept


# How ------------------------------------------------------------------------------------------------------------------


@contextmanager
def folder(parent: Path | None) -> Iterator[Path]:
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    at = Path(tempfile.mkdtemp(dir=parent))
    try:
        yield at
    finally:
        shutil.rmtree(at, ignore_errors=True)


@contextmanager
def added(seconds: dict[str, float], name: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[name] += time.perf_counter() - started


def size(at: Path) -> int:
    return sum(file.stat().st_size for file in at.rglob("*") if file.is_file())


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    main()
