"""What the numbers of variants say: which of them helps, tables and curves, and findings of one form for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bayesvlm.core.estimation import TOWERS
from bayesvlm.core.tuning import DEFAULT_TAUS
from bayesvlm.report.blocks import Table
from bayesvlm_paper.catalogue import Judgement
from bayesvlm_paper.draws import Ratio
from bayesvlm_paper.exhibits import Exhibit, Lines, Panel, Series
from bayesvlm_paper.finding import Claim, Finding
from bayesvlm_paper.plans import Plan
from bayesvlm_paper.scoreboard import BOLD, Scoreboard
from bayesvlm_paper.wording import counted, signed

CLEAR = 0.005
"""Nats of NLPD, median over the sets, up to which a difference is called none, whatever the tests say."""
SHOWN = 1.0
"""Nats above a variant's best up to which a plot follows it."""
TRUER = 0.01
"""By how much a figure must be nearer to Monte Carlo's to be called truer: of the standard deviation, or of a
probability."""


@dataclass(frozen=True)
class Versus:
    """A variant against the default, as `variants.versus` measures it."""

    better: Sequence[str]
    worse: Sequence[str]
    median: float
    nlpd: float
    ece: float
    top1: float
    tests: Mapping[str, Mapping[str, float]]

    @property
    def helps(self) -> bool:
        """Better on more sets than worse, and by more than `CLEAR` in the median."""
        return len(self.better) > len(self.worse) and self.median < -CLEAR

    @property
    def hurts(self) -> bool:
        """The reverse."""
        return len(self.worse) > len(self.better) and self.median > CLEAR

    def __str__(self) -> str:
        return (
            f"better on {len(self.better)}, worse on {len(self.worse)} of {counted(len(self.tests), 'set')}, NLPD "
            f"{signed(self.median)} nats in the median and {signed(self.nlpd)} in the mean, ECE {signed(self.ece, 1)} "
            "points"
        )


