"""What the posterior costs when it predicts: run time of one image, and floating-point operations.

Neither needs weights or data: the paper's architectures are made at random, or not made at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.core.head import BayesHead, PlainHead
from bayesvlm.models import resolve_device
from bayesvlm.report.blocks import Table
from bayesvlm_paper import architectures, catalogue
from bayesvlm_paper.architectures import ARCHITECTURES
from bayesvlm_paper.catalogue import Judgement
from bayesvlm_paper.finding import Claim, Finding, Numbers
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.printed import published_table
from bayesvlm_paper.timing import CLASSES, LEAST, machine, random_vlm, run_times
from bayesvlm_paper.wording import all_of, signed

MINIMAL = 4.69
"""Percent: the most that the paper prints for the run time."""
COMPARABLE = 0.11
"""Percent: what the paper says the operations rise by."""
VIEWS = 64
"""Of an image, in test-time augmentation: the paper's number, whatever other items are run with."""
ABOUT = 8
"""How far from 80 a factor may be and still be called 80."""
WIDE = 256
"""Pixels: the side of the images that the paper's count for SigLIP belongs to."""
_WIDE_TOWER = f"image tower of SigLIP-Base at {WIDE} pixels"


# Run time ------------------------------------------------------------------------------------------------------------


def measure_runtime(lab: Lab) -> Numbers:
    """The time from pixels to probabilities, with the posterior and without."""
    device = resolve_device(lab.device)
    found: Numbers = {"machine": machine(device), "models": {}, "skipped": {}}
    for name in ARCHITECTURES:
        lab.say(f"time      {name} on {device}")
        try:
            found["models"][name] = run_times(name, device)
        except BayesVLMError as error:
            found["skipped"][name] = str(error)
    return found


def tell_runtime(numbers: Mapping[str, Any]) -> Finding:
    """What the posterior adds to it."""
    found, where = numbers["models"], numbers["machine"]
    here = str(where["name"]) + ("" if where["device"].startswith("cuda") else f", threads: {where['threads']}")
    remarks = catalogue.remarks("runtime")
    if unsure := [name for name in found if _is_least(found[name])]:
        remarks.append(
            f"Whole runs of {all_of(unsure)} vary too much, or are too few, to tell 1 %: there the overhead is that of "
            "the heads timed by themselves, which find their weights in the cache: the least it can be."
        )
    remarks += [f"{name} was not timed: {reason}" for name, reason in numbers["skipped"].items()]
    return Finding(_runtime_answer(found, here), _runtime_claims(found), [_runtime_table(found, here)], remarks)


Times = Mapping[str, Mapping[str, Any]]  # architecture -> `with_overheads`


def _is_least(times: Mapping[str, Any]) -> bool:
    """Whether its overhead is only the least it can be."""
    return bool(times["overhead decided by"] == LEAST)


def _runtime_answer(found: Times, here: str) -> str:
    if not found:
        return "Not run: no model fits into memory."
    each = ", ".join(
        f"{'at least ' if _is_least(times) else ''}{signed(times['overhead'], 2)} % for {name}"
        for name, times in found.items()
    )
    ways = dict.fromkeys(times["overhead decided by"] for times in found.values())
    small = [_is_least(times) for times in found.values() if times["overhead"] <= 1]
    open_ = f" and cannot be told for {sum(small)}" if any(small) else ""
    return (
        f"The posterior changes the time of one image from pixels to probabilities by {each}: that is within 1 % for "
        f"{small.count(False)} of {len(found)} architectures{open_}, by {' or '.join(ways)} ({here}; float32, "
        f"{CLASSES} classes)."
    )


