"""Every kind of image arrives upright, in RGB, or is refused in one sentence that names it."""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, features

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.images import decoding as module
from bayesvlm.images.decoding import as_images, to_rgb

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6, 9, 3), dtype=np.uint8)


def pixels_of(image: object) -> np.ndarray:
    rgb = to_rgb(image)  # type: ignore[arg-type]
    assert rgb.mode == "RGB"
    return np.asarray(rgb)


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


ORIENTATIONS = {
    1: PIXELS,
    2: PIXELS[:, ::-1],
    3: PIXELS[::-1, ::-1],
    4: PIXELS[::-1],
    5: PIXELS.transpose(1, 0, 2),
    6: np.rot90(PIXELS, -1),
    7: np.rot90(PIXELS, 2).transpose(1, 0, 2),
    8: np.rot90(PIXELS, 1),
}


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_exif_orientation_is_applied(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    np.testing.assert_array_equal(pixels_of(encoded(Image.fromarray(PIXELS), exif=exif)), ORIENTATIONS[orientation])


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_unreadable_exif_leaves_the_pixels() -> None:
    damaged = encoded(Image.fromarray(PIXELS), exif=b"Exif\x00\x00MM\x00*\x00\x00\xff\xff broken")
    np.testing.assert_array_equal(pixels_of(damaged), PIXELS)


def test_path_bytes_and_open_image_agree(tmp_path: Path) -> None:
    path = tmp_path / "a photo.png"
    path.write_bytes(encoded(Image.fromarray(PIXELS)))
    for form in (path, str(path), path.read_bytes(), bytearray(path.read_bytes()), Image.open(path)):
        np.testing.assert_array_equal(pixels_of(form), PIXELS)


def test_the_callers_image_is_untouched() -> None:
    image = Image.fromarray(PIXELS)
    to_rgb(image).putpixel((0, 0), (1, 2, 3))
    np.testing.assert_array_equal(np.asarray(image), PIXELS)


def test_grey_is_repeated() -> None:
    grey = PIXELS[:, :, 0]
    expected = np.repeat(grey[:, :, None], 3, axis=2)
    for form in (Image.fromarray(grey), grey, grey[:, :, None], torch.from_numpy(grey.copy()), grey[None]):
        np.testing.assert_array_equal(pixels_of(form), expected)


def test_one_bit_is_black_and_white() -> None:
    assert pixels_of(Image.fromarray(PIXELS[:, :, 0]).convert("1")).max() == 255


@pytest.mark.parametrize("mode", ["I;16", "I"])
def test_sixteen_bits_are_scaled_not_clipped(mode: str) -> None:
    values = np.array([[0, 257, 32896, 65535]], dtype=np.uint16 if mode == "I;16" else np.int32)
    image = Image.fromarray(values)
    assert image.mode == mode
    np.testing.assert_array_equal(pixels_of(image)[0, :, 0], [0, 1, 128, 255])
    saved = encoded(image, "PNG" if mode == "I;16" else "TIFF")
    np.testing.assert_array_equal(pixels_of(saved)[0, :, 0], [0, 1, 128, 255])


def test_integers_beyond_sixteen_bits_are_refused() -> None:
    with pytest.raises(BayesVLMError, match="integers from 0 to 70000"):
        to_rgb(Image.fromarray(np.array([[0, 70000]], dtype=np.int32)))


def test_palette() -> None:
    image = Image.fromarray(PIXELS).quantize(16)
    assert image.mode == "P"
    np.testing.assert_array_equal(pixels_of(encoded(image)), np.asarray(image.convert("RGB")))


def test_palette_with_transparency_is_put_on_white() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putdata([0, 1])
    data = encoded(image, transparency=0)
    np.testing.assert_array_equal(pixels_of(data), [[[255, 255, 255], [0, 0, 255]]])


def test_transparency_of_one_colour_is_put_on_white() -> None:
    image = Image.fromarray(np.array([[[255, 0, 0], [0, 0, 255]]], dtype=np.uint8))
    data = encoded(image, transparency=(255, 0, 0))
    np.testing.assert_array_equal(pixels_of(data), [[[255, 255, 255], [0, 0, 255]]])


def test_alpha_is_composited_on_white() -> None:
    rgba = np.array([[[255, 0, 0, 255], [255, 0, 0, 0], [0, 0, 0, 51]]], dtype=np.uint8)
    expected = [[[255, 0, 0], [255, 255, 255], [204, 204, 204]]]
    for form in (Image.fromarray(rgba), rgba, torch.from_numpy(rgba).permute(2, 0, 1), encoded(Image.fromarray(rgba))):
        np.testing.assert_array_equal(pixels_of(form), expected)


def test_grey_with_alpha() -> None:
    image = Image.fromarray(np.array([[[0, 255], [0, 0]]], dtype=np.uint8), mode=None)
    assert image.mode == "LA"
    np.testing.assert_array_equal(pixels_of(image)[0, :, 0], [0, 255])


def test_cmyk() -> None:
    image = Image.new("CMYK", (2, 2), (0, 255, 255, 0))
    red = pixels_of(encoded(image, "TIFF"))[0, 0]
    assert red[0] > 200
    assert red[1:].max() < 60


def test_first_frame_of_an_animation() -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    assert tuple(pixels_of(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]))[0, 0]) == (255, 0, 0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_float_arrays(dtype: type) -> None:
    floats = (PIXELS / 255).astype(dtype)
    np.testing.assert_array_equal(pixels_of(floats), PIXELS)
    np.testing.assert_array_equal(pixels_of(floats.transpose(2, 0, 1)), PIXELS)


def test_float_tensors() -> None:
    tensor = torch.from_numpy(PIXELS / 255).permute(2, 0, 1)
    np.testing.assert_array_equal(pixels_of(tensor.float()), PIXELS)
    np.testing.assert_array_equal(pixels_of(tensor.float().requires_grad_()), PIXELS)
    np.testing.assert_array_equal(pixels_of(tensor.permute(1, 2, 0)), PIXELS)
    np.testing.assert_allclose(pixels_of(tensor.bfloat16()), PIXELS, atol=1)


def test_float_image() -> None:
    values = np.array([[0.0, 0.2, 1.0]], dtype=np.float32)
    np.testing.assert_array_equal(pixels_of(Image.fromarray(values))[0, :, 0], [0, 51, 255])


def test_an_ambiguous_shape_follows_the_convention() -> None:
    """[3, W, 3] is HWC in numpy and CHW in torch."""
    array = RNG.integers(0, 256, (3, 5, 3), dtype=np.uint8)
    np.testing.assert_array_equal(pixels_of(array), array)
    np.testing.assert_array_equal(pixels_of(torch.from_numpy(array)), array.transpose(1, 2, 0))


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((4, 4, 3)) + 2.0, "floats from 2 to 2; expected 0..1"),
        (np.full((4, 4, 3), -0.5), "floats from -0.5"),
        (np.full((4, 4, 3), np.nan), "floats from nan to nan"),
        (torch.full((3, 4, 4), float("inf")), "floats from inf"),
        (np.zeros((4, 4, 3), dtype=np.int64), "int64 values; expected uint8"),
        (np.zeros((4, 4), dtype=bool), "bool values; expected uint8"),
        (np.zeros((0, 4, 3), dtype=np.uint8), r"shape \[0, 4, 3\]"),
        (np.zeros(5, dtype=np.uint8), r"shape \[5\]"),
        (np.zeros((5, 6, 7), dtype=np.uint8), r"shape \[5, 6, 7\], where neither"),
        (torch.zeros(2, 3, 4, 4), r"shape \[2, 3, 4, 4\]"),
        (torch.zeros(3, 4, 4, dtype=torch.complex64), "complex64"),
        (Image.new("RGB", (0, 5)), "0 x 5 pixels"),
        (Image.new("RGB", (1, 500)), "1 x 500 pixels; an image may be at most 200 times"),
        (Image.new("La", (5, 5)), "colour mode 'La'"),
        (None, "is a NoneType; expected a PIL image"),
        (7, "is a int; expected a PIL image"),
        (b"", "not an image that Pillow can read"),
        (b"GIF89a nonsense", "read|damaged"),
        ("no/such/file.png", "'no/such/file.png'.* does not exist"),
        ("https://example.org/cat.png", "is a web address; download it first"),
    ],
)
def test_refused(image: object, message: str) -> None:
    with pytest.raises(BayesVLMError, match=f"photo 3.*({message})"):
        to_rgb(image, "photo 3")  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP"])
