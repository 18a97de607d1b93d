"""Whatever a caller has for an image, as an upright 8-bit RGB `PIL.Image`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO, TextIOBase
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from bayesvlm.core.errors import BayesVLMError, first_line
from bayesvlm.images.resizing import Allowance, Resizing


@runtime_checkable
class Readable(Protocol):
    """A file opened for reading, or what reads like one: `BytesIO`, an upload, a web response."""

    def read(self, size: int = -1, /) -> bytes: ...


ImageLike = Image.Image | str | os.PathLike[str] | bytes | memoryview | Readable | NDArray[Any] | torch.Tensor
"""One image: opened, by its path, as the bytes of its file, as an open file, or as pixels."""

ImageInputs = ImageLike | Mapping[str, Any] | Iterable[Any]
"""One image or many; a mapping holds the pixel values that an image processor made."""

PIXEL_VALUES = "pixel_values"
_ACCEPTED = "a PIL image, a path, an image file's bytes, a file opened with mode 'rb', a numpy array or a torch tensor"
_CHANNELS = (1, 3, 4)
_FLOAT_SLACK = 1e-3  # resizing overshoots 0..1 by rounding; more than this is another scale
_MOST_ELONGATED = 200  # resizing the short side of anything longer would need gigabytes
_HEIF = frozenset({b"heic", b"heim", b"heis", b"heix", b"hevc", b"hevm", b"hevs", b"hevx", b"mif1", b"msf1"})
_COPY = 4  # bytes per pixel of an image in Pillow
_PROGRESSIVE = 3  # bytes more per pixel of the file, for the coefficients of a progressive JPEG
DECODING_BYTES = 512 * 2**20
"""What all threads, or all worker processes, together may take to decode in."""
_decoding = Allowance(DECODING_BYTES)


def as_inputs(images: ImageInputs) -> Iterable[Any]:
    """One image, an iterable of images, or a 4-D array or tensor of a batch, as an iterable; nothing is decoded yet.

    A list stays a list and a generator a generator, which is not begun. What an image processor made, a mapping with
    "pixel_values", is one input.
    """
    if isinstance(images, np.ndarray) and images.dtype.kind in "OTU":  # of paths, of images
        return list(images.ravel())
    if isinstance(images, np.ndarray | torch.Tensor):
        return images if images.ndim == 4 else [images]
    if isinstance(images, Image.Image | str | os.PathLike | bytes | bytearray | memoryview | Readable):
        return [images]
    if isinstance(images, Mapping):
        if PIXEL_VALUES in images:
            return [images]
        raise BayesVLMError(f"Images are {_mapping(images)}")
    if isinstance(images, Iterable):
        return images
    if hasattr(images, "__getitem__") and hasattr(images, "__len__"):
        return _Indexed(images)
    raise BayesVLMError(f"Images must be {_ACCEPTED}, or a list of these; got {type(images).__name__}.")


class _Indexed(Sequence[Any]):
    """What has a length and is indexed from 0 on, such as a Dataset of torch, as a sequence that ends at its length."""

    def __init__(self, items: Any) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __iter__(self) -> Iterator[Any]:
        return (self._items[index] for index in range(len(self)))


def as_images(images: ImageInputs) -> list[ImageLike]:
    """One image, an iterable of images, or a 4-D array or tensor of a batch, as a list of images not yet decoded."""
    batch = list(as_inputs(images))
    if not batch:
        raise BayesVLMError("There are no images: the list is empty; pass at least one.")
    return batch


def to_rgb(image: ImageLike, label: str = "the image", resizing: Resizing | None = None) -> Image.Image:
    """Decode one image to upright 8-bit RGB.

    EXIF rotation is applied, transparency is composited on white, 16-bit grey is scaled to 8 bits, CMYK and palettes
    are converted, and of an animation the first frame is taken. Arrays are read as HWC or HW and tensors as CHW or
    HW; the other order is recognised where the number of channels (1, 3 or 4) leaves no doubt.

    Args:
        image: a PIL image, a path, the bytes of an image file, a file opened with mode "rb", or an array or tensor of
            uint8, or of floats in 0..1.
        label: what to call the image in an error, such as its place in the caller's list.
        resizing: of the model that is to see it: what is larger is shrunk to that size, and a JPEG file not decoded at
            its full size; None leaves an image as large as it is.

    Raises:
        BayesVLMError: when the image is missing, damaged, too large to be safe, or not in 0..1; the message names it.
    """
    if isinstance(image, torch.Tensor):
        rgb = _from_pixels(_pixels(image, label), label, channels_first=True)
    elif isinstance(image, np.ndarray):
        rgb = _from_pixels(image, label, channels_first=False)
    elif isinstance(image, Image.Image):
        filename = getattr(image, "filename", "")
        rgb = _from_pil(image, f"{label} ({filename!r})" if filename else label)
    elif isinstance(image, bytes | bytearray | memoryview):
        return _from_file(BytesIO(image), label, resizing)
    elif isinstance(image, str | os.PathLike):
        return _from_path(os.fspath(image), label, resizing)
    elif isinstance(image, Readable):
        return _from_file(BytesIO(read_stream(image, label)), label, resizing)
    else:
        raise BayesVLMError(f"{label} is {_no_image(image)}")
    return _fitted(rgb, label, resizing)


def _no_image(value: Any) -> str:
    """What to say of an input that holds an image at best."""
    if isinstance(value, Mapping):
        return _mapping(value)
    if isinstance(value, tuple | list):
        inside = ", ".join(type(part).__name__ for part in value[:4])
        return (
            f"a {type(value).__name__} of {len(value)} ({inside}{', ...' if len(value) > 4 else ''}); pass the images "
            "alone, such as (image for image, label in dataset)."
        )
    return f"a {type(value).__name__}; expected {_ACCEPTED}."


def _mapping(value: Mapping[Any, Any]) -> str:
    """What to say of a mapping that is no image processor's output: a row of a data set, mostly."""
    names = ", ".join(map(str, list(value)[:6]))
    return (
        f"a {type(value).__name__} with {names or 'nothing'} in it; pass the images alone, such as dataset['image'], "
        f"or what an image processor made, with {PIXEL_VALUES!r} in it."
    )


