"""From image files to class probabilities, against the encoder alone on pixels that are in memory already.

    python benchmarks/stream.py

Generates JPEG files of 256 x 256 pixels and has `BayesVLM.stream` and the bare encoder take turns on them: images per
second of each, their ratio, and the processor time of every step. Where files are decoded by the cores that run the
encoder, the ratio can hardly be above encoder / (encoder + decoder) in processor time, which is printed beside it; and
on a machine that is busy with other things that share is the figure to trust, as more processes get more of the clock.
Then the peak memory of a fresh process, with its workers, that streams a tenth of the files, and of one that streams
them all. On a GPU the model is a ViT-B/32 with random weights, elsewhere emoji-clip.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from report import arguments, keep, machine

from bayesvlm import BayesVLM
from bayesvlm.experiments.bench.generated import make_images, save_random

RANDOM = "ViT-B/32"
TURN = 2_000  # images
CLASSES = [f"a photo of thing {number}" for number in range(100)]
_PEAK = "import sys; sys.path.insert(0, {here!r}); from stream import stream_folder; stream_folder(*{arguments!r})"


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--model", help=f"a name that BayesVLM.from_pretrained knows, or {RANDOM}: random weights")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, help="processes that decode; else what BayesVLM.stream chooses")
    options = parser.parse_args()
    name = options.model or (RANDOM if options.device.startswith("cuda") else "emoji-clip")
    with tempfile.TemporaryDirectory() as scratch:
        paths = make_images(Path(scratch) / "images", options.images)
        model = str(save_random(Path(scratch) / "model", RANDOM)) if name == RANDOM else name
        vlm = ready(model, options.device, paths)
        figures: dict[str, Any] = {
            "machine": machine(options.device),
            "threads": torch.get_num_threads(),
            "model": name,
        }
        figures |= {"batch_size": options.batch_size, "workers": options.workers, "load_before": os.getloadavg()}
        figures |= {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "unset")}
        figures |= speeds(vlm, paths, options.batch_size, options.workers) | {"load_after": os.getloadavg()}
        peaks: dict[str, dict[str, float]] = {}
        for count in (len(paths) // 10, len(paths)):
            given = (model, options.device, scratch, count, options.batch_size, options.workers)
            peaks[str(count)] = found = peak_mib(given)
            print(f"{count:6,} images: {found['pss']:.0f} MiB at the peak ({found['rss']:.0f}, shared pages twice)")
        small, large = peaks.values()
        figures |= {"peak_mib": peaks, "peak_mib_more": {kind: large[kind] - small[kind] for kind in large}}
        print(f"       that is {figures['peak_mib_more']['pss']:+.0f} MiB")
    keep(figures, options.out)


# Speed ----------------------------------------------------------------------------------------------------------------


def speeds(vlm: BayesVLM, paths: Sequence[Path], batch_size: int, workers: int | None) -> dict[str, Any]:
    """Images per second both ways, in turns, each first every other time; and milliseconds of a core per image."""
    adapter, classes = vlm.encoder("images"), vlm.text_features(CLASSES)
    images = [adapter.read_image(path) for path in paths[:TURN]]
    batches = [images[start : start + batch_size] for start in range(0, len(images), batch_size)]
    pixels = [adapter.placed(adapter.preprocessor.to_pixels(batch)) for batch in batches]

    def encode(count: int) -> None:
        done = 0
        while done < count:
            for batch in pixels:
                found = adapter.encode_pixels(batch)
                done += len(found)
        found.activations.sum().item()  # waits for the device

    def stream(block: Sequence[Path]) -> None:
        for prediction in vlm.stream(block, classes, batch_size=batch_size, workers=workers, strict=True):
            prediction.probs.cpu()

    encode(batch_size)
    stream(paths[:batch_size])
    taken: dict[str, list[tuple[float, float]]] = {"encoder": [], "stream": []}
    for turn, start in enumerate(range(0, len(paths), TURN)):
        block = paths[start : start + TURN]
        runs = [("encoder", lambda block=block: encode(len(block))), ("stream", lambda block=block: stream(block))]
        for way, run in runs if turn % 2 else runs[::-1]:
            taken[way].append(measured(run))
    seconds = {way: sum(wall for wall, _ in each) for way, each in taken.items()}
    rates = {way: len(paths) / seconds[way] for way in taken}
    ratios = [encoder / stream for (encoder, _), (stream, _) in zip(*taken.values(), strict=True)]
    features = adapter.encode_pixels(pixels[0])
    cores = {way: 1e3 * sum(cpu for _, cpu in each) / len(paths) for way, each in taken.items()}
    cores |= {
        "decode": per_image(lambda: [adapter.read_image(path) for path in paths[:TURN]], len(images)),
        "preprocess": per_image(lambda: [adapter.preprocessor.to_pixels(batch) for batch in batches], len(images)),
        "predict": per_image(lambda: vlm.classify(features, classes).probs, len(features)),
    }
    ratio, bound = rates["stream"] / rates["encoder"], cores["encoder"] / cores["stream"]
    print(f"files to probabilities: {rates['stream']:.0f} images/s; encoder alone: {rates['encoder']:.0f}; {ratio:.3f}")
    print(f"ratio turn by turn: {' '.join(f'{each:.3f}' for each in ratios)}")
    print("ms of a core per image: " + ", ".join(f"{step} {value:.2f}" for step, value in cores.items()))
    if adapter.device.type == "cpu":
        print(f"processor time of the encoder / of the stream: {bound:.3f}")
    figures = {"images": len(paths), "images_per_second": rates, "ratio": ratio, "ratio_by_turn": ratios}
    return figures | {"core_ms_per_image": cores, "encoder_share_of_processor_time": bound}


def measured(run: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and of processor time, with that of worker processes that ended meanwhile."""
    before = os.times()
    started = time.perf_counter()
    run()
    elapsed, after = time.perf_counter() - started, os.times()
    return elapsed, sum(after[:4]) - sum(before[:4])


