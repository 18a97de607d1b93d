"""Tables of zero-shot results: top-1, NLPD and ECE of every method on every set, beside the printed ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from bayesvlm.experiments.paper import PublishedTable, published_table
from bayesvlm.experiments.reproduction.findings import Claim, Finding, Grid
from bayesvlm.experiments.reproduction.item import Item
from bayesvlm.experiments.reproduction.lab import Lab
from bayesvlm.experiments.reproduction.plans import (
    CLIP_BASE,
    CLIP_LARGE,
    PCMEPP,
    PROLIP,
    SIGLIP_BASE,
    Plan,
    column_of,
    paper_plan,
    same_model,
    world_plan,
)
from bayesvlm.experiments.zero_shot import Result

METRICS = {"ACC": ("top1", 100.0, 1), "NLPD": ("nlpd", 1.0, 2), "ECE": ("ece", 100.0, 1)}
"""The paper's name of a metric -> ours, what to multiply it by, decimals."""
_PRINTED = {
    "plain": ("CLIP", "SigLIP"),
    "temperature": ("CLIP (temp. scaling)", "SigLIP (temp. scaling)"),
    "TTA": ("TTA",),
    "Bayes": ("BayesVLM",),
    "mean": ("Mean",),
    "ProbCosine": ("ProbCosine",),
}
"""Our name of a method -> the paper's."""


def measured(lab: Lab, model: str) -> list[Result]:
    """Every set of the plan, with every method."""
    return [lab.zero_shot(model, data) for data in lab.sets]


def figure(result: Result, method: str, metric: str) -> float:
    """One number of a table, as it is printed there."""
    name, scale, _ = METRICS[metric]
    found = getattr(result.scores[method], name)
    return scale * (found if isinstance(found, float) else found.value)


def table(results: Sequence[Result], published: PublishedTable | None, caption: str) -> Grid:
    """Methods below one another by metric, sets as columns; the paper's value behind a bar where it has one."""
    methods = list(results[0].scores)
    rows: list[list[str]] = []
    best: list[tuple[int, int]] = []
    for metric, (_, _, decimals) in METRICS.items():
        winners = [result.winners({"ACC": "top1", "NLPD": "nlpd", "ECE": "ece"}[metric]) for result in results]
        for method in methods:
            cells = []
            for place, result in enumerate(results):
                if method in winners[place]:
                    best.append((len(rows), place + 1))
                printed = None if published is None else printed_value(published, metric, method, result.data)
                beside = "" if printed is None else f" | {printed:.{decimals}f}"
                cells.append(f"{figure(result, method, metric):.{decimals}f}{beside}")
            rows.append([f"{metric} {method}", *cells])
    return Grid(["", *(result.data for result in results)], rows, caption, best)


def printed_value(published: PublishedTable, metric: str, method: str, data: str) -> float | None:
    """What the paper prints for one of our methods on a set, in percent or nats; None where it prints nothing."""
    column = column_of(data)
    if column not in published.columns:
        return None
    for row in published.rows:
        if row.metric == metric and row.method in _PRINTED.get(method, ()):
            value = row.values[published.columns.index(column)]
            return value if value is None or published.unit[metric] != "fraction" else 100 * value
    return None


def count(results: Sequence[Result], holds: Callable[[Result], bool]) -> tuple[int, list[str]]:
    """On how many sets something holds, and the others."""
    failing = [result.data for result in results if not holds(result)]
    return len(results) - len(failing), failing


def _listed(failing: Sequence[str]) -> str:
    return f" (not on {', '.join(failing)})" if failing else ""


def _below(result: Result, metric: str, method: str, other: str, slack: float = 0.0) -> bool:
    return figure(result, method, metric) <= figure(result, other, metric) + slack


