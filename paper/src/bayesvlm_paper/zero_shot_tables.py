"""Tables of zero-shot results: top-1, NLPD and ECE of every method on every set, beside the printed ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.experiments.zero_shot import Result
from bayesvlm_paper.findings import Claim, Finding, Grid
from bayesvlm_paper.item import Item
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.plans import (
    CLIP_BASE,
    CLIP_LARGE,
    PCMEPP,
    PROLIP,
    SIGLIP_BASE,
    TESTS,
    ZERO_SHOT_SETS,
    Plan,
    column_of,
    paper_plan,
    same_model,
    world_plan,
)
from bayesvlm_paper.printed import PublishedTable, published_table

METRICS = {"ACC": ("top1", 100.0, 1), "NLPD": ("nlpd", 1.0, 2), "ECE": ("ece", 100.0, 1)}
"""The paper's name of a metric -> ours, what to multiply it by, decimals."""
BASELINES = ("plain", "temperature", "TTA")
SAME = {"ACC": 1.0, "NLPD": 0.05, "ECE": 1.0}
"""So much worse is still a match: points, nats, points."""
SEVERAL = 3
SKETCHES = ("sketch", "black")
"""What the names of sets of drawings without colour have in them."""
_PRINTED = {
    "plain": ("CLIP", "SigLIP"),
    "temperature": ("CLIP (temp. scaling)", "SigLIP (temp. scaling)"),
    "TTA": ("TTA",),
    "Bayes": ("BayesVLM",),
    "mean": ("Mean",),
    "ProbCosine": ("ProbCosine",),
}
"""Our name of a method -> the paper's."""


def measured(lab: Lab, model: str, *, predicts: bool = False) -> list[Result]:
    """Every set of the plan, with every method.

    Args:
        predicts: whether the table is of models that predict their variances.
    """
    if not lab.sets:
        raise BayesVLMError("There is no set to test on; name one with --data.")
    if lab.vlm(model).predicts_variance and not predicts:
        raise BayesVLMError(f"{model} predicts its variances itself, so no posterior is fitted; run uq_results_prolip.")
    if predicts and not lab.vlm(model).predicts_variance:
        raise BayesVLMError(f"{model} predicts no variances, which this table is about; run uq_results_clip.")
    results = [lab.zero_shot(model, data) for data in lab.sets]
    names = [result.data for result in results]
    if len(set(names)) < len(names):
        raise BayesVLMError(f"Two of the sets have one name ({', '.join(names)}); rename a folder.")
    return results


def figure(result: Result, method: str, metric: str) -> float:
    """One number of a table, as it is printed there."""
    name, scale, _ = METRICS[metric]
    found = getattr(result.scores[method], name)
    return scale * (found if isinstance(found, float) else found.value)


def table(results: Sequence[Result], published: PublishedTable | None, model: str) -> Grid:
    """Methods below one another by metric, sets as columns; the paper's value behind a bar where it has one."""
    rows: list[list[str]] = []
    best: list[tuple[int, int]] = []
    for metric, (name, _, decimals) in METRICS.items():
        winners = [result.winners(name) for result in results]
        for method in results[0].scores:
            cells = []
            for place, result in enumerate(results):
                if method in winners[place]:
                    best.append((len(rows), place + 1))
                printed = None if published is None else printed_value(published, metric, method, result.data)
                beside = "" if printed is None else f" | {printed:.{decimals}f}"
                cells.append(f"{figure(result, method, metric):.{decimals}f}{beside}")
            rows.append([f"{metric} {method}", *cells])
    caption = f"{model}. Bold: not worse than the best by a paired t-test (p = 0.05); of ECE, the smallest."
    caption += " Behind the bar: the paper's." if published is not None else ""
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


# Claims ---------------------------------------------------------------------------------------------------------------


def count(results: Sequence[Result], holds: Callable[[Result], bool]) -> tuple[int, str]:
    """On how many sets something holds, and in words on which it does not."""
    failing = [result.data for result in results if not holds(result)]
    return len(results) - len(failing), f" (not on {', '.join(failing)})" if failing else ""


def _below(result: Result, metric: str, method: str, other: str) -> bool:
    return figure(result, method, metric) <= figure(result, other, metric)


def _lost(results: Sequence[Result], method: str, before: str) -> str:
    """What a method costs in top-1, at worst, in words."""
    change = min(figure(r, method, "ACC") - figure(r, before, "ACC") for r in results)
    return f"top-1 {change:+.1f} points at worst"


