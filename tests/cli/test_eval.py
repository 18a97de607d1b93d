"""`bayesvlm eval`: models x sets x methods in one call, what is written, what is not done twice, what is refused."""

from __future__ import annotations

import json
import shutil
from functools import partial
from io import BytesIO
from pathlib import Path

import pytest
from command_line import Run, run_command
from experiments.thinned import thinned
from PIL import Image

import bayesvlm_world
from bayesvlm import BayesVLM
from bayesvlm.embedded import embedded_model
from bayesvlm.experiments.methods import METHODS, SINGLE
from bayesvlm.experiments.zero_shot import Result as Measured
from bayesvlm.experiments.zero_shot import ZeroShot

CLIP = ("emoji-clip", "-d", "openmoji-black")


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


def test_models_sets_and_methods_in_one_call(run: Run, tmp_path: Path) -> None:
    methods = "--methods", "all", "--views", 3
    ran = run("emoji-clip", "emoji-siglip", "-d", "new-drawing", "-d", "openmoji-black", *methods, "-o", "out")
    assert ran.code == 0, ran.err
    out = tmp_path / "out"
    found = {str(path.relative_to(out)) for path in out.rglob("*.json")}
    assert found == {f"{m}/{s}.json" for m in ("emoji-clip", "emoji-siglip") for s in ("new-drawing", "openmoji-black")}
    assert {path.name for path in out.iterdir() if path.is_file()} == {
        "table.md",
        "table.tex",
        "table.csv",
        "report.html",
    }
    result = Measured.load(out / "emoji-clip/openmoji-black.json")
    assert list(result.scores) == [*METHODS]
    top1, nlpd = result.scores["Bayes"].top1.value, result.scores["Bayes"].nlpd.value
    (line,) = [line for line in ran.out.splitlines() if "openmoji-black" in line and " Bayes  " in line][:1]
    assert f"{100 * top1:.1f} ±" in line
    assert f"{nlpd:.2f} ±" in line
    assert "bayesvlm eval emoji-clip emoji-siglip" in (out / "report.html").read_text()


def test_a_model_with_variances_of_its_own(run: Run, tmp_path: Path) -> None:
    ran = run("emoji-prolip", *CLIP, "-o", "out")
    assert ran.code == 0, ran.err
    prolip, clip = (Measured.load(tmp_path / f"out/{m}/openmoji-black.json") for m in ("emoji-prolip", "emoji-clip"))
    assert list(prolip.scores) == ["mean", "native", "ProbCosine"]
    assert list(clip.scores) == [*SINGLE], "each has the methods that suit it"
    assert f"emoji-prolip, t = {prolip.facts['scale']:.4g}" in ran.out
    assert (
        "7 ways to predict (plain, temperature, raised temperature, Bayes, mean, native, ProbCosine)"
        in (tmp_path / "out/report.html").read_text()
    )
    assert prolip.scores["mean"].nlpd.value > prolip.scores["ProbCosine"].nlpd.value
    for model, methods, sentence in (
        ("emoji-prolip", "bayes", "'Bayes' is not for a model that predicts its variances; use some of mean, native"),
        ("emoji-clip", "native", "'native' is not for a model that predicts no variances; use some of plain"),
    ):
        refused = run(model, "-d", "openmoji-black", "--methods", methods, "-o", "other")
        assert refused.code == 2
        assert sentence in refused.err


