"""Tables of zero-shot results: top-1, NLPD and ECE of every method on every set, beside the printed ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from bayesvlm.core.errors import BayesVLMError
from bayesvlm_paper.catalogue import CATALOGUE, Judgement, judged, remarks
from bayesvlm_paper.finding import Claim, Finding, Numbers
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


# Claims, in the order of the catalogue --------------------------------------------------------------------------------

Judge = Callable[[Scoreboard], list[Judgement]]


def baselines(board: Scoreboard) -> list[str]:
    """Those that were measured: votes may be left out."""
    return [method for method in BASELINES if method in board.rows]


def base_claims(board: Scoreboard) -> list[Judgement]:
    """Section 5.1, of CLIP-Base."""
    lower = board.matches("Bayes", ["plain"], "NLPD")
    similar = min(board.changes("Bayes", "plain", "ACC")) >= -SIMILAR
    gaps = board.changes("Bayes", "temperature", "NLPD")
    best = board.matches("Bayes", baselines(board), "ECE")
    votes: Judgement = (None, "votes were left out")
    if "TTA" in board.rows:
        higher, better = board.changes("TTA", "plain", "ACC"), board.matches("Bayes", ["TTA"], "ECE")
        more = sum(change > 0 for change in higher)
        said = f"TTA more accurate on {more} of {len(higher)}; Bayes better calibrated on {better}"
        votes = (more > 0 and better.everywhere, said)
    return [
        (lower.everywhere and similar, f"NLPD lower on {lower}; {board.lost('Bayes', 'plain')}"),
        (
            max(gaps) <= 0.1 and similar,
            f"Bayes minus temperature scaling: {from_to(gaps, 2)} nats (wanted: at most 0.1)",
        ),
        (best.everywhere, f"smallest ECE on {best}"),
        votes,
    ]


def large_claims(board: Scoreboard) -> list[Judgement]:
    """The appendix, of the larger CLIP."""
    found = {metric: board.matches("Bayes", baselines(board), metric, slack) for metric, slack in SAME.items()}
    told = "; ".join(f"{metric} on {where}" for metric, where in found.items())
    every = all(where.everywhere for where in found.values())
    return [(every, f"{told} (1 point, 0.05 nats, 1 point being a match)")]


def improved(board: Scoreboard) -> Where:
    """Where Bayes is not above plain in either ECE or NLPD."""
    return board.matches("Bayes", ["plain"], "ECE") & board.matches("Bayes", ["plain"], "NLPD")


def siglip_claims(board: Scoreboard) -> list[Judgement]:
    """The appendix, of SigLIP."""
    kept = board.matches("Bayes", ["plain"], "ACC", SAME["ACC"])
    found = kept & improved(board)
    enough = found.count >= min(SEVERAL, len(board.sets))
    return [(enough, f"lower ECE and NLPD than plain on {found}; {board.lost('Bayes', 'plain')}")]


def shift_claims(board: Scoreboard) -> list[Judgement]:
    """The appendix, under a severe shift."""
    better = improved(board)
    severe = (better.everywhere, f"on {better}")
    drawn = [data for data in board.sets if any(word in data for word in SKETCHES)]
    if not drawn:
        return [severe, (None, "none of the sets is of sketches")]
    best = board.only(drawn).matches("Bayes", baselines(board), "ECE")
    return [severe, (best.everywhere, f"smallest ECE on {best}")]


# Items ----------------------------------------------------------------------------------------------------------------


def tell_bayes(numbers: Mapping[str, Any], name: str, published: str, judge: Judge) -> Finding:
    """Plain, temperature, votes and Bayes of one model.

    Args:
        name: of the item and the paper's table.
        published: the paper's model.
        judge: what the paper says of it.
    """
    model, board = Plan.of(numbers).model, board_of(numbers)
    change = {other: from_to(board.changes("Bayes", other, "NLPD"), 2) for other in ("plain", "temperature")}
    ece = {method: board.mean(method, "ECE") for method in ("Bayes", "plain", "temperature")}
    answer = (
        f"The posterior changes the NLPD of {model} by {change['plain']} nats against plain, by "
        f"{change['temperature']} against temperature scaling; its mean ECE over {len(board.sets)} sets is "
        f"{ece['Bayes']:.1f} % (plain {ece['plain']:.1f} %, temperature scaling {ece['temperature']:.1f} %)."
    )
    claims = judged(name, *judge(board), others=", ".join(baselines(board)))
    return _finding(answer, claims, board, model, name, published)


def tell_predicted(numbers: Mapping[str, Any], name: str, published: str, family: str, consistently: bool) -> Finding:
    """A model that predicts its variances: by the mean, by its own score, by ProbCosine.

    Args:
        consistently: whether the paper says so of every set, and that accuracy is kept; else of most sets.
    """
    if not numbers[PLAN]["models"]:
        reason = f"no {family} was trained on the embedded world; name a checkpoint with --model"
        return Finding.not_run(reason, *CATALOGUE[name]["claims"])
    model, board = Plan.of(numbers).model, board_of(numbers)
    better = board.matches("ProbCosine", ["mean"], "ECE")
    kept = min(board.changes("ProbCosine", "mean", "ACC")) >= -0.5
    lost = board.lost("ProbCosine", "mean")
    answer = (
        f"ProbCosine calibrates {model} better than its mean on {better} and changes its NLPD by "
        f"{from_to(board.changes('ProbCosine', 'mean', 'NLPD'), 2)} nats, {lost}."
    )
    enough = better.everywhere and kept if consistently else 2 * better.count > len(board.sets)
    return _finding(answer, judged(name, (enough, f"ECE lower on {better}; {lost}")), board, model, name, published)


def _finding(answer: str, claims: Sequence[Claim], board: Scoreboard, model: str, name: str, published: str) -> Finding:
    """With the table, and the remark on what the embedded model stands for where it is that."""
    table = board.table(f"{model}. {BOLD}", printed=printed_values(name, model, published))
    stands = [model] == CATALOGUE[name]["world"].get("models")
    return Finding(answer, claims, [table], remarks(name) if stands else [])


_BAYES: dict[str, tuple[str, Judge]] = {
    "uq_results_clip": (CLIP_BASE, base_claims),
    "uq_results_clip_large": (CLIP_LARGE, large_claims),
    "uq_results_siglip": (SIGLIP_BASE, siglip_claims),
    "zero_shot_adversarial_imgnet": (CLIP_BASE, shift_claims),
}
_PREDICTED = {"uq_results_pcmepp": (PCMEPP, "PCME++", True), "uq_results_prolip": (PROLIP, "ProLIP", False)}
ITEMS = {
    **{
        name: (partial(measure, predicts=False), partial(tell_bayes, name=name, published=published, judge=judge))
        for name, (published, judge) in _BAYES.items()
    },
    **{
        name: (
            partial(measure, predicts=True),
            partial(tell_predicted, name=name, published=published, family=family, consistently=consistently),
        )
        for name, (published, family, consistently) in _PREDICTED.items()
    },
}
