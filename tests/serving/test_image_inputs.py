"""Images as transformers' pipelines take them: files, addresses, base64; and what is refused."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import numpy as np
import pytest
import torch
from PIL import Image

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.serving import image_inputs, pipeline
from bayesvlm.serving.image_inputs import Sources, kind_of

LABELS = ["grinning face", "house", "banana"]


def picture() -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def content(image: Image.Image) -> bytes:
    stream = BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


PNG = content(picture())


class Handler(BaseHTTPRequestHandler):
    """/image.png is one, /to-file leads to a file, /slow never answers, /drip does a byte at a time,
    others are not there."""

    never = threading.Event()

    def do_GET(self) -> None:
        if self.path == "/image.png":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(PNG)
        elif self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/image.png")
            self.end_headers()
        elif self.path in ("/to-file", "/to-ftp"):
            self.send_response(302)
            self.send_header("Location", "file:///etc/hostname" if "file" in self.path else "ftp://127.0.0.1/x")
            self.end_headers()
        elif self.path == "/slow":
            self.never.wait(20)
        elif self.path == "/drip":
            self.send_response(200)
            self.end_headers()
            for _ in range(200):
                try:
                    self.wfile.write(b"x")
                except OSError:  # nobody listens any more
                    return
                if self.never.wait(0.05):
                    return
        elif self.path == "/page.html":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>not an image</html>")
        else:
            self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_address[1]}"
        Handler.never.set()
        serving.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


FETCHING = Sources(addresses=True, timeout=5)


def test_addresses_are_refused_unless_allowed(server: str) -> None:
    with pytest.raises(BayesVLMError, match=r"images\[1\] \('http://.*image.png'\) is a web address.*allow_urls=True"):
        list(Sources().each(["a.png", f"{server}/image.png"]))
    assert FETCHING.opened(f"{server}/image.png", "the image") == PNG
    assert FETCHING.opened(f"{server}/moved", "the image") == PNG


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/missing.png", r"cannot be fetched \(404 Not Found\)"),
        ("/to-file", r"cannot be fetched \(302 .*Redirection to url 'file:///etc/hostname' is not allowed"),
        ("/to-ftp", r"cannot be fetched \(unknown url type: ftp\)"),
    ],
)
def test_addresses_that_lead_nowhere(server: str, path: str, sentence: str) -> None:
    with pytest.raises(BayesVLMError, match=f"the image .*{sentence}"):
        FETCHING.opened(server + path, "the image")


def test_nobody_answers(server: str) -> None:
    with pytest.raises(BayesVLMError, match=r"no answer within 0\.2 seconds"):
        Sources(addresses=True, timeout=0.2).opened(f"{server}/slow", "the image")
    with pytest.raises(BayesVLMError, match=r"cannot be fetched \(.*refused"):
        FETCHING.opened("http://127.0.0.1:9/x.png", "the image")
    with pytest.raises(BayesVLMError, match=r"cannot be fetched"):
        FETCHING.opened("http://", "the image")


def test_an_answer_that_drips_is_not_waited_for(server: str) -> None:
    begun = time.monotonic()
    with pytest.raises(BayesVLMError, match=r"no answer within 0\.4 seconds"):
        Sources(addresses=True, timeout=0.4).opened(f"{server}/drip", "the image")
    assert time.monotonic() - begun < 5, "it takes ten seconds in all, a twentieth of one per byte"


def test_a_refusal_is_closed(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    closed, close = [], HTTPError.close
    monkeypatch.setattr(HTTPError, "close", lambda self: (closed.append(self.code), close(self)))
    with pytest.raises(BayesVLMError, match="404"):
        FETCHING.opened(f"{server}/missing.png", "the image")
    assert 404 in closed


def test_what_is_too_large(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_inputs, "MOST_BYTES", len(PNG) - 1)
    with pytest.raises(BayesVLMError, match=r"is larger than \d+ MiB"):
        FETCHING.opened(f"{server}/image.png", "the image")


def test_the_pipeline_fetches(server: str) -> None:
    refusing, fetching = (pipeline("emoji-clip", device="cpu", allow_urls=allowed) for allowed in (False, True))
    expected = fetching(picture(), candidate_labels=LABELS)
    address = f"{server}/image.png"
    assert fetching(address, candidate_labels=LABELS) == expected
    (answer,) = fetching([address], candidate_labels=LABELS, timeout=3)
    assert [each["label"] for each in answer] == [each["label"] for each in expected]
    with pytest.raises(BayesVLMError, match=r"^the image \(.*\) is a web address, and this pipeline fetches none"):
        refusing(address, candidate_labels=LABELS)
    with pytest.raises(BayesVLMError, match=r"images\[1\] \(.*missing.png'\) cannot be fetched \(404"):
        fetching([picture(), f"{server}/missing.png"], candidate_labels=LABELS)
    with pytest.raises(BayesVLMError, match="the image is not an image that Pillow can read"):
        fetching(f"{server}/page.html", candidate_labels=LABELS)
    with pytest.raises(BayesVLMError, match=r"no answer within 0\.1 seconds"):
        fetching(f"{server}/slow", candidate_labels=LABELS, timeout=0.1)


def test_text_that_is_an_image() -> None:
    text = base64.b64encode(PNG).decode()
    wrapped = base64.encodebytes(PNG).decode()  # lines of 76 characters
    for given in (text, wrapped, f"data:image/png;base64,{text}"):
        assert Sources().opened(given, "the image") == PNG
    with pytest.raises(BayesVLMError, match=r"data address without base64"):
        Sources().opened("data:image/svg+xml,<svg/>", "the image")


@pytest.mark.parametrize("given", ["nothing.png", "Y2F0", "", "cat\0", "a" * 5000, Path("x.png"), b"bytes", None])
def test_the_rest_is_left_to_who_reads_it(given: Any) -> None:
    assert Sources().opened(given, "the image") is given


def test_a_file_that_looks_like_base64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = base64.b64encode(content(Image.new("L", (1, 1)))).decode()
    name = next(text[:length] for length in (60, 40) if "/" not in text[:length])
    Path(name).write_bytes(PNG)
    assert Sources().opened(name, "the image") == name


def test_a_pipeline_takes_what_transformers_takes(tmp_path: Path) -> None:
    pipe = pipeline("emoji-clip", device="cpu", plain=True)
    path = tmp_path / "picture.png"
    path.write_bytes(PNG)
    expected = pipe(picture(), candidate_labels=LABELS)
    forms: list[Any] = [str(path), path, PNG, base64.b64encode(PNG).decode(), np.asarray(picture()), BytesIO(PNG)]
    for given in forms:
        assert pipe(given, candidate_labels=LABELS) == expected
    with path.open("rb") as opened:
        assert pipe(opened, candidate_labels=LABELS) == expected
    for answer in pipe(
        [*forms[:-1], f"data:image/png;base64,{base64.b64encode(PNG).decode()}"], candidate_labels=LABELS
    ):
        assert [each["score"] for each in answer] == pytest.approx([each["score"] for each in expected], abs=1e-5)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (picture(), "one"),
        ("a.png", "one"),
        (Path("a.png"), "one"),
        (b"", "one"),
        (BytesIO(), "one"),
        (np.zeros((4, 4, 3), np.uint8), "one"),
        (torch.zeros(3, 4, 4), "one"),
        (np.zeros((2, 4, 4, 3), np.uint8), "list"),
        (torch.zeros(2, 3, 4, 4), "list"),
        (np.array(["a.png", "b.png"]), "list"),
        (["a.png"], "list"),
        (("a.png", "b.png"), "list"),
        ({"a.png": 1}.keys(), "list"),
        ({"pixel_values": torch.zeros(1, 3, 4, 4)}, "list"),
        (iter(["a.png"]), "stream"),
        ((name for name in ["a.png"]), "stream"),
        (torch.utils.data.TensorDataset(torch.zeros(2, 3, 4, 4)), "stream"),
        (torch.utils.data.DataLoader([1, 2]), "stream"),  # type: ignore[arg-type]
    ],
)
def test_one_many_or_a_stream(given: Any, kind: str) -> None:
    assert kind_of(given)[0] == kind
