"""Are the two projections independent? The paper's curvature ratio R: as it is there, exactly, and by Gauss-Newton.

The posterior has a block for the image projection P and one for the text projection Q, and none between them. How much
that leaves out is R = |H_PQ| / (1/2 (|H_PP| + |H_QQ|)) of the joint loss, which the paper prints for sampled entries of
an empirical Fisher. Here the same norms are also had without sampling, and of the curvature the method itself uses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from statistics import mean, stdev
from typing import Any

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.report.blocks import Table
from bayesvlm_paper import catalogue
from bayesvlm_paper import joint_curvature as joint
from bayesvlm_paper.exhibits import Lines, Panel, Series
from bayesvlm_paper.finding import Finding, Numbers
from bayesvlm_paper.joint_curvature import Curvature, Norms, PairBatch, batches_of
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.plans import CLIP_BASE, Plan, same_model
from bayesvlm_paper.printed import published_table
from bayesvlm_paper.wording import all_of, by_name, spread

NAME = "independence_ratio"
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


FISHER, GRAM, PROBED = "empirical Fisher", "Gauss-Newton, Gram matrices", "Gauss-Newton, random vectors"
"""Ways to R at any batch size: exactly by either curvature, or by random vectors where batches are large."""
_GAUSS_NEWTON = {GRAM: "Gauss-Newton", PROBED: PROBED}
"""A way -> what tables call it."""


# Measuring ------------------------------------------------------------------------------------------------------------


def measure(lab: Lab) -> Numbers:
    """R of every model of the plan."""
    found: Numbers = {}
    for model in lab.models:
        vlm = lab.loaded(model)  # no posterior is needed
        if vlm.predicts_variance:
            raise BayesVLMError(f"{model} predicts its variances: there is no posterior of projections to judge.")
        pairs = PairBatch.of(vlm, *lab.pairs(model))
        found[model] = {**ratios_of(pairs, lab.say), "text bias": vlm.text.bias is not None}
    return found


def ratios_of(pairs: PairBatch, say: Callable[[str], None] = lambda text: None) -> Numbers:
    """R of a model's loss on these pairs, in every way."""
    count = len(pairs)
    if count < 2 * BATCHES:
        raise BayesVLMError(f"There are {count} pairs; R needs {BATCHES} batches, {2 * BATCHES} pairs at least.")
    size = min(LARGEST, count // BATCHES)
    batches = min(MOST_BATCHES, count // size)
    say(f"curvature empirical Fisher, {batches} batches of {size}")
    exact = [
        repeated(pairs, k, min(MOST_BATCHES, count // k), lambda batches, seed: joint.fisher(*joint.gradients(batches)))
        for k in sorted({size, *_fitting(GRAM_SIZES + PROBE_SIZES, count)})
    ]
    widths = [pairs.g.shape[1] * entering.shape[1] for entering in (pairs.phi, pairs.psi)]
    entries: dict[str, dict[str, list[float]]] = {str(number): {"R": [], "R of averages": []} for number in ENTRIES}
    diagonal = []
    for seed in range(SEEDS):
        P, Q = joint.gradients(batches_of(pairs, size, batches, seed))
        for number in ENTRIES:
            norms = joint.sampled_fisher(P, Q, number, seed)
            entries[str(number)]["R"].append(norms.rescaled(*widths).ratio)
            entries[str(number)]["R of averages"].append(norms.ratio)
        diagonal.append(joint.sampled_fisher(P, Q, ENTRIES[-1], seed, diagonal=True).ratio)
    say("curvature Gauss-Newton, Gram matrices")
    gram = [
        repeated(pairs, k, max(2, GRAM_LOGITS // k**2), lambda batches, seed: joint.gauss_newton(batches))
        for k in _fitting(GRAM_SIZES, count)
    ]
    say("curvature Gauss-Newton, random vectors")
    probed = [
        repeated(pairs, k, max(2, PROBE_PAIRS // k), partial(joint.probed_gauss_newton, probes=PROBES))
        for k in _fitting(PROBE_SIZES, count)
    ]
    return {
        "parameters": widths,
        "pairs in a batch": size,
        "sampled entries": entries,
        "sampled, diagonals of P and Q": diagonal,
        FISHER: exact,
        GRAM: gram,
        PROBED: probed,
    }


def repeated(
    pairs: PairBatch, size: int, batches: int, curvature: Callable[[list[PairBatch], int], Curvature]
) -> dict[str, Any]:
    """One way to R at one batch size, with every seed, on batches of its own; as many as there are pairs for."""
    batches = min(batches, len(pairs) // size)
    seeds = [curvature(batches_of(pairs, size, batches, seed), seed) for seed in range(SEEDS)]
    expected = Norms.mean([each.expected for each in seeds])
    return {
        "pairs in a batch": size,
        "batches": batches,
        "R": [each.these.ratio for each in seeds],
        "coupling": [each.these.coupling for each in seeds],
        "largest R at these norms": [each.these.bound for each in seeds],
        "squared norms": [asdict(each.these) for each in seeds],
        "expected R": expected.ratio if expected.known else None,
        "expected squared norms": asdict(expected),
    }


def _fitting(sizes: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Batch sizes that leave four batches or more."""
    return tuple(size for size in sizes if count >= 4 * size)


# Reading --------------------------------------------------------------------------------------------------------------


Report = Mapping[str, Any]  # what `ratios_of` measured of one model
AtSize = Mapping[str, Any]  # what `repeated` measured at one batch size


def by_size(report: Report, *ways: str) -> dict[int, AtSize]:
    """One or several of `FISHER`, `GRAM`, `PROBED`, by batch size."""
    return {each["pairs in a batch"]: each for way in ways for each in report[way]}


def exact(report: Report) -> AtSize:
    """The empirical Fisher the entries were sampled from."""
    return by_size(report, FISHER)[report["pairs in a batch"]]


def norms(at: AtSize) -> Norms:
    """Of the batches of a seed, on average."""
    return Norms.mean([Norms(**each) for each in at["squared norms"]])


def expected(at: AtSize) -> Norms | None:
    """Of the expected curvature, as far as all seeds together tell."""
    found = Norms(**at["expected squared norms"])
    return found if found.known else None


def sampled(report: Report, entries: int, what: str = "R") -> list[float]:
    """R from sampled entries, one per seed; or from averages of squares, without the sizes of the blocks."""
    return list(report["sampled entries"][str(entries)][what])


Reports = Mapping[str, Report]  # by model


def tell(numbers: Mapping[str, Any]) -> Finding:
    """Whether the dependence that the posterior leaves out is moderate."""
    reports = {model: numbers[model] for model in Plan.of(numbers).models}
    share = f"their share of the joint squared norm (dominant would be {DOMINANT} or more, R = 1 leaves 0.5)"
    claims = catalogue.judged(
        NAME,
        judgement(f"R (moderate would be below {MODERATE})", reports, lambda of: of.ratio, lambda r: r < MODERATE),
        judgement(share, reports, lambda of: of.kept, lambda kept: kept >= DOMINANT),
    )
    return Finding(answer(reports), claims, [table(reports), curves(reports)], remarks(reports))


def judgement(
    what: str, reports: Reports, figure: Callable[[Norms], float], holds: Callable[[float], bool]
) -> catalogue.Judgement:
    """By the exact empirical Fisher of the batches; where the expected one says otherwise, not at all."""
    here = {model: figure(norms(exact(report))) for model, report in reports.items()}
    known = {model: expected(exact(report)) for model, report in reports.items()}
    there = {model: figure(found) for model, found in known.items() if found is not None}
    said = f"exact empirical Fisher, {what}: {by_name(here)}; expected: {by_name(there) or 'unknown'}"
    if any(holds(here[model]) != holds(value) for model, value in there.items()):
        return None, f"the batches are too few; {said}"
    return all(map(holds, here.values())), said


def answer(reports: Reports) -> str:
    """What it comes to."""
    found = {model: mean(exact(report)["R"]) for model, report in reports.items()}
    parts = []
    for model, report in reports.items():
        ways = {size: mean(each["R"]) for size, each in by_size(report, *_GAUSS_NEWTON).items()}
        parts.append(
            f"{found[model]:.3f} for {model} "
            f"({ENTRIES[-1]:,} sampled entries: {spread(sampled(report, ENTRIES[-1]))}; joint Gauss-Newton, batches of "
            f"{min(ways)} to {max(ways)}: {min(ways.values()):.3f} to {max(ways.values()):.3f})"
        )
    below = [ratio < MODERATE for ratio in found.values()]
    verdict = "moderate" if all(below) else "not moderate" if not any(below) else "moderate for some only"
    return (
        f"By the exact empirical Fisher R is {' and '.join(parts)}; R cannot exceed 1, so the dependence that the "
        f"posterior leaves out is {verdict} (threshold {MODERATE})."
    )


def table(reports: Reports) -> Table:
    """Ways to R below one another, models as columns, the printed values last where a model is the paper's."""
    found, last = list(reports.values()), ENTRIES[-1]

    def cell(at: AtSize | None) -> str:
        if at is None:
            return ""
        known = expected(at)
        return f"{spread(at['R'])} ({'-' if known is None else f'{known.ratio:.2f}'})"

    rows = [[f"(1) Fisher, {count:,} entries", *(spread(sampled(each, count)) for each in found)] for count in ENTRIES]
    if any(len(set(each["parameters"])) > 1 for each in found):
        averages = (spread(sampled(each, last, "R of averages")) for each in found)
        rows.append([f"(1) averages of {last:,} entries", *averages])
    rows.append(["(2) Fisher, exact", *(cell(exact(each)) for each in found)])
    rows.append(["(2) its coupling", *(f"{norms(exact(each)).coupling:.3f}" for each in found)])
    for way, name in _GAUSS_NEWTON.items():
        for size in sorted({size for each in found for size in by_size(each, way)}):
            rows.append([f"(3) {name}, K = {size}", *(cell(by_size(each, way).get(size)) for each in found)])
    rows.append(["the posterior's surrogates", *("0" for _ in found)])
    columns = ["", *reports]
    if any(same_model(model, CLIP_BASE) for model in reports):
        columns.append("paper")
        printed = published_table(NAME).rows[0]
        for place, (value, error) in enumerate(zip(printed.values, printed.errors, strict=True)):
            rows[place].append(f"{value:.3f} ± {error:.3f}")
        rows = [row + [""] * (len(columns) - len(row)) for row in rows]
    sizes = sorted({report["pairs in a batch"] for report in found})
    caption = (
        f"R, mean ± standard deviation over {SEEDS} seeds; in brackets R of the expected curvature, from pairs of "
        f"different batches only. (1) and (2): batches of K = {', '.join(map(str, sizes))} pairs. Coupling: "
        "|H_PQ| / sqrt(|H_PP| |H_QQ|), which no scale of a tower changes."
    )
    return Table(columns, rows, caption=caption)


def curves(reports: Reports) -> Lines:
    """R against the batch size."""
    panels = []
    for model, report in reports.items():
        series = []
        for way, name in {FISHER: FISHER, **_GAUSS_NEWTON}.items():
            each = by_size(report, way)
            known = {size: found.ratio for size, at in each.items() if (found := expected(at)) is not None}
            ratios = [at["R"] for at in each.values()]
            if each:
                series.append(Series(name, list(each), list(map(mean, ratios)), list(map(stdev, ratios))))
                series.append(Series(f"{name}, expected", list(known), list(known.values()), dashed=True))
        panels.append(Panel(model, "pairs in a batch K", "R", series, log_x=True))
    caption = (
        f"R against the size of a contrast batch; bands: standard deviation over {SEEDS} seeds. Solid: the curvature "
        "of the batches at hand. Dashed: the expected one, an unbiased but noisy estimate where batches are few."
    )
    return Lines(panels, caption, "R of every method against the batch size, by model")


def remarks(reports: Reports) -> list[str]:
    """What a reader should know."""
    published = published_table(NAME)
    values = [f"{value:.3f}" for value in published.rows[0].values if value is not None]
    said = catalogue.remarks(NAME)
    said.append(
        f"The paper prints {' and '.join(values)} for {' and '.join(published.columns)} entries. {published.oddities} "
        f"Nor does it give the batch size: here min({LARGEST}, pairs / {BATCHES})."
    )
    if others := [model for model in reports if not same_model(model, CLIP_BASE)]:
        said.append(f"In the place of the paper's model: {', '.join(others)}.")
    target = float(values[0])
    found = {model: norms(exact(report)) for model, report in reports.items()}
    if scales := {model: each.text_scale(target) for model, each in found.items() if each.coupling >= target}:
        biased = [model for model in scales if reports[model]["text bias"]]
        also = f" (for {all_of(biased)}, whose Q has a bias, also the constant that enters with it)" if biased else ""
        said.append(
            f"R depends on the units of the activations: multiply those of the text tower{also} by c and divide Q "
            f"by c, and no logit changes, but R does; it is {target} at c = {by_name(scales, 2)}. The coupling does "
            f"not change: {by_name({model: each.coupling for model, each in found.items()})}."
        )
    diagonal = {model: mean(report["sampled, diagonals of P and Q"]) for model, report in reports.items()}
    said.append(
        "If the sampled gradient components of H_PP and H_QQ were squares of single components (their diagonals), "
        f"which the text does not rule out, the ratio would be {by_name(diagonal, 2)}, but it is not one of norms then."
    )
    several = {model: sampled(report, ENTRIES[-1]) for model, report in reports.items()}
    apart = [m for m, each in several.items() if abs(mean(each) - mean(exact(reports[m])["R"])) > 2 * stdev(each)]
    if apart:
        said.append(
            f"For {', '.join(apart)} sampled entries and exact norms of the same batches differ by more than twice the "
            "spread over the seeds: few large entries carry the norms."
        )
    return said


ITEMS = {NAME: (measure, tell)}
