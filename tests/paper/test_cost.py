"""What a prediction costs: counts against the arithmetic of a transformer, timing by a clock of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from transformers import CLIPConfig, SiglipConfig, SiglipVisionModel

from bayesvlm.core.errors import BayesVLMError
from bayesvlm_paper import architectures, timing
from bayesvlm_paper.architectures import ARCHITECTURES, Architecture, UnfinishedPooling
from bayesvlm_paper.items import cost
from bayesvlm_paper.plans import CLIP_BASE, CLIP_HUGE, CLIP_LARGE, SIGLIP_BASE, same_model
from bayesvlm_paper.timing import in_turn, random_factors, random_vlm, run_times, uncertainty, with_overheads
from paper.told import Told, told

CPU = torch.device("cpu")
LAYERS = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
TINY = {
    "CLIP-Base": lambda: CLIPConfig(
        text_config={"hidden_size": 8, "vocab_size": 50, **LAYERS},
        vision_config={"hidden_size": 12, "image_size": 32, "patch_size": 16, **LAYERS},
        projection_dim=10,
    ),
    "SigLIP-Base": lambda: SiglipConfig(
        text_config={"hidden_size": 12, "vocab_size": 50, "bos_token_id": 0, "eos_token_id": 1, **LAYERS},
        vision_config={"hidden_size": 12, "image_size": 32, "patch_size": 16, **LAYERS},
    ),
}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same names, small."""
    for name, config in TINY.items():
        monkeypatch.setitem(ARCHITECTURES, name, Architecture(name, name, config))
    monkeypatch.setattr(timing, "parameters", lambda name: {"image": 1000})


def transformer(width: int, layers: int, tokens: int) -> int:
    """Operations of a transformer with an MLP four times as wide: linear layers, and the two products of attention."""
    linear = 2 * tokens * width * width * (4 + 2 * 4)
    attention = 2 * 2 * tokens * tokens * width
    return layers * (linear + attention)


# Architectures -------------------------------------------------------------------------------------------------------


def test_the_architectures_are_the_papers_models() -> None:
    ids = {"CLIP-Base": CLIP_BASE, "CLIP-Large": CLIP_LARGE, "CLIP-Huge": CLIP_HUGE, "SigLIP-Base": SIGLIP_BASE}
    assert {name: each.model for name, each in ARCHITECTURES.items()} == ids
    for each in ARCHITECTURES.values():
        assert same_model(each.hub, each.model)


@pytest.mark.parametrize(
    ("name", "published"),  # of the checkpoints on the Hub
    [("CLIP-Base", 151_277_313), ("SigLIP-Base", 203_155_970), ("CLIP-Huge", 986_109_441)],
)
def test_sizes_are_those_of_the_checkpoints(name: str, published: int) -> None:
    counted = architectures.parameters(name)
    assert counted["all"] == published
    assert counted["all"] - counted["image"] - counted["text"] == (2 if name.startswith("SigLIP") else 1)


def test_operations_are_those_of_a_transformer() -> None:
    tower = transformer(768, 12, 50) + 2 * 49 * 3 * 32 * 32 * 768
    assert architectures.flops_per_image("CLIP-Base") == tower + 2 * 768 * 512
    assert architectures.flops_per_text("CLIP-Base") == transformer(512, 12, 77) + 2 * 512 * 512
    pooling = 2 * 196 * 768 * 2 * 768 + 2 * 2 * 768 * 768 + 4 * 196 * 768 + 2 * 2 * 768 * 3072
    siglip = transformer(768, 12, 196) + 2 * 196 * 3 * 16 * 16 * 768 + pooling
    assert architectures.flops_per_image("SigLIP-Base") == siglip


def test_operations_of_the_heads() -> None:
    found = cost.inference_flops("CLIP-Base", views=2)
    plain = architectures.flops_per_image("CLIP-Base") + 2 * 512 * 100
    assert found["plain"] == plain / 1e9
    assert found["TTA"] == 2 * plain / 1e9
    assert found["Bayes"] == (plain + 2 * 768 * 768 + 2 * (768 + 512) * 100) / 1e9


def test_unfinished_pooling_leaves_the_last_layer_to_the_head() -> None:
    torch.manual_seed(0)
    model: Any = SiglipVisionModel(TINY["SigLIP-Base"]().vision_config).eval()
    pooling = getattr(model, "vision_model", model).head
    hidden = torch.randn(3, 4, 12)
    with torch.inference_mode():
        entering, residual = UnfinishedPooling(pooling)(hidden)
        torch.testing.assert_close(residual + pooling.mlp.fc2(entering), pooling(hidden))


# Timing --------------------------------------------------------------------------------------------------------------


def test_random_factors_know_their_spectrum() -> None:
    factors = random_factors(7, 5, CPU)
    for matrix, found in ((factors.A, factors.A_spectrum), (factors.B, factors.B_spectrum)):
        torch.testing.assert_close(found.vectors @ torch.diag(found.values) @ found.vectors.T, matrix)
        torch.testing.assert_close(torch.linalg.eigvalsh(matrix), found.values)


