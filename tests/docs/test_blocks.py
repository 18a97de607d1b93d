"""Every block of a page that says python or bash is run, or says why not.

A page's blocks share one namespace and one folder, in the order in which they stand: what a reader would have by then.
Nothing is in the namespace to begin with, but on the pages that say in words what their names stand for (`TOLD`), and
nothing is removed from the folder between two commands. Names that need a download stand for the embedded world's, and
large numbers for small ones (`STAND_INS`), but not in the Python of the pages that a newcomer follows (`FIRST`): that
is run to the letter, as it is pasted. Lines that are not run are parsed all the same: an option that the command does
not have is an error.
"""

from __future__ import annotations

import ast
import builtins
import csv
import shlex
import shutil
from collections import Counter
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import typer
from command_line import run_command
from page_blocks import FENCE, Block, blocks_of
from PIL import Image

from bayesvlm import BayesVLM, world
from bayesvlm.cli import app

ROOT = Path(__file__).parents[2]
NAMES = (
    *("grapes", "watermelon", "tangerine", "lemon", "banana", "red apple", "pear", "peach", "cherries", "strawberry"),
    *("kiwi fruit", "tomato", "avocado", "eggplant", "potato", "carrot", "hot pepper", "cucumber", "peanuts", "bread"),
)
STAND_INS = {
    "openai/clip-vit-base-patch32": "emoji-clip",
    "workers=8": "workers=0",
    '"cuda"': '"cpu"',
    "./my-clip": "emoji-clip",
    "bayesvlm select ": "bayesvlm select --budget 8 ",
    "--budget 200": "--budget 8",
    "--shard 3/16": "--shard 0/1",
    "plan.share(3, 16)": "plan.share(0, 1)",
    'world.load("validation")': 'world.load("validation").group("food-drink")',
    '("openmoji-black").group("food-drink")         #': '("openmoji-black").group("activities")  #',
    "my-posterior/": "posterior-2/",
    "KFold(3": "KFold(2",
}
PLACES = [
    ("openmoji-colour", "photos"),
    ("emojione-colour", "camera"),
    ("train", "archive"),
    *((split, "checked") for split in ("validation", "openmoji-colour", "emojione-colour")),
    *((split, place) for split in ("openmoji-black", "fluent-high-contrast") for place in ("familiar", "labelled")),
    ("emojione-black", "validation"),
]
"""Splits of the world -> folders that pages name. What tau is tuned on is not what promises are made by."""
FIRST = ("docs/index.md", *(f"docs/howto/{job}.md" for job in (
    "calibrate", "unknown", "prediction-sets", "search", "labels", "serve", "scale-out", "add-a-model",
)))  # fmt: skip
"""What a newcomer follows, from the first page on, in one folder."""
TOLD = ("docs/python.md", "docs/probability.md", "docs/serving.md", "docs/retrieval.md")
"""Pages whose Python takes names for granted."""
NAMED = {
    "cat.jpg": "pear",
    "dog.jpg": "banana",
    "photo.jpg": "bread",
    "a.jpg": "lemon",
    "b.jpg": "carrot",
    "copy.jpg": "pear",
}
"""Files that pages name -> what is drawn in them."""