def _from_path(path: str, label: str, resizing: Resizing | None) -> Image.Image:
    shown = repr(path) if len(path) <= 300 else f"{path[:40]!r}... of {len(path)} characters"
    label = f"{label} ({shown})"
    if path.startswith(("http://", "https://")):
        raise BayesVLMError(f"{label} is a web address; download it first and pass the file's path or its bytes.")
    if path.startswith("data:"):
        raise BayesVLMError(f"{label} is a data address; decode its base64 part and pass the bytes.")
    if os.path.isdir(path):
        raise BayesVLMError(f"{label} is a folder; pass its image files: bayesvlm.images.find_images(Path({shown})).")
    if not os.path.isfile(path):
        raise BayesVLMError(f"{label} {_absent(path)}; pass the path of an image file.")
    return _from_file(path, label, resizing)


def _absent(path: str) -> str:
    """Why there is no file at a path."""
    if os.path.islink(path):
        return f"is a link to {os.readlink(path)!r}, which does not exist"
    return "is no file" if os.path.exists(path) else "does not exist"


def read_stream(stream: Readable, label: str = "the image") -> bytes:
    """All that an opened file holds, from its beginning where it can be wound back."""
    if isinstance(stream, TextIOBase):
        raise BayesVLMError(f"{label} is a file opened as text; open it with mode 'rb'.")
    if getattr(stream, "closed", False):
        raise BayesVLMError(f"{label} is a file that was closed; pass its path, or open it again.")
    seekable = getattr(stream, "seekable", None)
    if seekable and seekable():
        stream.seek(0)  # type: ignore[attr-defined]
    return stream.read()


