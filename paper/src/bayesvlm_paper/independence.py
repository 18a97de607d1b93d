"""Are the two projections independent? The paper's curvature ratio R: as it is there, exactly, and by Gauss-Newton.

The posterior has a block for the image projection P and one for the text projection Q, and none between them. How much
that leaves out is R = |H_PQ| / (1/2 (|H_PP| + |H_QQ|)) of the joint loss, which the paper prints for sampled entries of
an empirical Fisher. Here the same norms are also had without sampling, and of the curvature the method itself uses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import mean, stdev
from typing import Any

from bayesvlm.core.errors import BayesVLMError
from bayesvlm_paper.findings import Claim, Finding, Grid, Lines, Panel, Series
from bayesvlm_paper.item import Item
from bayesvlm_paper.joint_curvature import (
    Curvature,
    Norms,
    PairBatch,
    batches_of,
    fisher,
    gauss_newton,
    gradients,
    probed_gauss_newton,
    sampled_fisher,
)
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.plans import CLIP_BASE, paper_plan, same_model, world_plan
from bayesvlm_paper.printed import published_table
from bayesvlm_paper.wording import all_of, by_name, spread

SEEDS = 3
"""As many as the paper: each has batches of its own, and its own entries or random vectors."""
ENTRIES = (50_000, 100_000)
"""How many entries of a block the paper sampled."""
MODERATE = 0.5
"""R below this is called moderate: halfway to its largest value."""
DOMINANT = 0.8
"""The blocks of one tower are called dominant with this share of the joint squared norm: R of 0.5 at equal norms."""
BATCHES, LARGEST = 32, 8192
GRAM_SIZES, GRAM_LOGITS = (8, 16, 32, 64), 4096
PROBE_SIZES, PROBE_PAIRS, PROBES = (64, 256, 1024), 4096, 4
MOST_BATCHES = 64


@dataclass(frozen=True)
class Measured:
    """One way to R at one batch size: with every seed."""

    size: int
    batches: int
    seeds: tuple[Curvature, ...]

    @property
    def ratios(self) -> list[float]:
        """R of each seed's batches."""
        return [each.these.ratio for each in self.seeds]

    @property
    def norms(self) -> Norms:
        """Of the batches of a seed, on average."""
        return Norms.mean([each.these for each in self.seeds])

    @property
    def expected(self) -> Norms:
        """Of the expected curvature, as far as all seeds together tell."""
        return Norms.mean([each.expected for each in self.seeds])

    def numbers(self) -> dict[str, Any]:
        """For json."""
        expected = self.expected
        return {
            "pairs in a batch": self.size,
            "batches": self.batches,
            "R": self.ratios,
            "coupling": [each.these.coupling for each in self.seeds],
            "largest R at these norms": [each.these.bound for each in self.seeds],
            "squared norms": [asdict(each.these) for each in self.seeds],
            "expected R": expected.ratio if expected.known else None,
            "expected squared norms": asdict(expected),
        }


@dataclass(frozen=True)
class Report:
    """Everything of one model.

    Args:
        sizes: |P| and |Q|.
        entries: number of sampled entries -> mean squares, one a seed.
        diagonal: the same with H_PP and H_QQ from their diagonals.
        fisher, gram, probed: exact empirical Fisher; Gauss-Newton by Gram matrices; by random vectors: K -> all seeds.
        size: K of the sampled entries, one of those of `fisher`.
        text_bias: whether Q has a column that is a bias, which a constant 1 enters.
    """

    sizes: tuple[int, int]
    size: int
    entries: Mapping[int, Sequence[Norms]]
    diagonal: Sequence[Norms]
    fisher: Mapping[int, Measured]
    gram: Mapping[int, Measured] = field(default_factory=dict)
    probed: Mapping[int, Measured] = field(default_factory=dict)
    text_bias: bool = False

    @property
    def exact(self) -> Measured:
        """The empirical Fisher the entries were sampled from."""
        return self.fisher[self.size]

    def sampled(self, entries: int) -> list[float]:
        """R from sampled entries, one a seed."""
        return [each.rescaled(*self.sizes).ratio for each in self.entries[entries]]

    def averaged(self, entries: int) -> list[float]:
        """The same from averages of squares, without the sizes of the blocks."""
        return [each.ratio for each in self.entries[entries]]

    @property
    def gauss_newton(self) -> list[float]:
        """R by Gauss-Newton, at every batch size."""
        return [mean(each.ratios) for each in (*self.gram.values(), *self.probed.values())]

    def numbers(self) -> dict[str, Any]:
        """For json."""
        return {
            "parameters": list(self.sizes),
            "sampled entries": {
                str(count): {"R": self.sampled(count), "R of averages": self.averaged(count)} for count in self.entries
            },
            "sampled, diagonals of P and Q": [each.ratio for each in self.diagonal],
            "empirical Fisher": [each.numbers() for each in self.fisher.values()],
            "Gauss-Newton, Gram matrices": [each.numbers() for each in self.gram.values()],
            "Gauss-Newton, random vectors": [each.numbers() for each in self.probed.values()],
        }


