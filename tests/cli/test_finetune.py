"""`bayesvlm finetune`, and the round trip: select, label, fine-tune, select again."""

from __future__ import annotations

import csv
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import Run, run_command
from PIL import Image

from bayesvlm import BayesVLM, world
from bayesvlm.active import finetune

CLASSES = ("soccer ball", "baseball", "basketball", "volleyball", "tennis", "bowling")
ASKED = ("--classes-file", "names.txt", "--template", "{c}")
POOL = ("--pool", "archive", "--target", "camera")


def export(folder: Path) -> None:
    """archive/ and camera/ with images whose names tell the class, checked/ with a folder per class."""
    places = {"train": "archive", "emojione-black": "archive", "openmoji-colour": "checked", "openmoji-black": "camera"}
    for split, place in places.items():
        drawings = world.load(split)
        for key, image, label in zip(drawings.keys, drawings.images, drawings.labels, strict=True):
            name = drawings.classes[label].replace(" ", "_")
            if drawings.classes[label] in CLASSES:
                path = folder / place / (f"{name}/{key}.png" if place == "checked" else f"{key}__{name}.png")
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.open(BytesIO(image)).save(path)
    (folder / "names.txt").write_text("\n".join(CLASSES))


def truth(image: str) -> str:
    return Path(image).stem.rpartition("__")[2].replace("_", " ")


def write_labels(path: Path, images: list[str]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["image", "label"], *([image, truth(image)] for image in images)])


@pytest.fixture(scope="module")
def drawings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    export(folder)
    return folder


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, drawings: Path) -> Run:
    for each in drawings.iterdir():
        (tmp_path / each.name).symlink_to(each, target_is_directory=each.is_dir())
    monkeypatch.chdir(tmp_path)
    write_labels(tmp_path / "labels.csv", pool()[::4])
    return run_command


def pool() -> list[str]:
    return [str(path) for path in sorted(Path("archive").glob("*.png"))]


def learn(run: Run, *arguments: object) -> Any:
    return run("finetune", "emoji-clip", "labels.csv", *ASKED, "--epochs", 5, *arguments)


def test_it_is_the_python_function_and_what_is_saved_loads(run: Run) -> None:
    result = learn(run, "--validation", "./checked", "--lr", "1e-3", "--json").json
    vlm = BayesVLM.from_pretrained("emoji-clip", device="cpu")
    images = pool()[::4]
    held = sorted(Path("checked").rglob("*.png"))
    known = vlm.image_features(held), [path.parent.name.replace("_", " ") for path in held]
    features, labels = vlm.image_features(images), [truth(image) for image in images]
    expected = finetune(vlm, features, labels, list(CLASSES), known, lr=1e-3, epochs=5)
    saved = BayesVLM.from_pretrained("adapted", device="cpu")
    torch.testing.assert_close(saved.image.weight, expected.image.weight, rtol=0, atol=1e-5)
    probs = saved.classify(held, list(CLASSES)).probs
    torch.testing.assert_close(probs, expected.classify(held, list(CLASSES)).probs, rtol=0, atol=1e-4)
    assert not torch.allclose(probs, vlm.classify(held, list(CLASSES)).probs, atol=1e-3)
    assert result["images"] == len(images)
    rows = torch.tensor([CLASSES.index(label) for label in known[1]])
    nlpd = -probs[torch.arange(len(rows)), rows].log().mean()
    assert result["scores"]["after"]["NLPD, Bayes"]["value"] == pytest.approx(float(nlpd), abs=1e-4)
    assert result["rounds"][-1] == {
        "labels": len(images),
        "nlpd": pytest.approx(float(nlpd), abs=1e-4),
        "standard_error": pytest.approx(result["scores"]["after"]["NLPD, Bayes"]["standard_error"], abs=1e-6),
    }
    assert saved.provenance["fine_tuned_on"] == len(images)
    assert saved.provenance["fine_tuning"]["classes"] == list(CLASSES)
    code, _, err = run("classify", "adapted", "camera", *ASKED)
    assert code == 0, err


