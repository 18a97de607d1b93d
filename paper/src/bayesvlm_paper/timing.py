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
from dataclasses import asdict, dataclass, fields
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


@dataclass(frozen=True)
class Duration:
    """Milliseconds of a run."""

    mean: float
    median: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Duration:
        return cls(1e3 * statistics.fmean(seconds), 1e3 * statistics.median(seconds))


@dataclass(frozen=True)
class RunTimes:
    """One architecture on one machine; overheads are in percent of the model without a posterior.

    Args:
        runs: of each way.
        whole: pixels to probabilities: "plain", "bayes".
        heads: by themselves, from what enters the last layer to probabilities; and "classify", the way that is made
            for many images and knows no fixed classes.
        difference: median over turns of what Bayes took longer than plain, in milliseconds.
        uncertainty: half of the 95 % interval of that median, in percent of plain; None with too few runs.
        captured: whole runs replayed from CUDA graphs, so that nothing waits for the host to launch kernels; on a GPU.
    """

    name: str
    runs: int
    whole: Mapping[str, Duration]
    heads: Mapping[str, Duration]
    difference: float
    uncertainty: float | None
    captured: Mapping[str, Duration] | None = None

    def by_median(self) -> float:
        """The median difference of a turn's two runs."""
        return 100 * self.difference / self.whole["plain"].median

    def by_mean(self) -> float:
        """The difference of the means, as in the paper."""
        return 100 * (self.whole["bayes"].mean / self.whole["plain"].mean - 1)

    def by_head(self, way: str = "bayes") -> float:
        """The difference of the heads timed by themselves."""
        return 100 * (self.heads[way].median - self.heads["plain"].median) / self.whole["plain"].median

    def by_capture(self) -> float | None:
        """The difference of the medians of captured runs: they hardly vary."""
        if self.captured is None:
            return None
        return 100 * (self.captured["bayes"].median / self.captured["plain"].median - 1)

    @property
    def certain(self) -> bool:
        """Whether whole runs tell the overhead to 1 %."""
        return self.uncertainty is not None and self.uncertainty <= 1

    @property
    def overhead(self) -> float:
        """By captured runs on a GPU; elsewhere by whole runs where they tell it to 1 %, else by the heads."""
        captured = self.by_capture()
        if captured is not None:
            return captured
        return self.by_median() if self.certain else self.by_head()

    @property
    def decided_by(self) -> str:
        """What `overhead` is taken from."""
        return "captured runs" if self.captured else "whole runs" if self.certain else "the heads alone"

    @property
    def least(self) -> bool:
        """Whether `overhead` is only the least it can be: heads by themselves find their weights in the cache."""
        return self.decided_by == "the heads alone"

    @property
    def classify_overhead(self) -> float:
        """Of `classify`, which is made for many images, by the head."""
        return self.by_head("classify")

    def to_json(self) -> dict[str, Any]:
        """Everything, for json; times in milliseconds, overheads in percent."""
        return {
            **asdict(self),
            "overhead": self.overhead,
            "overhead decided by": self.decided_by,
            "overhead by": {
                "medians": self.by_median(),
                "means": self.by_mean(),
                "heads": self.by_head(),
                "captured runs": self.by_capture(),
            },
            "overhead of classify": self.classify_overhead,
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> RunTimes:
        """What `to_json` wrote."""

        def read(times: Mapping[str, Any] | None) -> dict[str, Duration] | None:
            return None if times is None else {way: Duration(**each) for way, each in times.items()}

        values = {field.name: kept[field.name] for field in fields(cls)}
        return cls(**values | {name: read(values[name]) for name in ("whole", "heads", "captured")})


def machine(device: torch.device) -> dict[str, Any]:
    """What the times were taken on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    return {"device": str(device), "name": name, "threads": torch.get_num_threads(), "torch": torch.__version__}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def run_times(
    name: str, device: torch.device, *, runs: int | None = None, seconds: float = SECONDS, classes: int = CLASSES
) -> RunTimes:
    """Times of one architecture, in float32, one image at a time.

    Args:
        runs: None is the paper's number on a GPU, elsewhere what fits into `seconds`: three at least, or as many as
            twice the time allows, and no warm-up beyond the first pass where it would take most of the time.

    Raises:
        BayesVLMError: where memory is short.
    """
    check_memory(name, device)
    encode, vlm = image_encoder(name, device), random_vlm(name, device)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(1, *architecture(name).pixels, generator=generator).to(device)
    texts = Features(torch.randn(classes, vlm.text.activation_width, generator=generator).to(device))
    with torch.inference_mode():
        plain, bayes = vlm.plain_head(texts), vlm.head(texts)
        heads: dict[str, Callable[..., Tensor]] = {
            "plain": plain.probs,
            "bayes": bayes.probs,
            "classify": lambda *entering: vlm.classify(Features(*entering), texts).probs,
        }
        entering, pass_seconds = timed(lambda: encode(pixels), device)
        alone: dict[str, Run] = {way: partial(head, *entering) for way, head in heads.items()}
        whole: dict[str, Run] = {
            way: partial(lambda head: head(*encode(pixels)), heads[way]) for way in ("plain", "bayes")
        }
        limit = math.inf if device.type == "cuda" or runs is not None else seconds
        slow = alone.pop("classify")  # by itself: it would slow down whatever follows it
        head_times = in_turn(alone, device, runs or RUNS, limit / 5)
        head_times |= in_turn({"classify": slow}, device, runs or RUNS, limit / 10)
        warm_up = WARM_UP if WARM_UP * len(whole) * pass_seconds < limit else 0
        times = in_turn(whole, device, runs or RUNS, limit, warm_up)
        captured = None
        if device.type == "cuda":
            replayed = {way: captured_run(run) for way, run in whole.items()}
            captured = {way: Duration.of(each) for way, each in in_turn(replayed, device, RUNS).items()}
    return RunTimes(
        name,
        len(times["plain"]),
        {way: Duration.of(each) for way, each in times.items()},
        {way: Duration.of(each) for way, each in head_times.items()},
        1e3 * statistics.median(b - a for a, b in zip(times["plain"], times["bayes"], strict=True)),
        uncertainty(times["plain"], times["bayes"]),
        captured,
    )


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
    _wait(device)
    started = time.perf_counter()
    returned = run()
    _wait(device)
    return returned, time.perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


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
        mixed = torch.outer(axis, values * axis)  # vectors @ diag(values) @ vectors, written out
        square = 4 * (axis @ (values * axis)) * torch.outer(axis, axis)
        sums.append((torch.diag(values) - 2 * (mixed + mixed.T) + square).to(device))
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
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return 1024 * float(next(line.split()[1] for line in lines if line.startswith("MemAvailable")))
    except (OSError, StopIteration):
        return None
