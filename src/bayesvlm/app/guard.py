"""What the server refuses before Gradio sees it: to fetch from elsewhere, and to answer other people's pages.

Gradio fetches what it is given an address of, such as `/gradio_api/file=http://...` or a file whose path is an address.
So anybody who reaches the page could have this machine ask any other, which the page promises not to do. And a server
on 127.0.0.1 is reached by every page that is open in a browser on the machine: one of those may send it requests, or
give its own name this machine's address and read the answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any
from urllib.parse import unquote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; media-src 'self' data: blob:; font-src 'self' data:; "
    "style-src 'self' 'unsafe-inline'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; worker-src 'self' blob:; "
    "connect-src 'self' data: blob:; frame-ancestors 'none'; base-uri 'self'; form-action 'self'"
)
"""What a browser may fetch for this page: what this server sends, and nothing else."""
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
        self.app, self.local = app, local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
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
            if scope["method"] not in _HARMLESS and scope["path"].rstrip("/") != _UPLOAD:
                body = await _body(receive)
                check_body(body, headers.get("host", ""))
                receive = _again(body, receive)
        except RefusedError as error:
            await PlainTextResponse(str(error), error.status)(scope, receive, with_policy)
            return
        await self.app(scope, receive, with_policy)


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


def refuse_fetching() -> None:
    """Have Gradio's own fetcher refuse, so that nothing is fetched by a way that is not known here.

    This holds for all that Gradio serves in this process.
    """
    import safehttpx

    async def refused(*given: Any, **more: Any) -> Any:
        raise ValueError("This server fetches nothing from elsewhere.")

    safehttpx.get = safehttpx.async_validate_url = refused


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
