"""One EPIG step, ours against the definition written out, and a whole loop with where its time goes, in one run.

    python benchmarks/epig.py
    python benchmarks/epig.py --loop     # only the loop, and its steps as they were: whole embeddings, all scores
    python benchmarks/epig.py --busy     # small problems, quiet and beside a process that takes all it can get

Once with the probabilities of a small model on 65 noisy classes (its plain accuracy is printed), once with every class
probable for every image, where ours can leave nothing out.
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from report import arguments, keep, machine, median_seconds, peak_extra_mib
from torch import Tensor

from bayesvlm import BayesVLM, Features
from bayesvlm.active import Epig, OnlineLaplace, rank
from bayesvlm.active.acquisition import epig, most_informative
from bayesvlm.active.contrast import ClassContrast
from bayesvlm.active.drawing import SharedDraws, drawn_probabilities
from bayesvlm.active.selection import Selection
from bayesvlm.core.draws import Held
from bayesvlm.core.predict import entropy

SCALE = 100.0
TARGETS = Epig().targets
CHUNK = 16  # pool items at a time in the direct form, whose products would take gigabytes otherwise


def direct(pool: Tensor, target: Tensor) -> Tensor:  # [S, N, C], [S, M, C] -> [N]
    """H[y] + E H[y*] - E H[y, y*], in float32, with the joint probabilities of all pairs of labels."""
    draws, _, classes = pool.shape
    others = target.flatten(1)  # [S, M C]
    scores = []
    for part in pool.split(CHUNK, dim=1):
        rows = part.permute(1, 2, 0).reshape(-1, draws)  # [n C, S]
        joint = (rows @ others / draws).view(part.shape[1], classes, target.shape[1], classes)
        both = -(joint * torch.log(joint + 1e-30)).sum(dim=(1, 3)).mean(dim=1)
        scores.append(entropy(part.mean(dim=0)) + entropy(target.mean(dim=0)).mean() - both)
    return torch.cat(scores)


def beside_neighbours(count: int, repeats: int, out: Path | None) -> None:
    """EPIG and the entropy split of 80 images, quiet and busy in turn, as a Python user has them: no variable set."""
    generator = torch.Generator().manual_seed(0)
    p, d, classes, budget = 256, 128, 8, 20

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    weight, pairs, names = draw(d, p) / math.sqrt(p), draw(4096, p), draw(classes, p)
    vlm = BayesVLM.from_projections(weight, weight, math.log(50.0))
    vlm.fit([(Features(pairs + draw(4096, p)), Features(pairs))], progress=False)
    labels = torch.randint(classes, (160,), generator=generator)
    images, prompts = Features(names[labels] + 2 * draw(160, p)), Features(names)
    runs = {
        f"EPIG, {budget} of 80, 80 targets": lambda: rank(
            vlm, images[:80], images[80:], prompts, "epig", budget, labels[:80], progress=False
        ),
        ".epistemic of 80": lambda: vlm.classify(images[:80], prompts).epistemic,
    }
    waiting = os.environ.get("OMP_WAIT_POLICY", "unset")
    print(f"{os.cpu_count()} cores, {count} busy neighbour(s), OMP_WAIT_POLICY {waiting}")
    quiet = median_seconds(runs, "cpu", repeats)
    neighbours = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        busy = median_seconds(runs, "cpu", repeats)
    finally:
        for neighbour in neighbours:
            neighbour.kill()
    for name in runs:
        print(f"  {name:<26} quiet {quiet[name]:6.3f} s   busy {busy[name]:6.3f} s   {busy[name] / quiet[name]:4.1f}x")
    keep(
        {"machine": machine("cpu"), "neighbours": count, "OMP_WAIT_POLICY": waiting, "quiet": quiet, "busy": busy}, out
    )


def main() -> None:
    parser = arguments(__doc__ or "")
    for name, default in {"pool": 1000, "target": 500, "classes": 65, "draws": 100, "p": 768, "d": 512}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--steps", type=int, default=200, help="of the loop")
    parser.add_argument("--loop", action="store_true", help="only the loop")
    parser.add_argument("--every", type=int, default=20, help="steps of it that are done as they were, too")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--busy", action="store_true", help="only: small problems beside busy neighbours")
    parser.add_argument("--neighbours", type=int, default=1, help="processes that do nothing but take time")
    options = parser.parse_args()
    if options.busy:
        beside_neighbours(options.neighbours, options.repeats, options.out)
        return
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(options.device)

    p, d, C = options.p, options.d, options.classes
    weight = draw(d, p) / math.sqrt(p)
    vlm = BayesVLM.from_projections(weight, weight, math.log(SCALE))
    shared = draw(1, p)  # what all embeddings have in common: cosines far from zero, as CLIP's
    names = draw(C, p)
    pairs = draw(4096, p)
    vlm.fit([(Features(shared + pairs + 2 * draw(4096, p)), Features(shared + pairs))], progress=False)
    vlm = vlm.replace(tau=10.0)
    labels = torch.randint(C, (options.pool + options.target,), generator=generator)
    images = Features(3 * shared + names[labels] + 5.3 * draw(len(labels), p))
    classes = Features(3 * shared + names)
    right = float((vlm.plain(images, classes).argmax(dim=1).cpu() == labels).double().mean())

    image, text = vlm.posterior["image"], vlm.posterior["text"]
    probs = drawn_probabilities(image, images, text, classes, vlm.scale, options.draws, 0)
    print(f"pool {options.pool}, target {options.target}, {C} classes, {options.draws} draws")
    print(f"plain accuracy {right:.0%}, mean entropy {float(entropy(probs.mean(0)).mean()):.2f} nats")
    measured = {}
    uniform = torch.softmax(draw(*probs.shape), dim=2)
    for name, given in () if options.loop else (("of a model", probs), ("every class probable", uniform)):
        pool, target = given[:, : options.pool], given[:, options.pool :]
        gap = float((epig(pool, target) - direct(pool, target)).abs().max())
        runs = {"direct": lambda p=pool, t=target: direct(p, t), "ours": lambda p=pool, t=target: epig(p, t)}
        seconds = median_seconds(runs, options.device, options.repeats)
        peaks = {form: peak_extra_mib(run, options.device) for form, run in runs.items()}
        ratio = seconds["direct"] / seconds["ours"]
        largest = float(epig(pool, target).max())
        print(
            f"  {name:<22} direct {seconds['direct']:6.2f} s   ours {seconds['ours']:6.2f} s   {ratio:5.1f}x   "
            f"largest difference {gap:.1e} of scores up to {largest:.3f}; at its peak ours takes "
            f"{peaks['ours']:.0f} MiB, the direct form, {CHUNK} pool items at a time, {peaks['direct']:.0f}"
        )
        measured[name] = {
            "seconds": seconds,
            "ratio": ratio,
            "difference": gap,
            "largest_score": largest,
            "peak_mib": peaks,
        }
    whole = loop(vlm, images, labels, classes, options)
    sizes = {name: getattr(options, name) for name in ("pool", "target", "classes", "draws", "p", "d", "steps")}
    keep({"machine": machine(options.device), **sizes, "step": measured, **whole}, options.out)


def loop(vlm: BayesVLM, images: Features, labels: Tensor, classes: Features, options: Namespace) -> dict[str, Any]:
    """Where the time of a whole loop goes; then its steps beside what they were, in turns, on the same states.

    A step that draws whole embeddings and scores every item takes long, so every `--every`-th is done that way.
    """
    pool, target, known = images[: options.pool], images[options.pool :], labels[: options.pool]
    chosen: list[Selection] = []

    def choose() -> None:
        asked = Epig(candidates=options.pool)
        given = {"draws": options.draws, "options": asked, "progress": False}
        chosen.append(rank(vlm, pool, target, classes, "epig", options.steps, known, **given))

    began = time.process_time()
    peak = peak_extra_mib(choose, options.device)
    taken, used = chosen[0].seconds, time.process_time() - began
    total = sum(taken.values())
    split = ", ".join(f"{name} {each:.1f} s ({each / total:.0%})" for name, each in taken.items())
    print(
        f"  {options.steps} steps with {TARGETS} targets each: {total:.1f} s ({used:.1f} s of processor time): {split}"
    )
    print(f"  at its peak {peak:.0f} MiB")
    picks = chosen[0].indices.tolist()
    online = OnlineLaplace.begin(vlm.posterior["image"], ClassContrast.of(vlm, classes), Epig().beta)
    spent: dict[str, list[tuple[float, float]]] = {"embeddings, all scores": [], "ours": []}
    apart: list[dict[str, float]] = []
    for step, pick in enumerate(picks):
        if step % options.every == 0:
            left = torch.tensor(sorted(set(range(options.pool)) - set(picks[:step])))
            looked_at = target[torch.randperm(len(target), generator=torch.Generator().manual_seed(step))[:TARGETS]]
            both = Features.concatenate([looked_at, pool[left]])
            apart.append(_two_ways(vlm, online, both, len(looked_at), classes, options, step, spent))
        online = online.step(pool[pick], int(known[pick]), Epig().gamma)
    figures: dict[str, Any] = {"loop_seconds": taken, "loop_processor_seconds": used, "loop_mib": peak}
    for index, kind in enumerate(("wall", "processor")):
        means = {form: statistics.mean(each[index] for each in times) for form, times in spent.items()}
        before, ours = means.values()
        print(
            f"  {kind} time of a step, mean of {len(apart)}: embeddings and all scores {before:.2f} s, ours "
            f"{ours:.2f} s, {before / ours:.1f}x; of {options.steps} steps at that rate {before * options.steps:.0f} s "
            f"and {ours * options.steps:.0f} s"
        )
        figures[f"step_{kind}_seconds"] = {**means, "ratio": before / ours}
    summary = {name: statistics.mean(each[name] for each in apart) for name in apart[0]}
    print(
        f"  scores of all items against those of whole embeddings: they differ by {summary['between']:.2f} times what "
        f"two seeds of those do, the means by {summary['mean ratio'] - 1:+.1%}; of the twenty best "
        f"{summary['shared top']:.1f} are shared, {summary['shared top within']:.1f} between those two seeds"
    )
    return {**figures, "scores": summary}


def _two_ways(
    vlm: BayesVLM,
    online: OnlineLaplace,
    both: Features,
    count: int,
    classes: Features,
    options: Namespace,
    seed: int,
    spent: dict[str, list[tuple[float, float]]],
) -> dict[str, float]:
    """One step in turns, its times added; and how its scores differ from those of whole embeddings."""
    on_gpu = options.device.startswith("cuda")
    kept: dict[str, Tensor] = {}

    def whole(seed: int = seed) -> Tensor:
        args = (both, Held(vlm.text), classes, vlm.scale, options.draws, seed)
        return drawn_probabilities(replace(online), *args)

    def before() -> None:
        probs = whole()
        kept["before"] = epig(probs[:, count:], probs[:, :count])
        int(kept["before"].argmax())

    def ours() -> None:
        drawn = SharedDraws.of(replace(online), vlm, classes, hold_text=True)
        probs = drawn.probabilities(both, options.draws, seed)
        most_informative(probs[:, count:], probs[:, :count])
        kept["probs"] = probs

    for form, run in zip(spent, (before, ours), strict=True):
        started = time.perf_counter(), time.process_time()
        run()
        if on_gpu:
            torch.cuda.synchronize()
        spent[form].append((time.perf_counter() - started[0], time.process_time() - started[1]))
    probs, other = kept["probs"], whole(seed + 10_000)
    scores = {"before": kept["before"], "ours": epig(probs[:, count:], probs[:, :count])}
    scores["again"] = epig(other[:, count:], other[:, :count])

    def shared_top(form: str) -> float:
        first, second = (set(scores[name].topk(20).indices.tolist()) for name in ("before", form))
        return float(len(first & second))

    return {
        "between": float((scores["before"] - scores["ours"]).std() / (scores["before"] - scores["again"]).std()),
        "mean ratio": float(scores["ours"].mean() / scores["before"].mean()),
        "shared top": shared_top("ours"),
        "shared top within": shared_top("again"),
    }


if __name__ == "__main__":
    main()