def test_truncated_files_are_named(kind: str, tmp_path: Path) -> None:
    """Cut anywhere, a file is refused by name and on one line."""
    data = encoded(Image.fromarray(RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8)), kind)
    path = tmp_path / "cut"
    for part in (0.01, 0.1, 0.3, 0.6):
        path.write_bytes(data[: int(len(data) * part)])
        with pytest.raises(BayesVLMError, match=r"'.*cut'") as caught:
            to_rgb(path)
        assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL", "ignore::PIL.Image.DecompressionBombWarning")
def test_damaged_bytes_never_escape() -> None:
    """Random damage inside a file: an image or a BayesVLMError, nothing else."""
    generator = np.random.default_rng(1)
    for kind in ("PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP"):
        data = encoded(Image.fromarray(PIXELS), kind)
        for _ in range(40):
            damaged = bytearray(data)
            for position in generator.integers(0, len(data), 4):
                damaged[position] = generator.integers(0, 256)
            with contextlib.suppress(BayesVLMError):
                to_rgb(bytes(damaged))


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BayesVLMError, match="is a folder"):
        to_rgb(tmp_path)


def test_a_lazily_opened_truncated_image_names_its_file(tmp_path: Path) -> None:
    path = tmp_path / "cut.png"
    noise = RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8)
    path.write_bytes(encoded(Image.fromarray(noise))[:5000])
    with pytest.raises(BayesVLMError, match=r"images\[2\] \('.*cut.png'\) is damaged or truncated"):
        to_rgb(Image.open(path), "images[2]")


