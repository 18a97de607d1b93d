"""An item is measured once for the same inputs, and again when one of them, or its version, has changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bayesvlm import BayesVLM, BayesVLMError
from bayesvlm.data.cache import FeatureCache
from bayesvlm_paper.finding import Claim, Finding, Numbers
from bayesvlm_paper.item import Item, kept_record, reproduce
from bayesvlm_paper.items import ITEMS, find_item
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.plans import PLAN, Plan
from paper.told import kept

CALLS: list[int] = []


def measure(lab: Lab) -> Numbers:
    CALLS.append(lab.views)
    return {"views": lab.views}


def tell(numbers: Mapping[str, Any]) -> Finding:
    return Finding(f"with {numbers['views']} views", [Claim.judged("c", True, "f")])


ITEM = Item("some_table", "A table", "Is it?", "zero-shot", Plan(), Plan(), measure, tell)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    CALLS.clear()
    return Lab(Plan(views=True), tmp_path / "out", FeatureCache(tmp_path / "cache"))


def test_the_same_inputs_are_not_measured_twice(lab: Lab) -> None:
    first = reproduce(ITEM, lab)
    second = reproduce(ITEM, lab)
    assert first == second
    assert len(CALLS) == 1
    written = json.loads((lab.out / "some_table.json").read_text())
    assert set(written) == {"schema", "item", "version", "command", "inputs", "seconds", "numbers"}
    assert written["numbers"] == kept({"views": 64}, lab.plan)
    assert written["command"] == "bayesvlm reproduce some_table"
    assert kept_record(ITEM, lab.out) == written


def test_other_words_measure_nothing(lab: Lab) -> None:
    reproduce(ITEM, lab)
    worded = replace(
        ITEM, title="A title, with a comma", question="Is it so?", tell=lambda numbers: Finding("other words")
    )
    assert reproduce(worded, lab).finding == Finding("other words")
    assert len(CALLS) == 1


def test_another_version_is_measured(lab: Lab) -> None:
    reproduce(ITEM, lab)
    reproduce(replace(ITEM, version=2), lab)
    assert len(CALLS) == 2
    assert json.loads((lab.out / "some_table.json").read_text())["version"] == 2


def test_other_inputs_are_measured(lab: Lab) -> None:
    reproduce(ITEM, lab)
    other = reproduce(ITEM, replace(lab, views=3))
    assert other.finding is not None
    assert other.finding.answer == "with 3 views"
    reproduce(ITEM, replace(lab, views=3), again=True)
    reproduce(ITEM, replace(lab, views=3, seeds=7))  # nothing is learnt here, so seeds decide nothing
    assert CALLS == [64, 3, 3]


def test_what_is_kept_is_read_without_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real item with a real plan: its numbers are there, and whoever loads a model or opens the cache fails."""
    item, plan = ITEMS["gridearch_pseudo_data_count"], Plan(("emoji-clip",), (), "validation", ("train",))
    lab = Lab(plan, tmp_path, FeatureCache(tmp_path / "cache"), device="cpu")
    monkeypatch.setattr(BayesVLM, "from_pretrained", lambda *_, **__: pytest.fail("a model was loaded"))
    tried = {"emoji-clip": {"best": 10.0, "tau": [1.0, 10.0, 200.0], "nlpd": [1.2, 1.0, 1.3]}}
    first = reproduce(replace(item, measure=lambda lab: tried), lab)
    again = Lab(plan, tmp_path, FeatureCache(tmp_path / "cache"), device="cpu")
    assert reproduce(item, again) == replace(first, item=item)
    assert first.finding is not None
    assert first.finding.claims[0].verdict == "holds"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": 2}', '{"schema": 1, "command": "c", "seconds": 1}'])
def test_a_damaged_or_older_file_is_made_again(lab: Lab, content: str) -> None:
    lab.out.mkdir()
    (lab.out / "some_table.json").write_text(content)
    assert reproduce(ITEM, lab).finding is not None
    assert len(CALLS) == 1


def test_what_cannot_be_written_is_said(lab: Lab) -> None:
    lab.out.write_text("a file")
    with pytest.raises(BayesVLMError, match=r"some_table\.json cannot be written"):
        reproduce(ITEM, lab)


def test_a_set_that_is_called_plan_is_refused(lab: Lab) -> None:
    with pytest.raises(BayesVLMError, match="rename it"):
        reproduce(replace(ITEM, measure=lambda lab: {PLAN: {}}), lab)


def test_a_plan_comes_back_from_the_numbers() -> None:
    for item in ITEMS.values():
        for plan in (item.world, item.paper):
            assert Plan.of(kept({}, plan)) == plan


def test_every_item_of_the_issue_is_there() -> None:
    asked = """uq_results_clip uq_results_clip_large uq_results_siglip uq_results_pcmepp uq_results_prolip
        uq_results_base_laion_vs_cc12m pseudo_count_results food_aug cifar10_aug imagenet_r_aug
        zero_shot_adversarial_imgnet independence_ratio runtime flops active_learning results_activelearning
        results_activelearning_clip_huge results_activelearning_siglip_base results_knn_method_ablation
        cosine_similarity perturbation_plot hessian-nbr-samples ablation_batch_size gridearch_pseudo_data_count
        structure covariance link evidence"""
    assert set(asked.split()) == set(ITEMS)
    for name, item in ITEMS.items():
        assert item.name == name
        assert item.version >= 1
        assert item.question.endswith("?"), name
    with pytest.raises(BayesVLMError, match="uq_results_clip"):
        find_item("table 1")
