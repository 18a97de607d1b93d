"""`bayesvlm detect`: calibrated on familiar images, run on others, asked by `classify`; what is kept and refused."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
import torch
from command_line import Run, run_command
from PIL import Image

from bayesvlm import BayesVLM, world
from bayesvlm.artifacts.hub import find_posterior
from bayesvlm.cli.answering import Answering
from bayesvlm.safety import Detector, PredictionSets, Selector, familiarity

GROUP = "food-drink"
PROMPT = ("--template", "{c}")


def draw(folder: Path, split: str, group: str | None, by_class: bool) -> None:
    part = world.load(split) if group is None else world.load(split).group(group)
    for number, (image, label) in enumerate(zip(part.images, part.labels, strict=True)):
        name = part.classes[label].replace(" ", "_").replace("/", "_")
        place = folder / (f"{name}/{number}.png" if by_class else f"{number}.png")
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.open(BytesIO(image)).convert("RGB").save(place)
        if group is None and number == 11:
            return


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """familiar/ with class folders, photos/ with strangers, detector/ with all that can be calibrated."""
    home = tmp_path_factory.mktemp("detect")
    draw(home / "familiar", "new-drawing", GROUP, by_class=True)
    draw(home / "photos/strangers", "flags", None, by_class=False)
    draw(home / "photos/known", "openmoji-colour", GROUP, by_class=False)
    for path in sorted((home / "photos/known").iterdir())[12:]:
        path.unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setenv("BAYESVLM_CACHE", str(home / "cache"))
        levels = ("--false-alarms", 0.1, "--sets", 0.2, "--risk", 0.5)
        made = run_command("detect", "calibrate", "emoji-clip", "familiar", *PROMPT, *levels)
        assert made.code == 0, made.err
        assert "saved to detector; `bayesvlm detect run detector photos/" in made.out
    return home


@pytest.fixture
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(home)
    monkeypatch.setenv("BAYESVLM_CACHE", str(home / "cache"))
    before = set(home.iterdir())
    yield home
    for path in set(home.iterdir()) - before:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def images(home: Path) -> list[Path]:
    return sorted((home / "photos").rglob("*.png"))


# Calibrate ------------------------------------------------------------------------------------------------------------


def test_what_is_in_the_folder(here: Path) -> None:
    kinds = ("detector", "prediction-sets", "selector")
    names = {"detect.json"} | {f"{kind}{suffix}" for kind in kinds for suffix in (".json", ".safetensors")}
    assert {path.name for path in (here / "detector").iterdir()} == names
    about = json.loads((here / "detector/detect.json").read_text())
    assert (about["posterior"], about["images"]) == ("emoji-clip", f"{here.name}/familiar")
    vlm = BayesVLM.from_pretrained("emoji-clip")
    detector = Detector.load("detector", vlm)
    names = [path.name.replace("_", " ") for path in sorted((here / "familiar").iterdir())]
    assert detector.calibrated_for.names == tuple(names), "the classes are those of the folders"
    familiar = sorted((here / "familiar").rglob("*.png"))
    expected = familiarity(vlm, familiar, names, templates=["{c}"], progress=False).sort().values
    torch.testing.assert_close(detector.scores, expected, rtol=1e-4, atol=1e-4)
    assert (PredictionSets.load("detector", vlm).miss, Selector.load("detector", vlm).risk) == (0.2, 0.5)


def test_json_says_what_was_made(here: Path, run: Run) -> None:
    asked = ("--classes", "pizza,banana,red apple", "--score", "MCM", "--plain", "-o", "other", "--json")
    result = run("detect", "calibrate", "emoji-clip", "familiar", *asked).json
    assert result["detector"]["score"] == "mcm"
    assert result["detector"]["predictive"] == "plain"
    assert result["detector"]["images"] == len(list((here / "familiar").rglob("*.png")))
    assert (result["classes"], "sets" in result, "selector" in result) == (3, False, False)
    tempered = run("detect", "calibrate", "emoji-clip", "familiar", *asked[:2], "--temperature", 2, "-o", "t", "--json")
    assert tempered.json["detector"]["predictive"] == 2.0


def test_it_needs_no_labels(here: Path, run: Run) -> None:
    draw(here / "flat", "new-drawing", GROUP, by_class=False)
    made = run("detect", "calibrate", "emoji-clip", "flat", "--classes", "pizza,banana", *PROMPT, "-o", "other")
    assert made.code == 0, made.err
    (here / "words.txt").write_text("car\nhouse\nriver\n")
    negatives = ("--score", "neglabel", "--negatives", "words.txt", "-o", "third", "--json")
    found = run("detect", "calibrate", "emoji-clip", "flat", "--classes", "pizza,banana", *PROMPT, *negatives).json
    assert found["detector"]["score"] == "neglabel"


def test_a_model_without_a_posterior(here: Path, run: Run) -> None:
    from bayesvlm.testing import save_tiny_clip

    model = save_tiny_clip(here / "tiny")
    asked = ("detect", "calibrate", model, "familiar", "--classes", "pizza,banana", "-o", "other")
    assert "this model has none; fit or load one, or take predictive='plain'" in run(*asked).err
    assert run(*asked, "--plain").code == 0
    found = run("detect", "run", "other", "photos", "--json").json
    assert len(found["images"]) == len(images(here))


def test_a_detector_is_not_replaced_unasked(here: Path, run: Run) -> None:
    shutil.copytree("detector", "mine")
    asked = ("detect", "calibrate", "emoji-clip", "familiar", *PROMPT, "-o", "mine")
    refused = run(*asked)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert (
        "mine holds a detector already; name another folder with --out, or replace it with --overwrite" in refused.err
    )
    assert run(*asked, "--overwrite").code == 0
    assert {path.name for path in Path("mine").iterdir()} == {"detect.json", "detector.json", "detector.safetensors"}
    Path("other").mkdir()
    Path("other/letter.txt").write_text("dear")
    asked = (*asked[:-1], "other", "--overwrite")
    assert "other holds other files, such as letter.txt; name a folder of its own" in run(*asked).err


def test_one_labelled_set_for_both_tau_and_the_detector(here: Path, run: Run) -> None:
    shutil.copytree(find_posterior("emoji-clip") or "", "posterior")
    BayesVLM.from_pretrained("emoji-clip").save_pretrained("posterior")
    asked = ("detect", "calibrate", "posterior", "familiar", *PROMPT, "-o", "other")
    assert run("tune", "posterior", "familiar", *PROMPT).code == 0
    assert "tau was tuned on" in run(*asked).err
    assert "tau was tuned on" in run(*asked, "--half").err, "the other half is tuned on as well"
    tuned = run("tune", "posterior", "familiar", "--half", *PROMPT, "--json").json
    assert "tau was tuned on" in run(*asked).err
    made = run(*asked, "--half", "--json").json
    assert made["images"] + tuned["images"] == len(list((here / "familiar").rglob("*.png")))
    assert abs(made["images"] - tuned["images"]) <= 1


# Run ------------------------------------------------------------------------------------------------------------------


def test_answers_and_page(here: Path, run: Run) -> None:
    ran = run("detect", "run", "detector", "photos", "--out", "answers.csv")
    assert ran.code == 0, ran.err
    with Path("answers.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = "image rank class prob familiarity p_value unknown set set_size answered"
    assert list(rows[0]) == columns.split()
    assert [row["image"] for row in rows] == [f"photos/{path.relative_to(here / 'photos')}" for path in images(here)]
    detector = Detector.load("detector", BayesVLM.from_pretrained("emoji-clip"))
    found = detector([str(path) for path in images(here)], progress=False)
    torch.testing.assert_close(
        torch.tensor([float(row["p_value"]) for row in rows]), found.p_value.float(), rtol=0, atol=2 / detector.n
    )
    assert all((row["unknown"] == "true") == (float(row["p_value"]) <= 0.1 + 1e-12) for row in rows)
    classes = set(detector.calibrated_for.names or ())
    assert all(set(row["set"].split("|")) <= classes for row in rows if row["set"])
    assert all(len(row["set"].split("|")) == int(row["set_size"]) for row in rows if row["set"])
    flagged = sum(row["unknown"] == "true" for row in rows)
    assert f"{flagged} of {len(rows)} images are flagged as unknown" in ran.out
    page = Path("answers.html").read_text()
    assert f"{flagged} of {len(rows)} images are flagged" in page
    assert page.count("<img") == 16
    assert "bayesvlm detect run detector photos" in page


def test_strangers_are_flagged_more_often(here: Path, run: Run) -> None:
    rows = run("detect", "run", "detector", "photos", "--json").json["images"]
    values = {kind: [row["familiarity"] for row in rows if kind in row["image"]] for kind in ("known", "strangers")}
    means = {kind: sum(of) / len(of) for kind, of in values.items()}
    assert means["known"] > means["strangers"] + 0.3


def test_json_lines_hold_the_same_as_json(here: Path, run: Run) -> None:
    shown = run("detect", "run", "detector", "photos", "--json", "--false-alarms", 0.2).json
    assert shown["judged_by"]["detector"]["false_alarms"] == 0.2
    assert shown["summary"]["unknown"] == sum(row["unknown"] for row in shown["images"])
    assert run("detect", "run", "detector", "photos", "--out", "a.jsonl", "--false-alarms", 0.2).code == 0
    lines = [json.loads(line) for line in Path("a.jsonl").read_text().splitlines()]
    assert [(line["image"], line["unknown"]) for line in lines] == [
        (row["image"], row["unknown"]) for row in shown["images"]
    ]
    assert all(isinstance(line["set"], list) and isinstance(line["answered"], bool) for line in lines)


def test_parquet_holds_flags_and_lists(here: Path, run: Run) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert run("detect", "run", "detector", "photos", "--out", "a.parquet").code == 0
    rows = parquet.read_table("a.parquet").to_pylist()
    shown = run("detect", "run", "detector", "photos", "--json").json["images"]
    for name in ("unknown", "set", "set_size", "answered", "p_value"):
        assert [row[name] for row in rows] == [row[name] for row in shown]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_it_goes_on_where_it_was_interrupted(
    here: Path, run: Run, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    from bayesvlm.experiments import image_files

    monkeypatch.setattr(image_files, "_KEPT", 4)
    shutil.copytree("photos", "some")
    broken = sorted(Path("some").rglob("*.png"))[1]
    broken.write_bytes(b"no image")  # has no part in the random numbers of the sets
    asked = ("detect", "run", "detector", "some", "--batch-size", 4)
    assert run(*asked, "--out", f"whole.{suffix}").code == 0
    honest = Answering.run

    def interrupted(self: Answering, prepare):
        def preparing(already: int):
            describe, calls = prepare(already), []

            def once(paths, features):
                calls.append(len(paths))
                if len(calls) == 3:
                    raise KeyboardInterrupt
                return describe(paths, features)

            return once

        return honest(self, preparing)

    with monkeypatch.context() as patch:
        patch.setattr(Answering, "run", interrupted)
        stopped = run(*asked, "--out", f"parts.{suffix}")
    assert stopped.code == 130
    assert "interrupted: 8 of 24 images are done" in stopped.err
    again = run(*asked, "--out", f"parts.{suffix}")
    assert again.code == 0, again.err
    assert "8 of them looked at before" in again.out
    assert Path(f"parts.{suffix}").read_text() == Path(f"whole.{suffix}").read_text()
    assert "23 images" in Path("parts.html").read_text()


def test_answers_are_not_replaced_unasked(here: Path, run: Run) -> None:
    asked = ("detect", "run", "detector", "photos/known", "--out", "a.csv")
    assert run(*asked).code == 0
    assert "a.csv is there already; name another file with --out" in run(*asked).err
    assert run(*asked, "--overwrite").code == 0
    Path("a.csv").unlink()
    other = ("detect", "run", "detector", "photos/strangers", "--out", "a.csv")
    assert "a.html is the page of something else (its images: photos/known, now photos/strangers)" in run(*other).err


def test_a_posterior_that_has_moved(here: Path, run: Run) -> None:
    BayesVLM.from_pretrained("emoji-clip").save_pretrained("posterior")
    made = run("detect", "calibrate", "posterior", "familiar", *PROMPT, "-o", "other")
    assert made.code == 0, made.err
    Path("posterior").rename("elsewhere")
    asked = ("detect", "run", "other", "photos/known/0.png")
    assert run(*asked).code == 2
    moved = run(*asked, "--posterior", "elsewhere", "--json").json
    assert moved["posterior"] == "elsewhere"
    refused = run(*asked, "--posterior", "emoji-siglip")
    assert "was calibrated for another model" in refused.err


# Classify -------------------------------------------------------------------------------------------------------------


def test_classify_flags_with_the_classes_of_the_detector(here: Path, run: Run) -> None:
    detected = run("detect", "run", "detector", "photos", "--json").json["images"]
    classified = run("classify", "emoji-clip", "photos", "--unknown", "detector", "--json").json
    assert [row["p_value"] for row in classified["images"]] == [row["p_value"] for row in detected]
    assert [row["top"][0]["class"] for row in classified["images"]] == [row["top"][0]["class"] for row in detected]
    assert "set" not in classified["images"][0], "nobody asked"
    assert list(classified["judged_by"]) == ["detector"]


def test_classify_promises_no_risk_for_the_answers_of_another_method(here: Path, run: Run) -> None:
    made = run("detect", "calibrate", "emoji-clip", "familiar", *PROMPT, "--plain", "--risk", 0.5, "-o", "plain")
    assert made.code == 0, made.err
    asked = ("classify", "emoji-clip", "photos/known/0.png")
    other = run(*asked, "--unknown", "plain", "--risk", 0.5)
    assert other.code == 2
    assert "plain promises a risk for the answers by msp (plain), and these are by probcosine" in other.err
    assert run(*asked, "--unknown", "plain").code == 0
    assert "these are by mean" in run(*asked, "--unknown", "detector", "--risk", 0.5, "--method", "mean").err


def test_classify_takes_other_levels(here: Path, run: Run) -> None:
    asked = ("classify", "emoji-clip", "photos", "--unknown", "detector")
    few, many = (run(*asked, "--sets", miss, "--json").json["images"] for miss in (0.5, 0.05))
    sizes = [(len(a["set"]), len(b["set"])) for a, b in zip(few, many, strict=True)]
    assert all(a <= b for a, b in sizes)
    assert sum(b for _, b in sizes) > sum(a for a, _ in sizes)
    for row in many:
        if row["top"][0]["class"] in row["set"]:
            assert row["set"][0] == row["top"][0]["class"], "the most probable first"
    answered = run(*asked, "--risk", 0.6, "--out", "b.csv")
    assert answered.code == 0, answered.err
    with Path("b.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["answered"] for row in rows} <= {"true", "false"}
    assert "entropy" in rows[0], "what classify says otherwise is there too"


def test_classify_with_the_same_classes_said_again(here: Path, run: Run) -> None:
    names = [path.name.replace("_", " ") for path in sorted((here / "familiar").iterdir())]
    Path("names.txt").write_text("\n".join(names))
    asked = ("classify", "emoji-clip", "photos/known", "--unknown", "detector", "--classes-file", "names.txt")
    assert run(*asked, *PROMPT).code == 0
    assert "was calibrated with other prompts" not in run(*asked).err, "those of the model are both times"
    assert "was calibrated with other prompts" in run(*asked, "--template", "a photo of a {c}.").err
    assert "classes, and 2 are given" in run(*asked[:5], "--classes", "a,b", *PROMPT).err


# What is refused ------------------------------------------------------------------------------------------------------

CALIBRATE = ("detect", "calibrate", "emoji-clip")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((*CALIBRATE, "photos/known"), "has no class folders, so nothing says which classes are known"),
        ((*CALIBRATE, "nothing"), "'nothing' is neither a known data set"),
        ((*CALIBRATE, "familiar", "--false-alarms", "1.5"), "--false-alarms is 1.5; it is a share between 0 and 1"),
        ((*CALIBRATE, "familiar", "--false-alarms", "0.001"), "a false-alarm rate of 0.001 needs 999 at least"),
        ((*CALIBRATE, "familiar", "--sets", "0"), "--sets is 0; it is a share between 0 and 1"),
        ((*CALIBRATE, "familiar", "--sets", "0.1", "--kind", "best"), "kind='best' is not known; use 'lac'"),
        ((*CALIBRATE, "familiar", "--risk", "0.001"), "a risk of 0.001 with a confidence of 0.95 needs 2995 at least"),
        ((*CALIBRATE, "familiar", "--score", "best"), "score='best' is not known; use 'msp'"),
        ((*CALIBRATE, "familiar", "--plain", "--temperature", "2"), "--plain is a temperature of 1"),
        ((*CALIBRATE, "familiar", "--plain", "--score", "epistemic"), "is made of the posterior"),
        ((*CALIBRATE, "familiar", "--score", "neglabel"), "give a file of them, one per line, with --negatives"),
        ((*CALIBRATE, "familiar", "--negatives", "no.txt"), "--negatives goes with --score neglabel"),
        ((*CALIBRATE, "familiar", "--score", "neglabel", "--negatives", "no.txt"), "The file of negatives no.txt"),
        ((*CALIBRATE, "familiar", "--sets", "0.2", "--classes", "pizza,banana"), "pizza"),
        ((*CALIBRATE, "validation"), "tau was tuned on 'the embedded world, split validation'"),
        (("detect", "run", "familiar", "photos"), "familiar is no folder of a detector: it has no detect.json"),
        (("detect", "run", "detector", "nowhere.png"), "None of the 1 image(s) could be read"),
        (("detect", "run", "detector", "empty"), "There are no images in empty"),
        (("detect", "run", "detector", "photos", "--out", "a.txt"), "--out a.txt: answers are written as csv"),
        (("detect", "run", "detector", "photos", "--false-alarms", "0.0001"), "needs 9999 at least"),
        (("classify", "emoji-clip", "photos", "--sets", "0.1"), "--sets 0.1 needs calibration images: make a folder"),
        (("classify", "emoji-clip", "photos", "--unknown", "detector", "--template", "{c}"), "come from detector"),
        (("classify", "emoji-siglip", "photos", "--unknown", "detector"), "was calibrated for another model"),
        (("classify", "emoji-clip", "photos", "--unknown", "detector", "--link", "mc"), "was calibrated with link"),
    ],
)
def test_what_is_refused(here: Path, refuse: Run, arguments: tuple[str, ...], sentence: str) -> None:
    (here / "empty").mkdir()
    more = ("-o", "other", *PROMPT) if arguments[:2] == ("detect", "calibrate") else ()
    assert sentence in refuse(*arguments, *more).err
    assert not Path("other").exists(), "nothing is left behind"


def test_labels_are_needed_for_sets_and_risk(here: Path, run: Run) -> None:
    assert run(*CALIBRATE, "familiar", *PROMPT, "-o", "other").code == 0
    for option, value in (("--sets", 0.1), ("--risk", 0.5)):
        ran = run("classify", "emoji-clip", "photos", "--unknown", "other", option, value)
        assert f"{option} {value:g} needs labelled calibration images, and other was calibrated without" in ran.err


def test_a_damaged_folder(here: Path, refuse: Run) -> None:
    shutil.copytree("detector", "mine")
    Path("mine/detect.json").write_text("{}")
    assert "mine/detect.json is damaged" in refuse("detect", "run", "mine", "photos").err
    shutil.copyfile("detector/detect.json", "mine/detect.json")
    Path("mine/detector.json").write_text("{}")
    assert "detector.json" in refuse("detect", "run", "mine", "photos").err


def test_help_has_examples(run: Run) -> None:
    for command in (("detect", "calibrate"), ("detect", "run")):
        ran = run(*command, "--help")
        assert ran.code == 0
        assert "Examples:" in ran.out
    assert "calibrate" in run("detect", "--help").out


@pytest.mark.parametrize("option", ["--false-alarms", "--sets", "--risk", "--confidence"])
def test_a_share_that_is_none_is_refused_by_its_option_before_any_work(
    refuse: Run, option: str, tmp_path: Path
) -> None:
    refused = refuse("detect", "calibrate", "nowhere/", "nothing/", option, "2", "--out", tmp_path / "d")
    assert f"{option} is 2; it is a share between 0 and 1" in refused.err
