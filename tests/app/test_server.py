"""The server as somebody with bad intentions meets it, without a browser."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gradio", reason="the page needs Gradio: pip install 'bayesvlm[app]'")
httpx = pytest.importorskip("httpx")
pytestmark = pytest.mark.xdist_group("app")


def test_the_page_may_fetch_from_itself_only(address: str) -> None:
    headers = httpx.get(address).headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_the_page_names_nothing_to_fetch_elsewhere(address: str) -> None:
    text = httpx.get(address).text
    for host in ("googleapis", "gstatic", "cdnjs", "jsdelivr", "huggingface.co/", "googletagmanager"):
        assert host not in text


def test_a_large_file_is_refused_before_it_is_kept(address: str) -> None:
    answer = httpx.post(f"{address}/gradio_api/upload", files={"files": ("x.png", bytes(21 * 2**20))}, timeout=60)
    assert answer.status_code == 413


def test_several_files_are_refused_together(address: str) -> None:
    files = [("files", (f"{place}.png", bytes(7 * 2**20))) for place in range(3)]
    assert httpx.post(f"{address}/gradio_api/upload", files=files, timeout=60).status_code == 413


def test_an_upload_says_how_long_it_is(address: str) -> None:
    def parts() -> Iterator[bytes]:
        yield b"x"

    assert httpx.post(f"{address}/gradio_api/upload", content=parts(), timeout=60).status_code == 411


def test_nobody_fills_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    from bayesvlm.app import guard

    now, uploads, size = 0.0, guard.Uploads(), 16 * 2**20
    monkeypatch.setattr(guard.time, "monotonic", lambda: now)
    for _ in range(guard.MOST_OF_ONE // size):
        uploads.check(str(size), "10.0.0.1")
    with pytest.raises(guard.RefusedError, match="try again later"):
        uploads.check(str(size), "10.0.0.1")
    for each in range(guard.MOST_OF_ALL // size - guard.MOST_OF_ONE // size):
        uploads.check(str(size), f"10.0.1.{each}")
    with pytest.raises(guard.RefusedError, match="try again later"):
        uploads.check(str(size), "10.0.2.1")
    now = guard.WINDOW + 1.0
    uploads.check(str(size), "10.0.0.1")


def test_a_websocket_is_closed(address: str) -> None:
    from starlette.testclient import TestClient
    from starlette.websockets import WebSocketDisconnect

    from bayesvlm.app.guard import Guard

    async def never(*given: Any) -> None:
        raise AssertionError("it was let in")

    with pytest.raises(WebSocketDisconnect), TestClient(Guard(never, local=False)).websocket_connect("/anything"):
        pass


def test_another_gradio_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradio import routes

    from bayesvlm.app.gradios import check_gradio
    from bayesvlm.core.errors import BayesVLMError

    check_gradio()
    monkeypatch.delattr(routes, "DEFAULT_TEMP_DIR")
    with pytest.raises(BayesVLMError, match=r"has no gradio.routes.DEFAULT_TEMP_DIR.*gradio>=6.20,<7"):
        check_gradio()


def test_empty_folders_go_and_others_stay(tmp_path: Path) -> None:
    from bayesvlm.app.page import clear_empty

    for name, when in (("old", 100.0), ("full", 100.0), ("new", time.time())):
        (tmp_path / name).mkdir()
        if name == "full":
            (tmp_path / name / "x.png").touch()
        os.utime(tmp_path / name, (when, when))
    (tmp_path / "file").touch()
    clear_empty(tmp_path, 600)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "full", "new"]


@pytest.mark.parametrize("path", ["/etc/passwd", "../../../../etc/passwd", str(Path(__file__))])
def test_files_of_the_machine_are_not_served(address: str, path: str) -> None:
    for at in ("file=", "file/"):
        assert httpx.get(f"{address}/gradio_api/{at}{path}").status_code in (400, 403, 404)


def test_another_page_in_the_browser_is_not_let_in(address: str) -> None:
    answer = httpx.get(f"{address}/config", headers={"Origin": "http://evil.example"})
    assert answer.headers.get("access-control-allow-origin") != "http://evil.example"
    assert answer.headers.get("access-control-allow-origin") != "*"


@pytest.fixture
def called(address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names that this process, in which the server runs, looks up, and addresses it connects to: but for its own."""
    found: list[str] = []
    look_up, connect = socket.getaddrinfo, socket.socket.connect

    def noted_look_up(host: Any, *given: Any, **more: Any) -> Any:
        found.append(str(host))
        return look_up("127.0.0.1" if "example" in str(host) else host, *given, **more)

    def noted_connect(self: socket.socket, to: Any) -> None:
        found.append(str(to[0]))
        connect(self, to)

    monkeypatch.setattr(socket, "getaddrinfo", noted_look_up)
    monkeypatch.setattr(socket.socket, "connect", noted_connect)
    yield found
    assert not [each for each in found if "127.0.0.1" not in each]


