"""What prediction sets, detectors and selectors promise, over random splits: tables of docs/unknown.md.

    python docs/figures/unknown_guarantees.py      # ten minutes; unknown-guarantees.json

New drawings are halved at random, one half to calibrate on and one to measure on; the styles that no model was trained
on are measured with the same thresholds, and nothing is promised for them. Kept results are not measured again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from scipy.stats import beta, betabinom
from torch import Tensor
from unknown_data import KNOWN, MODELS, PREDICTIVES, STYLES, Seen, Set

from bayesvlm.safety import conformal, familiarities
from bayesvlm.safety.selective import selective_threshold

HERE = Path(__file__).parent
KINDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "LAC": lambda probs, u: conformal.lac(probs),
    "APS": conformal.aps,
    "RAPS": conformal.raps,
}
COVERAGES, SET_SPLITS = (0.8, 0.9, 0.95), 50
ALARMS, ALARM_SPLITS = (0.01, 0.05, 0.1), 100
RISKS, RISK_SPLITS, CONFIDENCE = (0.05, 0.1, 0.2), 100, 0.95
FLAGGING = {
    "Bayesian entropy": ("bayes", "entropy"),
    "Bayesian MSP": ("bayes", "msp"),
    "MCM": ("plain", "mcm"),
    "plain MSP": ("plain", "msp"),
}
Means = dict[str, dict[str, float]]


def main() -> None:
    path = HERE / "unknown-guarantees.json"
    found: dict[str, dict[str, Means]] = json.loads(path.read_text()) if path.exists() else {}
    for part, measure in (("sets", prediction_sets), ("alarms", false_alarms), ("risks", selective_risks)):
        for name in MODELS:
            if name not in found.setdefault(part, {}):
                found[part][name] = measure(Seen(name))
                path.write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")
                print(part, name, "done", flush=True)


def populations(count: int, times: int) -> Iterator[Tensor]:
    """Rows drawn with replacement, half as many: the drawings are the population then, and its true rates are known."""
    for seed in range(times):
        yield torch.randint(count, (count // 2,), generator=torch.Generator().manual_seed(5000 + seed))


def splits(count: int, times: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Random halves of `count` rows."""
    for seed in range(times):
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        yield order[: count // 2], order[count // 2 :]


# Prediction sets ------------------------------------------------------------------------------------------------------


def prediction_sets(seen: Seen) -> Means:
    """Coverage and mean size, by predictive distribution, kind, nominal coverage and set."""
    totals: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for predictive in PREDICTIVES:
        for kind, score in KINDS.items():
            at = {name: _linear(seen, seen.set(name), predictive, score, place) for place, name in enumerate(_sets())}
            for split, (calibrate, fresh) in enumerate(splits(len(seen.known.images), SET_SPLITS)):
                u = torch.rand(len(seen.known.images), generator=torch.Generator().manual_seed(1000 + split)).double()
                scores, own = at[KNOWN](u)
                for nominal in COVERAGES:
                    limit = conformal.threshold(own[calibrate], 1 - nominal)
                    key = f"{predictive}, {kind}, {nominal}"
                    _add(totals[f"{key}, {KNOWN}"], scores[fresh], own[fresh], limit)
                    totals[f"{key}, {KNOWN}"]["limit"].append(limit)
            for name in STYLES:  # one random number per image here: it is the thresholds that vary
                u = torch.rand(len(seen.set(name).images), generator=torch.Generator().manual_seed(0)).double()
                scores, own = at[name](u)
                for nominal in COVERAGES:
                    key = f"{predictive}, {kind}, {nominal}"
                    for limit in totals[f"{key}, {KNOWN}"]["limit"][::5]:
                        _add(totals[f"{key}, {name}"], scores, own, limit)
    return {key: _averages(values) for key, values in totals.items()}


def _linear(
    seen: Seen, of: Set, predictive: str, score: Callable[[Tensor, Tensor], Tensor], place: int
) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """The scores of all classes, and of each image's own, for random numbers [N]: they are linear in them."""
    probs = seen.probs(predictive, of.images, of.classes)
    low = score(probs, torch.zeros(len(probs), dtype=torch.float64))
    rise = score(probs, torch.ones(len(probs), dtype=torch.float64)) - low

    def scores(u: Tensor) -> tuple[Tensor, Tensor]:
        found = torch.addcmul(low, rise, u[:, None])
        return found, conformal.of_labels(found, of.labels)

    return scores


def _sets() -> tuple[str, ...]:
    return (KNOWN, *STYLES)


def _add(to: dict[str, list[float]], scores: Tensor, own: Tensor, limit: float) -> None:
    sizes = (scores <= limit).sum(dim=1).double()
    to["coverage"].append(float((own <= limit).double().mean()))
    to["size"].append(float(sizes.mean()))
    to["median size"].append(float(sizes.median()))


def _averages(values: dict[str, list[float]]) -> dict[str, float]:
    found = {name: sum(of) / len(of) for name, of in values.items() if name != "limit"}
    coverage = torch.tensor(values["coverage"])
    return {**found, "coverage, standard deviation": float(coverage.std())}


# Detectors ------------------------------------------------------------------------------------------------------------


def false_alarms(seen: Seen) -> Means:
    """Shares of images flagged, by score and alpha: familiar ones over splits, and those of each style."""
    found: Means = {}
    for title, (predictive, score) in FLAGGING.items():
        of = {
            name: familiarities(seen.vlm, seen.set(name).images, seen.known.classes, [score], predictive=predictive)[
                score
            ]
            for name in _sets()
        }
        for alpha in ALARMS:
            rates, within, own_bound, at_most = [], 0, 0, 0
            shifted: dict[str, list[float]] = {name: [] for name in STYLES}
            for calibrate, fresh in splits(len(of[KNOWN]), ALARM_SPLITS):
                rate = _flagged(of[KNOWN][calibrate], of[KNOWN][fresh], alpha)
                n, m = len(calibrate), len(fresh)
                place = int((n + 1) * alpha + 1e-9)
                rates.append(rate)
                at_most += rate <= alpha
                own_bound += rate <= beta.ppf(CONFIDENCE, place, n + 1 - place)
                within += rate <= betabinom.ppf(CONFIDENCE, m, place, n + 1 - place) / m
                for name in STYLES:
                    shifted[name].append(_flagged(of[KNOWN][calibrate], of[name], alpha))
            kept = 0
            for calibrate in populations(len(of[KNOWN]), ALARM_SPLITS):
                place = int((len(calibrate) + 1) * alpha + 1e-9)
                bound = beta.ppf(CONFIDENCE, place, len(calibrate) + 1 - place)
                kept += _flagged(of[KNOWN][calibrate], of[KNOWN], alpha) <= bound
            found[f"{title}, {alpha}"] = {
                "draws within Detector.bound": kept / ALARM_SPLITS,
                "rate": sum(rates) / len(rates),
                "largest": max(rates),
                "splits at most alpha": at_most / len(rates),
                "splits within Detector.bound": own_bound / len(rates),
                "splits within the bound of so many fresh images": within / len(rates),
                **{name: sum(each) / len(each) for name, each in shifted.items()},
            }
    return found


def _flagged(calibration: Tensor, scores: Tensor, alpha: float) -> float:
    return float((conformal.p_values(calibration, scores) <= alpha + 1e-12).double().mean())


# Selectors ------------------------------------------------------------------------------------------------------------


def selective_risks(seen: Seen) -> Means:
    """Coverage and risk, by predictive distribution and risk: on fresh halves over splits, and in each style."""
    found: Means = {}
    for predictive in PREDICTIVES:
        answers = {}
        for name in _sets():
            of = seen.set(name)
            confidence, label = seen.probs(predictive, of.images, of.classes).double().max(dim=1)
            answers[name] = confidence, label == of.labels
        for risk in RISKS:
            values: dict[str, list[float]] = defaultdict(list)
            for calibrate, fresh in splits(len(seen.known.images), RISK_SPLITS):
                confidence, correct = answers[KNOWN]
                fit = selective_threshold(confidence[calibrate], correct[calibrate], risk, CONFIDENCE)
                for name, rows in ((KNOWN, fresh), *((style, slice(None)) for style in STYLES)):
                    kept = answers[name][0][rows] >= fit.threshold
                    wrong = float((kept & ~answers[name][1][rows]).sum())
                    values[f"{name}, coverage"].append(float(kept.double().mean()))
                    values[f"{name}, risk"].append(wrong / max(1, int(kept.sum())))
                    values[f"{name}, wrong"].append(wrong / len(kept))
            risks, kept_risk = torch.tensor(values[f"{KNOWN}, risk"]), 0
            confidence, correct = answers[KNOWN]
            for calibrate in populations(len(confidence), RISK_SPLITS):
                fit = selective_threshold(confidence[calibrate], correct[calibrate], risk, CONFIDENCE)
                kept = confidence >= fit.threshold
                kept_risk += int((kept & ~correct).sum()) <= risk * int(kept.sum())
            means = {name: sum(of) / len(of) for name, of in values.items()}
            for name in _sets():  # of all that is answered, in whatever split
                wrong, coverage = means.pop(f"{name}, wrong"), means[f"{name}, coverage"]
                means[f"{name}, risk"] = wrong / coverage if coverage else 0.0
            found[f"{predictive}, {risk}"] = means | {
                "draws at most the risk": kept_risk / RISK_SPLITS,
                "splits at most the risk": float((risks <= risk).double().mean()),
                "splits that answer": float((torch.tensor(values[f"{KNOWN}, coverage"]) > 0).double().mean()),
            }
    return found


if __name__ == "__main__":
    main()
