"""A whole fit, from shards of JPEG pairs to the factors of both towers, against the encoder alone.

The encoder alone works on pixels and captions in memory: a fit can take no less, and what it takes more is time that a
GPU, or the cores, wait for something else. Beside it the share of the fit in which no encoder runs, by hooks on the
towers: both are wanted small, and on a machine whose cores both decode and encode only the first can show what decoding
takes from the encoder.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from bayesvlm.core.errors import BayesVLMWarning
from bayesvlm.data.resolution import resolve
from bayesvlm.experiments.bench.generated import caption, jpegs, make_shards, save_random
from bayesvlm.experiments.bench.measured import Fact, Measured, Plan, compared
from bayesvlm.experiments.bench.turns import take_turns, timed, wait
from bayesvlm.models.preprocessing import PixelTensors
from bayesvlm.vlm import BayesVLM

REFERENCE = "the encoder alone"
BATCH = 64
_HELD = 512  # images whose pixels are held in memory; the encoder alone sees them again and again


def measure(plan: Plan) -> Measured:
    """Of a ViT-B/32 with random weights; of 20,000 pairs on a GPU, of a few elsewhere."""
    shape = "tiny" if plan.quick else "ViT-B/32"
    pairs = plan.pairs or (48 if plan.quick else 20_000 if plan.cuda else 512)
    batch = 16 if plan.quick else BATCH
    with tempfile.TemporaryDirectory() as scratch:
        shards = make_shards(Path(scratch) / "shards", pairs)
        vlm = BayesVLM.from_pretrained(save_random(Path(scratch) / "model", shape), device=plan.device)
        alone = EncoderAlone(vlm, pairs, batch)
        watch = EncoderWatch(vlm)
        outside: list[float] = []
        stages: list[dict[str, float]] = []

        def fit() -> None:
            with watch.watching() as share:
                found = fit_shards(vlm, shards, batch)
            outside.append(share())
            stages.append(found.provenance["seconds"])

        alone.images(min(pairs, batch))  # the first batch takes longer than any other
        if plan.cuda:  # and the first fit: kernels are compiled, libraries loaded
            fit_shards(vlm, shards, batch)
        runs: dict[str, Callable[[], object]] = {REFERENCE: alone.both, "ours": fit}
        seconds = take_turns(runs, plan.device, plan.repeats or 2, warm_ups=0)
        stored = sum(path.stat().st_size for path in shards.glob("*.tar")) / pairs
        towers = {name: pairs / timed(run, plan.device) for name, run in alone.towers().items()}
    rates = [pairs / turn for turn in seconds["ours"]]
    known: dict[str, Fact] = {"share_outside_the_encoder": outside, "pairs_per_second": rates}
    known |= {f"seconds_{stage}": [turn[stage] for turn in stages] for stage in stages[0]}
    ways = compared(seconds, REFERENCE, dict.fromkeys(seconds, float(pairs)), {"ours": known})
    facts: dict[str, Fact] = {f"{name}_encoded_per_second": rate for name, rate in towers.items()}
    facts["bytes_stored_per_pair"] = stored
    return Measured(REFERENCE, "pair", {"model": shape, "pairs": pairs, "batch size": batch}, ways, facts)


def fit_shards(vlm: BayesVLM, shards: Path, batch_size: int) -> BayesVLM:
    """The posterior from all pairs of a folder of shards, as a user asks for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BayesVLMWarning)  # there are few pairs, and nobody uses this posterior
        return vlm.copy().fit(resolve(shards, kind="pairs").open(batch_size=batch_size), progress=False)


class EncoderAlone:
    """Both towers on inputs that are in memory."""

    def __init__(self, vlm: BayesVLM, pairs: int, batch_size: int) -> None:
        self.adapter, self.pairs, self.batch_size = vlm.encoder("images"), pairs, batch_size
        held = [self.adapter.read_image(content) for content in jpegs(min(pairs, _HELD))]
        groups = [held[start : start + batch_size] for start in range(0, len(held), batch_size)]
        self.pixels: list[PixelTensors] = [self.adapter.preprocessor.to_pixels(group) for group in groups]
        if self.adapter.device.type == "cuda":  # as a fit hands them over
            self.pixels = [{name: value.pin_memory() for name, value in batch.items()} for batch in self.pixels]
        self.captions = [caption(number) for number in range(pairs)]

    def towers(self) -> dict[str, Callable[[], object]]:
        return {"images": self.images, "texts": self.texts}

    def both(self) -> None:
        self.images()
        self.texts()

    def images(self, count: int | None = None) -> None:
        left = self.pairs if count is None else count
        while left > 0:
            for batch in self.pixels:
                given = {name: value[:left] for name, value in batch.items()}
                left -= len(self.adapter.encode_pixels(given))
                if left <= 0:
                    break

    def texts(self) -> None:
        for start in range(0, self.pairs, self.batch_size):
            self.adapter.encode_texts(self.captions[start : start + self.batch_size], progress=False)


class EncoderWatch:
    """How long the towers of a `transformers` CLIP run, on the clock of the device that runs them."""

    def __init__(self, vlm: BayesVLM) -> None:
        adapter: Any = vlm.encoder("images")
        self.towers = [adapter.model.vision_model, adapter.model.text_model]
        self.device = adapter.device

    @contextmanager
    def watching(self) -> Iterator[Callable[[], float]]:
        """Gives a function that says, afterwards, in which share of the time of this block no tower ran."""
        begun, spans = self._moment(), []
        starts: dict[Any, list[Any]] = {tower: [] for tower in self.towers}
        ended: list[Any] = []

        def before(tower: Any, *_: Any) -> None:
            starts[tower].append(self._moment())

        def after(tower: Any, *_: Any) -> None:
            spans.append((starts[tower].pop(), self._moment()))

        hooks = [tower.register_forward_pre_hook(before) for tower in self.towers]
        hooks += [tower.register_forward_hook(after) for tower in self.towers]
        try:
            yield lambda: share_outside(
                [(self._since(begun, start), self._since(begun, end)) for start, end in spans],
                self._since(begun, ended[0]),
            )
        finally:
            for hook in hooks:
                hook.remove()
            ended.append(self._moment())
            wait(str(self.device))

    def _moment(self) -> Any:
        """A point in the device's queue of work, or of the clock: a GPU is not asked to wait for anything."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def _since(self, begun: Any, moment: Any) -> float:
        return float(moment - begun) if self.device.type != "cuda" else begun.elapsed_time(moment) / 1e3


def share_outside(spans: list[tuple[float, float]], whole: float) -> float:
    """The share of `whole` seconds that no span covers; spans may overlap, where two threads encode.

    >>> share_outside([(0.0, 2.0), (1.0, 3.0), (6.0, 7.0)], 10.0)
    0.6
    """
    covered = reached = 0.0
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return max(0.0, 1 - covered / whole)
