"""Writes the tables of docs/unknown.md, and its picture, from what the other scripts kept.

python docs/figures/unknown_tables.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from unknown_data import KNOWN, MODELS, OUTSIDE, PREDICTIVES, SEVEN, STYLES

from bayesvlm.report import save_png, scores_plot
from bayesvlm.report.plots import Metric

HERE = Path(__file__).parent
PAGE = HERE.parent / "unknown.md"
KEPT = ("unknown", "unknown-guarantees", "unknown-epistemic")
CHOSEN = ("MCM", "raised temperature, entropy", "Bayes, entropy", "Bayes, epistemic", "image variance")
KINDS, COVERAGES, RISKS = ("LAC", "APS", "RAPS"), (0.8, 0.9, 0.95), (0.1, 0.2)
JUDGED = ("plain, MSP", "temperature, MSP", "raised temperature, MSP", "Bayes, MSP", "Bayes, epistemic")


def main() -> None:
    kept = [json.loads((HERE / f"{name}.json").read_text()) for name in KEPT]
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), *kept), encoding="utf-8")
    save_png(picture(kept[0]["outside"]), HERE / "unknown.png")


def written(text: str, *kept: dict[str, Any]) -> str:
    """The page with these numbers in its tables."""
    for title, lines in pages(*kept):
        begin, end = f"<!-- unknown: {title} -->\n", "<!-- end -->"
        before, after = text.split(begin)
        text = before + begin + "\n".join([*lines, end]) + after.split(end, 1)[1]
    return text


def picture(models: dict[str, Any]) -> Figure:
    """AUROC of four scores on every out-set, a row per model, with half of the 95 % interval to either side."""
    drawn = ("plain, MSP", "MCM", "raised temperature, entropy", "Bayes, entropy")
    scores: dict[str, dict[str, dict[str, tuple[float, float | None]]]] = {model: {} for model in MODELS}
    for model in MODELS:
        for score in drawn:
            of = {name: models[model][score][name] for name in OUTSIDE}
            scores[model][score] = {
                name: (each["auroc"], (each["auroc high"] - each["auroc low"]) / 2) for name, each in of.items()
            }
    metrics = [Metric(name, f"AUROC, {name.replace('-', ' ')}", "higher") for name in OUTSIDE]
    return scores_plot(scores, metrics)


def pages(
    found: dict[str, Any], promised: dict[str, Any], epistemic: dict[str, Any]
) -> Iterator[tuple[str, list[str]]]:
    """Titles and tables, in the order of the page."""
    for name in OUTSIDE:
        yield f"unfamiliar: {name}", outside_table(found["outside"], name)
    yield "Bayesian entropy against its rivals", rival_table(found["rivals"], OUTSIDE, "entropy, ")
    yield "flagged", flagged_table(found["outside"])
    yield "alarms", alarm_lines(promised["alarms"])
    yield "sets", set_table(promised["sets"])
    yield "sets under a shift", shift_table(promised["sets"])
    yield "selectors", risk_table(promised["risks"])
    yield "failures, AUROC", failure_table(found["failures"], "auroc")
    yield "Bayesian MSP against its rivals", rival_table(found["failure rivals"], SEVEN, "MSP, ")
    yield "failures, AURC / AUGRC", both_areas_table(found["failures"])
    yield "kinds, AUROC", failure_table(found["kinds"], "auroc")
    yield "kinds, AURC / AUGRC", both_areas_table(found["kinds"], (*JUDGED, "ICPE", "ICPE, shrunk"))
    yield "combined", combined_table(found["combined"])
    yield "batches told shifted", shift_told_table(found["combined"])
    yield "epistemic", epistemic_table(epistemic)


def outside_table(models: dict[str, Any], name: str) -> list[str]:
    """AUROC, its interval, and FPR95 of each score; bold: better than MCM by DeLong's test, italic: worse."""
    lines = _head(["score", *MODELS])
    for score in models[MODELS[0]]:
        cells = []
        for model in MODELS:
            of = models[model][score][name]
            area = f"{of['auroc']:.3f} ({of['auroc low']:.3f} to {of['auroc high']:.3f})"
            mark = "" if of["p"] >= 0.05 or score == "MCM" else "**" if of["less MCM"] > 0 else "*"
            cells.append(f"{mark}{area}{mark}, {100 * of['fpr95']:.0f} %")
        lines.append(_row([score, *cells]))
    return lines


