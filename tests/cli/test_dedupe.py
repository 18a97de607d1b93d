"""`bayesvlm dedupe`: its groups against `vlm.similarity`, its files, its page, what it refuses; it deletes nothing."""

from __future__ import annotations

import csv
import json
import shlex
import shutil
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from command_line import Run, run_command
from page_blocks import blocks_of
from PIL import Image

from bayesvlm import BayesVLM, world

DRAWINGS = 8
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos/ of drawings, with two smaller versions of the third and a copy of the sixth, and a file that is none."""
    home = tmp_path_factory.mktemp("dedupe")
    photos = home / "photos"
    (photos / "it's").mkdir(parents=True)
    for place, stored in enumerate(world.load("openmoji-colour").images[: 8 * DRAWINGS : 8]):
        Image.open(BytesIO(stored)).convert("RGB").resize((128, 128)).save(photos / f"{place}.png")
    third = Image.open(photos / "2.png")
    third.save(photos / "it's" / "2 again.jpg", quality=60)
    third.resize((64, 64)).save(photos / "2 small.png")
    shutil.copy(photos / "5.png", photos / "5 copy.png")
    (photos / "broken.png").write_bytes(b"no image")
    return home


@pytest.fixture
def run(home: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(home)
    return partial(run_command, "dedupe")


ASKED = ("photos", "-p", "emoji-clip", "--similarity", 0.97)


def names(group: dict[str, Any]) -> list[str]:
    return [Path(each["image"]).name for each in (group["keep"], *group["copies"])]


def test_groups_as_json(run: Run, home: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (home / "photos").rglob("*")}
    done = run(*ASKED, "--json")
    found = done.json
    assert found["images"] == DRAWINGS + 3
    assert found["near_copies"] == 3
    assert [sorted(names(group)) for group in found["groups"]] == [
        ["2 again.jpg", "2 small.png", "2.png"],
        ["5 copy.png", "5.png"],
    ]
    first, second = found["groups"]
    assert Path(first["keep"]["image"]).name == "2.png", "the largest, in pixels and then in bytes"
    assert (first["keep"]["width"], first["keep"]["height"]) == (128, 128)
    assert second["keep"]["image"].endswith("5 copy.png"), "of equals the first by name"
    assert second["copies"][0]["cosine"] == pytest.approx(1, abs=1e-6)
    assert second["copies"][0]["std"] < 1e-6
    vlm = BayesVLM.from_pretrained("emoji-clip", device="cpu")
    paths = [home / "photos" / "2.png", *(Path(copy["image"]) for copy in first["copies"])]
    moments = vlm.similarity(paths[:1], paths[1:])
    for place, copy in enumerate(first["copies"]):
        assert copy["cosine"] == pytest.approx(float(moments.mean[0, place]), abs=1e-5)
        assert copy["std"] == pytest.approx(float(moments.std[0, place]), rel=1e-2, abs=1e-4)
        assert copy["interval"][0] <= copy["cosine"] <= copy["interval"][1]
        assert copy["interval"][1] >= 0.97
    assert found["bytes"] == sum(
        Path(copy["image"]).stat().st_size for group in found["groups"] for copy in group["copies"]
    )
    assert list(found["skipped"]) == [str(home / "photos/broken.png")]
    assert "skipped 1 that cannot be used" in done.err
    assert {path: path.stat().st_mtime_ns for path in (home / "photos").rglob("*")} == before, "nothing is touched"


def test_table_file_and_page(run: Run, home: Path, tmp_path: Path) -> None:
    done = run(*ASKED, "-o", tmp_path / "groups.csv", "--html", tmp_path / "page.html")
    assert done.code == 0, done.err
    assert "3 near-copies in 2 groups, of 11 images; they take" in done.out
    assert "photos/it's/2 again.jpg" in done.out
    with (tmp_path / "groups.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["group"], row["role"]) for row in rows] == [
        ("1", "keep"), ("1", "copy"), ("1", "copy"), ("2", "keep"), ("2", "copy"),
    ]  # fmt: skip
    assert all(float(row["low"]) <= float(row["cosine"]) <= float(row["high"]) for row in rows if row["role"] == "copy")
    page = (tmp_path / "page.html").read_text()
    assert page.count("<img") == 5
    for said in ("3 near-copies in 2 groups", "2 again.jpg", "keep, 128 x 128", "Nothing was deleted"):
        assert said in page
    again = run(*ASKED, "-o", tmp_path / "groups.csv")
    assert again.code == 2
    assert "exists already" in again.err or "--overwrite" in again.err
    other = run("photos/5.png", "photos/4.png", "-p", "emoji-clip", "--html", tmp_path / "page.html")
    assert other.code == 2
    assert "name another file with --html" in other.err
    done = run("photos/5.png", "photos/4.png", "-p", "emoji-clip", "-o", tmp_path / "none.json")
    assert "0 near-copies in 0 groups, of 2 images" in done.out
    assert json.loads((tmp_path / "none.json").read_text())["groups"] == []


def test_the_lines_of_the_page(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of docs/retrieval.md, word by word."""
    pytest.importorskip("lancedb", reason="an index is kept in LanceDB (extra retrieval), which is not installed")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(home / "photos", "photos")
    Path("new").mkdir()
    for name in ("mine", "again"):
        shutil.copy("photos/5.png", f"new/{name}.png")
    BayesVLM.from_pretrained("emoji-clip", device="cpu").save_pretrained("posterior")
    assert run_command("index", "photos/", "new/", "--posterior", "posterior/", "--out", "index/").code == 0
    (block,) = (each for each in blocks_of(ROOT, "docs/retrieval.md") if "bayesvlm dedupe" in each.text)
    lines = [shlex.split(line, comments=True) for line in block.text.splitlines()]
    assert len(lines) == 3
    for words in lines:
        done = run_command(*words[1:])
        assert done.code == 0, done.err
    assert "1 near-copies in 1 groups, of 2 images" in done.out, "of the last line"
    assert Path("copies.html").is_file()


