"""InfoNCE curvature: ours, O(N K d), against the per-sample form as the paper writes it, O(N K d^2), in one process.

The per-sample form makes a row-scaled copy of H for each sample, five samples at a time, and a d x d matrix for each.
Both are linear in the number of rows, so the slow one is timed on fewer rows and compared by time per row. Beside ours
stand its three products alone; on a GPU the passes between them once in Triton's kernels (fused) and once in torch.

    python benchmarks/curvature.py                      # this machine; on a GPU with everything issue 18 asks for
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch
from embeddings import clip_like
from forms import emulated_tf32, plain, products_alone
from report import arguments, keep, machine, median_seconds, peak_extra_mib
from torch import Tensor

from bayesvlm.core.contrast import Precision
from bayesvlm.core.curvature import infonce_curvature, sigmoid_curvature

SCALE = 100.0
SATURATED = 0.70  # cosine of a match at which nearly all of the softmax lies on it
LIMITS = {  # of issue 18, on one H200
    "tf32: milliseconds": 15.0,
    "float32: milliseconds": 84.0,
    "tf32: relative error": 2e-3,
    "tf32: relative error, saturated": 5e-3,
    "tf32: K = N four times as large, time over sixteen times": 1.25,
    "float32: K = N four times as large, time over sixteen times": 1.25,
    "tf32: d twice as large, time": 2.2,
    "float32: d twice as large, time": 2.2,
    "peak extra memory, MiB": 1024.0,
}


def per_sample(source: Tensor, target: Tensor, samples: int = 5) -> Tensor:  # [N, d], [K, d] -> [d, d]
    """`sum_i t^2 M_i (sum_k pi_ik h_k h_k^T - m_i m_i^T) M_i`, five rows at a time."""
    norm = source.norm(dim=1, keepdim=True)
    ghat, hhat = source / norm, target / target.norm(dim=1, keepdim=True)
    identity = torch.eye(source.shape[1], dtype=source.dtype, device=source.device)
    total = torch.zeros_like(identity)
    for start in range(0, len(source), samples):
        g = ghat[start : start + samples]
        pi = torch.softmax(SCALE * g @ hhat.T, dim=1)
        scaled = pi[:, :, None] * hhat  # [s, K, d]: a row-scaled copy of H for each sample
        mean = pi @ hhat
        covariance = hhat.T @ scaled - mean[:, :, None] * mean[:, None, :]
        jacobian = (identity - g[:, :, None] * g[:, None, :]) / norm[start : start + samples, :, None]
        total += SCALE**2 * (jacobian @ covariance @ jacobian).sum(dim=0)
    return total


def relative_error(value: Tensor, reference: Tensor) -> float:
    return float((value.double() - reference).norm() / reference.norm())


def pairs(rows: int, targets: int, d: int, device: str, match: float = 0.30) -> tuple[Tensor, Tensor]:
    source, target = clip_like(targets, d, match=match)
    return source[:rows].to(device), target.to(device)


def form(name: str, work: Callable[[], object]) -> Callable[[], object]:
    """`work` in the form asked for: "fused", what a GPU takes by itself, or "plain"."""

    def run() -> object:
        with plain() if name == "plain" else contextlib.nullcontext():
            return work()

    return run


def sizes(options: Any, figures: dict[str, Any], precisions: list[Precision], forms: list[str], rows: int) -> None:
    """One contrast batch: every precision and form, the products alone, the per-sample form; errors and memory."""
    device, cuda = options.device, options.device.startswith("cuda")
    source, target = pairs(rows, options.targets, options.d, device)
    slow_rows, checked = (200, rows) if cuda else (10, 20)

    def curvature(kind: Precision) -> Callable[[], Tensor]:
        return lambda: infonce_curvature(source, target, SCALE, precision=kind)

    ours = {f"{kind}, {name}": form(name, curvature(kind)) for kind in precisions for name in forms}
    peaks = {name: peak_extra_mib(run, device) for name, run in ours.items()}
    peaks["sigmoid"] = peak_extra_mib(lambda: sigmoid_curvature(source, target, 10.0, -10.0), device)
    runs = dict(ours)
    runs["per sample"] = lambda: per_sample(source[:slow_rows], target)
    runs |= {f"{kind}, products": products_alone(source, target, kind) for kind in precisions}
    if "tf32" in precisions:
        runs["tf32, products of float32 operands"] = products_alone(source, target, "tf32", halves=False)
    seconds = median_seconds(runs, device, 9 if cuda else 3)
    runs.clear()  # and the tiles that the products keep
    errors: dict[str, list[float]] = {name: [] for name in (*ours, "per sample")}
    for match in (0.30, SATURATED):
        rows_of, of = pairs(checked, options.targets, options.d, device, match)
        reference = infonce_curvature(rows_of.double(), of.double(), SCALE)
        for kind in precisions:
            for name in forms:
                run = form(name, lambda s=rows_of, t=of, k=kind: infonce_curvature(s, t, SCALE, precision=k))
                errors[f"{kind}, {name}"].append(relative_error(run(), reference))
        few = infonce_curvature(rows_of[:20].double(), of.double(), SCALE)
        errors["per sample"].append(relative_error(per_sample(rows_of[:20], of), few))
    slow = seconds["per sample"] / slow_rows
    figures |= {"K": options.targets, "rows": rows, "ours": {}, "products": {}}
    figures["per_sample"] = {"milliseconds_per_row": 1e3 * slow, "relative_error": errors["per sample"]}
    figures["sigmoid_peak_extra_mib"] = peaks["sigmoid"]
    print(f"per sample, float32: {1e3 * slow:.4g} ms per row, relative error {errors['per sample'][0]:.1e}")
    if "tf32" in precisions:
        wide = 1e3 * seconds["tf32, products of float32 operands"]
        figures["products"]["tf32, float32 operands"] = {"milliseconds": wide}
        print(f"tf32: the three products alone, their operands in float32 {wide:.4g} ms")
    for kind in precisions:
        alone = 1e3 * seconds[f"{kind}, products"]
        figures["products"][kind] = {"milliseconds": alone}
        print(f"{kind}: the three products alone {alone:.4g} ms for {rows} rows")
        for name in forms:
            key = f"{kind}, {name}"
            line = {
                "milliseconds": 1e3 * seconds[key],
                "milliseconds_per_row": 1e3 * seconds[key] / rows,
                "times_faster": slow / (seconds[key] / rows),
                "over_products": 1e3 * seconds[key] / alone,
                "relative_error": errors[key][0],
                "relative_error_saturated": errors[key][1],
                "peak_extra_mib": peaks[key],
            }
            figures["ours"][key] = line
            print(
                f"ours, {key}: {line['milliseconds']:.4g} ms, {line['times_faster']:.0f}x per sample, "
                f"{line['over_products']:.2f}x its products; relative error {errors[key][0]:.1e}, saturated "
                f"{errors[key][1]:.1e}; peak extra memory {peaks[key]:.0f} MiB"
            )


def growth(options: Any, figures: dict[str, Any], precisions: list[Precision], rows: int) -> None:
    """Four times the targets (on a GPU four times the rows as well), twice the width: times and ratios, in turns."""
    device, cuda = options.device, options.device.startswith("cuda")
    many, wide = 4 * options.targets, 2 * options.d
    base = pairs(rows, options.targets, options.d, device)
    more = pairs(many if cuda else rows, many, options.d, device)
    wider = pairs(rows, options.targets, wide, device)
    figures["growth"] = {}
    for kind in precisions:
        inputs = {"base": base, "many": more, "wide": wider}
        runs = {
            name: lambda at=at, k=kind: infonce_curvature(*at, SCALE, precision=k)  # type: ignore[misc]
            for name, at in inputs.items()
        }
        peak = {name: peak_extra_mib(run, device) for name, run in runs.items()}
        seconds = median_seconds(runs, device, 3)
        work = len(more[0]) * many / (rows * options.targets)
        line = {
            "milliseconds": {name: 1e3 * value for name, value in seconds.items()},
            "many_over_work": seconds["many"] / seconds["base"] / work,
            "wide_over_base": seconds["wide"] / seconds["base"],
            "peak_extra_mib": peak,
        }
        figures["growth"][kind] = line
        print(
            f"growth, {kind}: {len(more[0])} x {many} targets {1e3 * seconds['many']:.5g} ms = "
            f"{line['many_over_work']:.2f} x {work:.0f} times {rows} x {options.targets}; d = {wide}: "
            f"{line['wide_over_base']:.2f} times d = {options.d}; peaks "
            + ", ".join(f"{name} {value:.0f} MiB" for name, value in peak.items())
        )


def memory_sweep(options: Any, figures: dict[str, Any], precision: Precision, rows: int) -> None:
    """What the size of tiles does: the default should be near the best."""
    source, target = pairs(rows, options.targets, options.d, options.device)
    budgets = [192, 256, 384, 512, 640, 768, 896]
    runs = {
        str(mib): lambda mib=mib: infonce_curvature(source, target, SCALE, precision=precision, memory=mib * 2**20)
        for mib in budgets
    }
    seconds = median_seconds(runs, options.device, 5)
    figures["milliseconds_by_mib"] = {name: 1e3 * value for name, value in seconds.items()}
    print(
        f"{precision} by MiB allowed: " + ", ".join(f"{name}: {1e3 * value:.4g} ms" for name, value in seconds.items())
    )


def split_sweep(options: Any, figures: dict[str, Any], precision: Precision, rows: int) -> None:
    """Whether the library cuts the second product's long sum itself, or would gain from being told to."""
    figures["milliseconds_of_products_by_parts"] = {}
    for count, source_rows in ((options.targets, rows), (4 * options.targets, rows)):
        source, target = pairs(max(count, source_rows), count, options.d, options.device)
        at = source[:source_rows], target
        runs = {"its own": products_alone(*at, precision)}
        runs |= {str(ways): products_alone(*at, precision, ways) for ways in (2, 4, 8)}
        seconds = median_seconds(runs, options.device, 5)
        line = {name: 1e3 * value for name, value in seconds.items()}
        figures["milliseconds_of_products_by_parts"][str(count)] = line
        print(
            f"{precision} products, {source_rows} x {count}, sums in so many parts: "
            + ", ".join(f"{name}: {value:.4g} ms" for name, value in line.items())
        )