def _runtime_claims(found: Times) -> list[Claim]:
    more = {name: times["overhead"] for name, times in found.items()}
    first: Judgement = (None, "no architecture was timed")
    by_size: Judgement = (None, "CLIP-Base or CLIP-Huge was not timed")
    if more:
        most = max(more, key=more.__getitem__)
        largest = f"{signed(more[most], 2)} % ({most}, by {found[most]['overhead decided by']})"
        figure = f"at most {largest}, {'' if more[most] <= 1 else 'not '}within 1 %"
        if any(map(_is_least, found.values())):
            figure = f"the largest that was found is {largest}"
        first = _bounded(found, dict.fromkeys(found, more[most] <= MINIMAL), figure)
    if {"CLIP-Base", "CLIP-Huge"} <= set(found):
        base, huge = more["CLIP-Base"], more["CLIP-Huge"]
        figure = f"{signed(base, 2)} % for CLIP-Base, {signed(huge, 2)} % for CLIP-Huge"
        by_size = _bounded(found, {"CLIP-Base": base < 5, "CLIP-Huge": huge < 1}, figure)
    return catalogue.judged("runtime", first, by_size, minimal=MINIMAL)


def _bounded(found: Times, within: Mapping[str, bool], figure: str) -> Judgement:
    """That an overhead is at most so much: the least it can be may refute that, and cannot confirm it."""
    least = [name for name in within if _is_least(found[name])]
    if not least or not all(within.values()):
        return all(within.values()), figure
    why = f"by the heads alone, whole runs being too noisy or too few, {all_of(least)} may take longer than that"
    return None, f"{figure}; {why}"


def _runtime_table(found: Times, here: str) -> Table:
    published = published_table("runtime")
    rows = []
    for name, times in found.items():
        by = times["overhead by"]
        unsure = "" if times["uncertainty"] is None else f" ± {times['uncertainty']:.2f}"
        overheads = [by["medians"], by["means"], by["heads"], by["captured runs"], times["overhead of classify"]]
        first, *others = ("" if value is None else signed(value, 2) for value in overheads)
        whole = [times["whole"][way][what] for what in ("median", "mean") for way in ("plain", "bayes")]
        wanted = (("run time", "Vanilla"), ("run time", "BayesVLM"), ("relative increase", "BayesVLM"))
        printed = [published.value(metric, name, method) for metric, method in wanted]
        ours, theirs = (["" if value is None else f"{value:.2f}" for value in values] for values in (whole, printed))
        rows.append([name, str(times["runs"]), *ours, f"{first}{unsure}", *others, *theirs])
    caption = (
        f"{here}; float32, one image at a time, {CLASSES} classes; plain and Bayes take turns. Overheads are in "
        "percent of plain: the median of a turn's difference (± half of its 95 % interval), of the means, of the heads "
        "timed by themselves, of runs captured in CUDA graphs (where nothing waits for the host), of classify. "
        "Captured runs decide where there are any, then medians that are certain to 1 %, then the heads. The paper: "
        "Tesla V100, means of 1000 runs, in what must be milliseconds."
    )
    columns = ["", "runs", "plain", "Bayes", "plain", "Bayes", "medians", "means", "heads", "captured", "classify"]
    groups = [("", 2), ("median, ms", 2), ("mean, ms", 2), ("overhead, %", 5), ("paper", 3)]
    return Table([*columns, "plain", "Bayes", "overhead, %"], rows, caption=caption, groups=groups)


# Operations ----------------------------------------------------------------------------------------------------------


def inference_flops(name: str, views: int = VIEWS) -> dict[str, float]:
    """GFLOPs from the pixels of one image to its probabilities, of each method."""
    encode, vlm = architectures.image_encoder(name, "meta"), random_vlm(name, "cpu")
    shape = architectures.architecture(name)
    d, p, p_text = shape.widths
    texts = Features(torch.ones(CLASSES, p_text))
    plain, bayes = vlm.plain_head(texts), vlm.head(texts)

    def cost(head: PlainHead | BayesHead, images: int) -> float:
        residual = torch.ones(images, d) if vlm.image.residual else None
        tower = architectures.counted(lambda: encode(torch.empty(images, *shape.pixels, device="meta")))
        return (tower + architectures.counted(lambda: head.probs(torch.ones(images, p), residual))) / 1e9

    return {"plain": cost(plain, 1), "TTA": cost(plain, views), "Bayes": cost(bayes, 1)}


