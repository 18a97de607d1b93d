"""`bayesvlm eval --retrieval`: what is written, that the figures are right, what is kept and what is refused."""

from __future__ import annotations

import csv
import importlib
import json
import shlex
import sys
from functools import partial
from io import BytesIO
from pathlib import Path

import pytest
import torch
from command_line import Run, run_command
from experiments.thinned import thinned
from PIL import Image

import bayesvlm_world
from bayesvlm import BayesVLM
from bayesvlm.experiments.caption_results import CaptionResult

DATA = ("-d", "openmoji-black+openmoji-colour")
ASKED = ("emoji-clip", "--retrieval", *DATA)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, cache: Path, tmp_path: Path) -> Run:
    """`bayesvlm eval ...` on the world in small, with a cache of its own, in an empty folder, without LanceDB."""
    monkeypatch.setattr(bayesvlm_world, "load", thinned)
    monkeypatch.setenv("BAYESVLM_CACHE", str(cache))
    monkeypatch.delenv("BAYESVLM_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "lancedb", None)
    monkeypatch.chdir(tmp_path)
    return partial(run_command, "eval")


def photos(folder: Path, count: int = 12) -> Path:
    """Drawings with two captions each, one of which some share; and the list of them."""
    split = thinned("openmoji-colour")
    folder.mkdir(parents=True)
    lines = ["image,caption"]
    for number in range(count):
        Image.open(BytesIO(split.images[number])).convert("RGB").save(folder / f"{number}.png")
        name = split.classes[split.labels[number]]
        lines += [f'{number}.png,"{name}"', f"{number}.png,food {number // 2}"]
    (folder / "captions.csv").write_text("\n".join(lines))
    return folder


def test_the_figures(run: Run, tmp_path: Path) -> None:
    ran = run(*ASKED, "-o", "out", "--json")
    (found,) = ran.json["retrieval"]
    there = found["directions"]["text to image"]
    splits = [thinned("openmoji-black"), thinned("openmoji-colour")]
    names = list(dict.fromkeys(split.classes[label] for split in splits for label in split.labels))
    images = [image for split in splits for image in split.images]
    labels = [names.index(split.classes[label]) for split in splits for label in split.labels]
    assert (there["queries"], there["items"]) == (len(names), len(images))
    vlm = BayesVLM.from_pretrained("emoji-clip")
    mean = vlm.similarity(images, names, progress=False).mean.T
    right = torch.tensor(labels)[mean.argmax(dim=1)] == torch.arange(len(names))
    recall = there["rankings"]["expected cosine"]["recall@1"]
    assert recall["value"] == pytest.approx(float(right.double().mean()), abs=0.51 / len(names))
    assert recall["standard_error"] == pytest.approx(float(right.double().std()) / len(names) ** 0.5, rel=0.1)
    ways = ["cosine", "cosine, cut off", "expected cosine", "lower bound", "probit", "p_best"]
    assert list(there["rankings"]) == ways
    back = found["directions"]["image to text"]
    assert (back["queries"], back["items"], back["answers_per_query"]) == (len(images), len(names), 1)
    for of in (there, back):
        for figure, winners in of["not_worse_than_best"].items():
            assert winners, figure
        for row in of["doubts"].values():
            assert 0 <= row["aurc"]["value"] <= 1
            assert 0 <= row["nothing_matches"]["auroc"] <= 1
        assert of["doubts"]["cosine"]["aurc_over_cosine"]["difference"] == 0
        assert of["doubts"]["p_best"]["aurc_over_best_plain"]["doubt"] in (
            "cosine",
            "margin",
            "standardised",
            "softmax",
        )


def test_what_is_written(run: Run, tmp_path: Path) -> None:
    ran = run(*ASKED, "-o", "out")
    assert ran.code == 0, ran.err
    assert "emoji-clip, openmoji-black+openmoji-colour, text to image" in ran.out
    out = tmp_path / "out"
    assert {path.name for path in out.iterdir()} == {"emoji-clip", "retrieval.csv", "retrieval.html"}
    kept = CaptionResult.load(out / "emoji-clip/openmoji-black-openmoji-colour/retrieval.json")
    written = json.loads((out / "emoji-clip/openmoji-black-openmoji-colour/retrieval.json").read_text())
    assert json.loads(json.dumps(kept.table)) == written["directions"]
    with (out / "retrieval.csv").open(newline="") as file:
        lines = {(line["direction"], line["name"], line["figure"]): line for line in csv.DictReader(file)}
    area = kept.table["image to text"]["doubts"]["p_best"]["aurc"]
    line = lines["image to text", "p_best", "aurc"]
    assert (float(line["value"]), float(line["standard_error"])) == (area["value"], area["standard_error"])
    page = (out / "retrieval.html").read_text()
    for sentence in ("is the right one found?", "which first answers are wrong?", "does it know that nothing matches?"):
        assert sentence in page
    assert page.count("<svg") == 2
    assert "abstaining by p_best is" in page
    assert "a flat cut-off of the cosine has an AUROC of" in page


def test_the_command_of_the_page(run: Run, tmp_path: Path) -> None:
    """Of docs/retrieval.md, on the world in small."""
    lines = (Path(__file__).parents[2] / "docs/retrieval.md").read_text(encoding="utf-8").splitlines()
    (command,) = [line for line in lines if line.startswith("bayesvlm eval emoji-clip --retrieval")]
    assert run(*shlex.split(command)[2:]).code == 0
    assert (tmp_path / "results/retrieval.html").is_file()


def test_a_second_call_keeps_what_is_there(run: Run, tmp_path: Path) -> None:
    first = run(*ASKED, "-o", "out", "--json").json
    again = run(*ASKED, "-o", "out", "--skip-existing", "--json")
    assert "measured already, kept in out/emoji-clip" in again.err
    assert again.json["retrieval"] == first["retrieval"]
    assert again.json["skipped"] == ["out/emoji-clip/openmoji-black-openmoji-colour/retrieval.json"]
    place = tmp_path / "out/emoji-clip/openmoji-black-openmoji-colour/retrieval.json"
    written = json.loads(place.read_text())
    written["inputs"]["held_out"]["seed"] = 7
    place.write_text(json.dumps(written))
    refused = run(*ASKED, "-o", "out")
    assert refused.code == 2
    assert "was made from other inputs (held_out) and would be replaced" in refused.err
    assert run(*ASKED, "-o", "out", "--overwrite").code == 0
    assert json.loads(place.read_text())["inputs"]["held_out"]["seed"] == 0


def test_captions_of_ones_own(run: Run, tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    (folder / "3.png").write_bytes(b"no image")
    ran = run("emoji-clip", "--retrieval", "-d", "photos", "-d", "photos/captions.csv", "--json")
    first, second = ran.json["retrieval"]
    assert first["directions"] == second["directions"]
    assert first["facts"]["images"] == 11
    assert "skipped 1 that cannot be used" in ran.err
    there = first["directions"]["text to image"]
    assert there["queries_without_an_answer"] == 1  # that of the image alone; the other caption has another image
    assert "nothing answers 1 queries, which count for no figure" in ran.err
    refused = run("emoji-clip", "--retrieval", "-d", "photos", "--strict", "-o", "other")
    assert refused.code == 2
    assert "3.png" in refused.err


def test_sets_where_all_queries_hang_together(run: Run, tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", 4)
    text = (folder / "captions.csv").read_text()
    (folder / "captions.csv").write_text(text + "".join(f"\n{number}.png,everything" for number in range(4)))
    ran = run("emoji-clip", "--retrieval", "-d", "photos", "--json")
    assert "saying that nothing matches, text to image, was left out: All 7 queries share items" in ran.err
    (found,) = ran.json["retrieval"]
    assert found["directions"]["text to image"]["doubts"]["cosine"]["nothing_matches"] is None
    page = (tmp_path / "results/retrieval.html").read_text()
    assert "does it know that nothing matches?" not in page


def test_models_that_can_do_less(run: Run) -> None:
    ran = run("emoji-prolip", "--retrieval", *DATA, "--json")
    (found,) = ran.json["retrieval"]
    there = found["directions"]["text to image"]
    assert list(there["rankings"]) == ["cosine", "cosine, cut off", "expected cosine", "lower bound", "probit"]
    assert "p_best" not in there["doubts"]
    assert "p_best was left out: This model predicts a variance for every input" in ran.err


def test_bad_asking(run: Run, tmp_path: Path) -> None:
    for arguments, sentence in (
        (("-d", "nowhere"), "There is no caption set 'nowhere'"),
        ((*DATA, "--methods", "plain"), "--methods is about labelled sets, and --retrieval about captions"),
        ((*DATA, "--ood", "flags"), "--ood is about labelled sets"),
        ((*DATA, "--template", "{c}"), "--template is about labelled sets"),
        ((*DATA, "--views", 3), "--views is about labelled sets"),
        ((*DATA, *DATA), "would be kept in one file"),
        ((), "Name at least one model and one set"),
    ):
        ran = run("emoji-clip", "--retrieval", *arguments)
        assert ran.code == 2, sentence
        assert sentence in ran.err
        assert "Traceback" not in ran.err
    photos(tmp_path / "photos")
    for number in range(12):
        (tmp_path / f"photos/{number}.png").write_bytes(b"no image")
    ran = run("emoji-clip", "--retrieval", "-d", "photos")
    assert ran.code == 2
    assert "photos has" in ran.err


def test_damaged_results_are_refused(run: Run, tmp_path: Path) -> None:
    assert run(*ASKED).code == 0
    place = tmp_path / "results/emoji-clip/openmoji-black-openmoji-colour/retrieval.json"
    for content in ("{", "{}", json.dumps({"schema": 9})):
        place.write_text(content)
        ran = run(*ASKED)
        assert ran.code == 2
        assert "is no result that this version can read" in ran.err


def test_it_needs_no_lancedb(run: Run) -> None:
    with pytest.raises(ImportError):
        importlib.import_module("lancedb")