def test_a_second_round_says_what_it_gained(run: Run) -> None:
    first = learn(run, "--validation", "./checked", "-o", "one")
    assert "the last 9 labels gained" in first.out
    assert "on 6 validation images" in first.out
    write_labels(Path("labels.csv"), pool()[::2])
    second = learn(run, "--validation", "./checked", "-o", "two", "--previous", "one", "--json").json
    assert [each["labels"] for each in second["rounds"]] == [0, 9, 17]
    assert second["verdict"] in ("paying", "stopped paying", "cannot be told")
    kept = json.loads(Path("two/rounds.json").read_text())
    assert [len(each["losses"]) for each in kept["rounds"]] == [6, 6, 6]
    same = learn(run, "--validation", "./checked", "-o", "three", "--previous", "two")
    assert (same.code, "two learnt from 17 labels and there are 17 now" in same.err) == (2, True)
    write_labels(Path("labels.csv"), pool())
    asked = ("finetune", "emoji-clip", "labels.csv", "--previous", "two", "--epochs", 1, "-o", "three")
    other = run(*asked, *ASKED[:2], "--template", "my {c}", "--validation", "./checked")
    assert (other.code, "another model, or with other classes, prompts or tau" in other.err) == (2, True)
    other = run(*asked, *ASKED, "--validation", "labels.csv")
    assert (other.code, "two was measured on 6 other validation images" in other.err) == (2, True)
    assert not Path("three").exists()


def test_without_validation_and_classes(run: Run) -> None:
    code, out, err = run("finetune", "emoji-clip", "labels.csv", "--epochs", 2)
    assert code == 0, err
    assert "the 6 labels that occur are the classes (baseball, basketball" in err
    assert "without --validation the last epoch is kept" in err
    assert "9 labelled images of 6 classes learnt; the posterior is in adapted" in out
    assert not Path("adapted/rounds.json").exists()
    code, _, err = run("finetune", "emoji-clip", "labels.csv", "--epochs", 2)
    assert (code, "adapted holds a posterior already" in err) == (2, True)
    assert learn(run, "--overwrite", "--validation", "./checked").code == 0
    assert Path("adapted/rounds.json").exists()
    assert learn(run, "--overwrite").code == 0
    assert not Path("adapted/rounds.json").exists(), "of the result that was replaced"
    again = run("finetune", "adapted", "labels.csv", *ASKED, "--epochs", 1, "-o", "twice")
    assert "adapted was fine-tuned on 9 images already" in again.err


def test_tau_is_chosen_anew_when_asked(run: Run) -> None:
    kept = learn(run, "--validation", "./checked", "-o", "kept", "--json").json
    tuned = learn(run, "--validation", "./checked", "-o", "tuned", "--tune", "--json").json
    before = BayesVLM.from_pretrained("emoji-clip", device="cpu").tau
    assert kept["tau"] == before != tuned["tau"] == BayesVLM.from_pretrained("tuned", device="cpu").tau
    after = [of["scores"]["after"]["NLPD, Bayes"]["value"] for of in (kept, tuned)]
    assert after[1] < after[0] + 1e-3, "on the very images that tau was chosen by"


def test_what_cannot_be_read_is_left_out_and_named(run: Run) -> None:
    Path("broken__tennis.png").write_bytes(b"no image")
    write_labels(Path("labels.csv"), [*pool()[::4], "broken__tennis.png", "gone__tennis.png"])
    Path("labels.csv").write_text(Path("labels.csv").read_text() + "archive/unlabelled.png,\n")
    code, out, err = learn(run)
    assert code == 0, err
    assert "skipped 2 that cannot be used" in err
    assert "broken__tennis.png" in err
    assert "1 of 12 images have no label and are left out" in err
    assert "9 labelled images" in out
    code, _, err = learn(run, "--strict", "-o", "strict")
    assert (code, "broken__tennis.png" in err) == (2, True)


def test_several_files_of_labels(run: Run) -> None:
    write_labels(Path("more.csv"), pool()[::3])
    assert learn(run, "more.csv", "-o", "both", "--json").json["images"] == len({*pool()[::4], *pool()[::3]})
    Path("other.csv").write_text(
        f"image,label\n{pool()[0]},{next(name for name in CLASSES if name != truth(pool()[0]))}\n"
    )
    code, _, err = learn(run, "other.csv")
    assert (code, "in one place and" in err) == (2, True)


def test_validation_among_the_labels_is_said(run: Run) -> None:
    write_labels(Path("some.csv"), pool()[:8])
    assert "2 of the validation images are among the labelled ones" in learn(run, "--validation", "some.csv").err


