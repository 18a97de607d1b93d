"""The paper's numbers: whole, well formed, and a few of them read off the printed page once more."""

from __future__ import annotations

import math

import pytest

from bayesvlm import BayesVLMError
from bayesvlm_paper.printed import published_curves, published_names, published_table


def test_every_table_is_there() -> None:
    assert set(published_names()) == {
        "uq_results_clip",
        "uq_results_clip_large",
        "uq_results_siglip",
        "uq_results_pcmepp",
        "uq_results_prolip",
        "uq_results_base_laion_vs_cc12m",
        "pseudo_count_results",
        "food_aug",
        "cifar10_aug",
        "imagenet_r_aug",
        "zero_shot_adversarial_imgnet",
        "independence_ratio",
        "runtime",
        "flops",
        "finetuning_params",
    }


@pytest.mark.parametrize("name", published_names())
def test_a_table_is_rectangular(name: str) -> None:
    table = published_table(name)
    assert table.rows
    for row in table.rows:
        assert len(row.values) == len(row.errors) == len(table.columns)
        assert all(value is None or math.isfinite(value) for value in (*row.values, *row.errors))


@pytest.mark.parametrize(
    ("name", "metric", "method", "column", "printed"),
    [
        ("uq_results_clip", "ACC", "CLIP", "Flowers-102", 68.99),
        ("uq_results_clip", "NLPD", "BayesVLM", "SUN397", 1.12),
        ("uq_results_clip", "ECE", "TTA", "UCF101", 11.75),
        ("uq_results_prolip", "NLPD", "ProbCosine", "Flowers-102", 1.28),
        ("runtime", "relative increase", "BayesVLM", "CLIP-Base", 4.69),
        ("independence_ratio", "R", "empirical Fisher", "50k", 0.363),
    ],
)
def test_numbers_as_printed(name: str, metric: str, method: str, column: str, printed: float) -> None:
    assert published_table(name).value(metric, column, method) == printed


def test_curves() -> None:
    series = published_curves("results_knn_method_ablation")["series"]
    assert len(series) == 40
    assert all(len(each["x"]) == len(each["y"]) for each in series)


def test_what_is_not_there() -> None:
    with pytest.raises(BayesVLMError, match="name='uq' is not known; use 'uq_results_clip'"):
        published_table("uq")
    table = published_table("uq_results_clip")
    assert table.value("ACC", "SUN397", "Magic") is None
    assert table.value("ACC", "MNIST", "CLIP") is None
    assert table.value("ACC", None, "CLIP") is None
    assert table.value("ACC", "Flowers-102", "Magic", "CLIP") == 68.99, "the first that is there"


def test_fractions_are_given_in_percent() -> None:
    assert published_table("zero_shot_adversarial_imgnet").value("ECE", "ImageNet-A", "CLIP") == pytest.approx(33)
