"""`bayesvlm select`: the list it writes, in three forms, and what it refuses."""

from __future__ import annotations

import csv
import json
from functools import partial
from io import BytesIO
from pathlib import Path

import pytest
import torch
from command_line import Run, run_command
from PIL import Image

from bayesvlm import BayesVLM, world
from bayesvlm.active import select

CLASSES = ("soccer ball", "baseball", "basketball", "volleyball", "tennis")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    return partial(run_command, "select", "emoji-clip")


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """pool/CLASS/*.png in several styles, target/*.png in one."""
    for split in ("train", "emojione-black", "openmoji-black"):
        drawings = world.load(split)
        for key, image, label in zip(drawings.keys, drawings.images, drawings.labels, strict=True):
            name = drawings.classes[label]
            if name in CLASSES:
                place = "target" if split == "openmoji-black" else f"pool/{name.replace(' ', '_')}"
                path = tmp_path / place / f"{key}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.open(BytesIO(image)).save(path)
    return tmp_path


ASKED = ("--pool", "pool", "--target", "target", "--classes", ",".join(CLASSES), "--template", "{c}", "--budget", 6)


def test_the_list_is_what_select_chooses(run: Run, folders: Path) -> None:
    code, out, err = run(*ASKED, "--oracle")
    assert code == 0, err
    with (folders / "to-label.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["rank"] for row in rows] == list("123456")
    paths = sorted((folders / "pool").rglob("*.png"))
    vlm = BayesVLM.from_pretrained("emoji-clip")
    pool = vlm.image_features([str(path) for path in paths])
    target = vlm.image_features([str(path) for path in sorted((folders / "target").glob("*.png"))])
    labels = [CLASSES.index(path.parent.name.replace("_", " ")) for path in paths]
    expected = select(vlm, pool, target, vlm.text_features(list(CLASSES)), "epig", 6, labels)
    assert [row["image"] for row in rows] == [str(paths[index].relative_to(folders)) for index in expected]
    assert all(float(row["score"]) > 0 for row in rows)
    assert ("reaches the target's" in err) == (len(target) <= 6)
    assert all(row["predicted"] in CLASSES for row in rows)
    assert f"6 of {len(paths)} images chosen by epig; the list is to-label.csv" in out


def test_json_lines_and_label_studio(run: Run, folders: Path) -> None:
    assert run(*ASKED, "--strategy", "targeted-random", "-o", "list.jsonl")[0] == 0
    rows = [json.loads(line) for line in (folders / "list.jsonl").read_text().splitlines()]
    assert [row["score"] for row in rows] == [None] * 6, "nothing was scored"
    assert run(*ASKED, "--strategy", "targeted-bald", "-o", "tasks/list.json")[0] == 0
    tasks = json.loads((folders / "tasks/list.json").read_text())
    assert [task["data"]["rank"] for task in tasks] == [1, 2, 3, 4, 5, 6]
    for task in tasks:
        assert Path(task["data"]["image"]).is_file()
        assert task["data"]["score"] >= 0
        (prediction,) = task["predictions"]
        assert 0 <= prediction["score"] <= 1
        (result,) = prediction["result"]
        assert (result["from_name"], result["to_name"], result["type"]) == ("label", "image", "choices")
        assert result["value"]["choices"][0] in CLASSES


def test_json(run: Run, folders: Path) -> None:
    code, out, _ = run(*ASKED, "--strategy", "entropy", "--json")
    assert code == 0
    printed = json.loads(out)
    assert printed["strategy"] == "entropy"
    assert len(printed["chosen"]) == 6
    scores = torch.tensor([row["score"] for row in printed["chosen"]])
    assert (scores[:-1] >= scores[1:]).all()


def test_a_file_named_twice_is_one_image(run: Run, folders: Path) -> None:
    count = len(list((folders / "pool").rglob("*.png")))
    asked = (*ASKED, "--pool", "pool/tennis", "--strategy", "random")
    _, out, _ = run(*asked)
    assert f"6 of {count} images chosen" in out


def test_what_cannot_be_read_is_skipped_and_named(run: Run, folders: Path) -> None:
    (folders / "pool/broken.png").write_bytes(b"no image")
    code, _, err = run(*ASKED, "--strategy", "random")
    assert code == 0
    assert "skipped 1 that cannot be used" in err
    assert "broken.png" in err


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("--budget", 1000), "The budget is 1000 and the pool has"),
        (("--strategy", "magic"), "strategy='magic' is not known"),
        (("-o", "list.xlsx"), "the list can be a .csv, .jsonl, .json file"),
        (("--metric", "euclid", "--strategy", "targeted-bald"), "metric='euclid' is not known"),
        (("--target", "pool/nothing"), "pool/nothing"),
        (("--classes", "tennis,baseball,tennis"), "names 'tennis' more than once"),
        (("--classes", "tennis"), "There is one class only"),
        (("--oracle", "--classes", "tennis,baseball"), "which is not among the 2 classes"),
    ],
)
def test_what_is_refused(run: Run, folders: Path, change: tuple[object, ...], sentence: str) -> None:
    asked = list(ASKED)
    if change[0] in ("--target", "--classes"):
        asked[asked.index(change[0]) + 1] = change[1]
        change = change[2:]
    if "--classes" in change:
        asked[asked.index("--classes") + 1] = change[change.index("--classes") + 1]
        change = change[: change.index("--classes")]
    code, out, err = run(*asked, *change)
    assert code == 2, out
    assert sentence in err
    assert not (folders / "to-label.csv").exists()
