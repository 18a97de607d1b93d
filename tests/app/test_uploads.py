from __future__ import annotations

import struct
import subprocess
import sys
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bayesvlm.app import uploads
from bayesvlm.app.uploads import class_list, picture_of, uploaded
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.images.decoding import to_rgb


def _file(folder: Path, name: str, content: bytes) -> str:
    (folder / name).write_bytes(content)
    return str(folder / name)


def _png(width: int, height: int) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def test_a_small_picture_is_kept_to_the_pixel(tmp_path: Path) -> None:
    packed = _png(100, 60)
    shown = uploaded(_file(tmp_path, "small.png", packed))
    assert np.array_equal(np.asarray(shown.image), np.asarray(Image.open(BytesIO(packed))))
    assert shown.title == "small.png"


def test_a_large_picture_is_shrunk() -> None:
    assert picture_of(_png(1500, 300), "wide").image.size == (uploads.SIDE, round(300 * uploads.SIDE / 1500))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("noise.png", b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "not an image"),
        ("page.png", b"<html><img src=x onerror=alert(1)></html>", "not an image"),
        ("empty.jpg", b"", "not an image"),
        ("half.png", _png(64, 64)[:2000], "half.png"),
        ("<b>x.png", b"<svg xmlns='http://www.w3.org/2000/svg'/>", "<b>x.png"),
    ],
)
def test_what_is_no_picture_is_refused_in_a_sentence(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    file = _file(tmp_path, name, content)
    with pytest.raises(BayesVLMError, match=said) as error:
        uploaded(file)
    assert str(error.value).count("\n") == 0
    assert str(tmp_path) not in str(error.value)  # where it lies is nobody's business


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "LARGEST", 1000)
    with pytest.raises(BayesVLMError, match="takes files of up to 20 MB"):
        uploaded(_file(tmp_path, "large.png", _png(64, 64)))


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(BayesVLMError, match="more pixels than is safe"):
        uploaded(_file(tmp_path, "bomb.png", _png(64, 64)))


def _flat_png(side: int, depth: int = 8, colours: int = 6) -> bytes:
    """A square PNG file of zeros, RGBA by default, made without ever being in memory."""
    row = bytes(1 + -(-side * depth * {0: 1, 6: 4}[colours] // 8))
    packer = zlib.compressobj(1)
    data = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    parts = [(b"IHDR", struct.pack(">IIBBBBB", side, side, depth, colours, 0, 0, 0)), (b"IDAT", data), (b"IEND", b"")]
    chunks = (struct.pack(">I", len(of)) + kind + of + struct.pack(">I", zlib.crc32(kind + of)) for kind, of in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def test_a_small_file_of_many_pixels_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = _flat_png(13_300, depth=1, colours=0)
    assert len(packed) < 2**20

    def decoded(self: Image.Image, *given: object) -> None:
        raise AssertionError("it was decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", decoded)
    with pytest.raises(BayesVLMError, match=r"13300 x 13300 pixels, 177 million; the page takes up to 64 million"):
        picture_of(packed, "flat.png")


def test_a_photograph_of_a_telephone_is_taken() -> None:
    """Of 50 million pixels, as many have now; a JPEG file is not decoded whole."""
    buffer = BytesIO()
    Image.new("RGB", (8192, 6144), "red").save(buffer, format="JPEG")
    assert picture_of(buffer.getvalue(), "telephone.jpg").image.size == (uploads.SIDE, 384)


def test_a_webp_file_may_have_fewer_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As decoding one takes more."""
    monkeypatch.setitem(uploads.MOST_PIXELS_OF, "WEBP", 3000)
    for kind in ("PNG", "WEBP"):
        buffer = BytesIO()
        Image.new("RGB", (64, 64), "red").save(buffer, format=kind)
        if kind == "PNG":
            picture_of(buffer.getvalue(), "any")
        else:
            with pytest.raises(BayesVLMError, match="64 x 64 pixels"):
                picture_of(buffer.getvalue(), "any")


def test_a_thin_picture_is_refused_by_its_own_size() -> None:
    with pytest.raises(BayesVLMError, match=r"thin.png is 20000 x 1 pixels; a picture may be at most 200 times"):
        picture_of(_png(20_000, 1), "thin.png")
    for width, height in ((20_000, 100), (199, 1), (2_000, 11)):  # and what is not that thin is not refused later
        assert picture_of(_png(width, height), "wide.png").image.width <= uploads.SIDE


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
def test_the_largest_picture_takes_some_hundred_megabytes(tmp_path: Path) -> None:
    """RGBA, which is bad enough: white is put behind what is left of it, not behind all of its pixels.

    The kernel's high-water mark is set back, which that of `getrusage` cannot be: it begins with the parent's.
    """
    file = tmp_path / "flat.png"
    file.write_bytes(_flat_png(7_990))
    code = (
        "import sys; from bayesvlm.app.uploads import picture_of, uploaded, png; from PIL import Image\n"
        "def most(): return int(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0]) // 1024\n"
        "picture_of(png(Image.new('RGBA', (600, 600))), 'first')\n"
        "open('/proc/self/clear_refs', 'w').write('5'); before = most(); uploaded(sys.argv[1])\n"
        "print(most() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True)
    assert 200 < int(done.stdout) < 600


def test_only_formats_of_pictures_are_decoded() -> None:
    buffer = BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, format="PPM")
    with pytest.raises(BayesVLMError, match="not an image that Pillow can read"):
        picture_of(buffer.getvalue(), "old.ppm")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_every_colour_mode_is_shrunk_to_what_shrinking_at_the_end_gives(mode: str) -> None:
    grey = np.tile(np.linspace(0, 255, 1200, dtype=np.uint8), (900, 1))
    image = Image.fromarray(grey.astype(np.uint16) * 257) if mode == "I;16" else Image.fromarray(grey).convert(mode)
    if mode == "RGBA":
        image.putalpha(Image.fromarray(np.ascontiguousarray(grey[:, ::-1])))
    buffer = BytesIO()
    image.save(buffer, format="TIFF" if mode == "CMYK" else "PNG")
    expected = to_rgb(buffer.getvalue())
    expected.thumbnail((uploads.SIDE, uploads.SIDE), Image.Resampling.LANCZOS)
    found = picture_of(buffer.getvalue(), mode).image
    assert found.size == expected.size
    difference = np.abs(np.asarray(found, dtype=float) - np.asarray(expected, dtype=float))
    assert difference[:, 4:-4].mean() < 1.5


def test_a_photograph_that_lies_on_its_side_is_upright() -> None:
    exif, buffer = Image.Exif(), BytesIO()
    exif[0x0112] = 6
    Image.new("RGB", (2000, 1000), "red").save(buffer, format="JPEG", exif=exif)
    assert picture_of(buffer.getvalue(), "turned.jpg").image.size == (uploads.SIDE // 2, uploads.SIDE)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "are no names"),
        (" , \n", "are no names"),
        ("cat", "There is only one name, 'cat'; type two or more"),
        ("a," + "b" * 300, "300 letters"),
    ],
)
def test_class_lists_that_are_none(text: str, said: str) -> None:
    with pytest.raises(BayesVLMError, match=said):
        class_list(text)


def test_names_turn_no_text_around() -> None:
    assert class_list("\u202etac, d\u2066og\x00, \u200f, שלום") == ("tac", "d og", "שלום")


def test_too_many_classes() -> None:
    with pytest.raises(BayesVLMError, match="1001 classes"):
        class_list(",".join(map(str, range(1001))))
