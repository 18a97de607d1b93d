"""From stored features to a posterior: both towers' factors over contrast batches, both prior precisions.

The features are synthetic: activations whose embeddings have the cosines of a real CLIP, 768 wide for images and 512
for texts as in ViT-B/32 (d = 512). They lie on the device beforehand, as does the model; everything after that is
timed. A run that waits after every part says what the time went to.

    python benchmarks/posterior.py                      # this machine; on a GPU 327,680 pairs as in the paper
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from embeddings import clip_like
from report import arguments, keep, machine, median_seconds, peak_extra_mib

from bayesvlm.core import estimation, evidence, factors
from bayesvlm.core.contrast import Precision
from bayesvlm.core.estimation import TOWERS, FactorEstimator, Tower, best_lams
from bayesvlm.core.features import Features
from bayesvlm.core.posterior import Posterior
from bayesvlm.core.projection import Projection

WIDTHS: dict[Tower, int] = {"image": 768, "text": 512}
D, SCALE, LIMIT = 512, 100.0, 1.5  # seconds of issue 18, on one H200


def stored(pairs: int, batch: int, device: str) -> tuple[dict[Tower, Projection], list[dict[Tower, Features]]]:
    """Projections with orthonormal rows, and batches of activations that they map to CLIP-like embeddings."""
    generator = torch.Generator().manual_seed(0)
    weights = {
        tower: torch.linalg.qr(torch.randn(width, width, generator=generator))[0][:D].to(device)
        for tower, width in WIDTHS.items()
    }
    batches = []
    for start in range(0, pairs, batch):
        embeddings = clip_like(min(batch, pairs - start), D, seed=start)
        rows: dict[Tower, Features] = {}
        for tower, each in zip(TOWERS, embeddings, strict=True):
            noise = torch.randn(len(each), WIDTHS[tower], generator=generator).to(device)
            weight = weights[tower]
            rows[tower] = Features(each.to(device) @ weight + noise - noise @ weight.T @ weight)
        batches.append(rows)
    return {tower: Projection(weight) for tower, weight in weights.items()}, batches


def posterior(
    projections: dict[Tower, Projection], batches: list[dict[Tower, Features]], negatives: int, precision: Precision
) -> dict[Tower, Posterior]:
    """What `fit` does once features are there."""
    estimator = FactorEstimator(
        projections["image"], projections["text"], SCALE, negatives=negatives, precision=precision
    )
    for batch in batches:
        estimator.update(batch["image"], batch["text"])
    found = estimator.factors()
    norms = {tower: float(projections[tower].weight.double().square().sum()) for tower in TOWERS}
    lams = best_lams(found, norms, 1.0, "damped")
    return {tower: Posterior(projections[tower], found[tower], 1.0, lams[tower]) for tower in TOWERS}


@contextlib.contextmanager
def timed_parts(device: str) -> Iterator[dict[str, float]]:
    """Seconds spent in the parts of a posterior, waiting for the device around each."""
    seconds: dict[str, float] = defaultdict(float)

    def wait() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            wait()
            started = time.perf_counter()
            try:
                return work(*args, **options)
            finally:
                wait()
                seconds[name] += time.perf_counter() - started

        return run

    def patched(owner: object, name: str, part: str) -> Any:
        return mock.patch.object(owner, name, timed(part, getattr(owner, name)))

    with (
        patched(FactorEstimator, "update", "all batches"),
        patched(estimation, "infonce_curvature", "B: curvature"),
        patched(Projection, "embed", "embeddings"),
        patched(factors, "spectrum", "eigenvalues"),
        patched(evidence.Evidence, "best_lam", "lam"),
    ):
        yield seconds
    seconds["A and the rest of the batches"] = (
        seconds.pop("all batches") - seconds["B: curvature"] - seconds["embeddings"]
    )


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--pairs", type=int, help="[default: 16384, on a GPU 327680]")
    parser.add_argument("--negatives", type=int, help="K [default: 8192, on a GPU 32768]")
    parser.add_argument("--precisions", nargs="+", help="[default: float32, on a GPU tf32 too]")
    options = parser.parse_args()
    cuda = options.device.startswith("cuda")
    pairs, negatives = options.pairs or (327680 if cuda else 16384), options.negatives or (32768 if cuda else 8192)
    precisions = options.precisions or (["tf32", "float32"] if cuda else ["float32"])
    projections, batches = stored(pairs, negatives, options.device)
    figures: dict[str, Any] = {"machine": machine(options.device), "pairs": pairs, "negatives": negatives, "d": D}
    figures |= {"p": WIDTHS, "seconds": {}, "parts": {}, "lam": {}, "first_run_seconds": {}, "peak_extra_mib": {}}
    print(f"{pairs} pairs, contrast batches of {negatives}; {figures['machine']}")
    for kind in precisions:
        last: dict[Tower, Posterior] = {}

        def run(kind: Precision = kind, last: dict[Tower, Posterior] = last) -> None:
            last.update(posterior(projections, batches, negatives, kind))

        started = time.perf_counter()
        figures["peak_extra_mib"][kind] = peak_extra_mib(run, options.device)
        figures["first_run_seconds"][kind] = time.perf_counter() - started
        seconds = median_seconds({kind: run}, options.device, 3)[kind]
        with timed_parts(options.device) as parts:
            run()
        figures["seconds"][kind], figures["parts"][kind] = seconds, dict(parts)
        figures["lam"][kind] = {tower: each.lam for tower, each in last.items()}
        print(
            f"{kind}: {seconds:.3f} s (the first run {figures['first_run_seconds'][kind]:.2f} s): "
            + ", ".join(f"{name} {value:.3f} s" for name, value in parts.items())
            + f"; peak extra memory {figures['peak_extra_mib'][kind]:.0f} MiB; lam "
            + ", ".join(f"{tower} {lam:.4g}" for tower, lam in figures["lam"][kind].items())
        )
    if cuda and "tf32" in figures["seconds"] and pairs == 327680:
        measured = figures["seconds"]["tf32"]
        figures["checks"] = {"tf32: seconds": {"measured": measured, "at_most": LIMIT, "met": measured <= LIMIT}}
        print(f"{'met' if measured <= LIMIT else 'NOT MET'}: seconds {measured:.3f}, at most {LIMIT}")
    keep(figures, options.out)


if __name__ == "__main__":
    main()
