"""`bayesvlm index`: made, brought up to date, looked at, calibrated; what is refused."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
from command_line import Run, run_command
from PIL import Image

from bayesvlm import BayesVLM, world
from bayesvlm.cli.queries import as_condition
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.retrieval import Index

pytest.importorskip("lancedb", reason="LanceDB is not installed")

POSTERIOR = ("--posterior", "emoji-clip")
GROUP = "food-drink"


def draw(folder: Path, count: int) -> None:
    """Drawings of food, each in an album by its first letter."""
    part = world.load("openmoji-colour").group(GROUP)
    for number, (image, label) in enumerate(zip(part.images[:count], part.labels[:count], strict=True)):
        name = part.classes[label].replace("/", "_")
        place = folder / f"{name[0]}/{number} {name}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.open(BytesIO(image)).convert("RGB").save(place)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos/ with sixty drawings and index/ of them."""
    home = tmp_path_factory.mktemp("index")
    draw(home / "photos", 60)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        made = run_command("index", "photos/", "--out", "index/", *POSTERIOR)
        assert made.code == 0, made.err
        assert "index/ holds 60 images of emoji-clip: 60 added" in made.out
        assert "--posterior" not in made.err
    return home


@pytest.fixture
def here(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Copies of both, to do with as one likes: the paths in the index are those of the first."""
    monkeypatch.chdir(home)
    shutil.copytree(home / "index", home / "kept")
    yield home
    shutil.rmtree(home / "index")
    (home / "kept").rename(home / "index")
    shutil.rmtree(home / "photos")
    draw(home / "photos", 60)


# Making and updating --------------------------------------------------------------------------------------------------


def test_it_is_brought_up_to_date(here: Path, run: Run) -> None:
    files = sorted((here / "photos").rglob("*.png"))
    files[0].unlink()
    shutil.copy(files[1], here / "photos/copy.png")
    (here / "photos/bad.png").write_bytes(b"no image")
    found = run("index", "photos", "-o", "index", "--json")
    result = found.json
    assert {name: result[name] for name in ("added", "changed", "updated", "unchanged", "deleted", "rows", "made")} == {
        "added": 1,
        "changed": 0,
        "updated": 0,
        "unchanged": 59,
        "deleted": 1,
        "rows": 60,
        "made": False,
    }
    assert list(result["skipped"]) == [str(here / "photos/bad.png")]
    assert "skipped 1 that cannot be used" in found.err
    text = run("index", "build", "photos", "-o", "index").out
    assert "0 added, 60 as they were" in text
    assert "`bayesvlm search index" in text


def test_strict_stops(here: Path, refuse: Run) -> None:
    (here / "photos/bad.png").write_bytes(b"no image")
    assert "bad.png" in refuse("index", "photos", "-o", "index", "--strict").err


def test_without_a_posterior_it_says_which(here: Path, run: Run, tmp_path: Path) -> None:
    found = run("index", next((here / "photos").rglob("*.png")), "-o", tmp_path / "new")
    assert found.code == 0, found.err
    assert "no --posterior is given: the index is of emoji-clip" in found.err
    assert "1 added" in found.out


def test_anew(here: Path, run: Run) -> None:
    shutil.rmtree(here / "photos" / "b")
    there = len(list((here / "photos").rglob("*.png")))
    result = run("index", "photos", "-o", "index", "--overwrite", *POSTERIOR, "--json").json
    assert (result["made"], result["rows"], result["added"]) == (True, there, there)


def test_an_interruption(here: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Index, *arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    draw(here / "photos", 61)
    with monkeypatch.context() as patch:
        patch.setattr(Index, "add", interrupted)
        result = run("index", "photos", "-o", "index")
    assert result.code == 130
    assert "interrupted: 60 images are in index; give the same command again" in result.err
    assert run("index", "photos", "-o", "index", "--json").json["added"] == 1


def test_nothing_can_be_read(tmp_path: Path, refuse: Run) -> None:
    (tmp_path / "bad.png").write_bytes(b"no image")
    found = refuse("index", tmp_path / "bad.png", "-o", tmp_path / "new", *POSTERIOR)
    assert "None of 1 image(s) could be read; the reasons are above" in found.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("nowhere.jpg",), "There is no file 'nowhere.jpg'"),
        (("openmoji-blak",), "did you mean 'openmoji-black'"),
        (("photoz/",), "There is no folder 'photoz/'; did you mean 'photos/'?"),
        (("empty",), "There are no images in empty"),
        (
            ("photos", "--posterior", "emoji-siglip", "-o", "index"),
            "the projections of the model given, emoji-siglip, are others",
        ),
        (("photos", "-o", "file"), "file is a file; name a folder for the index"),
        (("photos", "--engine", "spark"), "--engine='spark' is not known"),
        (("photos", "--actors", "2"), "--actors 2 goes with --engine ray"),
        (("info", "nowhere"), "nowhere holds no index"),
        (("compact", "photos"), "photos holds no index"),
        (("calibrate", "index", "nowhere.csv"), "nowhere.csv cannot be read"),
    ],
)
def test_what_is_refused(here: Path, refuse: Run, words: tuple[str, ...], sentence: str) -> None:
    (here / "empty").mkdir(exist_ok=True)
    (here / "file").write_text("")
    assert sentence in refuse("index", *words).err
    assert not (here / "nowhere").exists()


def test_without_lancedb(here: Path, refuse: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "lancedb", None)
    for words in (("index", "photos", "-o", "new"), ("search", "index", "pizza"), ("index", "info", "index")):
        assert "`pip install 'bayesvlm[retrieval]'`" in refuse(*words).err
    assert not (here / "new").exists()


def test_help(run: Run) -> None:
    for words in (("index", "--help"), ("index", "build", "-h"), ("index",)):
        text = run(*words).out
        assert "calibrate" in text
        assert "info" in text
    assert "--posterior" in run("index", "--help").out


# Looking at it --------------------------------------------------------------------------------------------------------


def test_info(here: Path, run: Run) -> None:
    result = run("index", "info", "index", "--json").json
    assert (result["rows"], result["model"], result["tower"]) == (60, "emoji-clip", "image")
    assert result["sources"] == {str(here / "photos"): 60}
    assert result["calibration"] is None
    text = run("index", "info", "index").out
    assert "60 images" in text
    assert "album (text)" in text
    assert "none; `bayesvlm index calibrate` makes one" in text


def test_compact(here: Path, run: Run) -> None:
    index = Index.open("index")
    for number, path in enumerate(sorted((here / "photos").rglob("*.png"))[:3]):
        index.add([path], ids=[f"again {number}"], progress=False)
    result = run("index", "compact", "index", "--json").json
    assert (result["rows"], result["fragments"]) == (63, 1)
    assert result["fragments_before"] > 1


def test_looking_needs_no_model(here: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object, **options: object) -> None:
        raise AssertionError("the model is loaded")

    monkeypatch.setattr(BayesVLM, "from_pretrained", refused)
    assert run("index", "info", "index").code == 0
    assert run("index", "compact", "index").code == 0
    index = Index.look("index")
    assert index.delete(where={"album": "b"}) > 0
    for call in (lambda: index.search("pizza"), lambda: index.add(["x.png"], progress=False)):
        with pytest.raises(BayesVLMError, match="was opened without its model"):
            call()


def test_a_model_that_has_moved(run: Run, tmp_path: Path, here: Path) -> None:
    from bayesvlm.testing import save_tiny_clip

    save_tiny_clip(tmp_path / "old")
    (tmp_path / "pairs").mkdir()
    for number in range(8):
        Image.new("RGB", (40, 40), (30 * number, 0, 90)).save(tmp_path / f"pairs/{number}.png")
        (tmp_path / f"pairs/{number}.txt").write_text(f"a colour {number}")
    made = run("fit", tmp_path / "old", tmp_path / "pairs", "-o", tmp_path / "posterior", "--negatives", 4)
    assert made.code == 0, made.err
    built = run("index", tmp_path / "pairs", "-o", tmp_path / "new", "-p", tmp_path / "posterior")
    assert built.code == 0, built.err
    (tmp_path / "old").rename(tmp_path / "moved")
    assert "could not be loaded" in run("search", tmp_path / "new", "a colour").err
    assert run("search", tmp_path / "new", "a colour", "--model", tmp_path / "moved").code == 0
    assert run("index", tmp_path / "pairs", "-o", tmp_path / "new", "--model", tmp_path / "moved").code == 0


# Calibrating ----------------------------------------------------------------------------------------------------------


def write(file: Path, header: str, rows: list[tuple[str, ...]]) -> Path:
    with file.open("w", newline="") as out:
        csv.writer(out).writerows([header.split(","), *rows])
    return file


def answers(home: Path) -> list[tuple[str, ...]]:
    paths = sorted((home / "photos").rglob("*.png"))
    return [(path.stem.partition(" ")[2], os.path.relpath(path, home)) for path in paths]


def test_calibrate(here: Path, run: Run) -> None:
    file = write(here / "queries.csv", "query,id", [*answers(here), ("a steam engine", "")])
    result = run("index", "calibrate", "index", file, "--error", 0.1, "--json").json
    assert (result["labelled"], result["error"], result["queries"]) == (True, 0.1, 60)
    assert (result["false_answers_of"], result["false_answers_made"]) == (60, True)
    assert "of queries that have a match 10 % at most are turned away" in run("index", "info", "index").out
    found = run("search", "index", "pizza", "--json").json["queries"][0]
    assert found["matches"] is True
    assert found["hits"][0]["p_match"] > found["hits"][-1]["p_match"]
    assert "match" in run("search", "index", "pizza").out


def test_calibrate_by_a_column(here: Path, run: Run) -> None:
    rows = [(name, Path(path).parts[1]) for name, path in answers(here)]
    by_album = run("index", "calibrate", "index", write(here / "q.csv", "query,album", rows), "--json").json
    assert by_album["labelled"]
    (here / "q.jsonl").write_text("".join(f'{{"text": "{name}"}}\n' for name, _ in rows if '"' not in name))
    without = run("index", "calibrate", "index", here / "q.jsonl", "--json").json
    assert not without["labelled"]
    assert "without answers nothing is promised" in run("index", "info", "index").out
    said = run("index", "calibrate", "index", here / "q.jsonl").out
    assert "the 5 % least self-consistent or most uncertain are turned away" in said


def test_calibrate_by_the_names_of_files(here: Path, run: Run, refuse: Run) -> None:
    named = [(query, Path(path).name) for query, path in answers(here)]
    file = write(here / "queries.csv", "query,id", [("a steam engine", ""), *named])
    done = run("index", "calibrate", "index", file)
    assert done.code == 0, done.err
    first, second = done.out.splitlines()
    assert first.startswith(
        "index: of queries that have a match 5 % at most are turned away, and of 60 without one, made by taking the "
        "matches of these away,"
    ), "the one that was given is too few to count on"
    assert first.endswith("all the same; learnt from 60 queries on 60 images")
    assert second == f'`bayesvlm search index "{named[0][0]}" --abstain` asks by it'
    by_path = write(here / "paths.csv", "query,path", named)
    assert run("index", "calibrate", "index", by_path, "--json").json["queries"] == 60
    file = write(here / "queries.csv", "query,id", [*named, *[(f"no {n}", f"no-{n}.png") for n in range(4)]])
    said = refuse("index", "calibrate", "index", file).err
    assert (
        "names 4 ids that index does not have: 'no-0.png', 'no-1.png', 'no-2.png', ...; ids look like 'photos" in said
    )
    (here / "photos/z").mkdir()
    shutil.copy(here / answers(here)[0][1], here / "photos/z")
    assert run("index", "photos", "-o", "index").code == 0
    said = refuse("index", "calibrate", "index", write(here / "queries.csv", "query,id", named)).err
    assert f"{named[0][1]!r}, and 2 files of index are called so; write the path, such as 'photos/" in said


@pytest.mark.parametrize("posterior", [POSTERIOR, ()])
def test_another_process_that_makes_the_same_index(
    run: Run, tmp_path: Path, here: Path, monkeypatch: pytest.MonkeyPatch, posterior: tuple[str, ...]
) -> None:
    """Both see that there is none, and one is quicker; the other goes on in the index of the first."""
    from bayesvlm.retrieval.store import Store

    tables, looked = Store.tables, []

    def none_yet(self: Store) -> list[str]:
        found = tables(self)
        if not looked:
            looked.append(self)
            Index.create(tmp_path / "new", BayesVLM.from_pretrained("emoji-clip"))
            return []
        return found

    monkeypatch.setattr(Store, "tables", none_yet)
    done = run("index", "photos/", "-o", tmp_path / "new", *posterior, "--json")
    assert done.code == 0, done.err
    assert (done.json["made"], done.json["rows"], done.json["added"]) == (False, 60, 60)
    assert "was made by another process meanwhile; these images go into it" in done.err
    assert "Index.open" not in done.err


def test_what_to_ask(run: Run, tmp_path: Path, here: Path) -> None:
    (tmp_path / "a.csv").write_text(f"image,label\n{next((here / 'photos').rglob('*.png'))},hot dog\n")
    made = run("index", tmp_path / "a.csv", "-o", tmp_path / "new", *POSTERIOR)
    assert made.out.splitlines()[-1] == f'`bayesvlm search {tmp_path / "new"} "hot dog"` asks it'


@pytest.mark.parametrize(
    ("header", "rows", "sentence"),
    [
        ("query,id", [("pizza", "nobody")], "nobody"),
        ("query,id", [("", "x")], "entry 1 has no query"),
        ("query,album", [("pizza", "zebra")], "the album 'zebra', which no row of index has"),
        ("query,colour", [("pizza", "red")], "beside query one must be id, path or a column of the index (album"),
        ("words,id", [("pizza", "x")], "must be called query or text or caption"),
        ("query,id", [], "has no queries"),
    ],
)
def test_answers_that_are_none(
    here: Path, refuse: Run, header: str, rows: list[tuple[str, ...]], sentence: str
) -> None:
    more = [(name, path if header == "query,id" else "p") for name, path in answers(here)] if rows else []
    file = write(here / "queries.csv", header, [*rows, *more])
    assert sentence in refuse("index", "calibrate", "index", file).err


def test_too_few_queries(here: Path, refuse: Run) -> None:
    file = write(here / "queries.csv", "query,id", answers(here)[:10])
    assert "19" in refuse("index", "calibrate", "index", file).err
    assert "--error is 2" in refuse("index", "calibrate", "index", file, "--error", 2).err


# Conditions -----------------------------------------------------------------------------------------------------------

TYPES = {"id": "text", "year": "whole numbers", "by whom": "text", "share": "numbers", "good": "True or False"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["year=2020"], "(`year` IN (2020))"),
        (["year = 2020", "year=2021"], "(`year` IN (2020, 2021))"),
        (["year>=2020", "year<2023"], "(`year` >= 2020) AND (`year` < 2023)"),
        (["by whom=it's"], "(`by whom` IN ('it''s'))"),
        (["id like %.png"], "(`id` LIKE '%.png')"),
        (["id=a=b"], "(`id` IN ('a=b'))"),
        (["id=' OR 1=1 --"], "(`id` IN (''' OR 1=1 --'))"),
        (["good=True", "share!=0.5"], "(`good` IN (true)) AND (`share` != 0.5 OR `share` IS NULL)"),
        ([], None),
    ],
)
def test_conditions(given: list[str], expected: str | None) -> None:
    assert as_condition(given, TYPES) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["year", "years=1", "=", "", "year=many", "good=perhaps", "year==2020"])
def test_conditions_that_are_none(given: str) -> None:
    with pytest.raises(BayesVLMError, match="--where"):
        as_condition([given], TYPES)  # type: ignore[arg-type]