def measure_flops(lab: Lab) -> Numbers:
    """Operations of plain, TTA and Bayes."""
    lab.say(f"count     {', '.join(ARCHITECTURES)}")
    return {
        "GFLOPs": {name: inference_flops(name) for name in ARCHITECTURES},
        "views": VIEWS,
        "classes": CLASSES,
        "image tower": {name: architectures.flops_per_image(name) / 1e9 for name in ARCHITECTURES},
        _WIDE_TOWER: architectures.flops_per_image("SigLIP-Base", side=WIDE) / 1e9,
        "text tower": {name: architectures.flops_per_text(name) / 1e9 for name in ARCHITECTURES},
        "parameters": {name: architectures.parameters(name) for name in ARCHITECTURES},
    }


def tell_flops(numbers: Mapping[str, Any]) -> Finding:
    """What the posterior and views add, beside the printed costs."""
    found, wide = numbers["GFLOPs"], numbers[_WIDE_TOWER]
    published = published_table("flops")
    theirs = {"plain": "Vanilla", "TTA": "TTA", "Bayes": "BayesVLM"}
    printed = {
        name: {ours: published.value("cost", name, method) or math.nan for ours, method in theirs.items()}
        for name in found
    }
    more = {name: 100 * (each["Bayes"] / each["plain"] - 1) for name, each in found.items()}
    times, printed_times = ({n: each["TTA"] / each["plain"] for n, each in of.items()} for of in (found, printed))
    least, most = min(more, key=more.__getitem__), max(more, key=more.__getitem__)
    answer = (
        f"The posterior adds {more[least]:.3f} % ({least}) to {more[most]:.3f} % ({most}) to the operations for an "
        f"image; test-time augmentation with {VIEWS} views takes {max(times.values()):.1f} times as many."
    )
    few, many = min(printed_times.values()), max(printed_times.values())
    claims = catalogue.judged(
        "flops",
        (
            more["CLIP-Base"] <= COMPARABLE,
            f"{more['CLIP-Base']:.3f} % for CLIP-Base (of all at most {more[most]:.3f} %, {most})",
        ),
        (
            all(abs(each - 80) <= ABOUT for each in times.values()),
            f"{max(times.values()):.1f} times: the factor is the number of views, {VIEWS} (wanted: 80 ± {ABOUT}); the "
            f"printed costs are {few:.1f} to {many:.1f} times",
        ),
        comparable=COMPARABLE,
    )
    gaps = [100 * (printed[n]["plain"] / found[n]["plain"] - 1) for n in found if n != "SigLIP-Base"]
    siglip = printed["SigLIP-Base"]["plain"]
    towers = {**numbers["image tower"], "SigLIP-Base": wide}
    passes = [printed[name]["TTA"] / tower for name, tower in towers.items()]
    remarks = [
        f"The printed costs of the CLIPs are {min(gaps):.2f} to {max(gaps):.2f} % above ours.",
        f"The printed {siglip:.2f} for SigLIP-Base is {siglip / found['SigLIP-Base']['plain']:.2f} times ours at 224 "
        f"pixels, and {100 * (siglip / wide - 1):.1f} % above its image tower at {WIDE} pixels ({wide:.2f}): it fits "
        "that size, not the other.",
        f"The printed costs of TTA are {min(passes):.2f} to {max(passes):.2f} times the image towers (SigLIP-Base at "
        f"{WIDE} pixels): as many as {round(sum(passes) / len(passes))} passes cost, not {VIEWS}.",
    ]
    rows = [
        [
            name,
            *(f"{each[way]:.2f} | {printed[name][way]:.2f}" for way in theirs),
            f"{more[name]:.3f}",
            f"{times[name]:.1f}",
        ]
        for name, each in found.items()
    ]
    caption = (
        f"GFLOPs from the pixels of one image to the probabilities of {CLASSES} classes, behind the bar as printed. A "
        "multiplication with an addition counts as two; products, convolutions and attention are counted, norms and "
        "activation functions are not."
    )
    table = Table(["", *theirs, "Bayes adds, %", "TTA, times plain"], rows, caption=caption)
    return Finding(answer, claims, [table], remarks)


ITEMS = {"runtime": (measure_runtime, tell_runtime), "flops": (measure_flops, tell_flops)}
