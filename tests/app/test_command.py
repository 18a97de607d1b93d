"""`bayesvlm app`, from the command line."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bayesvlm.app import found
from bayesvlm.app.found import hits_html, of_index
from bayesvlm.core.errors import BayesVLMError


def _refused(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "bayesvlm", "app", *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


def test_help_imports_neither_torch_nor_gradio() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from bayesvlm.cli import app\n"
        "result = CliRunner().invoke(app, ['app', '--help'])\n"
        "assert result.exit_code == 0 and '--index' in result.output, result.output\n"
        "assert not {'torch', 'gradio'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_model_that_is_not_here_is_a_sentence_and_asks_no_hub() -> None:
    said = _refused("no-such/model")
    assert "The model of 'no-such/model' is not on this machine, and the page fetches nothing" in said
    assert "HF_HUB_OFFLINE" not in said  # which the command sets itself


def test_a_port_that_is_taken_is_a_sentence() -> None:
    pytest.importorskip("gradio", reason="the page needs Gradio: pip install 'bayesvlm[app]'")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = _refused("emoji-clip", "--port", str(port))
    assert f"The page cannot listen on 127.0.0.1:{port}" in said
    assert "load" not in said  # no model was


def test_another_machines_address_is_a_sentence() -> None:
    pytest.importorskip("gradio", reason="the page needs Gradio: pip install 'bayesvlm[app]'")
    assert "The page cannot listen on 192.0.2.1:7860" in _refused("emoji-clip", "--host", "192.0.2.1")


def test_a_page_searches_an_index_of_ones_own(desk: Any, tmp_path: Path) -> None:
    from bayesvlm.retrieval import Index

    drawings, folder = found.drawings("validation")[:12], tmp_path / "photos"
    folder.mkdir()
    for place, each in enumerate(drawings):
        (folder / f"{place}.webp").write_bytes(each.image)
    paths = sorted(folder.iterdir())
    Index.create(tmp_path / "index", desk.models("emoji-clip").vlm).add(paths, progress=False)
    collection = of_index(tmp_path / "index", "cpu")
    hits = collection.search("star-struck", 3)
    assert hits.matches is None
    html = hits_html(hits, collection)
    assert html.count("data:image/png") == 3
    assert "not calibrated" in html
    Path(hits[0].path or "").unlink()
    assert "is not where it was" in hits_html(hits, collection)
    with pytest.raises(BayesVLMError, match="no-index"):
        of_index(tmp_path / "no-index")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other ways to end a process")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_the_page_is_ended(tmp_path: Path, number: int) -> None:
    """Though somebody looks at it: their page is told, so that the server need not wait for it."""
    pytest.importorskip("gradio", reason="the page needs Gradio: pip install 'bayesvlm[app]'")
    pytest.importorskip("lancedb", reason="the tab Search needs LanceDB: pip install 'bayesvlm[retrieval]'")
    httpx = pytest.importorskip("httpx")
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    environment.pop("GRADIO_TEMP_DIR", None)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "bayesvlm", "app", "emoji-clip", "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stderr is not None
            assert any(line.startswith("page") for line in server.stderr)
            files = {"files": ("x.png", b"not much of a picture")}
            httpx.post(f"http://127.0.0.1:{port}/gradio_api/upload", files=files, timeout=60).raise_for_status()
            end = time.monotonic() + 60
            while len(list(tmp_path.glob("bayesvlm-app-*"))) < 2:  # uploads, and the index that is being made
                assert time.monotonic() < end
                time.sleep(0.1)
            assert any(tmp_path.glob("bayesvlm-app-*/*/x.png"))
            with httpx.stream("GET", f"http://127.0.0.1:{port}/gradio_api/heartbeat/somebody") as heartbeat:
                next(heartbeat.iter_text())
                server.send_signal(number)
                said = server.stderr.read()
                assert server.wait(120) == 0
        finally:
            server.kill()
    assert "Traceback" not in said
    assert ("ending" in said) == (number == signal.SIGINT)
    assert not [each for each in tmp_path.rglob("*") if "bayesvlm" in each.name or "gradio" in str(each)]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other ways to end a process")
def test_a_terminal_that_is_closed_ends_it_too() -> None:
    from bayesvlm.app.ending import tidy_end

    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup has the tests ignore
    try:
        with tidy_end(), pytest.raises(SystemExit, match="0"):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_that_is_ignored_still_is() -> None:
    from bayesvlm.app.ending import tidy_end

    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with tidy_end():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