def test_the_level_and_the_end_of_the_interval_decide(run: Run) -> None:
    counts = [
        run("photos", "-p", "emoji-clip", "-s", 0.9, "--by", by, "--level", level, "--json").json["near_copies"]
        for by, level in (("lower", 0.9999), ("mean", 0.5), ("upper", 0.9999))
    ]
    assert counts == sorted(counts)
    assert counts[0] >= 3


def test_a_set_of_the_world_by_name(run: Run) -> None:
    """The remark says which model compares."""
    done = run("flags", "--similarity", 0.97, "--json")
    found = done.json
    assert found["images"] == len(world.load("flags").images)
    assert found["groups"], "flags that differ by a coat of arms"
    assert all(group["keep"]["width"] == 64 for group in found["groups"])
    assert "no --posterior is given: images are compared by emoji-clip" in done.err


def test_an_index(run: Run, home: Path, tmp_path: Path) -> None:
    pytest.importorskip("lancedb", reason="the extra `retrieval` is not installed")
    shutil.copytree(home / "photos", tmp_path / "photos")
    photos, index = tmp_path / "photos", tmp_path / "index"
    (photos / "broken.png").unlink()
    made = run_command("index", photos, "-p", "emoji-clip", "-o", index)
    assert made.code == 0, made.err
    asked = ("--similarity", 0.97, "--json")
    direct = run(photos, "-p", "emoji-clip", *asked).json
    found = run("--index", index, *asked).json
    assert [names(group) for group in found["groups"]] == [names(group) for group in direct["groups"]]
    assert (found["images"], found["missing"], found["gone"]) == (11, [], 0)
    (photos / "5 copy.png").unlink()
    Image.new("RGB", (200, 100), "red").save(photos / "new.png")
    third = Image.open(photos / "2.png")
    third.resize((32, 32)).save(photos / "2 small.png")
    done = run(photos, "--index", index, *asked)
    found = done.json
    assert [sorted(names(group)) for group in found["groups"]] == [["2 again.jpg", "2.png"]]
    assert [Path(name).name for name in found["missing"]] == ["2 small.png", "new.png"]
    assert "2 images are not in" in done.err
    done = run("--index", index, *asked)
    assert done.json["gone"] == 1
    assert "1 rows of" in done.err


def test_files_whose_rows_have_other_ids(run: Run, home: Path, tmp_path: Path) -> None:
    pytest.importorskip("lancedb", reason="the extra `retrieval` is not installed")
    from bayesvlm.retrieval import Index

    files = sorted(path for path in (home / "photos").glob("[0-3].png"))
    index = Index.create(tmp_path / "index", BayesVLM.from_pretrained("emoji-clip"))
    index.add(files, ids=[f"mine {number}" for number in range(len(files))], progress=False)
    index.add(files[:1], ids=["once more"], progress=False)
    found = run(*files, "--index", tmp_path / "index", "--similarity", 0.9999, "--json").json
    assert (found["images"], found["missing"], found["groups"]) == (len(files), [], [])


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ((), "There is nothing to compare"),
        (("photos", "--similarity", 1), "similarity=1.0; a cosine that near-copies reach lies between"),
        (("photos", "--level", 2), "level=2.0; a credible level"),
        (("photos", "--by", "middle"), "--by='middle' is not known; use 'upper', 'mean' or 'lower'"),
        (("photos", "--out", "groups.xlsx"), "the groups can be a .csv or .json file"),
        (("nowhere",), "nowhere"),
        (("photos", "--index", "index", "-p", "emoji-clip"), "--posterior has no use with --index"),
        (("--index", "index", "--model", "x"), "--model has no use with --index"),
        (("--index", "nothing/there"), "nothing/there holds no index"),
        (("photos/broken.png", "-p", "emoji-clip"), "None of 1 images can be read"),
    ],
)
def test_what_is_refused(run: Run, asked: tuple[Any, ...], sentence: str) -> None:
    if "nothing/there" in asked:
        pytest.importorskip("lancedb", reason="the extra `retrieval` is not installed")
    done = run(*asked)
    assert done.code == 2, done.out
    assert done.out == ""
    assert sentence in done.err
    assert "Traceback" not in done.err
