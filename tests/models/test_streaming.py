"""Features of any number of images: the same however they are read, in order, nothing lost, nothing left behind."""

from __future__ import annotations

import gc
import io
import os
import pickle
import re
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.data.views import Views
from bayesvlm.images import workers as module
from bayesvlm.images.decoding import to_rgb
from bayesvlm.models import Adapter, load_adapter
from bayesvlm.models.streaming import EncodedBatch, stream_features, stream_pixels
from bayesvlm.testing.tiny import save_tiny_clip

COUNT = 23
BROKEN = (3, 11)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Adapter:
    return load_adapter(save_tiny_clip(tmp_path_factory.mktemp("clip")), device="cpu")


@pytest.fixture(scope="module")
def pictures() -> list[Image.Image]:
    """Of several shapes, some larger than the model looks at."""
    random = np.random.default_rng(0)
    shapes = [(40 + 7 * n, 30 + 11 * (n % 5)) for n in range(COUNT)]
    return [Image.fromarray(random.integers(0, 256, (*shape, 3), dtype=np.uint8)) for shape in shapes]


@pytest.fixture(scope="module")
def files(pictures: list[Image.Image], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("pictures")
    for number, picture in enumerate(pictures):
        picture.save(folder / f"{number:02}.png")
    return sorted(folder.iterdir())


@pytest.fixture
def some_broken(files: list[Path], tmp_path: Path) -> list[Path]:
    copies = [tmp_path / path.name for path in files]
    for number, (path, copy) in enumerate(zip(files, copies, strict=True)):
        copy.write_bytes(b"no image" if number in BROKEN else path.read_bytes())
    return copies


def by_hand(adapter: Adapter, images: list[Image.Image], batch_size: int) -> Tensor:  # [N, p]
    """Decoded whole and preprocessed together, batch after batch, in this thread: no stream at all."""
    parts = []
    for start in range(0, len(images), batch_size):
        pixels = adapter.preprocessor.to_pixels([to_rgb(image) for image in images[start : start + batch_size]])
        with torch.inference_mode():
            parts.append(adapter.forward_pixels(adapter.placed(pixels)).activations.clone())
    return torch.cat(parts)


def activations(batches: Iterator[EncodedBatch]) -> Tensor:
    return Features.concatenate([batch.features for batch in batches]).activations


# Any input, any way ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1, 2, None])
def test_the_same_to_the_bit_however_images_are_read(
    adapter: Adapter, pictures: list[Image.Image], files: list[Path], workers: int | None
) -> None:
    """For every family that there is."""
    expected = by_hand(adapter, pictures, 5)
    found = activations(stream_features(adapter, files, batch_size=5, workers=workers))
    assert torch.equal(found, expected)


def opened(path: Path) -> io.BufferedReader:
    return path.open("rb")


KINDS: dict[str, Callable[[Path], object]] = {
    "path": lambda path: path,
    "str": str,
    "bytes": Path.read_bytes,
    "bytearray": lambda path: bytearray(path.read_bytes()),
    "memoryview": lambda path: memoryview(path.read_bytes()),
    "file": opened,
    "lazy": Image.open,
    "array": lambda path: np.asarray(Image.open(path)),
    "tensor": lambda path: torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1),
    "floats": lambda path: torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1) / 255,
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_image_from_a_generator(
    clip: Adapter, pictures: list[Image.Image], files: list[Path], kind: str, workers: int
) -> None:
    inputs = (KINDS[kind](path) for path in files)
    found = activations(stream_features(clip, inputs, batch_size=4, workers=workers))
    assert torch.equal(found, by_hand(clip, pictures, 4))


@pytest.mark.parametrize("workers", [0, 2])
def test_order_and_places_are_kept_and_nothing_is_lost(clip: Adapter, some_broken: list[Path], workers: int) -> None:
    batches = list(stream_features(clip, iter(some_broken), batch_size=4, workers=workers))
    assert [batch.seen for batch in batches] == [4, 4, 4, 4, 4, 3]
    assert [place for batch in batches for place in batch.places] == [n for n in range(COUNT) if n not in BROKEN]
    unreadable = {place: why for batch in batches for place, why in batch.unreadable.items()}
    assert tuple(unreadable) == BROKEN
    for place, why in unreadable.items():
        assert why.startswith(f"inputs[{place}] ('{some_broken[place]}') is not an image that Pillow can read")
    assert [path for batch in batches for path in batch.inputs] == some_broken
    assert [batch.input(place) for batch in batches for place in batch.unreadable] == [some_broken[n] for n in BROKEN]
    assert sum(len(batch.features) for batch in batches) == COUNT - len(BROKEN)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_of_which_nothing_can_be_read_has_no_rows(clip: Adapter, files: list[Path], workers: int) -> None:
    first, second = stream_features(clip, [b"no", b"image", *files[:2]], batch_size=2, workers=workers)
    assert (len(first.features), first.places, sorted(first.unreadable)) == (0, [], [0, 1])
    assert first.features.activations.shape[1] == second.features.activations.shape[1]