@pytest.mark.parametrize("name", list(TINY))
@pytest.mark.usefixtures("tiny")
def test_a_tiny_architecture_is_timed(name: str) -> None:
    times = run_times(name, CPU, runs=7)
    assert (times["name"], times["runs"]) == (name, 7)
    assert set(times["whole"]) == {"plain", "bayes"}
    assert set(times["heads"]) == {"plain", "bayes", "classify"}
    assert all(each["median"] > 0 for each in (*times["whole"].values(), *times["heads"].values()))
    assert times["uncertainty"] is not None
    assert json.loads(json.dumps(times, allow_nan=False)) == times
    vlm = random_vlm(name, CPU)
    d, p, _ = ARCHITECTURES[name].widths
    assert (vlm.image.embedding_width, vlm.image.activation_width) == (d, p)
    encode = architectures.image_encoder(name, CPU)
    entering, residual = encode(torch.randn(2, *ARCHITECTURES[name].pixels))
    assert entering.shape == (2, p)
    assert bool(torch.isfinite(entering).all())
    assert residual is None if name == "CLIP-Base" else residual is not None and residual.shape == (2, d)


class Clock:
    """Time passes only when something runs."""

    def __init__(self) -> None:
        self.now, self.order = 0.0, ""

    def run(self, way: str, seconds: float) -> Any:
        def step() -> torch.Tensor:
            self.now += seconds
            self.order += way
            return torch.zeros(())

        return step


@pytest.mark.parametrize(
    ("seconds", "limit", "warm_up", "runs"),
    [(1.0, float("inf"), 3, 10), (1.0, 20.0, 3, 7), (4.0, 10.0, 0, 3), (6.0, 10.0, 0, 2), (30.0, 10.0, 0, 1)],
)
def test_the_ways_take_turns_for_as_long_as_there_is_time(
    monkeypatch: pytest.MonkeyPatch, seconds: float, limit: float, warm_up: int, runs: int
) -> None:
    clock = Clock()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock.now)
    ways = {"p": clock.run("p", seconds), "b": clock.run("b", seconds)}
    times = in_turn(ways, CPU, 10, limit, warm_up)
    assert times == {"p": [seconds] * runs, "b": [seconds] * runs}
    assert (
        clock.order == ("pbbp" * (warm_up + runs))[: 2 * (warm_up + runs)]
    )  # each follows itself as often as the other


def test_the_uncertainty_covers_the_median() -> None:
    assert uncertainty([1.0] * 5, [1.0] * 5) is None
    generator = torch.Generator().manual_seed(0)
    covered, trials, n = 0, 400, 41
    for _ in range(trials):
        drawn = torch.randn(n, generator=generator, dtype=torch.float64).sort().values
        half = cast(float, uncertainty([1.0] * n, (1 + drawn / 100).tolist()))
        cut = int((n - 1.96 * n**0.5) / 2)
        low, high = float(drawn[cut]), float(drawn[n - 1 - cut])
        assert half == pytest.approx((high - low) / 2)
        covered += low <= 0 <= high
    assert 0.92 <= covered / trials <= 0.99


def test_short_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "spare_memory", lambda device: 1e9)
    with pytest.raises(BayesVLMError, match=r"CLIP-Huge needs 3\.8 GB of memory here, and 1\.0 GB are free"):
        run_times("CLIP-Huge", CPU)


# Items ---------------------------------------------------------------------------------------------------------------


def lab(views: int = 64) -> Any:
    return SimpleNamespace(device="cpu", say=lambda text: None, views=views, models=())