def _from_file(file: Any, label: str, resizing: Resizing | None) -> Image.Image:
    with open_file(file, label) as opened:
        stored = opened.size
        if resizing is not None:
            resizing.draft(opened)
        with room(_bytes_to_decode(opened, stored)):
            return _fitted(_from_pil(opened, label), label, resizing, stored)


def open_file(file: Any, label: str, formats: Sequence[str] | None = None) -> Image.Image:
    """Open an image file without decoding it, so that its size can be looked at first.

    Args:
        file: a path, or an open file.
        label: what to call it in an error.
        formats: Pillow's names of those to try; None: all. Each is a decoder that a stranger's file may reach.

    Raises:
        BayesVLMError: for what is no image of these formats, or would decode to more pixels than is safe.
    """
    try:
        return _opened(file, formats)
    except Image.DecompressionBombError as error:
        raise BayesVLMError(
            f"{label} is refused: it would decode to more pixels than is safe ({error}); resize it first, or raise "
            "PIL.Image.MAX_IMAGE_PIXELS if you trust where it comes from."
        ) from error
    except Exception as error:  # decoders raise nearly every type on damaged files
        if _is_heif(file) and not _reads_heif():
            raise BayesVLMError(
                f"{label} is a HEIF image, which Pillow reads with pillow-heif: `pip install 'bayesvlm[heif]'`."
            ) from error
        raise BayesVLMError(
            f"{label} is not an image that Pillow can read ({first_line(error)}); convert it to PNG or JPEG."
        ) from error


def room(amount: int) -> AbstractContextManager[None]:
    """Have so many bytes to decode in, once others gave back theirs."""
    return _decoding.hold(amount)


def share_allowance(allowance: Allowance) -> None:
    """Have this process decode within an allowance that it shares with others."""
    global _decoding
    _decoding = allowance


def _opened(file: Any, formats: Sequence[str] | None) -> Image.Image:
    try:
        return Image.open(file, formats=_known(formats))
    except UnidentifiedImageError:
        if not _reads_heif():
            raise
        return Image.open(file, formats=_known(formats))


def _known(formats: Sequence[str] | None) -> list[str] | None:
    """Those that this Pillow has a decoder for; it stumbles over others."""
    if formats is None:
        return None
    Image.init()
    return [name for name in formats if name in Image.OPEN]


def _is_heif(file: Any) -> bool:
    """Whether a file begins as HEIF does, which is what telephones call HEIC."""
    try:
        with Path(file).open("rb") if isinstance(file, str) else nullcontext(file) as stream:
            stream.seek(0)
            start = stream.read(12)
    except (OSError, ValueError):
        return False
    return start[4:8] == b"ftyp" and start[8:12] in _HEIF


def heif_version() -> str | None:
    """Of what reads HEIF; None where it is not installed."""
    try:
        return version("pillow_heif")
    except PackageNotFoundError:
        return None


@cache
def _reads_heif() -> bool:
    """Whether Pillow can read HEIF: it is taught here, where the extra for it is installed."""
    try:
        import pillow_heif
    except ImportError:
        return False
    pillow_heif.register_heif_opener()
    return True


def _bytes_to_decode(opened: Image.Image, stored: tuple[int, int]) -> int:
    """As it is stored, upright and in RGB; what is transparent also in RGBA, white behind it, and both together."""
    copies = 6 if opened.mode.upper().endswith("A") or "transparency" in opened.info else 3
    kept = _PROGRESSIVE * stored[0] * stored[1] if opened.info.get("progressive") else 0
    return copies * _COPY * opened.width * opened.height + kept


def _fitted(
    rgb: Image.Image, label: str, resizing: Resizing | None, stored: tuple[int, int] | None = None
) -> Image.Image:
    if max(rgb.size) > _MOST_ELONGATED * min(rgb.size):
        raise BayesVLMError(
            f"{label} is {rgb.width} x {rgb.height} pixels; an image may be at most {_MOST_ELONGATED} times as long as "
            "it is wide, so crop it first."
        )
    return rgb if resizing is None else resizing.shrunk(rgb, stored)