@pytest.mark.parametrize("workers", [0, 1])
def test_strict_ends_at_the_first_that_cannot_be_read(clip: Adapter, some_broken: list[Path], workers: int) -> None:
    batches = stream_features(clip, some_broken, batch_size=2, workers=workers, strict=True)
    assert next(batches).places == [0, 1]
    with pytest.raises(BayesVLMError, match=r"^inputs\[3\] \('.*03.png'\) is not an image"):
        next(batches)


@pytest.mark.parametrize("workers", [0, 2])
def test_several_images_in_the_place_of_one(
    clip: Adapter, pictures: list[Image.Image], files: list[Path], workers: int
) -> None:
    views = Views(3)
    found = activations(stream_features(clip, files, batch_size=7, workers=workers, expansion=views))
    made = [view for n, picture in enumerate(pictures) for view in views.of(picture, f"inputs[{n}]")]
    assert torch.equal(found, by_hand(clip, made, 6)), "two inputs of three views at a time"


def test_nothing_gives_no_batch(clip: Adapter) -> None:
    assert list(stream_features(clip, iter(()))) == []


@pytest.mark.parametrize("bad", [{"batch_size": 0}, {"workers": -1}, {"workers": 1.5}])
def test_counts_that_are_none(clip: Adapter, bad: dict[str, int]) -> None:
    with pytest.raises(BayesVLMError, match=f"{next(iter(bad))} is .*expected a whole number"):
        next(stream_features(clip, [b""], **bad))


# Ready pixels ---------------------------------------------------------------------------------------------------------


class Own(Dataset):  # type: ignore[type-arg]
    """A user's own data set of what a processor returns, or the tensor alone."""

    def __init__(self, adapter: Adapter, files: list[Path], bare: bool) -> None:
        self.preprocessor, self.files, self.bare = adapter.preprocessor, files, bare

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> object:
        pixels = {name: value[0] for name, value in self.preprocessor.prepared(self.files[index]).items()}
        return pixels["pixel_values"] if self.bare else {**pixels, "label": index}


@pytest.mark.parametrize("size", [1, 4, 10, 100])
def test_a_data_loader_of_ones_own(adapter: Adapter, pictures: list[Image.Image], files: list[Path], size: int) -> None:
    loader = DataLoader(Own(adapter, files, bare=False), batch_size=size)
    batches = list(stream_features(adapter, loader, batch_size=6))
    assert max(len(batch.features) for batch in batches) <= 6
    assert [place for batch in batches for place in batch.places] == [*range(COUNT)]
    found = Features.concatenate([batch.features for batch in batches]).activations
    torch.testing.assert_close(found, by_hand(adapter, pictures, 6), rtol=1e-4, atol=1e-5)


def test_what_open_clip_s_preprocessing_gives_is_wrapped(
    clip: Adapter, pictures: list[Image.Image], files: list[Path]
) -> None:
    loader = DataLoader(Own(clip, files, bare=True), batch_size=6)
    with pytest.raises(BayesVLMError, match=r"holds floats from -.*as \{'pixel_values': \.\.\.\}"):
        clip.encode_images(loader)
    wrapped = ({"pixel_values": batch} for batch in loader)
    assert torch.equal(activations(stream_features(clip, wrapped, batch_size=6)), by_hand(clip, pictures, 6))


def test_ready_pixels_of_one_image_and_of_a_batch(clip: Adapter, pictures: list[Image.Image]) -> None:
    ready = clip.preprocessor.to_pixels(pictures[:4])
    expected = clip.encode_images(pictures[:4]).activations
    assert torch.equal(clip.encode_images(ready).activations, expected)
    assert torch.equal(clip.encode_images({**ready, "input_ids": torch.zeros(4, 7)}).activations, expected)
    one = clip.encode_images({"pixel_values": ready["pixel_values"][0].numpy()}).activations
    torch.testing.assert_close(one, expected[:1])