ELSEWHERE = [
    "file=http://elsewhere.example/x.png",
    "file=HTTPS://elsewhere.example/x.png",
    "file=http%3A%2F%2Felsewhere.example/x.png",
    "file%3Dhttp%253A%252F%252Felsewhere.example/x.png",
    "file=%2568ttp://elsewhere.example/",
    "proxy=https://elsewhere.example/",
    "file=//elsewhere.example/x.png",
]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", ELSEWHERE)
def test_nothing_is_fetched_for_a_path(address: str, called: list[str], path: str, method: str) -> None:
    answer = httpx.request(method, f"{address}/gradio_api/{path}", timeout=30)
    assert answer.status_code == 403
    assert "content-security-policy" in answer.headers


def _file(**fields: str) -> dict[str, Any]:
    return {"meta": {"_type": "gradio.FileData"}, "orig_name": "x.png", **fields}


@pytest.mark.parametrize(
    "file",
    [
        _file(path="http://elsewhere.example/x.png"),
        _file(path=" HTTP://elsewhere.example/x.png"),
        _file(path="/tmp/x.png", url="https://elsewhere.example/x.png"),
        _file(path="/tmp/x.png", url="http://127.0.0.1@elsewhere.example/x.png"),
    ],
)
@pytest.mark.parametrize("way", ["call/upload", "call/ask", "run/upload", "queue/join"])
def test_nothing_is_fetched_for_a_file(address: str, called: list[str], way: str, file: dict[str, Any]) -> None:
    body = {"data": [file, "cat, dog"], "fn_index": 0, "session_hash": "abc"}
    assert httpx.post(f"{address}/gradio_api/{way}", json=body, timeout=30).status_code == 403


def test_gradio_itself_fetches_nothing(called: list[str]) -> None:
    from gradio.processing_utils import async_ssrf_protected_get
    from safehttpx import async_validate_url

    def fetched(given: Any) -> None:  # in a thread of its own: the browser's tests leave a loop running in this one
        with ThreadPoolExecutor() as pool:
            pool.submit(asyncio.run, given).result()

    for fetch in (async_ssrf_protected_get("http://elsewhere.example/"), async_validate_url("elsewhere.example")):
        with pytest.raises(ValueError, match="fetches nothing"):
            fetched(fetch)


def test_the_hub_is_asked_for_no_history(address: str, called: list[str]) -> None:
    answer = httpx.post(f"{address}/gradio_api/run-history/connect", json={"bucket_id": "a/b"}, timeout=30)
    assert answer.status_code in (404, 405)


def test_a_request_that_cannot_be_looked_through_is_refused(address: str) -> None:
    for body, status in ((b"{", 400), (b"[" * 100_000, 400), (b" " * (5 * 2**20), 413)):
        assert httpx.post(f"{address}/gradio_api/call/ask", content=body, timeout=30).status_code == status


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7860", "127.0.0.1.evil.example", "[::2]", "10.0.0.1"])
def test_a_name_that_is_not_this_machines_is_not_answered(address: str, host: str) -> None:
    assert httpx.get(address, headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:7860"])
def test_names_of_this_machine_are_answered(address: str, host: str) -> None:
    assert httpx.get(address, headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "http://evil.example:7860"])
def test_another_page_may_send_nothing(address: str, origin: str) -> None:
    for path in ("call/ask", "upload", "queue/join"):
        answer = httpx.post(f"{address}/gradio_api/{path}", json={"data": []}, headers={"Origin": origin})
        assert answer.status_code == 403
    own = httpx.post(f"{address}/gradio_api/call/ask", json={"data": ["cat, dog"]}, headers={"Origin": address})
    assert own.status_code == 200


def test_a_server_for_other_machines_answers_to_their_names_for_it() -> None:
    from bayesvlm.app.guard import RefusedError, check_caller, is_local

    assert not is_local("0.0.0.0")
    check_caller("POST", "desk.example:7860", "http://desk.example:7860", local=False)
    with pytest.raises(RefusedError, match="Another page"):
        check_caller("POST", "desk.example:7860", "http://evil.example", local=False)


def test_so_many_are_answered_at_once_whatever_they_ask(
    desk: Any, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gradio_client import Client

    from bayesvlm.app.page import AT_ONCE
    from bayesvlm.core.errors import BayesVLMError

    now, most, lock = 0, 0, threading.Lock()

    def slow(name: str) -> Any:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.5)
        with lock:
            now -= 1
        raise BayesVLMError("that will do")

    monkeypatch.setattr(desk, "asker", slow)
    monkeypatch.setattr(desk, "collection", slow)
    client = Client(address, verbose=False, analytics_enabled=False)
    jobs = [client.submit("cat, dog", api_name="/ask") for _ in range(6)]
    jobs += [client.submit("cat", 3, "expected cosine", api_name="/search") for _ in range(6)]
    for job in jobs:
        assert "that will do" in str(job.result(timeout=60))
    assert most == AT_ONCE


def test_nobody_gets_past_the_queue(address: str) -> None:
    for way in ("run", "api"):
        assert httpx.post(f"{address}/gradio_api/{way}/ask", json={"data": ["cat, dog"]}).status_code == 404
