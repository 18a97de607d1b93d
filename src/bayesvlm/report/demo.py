"""The page `bayesvlm demo` writes: what it concludes is made from the numbers, whichever way they fall."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from io import BytesIO
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from bayesvlm.evaluation import not_worse_than_best, paired_t_test
from bayesvlm.experiments.demo import Demo, Example, TestSet
from bayesvlm.experiments.demo_pictures import NAMES
from bayesvlm.experiments.methods import SINGLE
from bayesvlm.experiments.scoring import Scores
from bayesvlm.progress import duration
from bayesvlm.report.blocks import Answer, Card, Commands, Gallery, Page, Plot, Section, Table, Text
from bayesvlm.report.page import write_page
from bayesvlm.report.plots import distribution_plot, heat_maps, tau_plot
from bayesvlm.report.scores import METRICS, score_figures
from bayesvlm.report.theme import NARROW, WIDE

PANELS = ("new-drawing", "openmoji-black", "unseen-concepts")
DRAWN = ("plain", "temperature", "Bayes")
"""The methods in the figures; the raised temperature is in the table and in the sentences."""
HEADINGS = {"plain": "plain", "temperature": "temp.", "raised temperature": "raised", "Bayes": "Bayes"}
"""Columns of the table, short enough to stand three times side by side."""
FOOTER = (
    "Written by `bayesvlm`; this page is one file and loads nothing from anywhere. The drawings: Noto Emoji (Google, "
    "Apache License 2.0), Twemoji (Twitter and contributors, CC BY 4.0), Fluent Emoji (Microsoft, MIT), EmojiOne 2.2.7 "
    "(Ranks.com, CC BY 4.0), OpenMoji (openmoji.org, CC BY-SA 4.0), rendered at 64 pixels."
)
_LEVEL = 0.05  # of significance: above it two methods are called level
_CERTAIN = 0.005  # nats of doubt below this are called none


def figures(demo: Demo, width: float = WIDE) -> dict[str, Figure]:
    """The plots of the page by name, as wide as told."""
    tests = {name: test for name, test in demo.sets.items() if test.scores}
    panels = {demo.sets[name].title: _drawn(demo.sets[name]) for name in PANELS}
    rows = {f"{test.title} ({test.size:,})": _drawn(test) for test in tests.values()}
    levels = [f"{level:.0%}" for level in demo.corruption.levels]
    return {
        **score_figures(rows, panels, width),
        "uncertainty-by-style": distribution_plot(
            {test.title: test.spread.numpy() for test in demo.sets.values()},
            "relative spread of the image embedding",
            {test.title: test.kind for test in demo.sets.values()},
            width=width,
        ),
        "corruption": heat_maps(
            {
                "Expected cosine": demo.corruption.mean.numpy(),
                "Standard deviation": demo.corruption.std.numpy(),
            },
            levels,
            levels,
            "letters of the caption crossed out",
            "picture greyed out",
            width=width,
        ),
        "tau": tau_plot(
            [point.tau for point in demo.grid.points],
            [point.nlpd for point in demo.grid.points],
            demo.grid.best.tau,
            width=min(width, 0.7 * WIDE),
        ),
    }


def _drawn(test: TestSet) -> dict[str, Scores]:
    return {method: test.scores[method] for method in DRAWN}


def write_demo(demo: Demo, folder: str | Path) -> Path:
    """Write report.html, whole or not at all."""
    return write_page(demo_page(demo, folder), Path(folder) / "report.html")


def demo_page(demo: Demo, folder: str | Path = "demo") -> Page:
    """The page: the answer first, then what it rests on; `folder` is where it will lie."""
    wide, narrow = figures(demo), figures(demo, NARROW)

    def plot(name: str, caption: str, alt: str) -> Plot:
        return Plot(wide[name], caption, alt, narrow[name])

    seconds = sum(demo.seconds.values())
    facts = {
        "model": demo.model,
        "fitted on": f"{demo.pairs:,} image-caption pairs",
        "pseudo-count tau": f"{demo.grid.best.tau:.3g}",
        "temperature": f"{demo.temperature:.3g}, raised {demo.raised_temperature:.3g}",
        "time": duration(seconds),
    }
    sections = [
        Section(
            "How good are the probabilities?",
            [
                Text(
                    "Every image is compared with all class names; none is in the training split. "
                    "*Top-1* is the share of right answers, *NLPD* the surprise at the right one (lower is better), "
                    "*ECE* the gap between confidence and accuracy in 20 bins. **Temperature scaling** and **Bayes** "
                    "were tuned on the same validation images, one number each. The **raised temperature** is the "
                    "highest whose validation NLPD is within one standard error of the best: how far a temperature "
                    "gets under a shift that is expected, but not seen."
                ),
                Text(" ".join(verdicts(demo))),
                plot(
                    "scores",
                    "**Plain, temperature, Bayes.** Lines are standard errors.",
                    "Dot plot of top-1 accuracy, NLPD and ECE of three methods on seven test sets.",
                ),
                _table(demo),
            ],
        ),
        Section(
            "Does confidence mean what it says?",
            [
                Text(reliability_sentence(demo)),
                plot(
                    "reliability",
                    "**Reliability.** On the dashed line, answers given with 70 % confidence are right 70 % of the "
                    "time. "
                    "Below it the model is overconfident. Bars: how many answers fall where.",
                    "Accuracy against confidence of three methods on three test sets.",
                ),
                Text(selective_sentence(demo)),
                plot(
                    "risk-coverage",
                    "**Risk and coverage.** Error rate when only the surest share of the answers is given.",
                    "Error rate against coverage of three methods on three test sets.",
                ),
            ],
        ),
        Section(
            "Does it notice what is new?",
            [
                Text(novelty_sentence(demo)),
                plot(
                    "uncertainty-by-style",
                    "**Uncertainty of the image embeddings**, sqrt(tr Sigma) / |mu|, before any class name is looked "
                    "at. "
                    "Dots: medians; bars: quartiles; lines: from the 5th to the 95th percentile.",
                    "Distributions of the relative spread of image embeddings by test set.",
                ),
                Text(corruption_sentence(demo)),
                plot(
                    "corruption",
                    f"**Destroying picture and caption**, on average over {demo.corruption.pairs} pairs.",
                    "Heat maps of the expected cosine and its standard deviation by share of letters and squares "
                    "destroyed.",
                ),
            ],
        ),
        Section(
            "What does it say about single images?",
            [
                Text(
                    "Chosen by rule, not by hand. Bars are Bayesian probabilities among the "
                    f"{demo.sets['new-drawing'].classes:,} names that were trained on; lines are cosines with their "
                    "95 % intervals. Doubt is the entropy of the probabilities; draws of the model's parameters "
                    "tell which share of it more data could resolve."
                ),
                Gallery([_card(example) for example in demo.examples]),
            ],
        ),
        Section(
            "How was it tuned?",
            [
                Text(
                    "The posterior weighs the data with a pseudo-count tau; the prior precision lam maximises the "
                    f"evidence at each tau. The smallest validation NLPD, {demo.grid.best.nlpd:.3f}, is at tau = "
                    f"{demo.grid.best.tau:.3g}, with lam = {demo.lam['image']:.3g} (image) and {demo.lam['text']:.3g} "
                    "(text)."
                ),
                plot("tau", "**Validation NLPD by tau.**", "Validation NLPD against tau on a logarithmic axis."),
            ],
        ),
        Section("Try next", [Commands(next_commands(folder, demo.model))]),
    ]
    return Page(f"{demo.model}, and how sure it is", lead(demo), facts, sections, footer=FOOTER)


def next_commands(folder: str | Path, model: str) -> list[tuple[str, str]]:
    """Three commands that work where the demo has run, each with what it does."""
    other = "emoji-siglip" if model != "emoji-siglip" else "emoji-clip"
    posterior, images = (shlex.quote(str(Path(folder) / name)) for name in ("posterior", "images"))
    return [
        (
            f"bayesvlm classify {posterior} {images} --classes '{','.join(NAMES)}'",
            "or your own names: probabilities, with intervals",
        ),
        (f"bayesvlm info {posterior}", "what was estimated"),
        (f"bayesvlm demo --model {other} --out demo-{other.removeprefix('emoji-')}", "the same with the other loss"),
    ]


# Sentences ------------------------------------------------------------------------------------------------------------


def lead(demo: Demo) -> str:
    """The page in two sentences."""
    test = demo.sets["openmoji-black"]
    plain, bayes = test.scores["plain"], test.scores["Bayes"]
    return (
        f"`{demo.model}` was given a Gaussian posterior on the last layer of each tower, without training. On line "
        f"drawings in a style it was never trained on, its calibration error goes from {plain.ece:.0%} to "
        f"{bayes.ece:.0%} and the surprise at the right answer from {plain.nlpd.value:.2f} to {bayes.nlpd.value:.2f} "
        "nats."
    )


def verdicts(demo: Demo) -> list[str]:
    """Bayes against the plain model and against both temperatures, by NLPD, and what it costs in top-1."""
    tests = [test for test in demo.sets.values() if test.scores]
    better, _, worse = _against(tests, "plain").values()
    said = [f"Against the plain model Bayes lowers the NLPD on **{len(better)} of {len(tests)}** sets{_span(better)}."]
    if worse:
        said.append(f"It raises it on {_listed([*worse])}{_span({name: -gain for name, gain in worse.items()})}.")
    said.append(
        f"Against temperature scaling it is {_told(tests, 'temperature')} (nats gained; level: a paired t-test over "
        f"the images finds no difference, p = {_LEVEL})."
    )
    said.append(
        "Against a temperature raised as far as one standard error of the validation NLPD allows it is "
        f"{_told(tests, 'raised temperature')}."
    )
    lost = {test.title: 100 * (test.scores["plain"].top1.value - test.scores["Bayes"].top1.value) for test in tests}
    worst = max(lost, key=lambda title: lost[title])
    if lost[worst] > 0.05:
        said.append(f"It costs at most {lost[worst]:.1f} points of top-1 ({worst}).")
    else:
        said.append("It costs no top-1 anywhere.")
    return said


def reliability_sentence(demo: Demo) -> str:
    """How overconfident the plain model is, and what is left with Bayes."""
    parts = []
    for name in PANELS:
        scores = demo.sets[name].scores
        parts.append(
            f"{demo.sets[name].title}: {scores['plain'].ece:.0%} plain, {scores['temperature'].ece:.0%} with "
            f"temperature, {scores['raised temperature'].ece:.0%} with it raised, {scores['Bayes'].ece:.0%} with Bayes"
        )
    worst = max((test for test in demo.sets.values() if test.scores), key=lambda test: test.scores["Bayes"].ece)
    return (
        f"Expected calibration error on {'; '.join(parts)}. Where Bayes is worst, on {worst.title}, it is still off by "
        f"{worst.scores['Bayes'].ece:.0%}."
    )


def selective_sentence(demo: Demo) -> str:
    """Whether the order of confidence got better: all that answering only when sure depends on."""
    parts = []
    for name in PANELS:
        scores = demo.sets[name].scores
        parts.append(
            f"{demo.sets[name].title} {scores['plain'].aurc:.3f} to {scores['Bayes'].aurc:.3f} "
            f"(answering all: {1 - scores['Bayes'].top1.value:.3f})"
        )
    return (
        "What is won by answering only when sure depends on the order of the confidences alone. The mean error over "
        f"all coverages (lower is better) goes from plain to Bayes: {_listed(parts)}."
    )


def novelty_sentence(demo: Demo) -> str:
    """What the variance alone knows of new styles, new content and new names."""
    known = {test.title: test.novelty for test in demo.sets.values() if test.novelty is not None}
    told = [f"{title} {value:.2f}" for title, value in sorted(known.items(), key=lambda item: -item[1])]
    seen, unseen = (float(demo.label_spread[which].mean()) for which in ("seen", "unseen"))
    return (
        "How well does the spread of an image's embedding alone tell it from new drawings of seen styles? AUROC, where "
        f"0.5 is chance and 1 perfect: {_listed(told)}. The spread of a class name's embedding is {unseen / seen:.2f} "
        f"times as large for the names of unseen concepts (AUROC {demo.label_novelty:.2f})."
    )


def corruption_sentence(demo: Demo) -> str:
    """What happens to both moments from whole to destroyed, computed at the ends of the grid."""
    mean, std = demo.corruption.mean, demo.corruption.std
    return (
        f"Crossing out the caption and greying out the picture takes the expected cosine from {float(mean[0, 0]):.2f} "
        f"to {float(mean[-1, -1]):.2f}. Its standard deviation {_change(std[0, 0], std[-1, 0])} when only "
        f"the caption goes, {_change(std[0, 0], std[0, -1])} when only the picture goes, and "
        f"{_change(std[0, 0], std[-1, -1])} when both go."
    )


def _change(old: Tensor, new: Tensor) -> str:
    return f"{'rises' if new > old else 'falls'} by {abs(float(new / old) - 1):.0%}"


def _against(tests: Sequence[TestSet], method: str) -> dict[str, dict[str, float]]:
    """Nats that Bayes saves against a method on each set, by whether the images say better, level or worse."""
    groups: dict[str, dict[str, float]] = {"better": {}, "level": {}, "worse": {}}
    for test in tests:
        found = paired_t_test(test.scores[method].nll, test.scores["Bayes"].nll)
        how = "level" if found.p >= _LEVEL else "better" if found.difference > 0 else "worse"
        groups[how][test.title] = found.difference
    return groups


def _told(tests: Sequence[TestSet], method: str) -> str:
    """On which sets Bayes is better, level or worse than a method, with the nats gained."""
    groups = {
        how: [f"{title} ({gain:+.2f})" for title, gain in gains.items()]
        for how, gains in _against(tests, method).items()
    }
    return "; ".join(f"{how} on {_listed(which)}" for how, which in groups.items() if which)


def _span(gains: Mapping[str, float]) -> str:
    return f", by {min(gains.values()):.2f} to {max(gains.values()):.2f} nats" if gains else ""


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# Tables and cards -----------------------------------------------------------------------------------------------------


def _table(demo: Demo) -> Table:
    rows: list[list[str]] = []
    best = set()
    for test in demo.sets.values():
        if not test.scores:
            continue
        cells = [test.title]
        for metric in METRICS:
            values = {method: _value(test.scores, method, metric.key) for method in SINGLE}
            shown = {m: f"{100 * value:.1f}" if metric.percent else f"{value:.2f}" for m, value in values.items()}
            winners = _winners(test.scores, metric.key, shown)
            best |= {(len(rows), len(cells) + place) for place, method in enumerate(SINGLE) if method in winners}
            cells += shown.values()
        rows.append(cells)
    columns = ["set", *[HEADINGS[method] for _ in METRICS for method in SINGLE]]
    groups = [("", 1), *[(metric.title, len(SINGLE)) for metric in METRICS]]
    caption = (
        "The same in numbers, and the raised temperature; bold: not worse than the best (paired t-test over the "
        f"images, p = {_LEVEL}; ECE, which is no mean over images: the smallest)."
    )
    return Table(columns, rows, best, caption, groups)


def _winners(scores: Mapping[str, Scores], metric: str, shown: Mapping[str, str]) -> AbstractSet[str]:
    """The methods to set in bold."""
    if metric == "ece":
        smallest = min(shown, key=lambda method: scores[method].ece)
        return {method for method in shown if shown[method] == shown[smallest]}
    losses = {method: found.nll if metric == "nlpd" else 1 - found.correct.double() for method, found in scores.items()}
    return not_worse_than_best(losses, _LEVEL)


def _value(scores: Mapping[str, Scores], method: str, metric: str) -> float:
    found = getattr(scores[method], metric)
    return float(getattr(found, "value", found))


def _card(example: Example) -> Card:
    name, probability = example.plain
    answers = [
        Answer(answer, share, mean, low, high, None if example.truth is None else answer == example.truth)
        for answer, share, mean, low, high in example.answers
    ]
    subtitle = f"It shows: {example.truth}" if example.truth else "None of the names is right"
    note = (
        f"Without a posterior: {name}, {probability:.0%}. Its embedding is more uncertain than {example.rank:.0%} of "
        "the validation images'. "
    )
    if example.entropy < _CERTAIN:
        note += "There is no doubt left about the name."
    else:
        note += (
            f"More data could resolve {example.epistemic / example.entropy:.0%} of the {example.entropy:.2f} nats of "
            "doubt about the name."
        )
    return Card(Image.open(BytesIO(example.image)).convert("RGB"), example.title, subtitle, answers, note)
