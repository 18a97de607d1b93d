"""The pass over groups on a GPU: curvature on a stream of its own, texts in a thread of their own, pinned pixels."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bayesvlm import BayesVLM
from bayesvlm.core.estimation import TOWERS
from bayesvlm.data.pairs import PairPlan, PairShards
from bayesvlm.fitting.beside import pays_beside
from bayesvlm.testing import save_tiny_clip

from .made import write_shards

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_sums_are_those_of_a_processor_and_the_same_beside_the_encoder(tmp_path: Path) -> None:
    from bayesvlm.fitting import FitSettings, GroupSums, group_factors

    write_shards(tmp_path / "pairs", 90, 80, broken=frozenset({3, 100}))
    plan = PairPlan.of(PairShards.open(tmp_path / "pairs", batch_size=16), 32)
    found = {}
    for device, beside in (("cpu", False), ("cuda", False), ("cuda", True)):
        vlm = BayesVLM.from_pretrained(save_tiny_clip(tmp_path / "model"), device=device)
        sums = GroupSums()
        for group in plan.groups:
            sums = sums.add(group_factors(vlm, plan, group, FitSettings(workers=0, beside=beside)))
        assert sums.factors is not None
        assert sums.tally.seconds["images"] > 0
        found[device, beside] = sums.factors
    for tower in TOWERS:
        inline, aside = found["cuda", False][tower], found["cuda", True][tower]
        assert torch.equal(inline.A_sum, aside.A_sum)
        assert torch.equal(inline.B_sum, aside.B_sum)
        expected = found["cpu", False][tower]
        torch.testing.assert_close(inline.A_sum.cpu(), expected.A_sum, rtol=1e-3, atol=1e-3)
        scale = float(expected.B_sum.abs().max())
        torch.testing.assert_close(inline.B_sum.cpu(), expected.B_sum, rtol=1e-2, atol=1e-2 * scale)


def test_the_switch_for_tf32_is_left_alone() -> None:
    device = torch.device("cuda")
    assert pays_beside(device, None)
    assert not pays_beside(device, "tf32"), "turning it would change what the encoder computes"
    assert not pays_beside(torch.device("cpu"), None)
