"""Commands that other distributions bring: there, missing, or broken."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from bayesvlm import BayesVLMError
from bayesvlm.cli import installed


def app_with(monkeypatch: pytest.MonkeyPatch, *entries: EntryPoint) -> typer.Typer:
    monkeypatch.setattr(installed, "entry_points", lambda group: [e for e in entries if e.group == group])
    app = typer.Typer(rich_markup_mode="markdown")
    app.command("fit")(lambda: print("fitted"))
    installed.add_installed(app)
    return app


def entry(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, "bayesvlm.commands")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two packages of other people: one works, one needs what is not there."""
    (tmp_path / "other_people.py").write_text('def greet() -> None:\n    """Greet."""\n    print("hello")\n')
    (tmp_path / "broken_people.py").write_text("import no_such_package\n\ndef greet() -> None: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("elsewhere")
def test_a_command_of_other_people(monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_with(monkeypatch, entry("greet", "other_people:greet"))
    assert CliRunner().invoke(app, ["greet"]).output == "hello\n"


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("value", ["broken_people:greet", "no_such_module:greet", "other_people:farewell"])
def test_a_broken_one_says_so_and_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    app = app_with(monkeypatch, entry("broken", value), entry("greet", "other_people:greet"))
    help_page = CliRunner().invoke(app, ["--help"])
    assert help_page.exit_code == 0
    words = " ".join(help_page.output.replace("│", " ").replace("`", "").split())
    assert f"bayesvlm broken comes with {value.partition(':')[0]}, which cannot be imported" in words
    assert CliRunner().invoke(app, ["greet"]).output == "hello\n"
    assert CliRunner().invoke(app, ["fit"]).output == "fitted\n"
    for call in (["broken"], ["broken", "a", "--b", "c"], ["broken", "--help"]):
        error = CliRunner().invoke(app, call).exception
        assert isinstance(error, BayesVLMError)
        assert "Error: " in str(error)
        assert str(error).endswith("; install it again or remove it.")
        assert "\n" not in str(error)


@pytest.mark.parametrize("words", [[], ["table1"], ["--help"], ["--list", "-o", "x"]])
def test_reproduce_says_what_to_install(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    app = app_with(monkeypatch)
    assert "reproduce" not in CliRunner().invoke(app, ["--help"]).output
    error = CliRunner().invoke(app, ["reproduce", *words]).exception
    assert isinstance(error, BayesVLMError)
    assert str(error) == (
        "`bayesvlm reproduce` comes with a distribution of its own, which is not installed: "
        "`pip install 'bayesvlm[paper]'`."
    )
