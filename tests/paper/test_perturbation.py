"""The cosine under corruption: correlations by hand, and models that do as the paper says or do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from experiments.test_corruption import Listed
from PIL import Image

from bayesvlm.core.cosine import CosineMoments
from bayesvlm.data.labelled import Sample
from bayesvlm.experiments.corruption import GREY, LEVELS
from bayesvlm_paper.exhibits import HeatMaps
from bayesvlm_paper.items.perturbation import by_cut, corners, measure, one_letter, rank_correlations, tell
from paper.told import Told, told

UP = np.add.outer(np.arange(6.0), np.arange(6.0))

# Correlations --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("grid", "sign"), [(UP, 1), (-UP, -1), (np.exp(UP), 1), (np.ones((6, 6)), 0)])
def test_grids_that_only_rise_or_fall(grid: np.ndarray, sign: int) -> None:
    assert rank_correlations(grid) == pytest.approx(
        dict.fromkeys(("both", "text", "image", "text overall", "image overall", "mild"), sign)
    )


def test_what_falls_while_the_other_is_whole_and_rises_on_average() -> None:
    """As here: pictures without anything in them are more like a crossed out caption than real ones."""
    grid = np.tile(np.arange(6.0), (6, 1))
    grid[0] = [5, 4, 3, 2, 1, 0]
    found = rank_correlations(grid)
    assert found["image"] == pytest.approx(-1)
    assert found["image overall"] == pytest.approx(1)
    assert rank_correlations(grid.T)["text"] == pytest.approx(-1)
    assert rank_correlations(grid.T)["text overall"] == pytest.approx(1)


def test_the_correlation_over_cells_is_that_of_ranks() -> None:
    grid = np.random.default_rng(0).normal(size=(6, 6))

    def ranks(values: np.ndarray) -> np.ndarray:  # ties share the mean of their places
        return np.array([(values < value).sum() + ((values == value).sum() - 1) / 2 for value in values])

    expected = np.corrcoef(ranks(UP.ravel()), ranks(grid.ravel()))[0, 1]
    assert rank_correlations(grid)["both"] == pytest.approx(expected)
    mild = np.corrcoef(ranks(UP[:3, :3].ravel()), ranks(grid[:3, :3].ravel()))[0, 1]
    assert rank_correlations(grid)["mild"] == pytest.approx(mild)
    cuts = by_cut(grid)
    assert len(cuts) == 5
    assert (cuts[1], cuts[4]) == (pytest.approx(mild), pytest.approx(expected))


def test_rows_are_texts() -> None:
    grid = np.array([[1.0, 2.0], [3.0, 4.0]])
    assert corners(grid) == {"whole": 1, "text": 3, "image": 2, "both": 4, "mild": 1}
    assert corners(np.arange(36.0).reshape(6, 6))["mild"] == 14  # two steps of five down, two to the right


# The finding ---------------------------------------------------------------------------------------------------------

Level = Callable[[float, float], float]  # of the share of letters and of the picture that are gone


class Scripted:
    """A model whose moments are functions of how much is destroyed."""

    def __init__(self, mean: Level, variance: Level) -> None:
        self.mean, self.variance = mean, variance

    def image_features(self, images: Sequence[Image.Image], *, progress: bool) -> list[float]:
        return [float((np.asarray(image) == GREY).all(axis=2).mean()) for image in images]

    def text_features(self, texts: Sequence[str], *, progress: bool) -> list[float]:
        return [text.count("x") / len(text.replace(" ", "")) for text in texts]

    def similarity(self, images: Sequence[float], texts: Sequence[float]) -> CosineMoments:
        mean, variance = (
            torch.tensor([[level(text, image) for text in texts] for image in images])
            for level in (self.mean, self.variance)
        )
        return CosineMoments(mean, variance)


class OneSet:
    """What the item asks of a lab."""

    models, sets = ("scripted",), ("drawings",)

    def __init__(self, vlm: Scripted) -> None:
        self._vlm = vlm

    def vlm(self, name: str) -> Scripted:
        return self._vlm

    def set(self, name: str) -> Listed:
        samples = [Sample(str(row), Image.new("RGB", (64, 64), (row, 0, 0)), row % 2) for row in range(4)]
        return Listed(samples, templates=("of some {c}",), classes=("cat", "dog"))


def found(mean: Level, variance: Level) -> Told:
    return told(OneSet(Scripted(mean, variance)), measure, tell)


def test_a_model_that_does_as_the_paper_says() -> None:
    finding = found(
        lambda text, image: 0.5 - 0.2 * text - 0.1 * image + (0.05 if 0 < text < 0.15 else 0),
        lambda text, image: 0.01 * (1 + text + image),
    )
    assert [claim.verdict for claim in finding.claims] == ["holds"] * 3
    assert "to 0.20 (0.30 when only the caption goes, 0.40 when only the picture goes)" in finding.answer
    text, image = round(9 * 0.4) / 9, round(64 * 0.4) / 64
    assert f"cosine of scripted from 0.50 to {0.5 - 0.2 * text - 0.1 * image:.2f} and changes its" in finding.answer
    assert f"variance by +{100 * (text + image):.0f} %;" in finding.answer
    assert (
        "With the caption gone, greying out the picture takes the expected cosine from 0.30 to 0.20." in finding.answer
    )
    assert "changes the variance by +200 % (+100 % and +100 %)" in finding.answer
    maps = finding.exhibits[0]
    assert isinstance(maps, HeatMaps)
    means = np.array(maps.grids["Expected cosine"])
    np.testing.assert_allclose(means[0], [0.5 - 0.1 * round(64 * level) / 64 for level in LEVELS], atol=1e-6)
    np.testing.assert_allclose(means[:, 0], [0.5 - 0.2 * round(9 * level) / 9 for level in LEVELS], atol=1e-6)
    deviations = np.array(maps.grids["Standard deviation"])
    np.testing.assert_allclose(deviations**2, maps.grids["Variance"], rtol=1e-5)


def test_a_model_that_does_the_opposite() -> None:
    finding = found(lambda text, image: 0.1 + text + image, lambda text, image: 0.01 * (3 - text - image))
    assert [claim.verdict for claim in finding.claims] == ["does not hold"] * 3


def test_ends_and_ranks_must_agree() -> None:
    """A cosine that falls but where two fifths of both are gone, where it jumps above all others."""
    jump = found(
        lambda text, image: -text - image + 9 * (0.3 < text < 0.5 and 0.3 < image < 0.5), lambda text, image: 1.0
    )
    assert jump.numbers["corners"]["mean"]["mild"] > jump.numbers["corners"]["mean"]["whole"]
    assert [claim.verdict for claim in jump.claims[:2]] == ["does not hold"] * 2


def test_mild_corruption_decides_and_the_whole_grid_is_told() -> None:
    """What rises again beyond two fifths, as an empty picture may be like any caption."""

    def bent(text: float, image: float) -> float:
        return -text - image if max(text, image) < 0.5 else text + image

    finding = found(bent, lambda text, image: 2 - bent(text, image) / 2)
    assert [claim.verdict for claim in finding.claims[:2]] == ["holds"] * 2
    ranks = finding.numbers["rank correlations"]["mean"]
    assert ranks["mild"] < -0.5 < 0 < ranks["both"]
    assert f"{ranks['both']:+.2f} over the whole grid" in finding.claims[0].figure
    assert f"the first claim does not hold (rank correlation {ranks['both']:+.2f})" in finding.remarks[0]
    assert "chosen after the whole grid had been seen" in finding.remarks[0]
    assert f"{ranks['mild']:+.2f} up to 40 %, " in finding.remarks[1]
    assert "as the first claim wants, at 2 of these 5 cuts." in finding.remarks[1]


def test_one_letter() -> None:
    """Of nine letters in the one caption and of five in the other: only the first one's cosine rises."""
    vlm = Scripted(lambda text, image: 0.1 if 0 < text < 0.15 else -text, lambda text, image: 1 + text)
    pictures = [Image.new("RGB", (8, 8))] * 2
    letter = one_letter(vlm, pictures, ["of some cat", "of cat"])  # type: ignore[arg-type]
    assert letter["mean rises"] == 0.5
    assert letter["variance rises"] == 1
    assert letter["told"] == 1
    assert letter["change of the mean"] == pytest.approx((0.1 - 0.2) / 2)
    assert letter["change of the variance"] == pytest.approx((10 / 9 * 1.2) ** 0.5 - 1)


def test_the_papers_grid_is_told() -> None:
    remark = found(lambda text, image: -text, lambda text, image: 1 + text).remarks[2]
    assert "from 28.7 to 17.8" in remark
    assert "from 0.73 to 1.17" in remark
    assert "0.0085 to 0.0108" in remark
    assert "rises to 30.7" in remark