def rival_table(models: dict[str, Any], sets: tuple[str, ...], what: str) -> list[str]:
    """AUROC of the Bayesian score less that of a rival, with its standard error; bold or italic where p < 0.05."""
    lines = _head(["model", "less", *sets])
    for model in MODELS:
        for rival in models[model][sets[0]]:
            cells = []
            for name in sets:
                test = models[model][name][rival]
                mark = "" if test["p"] >= 0.05 else "**" if test["difference"] > 0 else "*"
                cells.append(f"{mark}{test['difference']:+.3f}{mark} ± {test['error']:.3f}")
            lines.append(_row([model, rival if rival == "MCM" else what + rival, *cells]))
    return lines


def flagged_table(models: dict[str, Any]) -> list[str]:
    """Percent flagged at 5 % false alarms among new drawings: wrongly in unseen styles, rightly in the out-sets."""
    lines = _head(["model", "score", *STYLES, *OUTSIDE])
    for model in MODELS:
        for score in CHOSEN:
            cells = [f"{100 * models[model][score][name]['flagged']:.0f}" for name in (*STYLES, *OUTSIDE)]
            lines.append(_row([model, score, *cells]))
    return lines


def alarm_lines(models: dict[str, Any]) -> list[str]:
    """By alpha: what is flagged, and how often it is within the bounds, over scores and models."""
    lines = _head(["alpha", "flagged", "splits within the bound of 490 fresh images", "draws within `Detector.bound`"])
    keys = ("rate", "splits within the bound of so many fresh images", "draws within Detector.bound")
    for alpha in ("0.01", "0.05", "0.1"):
        each = [of for model in MODELS for key, of in models[model].items() if key.endswith(f", {alpha}")]
        cells = []
        for key in keys:
            values = [100 * of[key] for of in each]
            digits = 1 if key == "rate" else 0
            spread = f"{min(values):.{digits}f} to {max(values):.{digits}f}"
            cells.append(f"{sum(values) / len(values):.1f} % ({spread})")
        lines.append(_row([f"{100 * float(alpha):.0f} %", *cells]))
    return lines


def set_table(sets: dict[str, Any]) -> list[str]:
    """Coverage and mean size on fresh new drawings."""
    lines = _head(["model", "kind", "nominal", *PREDICTIVES])
    for model in MODELS:
        for kind in KINDS:
            for nominal in COVERAGES:
                cells = [sets[model][f"{way}, {kind}, {nominal}, {KNOWN}"] for way in PREDICTIVES]
                shown = [f"{100 * each['coverage']:.1f} %, {each['size']:.1f}" for each in cells]
                lines.append(_row([model, kind, f"{100 * nominal:.0f} %", *shown]))
    return lines


def shift_table(sets: dict[str, Any], nominal: float = 0.9) -> list[str]:
    """The mean over the unseen styles, and the one that is farthest off, for one nominal coverage."""
    lines = _head(["model", "kind", *PREDICTIVES])
    for model in MODELS:
        for kind in KINDS:
            cells = []
            for way in PREDICTIVES:
                each = [sets[model][f"{way}, {kind}, {nominal}, {style}"] for style in STYLES]
                mean = {key: sum(of[key] for of in each) / len(each) for key in ("coverage", "size")}
                least = min(of["coverage"] for of in each)
                cells.append(f"{100 * mean['coverage']:.0f} % ({100 * least:.0f}), {mean['size']:.0f}")
            lines.append(_row([model, kind, *cells]))
    return lines


