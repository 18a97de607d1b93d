"""Which models a visitor may open, and that a name is no way to other files."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bayesvlm.app.models import Models, Recent
from bayesvlm.core.errors import BayesVLMError


def test_those_that_were_named_and_folders_below_the_roots_are_opened(desk: Any, saved: Path) -> None:
    assert desk.models("emoji-clip") is desk.models("emoji-clip")
    assert desk.models("wide").vlm.tau == desk.models(str(saved / "wide")).vlm.tau == 2.0


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "../posteriors",
        "/etc",
        "/",
        "no-such",
        "empty",
        "wide\0",
        "openai/clip-vit-base-patch32",
        "~",
        "a" * 3000,
    ],
)
def test_everything_else_is_refused(desk: Any, name: str) -> None:
    with pytest.raises(BayesVLMError, match=r"is no folder below|holds no saved posterior|is none"):
        desk.models(name)


def test_a_link_out_of_the_root_is_refused(desk: Any, saved: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    desk.models("emoji-clip").vlm.save_pretrained(elsewhere)
    (saved / "link").symlink_to(elsewhere)
    try:
        with pytest.raises(BayesVLMError, match="is no folder below"):
            desk.models("link")
    finally:
        (saved / "link").unlink()


def test_without_roots_only_names_are_opened(desk: Any, saved: Path) -> None:
    models = Models.__new__(Models)
    models.names, models.roots = ("emoji-clip",), ()
    models._open = Recent(1, desk.models)
    with pytest.raises(BayesVLMError, match="not among the models of this page: emoji-clip"):
        models(str(saved / "wide"))


def test_the_recent_ones_are_kept_and_made_once() -> None:
    made: list[int] = []
    recent: Recent[int, int] = Recent(2, lambda key: made.append(key) or key)
    threads = [threading.Thread(target=recent, args=(1,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]
    for key in (2, 1, 3, 1, 2):  # 2 was used longest ago when 3 came
        recent(key)
    assert made == [1, 2, 3, 2]


def test_who_asks_for_something_else_does_not_wait() -> None:
    going, made = threading.Event(), threading.Event()

    def make(key: str) -> str:
        if key == "slow":
            going.set()
            assert made.wait(30)
        return key.upper()

    recent: Recent[str, str] = Recent(2, make)
    recent("kept")
    with ThreadPoolExecutor() as pool:
        slow = [pool.submit(recent, "slow") for _ in range(3)]
        assert going.wait(30)
        assert pool.submit(recent, "kept").result(timeout=30) == "KEPT"
        assert pool.submit(recent, "other").result(timeout=30) == "OTHER"
        assert not any(each.done() for each in slow)
        made.set()
        assert [each.result(timeout=30) for each in slow] == ["SLOW"] * 3


def test_what_failed_is_tried_again() -> None:
    tries: list[int] = []

    def make(key: int) -> int:
        tries.append(key)
        if len(tries) == 1:
            raise BayesVLMError("not yet")
        return key

    recent: Recent[int, int] = Recent(2, make)
    with pytest.raises(BayesVLMError, match="not yet"):
        recent(1)
    assert recent(1) == recent(1) == 1
    assert tries == [1, 1]


def test_however_a_folder_is_typed_it_is_one_model(desk: Any, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = ["wide", "./wide", "wide/", " wide ", "empty/../wide", str(saved / "wide")]
    assert {desk.models.resolved(name) for name in typed} == {str((saved / "wide").resolve())}
    first = desk.asker("wide")
    assert all(desk.asker(name) is first for name in typed)
    monkeypatch.setattr(desk.models, "names", (*desk.models.names, str(saved / "wide") + "/"))
    assert desk.models.resolved("./wide") == str(saved / "wide") + "/"


def test_a_model_that_is_listed_is_known_by_its_name(desk: Any) -> None:
    assert desk.models.resolved(" emoji-clip ") == "emoji-clip"
