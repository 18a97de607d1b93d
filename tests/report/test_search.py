"""The page of a search: what was found, drawn on one axis, and nothing that a name or a query could break."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.report import Findings, Found, Page, Section, render
from bayesvlm.report.axes import tenths
from bayesvlm.report.page import small_picture_address
from bayesvlm.report.search import SearchReport, search_page
from bayesvlm.retrieval import Hits

MEAN, STD = torch.tensor([0.5, 0.25]).double(), torch.tensor([0.05, 0.1]).double()


@pytest.fixture
def hits(tmp_path: Path) -> Hits:
    path = str(tmp_path / '<i>"it\'s"&.png')
    columns = {"label": ["<script>", None], "source": ["secret", "secret"]}
    return Hits("a <b>cat</b>", (path, "other"), (path, None), MEAN, STD, MEAN, torch.diag(STD**2), 0.1, columns)


def report(hits: Hits, **options: object) -> SearchReport:
    made = SearchReport(place="index", rows=2, model="emoji-clip", hits=[hits], pictures={})
    return replace(made, **options)  # type: ignore[arg-type]


def test_every_hit_with_its_interval(hits: Hits) -> None:
    picture = Image.new("RGB", (300, 200), "red")
    html = render(search_page(report(hits, pictures={"other": picture}), "bayesvlm search index cat"))
    assert re.findall(r'aria-label="(cosine [^"]+)"', html) == [
        "cosine 0.500, 95 % interval 0.40 to 0.60",
        "cosine 0.250, 95 % interval 0.05 to 0.45",
    ]
    low, high = tenths([0.402, 0.054], [0.598, 0.446])
    assert (low, high) == (0.0, 0.6)
    places = [float(found) for found in re.findall(r'class="mean" style="left: ([\d.]+)%', html)]
    assert places == pytest.approx([100 * 0.5 / 0.6, 100 * 0.25 / 0.6], abs=0.01)
    assert html.count("<img") == 1
    assert html.count("no picture") == 1
    assert html == render(search_page(report(hits, pictures={"other": picture}), "bayesvlm search index cat"))


def test_names_are_letters(hits: Hits, tmp_path: Path) -> None:
    html = render(search_page(report(hits)))
    for broken in ("<b>cat", "<i>", "<script>", "secret"):
        assert broken not in html
    assert "a &lt;b&gt;cat&lt;/b&gt;" in html
    (address,) = re.findall(r'<a href="(file:[^"]+)"', html)
    assert address.startswith(f"file://{tmp_path}")
    assert not set("<>'&") & set(address)


def test_level(hits: Hits) -> None:
    html = render(search_page(report(hits, level=0.5)))
    assert "50 % interval 0.47 to 0.53" in html
    assert "a 50 % credible interval" in html


def test_whether_anything_matches(hits: Hits) -> None:
    calibrated = replace(hits, matches=False, p_value=0.01, p_match=torch.tensor([0.3, 0.001]).double())
    shown = render(search_page(report(calibrated)))
    assert "<strong>Nothing here matches</strong>: of queries that have a match, 1 % look" in shown
    assert "30 %" in shown
    assert "&lt;1 %" in shown
    abstained = render(search_page(report(calibrated, abstain=True)))
    assert "So nothing is shown." in abstained
    assert "cosine 0.5" not in abstained


def test_a_photograph_is_a_jpeg_and_a_drawing_is_not() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (400, 300, 3), dtype=np.uint8)
    address = small_picture_address(Image.fromarray(noise))
    assert address.startswith("data:image/jpeg;base64,")
    shown = Image.open(BytesIO(base64.b64decode(address.partition(",")[2])))
    assert max(shown.size) == 256
    drawing = Image.new("RGB", (72, 72), "white")
    ImageDraw.Draw(drawing).line((0, 0, 71, 71), "black")
    assert small_picture_address(drawing).startswith("data:image/png;base64,")
    assert small_picture_address(Image.new("RGBA", (300, 300))).startswith("data:image/png;base64,")


def test_probabilities_are_checked() -> None:
    with pytest.raises(BayesVLMError, match="'best' of 'a' is nan"):
        Found(None, "a", "", 0.1, 0.0, 0.2, {"best": float("nan")})


def test_nothing_found() -> None:
    page = Page("t", "l", {}, [Section("s", [Findings([])])])
    assert "<li>" not in render(page).partition("<main>")[2]