def test_what_is_there_already_is_not_done_again(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("emoji-clip", "-d", "openmoji-black", "-o", "out", "--skip-existing")
    assert run(*asked).code == 0
    honest, ran = ZeroShot.run, []
    monkeypatch.setattr(ZeroShot, "run", lambda self, data: ran.append(data.name) or honest(self, data))
    second = run(*asked)
    assert ran == []
    assert "emoji-clip on openmoji-black: measured already" in second.err
    third = run(*asked, "--methods", "plain,bayes")
    assert (third.code, ran) == (2, [])
    assert "openmoji-black.json was made from other inputs (validation, methods) and would be replaced" in third.err
    assert run(*asked, "--methods", "plain,bayes", "--overwrite").code == 0
    assert ran == ["openmoji-black"]
    assert list(Measured.load(tmp_path / "out/emoji-clip/openmoji-black.json").scores) == ["plain", "Bayes"]


@pytest.mark.parametrize(
    ("form", "begins"), [("md", "| model |"), ("latex", "\\begin{tabular}"), ("csv", "model,data")]
)
def test_the_table_alone(run: Run, tmp_path: Path, form: str, begins: str) -> None:
    ran = run("emoji-clip", "-d", "openmoji-black", "--table", form)
    assert ran.out.startswith(begins)
    assert ran.out == (tmp_path / "results" / f"table.{'tex' if form == 'latex' else form}").read_text()


def test_json(run: Run, tmp_path: Path) -> None:
    ran = run("emoji-clip", "-d", "openmoji-black", "--json")
    (result,) = json.loads(ran.out)["results"]
    assert result["methods"] == json.loads((tmp_path / "results/emoji-clip/openmoji-black.json").read_text())["methods"]
    assert set(result["methods"]) == set(SINGLE)


def folder_of(path: Path, classes: int = 3) -> Path:
    split = thinned("new-drawing")
    for image, label in zip(split.images, split.labels, strict=True):
        place = path / split.classes[label % classes].replace(" ", "_")
        place.mkdir(parents=True, exist_ok=True)
        number = len(list(place.iterdir()))
        Image.open(BytesIO(image)).convert("RGB").save(place / f"{number}.png")
    return path


def test_a_folder_of_one_s_own(run: Run, tmp_path: Path) -> None:
    mine = folder_of(tmp_path / "mine")
    broken = next(iter(next(iter(sorted(mine.iterdir()))).iterdir()))
    broken.write_bytes(b"no image")
    ran = run("emoji-clip", "-d", mine, "--validation", "validation", "--template", "a drawing of {c}")
    assert ran.code == 0, ran.err
    assert f"{tmp_path.name}/mine: skipped 1 that cannot be used" in ran.err
    result = Measured.load(tmp_path / f"results/emoji-clip/{tmp_path.name}-mine.json")
    assert result.facts["images"] == len(thinned("new-drawing")) - 1
    assert list(result.facts["skipped"]) == [broken.relative_to(mine).as_posix()]
    assert result.inputs["data"]["template"] == "a drawing of {c}"
    strict = run("emoji-clip", "-d", mine, "--strict", "--methods", "plain", "--overwrite")
    assert strict.code == 2
    assert str(broken) in strict.err


def test_two_sets_of_one_name(run: Run, tmp_path: Path) -> None:
    first, second = folder_of(tmp_path / "x/images"), folder_of(tmp_path / "y/images", classes=2)
    for data in (first, second):  # in two calls: the second's table and page have the first as well
        ran = run("emoji-clip", "-d", data, "--methods", "plain")
        assert ran.code == 0, ran.err
    assert {path.name for path in (tmp_path / "results/emoji-clip").glob("*.json")} == {
        "x-images.json",
        "y-images.json",
    }
    assert (tmp_path / "results/table.md").read_text().startswith("| model | metric | method | y/images | x/images |")
    page = (tmp_path / "results/report.html").read_text()
    assert "x/images" in page
    assert "y/images" in page
    assert "x/images" not in ran.out, "what is printed is of this call"
    third = folder_of(tmp_path / "elsewhere/x/images")
    ran = run("emoji-clip", "-d", first, "-d", third, "--methods", "plain")
    assert ran.code == 2
    assert "'x/images' and 'x/images' would be kept in one file" in ran.err


def test_a_result_from_other_inputs_is_not_replaced(run: Run, tmp_path: Path) -> None:
    mine, other = folder_of(tmp_path / "pacs/test"), folder_of(tmp_path / "elsewhere/pacs/test", classes=2)
    asked = ("--methods", "plain", "-o", "out")
    assert run("emoji-clip", "-d", mine, *asked).code == 0
    files = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    ran = run("emoji-clip", "-d", other, *asked)
    assert ran.code == 2
    assert "pacs-test.json was made from other inputs (data) and would be replaced; name another folder" in ran.err
    assert {path: path.read_bytes() for path in files} == files
    assert run("emoji-clip", "-d", f"{mine}/../test", *asked).code == 0, "the very same may be measured again"
    assert run("emoji-clip", "-d", other, *asked, "--overwrite").code == 0
    (tmp_path / "out/report.html").write_text("<title>mine</title>")
    assert "report.html is the page of something else" in run("emoji-clip", "-d", other, *asked).err


def test_an_unwritable_place_is_refused_before_the_work(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BayesVLM, "from_pretrained", lambda *_, **__: pytest.fail("it began all the same"))
    (tmp_path / "file").touch()
    for place in ("file", "file/below"):
        assert "Results cannot be saved to" in run(*CLIP, "-o", place).err


def test_a_folder_named_like_a_split(run: Run, tmp_path: Path) -> None:
    folder_of(tmp_path / "validation")
    refused = run("emoji-clip", "-d", "validation", "--methods", "plain")
    assert "'validation' is a split of the embedded world and a folder here; write ./validation" in refused.err
    assert run("emoji-clip", "-d", "./validation", "--methods", "plain").code == 0


def test_a_result_that_cannot_be_read_is_measured_again_when_told_to(run: Run, tmp_path: Path) -> None:
    asked = (*CLIP, "--methods", "plain", "--skip-existing")
    assert run(*asked).code == 0
    path = tmp_path / "results/emoji-clip/openmoji-black.json"
    path.write_text("{}")
    assert "is there, and is no result that this version can read; name another folder" in run(*asked).err
    assert run(*asked, "--overwrite").code == 0
    assert Measured.load(path).scores


def test_strict_looks_at_earlier_results_too(run: Run, tmp_path: Path) -> None:
    mine = folder_of(tmp_path / "mine")
    next(mine.rglob("*.png")).write_bytes(b"no image")
    asked = ("emoji-clip", "-d", mine, "--methods", "plain", "--skip-existing")
    assert run(*asked).code == 0
    assert "skipped 1 that cannot be used" in run(*asked).err, "said again"
    assert run(*asked, "--strict").code == 2


def test_list(run: Run, tmp_path: Path) -> None:
    folder_of(tmp_path / "data/officehome/Art")
    ran = run("--list")
    assert ran.code == 0
    for name in ("openmoji-black", "flags", "food101", "imagenet-r"):
        assert name in ran.out
    assert "not here" in ran.out
    listed = json.loads(run("--list", "--json").out)
    assert listed["known"]["food101"]["found"] is None
    assert listed["known"]["officehome"]["found"] == "data/officehome"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Name at least one model and one set"),
        (["emoji-clip"], "Name at least one model and one set"),
        ([*CLIP, "-d", "openmoji-blck"], "There is no set 'openmoji-blck'; did you mean 'openmoji-black'"),
        ([*CLIP, "-d", "food101"], "food101"),
        ([*CLIP, "--methods", "magic"], "--methods 'magic': use some of plain, temperature"),
        ([*CLIP, "--methods", ","], "--methods ',': use some of"),
        ([*CLIP, "--table", "html"], "--table 'html' is not known; use md or latex or csv"),
        ([*CLIP, "--template", "a cat"], "has no place for the class name"),
        ([*CLIP, "--methods", "tta", "--keep", "0"], "keep=0.0; it is the share"),
        ([*CLIP, "--methods", "tta", "--views", "0"], "--views is 0; expected a whole number of at least 1"),
        (["no/such-model", "-d", "openmoji-black"], "no/such-model"),
    ],
)
def test_what_is_refused(run: Run, arguments: list[str], sentence: str) -> None:
    ran = run(*arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert sentence in ran.err
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1, "one sentence, no traceback"


def test_one_class_cannot_be_measured(run: Run, tmp_path: Path) -> None:
    ran = run("emoji-clip", "-d", folder_of(tmp_path / "single", classes=1), "--methods", "plain")
    assert ran.code == 2
    assert "telling classes apart takes two" in ran.err


def test_a_model_without_a_posterior(run: Run, tmp_path: Path) -> None:
    from bayesvlm.testing.tiny import save_tiny_clip

    model = save_tiny_clip(tmp_path / "tiny")
    assert "has no posterior; fit one" in run(model, "-d", "openmoji-black", "--validation", "validation").err
    assert run(model, "-d", "openmoji-black", "--methods", "plain").code == 0
    both = run("emoji-clip", model, "-d", "openmoji-black", "--methods", "plain,bayes", "-o", "both")
    assert "has no posterior" in both.err
    assert not (tmp_path / "both").exists(), "nothing is measured before everything can be"


def test_without_validation_images_the_temperature_is_left_out_and_the_rest_measured(run: Run, tmp_path: Path) -> None:
    BayesVLM.from_pretrained("emoji-clip").save_pretrained(tmp_path / "posterior")
    ran = run("posterior", "-d", "openmoji-black", "--json")
    assert ran.code == 0, ran.err
    sentence = "temperature was left out: no labelled images to find it on were named (--validation SET)."
    assert f"posterior on openmoji-black: {sentence}" in ran.err
    (result,) = json.loads(ran.out)["results"]
    assert list(result["methods"]) == ["plain", "Bayes"]
    assert list(result["facts"]["left_out"]) == ["temperature", "raised temperature"]
    assert sentence in (tmp_path / "results/report.html").read_text()
    assert sentence in run("posterior", "-d", "openmoji-black", "--skip-existing").err, "said again"
    tempered = run("posterior", "-d", "openmoji-black", "--validation", "validation", "--overwrite")
    assert "left out" not in tempered.err
    assert " temperature " in tempered.out
    alone = run("posterior", "-d", "openmoji-black", "--methods", "temperature")
    assert alone.code == 2
    assert "the method temperature needs labelled images" in alone.err
    both = run("posterior", "-d", "openmoji-black", "--methods", "Raised-Temperature,temperature")
    assert both.code == 2
    assert "the method temperature needs labelled images" in both.err


def test_a_posterior_whose_model_has_moved(run: Run, tmp_path: Path) -> None:
    folder = shutil.copytree(embedded_model("emoji-clip"), tmp_path / "was-here")
    BayesVLM.from_pretrained("emoji-clip").save_pretrained(tmp_path / "posterior", model=str(folder))
    moved = folder.rename(tmp_path / "is-here")
    asked = ("posterior", "-d", "openmoji-black", "--methods", "bayes")
    assert "if it has moved, say where" in run(*asked).err
    assert run(*asked, "--model", moved).code == 0
    assert run("emoji-clip", *asked[1:]).code == 0
    here, there = (tmp_path / "results" / name / "openmoji-black.json" for name in ("posterior", "emoji-clip"))
    assert Measured.load(here).scores["Bayes"].nlpd == Measured.load(there).scores["Bayes"].nlpd
    assert "goes with one posterior, and there are 2" in run("emoji-siglip", *asked, "--model", moved).err
