"""What was found goes to json and comes back whole."""

from __future__ import annotations

import json

import pytest

from bayesvlm import BayesVLMError
from bayesvlm_paper.findings import (
    Claim,
    Finding,
    Grid,
    HeatMaps,
    LearningCurves,
    Lines,
    Panel,
    Quadrants,
    Series,
)

EXHIBITS = (
    Grid(["", "a"], [["x", "1"]], "a caption", [(0, 1)], [("", 1), ("g", 1)]),
    Lines((Panel("t", "x", "y", (Series("s", [1, 2], [3, 4], [0.1, 0.2], True),), True, 1.5),), "c", "alt"),
    HeatMaps({"m": [[1.0, 2.0]]}, ["r"], ["c1", "c2"], "rows", "columns", "c", "alt"),
    LearningCurves({"nlpd": {"epig": {"10": (1.0, None)}}}, "c", "alt"),
    Quadrants("t", {"before": {"entropy": [0.1], "error": [0.2], "correct": [1.0]}}, 8, "c", "alt"),
)


def test_a_finding_comes_back_from_json() -> None:
    finding = Finding("so it is", [Claim("c", "holds", "1 of 1")], EXHIBITS, {"n": 1.5}, ["a remark"])
    written = json.dumps(finding.to_json())
    back = Finding.from_json(json.loads(written))
    assert json.dumps(back.to_json()) == written
    assert [type(exhibit) for exhibit in back.exhibits] == [type(exhibit) for exhibit in EXHIBITS]
    lines = back.exhibits[1]
    assert isinstance(lines, Lines)
    assert lines.panels[0].series[0] == EXHIBITS[1].panels[0].series[0]  # type: ignore[union-attr]
    assert back.claims == finding.claims


def test_a_claim_holds_or_does_not_or_cannot_be_tested() -> None:
    assert Claim.judged("c", True, "f").verdict == "holds"
    assert Claim.judged("c", False, "f").verdict == "does not hold"
    with pytest.raises(BayesVLMError, match="perhaps"):
        Claim("c", "perhaps", "f")  # type: ignore[arg-type]