@dataclass(frozen=True)
class Compared:
    """Model -> variant -> what was measured; the first variant is the default.

    Args:
        numbers: of an item, its plan among them.
    """

    numbers: Mapping[str, Any]

    @property
    def models(self) -> tuple[str, ...]:
        return Plan.of(self.numbers).models

    def variants(self, model: str) -> Mapping[str, Any]:
        """Name -> numbers."""
        of: Mapping[str, Any] = self.numbers[model]["variants"]
        return of

    def truth(self, model: str) -> Mapping[str, Any]:
        """How true the variants are to draws of the projections."""
        of: Mapping[str, Any] = self.numbers[model]["truth"]
        return of

    def ratios(self) -> dict[str, dict[str, dict[str, Ratio]]]:
        """Model -> that, where it is ratios to draws in two levels."""
        return {
            model: {
                name: {drawn: Ratio(**ratio) for drawn, ratio in of.items()} for name, of in self.truth(model).items()
            }
            for model in self.models
        }

    def truth_size(self, classes: bool = True) -> str:
        """How many validation images and classes tell that, in words."""
        size = self.numbers[self.models[0]]["truth size"]
        images = counted(size["images"], "validation image")
        return f"{images} and {counted(size['classes'], 'class', 'classes')}" if classes else images

    def versus(self, name: str) -> dict[str, Versus]:
        """Model -> how a variant did against the default."""
        return {model: Versus(**self.variants(model)[name]["against the first"]) for model in self.models}

    def against(self, name: str) -> str:
        """The same in words."""
        return "; ".join(f"{model} {found}" for model, found in self.versus(name).items())

    def effect(self, name: str) -> str:
        """What a variant does to the NLPD, as a verb and its figures."""
        by = self.versus(name)
        said = {
            "lowers the NLPD of": [model for model, found in by.items() if found.helps],
            "raises the NLPD of": [model for model, found in by.items() if found.hurts],
            "makes no clear difference to": [model for model, found in by.items() if not (found.helps or found.hurts)],
        }
        words = " and ".join(f"{verb} {', '.join(models)}" for verb, models in said.items() if models)
        return f"{words} ({self.against(name)})"

    def no_gain(self, name: str) -> Judgement:
        """Whether a variant does not lower the NLPD of any model once tau is tuned for it."""
        return not any(found.helps for found in self.versus(name).values()), self.against(name)

    def finding(
        self,
        answer: str,
        claims: Sequence[Claim],
        exhibits: Sequence[Exhibit],
        remarks: Sequence[str] = (),
        note: str = "",
    ) -> Finding:
        """Scores, tuning curves and what else there is to see.

        Args:
            note: for the captions of the tables of scores, behind the model's name.
        """
        tables = [self._scores(model, note) for model in self.models]
        curves = Lines(
            [self._tuning(model) for model in self.models],
            "Every tau tried on the validation set, as far as a nat above the best; lam follows tau. The default's "
            "choice is marked.",
            "Validation NLPD against tau, one line per variant, one panel per model",
        )
        shown = [*tables, self._summary(), curves, *exhibits]
        return Finding(answer, claims, shown, [*remarks, *self._about_tau()])

    # Exhibits --------------------------------------------------------------------------------------------------------

    def _scores(self, model: str, note: str) -> Table:
        variants = self.variants(model)
        sets = next(iter(variants.values()))["sets"]
        board = Scoreboard({data: {name: of["sets"][data] for name, of in variants.items()} for data in sets})
        return board.table(f"{model}.{note} {BOLD}", decimals={"ACC": 1, "NLPD": 3, "ECE": 1}, mean=True)

    def _summary(self) -> Table:
        """Of every model and variant: tau, lam, and what became of NLPD and ECE."""
        rows = []
        for model, name, of in self._each():
            found = "" if of["tried"] is None else f"{min(nlpd for _, nlpd in of['tried']):.3f}"
            row = [f"{model}, {name}", f"{of['tau']:.3g}", *(f"{of['lam'][tower]:.3g}" for tower in TOWERS), found]
            if of["against the first"] is not None:
                by = Versus(**of["against the first"])
                row += [f"{len(by.better)}", f"{len(by.worse)}", signed(by.median), signed(by.nlpd)]
                row += [signed(by.ece, 1), signed(by.top1, 1)]
            rows.append(row + [""] * (11 - len(row)))
        columns = ["", "tau", "lam image", "lam text", "validation NLPD", "sets better", "sets worse"]
        caption = (
            "tau is the best on the validation set, where an NLPD is given for that; lam follows it. Differences are "
            "over the sets, variant minus default: NLPD in nats, ECE and ACC (means) in points."
        )
        columns += ["median NLPD", "mean NLPD", "ECE", "ACC"]
        default = next(iter(self.variants(self.models[0])))
        return Table(columns, rows, caption=caption, groups=[("", 5), (f"against {default}", 6)])

    def _tuning(self, model: str) -> Panel:
        """Validation NLPD against tau, of every variant that has a tau of its own; the default's is marked."""
        variants, series = self.variants(model), []
        for name, of in variants.items():
            if of["tried"] is not None:
                least = min(nlpd for _, nlpd in of["tried"])
                near = [point for point in of["tried"] if point[1] <= least + SHOWN]
                series.append(Series(name, [tau for tau, _ in near], [nlpd for _, nlpd in near]))
        mark = next(iter(variants.values()))["tau"]
        return Panel(model, "tau", "validation NLPD", series, log_x=True, mark=mark)

    def _each(self) -> list[tuple[str, str, Mapping[str, Any]]]:
        return [(model, name, of) for model in self.models for name, of in self.variants(model).items()]

    def _about_tau(self) -> list[str]:
        """Of every variant whose best tau is an end of what was tried; then of each that the usual grid misses."""
        low, high = min(DEFAULT_TAUS), max(DEFAULT_TAUS)
        ends, beyond = [], []
        for model, name, of in self._each():
            if of["tried"] is None:
                continue
            best = f"{model}, {name}: the best tau, {of['tau']:.3g},"
            if min(of["tried"], key=lambda point: point[1]) in (of["tried"][0], of["tried"][-1]):
                ends.append(f"{best} is an end of those tried; a better one may lie beyond.")
            if not low <= of["tau"] <= high:
                where = f"lies outside {low:g} to {high:g}, where tune() looks unless told otherwise"
                beyond.append(f"{best} {where}; give it taus= for this variant.")
        return ends + beyond


def truer(a: Ratio, b: Ratio) -> bool:
    """Whether a is nearer to one than b, by more than `TRUER` and than the error of the draws."""
    return b.off - a.off > max(TRUER, 2 * a.error, 2 * b.error)


def each_ratio(ratios: Mapping[str, Ratio]) -> str:
    """Model by model."""
    return ", ".join(f"{ratio} ({model})" for model, ratio in ratios.items())


def named_ratios(ratios: Mapping[str, Mapping[str, Ratio]]) -> str:
    """Variant by variant, model by model."""
    return "; ".join(f"{name} {each_ratio(of)}" for name, of in ratios.items())
