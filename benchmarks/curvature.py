"""InfoNCE curvature: ours, O(N K d), against the per-sample form as the paper writes it, O(N K d^2), in one process.

The per-sample form makes a row-scaled copy of H for each sample, five samples at a time, and a d x d matrix for each.
Both are linear in the number of rows, so the slow one is timed on fewer rows and compared by time per row.

    python benchmarks/curvature.py                      # this machine
    python benchmarks/curvature.py --rows 32768 --precisions float32 tf32 bf16   # on a GPU
"""

from __future__ import annotations

import torch
from embeddings import clip_like
from report import arguments, keep, machine, median_seconds, peak_extra_mib
from torch import Tensor

from bayesvlm.core.curvature import infonce_curvature

SCALE = 100.0


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


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--d", type=int, default=512)
    parser.add_argument("--targets", type=int, default=32768, help="K, the contrast batch")
    parser.add_argument("--rows", type=int, help="rows ours is timed on [default: 4096, on a GPU all K]")
    parser.add_argument("--precisions", nargs="+", help="[default: float32, on a GPU also tf32 and bf16]")
    options = parser.parse_args()
    device, cuda = options.device, options.device.startswith("cuda")
    rows = options.rows or (options.targets if cuda else 4096)
    precisions = options.precisions or (["float32", "tf32", "bf16"] if cuda else ["float32"])
    slow_rows, checked_rows = (200, 200) if cuda else (10, 20)
    source, target = (tensor.to(device) for tensor in clip_like(options.targets, options.d))
    source = source[:rows]
    figures = {"machine": machine(device), "d": options.d, "K": options.targets, "rows": rows, "ours": {}}
    print(f"d = {options.d}, K = {options.targets}, ours on {rows} rows, per sample on {slow_rows}; {machine(device)}")

    peaks = {
        precision: peak_extra_mib(
            lambda kind=precision: infonce_curvature(source, target, SCALE, precision=kind), options.device
        )
        for precision in precisions
    }
    reference = infonce_curvature(source[:checked_rows].double(), target.double(), SCALE)
    dense = per_sample(source[:checked_rows].double(), target.double())
    print(f"float64, ours against per sample: relative error {relative_error(reference, dense):.1e}")
    runs = {p: lambda p=p: infonce_curvature(source, target, SCALE, precision=p) for p in precisions}
    runs["per sample"] = lambda: per_sample(source[:slow_rows], target)
    seconds = median_seconds(runs, device, 7 if cuda else 3)
    slow = seconds["per sample"] / slow_rows
    slow_error = relative_error(per_sample(source[:checked_rows], target), reference)
    figures["per_sample"] = {"milliseconds_per_row": 1e3 * slow, "relative_error": slow_error}
    print(f"per sample, float32: {1e3 * slow:.4g} ms per row, relative error {slow_error:.1e}")
    for precision in precisions:
        value = infonce_curvature(source[:checked_rows], target, SCALE, precision=precision)
        eigenvalues = torch.linalg.eigvalsh(infonce_curvature(source, target, SCALE, precision=precision))
        line = {
            "milliseconds": 1e3 * seconds[precision],
            "milliseconds_per_row": 1e3 * seconds[precision] / rows,
            "times_faster": slow / (seconds[precision] / rows),
            "relative_error": relative_error(value, reference),
            "smallest_over_largest_eigenvalue": float(eigenvalues[0] / eigenvalues[-1]),
            "peak_extra_mib": peaks[precision],
        }
        figures["ours"][precision] = line
        print(
            f"ours, {precision}: {line['milliseconds']:.4g} ms for {rows} rows, {line['times_faster']:.0f}x, relative "
            f"error {line['relative_error']:.1e}, peak extra memory {line['peak_extra_mib']:.0f} MiB, "
            f"eigenvalue ratio {line['smallest_over_largest_eigenvalue']:.1e}"
        )
    keep(figures, options.out)


if __name__ == "__main__":
    main()
