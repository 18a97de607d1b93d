"""The command line as a stranger meets it: real commands, real files, one sentence for every mistake."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import Run
from PIL import Image
from safetensors.torch import load_file, save_file
from typer.main import get_command

from bayesvlm import __version__
from bayesvlm.cli import app
from bayesvlm.core.estimation import FactorEstimator
from bayesvlm.core.tuning import TauGrid
from bayesvlm.models.preprocessing import Preprocessor
from bayesvlm.testing.tiny import save_tiny_clip, save_tiny_siglip

COLOURS = ("red", "green", "blue")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_clip(tmp_path_factory.mktemp("models") / "clip")


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    folder = tmp_path / "pairs"
    folder.mkdir()
    random = np.random.default_rng(0)
    with (folder / "captions.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["image", "caption"])
        for index in range(24):
            colour = COLOURS[index % 3]
            image = Image.new("RGB", (40, 32), colour)
            image.paste(Image.fromarray(random.integers(0, 256, (16, 16, 3), dtype=np.uint8)), (8, 8))
            image.save(folder / f"{index:02}.png")
            table.writerow([f"{index:02}.png", f"a {colour} picture, number {index}"])
    return folder


@pytest.fixture
def posterior(run: Run, model: Path, pairs: Path, tmp_path: Path) -> Path:
    assert run("fit", model, pairs, "--out", tmp_path / "posterior").code == 0
    return tmp_path / "posterior"


@pytest.fixture
def validation(pairs: Path, tmp_path: Path) -> Path:
    for index in range(24):
        folder = tmp_path / "validation" / f"a_{COLOURS[index % 3]}_thing"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(pairs / f"{index:02}.png", folder)
    return tmp_path / "validation"


@pytest.fixture
def interrupt_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Ctrl-C at the n-th batch of a fit; returns the list that counts the batches."""
    add, calls = FactorEstimator.add, []

    def arrange(batch_number: int) -> list[int]:
        def interrupted(self: FactorEstimator, *batch: object) -> None:
            calls.append(1)
            if len(calls) == batch_number:
                raise KeyboardInterrupt
            add(self, *batch)  # type: ignore[arg-type]

        monkeypatch.setattr(FactorEstimator, "add", interrupted)
        return calls

    return arrange


# What works ----------------------------------------------------------------------------------------------------------


def test_classify_by_another_method(run: Run, pairs: Path) -> None:
    asked = "classify", "emoji-prolip", pairs / "00.png", "--classes", "red apple,green book"
    found = {name: json.loads(run(*asked, "--method", name, "--json").out) for name in ("mean", "native", "probcosine")}
    probs = {name: result["images"][0]["top"][0]["prob"] for name, result in found.items()}
    assert len(set(probs.values())) == 3
    assert {result["scale"] for result in found.values()} == {found["mean"]["scale"]}
    assert f"by native, temperature t = {found['mean']['scale']:.4g}" in run(*asked, "--method", "native").out


def test_a_model_that_predicts_variances_is_not_fitted(refuse: Run, pairs: Path, tmp_path: Path) -> None:
    refused = refuse("fit", "emoji-prolip", pairs, "--out", tmp_path / "posterior")
    assert "this model predicts its variances itself" in refused.err
    assert not (tmp_path / "posterior/config.json").exists()
    asked = "classify", "emoji-prolip", pairs / "00.png", "--classes", "a,b", "--method", "native", "--link", "mc"
    assert "--link mc goes with --method probcosine" in refuse(*asked).err


