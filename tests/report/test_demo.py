"""The demo's page: each sentence says what the numbers say, whichever way they fall."""

from __future__ import annotations

import io
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from bayesvlm.core.tuning import TauGrid, TauPoint
from bayesvlm.evaluation import Estimate, Reliability, RiskCoverage
from bayesvlm.experiments.corruption import LEVELS, Corruption
from bayesvlm.experiments.demo import SPREAD_ONLY, TESTS, Demo, Example
from bayesvlm.experiments.demo import TestSet as MeasuredSet
from bayesvlm.experiments.methods import SINGLE
from bayesvlm.report import Commands, Gallery, Page, Plot, Table, Text, render
from bayesvlm.report import demo as report
from bayesvlm.report.demo import (
    corruption_sentence,
    demo_page,
    lead,
    next_commands,
    novelty_sentence,
    reliability_sentence,
    selective_sentence,
    verdicts,
    write_demo,
)

OPENMOJI = "OpenMoji black"


@dataclass(frozen=True)
class Given:
    """`Scores` whose figures are told, not computed."""

    correct: torch.Tensor
    nll: torch.Tensor
    ece: float
    aurc: float
    reliability: Reliability
    risk_coverage: RiskCoverage

    @property
    def top1(self) -> Estimate:
        return Estimate.of(self.correct)

    @property
    def nlpd(self) -> Estimate:
        return Estimate.of(self.nll)


def scores(top1: float = 0.5, nlpd: float = 2.0, ece: float = 0.1, aurc: float = 0.3, wobble: float = 0.0) -> Given:
    """Of a thousand images; `wobble` is the standard deviation of their NLL, unlike any other method's."""
    bins = torch.linspace(0.05, 0.95, 10)
    reliability = Reliability(torch.linspace(0, 1, 11), bins, bins / 2, torch.full((10,), 5))
    curve = RiskCoverage(torch.tensor([0.5, 1.0]), torch.tensor([0.0, 1 - top1]))
    correct = torch.arange(1000) < round(1000 * top1)
    signs = 1.0 - 2 * (torch.arange(1000, dtype=torch.float64) % 2)
    return Given(correct, nlpd + wobble * signs, ece, aurc, reliability, curve)


def measured(name: str, novelty: float | None = 0.9, **of: Given) -> MeasuredSet:
    title, kind = {**TESTS, **SPREAD_ONLY}[name]
    found = {} if name == "flags" else {method: of.get(method, scores()) for method in SINGLE}
    novelty = None if name == "new-drawing" else novelty
    return MeasuredSet(title, kind, 1234, 1531, found, torch.linspace(0.1, 0.3, 20), novelty)


def corruption(std: Mapping[tuple[int, int], float] | None = None) -> Corruption:
    stds = torch.full((6, 6), 0.2)
    for place, value in (std or {}).items():
        stds[place] = value
    mean = torch.linspace(0.8, 0.1, 36).reshape(6, 6)
    return Corruption(LEVELS, 77, mean, stds, stds.square())


def picture(colour: str = "red") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), colour).save(buffer, "webp")
    return buffer.getvalue()


def example(title: str = "the surest right answer", truth: str | None = "cat", entropy: float = 2.0) -> Example:
    answers = [("cat", 0.6, 0.5, 0.4, 0.6), ("dog", 0.3, 0.45, 0.3, 0.6), ("pizza", 0.05, 0.1, -0.1, 0.3)]
    return Example(title, picture(), truth, answers, ("dog", 0.71), 0.5, entropy, 0.83)


def make(changes: Mapping[str, MeasuredSet] | None = None, **fields: object) -> Demo:
    """A demo whose methods are all level on every set, but for what a test changes."""
    points = tuple(TauPoint(tau, nlpd, {}) for tau, nlpd in ((1.0, 2.5), (12.3, 2.25), (100.0, 2.75)))
    demo = Demo(
        model="some-model",
        pairs=4321,
        grid=TauGrid(points),
        temperature=1.75,
        raised_temperature=2.5,
        lam={"image": 11.0, "text": 22.0},
        sets={name: measured(name) for name in (*TESTS, *SPREAD_ONLY)} | dict(changes or {}),
        label_spread={"seen": torch.full((5,), 0.2), "unseen": torch.full((3,), 0.3)},
        label_novelty=0.77,
        corruption=corruption(),
        examples=[example(), example("none is right", None)],
        seconds={"fit": 2.0, "tune": 3.4},
    )
    return replace(demo, **fields)  # type: ignore[arg-type]