def base_claims(results: Sequence[Result]) -> list[Claim]:
    """Section 5.1, of CLIP-Base."""
    total = len(results)
    lower, failing = count(results, lambda r: _below(r, "NLPD", "Bayes", "plain"))
    similar = all(figure(r, "plain", "ACC") - figure(r, "Bayes", "ACC") <= 1.5 for r in results)
    gaps = [figure(r, "Bayes", "NLPD") - figure(r, "temperature", "NLPD") for r in results]
    others = [method for method in BASELINES if method in results[0].scores]
    best, not_best = count(results, lambda r: all(_below(r, "ECE", "Bayes", other) for other in others))
    claims = [
        Claim.judged(
            "BayesVLM has similar accuracy and lower NLPD than the deterministic model on all data sets.",
            lower == total and similar,
            f"NLPD lower on {lower} of {total}{failing}; {_lost(results, 'Bayes', 'plain')}",
        ),
        Claim.judged(
            "BayesVLM performs similarly to temperature scaling in accuracy and NLPD.",
            max(gaps) <= 0.1 and similar,
            f"Bayes minus temperature scaling: {min(gaps):+.2f} to {max(gaps):+.2f} nats (wanted: at most 0.1)",
        ),
        Claim.judged(
            f"BayesVLM outperforms all baselines in ECE ({', '.join(others)}).",
            best == total,
            f"smallest ECE on {best} of {total}{not_best}",
        ),
    ]
    text = "Test-time augmentation is more accurate on some sets, but BayesVLM is better calibrated."
    if "TTA" not in others:
        return [*claims, Claim(text, "cannot be tested here", "votes were left out")]
    higher = sum(figure(r, "TTA", "ACC") > figure(r, "plain", "ACC") for r in results)
    better, failing = count(results, lambda r: _below(r, "ECE", "Bayes", "TTA"))
    figures = f"TTA more accurate on {higher} of {total}; Bayes better calibrated on {better}{failing}"
    return [*claims, Claim.judged(text, higher > 0 and better == total, figures)]


def large_claims(results: Sequence[Result]) -> list[Claim]:
    """The appendix, of the larger CLIP."""
    others = [method for method in BASELINES if method in results[0].scores]
    counts, told = [], []
    for metric, slack in SAME.items():
        sign = -1 if metric == "ACC" else 1

        def matches(r: Result, metric: str = metric, slack: float = slack, sign: int = sign) -> bool:
            best = min(sign * figure(r, other, metric) for other in others)
            return sign * figure(r, "Bayes", metric) <= best + slack

        found, failing = count(results, matches)
        counts.append(found)
        told.append(f"{metric} on {found} of {len(results)}{failing}")
    allowed = "1 point, 0.05 nats, 1 point being a match"
    return [
        Claim.judged(
            "BayesVLM consistently matches or outperforms the baselines in ACC, NLPD and ECE.",
            min(counts) == len(results),
            f"{'; '.join(told)} ({allowed})",
        )
    ]


def siglip_claims(results: Sequence[Result]) -> list[Claim]:
    """The appendix, of SigLIP."""

    def improved(r: Result) -> bool:
        kept = figure(r, "Bayes", "ACC") >= figure(r, "plain", "ACC") - SAME["ACC"]
        return kept and _below(r, "ECE", "Bayes", "plain") and _below(r, "NLPD", "Bayes", "plain")

    found, failing = count(results, improved)
    return [
        Claim.judged(
            "BayesVLM improves calibration on several benchmarks without sacrificing predictive performance.",
            found >= min(SEVERAL, len(results)),
            f"lower ECE and NLPD than plain on {found} of {len(results)}{failing}; {_lost(results, 'Bayes', 'plain')}",
        )
    ]


def shift_claims(results: Sequence[Result]) -> list[Claim]:
    """The appendix, under a severe shift."""
    improved, failing = count(
        results, lambda r: _below(r, "ECE", "Bayes", "plain") and _below(r, "NLPD", "Bayes", "plain")
    )
    drawn = [r for r in results if any(word in r.data for word in SKETCHES)]
    others = [method for method in BASELINES if method in results[0].scores]
    best, not_best = count(drawn, lambda r: all(_below(r, "ECE", "Bayes", other) for other in others))
    text = "On sketches BayesVLM is the best calibrated of all methods."
    return [
        Claim.judged(
            "Under a severe shift BayesVLM improves over CLIP in ECE and NLPD.",
            improved == len(results),
            f"on {improved} of {len(results)}{failing}",
        ),
        Claim.judged(text, best == len(drawn), f"smallest ECE on {best} of {len(drawn)}{not_best}")
        if drawn
        else Claim(text, "cannot be tested here", "none of the sets is of sketches"),
    ]


# Items ----------------------------------------------------------------------------------------------------------------

Judge = Callable[[Sequence[Result]], list[Claim]]