def test_an_encoder_that_changed_is_said_and_strict_refuses(
    run: Run, refuse: Run, model: Path, pairs: Path, posterior: Path, validation: Path, tmp_path: Path
) -> None:
    changed = tmp_path / "merged"
    shutil.copytree(model, changed)
    weights = load_file(changed / "model.safetensors")
    weights["vision_model.encoder.layers.0.mlp.fc1.weight"] += 0.01
    save_file(weights, changed / "model.safetensors", {"format": "pt"})
    classify = "classify", posterior, pairs / "00.png", "--classes", "red,green", "--model", changed
    heard = [line for line in run(*classify).err.splitlines() if "is not the encoder" in line]
    assert len(heard) == 1
    assert heard[0].startswith(f"warning: {changed} is not the encoder this posterior was estimated with ({model})")
    assert "weights differ" in refuse(*classify, "--strict").err
    assert "weights differ" in refuse("tune", posterior, validation, "--model", changed, "--strict").err


def test_a_tau_at_the_end_of_the_grid_is_said(
    run: Run, posterior: Path, validation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TauGrid, "best", property(lambda grid: grid.points[-1]))
    (heard,) = (line for line in run("tune", posterior, validation).err.splitlines() if "an end of the grid" in line)
    assert heard.startswith("warning: The best tau, 10000, is an end of the grid")


def test_tune_does_not_save_beside_an_embedded_posterior(refuse: Run, validation: Path) -> None:
    assert "emoji-clip is not a folder on this machine; tune writes" in refuse("tune", "emoji-clip", validation).err


def test_fit_tune_classify_info_merge(
    run: Run, model: Path, pairs: Path, posterior: Path, validation: Path, tmp_path: Path
) -> None:
    assert sorted(path.name for path in posterior.iterdir()) == ["README.md", "config.json", "posterior.safetensors"]

    tuned = run("tune", posterior, validation, "--json").json
    assert tuned["images"] == 24
    assert tuned["nlpd"] == min(point["nlpd"] for point in tuned["grid"])
    assert json.loads((posterior / "config.json").read_text())["tau"] == tuned["tau"]

    rows = run(
        "classify", posterior, pairs / "00.png", pairs / "01.png", "--classes", "red,green", "--top", 2, "--json"
    ).json
    assert [Path(row["image"]).name for row in rows["images"]] == ["00.png", "01.png"]
    for row in rows["images"]:
        assert sum(best["prob"] for best in row["top"]) == pytest.approx(1, abs=1e-5)
        for best in row["top"]:
            assert best["interval"][0] <= best["cosine"] <= best["interval"][1]
        assert 0 <= row["epistemic"] <= row["entropy"] <= math.log(2) + 1e-6
        assert row["epistemic"] + row["aleatoric"] == pytest.approx(row["entropy"], abs=1e-6)

    text = run("classify", posterior, pairs, "--classes", "red, green ,blue", "--out", tmp_path / "results.jsonl")
    assert "entropy = epistemic + aleatoric, in nats" in text.out
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 24

    info = run("info", posterior, "--json").json
    assert info["tau"] == tuned["tau"]
    assert info["towers"]["image"]["pairs"] == 24
    assert "trace of A" in run("info", posterior).out

    shards = tmp_path / "first", tmp_path / "second"
    for number, shard in enumerate(shards):
        assert run("fit", model, pairs, "--out", shard, "--negatives", 8, "--shard", f"{number}/2").code == 0
    merged = run("merge", *shards, "--out", tmp_path / "merged", "--json").json
    assert merged["pairs"] == 24
    assert run("classify", tmp_path / "merged", pairs / "00.png", "--classes", "red,green").code == 0


def test_fit_on_siglip(run: Run, pairs: Path, tmp_path: Path) -> None:
    model = save_tiny_siglip(tmp_path / "siglip")
    fitted = run("fit", model, pairs, "--out", tmp_path / "posterior", "--json").json
    assert fitted["pairs"] == 24
    assert run("info", tmp_path / "posterior", "--json").json["loss"] == "sigmoid"
    assert run("classify", tmp_path / "posterior", pairs / "00.png", "--classes", "red,green").code == 0