def per_image(run: Callable[[], object], count: int) -> float:
    """Milliseconds of processor time."""
    run()
    return 1e3 * measured(run)[1] / count


# Memory ---------------------------------------------------------------------------------------------------------------


def peak_mib(given: Sequence[Any]) -> dict[str, float]:
    """The most memory that a fresh process which runs `stream_folder` and its workers held together.

    Looked at every 50 ms. "rss" is the sum of what is resident in each, "pss" the same with every page that they share
    counted once.
    """
    source = _PEAK.format(here=str(Path(__file__).parent), arguments=tuple(given))
    process = subprocess.Popen([sys.executable, "-c", source])
    peak = {"rss": 0.0, "pss": 0.0}
    while process.poll() is None:
        held = [memory_mib(each) for each in (process.pid, *children(process.pid))]
        peak = {kind: max(most, sum(each[kind] for each in held)) for kind, most in peak.items()}
        time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"The process whose memory was measured ended with {process.returncode}.")
    return peak


def children(pid: int) -> list[int]:
    try:
        threads = [*Path(f"/proc/{pid}/task").iterdir()]
        return [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except OSError:
        return []  # it has ended


def memory_mib(pid: int) -> dict[str, float]:
    try:
        fields = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    except OSError:  # it has ended
        fields = []
    sizes = {each[0]: int(each[1]) / 2**10 for each in fields if each[-1] == "kB"}
    return {"rss": sizes.get("Rss:", 0.0), "pss": sizes.get("Pss:", 0.0)}


def stream_folder(model: str, device: str, scratch: str, count: int, batch_size: int, workers: int | None) -> None:
    """All that is done in a process whose memory is measured."""
    paths = sorted((Path(scratch) / "images").iterdir())[:count]
    vlm = ready(model, device, paths)
    for _ in vlm.stream(paths, CLASSES, batch_size=batch_size, workers=workers, strict=True):
        pass


# The model ------------------------------------------------------------------------------------------------------------


def ready(model: str, device: str, paths: Sequence[Path]) -> BayesVLM:
    """The model with its posterior, which is fitted to a few of the images where none came with it."""
    vlm = BayesVLM.from_pretrained(model, device=device)
    few = paths[: len(CLASSES)]
    return vlm if vlm.fitted else vlm.fit([(few, CLASSES[: len(few)])], progress=False)


if __name__ == "__main__":
    main()
