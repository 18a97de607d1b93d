"""Photographs from a telephone: what reading them takes, and what shrinking them as they are decoded changes.

    python benchmarks/photos.py

Makes synthetic photographs of 12 megapixels, runs `bayesvlm classify` and `bayesvlm eval` on them, and prints the peak
memory of each. Then the embeddings: of images shrunk as they are decoded, against those of images decoded whole.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from report import arguments, keep, machine
from torch import Tensor
from torch.nn.functional import normalize

from bayesvlm.images.decoding import to_rgb
from bayesvlm.models import Adapter, load_adapter
from bayesvlm.testing.tiny import save_tiny_clip
from bayesvlm_world import load

SIZE = (4032, 3024)
SCENES = 16
CLASSES = ("grinning face", "cat", "tree", "house")
KINDS = (
    {},
    {},
    {"progressive": True},
    {"orientation": 6},
    {"orientation": 3},
    {"subsampling": 0},
    {"mode": "L"},
    {"mode": "CMYK"},
)
# A process's peak is no less than that of the one that started it, so a small one stands between.
_PEAK = """
import os, subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(child.pid, 0)
print(used.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""
_WHOLE = "import sys; sys.path.insert(0, {here!r}); from photos import embed_whole; embed_whole({paths!r})"


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--photos", type=int, default=256)
    parser.add_argument("--whole", type=int, default=16, help="photographs that are decoded whole, all at once")
    parser.add_argument("--folder", type=Path, help="where the photographs are, or are made; a temporary one else")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch) / "photos"
        paths = make_photos(folder, options.photos)
        classify = ["classify", "emoji-clip", str(folder), "--classes", ",".join(CLASSES), "--json"]
        evaluate = ["eval", "emoji-clip", "-d", str(folder), "--methods", "plain,Bayes", "--out", f"{scratch}/results"]
        peaks = {
            "classify": peak_mib(["-m", "bayesvlm", *classify, "--device", options.device]),
            "eval": peak_mib(["-m", "bayesvlm", *evaluate, "--cache", f"{scratch}/cache", "--device", options.device]),
            f"{options.whole} decoded whole": peak_mib(
                ["-c", _WHOLE.format(here=str(Path(__file__).parent), paths=[str(p) for p in paths[: options.whole]])]
            ),
        }
        for name, peak in peaks.items():
            print(f"{name:<20} {peak:8.0f} MiB at its peak ({len(paths)} photographs of {SIZE[0]} x {SIZE[1]})")
        differences = {}
        for name in ("emoji-clip", str(save_tiny_clip(Path(scratch) / "tiny-224", image_size=224))):
            adapter = load_adapter(name, device=options.device)
            far = distances(adapter, paths)
            differences[Path(name).name] = {"largest": float(far.max()), "median": float(far.median())}
            print(f"{Path(name).name:<20} 1 - cosine is {far.max():.1e} at most, {far.median():.1e} in the middle")
    figures = {"photos": len(paths), "size": SIZE, "peak_mib": peaks, "one_minus_cosine": differences}
    keep({"machine": machine(options.device), **figures}, options.out)


def peak_mib(arguments: Sequence[str]) -> float:
    """The largest resident memory of a Python process that runs with these arguments."""
    ran = subprocess.run([sys.executable, "-c", _PEAK, sys.executable, *arguments], stdout=subprocess.PIPE, check=False)
    if ran.returncode:
        raise SystemExit(f"{' '.join(arguments)[:200]} ended with {ran.returncode}")
    return int(ran.stdout) / 2**10


def embed_whole(paths: Sequence[str]) -> None:
    """A batch as it was read before images were shrunk: all of it decoded, then encoded."""
    adapter = load_adapter("emoji-clip", device="cpu")
    adapter.preprocessor = replace(adapter.preprocessor, resizing=None)
    adapter.encode_images(paths, batch_size=len(paths), progress=False)


def distances(adapter: Adapter, paths: Sequence[Path]) -> Tensor:  # [N]
    """1 - cosine of each photograph's embeddings, shrunk as it is decoded and decoded whole."""
    shrunk = adapter.encode_images(paths, progress=False)
    adapter.preprocessor = replace(adapter.preprocessor, resizing=None)
    whole = adapter.encode_images(paths, batch_size=1, progress=False)
    one, other = (normalize(adapter.image.embed(features).double(), dim=1) for features in (shrunk, whole))
    return 1 - (one * other).sum(dim=1)