@pytest.fixture
def shards(pairs: Path, tmp_path: Path) -> Path:
    """The pairs in three tar shards of eight, as img2dataset writes them."""
    folder = tmp_path / "shards"
    folder.mkdir()
    with (pairs / "captions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for number in range(3):
        with tarfile.open(folder / f"{number:05}.tar", "w") as archive:
            for row in rows[8 * number : 8 * number + 8]:
                image = (pairs / row["image"]).read_bytes()
                for name, content in ((row["image"], image), (f"{row['image'][:2]}.txt", row["caption"].encode())):
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
        (folder / f"{number:05}_stats.json").write_text('{"successes": 8}')
    return folder


def test_fit_on_tar_shards_is_the_fit_on_their_files(
    run: Run, refuse: Run, model: Path, pairs: Path, shards: Path, tmp_path: Path
) -> None:
    files = run("fit", model, pairs, "--out", tmp_path / "files", "--json").json
    fitted = run("fit", model, shards, "--out", tmp_path / "out", "--json").json
    assert fitted["pairs"] == 24
    assert fitted["lam"] == pytest.approx(files["lam"], rel=1e-6)
    provenance = json.loads((tmp_path / "out/config.json").read_text())["provenance"]
    assert provenance["source"] == "shards"

    whole = (shards / "00001.tar").read_bytes()
    (shards / "00001.tar").write_bytes(whole[: len(whole) // 3])
    cut = run("fit", model, shards, "--out", tmp_path / "cut", "--json")
    assert 16 < cut.json["pairs"] < 24
    assert list(cut.json["skipped"]) == [str(shards / "00001.tar")]
    assert "00001.tar cannot be read to its end" in cut.err
    assert "00001.tar" in refuse("fit", model, shards, "--out", tmp_path / "strict", "--strict").err


def test_an_interrupted_fit_on_shards_goes_on(
    run: Run, refuse: Run, model: Path, shards: Path, tmp_path: Path, interrupt_at: Callable[[int], list[int]]
) -> None:
    arguments = ("fit", model, shards, "--negatives", 8, "--batch-size", 4)
    whole = run(*arguments, "--out", tmp_path / "whole", "--json").json
    calls = interrupt_at(6)
    assert run(*arguments, "--out", tmp_path / "cut").code == 130
    calls.clear()
    content = (shards / "00002.tar").read_bytes()
    (shards / "00002.tar").write_bytes(content.replace(b"number 23", b"number 99"))
    assert "fingerprint" in refuse(*arguments, "--out", tmp_path / "cut").err
    (shards / "00002.tar").write_bytes(content)
    resumed = run(*arguments, "--out", tmp_path / "cut", "--json").json
    assert len(calls) == 2, "16 of 24 pairs were already done"
    assert resumed["lam"] == pytest.approx(whole["lam"])


def test_fit_on_published_captions(run: Run, refuse: Run, model: Path, pairs: Path, tmp_path: Path) -> None:
    (pairs / "captions.csv").unlink()
    names = [f"{index:02}.png" for index in range(8)]
    coco = {
        "images": [{"id": index, "file_name": name} for index, name in enumerate([*names, "gone.png"])],
        "annotations": [{"image_id": index, "caption": f"{index}, {n}"} for index in range(9) for n in "ab"],
    }
    (tmp_path / "captions_val2014.json").write_text(json.dumps(coco))
    arguments = ("fit", model, pairs, "--captions", tmp_path / "captions_val2014.json", "--out", tmp_path / "coco")
    fitted = run(*arguments, "--json").json
    assert fitted["pairs"] == 16
    assert list(fitted["skipped"]) == [str(pairs / "gone.png")]
    assert run(*arguments, "--captions-per-image", 1, "--json", "--overwrite").json["pairs"] == 8
    assert "chooses nothing" in refuse(*arguments, "--split", "train", "--overwrite").err

    karpathy = {
        "images": [
            {"filename": name, "split": "train" if index < 6 else "test", "sentences": [{"raw": name}]}
            for index, name in enumerate(names)
        ]
    }
    (tmp_path / "dataset_flickr30k.json").write_text(json.dumps(karpathy))
    arguments = ("fit", model, pairs, "--captions", tmp_path / "dataset_flickr30k.json", "--out", tmp_path / "flickr")
    assert run(*arguments, "--split", "train", "--json").json["pairs"] == 6
    assert json.loads((tmp_path / "flickr/config.json").read_text())["provenance"]["split"] == "train"
    assert "has no split 'val'; it has test, train" in refuse(*arguments, "--split", "val", "--overwrite").err


def test_sources_of_pairs_that_cannot_be_used(
    refuse: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", None)
    Path("shards").mkdir()
    with tarfile.open("shards/00000.tar", "w"):
        pass
    assert "none of its 1 shard(s) holds a sample" in refuse("fit", model, "shards", "--out", "out").err
    assert "needs its split: owner/name:train" in refuse("fit", model, "owner/name", "--out", "out").err
    hub = refuse("fit", model, "owner/name", "--split", "train", "--out", "out").err
    assert "pip install 'bayesvlm[datasets]'" in hub
    Path("captions.json").write_text('{"data": []}')
    other = refuse("fit", model, "shards", "--captions", "captions.json", "--out", "out").err
    assert "no list of objects called 'images'; expected COCO's captions" in other
    assert not Path("out").exists()


def test_corrupt_images_are_skipped_counted_and_named(
    run: Run, refuse: Run, model: Path, pairs: Path, tmp_path: Path
) -> None:
    (pairs / "03.png").write_bytes(b"not an image")
    result = run("fit", model, pairs, "--out", tmp_path / "out", "--json")
    assert result.json["pairs"] == 23
    assert list(result.json["skipped"]) == [str(pairs / "03.png")]
    assert "skipped 1 that cannot be used" in result.err
    assert "03.png" in result.err
    assert json.loads((tmp_path / "out/config.json").read_text())["provenance"]["skipped_images"] == 1
    assert "03.png" in refuse("fit", model, pairs, "--out", tmp_path / "strict", "--strict").err
    assert not (tmp_path / "strict").exists()


def test_an_interrupted_fit_goes_on(
    run: Run, model: Path, pairs: Path, tmp_path: Path, interrupt_at: Callable[[int], list[int]]
) -> None:
    arguments = ("fit", model, pairs, "--negatives", 8, "--batch-size", 4)
    whole = run(*arguments, "--out", tmp_path / "whole", "--json").json
    calls = interrupt_at(6)
    cut = run(*arguments, "--out", tmp_path / "cut")
    assert cut.code == 130
    assert "give the same command again" in cut.err
    assert [path.name for path in (tmp_path / "cut").iterdir()] == ["fit-in-progress.safetensors"]
    other = run("fit", model, pairs, "--negatives", 4, "--batch-size", 4, "--out", tmp_path / "cut")
    assert "belongs to another run: negatives is 8 there and 4 here" in other.err
    assert other.err.startswith("error: "), "a refusal comes alone"
    calls.clear()
    again = run(*arguments, "--out", tmp_path / "cut", "--json")
    assert "going on from" in again.err
    resumed = again.json
    assert len(calls) == 2, "16 of 24 pairs were already done"
    assert resumed["lam"] == pytest.approx(whole["lam"])
    assert not (tmp_path / "cut/fit-in-progress.safetensors").exists()


def test_an_image_that_becomes_readable_is_not_counted_wrongly(
    run: Run, model: Path, pairs: Path, tmp_path: Path, interrupt_at: Callable[[int], list[int]]
) -> None:
    """What was read is not read again: a run that goes on counts what the one before could read."""
    good = (pairs / "03.png").read_bytes()
    (pairs / "03.png").write_bytes(b"x" * len(good))
    interrupt_at(4)
    arguments = ("fit", model, pairs, "--negatives", 8, "--batch-size", 4, "--out", tmp_path / "cut")
    assert run(*arguments).code != 0
    (pairs / "03.png").write_bytes(good)
    gone_on = run(*arguments, "--json").json
    assert gone_on["pairs"] == 23
    assert list(gone_on["skipped"]) == [str(pairs / "03.png")]


def test_every_option_is_explained_in_a_sentence() -> None:
    for command in get_command(app).commands.values():  # type: ignore[attr-defined]
        for option in command.params:
            text = option.help or ""
            where = f"{command.name} {option.name}: {text!r}"
            said = text.partition(" [")[0]
            assert said.endswith("."), where
            assert len(said.split()) >= 3, where
            assert not said.startswith(("Of ", "The same")), where
            assert said[0].isupper(), where


def test_a_fit_skips_and_names_what_has_no_caption(run: Run, model: Path, pairs: Path, tmp_path: Path) -> None:
    table = pairs / "captions.csv"
    rows = table.read_text().splitlines()
    table.write_text("\n".join([*rows[:3], "02.png,", *rows[4:]]) + "\n")
    beside = tmp_path / "beside"
    beside.mkdir()
    for index in range(6):
        shutil.copy(pairs / f"{index:02}.png", beside)
        if index != 4:
            (beside / f"{index:02}.txt").write_text(f"number {index}")
    for source, count, named in ((pairs, 23, "captions.csv, entry 3"), (beside, 5, "04.png has no caption")):
        ran = run("fit", model, source, "--out", tmp_path / source.name / "posterior", "--json")
        assert ran.json["pairs"] == count
        assert len(ran.json["skipped"]) == 1
        assert "skipped 1 that cannot be used" in ran.err
        assert named in ran.err


def test_every_command_explains_itself_with_an_example(run: Run) -> None:
    assert "Commands" in run("--help").out
    for command in ("demo", "fit", "tune", "eval", "classify", "info", "convert", "merge"):
        text = run(command, "--help").out
        assert f"bayesvlm {command}" in text.split("Example")[-1], f"{command} --help shows no example"
        assert "--json" in text


# What does not -------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_said_in_words(refuse: Run, monkeypatch: pytest.MonkeyPatch, posterior: Path) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("bayesvlm.artifacts.SavedPosterior.load", full)
    assert refuse("info", posterior).err == (
        "error: No space left on device; check that the path is right and that the disk has room.\n"
    )


def test_pairs_that_cannot_be_used(refuse: Run, model: Path, pairs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (tmp_path / "empty").mkdir()
    assert "holds no images" in refuse("fit", model, tmp_path / "empty", "--out", out).err
    (pairs / "captions.csv").unlink()
    assert "24 images but no captions" in refuse("fit", model, pairs, "--out", out).err
    (pairs / "captions.csv").write_text("image,caption\n00.png,alone\n")
    assert "given 1 pair" in refuse("fit", model, pairs, "--out", out).err
    (pairs / "captions.csv").write_text("image,caption\ngone.png,one\nlost.png,two\n")
    assert "given 0 pair" in refuse("fit", model, pairs, "--out", out).err
    assert not out.exists(), "nothing may be half-written"


def test_places_that_cannot_be_written(refuse: Run, model: Path, pairs: Path, posterior: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert "is a file" in refuse("fit", model, pairs, "--out", tmp_path / "file").err
    assert "is a file" in refuse("fit", model, pairs, "--out", tmp_path / "file/deeper", "--negatives", 8).err
    assert "of something else" in refuse("fit", model, pairs, "--out", model).err
    out = ("--classes", "a,b", "--out", tmp_path / "file/results.jsonl")
    assert "file" in refuse("classify", posterior, pairs / "00.png", *out).err
    assert (tmp_path / "file").read_text() == "mine"


def test_models_that_cannot_be_had(refuse: Run, pairs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    error = refuse("fit", "nobody/no-such-model", pairs, "--out", out).err
    assert "nobody/no-such-model" in error
    assert "not in the local cache" in error
    assert "no folder" in refuse("fit", tmp_path / "gone", pairs, "--out", out).err
    assert not out.exists()


OUT_OF_RANGE = {
    "--tau": ("-1", "0", "nan"),
    "--negatives": ("1",),
    "--structure": ("dense",),
    "--normalise": ("mean",),
    "--precision": ("int8",),
}


@pytest.mark.parametrize("option", [(name, value) for name, values in OUT_OF_RANGE.items() for value in values])
def test_options_out_of_range(refuse: Run, model: Path, pairs: Path, tmp_path: Path, option: tuple[str, str]) -> None:
    assert option[1] in refuse("fit", model, pairs, "--out", tmp_path / "out", *option).err
    assert not (tmp_path / "out").exists()


def test_class_lists_that_cannot_be(refuse: Run, posterior: Path, pairs: Path, tmp_path: Path) -> None:
    image = pairs / "00.png"
    assert "--classes ' , ' names no class" in refuse("classify", posterior, image, "--classes", " , ").err
    assert "'red' more than once" in refuse("classify", posterior, image, "--classes", "red,blue,red").err
    assert "Give the classes once" in refuse("classify", posterior, image).err
    (tmp_path / "names.txt").write_text("\n\n")
    empty = refuse("classify", posterior, image, "--classes-file", tmp_path / "names.txt")
    assert f"--classes-file {tmp_path / 'names.txt'} names no class" in empty.err
    assert "cannot be read" in refuse("classify", posterior, image, "--classes-file", tmp_path / "gone.txt").err
    assert (
        "no place for the class name"
        in refuse("classify", posterior, image, "--classes", "a,b", "--template", "photo").err
    )


def test_images_that_cannot_be_classified(run: Run, refuse: Run, posterior: Path, pairs: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"nothing")
    assert "None of the 1 image(s)" in refuse("classify", posterior, bad, "--classes", "a,b").err
    mixed = run("classify", posterior, bad, pairs / "00.png", "--classes", "a,b", "--json")
    assert len(mixed.json["images"]) == 1
    assert list(mixed.json["skipped"]) == [str(bad)]
    assert "bad.png" in refuse("classify", posterior, bad, pairs / "00.png", "--classes", "a,b", "--strict").err
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "raw.cr2").write_bytes(b"raw")
    nothing = refuse("classify", posterior, tmp_path / "none", "--classes", "a,b").err
    assert "There are no images" in nothing
    assert "raw.cr2 is a .cr2 file" in nothing
    (tmp_path / "none" / "raw.cr2").unlink()
    assert "There are no images" in refuse("classify", posterior, tmp_path / "none", "--classes", "a,b").err


def test_folders_as_telephones_fill_them(run: Run, posterior: Path, tmp_path: Path) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    photos, photo = tmp_path / "photos", Image.new("RGB", (640, 480), "olive")
    photos.mkdir()
    pillow_heif.from_pillow(photo).save(photos / "IMG_1.HEIC")
    photo.save(photos / "b.jfif", "JPEG")
    photo.save(photos / "c.JPEG")
    (photos / "d.jpg").symlink_to(tmp_path / "gone.jpg")
    (photos / "e.dng").write_bytes(b"raw")
    (photos / "f.heic").write_bytes(b"no image")
    (photos / "names.txt").write_text("a,b")
    ran = run("classify", posterior, photos, "--classes", "a,b", "--json")
    assert [Path(row["image"]).name for row in ran.json["images"]] == ["IMG_1.HEIC", "b.jfif", "c.JPEG"]
    assert sorted(Path(name).name for name in ran.json["skipped"]) == ["d.jpg", "e.dng", "f.heic"]
    assert "skipped 3 that cannot be used" in ran.err
    assert all(name in ran.err for name in ("d.jpg", "e.dng", "f.heic"))
    assert "names.txt" not in ran.err


def test_photographs_are_shrunk_as_they_are_read(
    run: Run, posterior: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[tuple[int, int]] = []
    honest = Preprocessor.read

    def watched(self: Preprocessor, *given: str) -> Image.Image:
        image = honest(self, *given)
        sizes.append(image.size)
        return image

    monkeypatch.setattr(Preprocessor, "read", watched)
    for number in range(3):
        Image.effect_noise((640, 480), 90).save(tmp_path / f"{number}.{('jpg', 'png', 'webp')[number]}")
    files = sorted(tmp_path.glob("?.*"))
    assert len(run("classify", posterior, *files, "--classes", "a,b", "--json").json["images"]) == 3
    chosen = ("--strategy", "random", "--budget", 1, "--out", tmp_path / "list.csv", "--classes", "a,b")
    pool = [argument for file in files for argument in ("--pool", file)]
    assert run("select", posterior, *pool, "--target", files[0], *chosen).code == 0
    assert sizes == [(42, 32)] * 7


def test_posteriors_that_cannot_be_used(refuse: Run, posterior: Path, pairs: Path, tmp_path: Path) -> None:
    image = pairs / "00.png"
    other = save_tiny_clip(tmp_path / "other", seed=1)
    assert "other weights" in refuse("classify", posterior, image, "--classes", "a,b", "--model", other).err
    assert "not a saved posterior" in refuse("info", other).err
    tensors = posterior / "posterior.safetensors"
    content = tensors.read_bytes()
    tensors.write_bytes(content[: len(content) // 2])
    assert "not a readable safetensors file" in refuse("classify", posterior, image, "--classes", "a,b").err
    tensors.write_bytes(pickle.dumps([1, 2]))
    assert "is a pickle" in refuse("info", posterior).err
    tensors.unlink()
    assert "posterior.safetensors does not exist" in refuse("info", posterior).err


def test_a_factor_that_is_indefinite_beyond_rounding(refuse: Run, posterior: Path, pairs: Path) -> None:
    import hashlib

    from safetensors.torch import load_file, save_file

    from bayesvlm.artifacts.triangles import packed, unpacked

    path = posterior / "posterior.safetensors"
    tensors = load_file(path)
    B = unpacked(tensors["text.B"], "B")
    tensors["text.B"] = packed(B - 0.5 * torch.eye(len(B)) * B.diagonal().max())
    save_file(tensors, path)
    config = json.loads((posterior / "config.json").read_text())
    config["tensors_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (posterior / "config.json").write_text(json.dumps(config))
    assert "indefinite" in refuse("classify", posterior, pairs / "00.png", "--classes", "a,b").err


def test_merges_that_make_no_sense(refuse: Run, posterior: Path, tmp_path: Path) -> None:
    assert "two or more" in refuse("merge", posterior, "--out", tmp_path / "out").err
    assert "count twice" in refuse("merge", posterior, posterior, "--out", tmp_path / "out").err
    assert not (tmp_path / "out").exists()


# The authors' published folders --------------------------------------------------------------------------------------


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A folder in the published layout, for the tiny CLIP: d = 24, p = 48 and 32."""
    folder = tmp_path / "hessians"
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    for name, size in (("A_img", 48), ("B_img", 24), ("A_txt", 32), ("B_txt", 24)):
        root = torch.randn(size, size, generator=generator)
        torch.save(root @ root.T, folder / f"{name}_analytic.pt")
    prior = {"lambda_img": 12.5, "n_img": 1.0, "lambda_txt": 7.5, "n_txt": 1.0}
    (folder / "prior_precision_analytic.json").write_text(json.dumps(prior))
    return folder


def test_convert(run: Run, refuse: Run, model: Path, published: Path, pairs: Path, tmp_path: Path) -> None:
    free = run("convert", published, "--out", tmp_path / "free", "--json").json
    assert free["lam"] == {"image": 12.5, "text": 7.5}
    A = torch.load(published / "A_img_analytic.pt", weights_only=True)
    assert free["traces"]["image"]["A"] == pytest.approx(float(A.trace()), rel=1e-6)
    assert "does not name its model" in refuse("classify", tmp_path / "free", pairs / "00.png", "--classes", "a,b").err
    assert run("classify", tmp_path / "free", pairs / "00.png", "--classes", "a,b", "--model", model).code == 0
    info = run("info", tmp_path / "free", "--json").json
    assert info["towers"]["image"]["pairs"] == 327680
    official = [row for row in info["towers"]["image"]["lam"] if row["objective"] == "official" and row["tau"] == 1]
    assert official[0]["lam"] == pytest.approx(12.5, rel=1e-9), "the implied |W|^2 gives the published lam back"
    assert "above zero" in refuse("info", tmp_path / "free", "--image-norm-squared", -5).err
    given = run("info", tmp_path / "free", "--image-norm-squared", 5, "--text-norm-squared", 6, "--json").json
    assert given["towers"]["image"]["weight_norm_squared"] == 5

    assert run("convert", published, "--out", tmp_path / "tied", "--model", model).code == 0
    assert run("classify", tmp_path / "tied", pairs / "00.png", "--classes", "a,b").code == 0
    elsewhere = ("--classes", "a,b", "--model", save_tiny_clip(tmp_path / "other", seed=1))
    assert "other weights" in refuse("classify", tmp_path / "tied", pairs / "00.png", *elsewhere).err


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path.touch, (Path("i-was-run"),))  # type: ignore[return-value]


def test_convert_never_runs_a_pickle(
    refuse: Run, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for attack in (pickle.dumps(Evil()), b"garbage", b""):
        (published / "B_txt_analytic.pt").write_bytes(attack)
        assert "B_txt_analytic.pt is not a plain torch tensor file" in refuse("convert", published, "--out", "out").err
    torch.save(Evil(), published / "B_txt_analytic.pt")
    refuse("convert", published, "--out", "out")
    assert not Path("i-was-run").exists()
    assert not Path("out").exists()
    torch.save(-torch.eye(24), published / "B_txt_analytic.pt")
    assert "text tower: Factor B is indefinite" in refuse("convert", published, "--out", "out").err
    (published / "B_txt_analytic.pt").unlink()
    assert "does not exist" in refuse("convert", published, "--out", "out").err
    assert "is not a folder" in refuse("convert", "gone", "--out", "out").err


def test_convert_checks_the_prior(refuse: Run, published: Path, tmp_path: Path) -> None:
    prior = published / "prior_precision_analytic.json"
    for content, sentence in (
        ('{"lambda_img": -1, "lambda_txt": 1}', "lambda_img=-1"),
        ("{}", "lambda_img"),
        ("[", "must be json"),
    ):
        prior.write_text(content)
        assert sentence in refuse("convert", published, "--out", tmp_path / "out").err


PUBLISHED = Path(__file__).parents[3] / "shared/factors/CLIP-ViT-B-32-laion2B-s34B-b79K"


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the authors' published factors are not on this machine")
def test_the_published_vit_b_32_factors(run: Run, tmp_path: Path) -> None:
    traces = run("convert", PUBLISHED, "--out", tmp_path / "out", "--json").json["traces"]
    assert traces["image"]["A"] == pytest.approx(564881.68, abs=0.01)
    assert traces["text"]["A"] == pytest.approx(335626.20, abs=0.01)
    assert traces["image"]["B"] == pytest.approx(6128.294, abs=0.001)
    assert traces["text"]["B"] == pytest.approx(9389.460, abs=0.001)
    info = run("info", tmp_path / "out", "--image-norm-squared", 60, "--text-norm-squared", 40, "--json").json
    assert len(info["towers"]["image"]["lam"]) == 6


def test_the_module_runs_as_the_command_does() -> None:
    command = [sys.executable, "-m", "bayesvlm", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == __version__