def test_a_folder_and_a_table_that_name_the_same_files(run: Run) -> None:
    held = sorted(Path("checked").rglob("*.png"))
    rows = [f"{path},{path.parent.name.replace('_', ' ')}" for path in held]
    Path("held.csv").write_text("\n".join(["image,label", *rows]))
    learnt = run("finetune", "emoji-clip", "./checked", "held.csv", *ASKED, "--epochs", 1, "-o", "both", "--json").json
    assert learnt["images"] == len(held)
    flattered = run("finetune", "emoji-clip", "held.csv", *ASKED, "--epochs", 1, "--validation", "./checked")
    assert f"{len(held)} of the validation images are among the labelled ones" in flattered.err
    other = next(name for name in CLASSES if name != held[0].parent.name.replace("_", " "))
    Path("held.csv").write_text(f"image,label\n{held[0]},{other}\n")
    code, _, err = run("finetune", "emoji-clip", "./checked", "held.csv", *ASKED, "-o", "twice")
    assert (code, f"and {other!r} in another; decide on one" in err) == (2, True)


def test_labels_may_be_numbers_synonyms_and_ids(run: Run) -> None:
    def learnt(labels: str, names: str, out: str) -> Any:
        asked = ("--classes-file", names, "--template", "{c}", "--epochs", 1, "--json", "-o", out)
        return run("finetune", "emoji-clip", labels, *asked).json["classes"]

    def written(file: str, label: Any) -> str:
        rows = [f"{image},{label(CLASSES.index(truth(image)))}" for image in pool()[::4]]
        Path(file).write_text("\n".join(["image,label", *rows]))
        return file

    expected = learnt("labels.csv", "names.txt", "named")
    assert sum(expected.values()) == 9
    assert learnt(written("numbers.csv", str), "names.txt", "numbers") == expected
    Path("synonyms.txt").write_text("\n".join(f"{name}|{name} game" for name in CLASSES))
    assert learnt(written("games.csv", lambda label: f"{CLASSES[label]} game"), "synonyms.txt", "synonyms") == expected
    ids = [f"k{number}_{name[:2]},{name}" for number, name in enumerate(CLASSES)]
    Path("ids.csv").write_text("\n".join(["label,name", *reversed(ids)]))
    by_id = written("by-id.csv", lambda label: ids[label].partition(",")[0])
    assert learnt(by_id, "ids.csv", "ids") == expected
    assert learnt("labels.csv", "ids.csv", "names-beside-ids") == expected
    options = ("select", "emoji-clip", *POOL, "-n", 3, "--template", "{c}", "--json", "--classes-file")
    for number, (labels, names) in enumerate({"numbers.csv": "names.txt", by_id: "ids.csv"}.items()):
        chosen = run(*options, names, "--labelled", labels, "-o", f"{number}.csv").json
        assert chosen["outlook"]["labels"] == 9
    code, _, err = run("finetune", "emoji-clip", "numbers.csv", "--classes-file", "ids.csv", "-o", "no")
    assert (code, "numbers.csv has the label '0', which is not among the 6 classes of ids.csv" in err) == (2, True)


def test_folders_may_be_numbers_and_ids(run: Run) -> None:
    for path in sorted(Path("checked").rglob("*.png")):
        number = CLASSES.index(path.parent.name.replace("_", " "))
        for folder in (f"numbered/{number + 1}", f"coded/n0000000{number}"):
            Path(folder).mkdir(parents=True)
            (Path(folder) / path.name).symlink_to(path.resolve())
    Path("ids.csv").write_text("\n".join(["folder,name", *(f"n0000000{n},{name}" for n, name in enumerate(CLASSES))]))
    for folder, names in {"./checked": "names.txt", "./numbered": "names.txt", "./coded": "ids.csv"}.items():
        options = ("--classes-file", names, "--template", "{c}", "--epochs", 1, "--overwrite")
        assert run("finetune", "emoji-clip", folder, *options, "--json").json["images"] == 6
        both = run(
            "finetune", "emoji-clip", folder, "./checked", *options
        )  # other labels of the same files are refused
        assert both.code == 0, both.err
    Path("others.txt").write_text("\n".join(f"other {number}" for number in range(6)))
    code, _, err = run("finetune", "emoji-clip", "./checked", "--classes-file", "others.txt", "-o", "no")
    assert (code, "checked has the label 'baseball', which is not among the 6 classes of others.txt" in err) == (
        2,
        True,
    )