# The photographs ------------------------------------------------------------------------------------------------------


def make_photos(folder: Path, count: int) -> list[Path]:
    """JPEG files in one subfolder per class: scenes mirrored and lit in many ways, of every kind that cameras write."""
    paths = [folder / CLASSES[number % len(CLASSES)] / f"{number:04d}.jpg" for number in range(count)]
    drawings = load("openmoji-colour").images[:200]
    for first in range(SCENES):
        numbers = [number for number in range(first, count, SCENES) if not paths[number].exists()]
        if numbers:
            picture = scene(first, drawings)
            for number in numbers:
                save_photo(picture, paths[number], number)
    return paths


def scene(seed: int, drawings: Sequence[object]) -> Image.Image:
    """Clouds of every size under a gradient, shapes, lines and writing, drawings, and the noise of a sensor."""
    generator, draw = np.random.default_rng(seed), random.Random(seed)
    width, height = SIZE
    half = (width // 2, height // 2)
    clouds = np.zeros((half[1], half[0], 3), dtype=np.float32)
    for octave in range(2, 10):
        grid = generator.normal(size=(3 * 2**octave // 4, 2**octave, 3)).astype(np.float32)
        for channel in range(3):
            layer = Image.fromarray(grid[:, :, channel]).resize(half, Image.Resampling.BICUBIC)
            clouds[:, :, channel] += np.asarray(layer) * (4 * 0.5**octave) ** 0.9
    clouds = clouds * generator.uniform(30, 70) + generator.uniform(60, 190, 3)
    clouds += np.linspace(generator.uniform(-60, 60), generator.uniform(-60, 60), half[1])[:, None, None]
    image = Image.fromarray(clouds.clip(0, 255).astype(np.uint8)).resize(SIZE, Image.Resampling.BICUBIC)
    _draw_on(image, draw, drawings)
    noise = generator.normal(0, draw.uniform(1, 8), size=(height, width, 1)).astype(np.float32)
    return Image.fromarray((np.asarray(image) + noise).clip(0, 255).astype(np.uint8))


def _draw_on(image: Image.Image, draw: random.Random, drawings: Sequence[object]) -> None:
    pen, (width, height) = ImageDraw.Draw(image), image.size

    def place() -> tuple[int, int]:
        return draw.randrange(width), draw.randrange(height)

    def colour() -> tuple[int, int, int]:
        return draw.randrange(256), draw.randrange(256), draw.randrange(256)

    for _ in range(draw.randint(10, 60)):
        (x, y), side = place(), draw.randint(20, 900)
        pen.ellipse((x, y, x + side, y + draw.randint(20, 900)), fill=colour())
        pen.polygon([(x + draw.randint(-side, side), y + draw.randint(-side, side)) for _ in range(4)], fill=colour())
        pen.line((*place(), *place()), fill=colour(), width=draw.randint(1, 25))
    for _ in range(8):
        pen.text(place(), "the quick brown fox 0123", fill=colour(), font_size=draw.randint(14, 200))
    for _ in range(5):
        side = draw.randint(200, 1500)
        drawing = to_rgb(draw.choice(drawings)).resize((side, side), Image.Resampling.BICUBIC)  # type: ignore[arg-type]
        image.paste(
            drawing.rotate(draw.uniform(-40, 40)), (draw.randrange(width - side), draw.randrange(height - side))
        )


def save_photo(picture: Image.Image, path: Path, number: int) -> None:
    """One of the kinds of JPEG file, of a quality from 85 to 95, mirrored and lit as its number has it."""
    kind = dict(KINDS[number // SCENES % len(KINDS)])
    draw = random.Random(number)
    light = draw.uniform(0.7, 1.2)
    if number // SCENES % 2:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    picture = picture.point([min(255, int(level * light)) for level in range(256)] * 3)
    mode, orientation = kind.pop("mode", "RGB"), kind.pop("orientation", None)
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = {"subsampling": 2, **kind} if mode == "RGB" else kind
    picture.convert(str(mode)).save(path, quality=draw.randint(85, 95), exif=exif, **settings)


if __name__ == "__main__":
    main()
