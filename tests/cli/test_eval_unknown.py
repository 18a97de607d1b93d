"""`bayesvlm eval --ood` and `--selective`: what is written, that the figures are right, what is refused."""

from __future__ import annotations

import csv
import json
from functools import partial
from io import BytesIO
from pathlib import Path

import pytest
import torch
from command_line import Run, run_command
from experiments.thinned import thinned
from PIL import Image
from sklearn.metrics import average_precision_score, roc_auc_score

import bayesvlm_world
from bayesvlm import BayesVLM
from bayesvlm.experiments.failures import Failures
from bayesvlm.experiments.outside import Outside
from bayesvlm.safety import familiarity

KNOWN = ("emoji-clip", "-d", "new-drawing")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, cache: Path, tmp_path: Path) -> Run:
    """`bayesvlm eval ...` on the world in small, with a cache of its own, in an empty folder."""
    monkeypatch.setattr(bayesvlm_world, "load", thinned)
    monkeypatch.setenv("BAYESVLM_CACHE", str(cache))
    monkeypatch.delenv("BAYESVLM_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return partial(run_command, "eval")


def photos(folder: Path, names: tuple[str, ...] = ("",), count: int = 6) -> Path:
    split = thinned("flags")
    for name in names:
        for number in range(count):
            place = folder / name / f"{number}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.open(BytesIO(split.images[number + 2 * len(name)])).convert("RGB").save(place)
    return folder


def test_scores_by_sets_of_unknown_things(run: Run, tmp_path: Path) -> None:
    photos(tmp_path / "strangers")
    shifted = ("-d", "openmoji-black", "--false-alarms", 0.1)
    ran = run(*KNOWN, *shifted, "--ood", "flags", "--ood", "strangers", "-o", "out", "--json")
    (found,) = ran.json["ood"]
    stranger = f"{tmp_path.name}/strangers"
    assert found["kinds"] == {
        "new-drawing": "familiar",
        "openmoji-black": "shifted",
        "flags": "unknown",
        stranger: "unknown",
    }
    vlm = BayesVLM.from_pretrained("emoji-clip")
    known, flags = thinned("new-drawing"), thinned("flags")
    both = [*known.images, *flags.images]
    values = familiarity(vlm, both, list(known.classes), templates=["{c}"], progress=False)
    truth = [1] * len(known) + [0] * len(flags)
    row = found["table"]["flags"]["entropy, Bayes"]
    assert row["auroc"]["value"] == pytest.approx(roc_auc_score(truth, values), abs=2e-3)
    assert row["aupr"]["value"] == pytest.approx(average_precision_score(truth, values), abs=5e-3)
    assert row["auroc"]["low"] < row["auroc"]["value"] < row["auroc"]["high"]
    mcm = found["table"]["flags"]["MCM"]
    assert row["over_mcm"]["difference"] == pytest.approx(row["auroc"]["value"] - mcm["auroc"]["value"])
    assert mcm["over_mcm"]["difference"] == 0
    assert set(found["sets"]["sets"]) == {"plain", "temperature", "raised temperature", "Bayes"}
    out = tmp_path / "out"
    kept = Outside.load(out / "emoji-clip/new-drawing/ood.json")
    assert kept.table["flags"]["entropy, Bayes"]["auroc"]["value"] == row["auroc"]["value"]
    assert {path.name for path in out.iterdir()} == {"emoji-clip", "ood.csv", "unknown.html"}
    with (out / "ood.csv").open(newline="") as file:
        lines = {(line["data"], line["score"], line["figure"]): line for line in csv.DictReader(file)}
    assert float(lines["flags", "entropy, Bayes", "auroc"]["value"]) == row["auroc"]["value"]
    page = (out / "unknown.html").read_text()
    assert "On flags the best score is" in page
    assert "entropy, Bayes, the score a detector has unless told otherwise, is" in page
    assert page.count("<img") == 16


def test_the_table_on_the_terminal(run: Run) -> None:
    ran = run(*KNOWN, "--ood", "flags")
    assert ran.code == 0, ran.err
    assert "emoji-clip, known: new-drawing (* DeLong's p < 0.05)" in ran.out
    assert "half of it has 13 images, and a false-alarm rate of 0.05 needs 19 to calibrate on" in ran.err
    assert "prediction sets, 90 % asked for" in ran.out
    assert "the page is results/unknown.html" in ran.out


def test_what_would_be_flagged(run: Run) -> None:
    (found,) = run(*KNOWN, "-d", "openmoji-black", "--ood", "flags", "--false-alarms", 0.2, "--json").json["ood"]
    shares = {name: found["flagged"][name]["entropy, Bayes"] for name in found["flagged"]}
    assert list(shares) == ["new-drawing", "openmoji-black", "flags"]
    assert shares["flags"] > shares["new-drawing"]


def test_wrong_answers(run: Run, tmp_path: Path) -> None:
    ran = run(*KNOWN, "-d", "openmoji-black", "--selective", "--json")
    found = {each["inputs"]["data"]["name"]: each["scores"] for each in ran.json["selective"]}
    assert list(found) == ["new-drawing", "openmoji-black"]
    names = ["plain", "temperature", "raised temperature", "Bayes", "entropy, Bayes", "epistemic"]
    assert list(found["openmoji-black"]) == names
    assert "ICPE was left out: on validation:" in ran.err
    vlm, data = BayesVLM.from_pretrained("emoji-clip"), thinned("openmoji-black")
    prediction = vlm.classify(list(data.images), list(data.classes), templates=["{c}"])
    right = prediction.labels == torch.tensor(data.labels)
    expected = roc_auc_score((~right).tolist(), (1 - prediction.probs.amax(dim=1).double()).tolist())
    assert found["openmoji-black"]["Bayes"]["auroc"]["value"] == pytest.approx(expected, abs=5e-3)
    for of in found["openmoji-black"].values():
        assert 0 <= of["e_aurc"] <= of["aurc"] <= 1
        assert of["coverage_at_risk"]["0.01"] <= of["coverage_at_risk"]["0.1"]
    kept = Failures.load(tmp_path / "results/emoji-clip/openmoji-black/selective.json")
    assert kept.table == found["openmoji-black"]
    assert "which answers are wrong?" in (tmp_path / "results/unknown.html").read_text()


def test_the_rival_where_it_has_enough_images(run: Run, tmp_path: Path) -> None:
    for place, count in (("test", 4), ("fit", 12)):
        photos(tmp_path / place, ("cat", "rabbit"), count)
    asked = ("emoji-clip", "-d", "test", "--selective", "--validation", "fit", "--template", "{c}", "--json")
    (found,) = run(*asked).json["selective"]
    assert "ICPE" in found["scores"]
    assert "ICPE" not in found["facts"]["left_out"]


def test_both_at_once_and_a_model_with_variances_of_its_own(run: Run, tmp_path: Path) -> None:
    ran = run("emoji-prolip", "-d", "new-drawing", "--ood", "flags", "--selective", "--json")
    assert ran.code == 0, ran.err
    assert "entropy, Bayes" in ran.json["ood"][0]["scores"]
    assert list(ran.json["selective"][0]["scores"]) == ["mean", "native", "ProbCosine"]


def test_words_for_what_images_are_not(run: Run, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("lorry\nharbour\nmicroscope\n")
    asked = (*KNOWN, "--ood", "flags", "--negatives", "words.txt")
    (found,) = run(*asked, "--json").json["ood"]
    assert "NegLabel" in found["scores"]
    (tmp_path / "words.txt").write_text("Pizza\nharbour\n")
    assert "1 of the negatives are among the classes of new-drawing, such as 'Pizza'" in run(*asked, "-o", "x").err


def test_known_classes_among_the_unknown_are_named(run: Run, tmp_path: Path) -> None:
    photos(tmp_path / "strangers", ("PIZZA", "red_apple", "lorry"))
    asked = (*KNOWN, "--ood", "strangers", "-o", "out")
    refused = run(*asked)
    assert refused.code == 2
    assert "2 of its classes are among the 118 known ones: 'PIZZA', 'red apple'; remove their images" in refused.err
    kept = run(*asked, "--keep-known")
    assert kept.code == 0, kept.err
    assert "2 classes of" in kept.out
    assert json.loads((tmp_path / "out/emoji-clip/new-drawing/ood.json").read_text())["facts"]["known_all_the_same"]


def test_a_result_from_other_inputs_is_not_replaced(run: Run, tmp_path: Path) -> None:
    asked = (*KNOWN, "--ood", "flags")
    assert run(*asked).code == 0
    assert run(*asked).code == 0, "the very same may be measured again"
    other = run(*asked, "--false-alarms", 0.2)
    assert "ood.json was made from other inputs (false_alarms) and would be replaced" in other.err
    assert run(*asked, "--false-alarms", 0.2, "--overwrite").code == 0
    photos(tmp_path / "strangers")
    changed = run(*KNOWN, "--ood", "strangers")
    assert "unknown.html is the page of something else (its unknown: flags, now strangers)" in changed.err
    usual = run(*KNOWN, "--methods", "plain")
    assert usual.code == 0
    assert "left out of the table" not in usual.err, "the usual tables do not mind what lies beside them"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--ood", "inaturalist"], "is not below data; unpack iNaturalist.tar.gz"),
        (["--ood", "nothing"], "'nothing' is neither a known data set"),
        (["--ood", "empty"], "empty holds no images; name a folder of image files"),
        (["--ood", "broken"], "has no image that can be read"),
        (["--ood", "alone"], "alone has one image that can be read; a standard error takes two"),
        (["--ood", "new-drawing"], "'new-drawing' is named twice; a set is either known or unknown"),
        (["--ood", "openmoji-black"], "openmoji-black is to be unknown, and 30 of its classes are among the 118 known"),
        (["-d", "unseen-concepts", "--ood", "flags"], "unseen-concepts has 13 other classes: measure it in a call"),
        (["--ood", "flags", "--false-alarms", "0"], "--false-alarms is 0; it is a share between 0 and 1"),
        (["--ood", "flags", "--miss", "1"], "--miss is 1; it is a share between 0 and 1"),
        (["--ood", "flags", "--table", "md"], "--table is for the usual tables; leave it out with --ood"),
        (["--selective", "--skip-existing"], "--skip-existing is for the usual tables"),
        (["--keep-known"], "--keep-known is about unknown things; name a set of them with --ood"),
        (["--selective", "--negatives", "words.txt"], "--negatives is about unknown things"),
        (["--ood", "flags", "--negatives", "no.txt"], "The file of negatives no.txt cannot be read"),
    ],
)
def test_what_is_refused(run: Run, tmp_path: Path, arguments: list[str], sentence: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/a.png").write_bytes(b"no image")
    photos(tmp_path / "alone", count=1)
    ran = run(*KNOWN, *arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert sentence in ran.err
    assert [line for line in ran.err.splitlines() if line.startswith("error: ")], ran.err
    assert "Traceback" not in ran.err


def test_the_list_names_sets_of_unknown_things(run: Run, tmp_path: Path) -> None:
    photos(tmp_path / "data/SUN/images")
    listed = json.loads(run("--list", "--json").out)["unknown"]
    assert list(listed) == ["inaturalist", "sun", "places", "textures"]
    assert listed["sun"]["found"] == "data/SUN/images"
    assert listed["places"]["found"] is None
    assert "unknown things, for --ood" in run("--list").out