def _bayes_claims(results: Sequence[Result]) -> list[Claim]:
    """What the paper says of BayesVLM against its baselines, in section 5.1."""
    total = len(results)
    claims = []
    drop = max(figure(r, "plain", "ACC") - figure(r, "Bayes", "ACC") for r in results)
    lower, failing = count(results, lambda r: _below(r, "NLPD", "Bayes", "plain"))
    claims.append(
        Claim.judged(
            "BayesVLM has similar accuracy and lower NLPD than the deterministic model on all data sets.",
            not failing and drop <= 1.5,
            f"NLPD lower on {lower} of {total}{_listed(failing)}; at most {drop:.1f} points of top-1 lost",
        )
    )
    gaps = [figure(r, "Bayes", "NLPD") - figure(r, "temperature", "NLPD") for r in results]
    claims.append(
        Claim.judged(
            "BayesVLM performs similarly to temperature scaling in NLPD.",
            max(gaps) <= 0.1,
            f"Bayes minus temperature scaling: {min(gaps):+.2f} to {max(gaps):+.2f} nats",
        )
    )
    others = [method for method in ("plain", "temperature", "TTA") if method in results[0].scores]
    best, failing = count(results, lambda r: all(_below(r, "ECE", "Bayes", other) for other in others))
    claims.append(
        Claim.judged(
            "BayesVLM outperforms all baselines in ECE.",
            not failing,
            f"smallest ECE on {best} of {total}{_listed(failing)}",
        )
    )
    if "TTA" in results[0].scores:
        higher = total - count(results, lambda r: figure(r, "TTA", "ACC") <= figure(r, "plain", "ACC"))[0]
        better, failing = count(results, lambda r: _below(r, "ECE", "Bayes", "TTA"))
        claims.append(
            Claim.judged(
                "Test-time augmentation is more accurate on some sets, but BayesVLM is better calibrated.",
                higher > 0 and not failing,
                f"TTA more accurate on {higher} of {total}; Bayes better calibrated on {better}{_listed(failing)}",
            )
        )
    return claims


def _beside(name: str, model: str, published: str) -> PublishedTable | None:
    return published_table(name) if same_model(model, published) else None


def bayes_table(lab: Lab, name: str, published: str, stands_for: str) -> Finding:
    """Plain, temperature, votes and Bayes of one model."""
    model = lab.models[0]
    results = measured(lab, model)
    caption = f"{model}. Bold: not worse than the best by a paired t-test (p = 0.05); of ECE, the smallest."
    gained = [figure(r, "plain", "NLPD") - figure(r, "Bayes", "NLPD") for r in results]
    sides = [figure(r, "temperature", "NLPD") - figure(r, "Bayes", "NLPD") for r in results]
    ece = {m: sum(figure(r, m, "ECE") for r in results) / len(results) for m in results[0].scores}
    answer = (
        f"With the posterior {model} has {min(gained):.2f} to {max(gained):.2f} nats less NLPD than without "
        f"(against temperature scaling {min(sides):+.2f} to {max(sides):+.2f} nats gained), and its mean ECE over "
        f"{len(results)} sets is {ece['Bayes']:.1f} % instead of {ece['plain']:.1f} % "
        f"(temperature scaling {ece['temperature']:.1f} %)."
    )
    remarks = () if same_model(model, published) else (stands_for,)
    return Finding(
        answer,
        _bayes_claims(results),
        [table(results, _beside(name, model, published), caption)],
        {result.data: result.numbers["methods"] for result in results},
        remarks,
    )


def adversarial_table(lab: Lab) -> Finding:
    """The same under a severe shift."""
    found = bayes_table(
        lab,
        "zero_shot_adversarial_imgnet",
        CLIP_BASE,
        "The world's hardest shift stands for ImageNet-A and ImageNet-Sketch: outlines without colour, which no model "
        "was trained on.",
    )
    results = measured(lab, lab.models[0])
    improved, failing = count(
        results, lambda r: _below(r, "ECE", "Bayes", "plain") and _below(r, "NLPD", "Bayes", "plain")
    )
    best, not_best = count(
        results, lambda r: figure(r, "Bayes", "ECE") == min(figure(r, method, "ECE") for method in r.scores)
    )
    claims = [
        Claim.judged(
            "Under a severe shift BayesVLM improves over CLIP in ECE and NLPD.",
            not failing,
            f"on {improved} of {len(results)}{_listed(failing)}",
        ),
        Claim.judged(
            "On sketches BayesVLM is the best calibrated of all methods.",
            not not_best,
            f"smallest ECE on {best} of {len(results)}{_listed(not_best)}",
        ),
    ]
    return Finding(found.answer, claims, found.exhibits, found.numbers, found.remarks)


