"""Tables of zero-shot results: top-1, NLPD and ECE of every method on every set, beside the printed ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from bayesvlm.core.errors import BayesVLMError
from bayesvlm_paper.finding import Claim, Finding, Numbers
from bayesvlm_paper.item import Code
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.plans import CLIP_BASE, CLIP_LARGE, PCMEPP, PLAN, PROLIP, SIGLIP_BASE, Plan, column_of, same_model
from bayesvlm_paper.printed import published_table
from bayesvlm_paper.scoreboard import BOLD, Printed, Scoreboard, Where, numbers_of
from bayesvlm_paper.wording import from_to

BASELINES = ("plain", "temperature", "TTA")
SIMILAR = 1.5
"""Points of top-1 that may be lost and the accuracy still be called similar."""
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


def measure(lab: Lab, predicts: bool) -> Numbers:
    """Every set of the plan, with every method.

    Args:
        predicts: whether the table is of models that predict their variances.
    """
    if not lab.models:
        return {}
    model = lab.models[0]
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
    return {result.data: numbers_of(result.scores) for result in results}


def board_of(numbers: Mapping[str, Any]) -> Scoreboard:
    """The methods on the sets."""
    return Scoreboard({data: methods for data, methods in numbers.items() if data != PLAN})


def printed_values(name: str, model: str, published: str) -> Printed | None:
    """The paper's table for one of our methods on a set; None where the model is not the paper's."""
    if not same_model(model, published):
        return None
    table = published_table(name)
    return lambda row, metric, data: table.value(metric, column_of(data), *_PRINTED.get(row, ()))


# Claims ---------------------------------------------------------------------------------------------------------------


def base_claims(board: Scoreboard) -> list[Claim]:
    """Section 5.1, of CLIP-Base."""
    lower = board.at_most("Bayes", ["plain"], "NLPD")
    similar = min(board.changes("Bayes", "plain", "ACC")) >= -SIMILAR
    gaps = board.changes("Bayes", "temperature", "NLPD")
    others = [method for method in BASELINES if method in board.rows]
    best = board.at_most("Bayes", others, "ECE")
    claims = [
        Claim.judged(
            "BayesVLM has similar accuracy and lower NLPD than the deterministic model on all data sets.",
            lower.everywhere and similar,
            f"NLPD lower on {lower}; {board.lost('Bayes', 'plain')}",
        ),
        Claim.judged(
            "BayesVLM performs similarly to temperature scaling in accuracy and NLPD.",
            max(gaps) <= 0.1 and similar,
            f"Bayes minus temperature scaling: {from_to(gaps, 2)} nats (wanted: at most 0.1)",
        ),
        Claim.judged(
            f"BayesVLM outperforms all baselines in ECE ({', '.join(others)}).",
            best.everywhere,
            f"smallest ECE on {best}",
        ),
    ]
    text = "Test-time augmentation is more accurate on some sets, but BayesVLM is better calibrated."
    if "TTA" not in others:
        return [*claims, Claim.untested(text, "votes were left out")]
    higher = sum(change > 0 for change in board.changes("TTA", "plain", "ACC"))
    better = board.at_most("Bayes", ["TTA"], "ECE")
    figures = f"TTA more accurate on {higher} of {len(board.sets)}; Bayes better calibrated on {better}"
    return [*claims, Claim.judged(text, higher > 0 and better.everywhere, figures)]


def large_claims(board: Scoreboard) -> list[Claim]:
    """The appendix, of the larger CLIP."""
    others = [method for method in BASELINES if method in board.rows]

    def matches(metric: str) -> Callable[[str], bool]:
        sign = -1 if metric == "ACC" else 1
        return lambda data: (
            sign * board.value("Bayes", data, metric)
            <= min(sign * board.value(other, data, metric) for other in others) + SAME[metric]
        )

    found = {metric: board.where(matches(metric)) for metric in SAME}
    told = "; ".join(f"{metric} on {where}" for metric, where in found.items())
    return [
        Claim.judged(
            "BayesVLM consistently matches or outperforms the baselines in ACC, NLPD and ECE.",
            all(where.everywhere for where in found.values()),
            f"{told} (1 point, 0.05 nats, 1 point being a match)",
        )
    ]


def improved(board: Scoreboard) -> Where:
    """Where Bayes is not above plain in either ECE or NLPD."""
    return board.at_most("Bayes", ["plain"], "ECE") & board.at_most("Bayes", ["plain"], "NLPD")


def siglip_claims(board: Scoreboard) -> list[Claim]:
    """The appendix, of SigLIP."""
    kept = board.where(
        lambda data: board.value("Bayes", data, "ACC") >= board.value("plain", data, "ACC") - SAME["ACC"]
    )
    found = kept & improved(board)
    return [
        Claim.judged(
            "BayesVLM improves calibration on several benchmarks without sacrificing predictive performance.",
            found.count >= min(SEVERAL, len(board.sets)),
            f"lower ECE and NLPD than plain on {found}; {board.lost('Bayes', 'plain')}",
        )
    ]


def shift_claims(board: Scoreboard) -> list[Claim]:
    """The appendix, under a severe shift."""
    better = improved(board)
    severe = Claim.judged(
        "Under a severe shift BayesVLM improves over CLIP in ECE and NLPD.", better.everywhere, f"on {better}"
    )
    text = "On sketches BayesVLM is the best calibrated of all methods."
    drawn = [data for data in board.sets if any(word in data for word in SKETCHES)]
    if not drawn:
        return [severe, Claim.untested(text, "none of the sets is of sketches")]
    others = [method for method in BASELINES if method in board.rows]
    best = board.only(drawn).at_most("Bayes", others, "ECE")
    return [severe, Claim.judged(text, best.everywhere, f"smallest ECE on {best}")]


# Items ----------------------------------------------------------------------------------------------------------------

Judge = Callable[[Scoreboard], list[Claim]]


def tell_bayes(
    numbers: Mapping[str, Any], name: str, published: str, judge: Judge, stands: Mapping[str, str]
) -> Finding:
    """Plain, temperature, votes and Bayes of one model.

    Args:
        name: of the paper's table.
        published: the paper's model.
        judge: what the paper says of it.
        stands: embedded model -> what it stands for, in a sentence.
    """
    model, board = Plan.of(numbers).model, board_of(numbers)
    change = {other: from_to(board.changes("Bayes", other, "NLPD"), 2) for other in ("plain", "temperature")}
    ece = {method: board.mean(method, "ECE") for method in ("Bayes", "plain", "temperature")}
    answer = (
        f"The posterior changes the NLPD of {model} by {change['plain']} nats against plain, by "
        f"{change['temperature']} against temperature scaling; its mean ECE over {len(board.sets)} sets is "
        f"{ece['Bayes']:.1f} % (plain {ece['plain']:.1f} %, temperature scaling {ece['temperature']:.1f} %)."
    )
    table = board.table(f"{model}. {BOLD}", printed=printed_values(name, model, published))
    return Finding(answer, judge(board), [table], [stands[model]] if model in stands else [])


def tell_predicted(numbers: Mapping[str, Any], name: str, published: str, family: str, consistently: bool) -> Finding:
    """A model that predicts its variances: by the mean, by its own score, by ProbCosine."""
    text = (
        f"{family} with ProbCosine keeps its accuracy while consistently improving calibration."
        if consistently
        else f"ProbCosine improves calibration in most cases when combined with {family}."
    )
    plan = Plan.of(numbers)
    if not plan.models:
        return Finding.not_run(f"no {family} was trained on the embedded world; name a checkpoint with --model", text)
    board = board_of(numbers)
    better = board.at_most("ProbCosine", ["mean"], "ECE")
    kept = min(board.changes("ProbCosine", "mean", "ACC")) >= -0.5
    lost = board.lost("ProbCosine", "mean")
    answer = (
        f"ProbCosine calibrates {plan.model} better than its mean on {better} and changes its NLPD by "
        f"{from_to(board.changes('ProbCosine', 'mean', 'NLPD'), 2)} nats, {lost}."
    )
    enough = better.everywhere and kept if consistently else 2 * better.count > len(board.sets)
    claim = Claim.judged(text, enough, f"ECE lower on {better}; {lost}")
    table = board.table(f"{plan.model}. {BOLD}", printed=printed_values(name, plan.model, published))
    remarks = [f"{plan.model} stands for {family}."] if plan.model == "emoji-prolip" else []
    return Finding(answer, [claim], [table], remarks)


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


def _bayes(name: str, published: str, judge: Judge, stands: Mapping[str, str] = _STANDS) -> Code:
    told = partial(tell_bayes, name=name, published=published, judge=judge, stands=stands)
    return {name: (partial(measure, predicts=False), told)}


def _predicted(name: str, published: str, family: str, consistently: bool) -> Code:
    told = partial(tell_predicted, name=name, published=published, family=family, consistently=consistently)
    return {name: (partial(measure, predicts=True), told)}


ITEMS = {
    **_bayes("uq_results_clip", CLIP_BASE, base_claims),
    **_bayes("uq_results_clip_large", CLIP_LARGE, large_claims),
    **_bayes("uq_results_siglip", SIGLIP_BASE, siglip_claims),
    **_predicted("uq_results_pcmepp", PCMEPP, "PCME++", consistently=True),
    **_predicted("uq_results_prolip", PROLIP, "ProLIP", consistently=False),
    **_bayes("zero_shot_adversarial_imgnet", CLIP_BASE, shift_claims, _SHIFT),
}
