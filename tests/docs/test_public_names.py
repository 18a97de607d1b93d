"""Every public name is on a page of the API reference, says what it is, and explains no argument that it lacks."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import bayesvlm
import bayesvlm_world

ROOT = Path(__file__).parents[2]
API = ROOT / "docs" / "api"
DIRECTIVE = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
ON_OTHER_PAGES = {"bayesvlm.world"}
"""A module, which has a page of its own."""
SECTIONS = {"Args:", "Attributes:", "Example:", "Examples:", "Raises:", "Returns:", "Yields:"}
"""What docstrings may be divided by, as docs/site/docstrings.py and griffe read them."""


def public_modules() -> Iterator[ModuleType]:
    """Every module that lists its public names."""
    for root in (bayesvlm, bayesvlm_world):
        names = [root.__name__, *(m.name for m in pkgutil.walk_packages(root.__path__, root.__name__ + "."))]
        for name in names:
            source = ROOT / ("src" if name.startswith("bayesvlm.") or name == "bayesvlm" else "world/src")
            path = source.joinpath(*name.split("."))
            init = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            if "__all__" in init.read_text(encoding="utf-8"):
                yield importlib.import_module(name)


PUBLIC = {f"{m.__name__}.{name}": getattr(m, name) for m in public_modules() for name in m.__all__}
DOCUMENTED = [name for page in sorted(API.glob("*.md")) for name in DIRECTIVE.findall(page.read_text(encoding="utf-8"))]


def found(name: str) -> Any:
    """What a dotted name stands for."""
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def home(name: str, value: Any) -> str:
    """Where a class or function is defined, which several packages may give; a value is where it is named."""
    return f"{value.__module__}.{value.__qualname__}" if inspect.isclass(value) or inspect.isfunction(value) else name


def own_doc(value: Any) -> str:
    """A docstring that somebody wrote: not one that a parent or `dataclass` gives."""
    text = inspect.cleandoc(vars(value).get("__doc__") or "" if inspect.isclass(value) else value.__doc__ or "")
    return "" if text.startswith(f"{value.__name__}(") else text


def test_there_are_as_many_as_expected() -> None:
    """A walk that finds nothing would let everything pass."""
    assert len(PUBLIC) > 150
    assert {"bayesvlm.BayesVLM", "bayesvlm.safety.Detector", "bayesvlm.evaluation.ece"} <= set(PUBLIC)


def test_every_public_name_is_on_a_page() -> None:
    pages = {home(name, found(name)) for name in DOCUMENTED}
    missing = [n for n, value in PUBLIC.items() if home(n, value) not in pages and n not in ON_OTHER_PAGES]
    assert not missing, f"add to docs/api/: {missing}"


def test_no_name_has_two_places() -> None:
    homes = [home(name, found(name)) for name in DOCUMENTED]
    assert len(set(homes)) == len(homes), sorted({one for one in homes if homes.count(one) > 1})


def test_every_public_name_has_a_docstring() -> None:
    griffe = pytest.importorskip("griffe", reason="reads docstrings of values; comes with mkdocstrings")
    loaded = {
        name: griffe.load(name, search_paths=[str(ROOT / "src"), str(ROOT / "world/src")])
        for name in ("bayesvlm", "bayesvlm_world")
    }
    silent = []
    for name in {*PUBLIC, *DOCUMENTED} - ON_OTHER_PAGES:
        package, _, rest = name.partition(".")
        value = found(name)
        written = (
            own_doc(value) if inspect.isclass(value) or inspect.isfunction(value) else loaded[package][rest].docstring
        )
        if not written:
            silent.append(name)
    assert not silent, f"say what they are: {sorted(silent)}"


def explained(doc: str) -> set[str]:
    """The arguments that a docstring explains, one by one or several together.

    >>> sorted(explained("Adds.\\n\\nArgs:\\n    a, b: numbers\\n    **rest: more\\n"))
    ['a', 'b', 'rest']
    """
    section = re.search(r"^Args:\n((?:    .*\n?|\n)*)", inspect.cleandoc(doc), re.MULTILINE)
    lines = section.group(1).splitlines() if section else []
    entries = [m.group(1) for line in lines if (m := re.match(r"    ([*\w][*\w, ]*):", line))]
    return {name.strip().lstrip("*") for entry in entries for name in entry.split(",")}


def pseudo_sections(doc: str) -> list[str]:
    """Lines that look like the heading of a section, with more indented below, and are none that the reference knows.

    >>> pseudo_sections("Adds.\\n\\nArguments, in order:\\n    a: a number\\n\\nArgs:\\n    b: another\\n")
    ['Arguments, in order:']
    """
    found = re.findall(r"^(?!>)(\S.*:)\n(?=    \w+(?:, \w+)*: )", inspect.cleandoc(doc), re.MULTILINE)
    return [line for line in found if line not in SECTIONS]


def callables() -> Iterator[tuple[str, Any, str]]:
    """Name, what is called and its docstring: public functions, classes and their public methods."""
    for name in DOCUMENTED:
        value = found(name)
        if inspect.isfunction(value) or inspect.isclass(value):
            yield name, value, own_doc(value)
        if inspect.isclass(value):
            for key, member in vars(value).items():
                method = getattr(member, "__func__", member)
                if not key.startswith("_") and inspect.isfunction(method):
                    yield f"{name}.{key}", method, method.__doc__ or ""


def test_sections_of_docstrings_are_sections() -> None:
    """A heading of another wording runs together with all that is below it, in one paragraph of the page."""
    docs = {name: own_doc(found(name)) for name in DOCUMENTED if inspect.isclass(found(name))}
    docs |= {name: doc for name, _, doc in callables()}
    wrong = {name: sections for name, doc in docs.items() if (sections := pseudo_sections(doc))}
    assert not wrong


def test_docstrings_explain_arguments_that_there_are() -> None:
    wrong = {}
    for name, value, doc in callables():
        try:
            arguments = set(inspect.signature(value).parameters)
        except ValueError:  # an enumeration or a protocol: nothing is called
            continue
        if "args" in arguments and inspect.isclass(value):  # `__new__` of a parent: its fields are annotated
            continue
        unknown = explained(doc) - arguments
        if unknown:
            wrong[name] = unknown
    assert not wrong