def test_ready_pixels_that_are_not_this_model_s(clip: Adapter, pictures: list[Image.Image]) -> None:
    with pytest.raises(BayesVLMError, match=r"images\[0\] has pixel_values of shape \[2, 3, 9, 9\].*\[N, 3, 32, 32\]"):
        clip.encode_images({"pixel_values": torch.zeros(2, 3, 9, 9)})
    with pytest.raises(BayesVLMError, match="holds ready pixels, and those before it are images"):
        clip.encode_images([pictures[0], clip.preprocessor.blank])
    with pytest.raises(BayesVLMError, match="is a Image, and those before it are ready pixels"):
        clip.encode_images([clip.preprocessor.blank, pictures[0]])


# What people try next -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (lambda: TensorDataset(torch.rand(3, 3, 8, 8), torch.zeros(3)), r"a tuple of 2 \(Tensor, Tensor\); pass the"),
        (lambda: [{"image": Image.new("RGB", (8, 8)), "label": 1}], "with image, label in it; pass the images alone"),
        (lambda: {"image": Image.new("RGB", (8, 8))}, "Images are a dict with image in it; pass the images alone"),
        (lambda: "/", r"is a folder; pass its image files: bayesvlm.images.find_images\(Path\('/'\)\)"),
        (lambda: 7, "Images must be a PIL image.*got int"),
        (list, "There are no images"),
    ],
    ids=["dataset", "rows", "row", "folder", "number", "nothing"],
)
def test_what_is_no_image_says_what_to_pass(clip: Adapter, given: Callable[[], object], sentence: str) -> None:
    with pytest.raises(BayesVLMError, match=sentence):
        clip.encode_images(given())  # type: ignore[arg-type]


class Column:
    """A column of a data set: it has a length and is indexed, and nothing says that it can be iterated."""

    def __init__(self, values: list[object]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> object:
        return self.values[index]


def test_columns_and_arrays_of_objects(clip: Adapter, pictures: list[Image.Image], files: list[Path]) -> None:
    expected = clip.encode_images(pictures).activations
    objects = np.empty(COUNT, dtype=object)
    objects[:] = pictures
    for given in (Column([*pictures]), objects, np.array([*map(str, files)]), tuple(files), iter(files)):
        assert torch.equal(clip.encode_images(given).activations, expected), type(given)


# Memory ---------------------------------------------------------------------------------------------------------------


class Counted:
    """An iterable of many images that knows how many of those it gave are still held by somebody."""

    def __init__(self, count: int) -> None:
        self.count, self.given, self.freed, self.most = count, 0, 0, 0

    def __iter__(self) -> Iterator[Image.Image]:
        for _ in range(self.count):
            image = Image.new("RGB", (8, 8))
            weakref.finalize(image, self._free)
            self.given += 1
            self.most = max(self.most, self.given - self.freed)
            yield image

    def _free(self) -> None:
        self.freed += 1


@pytest.mark.parametrize("workers", [0, 2])
def test_no_more_is_held_however_many_there_are(clip: Adapter, workers: int) -> None:
    gc.collect()
    inputs = Counted(400)
    for done, batch in enumerate(stream_features(clip, inputs, batch_size=8, workers=workers), start=1):
        assert inputs.given <= 8 * (done + 1 + module._AHEAD * max(workers, 1))
        del batch
    assert inputs.given == 400
    assert inputs.most <= 8 * (3 + module._AHEAD * max(workers, 1))


@pytest.mark.parametrize("workers", [0, 1])
def test_reading_stops_where_the_caller_does(clip: Adapter, workers: int) -> None:
    inputs = Counted(1000)
    batches = stream_features(clip, inputs, batch_size=4, workers=workers)
    next(batches)
    batches.close()
    assert inputs.given <= 4 * (2 + module._AHEAD)


def test_what_workers_get_is_small(clip: Adapter) -> None:
    assert len(pickle.dumps(clip.preprocessor)) < 5000


# Worker processes -----------------------------------------------------------------------------------------------------


def children() -> set[int]:
    return {int(pid) for pid in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()}


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="processes are counted in /proc")