def pages() -> list[str]:
    """Every page of the site that is written by hand, and README."""
    found = [*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


PAGES = {page: [b for b in blocks_of(ROOT, page) if b.language in ("python", "bash")] for page in pages()}


def drawings(split: str, names: tuple[str, ...] = NAMES) -> list[tuple[str, bytes, str]]:
    """Key, image and name of a few drawings of a split."""
    of = world.load(split)
    return [
        (k, i, of.classes[n]) for k, i, n in zip(of.keys, of.images, of.labels, strict=True) if of.classes[n] in names
    ]


def write(path: Path, image: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.open(BytesIO(image)).convert("RGB").save(path)


def write_table(path: Path, rows: list[list[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def label(path: Path) -> None:
    """Fill in the column `label` of what `select` wrote, as a person would."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["label"] = Path(row["image"]).stem.rpartition("__")[2]
    write_table(path, [list(rows[0]), *(list(row.values()) for row in rows)])


@pytest.fixture(scope="module")
def vlm() -> BayesVLM:
    return BayesVLM.from_pretrained("emoji-clip")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, vlm: BayesVLM) -> Path:
    """What somebody who reads has: photos, a few with labels, pairs, names, a posterior, what `demo` leaves."""
    folder = tmp_path_factory.mktemp("reader")
    tables: dict[str, list[list[str]]] = {"photos": [], "archive": [], "camera": []}
    for split, place in PLACES:
        for key, image, name in drawings(split):
            if place in ("checked", "labelled", "validation"):
                write(folder / place / name / f"{key}.jpg", image)
            else:
                write(folder / place / f"{key}__{name}.jpg", image)
                tables.get(place, []).append([f"{place}/{key}__{name}.jpg", name, "val" if key[-1] < "8" else "test"])
    for place, rows in tables.items():
        write_table(folder / f"{place}.csv", [["image", "label", "split"], *rows])
    shown = {name: image for _, image, name in drawings("openmoji-colour")}
    for file, name in NAMED.items():
        write(folder / file, shown[name])
    queries = {name: path for path, name, _ in tables["photos"]}
    write_table(folder / "queries.csv", [["query", "id"], *map(list, queries.items()), ["a steam locomotive", ""]])
    (folder / "names.txt").write_text("\n".join(NAMES) + "\n")
    train = world.load("train")
    for place in ("pairs", "laion"):
        rows = range(0, len(train.keys), len(train.keys) // 96)
        for row in rows:
            write(folder / place / f"{row}.jpg", train.images[row])
        captions = [[f"{row}.jpg", train.classes[train.labels[row]]] for row in rows]
        write_table(folder / place / "captions.csv", [["image", "caption"], *captions])
    for place in ("posterior", "demo/posterior"):
        vlm.save_pretrained(folder / place)
    shutil.copytree(folder / "photos", folder / "demo" / "images")
    return folder


def namespace(folder: Path, vlm: BayesVLM) -> dict[str, Any]:
    """What pages take for granted: a model, images with labels, a list of classes."""
    checked = sorted((folder / "checked").glob("*/*.jpg"))
    classes = list(NAMES)
    labels = [classes.index(path.parent.name) for path in checked]
    paths = sorted((folder / "photos").glob("*.jpg"))
    train = world.load("train")
    rows = range(0, len(train.keys), len(train.keys) // 96)
    return {
        "vlm": vlm.copy(),
        "images": checked,
        "labels": labels,
        "classes": classes,
        "names": classes,
        "photos": paths,
        "paths": paths,
        "new_images": paths,
        "texts": [f"a drawing of {name}" for name in classes],
        "templates": ["a photo of a {c}."],
        "activations": vlm.image_features(paths).activations.numpy(),
        "pairs": [([train.images[row] for row in rows], [train.classes[train.labels[row]] for row in rows])],
    }


def stand_in(text: str) -> str:
    for told, stands in STAND_INS.items():
        text = text.replace(told, stands)
    return text


def parse(command: str) -> None:
    """Have click read a command's words without running it; raises where a word is not one of the command's."""
    arguments = shlex.split(stand_in(command), comments=True)[1:]
    found = typer.main.get_command(app)
    while hasattr(found, "resolve_command"):
        context = found.make_context("bayesvlm", list(arguments))
        _, found, arguments = found.resolve_command(context, arguments)
    found.make_context("bayesvlm", arguments)


def run_python(block: Block, names: dict[str, Any]) -> None:
    for text in [*block.before, block.text]:
        text = text if block.page in FIRST else stand_in(text)
        code = compile("\n" * (block.line - 1) + text, block.page, "exec")
        exec(code, names)


def run_bash(block: Block) -> None:
    for command in block.commands():
        words = shlex.split(stand_in(command), comments=True)
        if not words:
            continue
        if block.leaves_out(command):
            if words[0] == "bayesvlm":
                parse(command)
            continue
        assert words[0] == "bayesvlm", f"{block}: {command} is run by nobody; say why above the block"
        place = made_by(words)
        result = run_command(*words[1:])
        assert result.code == 0, f"{block}: {command}\n{result.err}"
        if words[1] == "select" and place.suffix == ".csv":
            label(place)


def made_by(words: list[str]) -> Path:
    """What a command makes."""
    return Path(next((words[at + 1] for at, word in enumerate(words) if word in ("--out", "-o")), "to-label.csv"))


def run_page(page: str, names: dict[str, Any]) -> None:
    for block in PAGES[page]:
        if block.elsewhere:
            assert page.rpartition("/")[2] in (ROOT / block.elsewhere).read_text(encoding="utf-8"), block
        elif block.language == "bash":
            run_bash(block)
        elif not block.reason:
            run_python(block, names)


def start(pages: Iterable[str], folder: Path, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go to a folder with what a reader has, without the posterior that the pages will fit."""
    shutil.copytree(folder, own, dirs_exist_ok=True)
    monkeypatch.chdir(own)
    commands = [c for page in pages for block in PAGES[page] if block.language == "bash" for c in block.commands()]
    for command in commands:
        if command.startswith("bayesvlm fit "):
            shutil.rmtree(made_by(shlex.split(stand_in(command), comments=True)), ignore_errors=True)


@pytest.mark.parametrize("page", [page for page, blocks in PAGES.items() if blocks and page not in FIRST])
def test_the_blocks_of_a_page_run(
    page: str, folder: Path, vlm: BayesVLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start([page], folder, tmp_path, monkeypatch)
    run_page(page, namespace(tmp_path, vlm) if page in TOLD else {})


@pytest.mark.timeout(900)
def test_a_newcomer_follows_the_first_pages_in_one_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(FIRST) == {"docs/index.md", *(page for page in PAGES if page.startswith("docs/howto/"))}
    start(FIRST[1:], folder, tmp_path, monkeypatch)
    for page in FIRST:
        run_page(page, {})


def test_commands_of_the_first_pages_do_not_write_the_same_file() -> None:
    """Nor that of "your photos", which the first page leads to, but for the posterior, which is the same."""
    pages = [*FIRST, "docs/your-photos.md"]
    commands = [(p, c) for p in pages for block in PAGES[p] if block.language == "bash" for c in block.commands()]
    words = [(page, shlex.split(command, comments=True)) for page, command in commands]
    made = Counter(made_by(w) for page, w in words if {"--out", "-o"} & set(w) and page != "docs/howto/scale-out.md")
    assert [str(place) for place, times in made.items() if times > 1] == ["posterior"]


def loaded(text: str) -> set[str]:
    """The names that some Python takes from outside of it."""
    made, found = set(dir(builtins)), set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.alias):
            made.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.Name):
            (found if isinstance(node.ctx, ast.Load) else made).add(node.id)
        elif isinstance(node, ast.arg):
            made.add(node.arg)
    return found - made


@pytest.mark.parametrize("page", [page for page in TOLD if page != "docs/retrieval.md"])
def test_pages_say_what_names_stand_for(page: str) -> None:
    text = "\n".join(block.text for block in PAGES[page] if block.language == "python" and not block.reason)
    prose = FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    assert not {name for name in loaded(text) if f"`{name}`" not in prose}


def test_what_is_not_run_says_why() -> None:
    found = Counter(
        "elsewhere" if block.elsewhere else "not run" if block.reason and not block.skipped else "run"
        for blocks in PAGES.values()
        for block in blocks
    )
    print(dict(found))
    assert found["run"] > found["not run"]