def against(
    bayes: float, wobble: float = 0.0, plain: float = 3.0, temperature: float = 2.0, raised: float = 2.0
) -> Demo:
    """OpenMoji black with these NLPDs; on the other sets all methods are level."""
    of = {
        "plain": scores(nlpd=plain),
        "temperature": scores(nlpd=temperature),
        "raised temperature": scores(nlpd=raised),
        "Bayes": scores(nlpd=bayes, wobble=wobble),
    }
    return make({"openmoji-black": measured("openmoji-black", **of)})


# Sentences -----------------------------------------------------------------------------------------------------------


def test_the_lead_is_about_line_drawings() -> None:
    of = {"plain": scores(nlpd=5.678, ece=0.614), "Bayes": scores(nlpd=4.321, ece=0.092)}
    text = lead(make({"openmoji-black": measured("openmoji-black", **of)}))
    assert text.startswith("`some-model` was given a Gaussian posterior")
    assert "calibration error goes from 61% to 9%" in text
    assert "from 5.68 to 4.32 nats" in text


def test_bayes_against_the_plain_model() -> None:
    assert verdicts(make())[0] == "Against the plain model Bayes lowers the NLPD on **0 of 7** sets."
    assert "on **1 of 7** sets, by 0.75 to 0.75 nats" in verdicts(against(bayes=2.25))[0]
    lost = verdicts(against(bayes=3.5))
    assert lost[0].endswith("on **0 of 7** sets.")
    assert lost[1] == "It raises it on OpenMoji black, by 0.50 to 0.50 nats."
    assert "on **0 of 7** sets" in verdicts(against(bayes=2.99, wobble=1))[0], "a thousand images cannot tell"
    everywhere = {name: measured(name, plain=scores(nlpd=4.0)) for name in TESTS}
    assert "on **7 of 7** sets, by 2.00 to 2.00 nats" in verdicts(make(everywhere))[0]


@pytest.mark.parametrize(
    ("bayes", "wobble", "word", "gain"),
    [
        (1.5, 0, "better", "+0.50"),
        (1.5, 1, "better", "+0.50"),
        (1.9, 1, "better", "+0.10"),  # its standard error is 0.03
        (1.95, 1, "level", "+0.05"),
        (2.05, 1, "level", "-0.05"),
        (2.1, 1, "worse", "-0.10"),
        (2.01, 0, "worse", "-0.01"),
        (2.5, 1, "worse", "-0.50"),
    ],
)
def test_bayes_against_temperature(bayes: float, wobble: float, word: str, gain: str) -> None:
    (text,) = [said for said in verdicts(against(bayes, wobble, raised=9.0)) if "temperature scaling" in said]
    assert text.startswith("Against temperature scaling it is ")
    groups = dict(re.findall(r"(better|level|worse) on ([^;]*?)(?:;| \(nats gained)", text))
    assert f"{OPENMOJI} ({gain})" in groups.pop(word)
    assert not any(OPENMOJI in names for names in groups.values()), "a set is in one group only"
    assert "new drawings, seen styles (+0.00)" in (text if word == "level" else groups["level"])


@pytest.mark.parametrize(
    ("bayes", "word", "gain"), [(1.5, "better", "+0.50"), (2.0, "level", "+0.00"), (2.1, "worse", "-0.10")]
)
def test_temperature_scaling_is_never_judged_without_the_raised_one(bayes: float, word: str, gain: str) -> None:
    said = verdicts(against(bayes, temperature=9.0))
    place = next(number for number, text in enumerate(said) if text.startswith("Against temperature scaling it is "))
    text = said[place + 1]
    assert text.startswith("Against a temperature raised as far as one standard error of the validation NLPD allows it")
    groups = dict(re.findall(r"(better|level|worse) on ([^;]*?)(?:;|\.$)", text))
    assert f"{OPENMOJI} ({gain})" in groups.pop(word)
    assert not any(OPENMOJI in names for names in groups.values())


def test_a_group_without_sets_is_not_mentioned() -> None:
    assert verdicts(make())[1].startswith("Against temperature scaling it is level on new drawings, seen styles")
    better = {name: measured(name, Bayes=scores(nlpd=1.0)) for name in TESTS}
    text = verdicts(make(better))[1]
    assert "level on" not in text
    assert "worse on" not in text
    assert text.count("(+1.00)") == 7
    assert "flags" not in text, "they have no right answer"
    assert "OpenMoji black (+1.00) and unseen concepts (+1.00)" in text


def test_what_it_costs_in_top1() -> None:
    assert verdicts(make())[-1] == "It costs no top-1 anywhere."
    lost = {
        "openmoji-black": measured("openmoji-black", plain=scores(top1=0.50), Bayes=scores(top1=0.488)),
        "emojione-black": measured("emojione-black", plain=scores(top1=0.50), Bayes=scores(top1=0.496)),
        "new-drawing": measured("new-drawing", plain=scores(top1=0.50), Bayes=scores(top1=0.70)),
    }
    assert verdicts(make(lost))[-1] == "It costs at most 1.2 points of top-1 (OpenMoji black)."
    gained = {"new-drawing": measured("new-drawing", Bayes=scores(top1=0.6))}
    assert verdicts(make(gained))[-1] == "It costs no top-1 anywhere."