REFUSED = {
    "other labels": (
        ["archive/a.png,cat"],
        (),
        "labels.csv has the label 'cat', which is not among the 6 classes of names.txt (soccer ball",
    ),
    "no image": (["gone.png,tennis", "there.png,bowling"], (), "None of the 2 labelled images of labels.csv can be"),
    "no labels": (["gone.png,"], (), "labels.csv lists 1 images and none of them has a label"),
    "one class": (None, (), "labelled images of labels.csv that can be read are of the class 'tennis'"),
    "no validation": ([], ("--previous", "adapted"), "--previous needs validation images"),
    "nothing to tune on": ([], ("--tune",), "--tune needs validation images"),
    "no rounds": ([], ("--previous", "archive", "--validation", "checked"), "archive has no rounds.json"),
    "worth": ([], ("--worth", "-1", "--validation", "checked"), "--worth=-1.0; it must be a finite number above zero"),
    "method": ([], ("--method", "magic"), "magic"),
    "no place": ([], ("--template", "a photo"), "has no place for the class name"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(run: Run, case: str) -> None:
    rows, arguments, sentence = REFUSED[case]
    if rows is None:
        rows = [f"{image},tennis" for image in pool()[:3]]
    if rows:
        Path("labels.csv").write_text("\n".join(["image,label", *rows]))
    code, out, err = run("finetune", "emoji-clip", "labels.csv", *ASKED[:2], *arguments)
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.splitlines()[-1].startswith("error: ")
    assert not Path("adapted").exists()


# The loop ------------------------------------------------------------------------------------------------------------


def chosen(path: str) -> list[str]:
    with Path(path).open(encoding="utf-8", newline="") as file:
        return [row["image"] for row in csv.DictReader(file)]


def test_label_studio_and_back(run: Run) -> None:
    assert run("select", "emoji-clip", *POOL, *ASKED, "-n", 8, "-o", "tasks.json", "--strategy", "random").code == 0
    tasks = json.loads(Path("tasks.json").read_text())
    for number, task in enumerate(tasks):  # what Label Studio exports: the tasks, and what people chose
        said = {"choices": [truth(task["data"]["image"])]}
        result = {"from_name": "label", "to_name": "image", "type": "choices", "value": said}
        task |= {"id": number, "annotations": [{"id": number, "was_cancelled": False, "result": [result]}]}
    Path("export.json").write_text(json.dumps(tasks))
    learnt = run(
        "finetune", "emoji-clip", "export.json", *ASKED, "--validation", "./checked", "--epochs", 2, "--json"
    ).json
    assert learnt["images"] == 8
    counts = dict.fromkeys(CLASSES, 0)
    for task in tasks:
        counts[truth(task["data"]["image"])] += 1
    assert learnt["classes"] == counts
    again = run("select", "emoji-clip", *POOL, *ASKED, "-n", 5, "--labelled", "export.json", "-o", "next.csv")
    assert again.code == 0, again.err
    assert not set(chosen("next.csv")) & {task["data"]["image"] for task in tasks}
    assert "nats about the target" in again.out


def test_labels_are_learnt_and_what_is_listed_is_left_out(run: Run) -> None:
    assert run("select", "emoji-clip", *POOL, *ASKED, "-n", 10, "--oracle", "-o", "whole.csv").code == 2, "no folders"
    assert run("select", "emoji-clip", *POOL, *ASKED, "-n", 6).code == 0
    first = chosen("to-label.csv")
    write_labels(Path("labels.csv"), first)
    options = ("select", "emoji-clip", *POOL, *ASKED, "-n", 6)
    second = run(*options, "--labelled", "labels.csv", "-o", "second.csv", "--json").json
    assert not set(chosen("second.csv")) & set(first)
    assert second["outlook"]["labels"] == 6
    assert second["outlook"]["first"] > second["outlook"]["now"]
    both = run(*options, "--labelled", "labels.csv", "--exclude", "to-label.csv", "-o", "both.csv", "--json").json
    assert both["chosen"] == second["chosen"], "what is labelled is left out anyway"
    left = run(*options, "--exclude", "to-label.csv", "--exclude", "second.csv", "-o", "third.csv")
    assert left.code == 0, left.err
    assert not set(chosen("third.csv")) & {*first, *chosen("second.csv")}
    Path("elsewhere.csv").write_text("image\nphotos/a.png\n" + first[0] + "\n")
    assert (
        "elsewhere.csv: 1 of 2 images are not in the pool"
        in run(*options, "--exclude", "elsewhere.csv", "-o", "4.csv").err
    )
    absolute = [str(Path(image).absolute()) for image in first]
    write_labels(Path("absolute.csv"), absolute)
    named = run(*options, "--labelled", "absolute.csv", "-o", "fifth.csv", "--json").json
    assert named["chosen"] == second["chosen"], "by their whole paths"
    random = run(*options, "--strategy", "random", "--labelled", "labels.csv", "-o", "random.csv")
    assert random.code == 0, random.err
    assert not set(chosen("random.csv")) & set(first)
    assert run("finetune", "emoji-clip", "labels.csv", *ASKED, "--epochs", 1).code == 0
    twice = run("select", "adapted", *options[2:], "--labelled", "labels.csv", "-o", "twice.csv")
    assert "adapted was fine-tuned on 6 images already" in twice.err


def test_a_seed_set_from_outside_the_pool(run: Run) -> None:
    seeds = [str(path) for path in sorted(Path("checked").rglob("*.png"))]
    rows = [["image", "label"], *([seed, Path(seed).parent.name] for seed in seeds)]
    with Path("seeds.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    options = ("select", "emoji-clip", *POOL, *ASKED, "-n", 6, "--json")
    without = run(*options, "-o", "without.csv").json["chosen"]
    learnt = run(*options, "--labelled", "seeds.csv", "-o", "learnt.csv").json
    assert learnt["outlook"]["labels"] == len(seeds)
    assert [row["score"] for row in learnt["chosen"]] != [row["score"] for row in without]


def test_an_image_in_two_seed_files_is_learnt_once(run: Run) -> None:
    seeds = sorted(Path("checked").rglob("*.png"))
    for file, images in {"a.csv": [*seeds[:3], Path(pool()[0])], "b.csv": [*seeds[2:4], Path(pool()[0])]}.items():
        named = [path if path.parts[0] == "archive" else path.resolve() if file == "b.csv" else path for path in images]
        rows = [f"{path},{truth(str(path)) if path.parts[0] == 'archive' else path.parent.name}" for path in named]
        Path(file).write_text("\n".join(["image,label", *rows]))
    options = ("select", "emoji-clip", *POOL, *ASKED, "-n", 3)
    both = run(*options, "--labelled", "a.csv", "--labelled", "b.csv", "-o", "both.csv", "--json").json
    assert both["outlook"]["labels"] == 5
    for image, right in ((seeds[0], seeds[0].parent.name.replace("_", " ")), (pool()[0], truth(pool()[0]))):
        wrong = next(name for name in CLASSES if name != right)
        Path("b.csv").write_text(f"image,label\n{image},{wrong}\n")
        code, _, err = run(*options, "--labelled", "a.csv", "--labelled", "b.csv", "-o", "other.csv")
        assert (code, f"is labelled {right!r} in one place and {wrong!r} in another" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--labelled", "gone.csv"), "gone.csv"),
        (("--labelled", "--oracle"), "--labelled takes a file of labels and got --oracle"),
        (("--labelled", "names.csv"), "names.csv has the label 'cat', which is not among the 6 classes"),
        (("--exclude", "gone.csv"), "gone.csv"),
        (("--exclude", "labels.csv", "-n", 42), "of them labelled or excluded already; choose at most"),
        (("--worth", 0), "--worth=0.0; it must be a finite number above zero"),
    ],
)
def test_what_select_refuses(run: Run, arguments: tuple[object, ...], sentence: str) -> None:
    Path("names.csv").write_text(f"image,label\n{pool()[0]},cat\n")
    code, out, err = run("select", "emoji-clip", *POOL, *ASKED, "-n", 6, "--strategy", "random", *arguments)
    assert (code, out) == (2, "")
    assert sentence in err
    assert not Path("to-label.csv").exists()
