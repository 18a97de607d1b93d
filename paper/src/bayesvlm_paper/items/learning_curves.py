"""What is worth labelling: scores on a target domain against the number of labels, for the paper's six strategies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bayesvlm.evaluation import Estimate
from bayesvlm.experiments.adaptation import Run, advantage
from bayesvlm.report.blocks import Table
from bayesvlm_paper import catalogue, labelling
from bayesvlm_paper.exhibits import LearningCurves
from bayesvlm_paper.finding import Finding, Numbers
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.plans import PLAN, Plan
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
        scores = measured(adaptation.run(), adaptation.schedule.budgets)
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
        """Balanced accuracy in percent."""
        return 100 * self.score(strategy, count, "balanced_accuracy").value


Found = Mapping[str, Learnt]  # target -> what was measured


def below_both(found: Found) -> catalogue.Judgement:
    """EPIG and BALD against random and entropy: the mean NLPD of both below both, at every size and target."""
    pairs = [(own, over) for own in ("epig", "targeted-bald") for over in ("random", "entropy")]
    gaps = {
        (target, count): {pair: learnt.gain(*pair, count).value for pair in pairs}
        for target, learnt in found.items()
        for count in learnt.judged
    }
    failing = [
        f"{target} with {counted(count, 'label')}" for (target, count), of in gaps.items() if min(of.values()) <= 0
    ]
    more = [
        all(found[on].right(own, count) > found[on].right(over, count) for own, over in pairs) for on, count in gaps
    ]
    least = {pair: min(of[pair] for of in gaps.values()) for pair in pairs}
    leads = ", ".join(f"{labelling.NAMES[own]} over {over} {signed(gap)}" for (own, over), gap in least.items())
    return not failing, (
        f"NLPD of both below both at {len(gaps) - len(failing)} of {len(gaps)} sizes on {', '.join(found)}"
        f"{not_on(failing)}; least gains in nats: {leads}; balanced accuracy of both above both at {sum(more)} of "
        f"{len(gaps)}"
    )


def below_entropy(found: Found) -> catalogue.Judgement:
    """EPIG against targeted entropy: "consistently" is a lower mean NLPD at every size, on every target."""
    gaps = {
        target: {count: learnt.gain("epig", "targeted-entropy", count) for count in learnt.judged}
        for target, learnt in found.items()
    }
    each = "; ".join(
        f"{target}: "
        + ", ".join(f"{with_error(gap, signs=True)} with {counted(count, 'label')}" for count, gap in of.items())
        for target, of in gaps.items()
    )
    return all(gap.value > 0 for of in gaps.values() for gap in of.values()), f"nats gained, {each}"


def answer(model: str, found: Found) -> str:
    """Where every strategy ends, and what EPIG gains over chance that looks at the target."""
    said = []
    for target, learnt in found.items():
        most = learnt.judged[-1]
        ends = {strategy: learnt.score(strategy, most).value for strategy in labelling.NAMES}
        others = ", ".join(f"{labelling.NAMES[each]} {end:.2f}" for each, end in ends.items() if each != "epig")
        right = {strategy: f"{learnt.right(strategy, most):.1f} %" for strategy in labelling.NAMES}
        said.append(
            f"on {target} {counted(most, 'label')} chosen by EPIG take the NLPD from "
            f"{learnt.score('random', 0).value:.2f} to {ends['epig']:.2f} "
            f"({others}); over targeted random, which labels neighbours of random target images, EPIG gains "
            f"{with_error(learnt.gain('epig', 'targeted-random', most), signs=True)} nats, and its balanced accuracy "
            f"is {right['epig']} against {right['targeted-random']} ({right['random']} with random)"
        )
    return f"With {model}, {'; '.join(said)}."


def table(target: str, learnt: Learnt) -> Table:
    """Every strategy with the most labels, and what it gains over the two that choose by chance."""
    most = learnt.judged[-1]
    ends = [learnt.score(strategy, most).value for strategy in labelling.NAMES]
    rows = [
        [
            name,
            with_error(learnt.score(strategy, most, "balanced_accuracy"), 1, 100),
            with_error(learnt.score(strategy, most)),
            with_error(learnt.score(strategy, most, "ece"), 1, 100),
            *("" if strategy == o else with_error(learnt.gain(strategy, o, most), signs=True) for o in OVER[:2]),
        ]
        for strategy, name in labelling.NAMES.items()
    ]
    columns = ["", "balanced accuracy (%)", "NLPD", "ECE (%)", "over random", "over targeted random"]
    caption = (
        f"{target} with {counted(most, 'label')}. The last columns: nats of NLPD gained, paired by seed. "
        f"{labelling.about_seeds(learnt.numbers['protocol'])} Bold: the lowest NLPD."
    )
    return Table(columns, rows, frozenset({(ends.index(min(ends)), 2)}), caption)


def curves_of(target: str, learnt: Learnt) -> LearningCurves:
    """The scores of a target against the number of labels."""
    return LearningCurves(
        {metric: learnt.numbers["curves"][metric] for metric in labelling.METRICS},
        f"{target}: scores of the Bayesian prediction against the number of labels. "
        f"{labelling.about_seeds(learnt.numbers['protocol'])}",
        f"Balanced accuracy, NLPD and ECE on {target} against the number of labels for six strategies.",
    )


def tell(numbers: Mapping[str, Any], name: str) -> Finding:
    """Which strategy is worth it, with the model of the item of this name."""
    plan = Plan.of(numbers)
    if not plan.models:
        reason = "no larger model was trained on the embedded world, to stand for the paper's; name one with --model"
        return Finding(f"Not run: {reason}.", catalogue.judged(name, (None, reason), (None, reason)))
    found = {target: Learnt(of) for target, of in numbers.items() if target != PLAN}
    claims = catalogue.judged(name, below_both(found), below_entropy(found))
    shown = [show(target, learnt) for target, learnt in found.items() for show in (curves_of, table)]
    return Finding(answer(plan.model, found), claims, shown, labelling.remarks(name, plan))


ITEMS = {
    name: (measure, partial(tell, name=name))
    for name in (f"results_activelearning{family}" for family in ("", "_clip_huge", "_siglip_base"))
}
