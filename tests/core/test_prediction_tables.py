"""What a prediction says in names and tables: `names`, `topk`, `to_pandas`, its rows one by one."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bayesvlm import BayesVLM, Features
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.prediction import Prediction, TopK

pandas = pytest.importorskip("pandas")

CLASSES = ["cat", "dog", "cow", "owl", "bee"]
SUMMARY = ["label", "prob", "cosine", "std", "low", "high", "entropy"]


def features(rows: int, width: int, seed: int) -> Features:
    return Features(torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)))


def model(loss: str = "infonce") -> BayesVLM:
    generator = torch.Generator().manual_seed(0)
    image, text = (torch.randn(6, width, generator=generator) for width in (9, 8))
    bias = -3.0 if loss == "sigmoid" else None
    vlm = BayesVLM.from_projections(image, text, 2.0, bias, loss=loss)
    return vlm.fit([(features(64, 9, 1), features(64, 8, 2))])


def predicted(vlm: BayesVLM, rows: int = 7) -> Prediction:
    """With names, as from texts."""
    return replace(vlm.classify(features(rows, 9, 3), features(len(CLASSES), 8, 4)), classes=tuple(CLASSES))


@pytest.fixture(scope="module")
def vlm() -> BayesVLM:
    return model()


@pytest.fixture
def p(vlm: BayesVLM) -> Prediction:
    return predicted(vlm)


# Names and ranks ------------------------------------------------------------------------------------------------------


def test_names_are_those_of_the_most_probable_classes(p: Prediction) -> None:
    assert p.names == tuple(CLASSES[int(np.argmax(row))] for row in p.probs.numpy())
    assert p[2].names == p.names[2:3]
    with pytest.raises(BayesVLMError, match=r"given as Features, which carry no names; .* \.labels"):
        _ = replace(p, classes=None).names


def test_topk_is_what_sorting_gives(p: Prediction) -> None:
    found = p.topk(3)
    assert isinstance(found, TopK)
    order = np.argsort(-p.probs.numpy(), axis=1)[:, :3]
    np.testing.assert_array_equal(found.indices.numpy(), order)
    np.testing.assert_array_equal(found.probs.numpy(), np.take_along_axis(p.probs.numpy(), order, axis=1))
    assert found.names == tuple(tuple(CLASSES[k] for k in row) for row in order)
    probs, indices, names = replace(p, classes=None).topk(5)
    assert probs.shape == indices.shape == (7, 5)
    assert names is None


@pytest.mark.parametrize(
    ("k", "sentence"),
    [(6, "k is 6, and there are 5 classes; ask for at most 5"), (0, "k is 0; expected"), (1.5, "k is 1.5; expected")],
)
def test_topk_of_what_there_is_not(p: Prediction, k: Any, sentence: str) -> None:
    with pytest.raises(BayesVLMError, match=sentence):
        p.topk(k)


def test_rows_are_taken_as_from_a_sequence(p: Prediction) -> None:
    assert [row.names for row in p] == [(name,) for name in p.names]
    assert len(list(p)) == len(p) == 7
    sure = p.entropy < p.entropy.median()
    for index, rows in [(0, [0]), (-1, [6]), (slice(1, 5, 2), [1, 3]), ([4, 0], [4, 0]), (sure, sure.nonzero()[:, 0])]:
        assert torch.equal(p[index].probs, p.probs[rows])
        assert torch.equal(p[index].variance, p.variance[rows])
        assert p[index].places == tuple(map(int, rows))
        assert list(p[index].to_pandas().index) == list(map(int, rows)), "a row is still that of its input"
    assert p[2:][[-1, 0]].places == (6, 2)
    with pytest.raises(IndexError, match="row 7 of 7"):
        p[7]


# Tables ---------------------------------------------------------------------------------------------------------------


def test_a_row_per_input(p: Prediction) -> None:
    table = p.to_pandas()
    assert list(table.columns) == SUMMARY
    assert list(table.index) == list(range(7))
    assert table.index.name == "input"
    assert tuple(table.label) == p.names
    for row, k in enumerate(p.labels.tolist()):
        found = table.loc[row]
        assert found.prob == float(p.probs[row, k]) == float(p.probs[row].max())
        assert found.cosine == float(p.mean[row, k])
        assert found["std"] == pytest.approx(float(p.variance[row, k]) ** 0.5, rel=1e-6)
        half = 1.959964 * found["std"]  # the normal's quantile
        assert [found.low, found.high] == pytest.approx(
            [max(found.cosine - half, -1), min(found.cosine + half, 1)], rel=1e-4, abs=1e-5
        )
        assert found.entropy == pytest.approx(-(p.probs[row] * p.probs[row].log()).sum().item(), rel=1e-5)
    narrow = p.to_pandas(level=0.6826895)
    np.testing.assert_allclose(narrow.high, np.minimum(narrow.cosine + narrow["std"], 1), rtol=1e-4, atol=1e-5)


def test_the_parts_of_the_entropy_are_there_when_asked_for_or_known(vlm: BayesVLM) -> None:
    p = predicted(vlm)
    assert not p.is_drawn
    assert "epistemic" not in p.to_pandas()
    assert not p.is_drawn  # a table draws nothing that was not asked for
    table = p.to_pandas(parts=True)
    np.testing.assert_allclose(table.epistemic + table.aleatoric, table.entropy, rtol=1e-5)
    assert p.is_drawn
    assert list(p.to_pandas()) == [*SUMMARY, "epistemic", "aleatoric"]
    assert "epistemic" in predicted(vlm.replace(link="mc")).to_pandas()
    with pytest.raises(BayesVLMError, match="made without a posterior"):
        replace(predicted(vlm), draws=None).to_pandas(parts=True)


def test_siglip_has_the_probability_of_each_label_by_itself() -> None:
    p = predicted(model("sigmoid"))
    table = p.to_pandas()
    assert list(table) == ["label", "prob", "label_prob", *SUMMARY[2:]]
    assert p.label_probs is not None
    np.testing.assert_array_equal(table.label_prob, p.label_probs[range(7), p.labels].numpy())


def test_a_row_per_input_and_class(p: Prediction) -> None:
    table = p.to_pandas(top=2)
    assert table.index.names == ["input", "rank"]
    assert table.index.is_unique
    assert len(table) == 14
    probs, indices, _ = p.topk(2)
    for row in range(7):
        for rank in (1, 2):
            k = int(indices[row, rank - 1])
            found = table.loc[(row, rank)]
            assert found.label == CLASSES[k]
            assert found.prob == float(probs[row, rank - 1])
            assert found.cosine == float(p.mean[row, k])
            assert found.entropy == float(p.entropy[row])
    pandas.testing.assert_frame_equal(table.xs(1, level="rank"), p.to_pandas())
    with pytest.raises(BayesVLMError, match="ask for at most 5"):
        p.to_pandas(top=6)


def test_a_column_per_class(p: Prediction) -> None:
    table = p.to_pandas(wide=True)
    assert list(table.columns) == [*SUMMARY, *CLASSES]
    np.testing.assert_array_equal(table[CLASSES].to_numpy(), p.probs.numpy())  # scikit-learn's predict_proba
    assert list(table[CLASSES].idxmax(axis=1)) == list(table.label)
    assert list(replace(p, classes=None).to_pandas(wide=True).columns[-5:]) == [0, 1, 2, 3, 4]
    with pytest.raises(BayesVLMError, match="top=3 gives a row per class and wide=True a column"):
        p.to_pandas(3, wide=True)
    clashing = replace(p, classes=("cat", "dog", "cow", "entropy", "bee")).to_pandas(wide=True)
    assert list(clashing.columns[-5:]) == ["cat", "dog", "cow", "entropy (class)", "bee"]


def test_classes_without_names_go_by_their_index(p: Prediction) -> None:
    assert list(replace(p, classes=None).to_pandas().label) == p.labels.tolist()


def test_tables_of_a_stream_are_concatenated(vlm: BayesVLM) -> None:
    inputs, classes = features(10, 9, 3), features(5, 8, 4)
    batches = list(vlm.stream(inputs, classes, batch_size=4))
    table = pandas.concat([batch.to_pandas() for batch in batches])
    assert list(table.index) == list(range(10))
    whole = vlm.classify(inputs, classes).to_pandas()
    assert list(table.label) == list(whole.label)
    np.testing.assert_allclose(table.prob, whole.prob, rtol=1e-5)  # batches of another size round otherwise
    assert pandas.concat([batch.to_pandas(top=3) for batch in batches]).index.is_unique
    assert list(batches[1][[2, 0]].to_pandas().index) == [6, 4]


def test_a_table_of_nothing_and_one_in_half_precision(p: Prediction) -> None:
    empty = p[[]].to_pandas(wide=True)
    assert (len(empty), list(empty)) == (0, [*SUMMARY, *CLASSES])
    halved = p.to(torch.bfloat16).to_pandas()
    np.testing.assert_allclose(halved.prob, p.to_pandas().prob, rtol=1e-2)
    assert p.to(torch.float64).to_pandas().prob.dtype == np.float64


def test_without_pandas_there_is_a_sentence(p: Prediction, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(BayesVLMError, match=r"pandas, which is not installed: `pip install 'bayesvlm\[pandas\]'`"):
        p.to_pandas()


def test_a_prediction_does_not_load_pandas() -> None:
    import subprocess

    code = "import sys, bayesvlm.core.prediction; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