def _from_pil(image: Image.Image, label: str) -> Image.Image:
    try:
        image.load()
    except Exception as error:  # decoders raise nearly every type on damaged files
        raise BayesVLMError(
            f"{label} is damaged or truncated ({first_line(error)}); fetch it again or leave it out."
        ) from error
    if 0 in image.size:
        raise BayesVLMError(f"{label} is {image.width} x {image.height} pixels; an image needs at least one pixel.")
    try:
        image = ImageOps.exif_transpose(image)
    except Exception:  # unreadable metadata on readable pixels: nothing says which way is up, so leave it as it is
        image = image.copy()
    if image.mode == "F":
        return _from_pixels(np.asarray(image), label, channels_first=False)
    if image.mode == "I" or image.mode.startswith("I;16"):
        return Image.fromarray(_eight_bits(np.asarray(image), label)).convert("RGB")
    try:
        if image.has_transparency_data:
            rgba = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
        return image if image.mode == "RGB" else image.convert("RGB")
    except ValueError as error:
        raise BayesVLMError(
            f"{label} has colour mode {image.mode!r}, which Pillow cannot convert to RGB; convert it to PNG or JPEG."
        ) from error


def _pixels(tensor: torch.Tensor, label: str) -> NDArray[Any]:
    tensor = tensor.detach().cpu()
    if tensor.is_sparse or tensor.is_quantized or tensor.is_complex():
        raise BayesVLMError(f"{label} is a {tensor.dtype} tensor ({tensor.layout}); expected a dense one.")
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()  # numpy has no bfloat16


def _from_pixels(pixels: NDArray[Any], label: str, channels_first: bool) -> Image.Image:
    """An array [H, W], [H, W, C] or [C, H, W], with C = 1, 3 or 4."""
    shape = list(pixels.shape)
    if pixels.size == 0 or pixels.ndim not in (2, 3):
        raise BayesVLMError(f"{label} has shape {shape}; expected [H, W], [H, W, C] or [C, H, W], and not empty.")
    if pixels.ndim == 3:
        first, last = shape[0] in _CHANNELS, shape[2] in _CHANNELS
        if not (first or last):
            raise BayesVLMError(
                f"{label} has shape {shape}, where neither the first nor the last axis holds 1, 3 or 4 channels; pass "
                "a list of images, or a 4-D batch with its channel axis."
            )
        if first and (channels_first or not last):
            pixels = np.moveaxis(pixels, 0, 2)
        if pixels.shape[2] == 1:
            pixels = pixels[:, :, 0]
    if np.issubdtype(pixels.dtype, np.floating):
        low, high = float(pixels.min()), float(pixels.max())
        if not (low >= -_FLOAT_SLACK and high <= 1 + _FLOAT_SLACK):  # also when NaN
            raise BayesVLMError(
                f"{label} holds floats from {low:.4g} to {high:.4g}; expected 0..1: divide 0..255 values by 255, "
                "remove NaN, and pass what a model's own preprocessing made as {'pixel_values': ...}."
            )
        pixels = np.rint(pixels.clip(0, 1) * 255).astype(np.uint8)
    if pixels.dtype != np.uint8:
        raise BayesVLMError(f"{label} holds {pixels.dtype} values; expected uint8 in 0..255, or floats in 0..1.")
    return _from_pil(Image.fromarray(np.ascontiguousarray(pixels)), label)


def _eight_bits(grey: NDArray[Any], label: str) -> NDArray[np.uint8]:  # [H, W]
    """16-bit grey, which Pillow also keeps in 32-bit integers, scaled so that 65535 becomes 255."""
    low, high = int(grey.min()), int(grey.max())
    if low < 0 or high > 65535:
        raise BayesVLMError(f"{label} holds integers from {low} to {high}; expected 16-bit grey in 0..65535.")
    return np.rint(grey / 257).astype(np.uint8)
