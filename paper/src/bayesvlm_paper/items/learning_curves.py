"""What is worth labelling: scores on a target domain against the number of labels, for the paper's six strategies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bayesvlm.evaluation import Estimate
from bayesvlm.experiments.adaptation import Run, advantage
from bayesvlm.report.blocks import Table
from bayesvlm_paper import labelling
from bayesvlm_paper.exhibits import LearningCurves
from bayesvlm_paper.finding import Claim, Finding, Numbers
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.plans import CLIP_BASE, CLIP_HUGE, PLAN, SIGLIP_BASE, Plan
from bayesvlm_paper.wording import counted, not_on, signed, with_error

JUDGED = (50, 100, 200)
"""Numbers of labels at which the paper's claims are judged."""
OVER = ("random", "targeted-random", "entropy", "targeted-entropy")
"""Strategies that others are compared with."""


def measure(lab: Lab) -> Numbers:
    """Choose, fine-tune and measure, for every strategy, seed and number of labels."""
    numbers: Numbers = {}
    for target in labelling.targets(lab) if lab.models else ():
        adaptation = labelling.experiment(lab, target, labelling.STRATEGIES)
        runs = adaptation.run()
        scores = measured(runs, adaptation.protocol.budgets)
        numbers[target] = {"protocol": labelling.protocol_numbers(adaptation), **scores}
    return numbers


def measured(runs: Sequence[Run], budgets: Sequence[int]) -> dict[str, Any]:
    """Curves, and what every strategy gains over those that others are compared with."""
    gained = {
        over: {
            strategy: {str(count): labelling.pair_of(advantage(runs, strategy, over, count)) for count in budgets}
            for strategy in labelling.NAMES
            if strategy != over
        }
        for over in OVER
    }
    return {"curves": labelling.curve_numbers(runs), "nats gained": gained}


@dataclass(frozen=True)
class Learnt:
    """What was measured for one target."""

    numbers: Mapping[str, Any]

    @property
    def judged(self) -> list[int]:
        """Numbers of labels that claims are judged at: the paper's, or all where there are none of these."""
        own = [int(count) for count in self.numbers["protocol"]["budgets"]]
        return [count for count in own if count in JUDGED] or own

    def score(self, strategy: str, count: int, metric: str = "nlpd") -> Estimate:
        """Mean over the seeds."""
        return labelling.estimate_of(self.numbers["curves"][metric][strategy][str(count)])

    def gain(self, strategy: str, over: str, count: int) -> Estimate:
        """Nats of NLPD by which a strategy is lower than another, paired by seed."""
        return labelling.estimate_of(self.numbers["nats gained"][over][strategy][str(count)])

    def right(self, strategy: str, count: int) -> float:
        """Balanced accuracy."""
        return self.score(strategy, count, "balanced_accuracy").value


Found = Mapping[str, Learnt]  # target -> what was measured


def below_claim(found: Found, text: str) -> Claim:
    """EPIG and BALD against random and entropy: the mean NLPD of both below both, at every size and target."""
    places, failing, more = 0, [], 0
    least = {(own, over): math.inf for own in ("epig", "targeted-bald") for over in ("random", "entropy")}
    for target, learnt in found.items():
        for count in learnt.judged:
            gaps = {pair: learnt.gain(*pair, count).value for pair in least}
            least = {pair: min(least[pair], gap) for pair, gap in gaps.items()}
            places += 1
            more += all(learnt.right(own, count) > learnt.right(over, count) for own, over in least)
            if min(gaps.values()) <= 0:
                failing.append(f"{target} with {counted(count, 'label')}")
    leads = ", ".join(f"{labelling.NAMES[own]} over {over} {signed(gap)}" for (own, over), gap in least.items())
    figure = (
        f"NLPD of both below both at {places - len(failing)} of {places} sizes on {', '.join(found)}{not_on(failing)}; "
        f"least gains in nats: {leads}; balanced accuracy of both above both at {more} of {places}"
    )
    return Claim.judged(text, not failing, figure)


def entropy_claim(found: Found, text: str) -> Claim:
    """EPIG against targeted entropy: "consistently" is a lower mean NLPD at every size, on every target."""
    gaps = {
        target: {count: learnt.gain("epig", "targeted-entropy", count) for count in learnt.judged}
        for target, learnt in found.items()
    }
    told = [
        f"{target}: "
        + ", ".join(f"{with_error(gap, signs=True)} with {counted(count, 'label')}" for count, gap in of.items())
        for target, of in gaps.items()
    ]
    holds = all(gap.value > 0 for of in gaps.values() for gap in of.values())
    return Claim.judged(text, holds, f"nats gained, {'; '.join(told)}")