def test_decompression_bombs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(Image.fromarray(PIXELS))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(BayesVLMError, match=r"more pixels than is safe.*MAX_IMAGE_PIXELS"):
        to_rgb(data)


def test_one_or_many() -> None:
    image = Image.fromarray(PIXELS)
    assert as_images(image) == [image]
    assert as_images("a.png") == ["a.png"]
    assert as_images(Path("a.png")) == [Path("a.png")]
    assert as_images(b"bytes") == [b"bytes"]
    assert as_images((image, "a.png")) == [image, "a.png"]
    assert as_images(name for name in ("a", "b")) == ["a", "b"]
    assert [one.shape for one in as_images(np.zeros((2, 4, 5, 3)))] == [(4, 5, 3)] * 2
    assert [one.shape for one in as_images(torch.zeros(2, 3, 4, 5))] == [(3, 4, 5)] * 2
    assert len(as_images(PIXELS)) == 1
    assert len(as_images(torch.zeros(4, 5))) == 1


@pytest.mark.parametrize(("images", "message"), [([], "no images"), (None, "NoneType"), ({"a": 1}, "dict"), (3, "int")])
def test_neither_one_nor_many(images: object, message: str) -> None:
    with pytest.raises(BayesVLMError, match=message):
        as_images(images)  # type: ignore[arg-type]


# Files that are open already, and what else people hand over ----------------------------------------------------------


def test_files_that_are_open(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(encoded(Image.fromarray(PIXELS)))
    written = io.BytesIO()
    Image.fromarray(PIXELS).save(written, "PNG")  # left at its end
    with path.open("rb") as file, path.open("rb", buffering=0) as raw, tempfile.SpooledTemporaryFile() as spooled:
        spooled.write(path.read_bytes())
        for form in (written, written, file, file, raw, spooled, io.BufferedReader(raw)):
            np.testing.assert_array_equal(pixels_of(form), PIXELS)
        assert not file.closed
    assert not written.closed


def test_files_that_can_be_read_once() -> None:
    class Response(io.RawIOBase):  # as urllib's: neither seekable nor of known length
        def __init__(self, content: bytes) -> None:
            self._content = io.BytesIO(content)

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
            return self._content.readinto(buffer)

    np.testing.assert_array_equal(pixels_of(Response(encoded(Image.fromarray(PIXELS)))), PIXELS)


def test_open_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(encoded(Image.fromarray(PIXELS)))
    with path.open(encoding="latin-1") as text, pytest.raises(BayesVLMError, match="as text; open it with mode 'rb'"):
        to_rgb(text)  # type: ignore[arg-type]
    with path.open("rb") as file:
        pass
    with pytest.raises(BayesVLMError, match="was closed; pass its path"):
        to_rgb(file)
    with pytest.raises(BayesVLMError, match="photo 3 is not an image that Pillow can read"):
        to_rgb(io.BytesIO(b"no image"), "photo 3")


def test_an_open_file_is_one_image(tmp_path: Path) -> None:
    stream = io.BytesIO(encoded(Image.fromarray(PIXELS)))
    assert as_images(stream) == [stream]
    assert as_images([stream, stream]) == [stream, stream]


def test_arrays_of_paths() -> None:
    assert as_images(np.array(["a.png", "b.png"])) == ["a.png", "b.png"]
    assert as_images(np.array([Path("a.png"), None], dtype=object)) == [Path("a.png"), None]


def test_strings_that_are_no_paths() -> None:
    with pytest.raises(BayesVLMError, match="is a data address; decode its base64 part"):
        to_rgb("data:image/png;base64,iVBORw0KGgo=")
    with pytest.raises(BayesVLMError, match=r"^the image \('A{40}'\.\.\. of 100000 characters\) does not exist"):
        to_rgb("A" * 100_000)


def test_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "a.png").symlink_to(tmp_path / "gone.png")
    with pytest.raises(BayesVLMError, match=r"is a link to '.*gone\.png', which does not exist"):
        to_rgb(tmp_path / "a.png")


def smooth() -> Image.Image:
    return Image.linear_gradient("L").convert("RGB")


def test_heif(tmp_path: Path) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    path = tmp_path / "photo.HEIC"
    pillow_heif.from_pillow(smooth()).save(path, quality=95)
    for form in (path, str(path), path.read_bytes(), io.BytesIO(path.read_bytes())):
        assert np.abs(pixels_of(form).astype(float) - np.asarray(smooth())).max() < 8


def test_heif_without_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_reads_heif", lambda: False)
    path = tmp_path / "photo.jpg"  # telephones name them so, too
    path.write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    monkeypatch.setattr(Image, "OPEN", {name: opens for name, opens in Image.OPEN.items() if name != "HEIF"})
    for form in (path, path.read_bytes()):
        with pytest.raises(BayesVLMError, match=r"is a HEIF image, .* `pip install 'bayesvlm\[heif\]'`"):
            to_rgb(form)


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow was built without AVIF")
def test_avif() -> None:
    file = encoded(smooth(), "AVIF", quality=95)
    assert np.abs(pixels_of(file).astype(float) - np.asarray(smooth())).max() < 8