def runtime(times: Callable[[str, torch.device], dict[str, Any]]) -> Told:
    """What is told of these times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cost, "run_times", times)
        return told(lab(), cost.measure_runtime, cost.tell_runtime)


def flops(views: int = 64) -> Told:
    return told(lab(views), cost.measure_flops, cost.tell_flops)


def duration(mean: float, median: float) -> dict[str, float]:
    return {"mean": mean, "median": median}


def times_of(name: str, percent: float, uncertain: float | None, head: float = 0.5) -> dict[str, Any]:
    found = {
        "name": name,
        "runs": 1000,
        "whole": {"plain": duration(101.0, 100.0), "bayes": duration(102.0, 100.0 + percent)},
        "heads": {"plain": duration(1.0, 1.0), "bayes": duration(1.0, 1.0 + head), "classify": duration(3.0, 4.0)},
        "difference": percent,
        "uncertainty": uncertain,
        "captured": None,
    }
    return with_overheads(found)


def test_captured_runs_decide_where_there_are_any() -> None:
    captured = {"plain": duration(90.0, 80.0), "bayes": duration(90.0, 81.0)}
    found = with_overheads({**times_of("CLIP-Base", 4.0, 0.2), "captured": captured})
    assert (found["overhead decided by"], found["overhead"]) == ("captured runs", pytest.approx(1.25))
    assert found["overhead by"]["medians"] == pytest.approx(4)


def verdicts(found: Told) -> list[str]:
    return [claim.verdict for claim in found.claims]


def test_runtime_is_judged_by_whole_runs_where_they_are_certain() -> None:
    found = runtime(lambda name, device: times_of(name, 4.0 if name == "CLIP-Base" else 0.5, 0.2))
    assert verdicts(found) == ["holds", "holds"]
    assert "at most +4.00 % (CLIP-Base, by whole runs), not within 1 %" in found.claims[0].figure
    assert "within 1 % for 3 of 4" in found.answer
    (table,) = found.exhibits
    row = next(row for row in table.rows if row[0] == "CLIP-Base")
    assert row[2:] == [
        *("100.00", "104.00", "101.00", "102.00"),
        *("+4.00 ± 0.20", "+0.99", "+0.50", "", "+3.00"),
        *("9.45", "9.89", "4.69"),
    ]
    slower = runtime(lambda name, device: times_of(name, 5.5, 0.2))
    assert verdicts(slower) == ["does not hold", "does not hold"]
    noisy = runtime(lambda name, device: times_of(name, 5.5, 3.0))  # the heads decide: 0.5 %
    assert verdicts(noisy) == ["cannot be tested here"] * 2
    assert noisy.claims[0].figure.startswith("the largest that was found is +0.50 % (CLIP-Base, by the heads alone); ")
    assert "CLIP-Large, CLIP-Huge and SigLIP-Base may take longer than that" in noisy.claims[0].figure
    assert "CLIP-Base and CLIP-Huge may take longer than that" in noisy.claims[1].figure
    assert "at least +0.50 % for CLIP-Base" in noisy.answer
    assert "within 1 % for 0 of 4 architectures and cannot be told for 4" in noisy.answer
    assert any("vary too much" in each for each in noisy.remarks)
    assert not any("vary too much" in each for each in found.remarks)


def test_the_least_an_overhead_can_be_refutes_and_does_not_confirm() -> None:
    def measure(percent: float, *noisy: str) -> Told:
        """Heads of these architectures alone, adding so much."""

        return runtime(lambda name, device: times_of(name, 0.1, 3.0 if name in noisy else 0.2, percent))

    assert verdicts(measure(0.5)) == ["holds", "holds"]
    assert verdicts(measure(0.5, "CLIP-Large")) == ["cannot be tested here", "holds"]
    assert verdicts(measure(0.5, "CLIP-Huge")) == ["cannot be tested here"] * 2
    assert verdicts(measure(1.5, "CLIP-Huge")) == ["cannot be tested here", "does not hold"]
    assert verdicts(measure(5.5, "CLIP-Huge")) == ["does not hold"] * 2
    assert verdicts(measure(5.5, "CLIP-Large")) == ["does not hold", "holds"]
    assert "within 1 % for 3 of 4 architectures, by" in measure(1.5, "CLIP-Huge").answer


def test_what_does_not_fit_is_said() -> None:
    def measure(name: str, device: torch.device) -> dict[str, Any]:
        if name == "CLIP-Huge":
            raise BayesVLMError("CLIP-Huge needs more.")
        return times_of(name, 1.0, 0.5)

    found = runtime(measure)
    assert verdicts(found) == ["holds", "cannot be tested here"]
    assert "CLIP-Huge was not timed: CLIP-Huge needs more." in found.remarks


def test_flops_explains_the_printed_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    towers = {"CLIP-Base": 8.82, "CLIP-Large": 162.03, "CLIP-Huge": 334.59, "SigLIP-Base": 35.42}

    def per_image(name: str, side: int | None = None) -> float:
        return 1e9 * (46.82 if side == 256 else towers[name])

    more = dict.fromkeys(towers, 1.001)

    def inference(name: str, views: int = cost.VIEWS) -> dict[str, float]:
        return {"plain": towers[name], "TTA": views * towers[name], "Bayes": more[name] * towers[name]}

    monkeypatch.setattr(architectures, "flops_per_image", per_image)
    monkeypatch.setattr(architectures, "flops_per_text", lambda name: 1e9)
    monkeypatch.setattr(architectures, "parameters", lambda name: {"all": 1})
    monkeypatch.setattr(cost, "inference_flops", inference)
    found = flops()
    assert verdicts(found) == ["holds", "does not hold"]  # 0.1 % more; 64 views are not 80
    (table,) = found.exhibits
    assert list(table.rows[0]) == ["CLIP-Base", "8.82 | 8.83", "564.48 | 687.78", "8.83 | 8.84", "0.100", "64.0"]
    assert "1.33 times ours at 224 pixels" in found.remarks[1]
    assert "as many as 78 passes cost, not 64" in found.remarks[2]
    assert found.claims[1].figure.startswith("64.0 times: the factor is the number of views, 64 (wanted: 80 ± 8)")
    assert flops(views=80) == found, "the views of other items are none of its"
    more["SigLIP-Base"] = 1.002
    assert verdicts(flops())[0] == "holds", "the claim is about CLIP-Base"
    assert "0.100 % for CLIP-Base (of all at most 0.200 %, SigLIP-Base)" in flops().claims[0].figure
    more["CLIP-Base"] = 1.0012
    assert verdicts(flops())[0] == "does not hold"
