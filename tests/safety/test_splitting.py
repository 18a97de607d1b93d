"""Halves of a labelled set, and images that tuned tau."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bayesvlm import BayesVLM, BayesVLMError, Features
from bayesvlm.core.errors import BayesVLMWarning
from bayesvlm.core.fingerprints import MOST, packed
from bayesvlm.safety import Detector, PredictionSets, Selector, halves
from bayesvlm.safety.splitting import check_fresh
from bayesvlm.testing.tiny import save_tiny_clip
from safety.known import fitted, known_classes, known_images


@pytest.mark.parametrize("labels", [11, [0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 3], list("aabbbccccdd"), torch.arange(10) % 3])
def test_halves_are_disjoint_and_balanced(labels: object) -> None:
    tune, calibrate = halves(labels)  # type: ignore[arg-type]
    count = labels if isinstance(labels, int) else len(labels)  # type: ignore[arg-type]
    assert sorted([*tune.tolist(), *calibrate.tolist()]) == list(range(count))
    assert abs(len(tune) - len(calibrate)) <= 1
    again, _ = halves(labels)  # type: ignore[arg-type]
    assert torch.equal(again, tune)
    if isinstance(labels, int):
        return
    given = list(labels)  # type: ignore[call-overload]
    given = [int(label) if isinstance(label, torch.Tensor) else label for label in given]
    for label in set(given):
        both = [sum(given[row] == label for row in rows.tolist()) for rows in (tune, calibrate)]
        assert abs(both[0] - both[1]) <= 1


def test_seeds_give_other_halves_and_bad_ones_are_refused() -> None:
    assert any(not torch.equal(halves(100, 0)[0], halves(100, seed)[0]) for seed in range(1, 4))
    one_of_each = [frozenset(halves(range(100), seed)[1].tolist()) for seed in range(20)]
    assert len(set(one_of_each)) == 20
    shares = torch.tensor([[row in half for row in range(100)] for half in one_of_each]).double().mean(dim=0)
    assert float(shares.min()) > 0, "no row is always on one side"
    assert float(shares.max()) < 1
    for given in (1, 0, [], [3], "ab", None, 2.5):
        with pytest.raises(BayesVLMError):
            halves(given)  # type: ignore[arg-type]
    with pytest.raises(BayesVLMError, match=r"Row 1 has the label \[2\]"):
        halves([1, [2]])


def test_images_that_tuned_tau_are_known_again() -> None:
    images, labels = known_images(300)
    rows, others = halves(labels)
    vlm = fitted().tune(images[rows], labels[rows], known_classes(), progress=False)
    check_fresh(vlm, images[others], None)
    check_fresh(vlm, known_images(2000, seed=9)[0], None)
    nearly = Features(images.activations[rows] * (1 + 1e-7)).to(torch.float32)  # as another batch would round
    with pytest.raises(BayesVLMError, match=r"150 of the 150 calibration images \(rows 0, 1, 2, 3, 4, \.\.\.\)"):
        check_fresh(vlm, nearly, None)
    one = Features(torch.cat([images.activations[others], images.activations[rows[:1]]]))
    classes = known_classes()
    with pytest.warns(BayesVLMWarning, match=r"1 of the 151 calibration images \(row 150\) is .*by chance"):
        Detector.calibrate(vlm, one, classes)
    two = Features(torch.cat([images.activations[others], images.activations[rows[:2]]]))
    with pytest.raises(BayesVLMError, match=r"2 of the 152 calibration images \(rows 150, 151\).*halves"):
        Detector.calibrate(vlm, two, classes)
    for kind in (PredictionSets, Selector):
        with pytest.raises(BayesVLMError, match="tau was tuned on"):
            kind.calibrate(vlm, images[rows], labels[rows], classes, 0.2)  # type: ignore[attr-defined]
    Detector.calibrate(vlm, two, classes, predictive="plain")  # tau has no part in it
    Detector.calibrate(vlm, two, classes, score="mcm")
    with pytest.raises(BayesVLMError, match="tau was tuned on"):
        Detector.calibrate(vlm.replace(link="centred"), two, classes)
    Detector.calibrate(vlm.replace(tau=3.0), two, classes)  # not tuned any more


def test_they_are_known_again_after_saving(tmp_path: Path) -> None:
    vlm = BayesVLM.from_pretrained(save_tiny_clip(tmp_path / "model"), device="cpu")
    generator = torch.Generator().manual_seed(0)
    images = list(torch.randint(0, 256, (24, 3, 40, 40), generator=generator).to(torch.uint8))
    names = ["a dog", "a cat"]
    vlm.fit([(images, [f"{name} {k}" for k in range(12) for name in names])], progress=False)
    vlm.tune(images[:12], names * 6, names, provenance={"tuned_on": "a set"}, progress=False)
    folder = vlm.save_pretrained(tmp_path / "kept")
    again = BayesVLM.from_pretrained(folder, device="cpu")
    assert len(json.loads((folder / "config.json").read_text())["provenance"]["tuned_images"]["fingerprints"]) == 192
    assert "12, known by fingerprints" in (folder / "README.md").read_text()
    with pytest.raises(BayesVLMError, match="1 of the 10 calibration images"):
        Detector.calibrate(again, images[11:21], names, 0.2)
    with pytest.raises(BayesVLMError, match="tau was tuned on 'a set', the very images"):
        Detector.calibrate(again, images[12:], names, 0.2, source="a set")
    Detector.calibrate(again, images[12:], names, 0.2, source="another set")


def test_some_of_a_large_set_that_tuned_tau_are_no_chance() -> None:
    """Of a set of 100 times as many as are kept, one in a hundred of its own images is found again."""
    images, _ = known_images(1000)
    vlm = fitted()
    kept = packed(images.activations[:5])
    check_fresh(vlm.with_provenance(tuned_images={**kept, "images": 5}), images[5:], None)
    with pytest.warns(BayesVLMWarning, match=r"5 of the 1000 .*by chance"):
        check_fresh(vlm.with_provenance(tuned_images={**kept, "images": 5}), images, None)
    with pytest.raises(BayesVLMError, match="5 of the 1000 calibration images"):
        check_fresh(vlm.with_provenance(tuned_images={**kept, "images": 100 * MOST}), images, None)
