"""Known and unknown, wrong answers, prediction sets: the numbers behind the page, and the files that keep them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

from bayesvlm import BayesVLM, BayesVLMError, Features
from bayesvlm.experiments.answer_sets import KINDS, Labelled, measure_sets
from bayesvlm.experiments.failures import Failures, Ranking
from bayesvlm.experiments.outside import Outside, check_unknown, known_classes, measure, scores_of
from bayesvlm.images.files import SkippedImages
from bayesvlm.safety import familiarity
from experiments.made_up import failures, outside


@dataclass(frozen=True)
class Named:
    """A labelled set of which only the names matter."""

    name: str
    classes: tuple[str, ...]
    templates: tuple[str, ...] = ("{c}",)
    skipped: SkippedImages = field(default_factory=SkippedImages)


def test_figures_are_those_of_scikit_learn() -> None:
    found = outside()
    for title in ("good", "MCM", "flat"):
        values = torch.cat([found.scores["home"][title], found.scores["strangers"][title]])
        truth = torch.arange(len(values)) < 200
        row = found.table["strangers"][title]
        assert row["auroc"]["value"] == pytest.approx(roc_auc_score(truth, values), abs=1e-9)
        assert row["aupr"]["value"] == pytest.approx(average_precision_score(truth, values), abs=1e-9)
        assert row["auroc"]["low"] <= row["auroc"]["value"] <= row["auroc"]["high"]
    over = {title: found.table["strangers"][title]["over_mcm"] for title in found.titles}
    assert over["good"]["difference"] > 0.1
    assert over["good"]["p"] < 1e-6
    assert over["MCM"] == {"difference": 0, "standard_error": 0, "p": 1}
    assert found.table["strangers"]["good"]["fpr95"]["value"] < found.table["strangers"]["MCM"]["fpr95"]["value"]


def test_flags_are_counted_on_images_that_did_not_calibrate() -> None:
    found = outside()
    calibration = found.scores["home"]["good"][::2].sort().values
    fresh, place = found.scores["home"]["good"][1::2], int(0.05 * 101)
    expected = (fresh < calibration[place - 1]).double().mean()
    assert found.flagged["home"]["good"] == pytest.approx(float(expected))
    assert found.flagged["strangers"]["good"] > 0.8
    assert found.flagged["home"]["flat"] == 0, "equal scores are never rare"
    assert found.threshold("good") == float(calibration[place - 1])


def test_false_alarms_are_what_was_asked_for_on_average() -> None:
    shares = [outside(seed, 400).flagged["home"]["good"] for seed in range(40)]
    assert 0.03 < sum(shares) / len(shares) < 0.07


def test_too_few_images_to_calibrate_on_are_no_error() -> None:
    few = outside(familiar=30)
    assert few.flagged == {}
    assert few.threshold("good") is None
    assert few.table["strangers"]["good"]["auroc"]["value"] > 0.9


def test_it_is_kept_and_read_again(tmp_path: Path) -> None:
    found = outside()
    path = found.save(tmp_path)
    assert path == tmp_path / "a-model/home/ood.json"
    again = Outside.load(path)
    assert again.numbers == found.numbers
    assert all(torch.equal(again.scores[name][title], of[title]) for name, of in found.scores.items() for title in of)
    path.with_suffix(".safetensors").write_bytes(path.with_suffix(".safetensors").read_bytes()[:-8] + bytes(8))
    with pytest.raises(BayesVLMError, match="are of different runs"):
        Outside.load(path)
    path.write_text("{}")
    with pytest.raises(BayesVLMError, match="is no result of `bayesvlm eval --ood`"):
        Outside.load(path)


def test_known_classes_are_found_whatever_the_spelling() -> None:
    known = Named("home", ("red apple", "Ice-cream", "car"))
    data = Named("strangers", ("RED_APPLE", "ice cream", "lorry", "car"))
    labels = torch.tensor([0, 1, 2, 2, -1])
    assert known_classes(known, data, labels) == ["RED_APPLE", "ice cream"], "it has no image of the car"  # type: ignore[arg-type]
    with pytest.raises(BayesVLMError, match="2 of its classes are among the 3 known ones: 'RED_APPLE', 'ice cream';"):
        check_unknown(known, data, labels)  # type: ignore[arg-type]
    check_unknown(known, Named("strangers", ()), torch.tensor([-1, -1]))  # type: ignore[arg-type]
    check_unknown(known, data, torch.tensor([2, 2]))  # type: ignore[arg-type]


# With a small model ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vlm() -> BayesVLM:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    made = BayesVLM.from_projections(draw(8, 16), draw(8, 12), logit_scale=2.0)
    return made.fit([(Features(draw(200, 16)), Features(draw(200, 12)))], progress=False)


def features(count: int, width: int, seed: int) -> Features:
    return Features(torch.randn(count, width, generator=torch.Generator().manual_seed(seed)))


def test_every_score_of_every_way_to_predict(vlm: BayesVLM) -> None:
    images, classes, negatives = features(50, 16, 1), features(5, 12, 2), features(3, 12, 3)
    asked = scores_of(vlm, 2.0, 3.0, negatives=True)
    found = measure(vlm, images, classes, asked, negatives)
    assert list(found) == [each.title for each in asked]
    assert len(asked) == 6 + 4 + 5
    for each in asked:
        alone = familiarity(
            vlm, images, classes, each.score, predictive=each.predictive, negatives=negatives, progress=False
        )
        torch.testing.assert_close(found[each.title], alone.cpu())
    bare = scores_of(vlm.without_posterior())
    assert {each.predictive for each in bare} == {"plain"}


def test_prediction_sets_hold_what_was_asked_for(vlm: BayesVLM) -> None:
    classes = features(6, 12, 2)
    images = features(3000, 16, 4)
    generator = torch.Generator().manual_seed(5)
    labels = torch.multinomial(vlm.classify(images, classes).probs, 1, generator=generator)[:, 0]
    parts = [Labelled(images[rows], labels[rows]) for rows in (slice(0, 1000), slice(1000, 3000))]
    found = measure_sets(vlm, classes, {"plain": "plain", "Bayes": "bayes"}, parts[0], {"home": parts[1]}, miss=0.2)
    for method in ("plain", "Bayes"):
        for kind in KINDS:
            sets = found.sets[method][kind]["home"]
            assert abs(sets.coverage.value - 0.8) < 0.06
            hits, counts = sets.by_class(6)
            assert int(hits.sum()) == int(sets.covered.sum())
            assert int(counts.sum()) == 2000
    sizes = {kind: found.sets["Bayes"][kind]["home"].mean_size.value for kind in KINDS}
    assert sizes["lac"] <= sizes["aps"]
    assert found.numbers()["sets"]["Bayes"]["lac"]["home"]["images"] == 2000


# Wrong answers --------------------------------------------------------------------------------------------------------


def test_figures_of_wrong_answers() -> None:
    found = failures()
    for name, (doubt, correct) in found.rankings.items():
        assert found.table[name]["auroc"]["value"] == pytest.approx(roc_auc_score(~correct, doubt), abs=1e-9)
        assert found.table[name]["error"] == pytest.approx(float((~correct).double().mean()))
    assert found.table["Bayes"]["augrc"] < found.table["plain"]["augrc"]
    assert found.left_out == ["ICPE was left out: there are no images."]


def test_where_nothing_is_wrong_there_is_nothing_to_find() -> None:
    of = Ranking(torch.rand(20, generator=torch.Generator().manual_seed(0)).double(), torch.ones(20, dtype=torch.bool))
    found = Failures({}, {}, {"plain": of})
    assert found.table["plain"]["auroc"] is None
    assert found.table["plain"]["aurc"] == 0


def test_they_are_kept_and_read_again(tmp_path: Path) -> None:
    found = failures()
    path = found.save(tmp_path)
    assert path == tmp_path / "a-model/home/selective.json"
    assert Failures.load(path).numbers == found.numbers
    path.write_text("[]")
    with pytest.raises(BayesVLMError, match="is no result of `bayesvlm eval --selective`"):
        Failures.load(path)
