"""docs/your-photos.md, done: every command on the page, in order, on drawings that stand for the photos."""

from __future__ import annotations

import csv
import re
import shlex
from io import BytesIO
from pathlib import Path

import pytest
from command_line import Run, run_command
from PIL import Image

from bayesvlm import world

PAGE = Path(__file__).parents[2] / "docs/your-photos.md"
CLASSES = ("soccer ball", "baseball", "basketball", "volleyball", "tennis", "bowling")
STAND_IN = {
    "openai/clip-vit-base-patch32": "emoji-clip",
    "--budget 50": "--budget 8",
    "--lr 1e-5": "--lr 1e-4 --epochs 3",
}
PAIRS = 200
PLACES = {
    "train": "archive",
    "emojione-black": "archive",
    "emojione-colour": "checked",
    "openmoji-colour": "checked",
    "openmoji-black": "photos",
}


def commands() -> list[str]:
    """Every line of the page's blocks that is a command of ours."""
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith("bayesvlm ")]


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for split, place in PLACES.items():
        drawings = world.load(split)
        for key, image, label in zip(drawings.keys, drawings.images, drawings.labels, strict=True):
            name = drawings.classes[label].replace(" ", "_")
            if drawings.classes[label] in CLASSES:
                path = Path(place) / (f"{name}/{key}.png" if place == "checked" else f"{key}__{name}.png")
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.open(BytesIO(image)).save(path)
    Path("names.txt").write_text("\n".join(CLASSES))
    train = world.load("train")
    Path("pairs").mkdir()
    with Path("pairs/captions.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "caption"])
        for place in range(0, len(train.keys), len(train.keys) // PAIRS):
            Image.open(BytesIO(train.images[place])).save(f"pairs/{place}.png")
            rows.writerow([f"{place}.png", train.classes[train.labels[place]]])


def label(path: Path) -> int:
    """Fill in the column `label`, as a person would; how many there were."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert all(row["label"] == "" for row in rows)
    for row in rows:
        row["label"] = Path(row["image"]).stem.rpartition("__")[2].replace("_", " ")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return len(rows)


@pytest.mark.usefixtures("photos")
def test_the_page_runs() -> None:
    run: Run = run_command
    printed: dict[str, list[str]] = {}
    lines = commands()
    for line in lines:
        for told, stands in STAND_IN.items():
            line = line.replace(told, stands)
        _, command, *arguments = shlex.split(line)
        code, out, err = run(command, *arguments)
        assert code == 0, f"{line}\n{err}"
        printed.setdefault(command, []).append(out)
        if command == "select":
            listed = Path(arguments[arguments.index("--out") + 1] if "--out" in arguments else "to-label.csv")
            assert label(listed) == 8
    assert list(printed) == ["fit", "tune", "classify", "select", "finetune"]
    assert "8 labelled images" in printed["finetune"][0]
    assert "16 labelled images" in printed["finetune"][1], "none of the second round was in the first"
    assert "the last 8 labels gained" in printed["finetune"][1]
    assert "nats about the target" in printed["select"][1]


@pytest.mark.usefixtures("photos")
def test_the_page_explains_every_column(monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = run_command("classify", "emoji-siglip", "photos", "--classes-file", "names.txt", "--out", "a.csv")
    assert code == 0, err
    with Path("a.csv").open(encoding="utf-8") as file:
        columns = set(next(csv.reader(file)))
    explained = set(re.findall(r"`([a-z_]+)`", "".join(re.findall(r"^\| (`.*?) \|", PAGE.read_text(), re.MULTILINE))))
    unexplained = columns - explained - {"image", "rank", "class", "monte_carlo_entropy", "monte_carlo_epistemic"}
    assert not unexplained