@needs_proc
def test_workers_end_with_the_stream(clip: Adapter, files: list[Path]) -> None:
    before = children()
    batches = stream_features(clip, files, batch_size=2, workers=2)
    next(batches)
    assert len(children() - before) >= 2
    batches.close()
    del batches
    gc.collect()
    deadline = time.monotonic() + 20
    while children() - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not children() - before


@needs_proc
def test_a_worker_that_is_killed_is_one_sentence(clip: Adapter) -> None:
    before = children()
    batches = stream_features(clip, Counted(10_000), batch_size=2, workers=1)
    next(batches)
    victims = children() - before
    sentence = "A worker process that prepares images ended before its work was done"
    with pytest.raises(BayesVLMError, match=sentence), module.worker_failures():  # noqa: PT012
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        for _ in batches:
            pass


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_the_caller_s_own_iterable_is_the_caller_s(clip: Adapter, files: list[Path], workers: int) -> None:
    def ends_badly() -> Iterator[Path]:
        yield from files
        raise FileNotFoundError("the list of files")

    with pytest.raises(FileNotFoundError, match="the list of files"):
        list(stream_features(clip, ends_badly(), batch_size=2, workers=workers))


def failing(images: list[Image.Image]) -> dict[str, Tensor]:
    raise ZeroDivisionError("of the preprocessing's own")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_failure_that_is_no_input_s_fault_is_one_sentence(clip: Adapter, files: list[Path], workers: int) -> None:
    from bayesvlm.models.preprocessing import Preprocessor

    with pytest.raises(BayesVLMError, match=r"not made ready for the model \(ZeroDivisionError: of the preprocessing"):
        next(stream_pixels(Preprocessor(failing), files, workers=workers))


def test_the_caller_s_random_numbers_are_left_alone(clip: Adapter, files: list[Path]) -> None:
    state = torch.get_rng_state()
    list(stream_features(clip, files, batch_size=8, workers=1))
    assert torch.equal(torch.get_rng_state(), state)


INTERRUPTED = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it
from bayesvlm.models import load_adapter
from bayesvlm.models.streaming import stream_features

def forever():
    while True:
        yield Path(sys.argv[2])

adapter = load_adapter(sys.argv[1], device="cpu")
for number, batch in enumerate(stream_features(adapter, forever(), batch_size=2, workers=2)):
    print(number, flush=True)
"""


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill -9"])
def test_no_process_is_left_behind(tmp_path: Path, files: list[Path], number: signal.Signals) -> None:
    model = save_tiny_clip(tmp_path / "clip")
    running = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(model), str(files[0])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert running.stdout is not None
    for _ in range(5):
        assert running.stdout.readline(), running.communicate()[1]
    if number == signal.SIGINT:
        os.killpg(running.pid, number)  # what a terminal does: to the workers too
    else:
        os.kill(running.pid, number)
    _, err = running.communicate(timeout=60)
    assert running.returncode != 0
    if number == signal.SIGINT:
        assert not re.search(r"^Process \S+:$", err, re.MULTILINE), "a worker that was interrupted says nothing"
        assert "KeyboardInterrupt" in err
    deadline = time.monotonic() + 30
    while group_is_alive(running.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not group_is_alive(running.pid)


def group_is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return any(stat.split(") ")[1].split()[2] == str(group) and stat.split(") ")[1][0] != "Z" for stat in _stats())


def _stats() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            yield path.read_text()
        except OSError:
            continue


# How many workers -----------------------------------------------------------------------------------------------------


def test_workers_where_they_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FORK", True)
    monkeypatch.setattr(module, "_cores", lambda: 4)
    monkeypatch.setattr(module, "_shared_memory", lambda: 2**30)
    assert module.choose_workers(100, 2**20) == 0, "few"
    assert module.choose_workers(None, 2**20) == module.choose_workers(10_000, 2**20) == 3
    assert module.choose_workers(10_000, 2**27) == 0, "shared memory is too small"
    for cores, workers in ((64, 8), (3, 2), (2, 0), (1, 0)):
        monkeypatch.setattr(module, "_cores", lambda cores=cores: cores)
        assert module.choose_workers(None, 2**20) == workers
    monkeypatch.setattr(module, "_cores", lambda: 64)
    monkeypatch.setattr(module, "_FORK", False)
    assert module.choose_workers(None, 2**20) == 0
