"""How long one image takes, with the posterior and without: the whole way from pixels to class probabilities.

The paper's protocol: one image at a time, 3 warm-up steps, 1000 runs. The two ways take turns, now one first, now the
other, so that a busy moment of the machine meets both and neither always comes after something slower. Weights and
posterior are random, which changes no time.
"""

from __future__ import annotations

import math
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.estimation import TOWERS, Tower
from bayesvlm.core.factors import KroneckerFactors, Spectrum
from bayesvlm.core.features import Features
from bayesvlm.core.projection import Projection
from bayesvlm.vlm import BayesVLM
from bayesvlm_paper.architectures import architecture, image_encoder, parameters

CLASSES = 100  # of CIFAR-100
WARM_UP, RUNS = 3, 1000
SECONDS = 8.0  # for the runs of one model where there is no GPU

Run = Callable[[], Tensor]
Returned = TypeVar("Returned")


LEAST = "the heads alone"
"""What decides an overhead that is only the least it can be: heads by themselves find their weights in the cache."""


def durations(times: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """Way -> mean and median of its runs, from seconds to milliseconds."""
    return {
        way: {"mean": 1e3 * statistics.fmean(each), "median": 1e3 * statistics.median(each)}
        for way, each in times.items()
    }


def with_overheads(times: Mapping[str, Any]) -> dict[str, Any]:
    """These times of one architecture, and what the posterior adds to them, in percent of the model without it.

    Captured runs decide on a GPU; elsewhere whole runs where they tell the overhead to 1 %, else the heads.

    Args:
        times: "whole", pixels to probabilities of "plain" and "bayes"; "heads" by themselves, from what enters the last
            layer, and "classify", the way that is made for many images and knows no fixed classes; "captured", whole
            runs replayed from CUDA graphs, so that nothing waits for the host to launch kernels, or None: `durations`
            all of them. "difference" is the median over turns of what Bayes took longer, in milliseconds, and
            "uncertainty" half of the 95 % interval of that, in percent of plain; None with too few runs.
    """
    whole, heads, captured = times["whole"], times["heads"], times["captured"]
    plain = whole["plain"]["median"]
    alone = {way: 100 * (heads[way]["median"] - heads["plain"]["median"]) / plain for way in ("bayes", "classify")}
    by = {
        "medians": 100 * times["difference"] / plain,
        "means": 100 * (whole["bayes"]["mean"] / whole["plain"]["mean"] - 1),
        "heads": alone["bayes"],
        "captured runs": captured and 100 * (captured["bayes"]["median"] / captured["plain"]["median"] - 1),
    }
    certain = times["uncertainty"] is not None and times["uncertainty"] <= 1
    decided_by = "captured runs" if captured else "whole runs" if certain else LEAST
    return {
        **times,
        "overhead": by[{"whole runs": "medians", LEAST: "heads"}.get(decided_by, decided_by)],
        "overhead decided by": decided_by,
        "overhead by": by,
        "overhead of classify": alone["classify"],
    }


def machine(device: torch.device) -> dict[str, Any]:
    """What the times were taken on."""
    processor = _fact("/proc/cpuinfo", "model name") or platform.machine()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor
    return {"device": str(device), "name": name, "threads": torch.get_num_threads(), "torch": torch.__version__}


def _fact(path: str, name: str) -> str | None:
    """The first line of that name in a file of names and values; None where nothing says."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith(name))
    except (OSError, StopIteration):
        return None


def run_times(name: str, device: torch.device, runs: int | None = None) -> dict[str, Any]:
    """Times of one architecture `with_overheads`, in float32, one image at a time.

    Args:
        runs: None is the paper's number on a GPU, elsewhere what fits into `SECONDS`: three at least, or as many as
            twice the time allows, and no warm-up beyond the first pass where it would take most of the time.

    Raises:
        BayesVLMError: where memory is short.
    """
    check_memory(name, device)
    encode, vlm = image_encoder(name, device), random_vlm(name, device)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(1, *architecture(name).pixels, generator=generator).to(device)
    texts = Features(torch.randn(CLASSES, vlm.text.activation_width, generator=generator).to(device))
    with torch.inference_mode():
        heads = {"plain": vlm.plain_head(texts).probs, "bayes": vlm.head(texts).probs}
        entering, pass_seconds = timed(lambda: encode(pixels), device)
        whole: dict[str, Run] = {way: partial(lambda head: head(*encode(pixels)), head) for way, head in heads.items()}
        limit = math.inf if device.type == "cuda" or runs is not None else SECONDS
        alone = in_turn({way: partial(head, *entering) for way, head in heads.items()}, device, runs or RUNS, limit / 5)
        # classify by itself: it would slow down whatever follows it
        slow: dict[str, Run] = {"classify": lambda: vlm.classify(Features(*entering), texts).probs}
        alone |= in_turn(slow, device, runs or RUNS, limit / 10)
        warm_up = WARM_UP if WARM_UP * len(whole) * pass_seconds < limit else 0
        times = in_turn(whole, device, runs or RUNS, limit, warm_up)
        captured = None
        if device.type == "cuda":
            captured = durations(in_turn({way: captured_run(run) for way, run in whole.items()}, device, RUNS))
    longer = [b - a for a, b in zip(times["plain"], times["bayes"], strict=True)]
    found = {
        "name": name,
        "runs": len(longer),
        "whole": durations(times),
        "heads": durations(alone),
        "difference": 1e3 * statistics.median(longer),
        "uncertainty": uncertainty(times["plain"], times["bayes"]),
        "captured": captured,
    }
    return with_overheads(found)


def in_turn(
    ways: Mapping[str, Run], device: torch.device, runs: int, seconds: float = math.inf, warm_up: int = WARM_UP
) -> dict[str, list[float]]:
    """Seconds of every run after the warm-up, the ways taking turns, for as long as `seconds` allow.

    Every other turn has them in reverse, so that each follows itself as often as the other.
    """
    times: dict[str, list[float]] = {way: [] for way in ways}
    started = time.perf_counter()
    for turn in range(1, warm_up + runs + 1):
        for way in list(ways) if turn % 2 else reversed(list(ways)):
            times[way].append(timed(ways[way], device)[1])
        spent = time.perf_counter() - started
        if turn > warm_up and (spent >= 2 * seconds or (spent >= seconds and turn >= warm_up + 3)):
            break
    return {way: each[warm_up:] for way, each in times.items()}


def captured_run(run: Run) -> Run:
    """The same kernels from a CUDA graph: one launch for all of them."""
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(WARM_UP):
            run()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        returned = run()

    def replay() -> Tensor:
        graph.replay()
        return returned

    return replay


def timed(run: Callable[[], Returned], device: torch.device) -> tuple[Returned, float]:
    """What a call returns, and the seconds until the device has done it."""

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    started = now()
    returned = run()
    return returned, now() - started


def uncertainty(plain: Sequence[float], bayes: Sequence[float]) -> float | None:
    """Half of the 95 % interval of a pair's median difference, in percent of the plain median; None for too few pairs.

    From the order of the differences: nothing is assumed of how times are distributed.
    """
    n = len(plain)
    if n < 6:  # the least and the greatest of fewer are no 95 % interval
        return None
    ordered = sorted(b - a for a, b in zip(plain, bayes, strict=True))
    cut = int((n - 1.96 * math.sqrt(n)) / 2)
    return 100 * (ordered[n - 1 - cut] - ordered[cut]) / 2 / statistics.median(plain)


# What is timed -------------------------------------------------------------------------------------------------------


def random_vlm(name: str, device: str | torch.device) -> BayesVLM:
    """The last layers of an architecture with a posterior, random all of it."""
    shape = architecture(name)
    d, *inputs = shape.widths
    sigmoid = shape.loss == "sigmoid"
    generator = torch.Generator().manual_seed(1)
    projections: dict[Tower, Projection] = {}
    for tower, p in zip(TOWERS, inputs, strict=True):
        weight = torch.randn(d, p, generator=generator) / math.sqrt(p)
        bias = torch.randn(d, generator=generator) if sigmoid else None
        projections[tower] = Projection(weight.to(device), bias, residual=sigmoid and tower == "image")
    factors = {tower: random_factors(each.input_width, d, device) for tower, each in projections.items()}
    scale, bias_of_logits = math.log(100), -10.0 if sigmoid else None
    image, text = projections["image"], projections["text"]
    vlm = BayesVLM(image, text, scale, bias_of_logits, shape.loss).replace(lam=dict.fromkeys(TOWERS, 1.0))
    return vlm.with_factors(factors)


def random_factors(p: int, d: int, device: str | torch.device) -> KroneckerFactors:
    """Valid factors whose eigenvectors are known, a reflection each: finding those of 3073 inputs would take longer
    than all the rest.
    """
    spectra, sums = {}, []
    for factor, size in (("A", p), ("B", d)):
        generator = torch.Generator().manual_seed(size)
        values = torch.rand(size, generator=generator, dtype=torch.float64).sort().values
        axis = torch.nn.functional.normalize(torch.randn(size, generator=generator, dtype=torch.float64), dim=0)
        vectors = torch.eye(size, dtype=torch.float64) - 2 * torch.outer(axis, axis)
        spectra[f"{factor}_spectrum"] = Spectrum(values.to(device), vectors.to(device))
        half = torch.diag(values) - 2 * torch.outer(axis, axis * values)  # vectors @ diag(values), without a product
        sums.append((half - 2 * torch.outer(half @ axis, axis)).to(device))
    factors = KroneckerFactors(sums[0], sums[1], 1)
    vars(factors).update(spectra)
    return factors


def check_memory(name: str, device: torch.device) -> None:
    """Refuse a model that would not fit."""
    needed = 4 * parameters(name)["image"] * 1.3 + 5e8
    spare = spare_memory(device)
    if spare is not None and spare < needed:
        raise BayesVLMError(f"{name} needs {needed / 1e9:.1f} GB of memory here, and {spare / 1e9:.1f} GB are free.")


def spare_memory(device: torch.device) -> float | None:
    """Bytes that are free; None where nothing says."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    kilobytes = _fact("/proc/meminfo", "MemAvailable")
    return None if kilobytes is None else 1024 * float(kilobytes.split()[0])
