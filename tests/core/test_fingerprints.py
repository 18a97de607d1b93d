"""Fingerprints: the same inputs are known again, others are not, and little is kept."""

from __future__ import annotations

import json

import torch

from bayesvlm.core.fingerprints import MOST, fingerprints, found_again, packed


def test_rounding_changes_nothing_and_anything_else_does() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(1, 512, generator=generator) + 0.05 * torch.randn(500, 512, generator=generator)  # much alike
    kept = json.loads(json.dumps(packed(rows)))
    rounded = rows * (1 + 2e-6 * torch.randn(500, 512, generator=generator))
    assert found_again(kept, rounded) == list(range(500))
    assert found_again(kept, rows.double().flip(0)) == list(range(500))
    assert not found_again(kept, rows * 1.01)
    assert not found_again(kept, rows + 1e-2 * torch.randn(500, 512, generator=generator))
    mixed = torch.cat([rows[:2] + 1, rows[7:9]])
    assert found_again(kept, mixed) == [2, 3]


def test_sums_that_do_not_fit_begin_anew_on_both_sides() -> None:
    """Along the signs of a direction the sum is the whole length, twice what 16 bits hold: still the same input."""
    prints = fingerprints(torch.ones(1, 1) * torch.tensor([[1e-30], [1.0], [1e30]]))
    assert prints.dtype == torch.int16
    for scale in (1e-30, 1.0, 1e30):
        rows = scale * torch.tensor([[1.0, 1.0], [1.0, -1.0], [0.3, 0.7]])
        assert found_again(packed(rows), rows * (1 + 1e-6)) == [0, 1, 2]


def test_of_a_large_set_some_are_kept_and_damage_is_no_overlap() -> None:
    generator = torch.Generator().manual_seed(0)
    many = torch.randn(MOST + 1000, 16, generator=generator)
    kept = packed(many)
    assert kept["images"] == MOST + 1000
    assert len(found_again(kept, many)) == MOST
    assert not found_again(kept, torch.randn(20_000, 16, generator=generator))
    assert not found_again(kept, torch.zeros(0, 16))
    for damaged in (None, 3, {}, {"fingerprints": "?"}, {"fingerprints": "AAAA"}, {"fingerprints": 3}):
        assert found_again(damaged, many[:5]) == []
