"""One EPIG step, ours against the definition written out, and a whole loop with where its time goes, in one run.

    python benchmarks/epig.py
    python benchmarks/epig.py --busy     # small problems, quiet and beside a process that takes all it can get

Once with the probabilities of a small model on 65 noisy classes (its plain accuracy is printed), once with every class
probable for every image, where ours can leave nothing out.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import torch
from report import arguments, keep, machine, median_seconds, peak_extra_mib
from torch import Tensor

from bayesvlm import BayesVLM, Features
from bayesvlm.active import Epig, rank
from bayesvlm.active.acquisition import epig
from bayesvlm.active.drawing import drawn_probabilities
from bayesvlm.active.selection import Selection
from bayesvlm.core.predict import entropy

SCALE = 100.0
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
    for name, given in (("of a model", probs), ("every class probable", uniform)):
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
    pool, target = images[: options.pool], images[options.pool :]
    loops: list[Selection] = []

    def loop() -> None:
        asked = Epig(candidates=options.pool)
        known = labels[: options.pool]
        loops.append(rank(vlm, pool, target, classes, "epig", options.steps, known, draws=options.draws, options=asked))

    peak = peak_extra_mib(loop, options.device)
    taken = loops[0].seconds
    total = sum(taken.values())
    split = ", ".join(f"{name} {each:.1f} s ({each / total:.0%})" for name, each in taken.items())
    print(f"  {options.steps} steps with 150 targets each: {total:.1f} s: {split}; at its peak {peak:.0f} MiB")
    sizes = {name: getattr(options, name) for name in ("pool", "target", "classes", "draws", "p", "d", "steps")}
    keep(
        {"machine": machine(options.device), **sizes, "step": measured, "loop_seconds": taken, "loop_mib": peak},
        options.out,
    )


if __name__ == "__main__":
    main()