def risk_table(risks: dict[str, Any]) -> list[str]:
    """Share answered and the share of it that is wrong; how often the promise is kept."""
    lines = _head(["model", "risk", "confidence of", "splits, draws that keep it", *(KNOWN, *STYLES)])
    for model in MODELS:
        for risk in RISKS:
            for way in PREDICTIVES:
                of = risks[model][f"{way}, {risk}"]
                kept = " / ".join(f"{100 * of[f'{each} at most the risk']:.0f} %" for each in ("splits", "draws"))
                cells = []
                for name in (KNOWN, *STYLES):
                    coverage, wrong = 100 * of[f"{name}, coverage"], 100 * of[f"{name}, risk"]
                    cells.append(f"{coverage:.1f}: {wrong:.0f}" if coverage >= 0.05 else "none")
                lines.append(_row([model, f"{100 * risk:.0f} %", way, kept, *cells]))
    return lines


def failure_table(models: dict[str, Any], metric: str) -> list[str]:
    """One metric of each score on each set; bold: better than the plain MSP by DeLong's test, italic: worse."""
    lines = _head(["model", "score", *SEVEN])
    for model in MODELS:
        for score in models[model][SEVEN[0]]:
            cells = []
            for name in SEVEN:
                of = models[model][name][score]
                mark = "" if of.get("p", 1) >= 0.05 else "**" if of["less plain"] > 0 else "*"
                cells.append(f"{mark}{of[metric]:.3f}{mark}")
            lines.append(_row([model, score, *cells]))
    return lines


def both_areas_table(models: dict[str, Any], scores: tuple[str, ...] = JUDGED) -> list[str]:
    lines = _head(["model", "score", *SEVEN])
    for model in MODELS:
        for score in scores:
            of = [models[model][name][score] for name in SEVEN]
            lines.append(_row([model, score, *(f"{each['aurc']:.3f} / {each['augrc']:.3f}" for each in of)]))
    return lines


def combined_table(models: dict[str, Any]) -> list[str]:
    """AUROC of errors of every combination; and the least of its differences to what is asked of it."""
    lines = _head(["model", "score", *SEVEN, "worst"])
    for model in MODELS:
        sets = models[model]
        aims = {name: sets[name]["plain" if name == KNOWN else "Bayes"] for name in SEVEN}
        for score in sets[KNOWN]:
            if "shift" in score:
                continue
            worst = min(sets[name][score] - aims[name] for name in SEVEN)
            lines.append(_row([model, score, *(f"{sets[name][score]:.3f}" for name in SEVEN), f"{worst:+.3f}"]))
    return lines


def shift_told_table(models: dict[str, Any]) -> list[str]:
    lines = _head(["model", "batches of", *SEVEN])
    for model in MODELS:
        for key in models[model][KNOWN]:
            if key.startswith("told shifted"):
                shares = [f"{100 * models[model][name][key]:.0f} %" for name in SEVEN]
                lines.append(_row([model, key.rsplit(" ", 1)[1], *shares]))
    return lines


def epistemic_table(found: dict[str, Any]) -> list[str]:
    """Rank correlation with 512 draws, the least to the largest over nine sets; the mean over theirs; AUROCs."""
    ways = ("128 draws", "no draws", "entropy")
    lines = _head(
        ["model", "way", "rank correlation", "mean over that of 512 draws", "AUROC, unseen concepts", "flags"]
    )
    for model in MODELS:
        for way in ("512 draws", *ways):
            of = [by_way[way] for by_way in found[model].values() if way in by_way]
            ranks, ratios = [each.get("correlation", 1) for each in of], [each.get("ratio", 1) for each in of]
            areas = [f"{each['auroc']:.3f}" for each in of if "auroc" in each]
            span = [f"{min(each):.{digits}f} to {max(each):.{digits}f}" for each, digits in ((ranks, 3), (ratios, 2))]
            lines.append(_row([model, way, *(["1", "1"] if way == "512 draws" else span), *areas]))
    return lines


def _head(cells: list[str]) -> list[str]:
    return [_row(cells), "|---" * len(cells) + "|"]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
