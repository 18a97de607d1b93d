"""The tables of docs/unknown.md from the numbers of unknown.json."""

from __future__ import annotations

from typing import Any

from unknown_data import OUTSIDE, SEVEN, STYLES


def tables(found: dict[str, dict[str, Any]]) -> list[str]:
    """All of them, in the order of the page."""
    return [
        outside_table(found["outside"]),
        rival_table(found["rivals"]),
        flagged_table(found["outside"]),
        *(
            failure_table(found[part], metric)
            for part in ("failures", "kinds")
            for metric in ("auroc", "aurc", "augrc")
        ),
        *combined_tables(found["combined"]),
    ]


def outside_table(models: dict[str, Any]) -> str:
    """AUROC with its interval and FPR95 of each score on each out-set; bold: better than MCM, italic: worse."""
    lines = [_head(["model", "score", *OUTSIDE])]
    for model, scores in models.items():
        for score, sets in scores.items():
            cells = []
            for name in OUTSIDE:
                of = sets[name]
                area = f"{of['auroc']:.3f} ({of['auroc low']:.3f} to {of['auroc high']:.3f})"
                mark = "" if of["p"] >= 0.05 or score == "MCM" else "**" if of["less MCM"] > 0 else "*"
                cells.append(f"{mark}{area}{mark}, {100 * of['fpr95']:.0f} %")
            lines.append(_row([model, score, *cells]))
    return "\n".join(lines)


def rival_table(models: dict[str, Any]) -> str:
    """AUROC of the Bayesian entropy less that of scores without a posterior, and DeLong's p."""
    lines = [_head(["model", "Bayesian entropy less", *OUTSIDE])]
    for model, sets in models.items():
        for rival in next(iter(sets.values())):
            tests = [sets[name][rival] for name in OUTSIDE]
            cells = [f"{test['difference']:+.3f} ± {test['error']:.3f} (p = {test['p']:.2g})" for test in tests]
            lines.append(_row([model, "MCM" if rival == "MCM" else f"entropy, {rival}", *cells]))
    return "\n".join(lines)


def flagged_table(models: dict[str, Any]) -> str:
    """Share flagged at 5 % false alarms among new drawings: wrongly in unseen styles, rightly in the out-sets."""
    lines = [_head(["model", "score", *STYLES, *OUTSIDE])]
    for model, scores in models.items():
        for score, sets in scores.items():
            cells = [f"{100 * sets[name]['flagged']:.0f}" for name in (*STYLES, *OUTSIDE)]
            lines.append(_row([model, score, *cells]))
    return "\n".join(lines)


def failure_table(models: dict[str, Any], metric: str) -> str:
    """One metric of each score on each set; for the AUROC bold is better than the plain MSP, italic worse."""
    lines = [_head(["model", metric, *SEVEN])]
    for model, sets in models.items():
        for score in next(iter(sets.values())):
            cells = []
            for name in SEVEN:
                of = sets[name][score]
                marked = metric == "auroc" and of.get("p", 1) < 0.05
                mark = ("**" if of["less plain"] > 0 else "*") if marked else ""
                cells.append(f"{mark}{of[metric]:.3f}{mark}")
            lines.append(_row([model, score, *cells]))
    return "\n".join(lines)


def combined_tables(models: dict[str, Any]) -> list[str]:
    """AUROC of errors of every combination; and the least of its differences to what is asked of it."""
    lines = [_head(["model", "score", *SEVEN, "worst"])]
    for model, sets in models.items():
        aims = {name: sets[name]["plain" if name == SEVEN[0] else "Bayes"] for name in SEVEN}
        for score in next(iter(sets.values())):
            if "shift" in score:
                continue
            cells = [f"{sets[name][score]:.3f}" for name in SEVEN]
            worst = min(sets[name][score] - aims[name] for name in SEVEN)
            lines.append(_row([model, score, *cells, f"{worst:+.3f}"]))
    told = [_head(["model", "batches", *SEVEN])]
    for model, sets in models.items():
        for key in next(iter(sets.values())):
            if "shift" in key:
                cells = [
                    f"{sets[name][key]:.1e}" if "p" in key[-1] else f"{100 * sets[name][key]:.0f} %" for name in SEVEN
                ]
                told.append(_row([model, key, *cells]))
    return ["\n".join(lines), "\n".join(told)]


def _head(cells: list[str]) -> str:
    return _row(cells) + "\n" + "|---" * len(cells) + "|"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
