"""Commands with --engine ray answer what they answer without."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import Run, run_command
from PIL import Image

from bayesvlm.artifacts import SavedPosterior
from bayesvlm.core.estimation import TOWERS

RAY = ("--engine", "ray", "--actors", 1, "--cpus-per-actor", 0.5)


def needs_ray(test: Any) -> Any:
    """One worker has the one Ray of a session."""
    return pytest.mark.xdist_group("ray")(pytest.mark.usefixtures("ray_session")(test))


@pytest.fixture(scope="module")
def posterior(folders: dict[str, Path], shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fitted by one process."""
    out = tmp_path_factory.mktemp("posterior") / "local"
    assert run_command("fit", folders["clip"], shards, "--out", out, "--negatives", 10).code == 0
    return out


@needs_ray
def test_fit(run: Run, posterior: Path, folders: dict[str, Path], shards: Path, tmp_path: Path) -> None:
    out = tmp_path / "ray"
    result = run("fit", folders["clip"], shards, "--out", out, "--negatives", 10, "--json", *RAY).json
    expected = SavedPosterior.load(posterior)
    found = SavedPosterior.load(out)
    assert result["pairs"] == 60
    assert len(result["skipped"]) == 12
    assert result["groups"] == 6
    for tower in TOWERS:
        for name in ("A_sum", "B_sum"):
            got, want = (getattr(saved.factors[tower], name) for saved in (found, expected))
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5 * float(want.abs().max()))
    assert found.config.provenance["read"] == expected.config.provenance["read"]
    assert {path.name for path in out.iterdir()} == {path.name for path in posterior.iterdir()}


@needs_ray
def test_classify(run: Run, posterior: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(70):  # more than are encoded without looking into the cache
        Image.new("RGB", (40, 40), (3 * number, 255 - 3 * number, 90)).save(folder / f"{number:02}.png")
    (folder / "13.png").write_bytes(b"no image")
    rows = {}
    for name, engine in (("local", ()), ("ray", RAY)):
        words = ["--classes", "cat,dog,sea", "--batch-size", 16, "--cache", tmp_path / name]
        out = tmp_path / f"{name}.csv"
        result = run("classify", posterior, folder, "--out", out, "--json", *words, *engine).json
        assert list(result["skipped"]) == [str(folder / "13.png")]
        with out.open() as file:
            rows[name] = list(csv.DictReader(file))
    assert [row["image"] for row in rows["ray"]] == [str(folder / f"{n:02}.png") for n in range(70) if n != 13]
    assert [row["class"] for row in rows["ray"]] == [row["class"] for row in rows["local"]]
    probs = [torch.tensor([float(row["prob"]) for row in rows[name]]) for name in ("ray", "local")]
    torch.testing.assert_close(probs[0], probs[1], rtol=0, atol=1e-4)


@needs_ray
def test_eval(run: Run, posterior: Path, tmp_path: Path) -> None:
    for label, name in enumerate(("cat", "dog")):
        (tmp_path / "set" / name).mkdir(parents=True)
        for number in range(5):
            colour = (40 * number, 200 * label, 120)
            Image.new("RGB", (40, 40), colour).save(tmp_path / "set" / name / f"{number}.png")
    found = {}
    for name, engine in (("local", ()), ("ray", RAY)):
        words = ["-d", tmp_path / "set", "--out", tmp_path / name, "--cache", tmp_path / f"cache-{name}"]
        (found[name],) = run("eval", posterior, "--methods", "plain,bayes", "--json", *words, *engine).json["results"]
    assert found["ray"]["inputs"] == found["local"]["inputs"]
    for method, scores in found["local"]["methods"].items():
        assert found["ray"]["methods"][method]["nlpd"] == pytest.approx(scores["nlpd"], abs=1e-4)


@needs_ray
def test_index(run: Run, posterior: Path, tmp_path: Path) -> None:
    from bayesvlm.retrieval import Index

    pytest.importorskip("lancedb", reason="LanceDB is not installed")
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(12):
        Image.new("RGB", (40, 40), (20 * number, 255 - 20 * number, 90)).save(folder / f"{number:02}.png")
    (folder / "bad.png").write_bytes(b"no image")
    found = []
    for name, engine in (("local", ()), ("ray", RAY)):
        out = tmp_path / name
        words = ["index", folder, "-o", out, "--posterior", posterior, "--batch-size", 5, "--json"]
        result = run(*words, *engine).json
        assert (result["added"], list(result["skipped"])) == (12, [str(folder / "bad.png")])
        assert run(*words, *engine).json["unchanged"] == 12
        hits = Index.open(out).search(folder / "03.png", k=12)
        found.append(dict(zip(hits.ids, hits.mean.tolist(), strict=True)))
    assert found[0] == pytest.approx(found[1], abs=1e-4)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--engine", "spark"), "--engine='spark' is not known; use 'local' or 'ray'"),
        (("--address", "auto"), "--address auto goes with --engine ray"),
        (("--actors", 2), "--actors 2 goes with --engine ray"),
        (
            ("--engine", "ray", "--device", "cuda"),
            "--device cuda is of one process; with --engine ray, --gpus-per-actor",
        ),
        (("--engine", "ray", "--workers", 2), "--workers 2 is of one process"),
        (("--engine", "ray", "--actors", 0), "actors is 0"),
    ],
)
def test_options_that_do_not_go_together(
    refuse: Run, folders: dict[str, Path], shards: Path, tmp_path: Path, words: tuple[Any, ...], sentence: str
) -> None:
    assert sentence in refuse("fit", folders["clip"], shards, "--out", tmp_path / "out", *words).err
    assert not (tmp_path / "out").exists()


@needs_ray
def test_what_the_cluster_can_never_give_is_refused(
    refuse: Run, folders: dict[str, Path], shards: Path, tmp_path: Path
) -> None:
    words = ["fit", folders["clip"], shards, "--out", tmp_path / "out", "--negatives", 10, "--engine", "ray"]
    assert "and no node of the cluster has them" in refuse(*words, "--gpus-per-actor", 1).err
    assert "holds 4 at most" in refuse(*words, "--actors", 40).err
    assert not (tmp_path / "out").exists()


def test_without_ray_a_sentence_says_what_to_install(
    refuse: Run, folders: dict[str, Path], shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else found(name, *rest))
    words = ["fit", folders["clip"], shards, "--out", tmp_path / "out", "--negatives", 10, "--engine", "ray"]
    assert "`pip install 'bayesvlm[ray]'`" in refuse(*words).err