def predicted_table(lab: Lab, name: str, published: str, family: str, consistently: bool) -> Finding:
    """A model that predicts its variances: by the mean, by its own score, by ProbCosine."""
    text = (
        f"{family} with ProbCosine keeps its accuracy while consistently improving calibration."
        if consistently
        else f"ProbCosine improves calibration in most cases when combined with {family}."
    )
    if not lab.models:
        reason = f"no {family} was trained on the embedded world; name a checkpoint with --model"
        return Finding(f"Not run: {reason}.", [Claim(text, "cannot be tested here", reason)])
    model = lab.models[0]
    results = measured(lab, model)
    better, failing = count(results, lambda r: _below(r, "ECE", "ProbCosine", "mean"))
    nlpd = [figure(r, "mean", "NLPD") - figure(r, "ProbCosine", "NLPD") for r in results]
    drop = max(figure(r, "mean", "ACC") - figure(r, "ProbCosine", "ACC") for r in results)
    answer = (
        f"ProbCosine calibrates {model} better than its mean on {better} of {len(results)} sets{_listed(failing)} and "
        f"changes its NLPD by {-max(nlpd):+.2f} to {-min(nlpd):+.2f} nats; top-1 falls by {drop:.1f} points at most."
    )
    enough = not failing and drop <= 0.5 if consistently else 2 * better > len(results)
    claim = Claim.judged(text, enough, f"ECE lower on {better} of {len(results)}{_listed(failing)}")
    caption = f"{model}. Bold: not worse than the best by a paired t-test (p = 0.05); of ECE, the smallest."
    remarks = [] if same_model(model, published) else [f"{model} stands for {family}."]
    grid = table(results, _beside(name, model, published), caption)
    return Finding(answer, [claim], [grid], {r.data: r.numbers["methods"] for r in results}, remarks)


_QUESTION = "Are the uncertainties of {} useful: is the prediction calibrated, and at what price?"
_SIZE = (
    "emoji-clip-colour, a second CLIP of the same size that never saw line art, stands for CLIP-Large: that a larger "
    "model behaves alike cannot be tested here."
)

ITEMS = (
    Item(
        "uq_results_clip",
        "Zero-shot, CLIP-Base",
        _QUESTION.format("CLIP-Base"),
        "zero-shot",
        world_plan("emoji-clip", views=True),
        paper_plan(CLIP_BASE, views=True),
        partial(
            bayes_table, name="uq_results_clip", published=CLIP_BASE, stands_for="emoji-clip stands for CLIP-Base."
        ),
    ),
    Item(
        "uq_results_clip_large",
        "Zero-shot, CLIP-Large",
        _QUESTION.format("CLIP-Large"),
        "zero-shot",
        world_plan("emoji-clip-colour", views=True),
        paper_plan(CLIP_LARGE, views=True),
        partial(bayes_table, name="uq_results_clip_large", published=CLIP_LARGE, stands_for=_SIZE),
    ),
    Item(
        "uq_results_siglip",
        "Zero-shot, SigLIP-Base",
        _QUESTION.format("SigLIP"),
        "zero-shot",
        world_plan("emoji-siglip", views=True),
        paper_plan(SIGLIP_BASE, views=True),
        partial(
            bayes_table,
            name="uq_results_siglip",
            published=SIGLIP_BASE,
            stands_for="emoji-siglip stands for SigLIP-Base.",
        ),
    ),
    Item(
        "uq_results_pcmepp",
        "ProbCosine on PCME++",
        "Does ProbCosine calibrate a model that predicts its variances (PCME++)?",
        "zero-shot",
        Plan(),
        paper_plan(PCMEPP),
        partial(predicted_table, name="uq_results_pcmepp", published=PCMEPP, family="PCME++", consistently=True),
    ),
    Item(
        "uq_results_prolip",
        "ProbCosine on ProLIP",
        "Does ProbCosine calibrate a model that predicts its variances (ProLIP)?",
        "zero-shot",
        world_plan("emoji-prolip"),
        paper_plan(PROLIP),
        partial(predicted_table, name="uq_results_prolip", published=PROLIP, family="ProLIP", consistently=False),
    ),
    Item(
        "zero_shot_adversarial_imgnet",
        "Severe shift",
        "Do the uncertainties hold under a severe shift?",
        "robustness",
        world_plan("emoji-clip", views=True, sets=("emojione-black", "openmoji-black")),
        paper_plan(CLIP_BASE, views=True, sets=("imagenet-a", "imagenet-sketch")),
        adversarial_table,
    ),
)