def measured(pairs: PairBatch, say: Callable[[str], None] = lambda text: None) -> Report:
    """R of a model's loss on these pairs, in every way."""
    count = len(pairs)
    if count < 2 * BATCHES:
        raise BayesVLMError(f"There are {count} pairs; R needs {BATCHES} batches, {2 * BATCHES} pairs at least.")
    size = min(LARGEST, count // BATCHES)
    say(f"curvature empirical Fisher, {min(MOST_BATCHES, count // size)} batches of {size}")
    exact = {
        k: repeated(pairs, k, min(MOST_BATCHES, count // k), lambda batches, seed: fisher(*gradients(batches)))
        for k in sorted({size, *_fitting(GRAM_SIZES + PROBE_SIZES, count)})
    }
    entries: dict[int, list[Norms]] = {number: [] for number in ENTRIES}
    diagonal = []
    for seed in range(SEEDS):
        P, Q = gradients(batches_of(pairs, size, exact[size].batches, seed))
        for number in ENTRIES:
            entries[number].append(sampled_fisher(P, Q, number, seed))
        diagonal.append(sampled_fisher(P, Q, ENTRIES[-1], seed, diagonal=True))
    say("curvature Gauss-Newton, Gram matrices")
    gram = {
        k: repeated(pairs, k, max(2, GRAM_LOGITS // k**2), lambda batches, seed: gauss_newton(batches))
        for k in _fitting(GRAM_SIZES, count)
    }
    say("curvature Gauss-Newton, random vectors")
    probed = {
        k: repeated(
            pairs, k, max(2, PROBE_PAIRS // k), lambda batches, seed: probed_gauss_newton(batches, PROBES, seed)
        )
        for k in _fitting(PROBE_SIZES, count)
    }
    widths = pairs.g.shape[1] * pairs.phi.shape[1], pairs.g.shape[1] * pairs.psi.shape[1]
    return Report(widths, size, entries, diagonal, exact, gram, probed)


def repeated(
    pairs: PairBatch, size: int, batches: int, measure: Callable[[list[PairBatch], int], Curvature]
) -> Measured:
    """With every seed, on batches of its own; as many batches as there are pairs for."""
    batches = min(batches, len(pairs) // size)
    seeds = tuple(measure(batches_of(pairs, size, batches, seed), seed) for seed in range(SEEDS))
    return Measured(size, batches, seeds)


def _fitting(sizes: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Batch sizes that leave four batches or more."""
    return tuple(size for size in sizes if count >= 4 * size)


def independence_ratio(lab: Lab) -> Finding:
    """R of every model of the plan."""
    reports: dict[str, Report] = {}
    for model in lab.models:
        vlm = lab.encoder(model).vlm  # no posterior is needed
        if vlm.predicts_variance:
            raise BayesVLMError(f"{model} predicts its variances: there is no posterior of projections to judge.")
        report = measured(PairBatch.of(vlm, *lab.pairs(model)), lab.say)
        reports[model] = replace(report, text_bias=vlm.text.bias is not None)
    claims = [
        judged(
            "There is only moderate cross-modal dependence in the loss curvature (R about 0.37, well below 1).",
            f"R (moderate would be below {MODERATE})",
            reports,
            lambda norms: norms.ratio,
            lambda ratio: ratio < MODERATE,
        ),
        judged(
            "The dominant curvature structure is captured by the modality-wise blocks.",
            f"their share of the joint squared norm (dominant would be {DOMINANT} or more, R = 1 leaves 0.5)",
            reports,
            lambda norms: norms.kept,
            lambda share: share >= DOMINANT,
        ),
    ]
    numbers = {model: report.numbers() for model, report in reports.items()}
    return Finding(answer(reports), claims, [table(reports), curves(reports)], numbers, remarks(reports))


def judged(
    text: str,
    what: str,
    reports: Mapping[str, Report],
    figure: Callable[[Norms], float],
    holds: Callable[[float], bool],
) -> Claim:
    """By the exact empirical Fisher of the batches; where the expected one says otherwise, not at all."""
    here = {model: figure(report.exact.norms) for model, report in reports.items()}
    expected = {model: figure(r.exact.expected) for model, r in reports.items() if r.exact.expected.known}
    said = f"exact empirical Fisher, {what}: {by_name(here)}; expected: {by_name(expected) or 'unknown'}"
    if any(holds(here[model]) != holds(value) for model, value in expected.items()):
        return Claim(text, "cannot be tested here", f"the batches are too few; {said}")
    return Claim.judged(text, all(map(holds, here.values())), said)


def answer(reports: Mapping[str, Report]) -> str:
    """What it comes to."""
    parts = []
    for model, report in reports.items():
        ways = report.gauss_newton
        sizes = [*report.gram, *report.probed]
        parts.append(
            f"{mean(report.exact.ratios):.3f} for {model} "
            f"({ENTRIES[-1]:,} sampled entries: {spread(report.sampled(ENTRIES[-1]))}; "
            f"joint Gauss-Newton, batches of {min(sizes)} to {max(sizes)}: {min(ways):.3f} to {max(ways):.3f})"
        )
    below = [mean(report.exact.ratios) < MODERATE for report in reports.values()]
    verdict = "moderate" if all(below) else "not moderate" if not any(below) else "moderate for some only"
    return (
        f"By the exact empirical Fisher R is {' and '.join(parts)}; R cannot exceed 1, so the dependence that the "
        f"posterior leaves out is {verdict} (threshold {MODERATE})."
    )


def table(reports: Mapping[str, Report]) -> Grid:
    """Ways to R below one another, models as columns, the printed values last where a model is the paper's."""
    found, last = list(reports.values()), ENTRIES[-1]
    rows = []
    for count in ENTRIES:
        rows.append([f"(1) Fisher, {count:,} entries", *(spread(each.sampled(count)) for each in found)])
    if any(each.sizes[0] != each.sizes[1] for each in found):
        rows.append([f"(1) averages of {last:,} entries", *(spread(each.averaged(last)) for each in found)])
    rows.append(["(2) Fisher, exact", *(_cell(each.exact) for each in found)])
    rows.append(["(2) its coupling", *(f"{each.exact.norms.coupling:.3f}" for each in found)])
    for name, of in _GAUSS_NEWTON.items():
        for size in sorted({size for each in found for size in of(each)}):
            rows.append([f"(3) {name}, K = {size}", *(_cell(of(each).get(size)) for each in found)])
    rows.append(["the posterior's surrogates", *("0" for _ in found)])
    columns = ["", *reports]
    if any(same_model(model, CLIP_BASE) for model in reports):
        columns.append("paper")
        printed = published_table("independence_ratio").rows[0]
        for place, (value, error) in enumerate(zip(printed.values, printed.errors, strict=True)):
            rows[place].append(f"{value:.3f} ± {error:.3f}")
        rows = [row + [""] * (len(columns) - len(row)) for row in rows]
    sizes = sorted({report.size for report in reports.values()})
    caption = (
        f"R, mean ± standard deviation over {SEEDS} seeds; in brackets R of the expected curvature, from pairs of "
        f"different batches only. (1) and (2): batches of K = {', '.join(map(str, sizes))} pairs. Coupling: "
        "|H_PQ| / sqrt(|H_PP| |H_QQ|), which no scale of a tower changes."
    )
    return Grid(columns, rows, caption)


def curves(reports: Mapping[str, Report]) -> Lines:
    """R against the batch size."""
    panels = []
    for model, report in reports.items():
        ways = {"empirical Fisher": report.fisher, **{name: of(report) for name, of in _GAUSS_NEWTON.items()}}
        series = []
        for name, found in ways.items():
            if not found:
                continue
            each = list(found.values())
            sizes = [float(one.size) for one in each]
            series.append(Series(name, sizes, [mean(one.ratios) for one in each], [stdev(one.ratios) for one in each]))
            known = [one for one in each if one.expected.known]
            series.append(
                Series(
                    f"{name}, expected",
                    [float(one.size) for one in known],
                    [one.expected.ratio for one in known],
                    dashed=True,
                )
            )
        panels.append(Panel(model, "pairs in a batch K", "R", series, log_x=True))
    caption = (
        f"R against the size of a contrast batch; bands: standard deviation over {SEEDS} seeds. Solid: the curvature "
        "of the batches at hand. Dashed: the expected one, an unbiased but noisy estimate where batches are few."
    )
    return Lines(panels, caption, "R of every method against the batch size, by model")


def remarks(reports: Mapping[str, Report]) -> list[str]:
    """What a reader should know."""
    published = published_table("independence_ratio")
    values = [f"{value:.3f}" for value in published.rows[0].values if value is not None]
    said = [
        "The surrogate models of the posterior, one for each tower, have H_PQ = 0 by construction: R is about what "
        "they leave out.",
        f"The paper prints {' and '.join(values)} for {' and '.join(published.columns)} entries. {published.oddities} "
        f"Nor does it give the batch size: here min({LARGEST}, pairs / {BATCHES}).",
    ]
    others = [model for model in reports if not same_model(model, CLIP_BASE)]
    if others:
        said.append(f"In the place of the paper's model: {', '.join(others)}.")
    said.append(
        "Gradients of different batches are nearly orthogonal, so that with few batches R comes near its largest value "
        "whatever the model is; the expected R, from pairs of different batches only, is free of that."
    )
    target = float(values[0])
    scales = {
        model: report.exact.norms.text_scale(target)
        for model, report in reports.items()
        if report.exact.norms.coupling >= target
    }
    if scales:
        biased = [model for model in scales if reports[model].text_bias]
        constant = (
            f" (for {all_of(biased)}, whose Q has a bias, also the constant that enters with it)" if biased else ""
        )
        said.append(
            f"R depends on the units of the activations: multiply those of the text tower{constant} by c and divide Q "
            f"by c, and no logit changes, but R does; it is {target} at c = {by_name(scales, 2)}. The coupling does "
            f"not change: {by_name({model: report.exact.norms.coupling for model, report in reports.items()})}."
        )
    diagonal = {model: mean(each.ratio for each in report.diagonal) for model, report in reports.items()}
    said.append(
        "If the sampled gradient components of H_PP and H_QQ were squares of single components (their diagonals), "
        f"which the text does not rule out, the ratio would be {by_name(diagonal, 2)}, but it is not one of norms then."
    )
    apart = [model for model, report in reports.items() if _disagree(report)]
    if apart:
        said.append(
            f"For {', '.join(apart)} sampled entries and exact norms of the same batches differ by more than twice the "
            "spread over the seeds: few large entries carry the norms."
        )
    said.append(
        "A rotation of both projections at once changes no logit, where no residual is added: in those directions the "
        "joint Gauss-Newton curvature is zero, whereas each tower's own block is not. No norm shows that."
    )
    return said


def _disagree(report: Report) -> bool:
    """Whether (1) is further from (2) than twice its spread."""
    sampled = report.sampled(ENTRIES[-1])
    return abs(mean(sampled) - mean(report.exact.ratios)) > 2 * stdev(sampled)


def _cell(found: Measured | None) -> str:
    if found is None:
        return ""
    expected = f"{found.expected.ratio:.2f}" if found.expected.known else "-"
    return f"{spread(found.ratios)} ({expected})"


_GAUSS_NEWTON: dict[str, Callable[[Report], Mapping[int, Measured]]] = {
    "Gauss-Newton": lambda report: report.gram,
    "Gauss-Newton, random vectors": lambda report: report.probed,
}

ITEMS = (
    Item(
        "independence_ratio",
        "Independence of the towers",
        "How much of the loss curvature lies between the two projections, which the posterior takes as independent?",
        "the posterior",
        world_plan("emoji-clip", "emoji-siglip", sets=()),
        paper_plan(CLIP_BASE, sets=()),
        independence_ratio,
        reads_pairs=True,
    ),
)
