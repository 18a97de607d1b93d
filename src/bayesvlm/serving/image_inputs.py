"""What transformers' pipelines take for images: one, many or a stream; web addresses and base64 text, too."""

from __future__ import annotations

import base64
import binascii
import math
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Literal

import numpy as np
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bayesvlm.core.errors import BayesVLMError, check_positive, first_line
from bayesvlm.images.decoding import Readable, as_inputs

Kind = Literal["one", "list", "stream"]

MOST_BYTES = 64 * 2**20
"""Of a file behind an address; a photograph has a few million."""
CHUNK = 2**16  # bytes of it that are read at once

_ONE = (Image.Image, str, os.PathLike, bytes, bytearray, memoryview)
_ALONE = 3  # axes of an image, at most
_WEB = ("http://", "https://")
_SHOWN = 300  # characters of an address in an error


def kind_of(inputs: Any) -> tuple[Kind, Iterable[Any]]:
    """What a call was given, and its images: an answer, a list of answers or an iterator of them is expected.

    Data sets of torch, data loaders, generators and whatever else has no length are read while the answers are taken.
    """
    if isinstance(inputs, np.ndarray) and inputs.dtype.kind in "OTU":
        return "list", as_inputs(inputs)
    if isinstance(inputs, np.ndarray | Tensor):
        return ("one" if inputs.ndim <= _ALONE else "list"), as_inputs(inputs)
    if isinstance(inputs, _ONE) or (isinstance(inputs, Readable) and not isinstance(inputs, Mapping)):
        return "one", [inputs]
    streamed = isinstance(inputs, Dataset | DataLoader) or not hasattr(inputs, "__len__")
    return ("stream" if streamed else "list"), as_inputs(inputs)


def singly(images: Iterable[Any]) -> Iterator[Any]:
    """Images with those of a batch, a 4-D array or tensor as data loaders make them, one after the other."""
    for given in images:
        yield from given if isinstance(given, np.ndarray | Tensor) and given.ndim > _ALONE else [given]


@dataclass(frozen=True)
class Sources:
    """Where images may come from.

    Args:
        addresses: whether web addresses are fetched.
        timeout: seconds to wait for one: for the connection and each part of its headers, and for the whole of it.
    """

    addresses: bool = False
    timeout: float | None = 10.0

    def __post_init__(self) -> None:
        if self.timeout is not None:
            check_positive("timeout", self.timeout)

    def each(self, images: Iterable[Any]) -> Iterator[Any]:
        """Every image as the rest of the package reads it."""
        return (self.opened(image, f"images[{place}]") for place, image in enumerate(singly(images)))

    def opened(self, image: Any, label: str) -> Any:
        """A str as a path or as the bytes it stands for; anything else as it is.

        Args:
            label: what to call the image in an error.
        """
        if not isinstance(image, str):
            return image
        if image.startswith(_WEB):
            return self._fetched(image, label)
        if image.startswith("data:image/"):
            return _data_address(image, label)
        return image if os.path.isfile(image) else _decoded(image)

    def _fetched(self, address: str, label: str) -> bytes:
        called = f"{label} ({address[:_SHOWN]!r})"
        if not self.addresses:
            raise BayesVLMError(
                f"{called} is a web address, and this pipeline fetches none: download it and pass the file's path or "
                "its bytes, or make the pipeline with allow_urls=True."
            )
        late_at = math.inf if self.timeout is None else time.monotonic() + self.timeout
        try:
            with _OPENER.open(address, timeout=self.timeout) as response:
                content = _read(response, late_at)
        except Exception as error:  # of the address, the network, the protocol, the other side: many types
            reason = getattr(error, "reason", None) or error
            said = str(reason)
            if isinstance(error, urllib.error.HTTPError):
                said = f"{error.code} {reason}"
                error.close()  # it is the response, with its connection
            late = isinstance(error, TimeoutError) or isinstance(reason, TimeoutError)
            said = f"no answer within {self.timeout} seconds" if late else first_line(Exception(said))
            raise BayesVLMError(f"{called} cannot be fetched ({said}); check the address, or leave it out.") from None
        if len(content) > MOST_BYTES:
            raise BayesVLMError(
                f"{called} is larger than {MOST_BYTES // 2**20} MiB; download it and pass the file's path."
            )
        return content


def _read(response: Any, late_at: float) -> bytes:
    """What an address answers, up to a byte more than is taken, a chunk at a time.

    The timeout of a socket is for each read by itself, so that a byte now and then would hold it open for hours.
    """
    chunks, size = [], 0
    while size <= MOST_BYTES and (chunk := response.read1(min(CHUNK, MOST_BYTES + 1 - size))):
        chunks.append(chunk)
        size += len(chunk)
        if time.monotonic() > late_at:
            raise TimeoutError
    return b"".join(chunks)


def _opener() -> urllib.request.OpenerDirector:
    """Opens http and https alone, wherever an address leads on to."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.UnknownHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    opener.addheaders = [("User-Agent", "bayesvlm")]
    return opener


_OPENER = _opener()


def _data_address(address: str, label: str) -> bytes:
    """The image that a data address holds."""
    _, _, content = address.partition(",")
    try:
        return base64.b64decode("".join(content.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BayesVLMError(
            f"{label} ({address[:40]!r}... of {len(address)} characters) is a data address without base64 in it "
            f"({first_line(error)}); pass the image's bytes."
        ) from None


def _decoded(text: str) -> str | bytes:
    """The bytes, where the text is an image's in base64; else the text as it is, a path that leads nowhere."""
    try:
        content = base64.b64decode("".join(text.split()), validate=True)
        Image.open(BytesIO(content)).close()
    except Image.DecompressionBombError:
        return content  # an image, which is refused with its own sentence
    except Exception:  # no base64, or of something else; Pillow raises nearly every type
        return text
    return content