def test_calibration_error_and_where_it_is_worst() -> None:
    of = {
        "plain": scores(ece=0.41),
        "temperature": scores(ece=0.22),
        "raised temperature": scores(ece=0.17),
        "Bayes": scores(ece=0.13),
    }
    worst = measured("emojione-colour", Bayes=scores(ece=0.37))
    text = reliability_sentence(make({"openmoji-black": measured("openmoji-black", **of), "emojione-colour": worst}))
    assert "OpenMoji black: 41% plain, 22% with temperature, 17% with it raised, 13% with Bayes" in text
    assert text.endswith("Where Bayes is worst, on EmojiOne colour, it is still off by 37%.")


def test_selective_prediction() -> None:
    of = {"plain": scores(aurc=0.4321), "Bayes": scores(aurc=0.1234)}
    text = selective_sentence(make({"openmoji-black": measured("openmoji-black", **of)}))
    assert "OpenMoji black 0.432 to 0.123 (answering all: " in text


def test_what_is_noticed_comes_first() -> None:
    text = novelty_sentence(make({"openmoji-black": measured("openmoji-black", 0.95), "flags": measured("flags", 0.4)}))
    told = text.partition("perfect: ")[2].partition(". The spread")[0]
    assert told.startswith("OpenMoji black 0.95, ")
    assert told.endswith(" and flags 0.40")
    assert "new drawings" not in told, "they are what the others are told from"


def test_names_never_trained_on() -> None:
    assert "is 1.50 times as large for the names of unseen concepts (AUROC 0.77)" in novelty_sentence(make())
    smaller = make(label_spread={"seen": torch.tensor([0.2, 0.4]), "unseen": torch.tensor([0.15])})
    assert "is 0.50 times as large" in novelty_sentence(smaller)


def test_destroying_pictures_and_captions() -> None:
    stds = {(-1, 0): 0.3, (0, -1): 0.1, (-1, -1): 0.25}  # rows are captions
    text = corruption_sentence(make(corruption=corruption(stds)))
    assert "takes the expected cosine from 0.80 to 0.10" in text
    assert "rises by 50% when only the caption goes" in text
    assert "falls by 50% when only the picture goes" in text
    assert "rises by 25% when both go" in text


def blocks(page: Page, kind: type) -> list:
    return [block for section in page.sections for block in section.blocks if isinstance(block, kind)]


def undrawn(demo: Demo) -> Page:
    """The page with empty figures, for tests that look at everything else: drawing them takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "figures", lambda *_: defaultdict(Figure))
        return demo_page(demo)


# The table -----------------------------------------------------------------------------------------------------------


def table_of(demo: Demo) -> Table:
    (found,) = blocks(undrawn(demo), Table)
    return found


def bold(demo: Demo, title: str) -> dict[str, list[str]]:
    """For each metric, the methods in bold in a set's row."""
    table = table_of(demo)
    (row,) = [number for number, cells in enumerate(table.rows) if cells[0] == title]
    groups = [name for name, span in table.groups for _ in range(span)]
    found: dict[str, list[str]] = {name: [] for name in groups[1:]}
    for place, column in sorted(table.best):
        if place == row:
            found[groups[column]].append(SINGLE[(column - 1) % len(SINGLE)])
    return found


def test_every_scored_set_has_a_row() -> None:
    table = table_of(make())
    assert [row[0] for row in table.rows] == [title for title, _ in TESTS.values()]
    assert table.columns == ["set", *3 * ["plain", "temp.", "raised", "Bayes"]]


def test_cells_and_which_are_bold() -> None:
    of = {
        "plain": scores(top1=0.52, nlpd=3.0, ece=0.3),
        "temperature": scores(top1=0.51, nlpd=1.5, ece=0.05),
        "raised temperature": scores(top1=0.49, nlpd=1.75, ece=0.06),
        "Bayes": scores(top1=0.5, nlpd=2.0, ece=0.04),
    }
    demo = make({"openmoji-black": measured("openmoji-black", **of)})
    (row,) = [cells for cells in table_of(demo).rows if cells[0] == OPENMOJI]
    figures = "52.0 51.0 49.0 50.0", "3.00 1.50 1.75 2.00", "30.0 5.0 6.0 4.0"
    assert row[1:] == " ".join(figures).split()
    assert bold(demo, OPENMOJI) == {"Top-1 (%)": ["plain"], "NLPD (nats)": ["temperature"], "ECE (%)": ["Bayes"]}