def bayes_table(lab: Lab, name: str, published: str, judge: Judge, stands: Mapping[str, str]) -> Finding:
    """Plain, temperature, votes and Bayes of one model.

    Args:
        name: of the paper's table.
        published: the paper's model.
        judge: what the paper says of it.
        stands: embedded model -> what it stands for, in a sentence.
    """
    model = lab.models[0]
    results = measured(lab, model)
    change = [figure(r, "Bayes", "NLPD") - figure(r, "plain", "NLPD") for r in results]
    sides = [figure(r, "Bayes", "NLPD") - figure(r, "temperature", "NLPD") for r in results]
    ece = {m: sum(figure(r, m, "ECE") for r in results) / len(results) for m in results[0].scores}
    answer = (
        f"The posterior changes the NLPD of {model} by {min(change):+.2f} to {max(change):+.2f} nats against plain, by "
        f"{min(sides):+.2f} to {max(sides):+.2f} against temperature scaling; its mean ECE over {len(results)} sets is "
        f"{ece['Bayes']:.1f} % (plain {ece['plain']:.1f} %, temperature scaling {ece['temperature']:.1f} %)."
    )
    beside = published_table(name) if same_model(model, published) else None
    numbers = {result.data: result.numbers["methods"] for result in results}
    remarks = [stands[model]] if model in stands else []
    return Finding(answer, judge(results), [table(results, beside, model)], numbers, remarks)


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
    results = measured(lab, model, predicts=True)
    better, failing = count(results, lambda r: _below(r, "ECE", "ProbCosine", "mean"))
    change = [figure(r, "ProbCosine", "NLPD") - figure(r, "mean", "NLPD") for r in results]
    kept = all(figure(r, "mean", "ACC") - figure(r, "ProbCosine", "ACC") <= 0.5 for r in results)
    lost = _lost(results, "ProbCosine", "mean")
    answer = (
        f"ProbCosine calibrates {model} better than its mean on {better} of {len(results)} sets{failing} and changes "
        f"its NLPD by {min(change):+.2f} to {max(change):+.2f} nats, {lost}."
    )
    enough = better == len(results) and kept if consistently else 2 * better > len(results)
    claim = Claim.judged(text, enough, f"ECE lower on {better} of {len(results)}{failing}; {lost}")
    beside = published_table(name) if same_model(model, published) else None
    remarks = [f"{model} stands for {family}."] if model == "emoji-prolip" else []
    numbers = {result.data: result.numbers["methods"] for result in results}
    return Finding(answer, [claim], [table(results, beside, model)], numbers, remarks)


_STANDS = {
    "emoji-clip": "emoji-clip stands for CLIP-Base.",
    "emoji-siglip": "emoji-siglip stands for SigLIP-Base.",
    "emoji-clip-colour": "emoji-clip-colour, a second CLIP of the same size that never saw line art, stands for "
    "CLIP-Large: that a larger model behaves alike cannot be tested here.",
}
_SHIFT = {
    "emoji-clip": "The world's hardest shift stands for ImageNet-A and ImageNet-Sketch: outlines without colour, of "
    "vendors whose drawings the model was not trained on."
}


def _bayes_item(name: str, title: str, model: str, published: str, judge: Judge) -> Item:
    return Item(
        name,
        f"Zero-shot, {title}",
        f"Are the uncertainties of {title} useful: is the prediction calibrated, and at what price?",
        "zero-shot",
        world_plan(model, views=True),
        paper_plan(published, views=True),
        partial(bayes_table, name=name, published=published, judge=judge, stands=_STANDS),
    )


def _predicted_item(name: str, family: str, models: tuple[str, ...], published: str, consistently: bool) -> Item:
    return Item(
        name,
        f"ProbCosine on {family}",
        f"Does ProbCosine calibrate a model that predicts its variances ({family})?",
        "zero-shot",
        Plan(models, TESTS),
        Plan((published,), ZERO_SHOT_SETS),
        partial(predicted_table, name=name, published=published, family=family, consistently=consistently),
    )


ITEMS = (
    _bayes_item("uq_results_clip", "CLIP-Base", "emoji-clip", CLIP_BASE, base_claims),
    _bayes_item("uq_results_clip_large", "CLIP-Large", "emoji-clip-colour", CLIP_LARGE, large_claims),
    _bayes_item("uq_results_siglip", "SigLIP-Base", "emoji-siglip", SIGLIP_BASE, siglip_claims),
    _predicted_item("uq_results_pcmepp", "PCME++", (), PCMEPP, consistently=True),
    _predicted_item("uq_results_prolip", "ProLIP", ("emoji-prolip",), PROLIP, consistently=False),
    Item(
        "zero_shot_adversarial_imgnet",
        "Severe shift",
        "Do the uncertainties hold under a severe shift?",
        "robustness",
        world_plan("emoji-clip", views=True, sets=("emojione-black", "openmoji-black")),
        paper_plan(CLIP_BASE, views=True, sets=("imagenet-a", "imagenet-sketch")),
        partial(
            bayes_table,
            name="zero_shot_adversarial_imgnet",
            published=CLIP_BASE,
            judge=shift_claims,
            stands=_SHIFT,
        ),
    ),
)