def emulation(options: Any, figures: dict[str, Any]) -> None:
    """What tf32 costs in digits, emulated on a CPU: operands of ten bits, rounded as we do or cut as nobody should."""
    figures["tf32_emulated_on_the_cpu"] = {}
    for name, match in (("CLIP-like", 0.30), ("saturated", SATURATED)):
        source, target = pairs(512, 8192, options.d, "cpu", match)
        reference = infonce_curvature(source.double(), target.double(), SCALE)
        errors = {}
        for cut in (False, True):
            with emulated_tf32(cut):
                found = infonce_curvature(source, target, SCALE, precision="tf32")
            errors["cut" if cut else "rounded"] = relative_error(found, reference)
        figures["tf32_emulated_on_the_cpu"][name] = errors
        print(
            f"tf32, emulated on the CPU, 512 x 8192, {name}: relative error {errors['rounded']:.1e} with operands "
            f"rounded, {errors['cut']:.1e} with operands cut"
        )


def checks(figures: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The bounds of issue 18 and what was measured."""
    ours, grown = figures["ours"], figures["growth"]
    found = {"peak extra memory, MiB": max(max(each["peak_extra_mib"].values()) for each in grown.values())}
    for kind in ("tf32", "float32"):
        found[f"{kind}: milliseconds"] = ours[f"{kind}, fused"]["milliseconds"]
        found[f"{kind}: relative error"] = ours[f"{kind}, fused"]["relative_error"]
        found[f"{kind}: relative error, saturated"] = ours[f"{kind}, fused"]["relative_error_saturated"]
        found[f"{kind}: K = N four times as large, time over sixteen times"] = grown[kind]["many_over_work"]
        found[f"{kind}: d twice as large, time"] = grown[kind]["wide_over_base"]
    return {
        name: {"measured": found[name], "at_most": most, "met": found[name] <= most} for name, most in LIMITS.items()
    }


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--d", type=int, default=512)
    parser.add_argument("--targets", type=int, default=32768, help="K, the contrast batch")
    parser.add_argument("--rows", type=int, help="rows ours is timed on [default: 4096, on a GPU all K]")
    parser.add_argument("--precisions", nargs="+", help="[default: float32, on a GPU also tf32 and bf16]")
    options = parser.parse_args()
    cuda = options.device.startswith("cuda")
    rows = options.rows or (options.targets if cuda else 4096)
    precisions = options.precisions or (["tf32", "bf16", "float32"] if cuda else ["float32"])
    forms = ["plain", "fused"] if cuda else ["plain"]
    figures: dict[str, Any] = {"machine": machine(options.device), "d": options.d}
    if find_spec("triton"):
        figures["machine"]["triton"] = version("triton")
    print(f"d = {options.d}, K = {options.targets}, ours on {rows} rows; {figures['machine']}")
    few = pairs(20, options.targets, options.d, options.device)
    dense = per_sample(few[0].double(), few[1].double())
    figures["float64_against_per_sample"] = relative_error(
        infonce_curvature(few[0].double(), few[1].double(), SCALE), dense
    )
    print(f"float64, ours against per sample: relative error {figures['float64_against_per_sample']:.1e}")
    first = [kind for kind in precisions if kind != "bf16"]
    sizes(options, figures, first, forms, rows)
    keep(figures, options.out)
    growth(options, figures, first, rows if cuda else min(rows, 1024))
    if cuda:
        memory_sweep(options, figures, "tf32", rows)
        split_sweep(options, figures, "tf32", rows)
        figures["checks"] = checks(figures) if {"tf32", "float32"} <= set(precisions) else {}
        for name, line in figures["checks"].items():
            print(f"{'met' if line['met'] else 'NOT MET'}: {name} {line['measured']:.4g}, at most {line['at_most']:g}")
    else:
        emulation(options, figures)
    keep(figures, options.out)
    if len(first) < len(precisions):  # no bound asks for it: last, in case the lease ends
        last: dict[str, Any] = {}
        sizes(options, last, ["bf16"], forms, rows)
        for key in ("ours", "products"):
            figures[key] |= last[key]
        keep(figures, options.out)


if __name__ == "__main__":
    main()