def answer(model: str, found: Found) -> str:
    """Where every strategy ends, and what EPIG gains over chance that looks at the target."""
    said = []
    for target, learnt in found.items():
        most = learnt.judged[-1]
        ends = {strategy: learnt.score(strategy, most).value for strategy in labelling.NAMES}
        others = ", ".join(f"{labelling.NAMES[each]} {end:.2f}" for each, end in ends.items() if each != "epig")
        gap = learnt.gain("epig", "targeted-random", most)
        said.append(
            f"on {target} {counted(most, 'label')} chosen by EPIG take the NLPD from "
            f"{learnt.score('random', 0).value:.2f} to {ends['epig']:.2f} "
            f"({others}); over targeted random, which labels neighbours of random target images, EPIG gains "
            f"{with_error(gap, signs=True)} nats, and its balanced accuracy is {100 * learnt.right('epig', most):.1f} "
            f"% against {100 * learnt.right('targeted-random', most):.1f} % "
            f"({100 * learnt.right('random', most):.1f} % with random)"
        )
    return f"With {model}, {'; '.join(said)}."


def table(target: str, learnt: Learnt) -> Table:
    """Every strategy with the most labels, and what it gains over the two that choose by chance."""
    most = learnt.judged[-1]
    lowest = min(labelling.NAMES, key=lambda strategy: learnt.score(strategy, most).value)
    rows = [
        [
            name,
            with_error(learnt.score(strategy, most, "balanced_accuracy"), 1, 100),
            with_error(learnt.score(strategy, most)),
            with_error(learnt.score(strategy, most, "ece"), 1, 100),
            *(
                "" if strategy == over else with_error(learnt.gain(strategy, over, most), signs=True)
                for over in OVER[:2]
            ),
        ]
        for strategy, name in labelling.NAMES.items()
    ]
    columns = ["", "balanced accuracy (%)", "NLPD", "ECE (%)", "over random", "over targeted random"]
    caption = (
        f"{target} with {counted(most, 'label')}. The last columns: nats of NLPD gained, paired by seed. "
        f"{labelling.about_seeds(learnt.numbers['protocol'])} Bold: the lowest NLPD."
    )
    return Table(columns, rows, frozenset({(list(labelling.NAMES).index(lowest), 2)}), caption)


def curves_of(target: str, learnt: Learnt) -> LearningCurves:
    """The scores of a target against the number of labels."""
    return LearningCurves(
        {metric: learnt.numbers["curves"][metric] for metric in labelling.METRICS},
        f"{target}: scores of the Bayesian prediction against the number of labels. "
        f"{labelling.about_seeds(learnt.numbers['protocol'])}",
        f"Balanced accuracy, NLPD and ECE on {target} against the number of labels for six strategies.",
    )


def tell(numbers: Mapping[str, Any], family: str, published: str, note: str = "") -> Finding:
    """Which strategy is worth it.

    Args:
        family: what the paper calls the model.
        published: the model it is.
        note: a remark of its own.
    """
    texts = (
        f"EPIG and BALD outperform Random and Entropy across subset sizes and target domains ({family}).",
        f"EPIG consistently has lower NLPD than targeted entropy ({family}).",
    )
    plan = Plan.of(numbers)
    if not plan.models:
        reason = f"no larger model was trained on the embedded world, to stand for {family}; name one with --model"
        return Finding.not_run(reason, *texts)
    found = {target: Learnt(of) for target, of in numbers.items() if target != PLAN}
    claims = [below_claim(found, texts[0]), entropy_claim(found, texts[1])]
    shown = [show(target, learnt) for target, learnt in found.items() for show in (curves_of, table)]
    said = (
        *labelling.stand_in(plan.model, published, family),
        *([note] if note else ()),
        *labelling.domain_remarks(plan),
        *_PROTOCOL,
    )
    return Finding(answer(plan.model, found), claims, shown, said)


_PROTOCOL = (
    "Gamma and beta of EPIG are this software's defaults (1e-3 and 100); the paper finds them by validation, which "
    "`bayesvlm adapt --search` does. The learning rate is the paper's 1e-5 for its models and 1e-4 for others.",
    "The paper's weighted accuracy is, by what it prints, plain accuracy; shown here is the mean over the classes, and "
    "the plain one is among the numbers.",
)


_UNNAMED = "The paper does not name the model of this figure; CLIP-Base is taken, as the others are in its appendix."
ITEMS = {
    "results_activelearning": (measure, partial(tell, family="CLIP-Base", published=CLIP_BASE, note=_UNNAMED)),
    "results_activelearning_clip_huge": (measure, partial(tell, family="CLIP-Huge", published=CLIP_HUGE)),
    "results_activelearning_siglip_base": (measure, partial(tell, family="SigLIP-Base", published=SIGLIP_BASE)),
}
