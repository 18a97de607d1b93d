"""Sentences that stay true: signs, errors, counts, lists."""

from __future__ import annotations

import math

import pytest

from bayesvlm.evaluation import Estimate
from bayesvlm_paper.wording import (
    all_of,
    by_name,
    counted,
    from_to,
    not_on,
    rounded,
    signed,
    spread,
    with_error,
)


def test_signs() -> None:
    assert [signed(value) for value in (-0.0001, 0.0004, -0.0012)] == ["+0.000", "+0.000", "-0.001"]
    assert signed(-0.04, 1) == "+0.0"
    assert signed(-0.4, 0) == "+0"
    assert [rounded(value, 2) for value in (-0.001, 0.5, -0.5)] == ["0.00", "0.50", "-0.50"]


def test_ranges() -> None:
    assert from_to([0.1, -0.2, 0.05]) == "-0.200 to +0.100"
    assert from_to([-0.0001, 0.0]) == "+0.000"


def test_errors_are_shown_where_there_are_any() -> None:
    assert with_error(Estimate(0.123, 0.045), 1, 100) == "12.3 ± 4.5"
    assert with_error(Estimate(-0.00001, 0.5), signs=True) == "+0.000 ± 0.500"
    assert with_error(Estimate(-0.5, math.nan)) == "-0.500"
    assert spread([1.0, 2.0, 3.0], 1) == "2.0 ± 1.0"
    assert spread([1.0], 1) == "1.0"


@pytest.mark.parametrize(("count", "said"), [(0, "0 seeds"), (1, "1 seed"), (2, "2 seeds")])
def test_counts(count: int, said: str) -> None:
    assert counted(count, "seed") == said


def test_lists() -> None:
    assert [all_of("abc"[:count]) for count in (1, 2, 3)] == ["a", "a and b", "a, b and c"]
    assert not_on([]) == ""
    assert not_on(["a", "b"]) == " (not on a, b)"
    assert by_name({"a": 0.25, "b": -0.0001}) == "0.250 (a), 0.000 (b)"
    assert by_name({"a": 0.25, "b": -0.5}, 1, signs=True) == "+0.2 (a), -0.5 (b)"
