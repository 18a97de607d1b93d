"""config.json of a model that `PyTorchModelHubMixin` saved: the arguments of its authors' constructor, checked.

Every entry is either understood, known to change nothing, or refused: an entry passed over in silence would be another
architecture under the same weights.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bayesvlm.core.errors import BayesVLMError, first_line

Cleaning = Literal["canonicalize", "lower", "whitespace"]


@dataclass(frozen=True)
class TowerShape:
    """One transformer.

    Attributes:
        eps: of its layer norms.
        unc_layers: how many of its blocks have a parallel one for the log variance; ProLIP has none.
    """

    width: int
    layers: int
    heads: int
    mlp_ratio: float
    eps: float = 1e-5
    unc_layers: int = 0


@dataclass(frozen=True)
class TokenSource:
    """Where the authors take their tokenizer from, and what they do with texts around it.

    Attributes:
        repository: on the Hub; None where neither config.json nor the vocabulary says which.
        cleaning: what is done to a text first.
        zero_padded: texts are filled up with token 0, whatever the tokenizer would use.
    """

    repository: str | None
    cleaning: Cleaning
    zero_padded: bool


@dataclass(frozen=True)
class Configuration:
    """What both families are built from."""

    embed_dim: int
    quick_gelu: bool
    image: TowerShape
    image_size: int
    patch_size: int
    text: TowerShape
    context_length: int
    vocab_size: int
    tokens: TokenSource

    @property
    def patches(self) -> int:
        return (self.image_size // self.patch_size) ** 2


class Entries:
    """The entries of one section of config.json; each is taken once, and what is left over is refused."""

    def __init__(self, content: dict[str, Any], path: Path, section: str = "") -> None:
        self._left, self._path, self._section = dict(content), path, section

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1; required where there is no default."""
        value = self._left.pop(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.wrong(name, value, "a whole number of at least 1")
        return value

    def number(self, name: str, default: float) -> float:
        """A number above zero."""
        value = self._left.pop(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.wrong(name, value, "a number above zero")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or False."""
        value = self._left.pop(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def text(self, name: str) -> str | None:
        """A word, or None where there is none."""
        value = self._left.pop(name, None)
        if value is not None and not isinstance(value, str):
            raise self.wrong(name, value, "a string")
        return value

    def section(self, name: str, optional: bool = False) -> Entries:
        """The entries under `name`."""
        value = self._left.pop(name, None)
        if value is None and optional:
            value = {}
        if not isinstance(value, dict):
            raise self.wrong(name, value, "an object")
        return Entries(value, self._path, f"{self._section}{name}.")

    def fixed(self, **expected: object) -> None:
        """Entries that are left out, or say what every published model says."""
        for name, only in expected.items():
            value = self._left.pop(name, only)
            if value != only or type(value) is not type(only):
                raise self.wrong(name, value, f"{json.dumps(only)}, as in every published model")

    def ignored(self, *names: str) -> None:
        """Entries that say how a model is initialised or trained, or that its authors' constructor does not use."""
        for name in names:
            self._left.pop(name, None)

    def finish(self) -> None:
        """Refuse the first entry that nobody took."""
        for name, value in self._left.items():
            raise BayesVLMError(
                f"{str(self._path)!r} has an entry {self._section}{name}={value!r}, which no published model of this "
                "family has; fetch config.json again, or remove the entry if it changes nothing."
            )

    def wrong(self, name: str, value: object, expected: str) -> BayesVLMError:
        """The error for an entry that is not as expected."""
        return BayesVLMError(
            f"{str(self._path)!r} says {self._section}{name} is {json.dumps(value)}; expected {expected}: "
            "fetch config.json again from where the model was published."
        )


def heads_of(entries: Entries, width: int, heads: int) -> int:
    """The number of heads, if the width divides among them."""
    if heads < 1 or width % heads:
        raise entries.wrong("width", width, f"a multiple of its {heads} heads")
    return heads


def read_entries(folder: Path) -> Entries:
    """config.json of the folder."""
    path = folder / "config.json"
    if not path.is_file():
        raise BayesVLMError(f"The folder {str(folder)!r} holds no config.json; pass the folder of a saved model.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BayesVLMError(f"{str(path)!r} is not a JSON object ({first_line(error)}); fetch it again.") from error
    if not isinstance(content, dict):
        raise BayesVLMError(f"{str(path)!r} is not a JSON object but a {type(content).__name__}; fetch it again.")
    return Entries(content, path)
