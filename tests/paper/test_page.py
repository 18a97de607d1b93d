"""The page of the reproduction: every item, every claim, every exhibit, and its pictures."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from bayesvlm import BayesVLMError
from bayesvlm.report.blocks import Table
from bayesvlm.report.theme import NARROW
from bayesvlm_paper.exhibits import HeatMaps, LearningCurves, Lines, Panel, Quadrants, Series
from bayesvlm_paper.finding import Claim, Finding
from bayesvlm_paper.item import Item, Reproduced
from bayesvlm_paper.page import claims_markdown, save_figures, write_reproduction
from bayesvlm_paper.plans import Plan

LINES = Lines(
    (
        Panel(
            "left <panel>", "n", "trace", (Series("image", [1, 2, 4], [1.0, 1.1, 1.2], [0.1, 0.1, 0.1]),), log_x=True
        ),
        Panel(
            "right",
            "n",
            "trace",
            (Series("image, printed", [1, 2], [3, 4], dashed=True), Series("text", [1, 2], [3, 5])),
        ),
    ),
    "Two panels.",
    "Lines that rise.",
)
EXHIBITS = (
    Table(["", "a"], [["x", "1.25"], ["y", "2.50"]], frozenset({(1, 1)}), "a table"),
    LINES,
    HeatMaps({"m": [[1.0, 2.0]]}, ["r"], ["c1", "c2"], "rows", "columns", "c", "alt"),
    LearningCurves({"nlpd": {"epig": {"0": (1.0, None), "10": (0.5, 0.1)}}}, "c", "alt"),
    Quadrants("t", {"before": {"entropy": [0.1, 1.0], "error": [0.2, 0.9], "correct": [1.0, 0.0]}}, 8, "c", "alt"),
)


def done(name: str, *claims: Claim, exhibits: tuple[object, ...] = EXHIBITS) -> Reproduced:
    finding = Finding(f"{name} is so.", claims, exhibits, ["A remark."])  # type: ignore[arg-type]
    item = Item(
        name, f"The title of {name}", "Is it so?", "zero-shot", Plan(), Plan(), lambda lab: {}, lambda n: finding
    )
    return Reproduced(item, f"bayesvlm reproduce {name}", {}, finding, 12.0)


def test_the_page_has_questions_answers_claims_and_commands(tmp_path: Path) -> None:
    first = done("one", Claim.judged("It <holds>.", True, "3 of 3"), Claim.judged("It fails.", False, "0 of 3"))
    second = done("two", Claim.untested("It is big.", "no data"), exhibits=())
    third = done("more", Claim.judged("Ours: it helps.", True, "2 of 2"), exhibits=())
    failed = Reproduced(second.item, "bayesvlm reproduce three", {}, None, 0.0, "there is no such set")
    page = write_reproduction(
        [first, second, third, failed], tmp_path / "report.html", "a world", "bayesvlm reproduce all"
    )
    text = page.read_text()
    for part in (
        "Of the paper's claims 1 holds, 1 does not, 1 cannot be tested here.",
        "And what we say beyond it?",
        "It &lt;holds&gt;.",
        "<strong>one is so.</strong>",
        "<em>Is it so?</em>",
        "bayesvlm reproduce one",
        "bayesvlm reproduce all",
        "there is no such set",
        "Lines that rise.",
        "<strong>2.50</strong>",
        "A remark.",
    ):
        assert part in text, part
    assert text.count("<svg") == 8  # four exhibits that are drawn, each for a desk and for a phone


def test_claims_as_a_table_to_quote() -> None:
    found = done("one", Claim.judged("It | holds.", True, "3 of 3"), Claim.judged("It fails.", False, "0 of 3"))
    assert claims_markdown([found]).splitlines()[2:] == [
        "| It \\| holds. | holds | 3 of 3 | `one` |",
        "| It fails. | **does not hold** | 0 of 3 | `one` |",
    ]


def test_one_item_has_a_page_of_its_own(tmp_path: Path) -> None:
    text = write_reproduction([done("one")], tmp_path / "one.html", "a world", "").read_text()
    assert "<h1>The title of one</h1>" in text
    assert "Make it again" not in text


def test_pictures_are_saved(tmp_path: Path) -> None:
    paths = save_figures(done("one"), tmp_path)
    assert [path.name for path in paths] == ["one-1.png", "one-2.png", "one-3.png", "one-4.png"]
    for path in paths:
        with Image.open(path) as image:
            assert min(image.size) > 100
    assert [path.name for path in save_figures(done("two", exhibits=(LINES,)), tmp_path)] == ["two.png"]


def test_lines_keep_their_colours_and_dashes() -> None:
    drawn = LINES.draw(NARROW)
    left, right = drawn.axes
    assert left.get_xscale() == "log"
    assert [line.get_linestyle() for line in right.lines] == ["--", "-"]
    assert left.lines[0].get_color() == right.lines[0].get_color() != right.lines[1].get_color()
    assert list(left.lines[0].get_ydata()) == [1.0, 1.1, 1.2]
    assert len(left.collections) == 1  # the band


def test_lines_that_cannot_be_drawn_are_refused() -> None:
    with pytest.raises(BayesVLMError, match="at least one"):
        Lines((), "c", "a").draw()
    broken = Lines((Panel("p", "x", "y", (Series("s", [1.0], [float("nan")]),)),), "c", "a")
    with pytest.raises(BayesVLMError, match="finite"):
        broken.draw()


def test_a_claim_holds_or_does_not_or_cannot_be_tested() -> None:
    assert Claim.judged("c", True, "f").verdict == "holds"
    assert Claim.judged("c", False, "f").verdict == "does not hold"
    assert Claim.untested("c", "f").verdict == "cannot be tested here"
    with pytest.raises(BayesVLMError, match="perhaps"):
        Claim("c", "perhaps", "f")  # type: ignore[arg-type]
