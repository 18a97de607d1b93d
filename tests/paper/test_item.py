"""An item is run once for the same inputs, and again when one of them has changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bayesvlm import BayesVLMError
from bayesvlm.data.cache import FeatureCache
from bayesvlm_paper.catalogue import ITEMS, Item, Lab, Plan, find_item, reproduce
from bayesvlm_paper.findings import Claim, Finding
from bayesvlm_paper.item import last_seconds

CALLS: list[int] = []


def measure(lab: Lab) -> Finding:
    CALLS.append(lab.views)
    return Finding(f"with {lab.views} views", [Claim.judged("c", True, "f")], (), {"calls": len(CALLS)})


ITEM = Item("some_table", "A table", "Is it?", "zero-shot", Plan(), Plan(), measure)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    CALLS.clear()
    return Lab(Plan(views=True), tmp_path / "out", FeatureCache(tmp_path / "cache"))


def test_the_same_inputs_are_not_run_twice(lab: Lab) -> None:
    first = reproduce(ITEM, lab)
    second = reproduce(ITEM, lab)
    assert first.finding == second.finding
    assert first.seconds == second.seconds == last_seconds(ITEM, lab.out)
    assert len(CALLS) == 1
    kept = json.loads((lab.out / "some_table.json").read_text())
    assert kept["finding"]["answer"] == "with 64 views"
    assert kept["command"] == "bayesvlm reproduce some_table"


def test_other_inputs_are_run(lab: Lab) -> None:
    reproduce(ITEM, lab)
    other = reproduce(ITEM, replace(lab, views=3))
    assert other.finding is not None
    assert other.finding.answer == "with 3 views"
    reproduce(ITEM, replace(lab, views=3), again=True)
    reproduce(ITEM, replace(lab, views=3, seeds=7))  # nothing is learnt here, so seeds decide nothing
    assert CALLS == [64, 3, 3]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": 0}'])
def test_a_damaged_file_is_made_again(lab: Lab, content: str) -> None:
    lab.out.mkdir()
    (lab.out / "some_table.json").write_text(content)
    assert last_seconds(ITEM, lab.out) is None
    assert reproduce(ITEM, lab).finding is not None
    assert len(CALLS) == 1


def test_what_cannot_be_written_is_said(lab: Lab) -> None:
    lab.out.write_text("a file")
    with pytest.raises(BayesVLMError, match=r"some_table\.json cannot be written"):
        reproduce(ITEM, lab)


def test_every_item_of_the_issue_is_there() -> None:
    asked = """uq_results_clip uq_results_clip_large uq_results_siglip uq_results_pcmepp uq_results_prolip
        uq_results_base_laion_vs_cc12m pseudo_count_results food_aug cifar10_aug imagenet_r_aug
        zero_shot_adversarial_imgnet independence_ratio runtime flops active_learning results_activelearning
        results_activelearning_siglip_base results_knn_method_ablation cosine_similarity perturbation_plot
        hessian-nbr-samples ablation_batch_size gridearch_pseudo_data_count structure covariance link evidence"""
    assert set(asked.split()) <= set(ITEMS)
    for name, item in ITEMS.items():
        assert item.name == name
        assert item.question.endswith("?"), name
    with pytest.raises(BayesVLMError, match="uq_results_clip"):
        find_item("table 1")
