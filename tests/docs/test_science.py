"""What docs/science.md and the page of intervals claim is what the kept figures say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
KNOWN_STYLES = ("emojione-colour", "openmoji-colour", "fluent-high-contrast", "emojione-black", "openmoji-black")
NO_SHIFT = ("new-drawing",)
LEVEL = 0.05
PAGES = sorted([*DOCS.glob("**/*.md"), *DOCS.parent.glob("notebooks/*.ipynb")])


def kept(name: str) -> Any:
    return json.loads((DOCS / "figures" / f"{name}.json").read_text(encoding="utf-8"))


def row(claim: str) -> str:
    """Verdict and figure of the claim that begins so."""
    page = (DOCS / "science.md").read_text(encoding="utf-8")
    [line] = [line for line in page.splitlines() if line.startswith(f"| {claim} |")]
    return line.split(" | ", 1)[1]


def over(rival: str, sets: Iterable[str], models: Iterable[str] | None = None) -> list[float]:
    """NLPD of Bayes less that of another method; below zero, Bayes is better."""
    found = kept("world")
    scores = [found[m]["sets"][s]["scores"] for m in models or found for s in sets]
    return [of["Bayes"]["nlpd"] - of[rival]["nlpd"] for of in scores]


def two(value: float) -> str:
    return f"{abs(value):.2f}"


def test_against_the_plain_model() -> None:
    every = over("plain", (*NO_SHIFT, *KNOWN_STYLES, "unseen-concepts"))
    assert max(every) < 0
    assert f"by {-max(every):.1f} to {-min(every):.1f} nats" in row("lower NLPD than the plain model")
    world = kept("world").values()
    lost = [
        of["scores"]["plain"]["top1"] - of["scores"]["Bayes"]["top1"]
        for m in world for of in m["sets"].values() if of["scores"]
    ]  # fmt: skip
    assert f"at most {100 * max(lost):.1f} points" in row("at the cost of accuracy")


def test_against_a_temperature() -> None:
    said = row("better than temperature scaling")
    new = over("temperature", NO_SHIFT)
    assert min(new) > 0, "worse on new drawings with every model"
    assert f"worse on new drawings, by {two(min(new))} to {two(max(new))} nats" in said
    hardened = over("temperature", KNOWN_STYLES, ("emoji-clip", "emoji-siglip"))
    assert f"from {two(max(hardened))} nats worse to {two(min(hardened))} better" in said
    shifted = over("temperature", KNOWN_STYLES[1:], ("emoji-clip-colour",))
    assert f"{two(max(shifted))} to {two(min(shifted))} better for the model that never saw line art" in said
    unseen = over("temperature", ("unseen-concepts",))
    assert f"unseen names ({two(max(unseen))} to {two(min(unseen))} nats)" in said
    raised = [*over("raised temperature", KNOWN_STYLES[1:], ("emoji-clip-colour",))]
    raised += over("raised temperature", ("unseen-concepts",))
    assert f"{two(min(raised))} to {two(max(raised))} nats worse" in row("better than a temperature raised on purpose")
    assert max(over("raised temperature", NO_SHIFT)) < 0, "yes without shift"


def test_unfamiliar_images_and_wrong_answers() -> None:
    found = kept("unknown")
    said = row("finds unfamiliar images better than scores without a posterior")
    by_rival: dict[str, list[dict[str, float]]] = {}
    for model in found["rivals"].values():
        for where in model.values():
            for rival, of in where.items():
                by_rival.setdefault(rival, []).append(of)
    assert {len(each) for each in by_rival.values()} == {9}
    for rival, each in by_rival.items():
        ahead = [of["difference"] for of in each]
        assert min(ahead) > 0, rival
        assert f"by {min(ahead):.3f} to {max(ahead):.3f}" in said, rival
        assert sum(of["p"] < LEVEL for of in each) in (7, 8), rival
    said = row("finds wrong answers better")
    wrong = found["failure rivals"].values()
    known = {
        rival: [model[s][rival] for model in wrong for s in (*NO_SHIFT, *KNOWN_STYLES)]
        for rival in ("temperature", "raised temperature")
    }
    better = [sum(of["p"] < LEVEL and of["difference"] > 0 for of in each) for each in known.values()]
    assert f"better in {better[0]} of {len(known['temperature'])} comparisons (raised: {better[1]})" in said
    worst = min(of["difference"] for each in known.values() for of in each)
    assert f"worse, by up to {-worst:.3f}" in said
    unseen = [of["difference"] for model in wrong for of in model["unseen-concepts"].values()]
    assert f"where names are new, by {min(unseen):.3f} to {max(unseen):.3f}" in said


def test_search() -> None:
    every = [of for model in kept("captions").values() for ways in model.values() for of in ways.values()]
    single = [of for of in every if of["answers_per_query"] == 1]
    better = {}
    for name in ("probit", "p_best"):
        tests = [of["doubts"][name]["over cosine"] for of in single]
        better[name] = sum(p < LEVEL and difference < 0 for difference, _, p in tests)
    said = row("search: doubt says which first answers are wrong, better than the cosine")
    assert f"`probit` on {better['probit']} of {len(single)}, `p_best` on {better['p_best']}" in said
    said = row("search: the order by expected cosine or bounds finds more")
    firsts = [{name: ranking["recall@1"][0] for name, ranking in of["rankings"].items()} for of in every]
    for name in ("expected cosine", "lower bound"):
        points = 100 * max(abs(each[name] - each["cosine"]) for each in firsts)
        assert f"within {points:.1f}" in said, f"{name}: {points}"


def test_what_overlap_says() -> None:
    """Intervals without overlap settle an order; with it, they do not say that it is open."""
    found = kept("concepts")["orders"]
    page = " ".join((DOCS / "concepts" / "interval.md").read_text(encoding="utf-8").split())
    new, lines = found["new-drawing"], found["openmoji-black"]
    name = "overlap, and kept in 97.5 % of draws"
    assert f"Of {new['drawings']} new drawings of food the best two names of {new['overlap']} overlap" in page
    assert f"{new[name]} of these {new['overlap']} have them" in page
    assert f"of {lines['drawings']} line drawings {lines['overlap']} and {lines[name]} " in page
    assert f"their correlation is {new['correlation']:.2f} on average" in page
    assert f"{lines['correlation']:.2f}" == f"{new['correlation']:.2f}"
    assert min(of["least kept without overlap"] for of in found.values()) > 0.975


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_no_page_says_that_overlap_is_openness(path: Path) -> None:
    text = " ".join(path.read_text(encoding="utf-8").split())
    assert not re.search(r"overlap\W*(mean that )?the order[^.;]{0,30} is open", text)
