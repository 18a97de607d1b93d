"""What the server refuses before Gradio sees it: to fetch from elsewhere, and to answer other people's pages.

Gradio fetches what it is given an address of, such as `/gradio_api/file=http://...` or a file whose path is an address.
So anybody who reaches the page could have this machine ask any other, which the page promises not to do. And a server
on 127.0.0.1 is reached by every page that is open in a browser on the machine: one of those may send it requests, or
give its own name this machine's address and read the answers.
"""

from __future__ import annotations

import json
import re
import time
from collections import deque
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any
from urllib.parse import unquote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bayesvlm.app.uploads import LARGEST, MEGABYTES

POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; media-src 'self' data: blob:; font-src 'self' data:; "
    "style-src 'self' 'unsafe-inline'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; worker-src 'self' blob:; "
    "connect-src 'self' data: blob:; frame-ancestors 'none'; base-uri 'self'; form-action 'self'"
)
"""What a browser may fetch for this page: what this server sends, and nothing else."""
WINDOW = 1200
"""Seconds in which uploads count: as long as the longest of them lie on the disk."""
MOST_OF_ONE = 512 * 2**20
"""Bytes that one address may upload in that time."""
MOST_OF_ALL = 4 * 2**30
"""Bytes that all may."""
_FRAME = 2**16  # bytes around a file in a form
LARGEST_REQUEST = 4 * 2**20
"""Bytes of a request that is no upload: names and numbers, which are looked through before Gradio sees them."""
_UPLOAD = "/gradio_api/upload"
_ADDRESS = re.compile(r"\s*(?:[a-z][a-z0-9+.-]+:|[/\\]{2})", re.IGNORECASE)  # one letter before the colon is a drive
_FETCHED = re.compile(r"/(?:file|proxy)=" + _ADDRESS.pattern, re.IGNORECASE)
_DECODED = 10  # times that something may be percent-encoded
_HARMLESS = frozenset({"GET", "HEAD", "OPTIONS"})


class RefusedError(Exception):
    """A request that is not answered: the status, and why in a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Guard:
    """Refuses what would be fetched or comes from another page, and has the browser fetch nothing from elsewhere.

    Args:
        app: that answers the rest.
        local: the server listens on this machine alone, and so is called by one of its names.
    """

    def __init__(self, app: ASGIApp, local: bool) -> None:
        self.app, self.local, self.uploads = app, local, Uploads()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "websocket":  # which nothing here uses
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":  # the server's own beginning and end
            await self.app(scope, receive, send)
            return

        async def with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = POLICY
                headers["Referrer-Policy"] = "no-referrer"
                headers["X-Content-Type-Options"] = "nosniff"
            await send(message)

        try:
            headers = Headers(scope=scope)
            check_caller(scope["method"], headers.get("host", ""), headers.get("origin"), self.local)
            check_path(scope["path"])
            if scope["path"].rstrip("/") == _UPLOAD:
                try:
                    self.uploads.check(headers.get("content-length"), (scope.get("client") or ("",))[0])
                except RefusedError:
                    await _dropped(receive)
                    raise
            elif scope["method"] not in _HARMLESS:
                body = await _body(receive)
                check_body(body, headers.get("host", ""))
                receive = _again(body, receive)
        except RefusedError as error:
            await PlainTextResponse(str(error), error.status)(scope, receive, with_policy)
            return
        await self.app(scope, receive, with_policy)


class Uploads:
    """What was uploaded of late, so that nobody fills the disk: a form with one file, and so much in some minutes."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, str, int]] = deque()

    def check(self, length: str | None, address: str) -> None:
        """That a form may be received, by its length, which the server holds it to."""
        if length is None or not length.isdecimal():
            raise RefusedError(411, "This upload does not say how long it is; send it as a browser does.")
        size = int(length)
        if size > LARGEST + _FRAME:
            raise RefusedError(413, f"An upload has one file of up to {MEGABYTES} MB; make it smaller.")
        now = time.monotonic()
        while self._recent and now - self._recent[0][0] > WINDOW:
            self._recent.popleft()
        of_one = sum(each for _, whose, each in self._recent if whose == address)
        of_all = sum(each for _, _, each in self._recent)
        if of_one + size > MOST_OF_ONE or of_all + size > MOST_OF_ALL:
            raise RefusedError(429, f"Much was uploaded in the last {WINDOW // 60} minutes; try again later.")
        self._recent.append((now, address, size))


def check_caller(method: str, host: str, origin: str | None, local: bool) -> None:
    """That a request is meant for this server, and that no other page sends it."""
    if local and not is_local(_name(host)):
        raise RefusedError(403, f"This page is not called {host[:80]!r}; open it as http://127.0.0.1 with its port.")
    if origin is not None and method not in _HARMLESS and not _same(origin, host):
        raise RefusedError(403, f"Another page, {origin[:80]!r}, sent this; open the page at its own address.")


def check_path(path: str) -> None:
    """That a path names nothing to be fetched, however often it is encoded."""
    for _ in range(_DECODED):
        if _FETCHED.search(path):
            raise RefusedError(403, "This server fetches nothing from elsewhere; download the file and upload it.")
        path, before = unquote(path), path
        if path == before:
            return


def check_body(body: bytes, host: str) -> None:
    """That no file in a request is somewhere else.

    Raises:
        RefusedError: where one is, and where that cannot be told.
    """
    try:
        given = json.loads(body) if body.strip() else None
    except (ValueError, RecursionError):
        raise RefusedError(400, "This request is no JSON that can be read; send what the page itself does.") from None
    for key, value in _files(given):
        if _ADDRESS.match(value) and (key == "path" or not _same(value, host)):
            raise RefusedError(403, f"{value[:80]!r} is elsewhere, and nothing is fetched; upload the file itself.")


def is_local(host: str) -> bool:
    """Whether an address to listen on, or that was called, is this machine's own, which no other machine reaches."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"


def _files(given: Any) -> Iterator[tuple[str, str]]:
    """Texts under the names that Gradio takes for a file's."""
    left = [given]
    while left:
        found = left.pop()
        if isinstance(found, dict):
            yield from ((key, found[key]) for key in ("path", "url") if isinstance(found.get(key), str))
            left += found.values()
        elif isinstance(found, list):
            left += found


def _name(host: str) -> str:
    """The name in a Host header, without the port."""
    return host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]


def _same(address: str, host: str) -> bool:
    """Whether an address is of the server that is called `host`."""
    scheme, _, rest = address.strip().lower().partition("://")
    ports = {"http": ":80", "https": ":443"}
    if scheme not in ports or "\\" in rest:
        return False
    called = urlsplit(f"//{rest}").netloc
    return called.removesuffix(ports[scheme]) == host.lower().removesuffix(ports[scheme])


async def _dropped(receive: Receive) -> None:
    """Read on for a while and keep nothing: who is still sending would not hear why it is refused."""
    left = 4 * LARGEST
    while left > 0:
        message = await receive()
        left -= len(message.get("body", b""))
        if not message.get("more_body", False):
            return


async def _body(receive: Receive) -> bytes:
    parts, size = [], 0
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > LARGEST_REQUEST:
            raise RefusedError(413, f"This request has more than {LARGEST_REQUEST >> 20} MB; shorten its texts.")
        if not message.get("more_body", False):  # all, or the caller is gone
            return b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    """What was received, as if it had not been."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Message:
        return waiting.pop() if waiting else await receive()

    return received
