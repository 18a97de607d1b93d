"""Tables of images on the command line: `eval`, `tune`, `select` and `classify`, and names of classes apart."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from command_line import Run, run_command

from bayesvlm import BayesVLM, world
from bayesvlm.data import resolve
from bayesvlm.data.labelled.label_files import read_labels
from bayesvlm.experiments.zero_shot import Result as Measured

IMAGES = 12


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos/ with a few drawings of the world, photos.csv that says what they are, and a posterior beside them."""
    folder = tmp_path_factory.mktemp("drawn")
    (folder / "photos").mkdir()
    split = world.load("openmoji-colour")
    rows = []
    for number, sample in zip(range(IMAGES), split, strict=False):
        (folder / f"photos/{number:02d}.webp").write_bytes(sample.image)
        rows.append((f"photos/{number:02d}.webp", split.classes[sample.label]))
    assert len({label for _, label in rows}) > 2
    table(folder / "photos.csv", rows)
    BayesVLM.from_pretrained("emoji-clip").save_pretrained(folder / "posterior")
    return folder


@pytest.fixture
def folder(drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, in which the commands are given."""
    monkeypatch.delenv("BAYESVLM_DATA", raising=False)
    shutil.copytree(drawn, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def table(file: Path, rows: list[tuple[str, ...]], header: tuple[str, ...] = ("image", "label")) -> Path:
    with file.open("w", newline="") as opened:
        csv.writer(opened).writerows([header, *rows])
    return file


def rows_of(file: Path) -> list[tuple[str, str]]:
    return [(row.image, row.label or "") for row in read_labels(file)]


def measured(out: Path) -> Measured:
    (path,) = out.glob("*/*.json")
    return Measured.load(path)


EVAL = ("eval", "emoji-clip", "--methods", "plain,bayes", "-d")


def test_eval_of_a_table_is_that_of_the_same_images_in_folders(folder: Path) -> None:
    ran = run_command(*EVAL, "photos.csv", "-o", "out")
    assert ran.code == 0, ran.err
    result = measured(folder / "out")
    assert result.data == "work/photos.csv"
    assert result.facts["images"] == IMAGES
    for image, label in rows_of(folder / "photos.csv"):
        (folder / "sorted" / label).mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / image, folder / "sorted" / label)
    assert run_command(*EVAL, "sorted", "-o", "other").code == 0
    other = measured(folder / "other")
    for method in ("plain", "Bayes"):
        assert result.scores[method].nlpd.value == pytest.approx(other.scores[method].nlpd.value, rel=1e-4)
        assert result.scores[method].top1.value == other.scores[method].top1.value


def test_eval_of_parquet(folder: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    pandas.DataFrame(rows_of(folder / "photos.csv"), columns=["image", "label"]).to_parquet("photos.parquet")
    assert run_command(*EVAL, "photos.parquet", "-o", "out", "--json").json["results"][0]["facts"]["images"] == IMAGES


def test_numbers_and_names_apart_are_the_names(folder: Path) -> None:
    rows = rows_of(folder / "photos.csv")
    names = sorted({label for _, label in rows})
    table(folder / "numbered.csv", [(image, str(names.index(label))) for image, label in rows])
    (folder / "names.txt").write_text("\n".join(names) + "\n")
    assert run_command(*EVAL, "photos.csv", "-o", "named").code == 0
    ran = run_command(*EVAL, "numbered.csv", "--classes-file", "names.txt", "-o", "out")
    assert ran.code == 0, ran.err
    one, other = measured(folder / "named"), measured(folder / "out")
    assert one.scores["Bayes"].nlpd.value == pytest.approx(other.scores["Bayes"].nlpd.value, rel=1e-5)
    more = table(
        folder / "names.csv", [(str(n), f"{name}|{name} sign") for n, name in enumerate(names)], ("id", "name")
    )
    ran = run_command(*EVAL, "numbered.csv", "--classes-file", more, "-o", "more")
    assert ran.code == 0, ran.err
    synonyms = measured(folder / "more")
    assert synonyms.scores["Bayes"].nlpd.value != pytest.approx(one.scores["Bayes"].nlpd.value, rel=1e-3)
    assert synonyms.inputs["data"]["fingerprint"] != other.inputs["data"]["fingerprint"]


def test_other_names_encode_no_image_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bayesvlm.models.adapter import Adapter

    assert run_command(*EVAL, "photos.csv", "-o", "out").code == 0
    labels = sorted({label for _, label in rows_of(folder / "photos.csv")})
    table(folder / "names.csv", [(label, label.upper()) for label in labels], ("label", "name"))
    monkeypatch.setattr(Adapter, "encode_pixels", lambda *_: pytest.fail("an image was encoded"))
    ran = run_command(*EVAL, "photos.csv", "--classes-file", "names.csv", "-o", "other")
    assert ran.code == 0, ran.err


def test_a_validation_set_of_other_classes_keeps_its_names(folder: Path) -> None:
    table(folder / "names.csv", [(label, f"a {label}") for _, label in rows_of(folder / "photos.csv")], ("id", "name"))
    table(folder / "other.csv", [("photos/00.webp", "sun"), ("photos/01.webp", "moon")])
    options = "--methods", "temperature", "--classes-file", "names.csv"
    ran = run_command("eval", "emoji-clip", "-d", "photos.csv", *options, "--validation", "other.csv", "-o", "out")
    assert ran.code == 0, ran.err
    assert "the validation set work/other.csv keeps its own class names: other.csv has the label 'moon'" in ran.err
    ran = run_command("eval", "emoji-clip", "-d", "photos.csv", *options, "--validation", "photos.csv", "-o", "own")
    assert ran.code == 0, ran.err
    assert "keeps its own" not in ran.err


def test_tune_on_a_table(folder: Path) -> None:
    with (folder / "photos.csv").open("a") as file:
        file.write("photos/gone.webp,ghost\n")
    ran = run_command("tune", "posterior", "photos.csv", "--json")
    assert ran.json["images"] == IMAGES
    assert list(ran.json["skipped"]) == ["photos/gone.webp"]
    strict = run_command("tune", "posterior", "photos.csv", "--strict")
    assert strict.code == 2
    assert "gone.webp') does not exist" in strict.err


def test_the_loop_through_label_studio(folder: Path) -> None:
    names = sorted({label for _, label in rows_of(folder / "photos.csv")})
    (folder / "names.txt").write_text("\n".join(names))
    table(folder / "pool.csv", [(image,) for image, _ in rows_of(folder / "photos.csv")[:8]], ("path",))
    options = "--classes-file", "names.txt", "--budget", 3, "--strategy", "targeted-entropy"
    ran = run_command("select", "posterior", "--pool", "pool.csv", "-t", "photos.csv", *options, "-o", "tasks.json")
    assert ran.code == 0, ran.err
    tasks = json.loads((folder / "tasks.json").read_text())
    assert all(row.label is None for row in read_labels("tasks.json")), "what the model says is no label"
    truth = dict(rows_of(folder / "photos.csv"))
    for task in tasks:  # what Label Studio adds
        image = task["data"]["image"]
        result = [{**task["predictions"][0]["result"][0], "value": {"choices": [truth[image]]}}]
        task["annotations"] = [{"result": result, "was_cancelled": False}]
    (folder / "export.json").write_text(json.dumps(tasks))
    found = read_labels("export.json")
    assert [(row.path.exists(), row.label) for row in found] == [(True, truth[row.image]) for row in found]
    assert len(found) == 3
    assert resolve("export.json").open().size == 3


def test_a_pool_that_a_table_lists_says_its_labels(folder: Path, run: Run) -> None:
    listed = rows_of(folder / "photos.csv")
    names = ",".join(sorted({label for _, label in listed}))
    split = [(*row, "train" if number < 8 else "test") for number, row in enumerate(listed)]
    table(folder / "pool.csv", split, ("image", "label", "split"))
    common = "-t", "photos", "--classes", names, "-n", 2, "--oracle", "--json", "-o"
    ran = run("select", "posterior", "-p", "pool.csv:train", *common, "a.csv")
    assert all(os.path.exists(row["image"]) for row in ran.json["chosen"])
    assert {row["image"] for row in ran.json["chosen"]} <= {image for image, _ in listed[:8]}


def test_classify_what_a_table_lists(folder: Path) -> None:
    names = ",".join(sorted({label for _, label in rows_of(folder / "photos.csv")}))
    ran = run_command("classify", "posterior", "photos.csv", "--classes", names, "--top", 2, "--out", "answers.csv")
    assert ran.code == 0, ran.err
    with (folder / "answers.csv").open() as file:
        assert [row["image"] for row in csv.DictReader(file)][::2] == [row[0] for row in rows_of(folder / "photos.csv")]
    again = run_command("classify", "posterior", "answers.csv", "--classes", names, "--json")
    assert len(again.json["images"]) == IMAGES


CAT, DOG = "photos/00.webp,cat", "photos/01.webp,dog"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (f"photo,label\n{CAT}\n", "has the columns 'photo', 'label'; one of them must be called image"),
        ("image,label\n", "photos.csv lists no images"),
        (f"image,label\n{CAT}\nphotos/01.webp,cat\n", "has the one class 'cat'"),
        ("image,label\nphotos/00.webp,0\nphotos/01.webp,1\n", "are numbers such as 0, .* --classes-file FILE"),
        (f"image,label\n{CAT}\n{DOG}\nphotos/00.webp,cow\n", "gives photos/00.webp the labels 'cat'"),
        (f"image,label\naway/{CAT}\naway/{DOG}\n", "None of the 2 images that photos.csv lists is there"),
    ],
)
def test_tables_that_cannot_be_measured_on(folder: Path, refuse: Run, content: str, sentence: str) -> None:
    (folder / "photos.csv").write_text(content)
    assert re.search(sentence, refuse(*EVAL, "photos.csv", "-o", "out").err)


def test_names_that_do_not_fit(folder: Path, refuse: Run) -> None:
    options = "photos.csv", "--classes-file", "names.txt"
    (folder / "names.txt").write_text("one\ntwo\n")
    assert "which is not among the 2 classes of names.txt" in refuse(*EVAL, *options).err
    (folder / "names.txt").write_text("one\none\n")
    assert "names.txt has the name 'one' twice" in refuse("tune", "posterior", *options).err
    (folder / "names.txt").unlink()
    assert "names.txt cannot be read" in refuse(*EVAL, *options).err
