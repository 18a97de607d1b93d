"""Three distributions, one version: each asks for exactly that of the others."""

from __future__ import annotations

import re
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"bayesvlm": ".", "bayesvlm-world": "world", "bayesvlm-paper": "paper"}


def project(name: str) -> dict[str, Any]:
    found = tomllib.loads((ROOT / FOLDERS[name] / "pyproject.toml").read_text())["project"]
    assert found["name"] == name
    return found


VERSION = project("bayesvlm")["version"]


@pytest.mark.parametrize("name", FOLDERS)
def test_all_have_the_same_version(name: str) -> None:
    found = project(name)
    assert found["version"] == VERSION
    wanted = [*chain(found["dependencies"], *found.get("optional-dependencies", {}).values())]
    ours = [words for words in wanted if re.match(r"bayesvlm[-\[=<>]", words)]
    others = [words for words in ours if not words.startswith("bayesvlm[") or name != "bayesvlm"]
    assert others, "each asks for another"
    assert {words.partition("==")[2] for words in others} == {VERSION}, others


def test_the_extras_of_the_library_are_the_other_two() -> None:
    extras = project("bayesvlm")["optional-dependencies"]
    assert extras["world"] == [f"bayesvlm-world=={VERSION}"]
    assert extras["paper"] == [f"bayesvlm-paper=={VERSION}"]


def test_all_run_on_the_same_pythons() -> None:
    assert len({project(name)["requires-python"] for name in FOLDERS}) == 1


def test_licences_are_of_what_is_inside() -> None:
    assert project("bayesvlm")["license"] == project("bayesvlm-paper")["license"] == "MIT"
    artwork = (ROOT / "world/src/bayesvlm_world/data/LICENSES.md").read_text()
    for licence in ("Apache", "CC BY 4.0", "CC BY-SA 4.0"):
        assert licence in artwork
    assert project("bayesvlm-world")["license"] == "MIT AND Apache-2.0 AND CC-BY-4.0 AND CC-BY-SA-4.0"
    assert {(ROOT / folder / "LICENSE").read_text() for folder in FOLDERS.values()} == {(ROOT / "LICENSE").read_text()}