def test_what_cannot_be_told_apart_is_bold_together() -> None:
    level = bold(make(), OPENMOJI)
    assert level == {metric: list(SINGLE) for metric in ("Top-1 (%)", "NLPD (nats)", "ECE (%)")}
    for bayes, wobble, winners in ((2.05, 1, [*SINGLE]), (2.1, 1, [*SINGLE[:-1]])):
        of = {"Bayes": scores(nlpd=bayes, wobble=wobble)}
        demo = make({"openmoji-black": measured("openmoji-black", **of)})
        assert bold(demo, OPENMOJI)["NLPD (nats)"] == winners
    of = {"plain": scores(ece=0.0501), "temperature": scores(ece=0.0502), "Bayes": scores(ece=0.052)}
    of["raised temperature"] = scores(ece=0.053)
    demo = make({"openmoji-black": measured("openmoji-black", **of)})
    assert bold(demo, OPENMOJI)["ECE (%)"] == ["plain", "temperature"]


# The page ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page() -> Page:
    return demo_page(make())


@pytest.fixture(scope="module")
def html(page: Page) -> str:
    return render(page)


class Parsed(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(html)
        self.text = " ".join(self.words.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data


def test_it_needs_nothing_but_itself(html: str) -> None:
    assert "http" not in html
    assert "@import" not in html
    tags = Parsed(html).tags
    assert not {tag for tag, _ in tags} & {"script", "link", "iframe", "object"}
    sources = [attributes[name] for _, attributes in tags for name in ("src", "href") if attributes.get(name)]
    assert all(str(source).startswith(("#", "data:image/png;base64,")) for source in sources)
    assert sum(tag == "img" for tag, _ in tags) == 2, "a picture for each example"


def test_every_figure_is_there_twice(page: Page, html: str) -> None:
    assert len(blocks(page, Plot)) == 6
    assert all(plot.narrow is not None for plot in blocks(page, Plot))
    assert html.count("<svg") == 12, "for a wide screen and for a phone"


def test_facts_and_sentences_reach_the_reader(page: Page, html: str) -> None:
    assert page.facts == {
        "model": "some-model",
        "fitted on": "4,321 image-caption pairs",
        "pseudo-count tau": "12.3",
        "temperature": "1.75, raised 2.5",
        "time": "5.4 s",
    }
    text, demo = Parsed(html).text, make()
    for sentence in (*verdicts(demo), reliability_sentence(demo), novelty_sentence(demo), corruption_sentence(demo)):
        assert sentence.replace("**", "") in text
    assert lead(demo).replace("`", "") in text
    assert "2.250, is at tau = 12.3, with lam = 11 (image) and 22 (text)" in text
    assert "on average over 77 pairs" in text


def test_no_markup_is_left_over(html: str) -> None:
    text = Parsed(html[html.index("<body>") :]).text
    assert "**" not in text
    assert "`" not in text
    assert not re.search(r"\bnan\b|\binf\b", text)


def test_cards(page: Page) -> None:
    (gallery,) = blocks(page, Gallery)
    known, unknown = gallery.cards
    assert known.subtitle == "It shows: cat"
    assert [answer.right for answer in known.answers] == [True, False, False]
    assert unknown.subtitle == "None of the names is right"
    assert [answer.right for answer in unknown.answers] == [None, None, None]
    assert "Without a posterior: dog, 71%" in known.note
    assert "more uncertain than 83% of the validation images'" in known.note
    assert "More data could resolve 25% of the 2.00 nats of doubt about the name." in known.note
    assert known.image.size == (64, 64)


def test_an_answer_without_any_doubt() -> None:
    (gallery,) = blocks(undrawn(make(examples=[replace(example(), epistemic=0.0, entropy=0.0)])), Gallery)
    assert "There is no doubt left" in gallery.cards[0].note


def test_the_next_commands_are_shown(page: Page) -> None:
    (commands,) = blocks(page, Commands)
    assert commands.lines == next_commands("demo", "emoji-clip")
    assert len(commands.lines) == 3


def test_it_is_written_to_a_file(tmp_path: Path, page: Page, html: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "demo_page", lambda demo, folder: page)
    path = write_demo(make(), tmp_path / "deep")
    assert path.read_text(encoding="utf-8") == html


def test_the_number_of_names_is_the_model_s() -> None:
    few = {name: replace(measured(name), classes=118) for name in TESTS}
    texts = [block.text for block in blocks(undrawn(make(few)), Text)]
    assert not any("1,531" in text for text in texts)


def test_a_loss_is_not_called_a_gain() -> None:
    text = verdicts(against(bayes=3.5))[0]
    assert "-" not in text.partition("sets")[2]
