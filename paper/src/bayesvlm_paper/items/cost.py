"""What the posterior costs when it predicts: run time of one image, and floating-point operations.

Neither needs weights or data: the paper's architectures are made at random, or not made at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.core.head import BayesHead, PlainHead
from bayesvlm.models import resolve_device
from bayesvlm.report.blocks import Table
from bayesvlm_paper.architectures import (
    ARCHITECTURES,
    architecture,
    counted,
    flops_per_image,
    flops_per_text,
    image_encoder,
    parameters,
)
from bayesvlm_paper.finding import Claim, Finding, Numbers
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.printed import PublishedTable, published_table
from bayesvlm_paper.timing import CLASSES, RunTimes, machine, random_vlm, run_times
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
    found: dict[str, Any] = {}
    skipped: dict[str, str] = {}
    for name in ARCHITECTURES:
        lab.say(f"time      {name} on {device}")
        try:
            found[name] = run_times(name, device).to_json()
        except BayesVLMError as error:
            skipped[name] = str(error)
    return {"machine": machine(device), "models": found, "skipped": skipped}


def tell_runtime(numbers: Mapping[str, Any]) -> Finding:
    """What the posterior adds to it."""
    found = {name: RunTimes.from_json(times) for name, times in numbers["models"].items()}
    where = numbers["machine"]
    here = str(where["name"]) + ("" if where["device"].startswith("cuda") else f", threads: {where['threads']}")
    remarks = [
        "The architectures are the paper's, the machine is not: compare the overheads, not the times. Weights and "
        "posterior are random, which changes no time.",
        "classify is the way for many images and any classes: it embeds the classes anew and checks its inputs.",
        *_by_heads(found),
        *(f"{name} was not timed: {reason}" for name, reason in numbers["skipped"].items()),
    ]
    table = _runtime_table(found, published_table("runtime"), here)
    return Finding(_runtime_answer(found, here), _runtime_claims(found), [table], remarks)


def _by_heads(found: Mapping[str, RunTimes]) -> list[str]:
    """What a reader should know where whole runs decide nothing."""
    names = [name for name, times in found.items() if times.least]
    if not names:
        return []
    return [
        f"Whole runs of {all_of(names)} vary too much, or are too few, to tell 1 %: there the overhead is that of "
        "the heads timed by themselves, which find their weights in the cache: the least it can be."
    ]


def _runtime_answer(found: Mapping[str, RunTimes], here: str) -> str:
    if not found:
        return "Not run: no model fits into memory."
    each = ", ".join(
        f"{'at least ' if times.least else ''}{signed(times.overhead, 2)} % for {name}" for name, times in found.items()
    )
    ways = dict.fromkeys(times.decided_by for times in found.values())
    within = sum(times.overhead <= 1 and not times.least for times in found.values())
    unknown = sum(times.overhead <= 1 and times.least for times in found.values())
    open_ = f" and cannot be told for {unknown}" if unknown else ""
    return (
        f"The posterior changes the time of one image from pixels to probabilities by {each}: that is within 1 % for "
        f"{within} of {len(found)} architectures{open_}, by {' or '.join(ways)} ({here}; float32, {CLASSES} classes)."
    )


def _runtime_claims(found: Mapping[str, RunTimes]) -> list[Claim]:
    minimal = f"BayesVLM adds minimal run time: 0.35 % (CLIP-Huge) to {MINIMAL} % (CLIP-Base)."
    by_size = "BayesVLM adds under 5 % run time for CLIP-Base and less than 1 % for huge models."
    claims = []
    if found:
        most = max(found, key=lambda name: found[name].overhead)
        overhead = found[most].overhead
        within = "" if overhead <= 1 else "not "
        figure = f"at most {signed(overhead, 2)} % ({most}, by {found[most].decided_by}), {within}within 1 %"
        if any(times.least for times in found.values()):
            figure = f"the largest that was found is {signed(overhead, 2)} % ({most}, by {found[most].decided_by})"
        claims.append(_bounded(minimal, found, dict.fromkeys(found, overhead <= MINIMAL), figure))
    else:
        claims.append(Claim.untested(minimal, "no architecture was timed"))
    if {"CLIP-Base", "CLIP-Huge"} <= set(found):
        base, huge = found["CLIP-Base"].overhead, found["CLIP-Huge"].overhead
        figure = f"{signed(base, 2)} % for CLIP-Base, {signed(huge, 2)} % for CLIP-Huge"
        claims.append(_bounded(by_size, found, {"CLIP-Base": base < 5, "CLIP-Huge": huge < 1}, figure))
    else:
        claims.append(Claim.untested(by_size, "CLIP-Base or CLIP-Huge was not timed"))
    return claims


def _bounded(text: str, found: Mapping[str, RunTimes], within: Mapping[str, bool], figure: str) -> Claim:
    """That an overhead is at most so much: the least it can be may refute that, and cannot confirm it."""
    least = [name for name in within if found[name].least]
    if not least or not all(within.values()):
        return Claim.judged(text, all(within.values()), figure)
    why = f"by the heads alone, whole runs being too noisy or too few, {all_of(least)} may take longer than that"
    return Claim.untested(text, f"{figure}; {why}")


def _runtime_table(found: Mapping[str, RunTimes], published: PublishedTable, here: str) -> Table:
    rows = []
    for name, times in found.items():
        medians = [f"{times.whole[way].median:.2f}" for way in ("plain", "bayes")]
        means = [f"{times.whole[way].mean:.2f}" for way in ("plain", "bayes")]
        captured = times.by_capture()
        unsure = "" if times.uncertainty is None else f" ± {times.uncertainty:.2f}"
        overheads = [
            f"{signed(times.by_median(), 2)}{unsure}",
            signed(times.by_mean(), 2),
            signed(times.by_head(), 2),
            "" if captured is None else signed(captured, 2),
            signed(times.classify_overhead, 2),
        ]
        rows.append([name, str(times.runs), *medians, *means, *overheads, *_printed_times(published, name)])
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


def _printed_times(published: PublishedTable, name: str) -> list[str]:
    wanted = (("run time", "Vanilla"), ("run time", "BayesVLM"), ("relative increase", "BayesVLM"))
    values = [published.value(metric, name, method) for metric, method in wanted]
    return ["" if value is None else f"{value:.2f}" for value in values]


# Operations ----------------------------------------------------------------------------------------------------------


def inference_flops(name: str, views: int = VIEWS) -> dict[str, float]:
    """GFLOPs from the pixels of one image to its probabilities, of each method."""
    encode, vlm = image_encoder(name, "meta"), random_vlm(name, "cpu")
    d, p, p_text = architecture(name).widths
    texts = Features(torch.ones(CLASSES, p_text))

    def tower(images: int) -> int:
        return counted(lambda: encode(torch.empty(images, *architecture(name).pixels, device="meta")))

    def head(made: PlainHead | BayesHead, images: int) -> int:
        residual = torch.ones(images, d) if vlm.image.residual else None
        return counted(lambda: made.probs(torch.ones(images, p), residual))

    plain, bayes = vlm.plain_head(texts), vlm.head(texts)
    return {
        "plain": (tower(1) + head(plain, 1)) / 1e9,
        "TTA": (tower(views) + head(plain, views)) / 1e9,
        "Bayes": (tower(1) + head(bayes, 1)) / 1e9,
    }


def measure_flops(lab: Lab) -> Numbers:
    """Operations of plain, TTA and Bayes."""
    found = {}
    for name in ARCHITECTURES:
        lab.say(f"count     {name}")
        found[name] = inference_flops(name)
    return {
        "GFLOPs": found,
        "views": VIEWS,
        "classes": CLASSES,
        "image tower": {name: flops_per_image(name) / 1e9 for name in found},
        _WIDE_TOWER: flops_per_image("SigLIP-Base", side=WIDE) / 1e9,
        "text tower": {name: flops_per_text(name) / 1e9 for name in found},
        "parameters": {name: parameters(name) for name in found},
    }


def tell_flops(numbers: Mapping[str, Any]) -> Finding:
    """What the posterior and views add, beside the printed costs."""
    found = numbers["GFLOPs"]
    more = {name: 100 * (each["Bayes"] / each["plain"] - 1) for name, each in found.items()}
    times = {name: each["TTA"] / each["plain"] for name, each in found.items()}
    least, most = min(more, key=more.__getitem__), max(more, key=more.__getitem__)
    answer = (
        f"The posterior adds {more[least]:.3f} % ({least}) to {more[most]:.3f} % ({most}) to the operations for an "
        f"image; test-time augmentation with {VIEWS} views takes {max(times.values()):.1f} times as many."
    )
    published = published_table("flops")
    printed_times = [_printed(published, "TTA", name) / _printed(published, "Vanilla", name) for name in found]
    claims = [
        Claim.judged(
            f"Inference costs are comparable: BayesVLM adds {COMPARABLE} % GFLOPs to CLIP-Base.",
            more["CLIP-Base"] <= COMPARABLE,
            f"{more['CLIP-Base']:.3f} % for CLIP-Base (of all at most {more[most]:.3f} %, {most})",
        ),
        Claim.judged(
            "Test-time augmentation costs 80 times as much.",
            all(abs(each - 80) <= ABOUT for each in times.values()),
            f"{max(times.values()):.1f} times: the factor is the number of views, {VIEWS} (wanted: 80 ± {ABOUT}); the "
            f"printed costs are {min(printed_times):.1f} to {max(printed_times):.1f} times",
        ),
    ]
    remarks = _explained(found, numbers["image tower"], numbers[_WIDE_TOWER], published)
    return Finding(answer, claims, [_flops_table(found, published)], remarks)


def _flops_table(found: Mapping[str, Mapping[str, float]], published: PublishedTable) -> Table:
    methods = {"plain": "Vanilla", "TTA": "TTA", "Bayes": "BayesVLM"}
    rows = []
    for name, each in found.items():
        cells = [f"{each[ours]:.2f} | {_printed(published, theirs, name):.2f}" for ours, theirs in methods.items()]
        added = f"{100 * (each['Bayes'] / each['plain'] - 1):.3f}"
        rows.append([name, *cells, added, f"{each['TTA'] / each['plain']:.1f}"])
    caption = (
        f"GFLOPs from the pixels of one image to the probabilities of {CLASSES} classes, behind the bar as printed. A "
        "multiplication with an addition counts as two; products, convolutions and attention are counted, norms and "
        "activation functions are not."
    )
    return Table(["", *methods, "Bayes adds, %", "TTA, times plain"], rows, caption=caption)


def _explained(
    found: Mapping[str, Mapping[str, float]], towers: Mapping[str, float], wide: float, published: PublishedTable
) -> list[str]:
    """Where the printed numbers come from, as far as ours tell."""
    clips = [name for name in found if name != "SigLIP-Base"]
    gaps = [100 * (_printed(published, "Vanilla", name) / found[name]["plain"] - 1) for name in clips]
    siglip = _printed(published, "Vanilla", "SigLIP-Base")
    counted_towers = {**towers, "SigLIP-Base": wide}
    passes = [_printed(published, "TTA", name) / tower for name, tower in counted_towers.items()]
    return [
        f"The printed costs of the CLIPs are {min(gaps):.2f} to {max(gaps):.2f} % above ours.",
        f"The printed {siglip:.2f} for SigLIP-Base is {siglip / found['SigLIP-Base']['plain']:.2f} times ours at 224 "
        f"pixels, and {100 * (siglip / wide - 1):.1f} % above its image tower at {WIDE} pixels ({wide:.2f}): it fits "
        "that size, not the other.",
        f"The printed costs of TTA are {min(passes):.2f} to {max(passes):.2f} times the image towers (SigLIP-Base at "
        f"{WIDE} pixels): as many as {round(sum(passes) / len(passes))} passes cost, not {VIEWS}.",
    ]


def _printed(published: PublishedTable, method: str, name: str) -> float:
    value = published.value("cost", name, method)
    assert value is not None
    return value


ITEMS = {"runtime": (measure_runtime, tell_runtime), "flops": (measure_flops, tell_flops)}
