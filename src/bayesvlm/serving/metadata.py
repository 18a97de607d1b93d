"""What an exported file says of itself: written into its metadata, and checked when it is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self, get_args

from bayesvlm.core.errors import BayesVLMError, first_line

FORMAT = "bayesvlm-export/1"
"""What the entry `format` says; the number grows when a reader of earlier files would go wrong."""

Kind = Literal["model", "head"]

_STRINGS = {"kind", "model", "revision", "loss", "structure", "covariance", "link", "bayesvlm"}
_OPTIONAL = {"templates", "model", "revision", "logit_bias", "tau", "lam", "preprocessing", "opset"}


@dataclass(frozen=True)
class ExportMetadata:
    """Everything that is known of an exported model beside its graph.

    Args:
        kind: "model" takes pixels, "head" what enters the image tower's last linear layer.
        classes: their names, in the order of the outputs' columns.
        templates: the prompts the names were put into; None: the names are the prompts.
        model, revision: the encoder, where it is known.
        loss: "infonce" or "sigmoid".
        temperature, logit_bias: t, and what a sigmoid model adds to t * cosine.
        tau, lam, structure, covariance, link: of the posterior; tau and lam None where they are not known.
        preprocessing: from an image to `pixel_values`; None for a head.
        opset: of ONNX; None for a program of torch.export.
        bayesvlm: the version that wrote the file.
    """

    kind: Kind
    classes: tuple[str, ...]
    templates: tuple[str, ...] | None
    model: str | None
    revision: str | None
    loss: str
    temperature: float
    logit_bias: float | None
    tau: float | None
    lam: Mapping[str, float] | None
    structure: str
    covariance: str
    link: str
    preprocessing: Mapping[str, Any] | None
    opset: int | None
    bayesvlm: str

    def as_json(self) -> dict[str, Any]:
        """What is known, by name."""
        found = {"format": FORMAT, **asdict(self), "classes_sha256": sha256(self.classes)}
        return {name: value for name, value in found.items() if value is not None}

    def entries(self) -> dict[str, str]:
        """The same as strings: json, but for what is a string already."""
        return {name: _entry(value) for name, value in self.as_json().items()}

    @classmethod
    def read(cls, entries: Mapping[str, str], path: Path) -> Self:
        """From a file's entries.

        Raises:
            BayesVLMError: where they are of something else, of a format not known here, incomplete or changed.
        """
        written = entries.get("format", "")
        if written.partition("/")[0] != FORMAT.partition("/")[0]:
            raise BayesVLMError(
                f"{path} was not written by `bayesvlm export`: its metadata says format {written or 'nothing'!r}, "
                f"expected {FORMAT!r}; export it again."
            )
        if written != FORMAT:
            raise BayesVLMError(
                f"{path} has format {written!r}, and this version of bayesvlm reads {FORMAT!r}; upgrade bayesvlm, or "
                "export it again."
            )
        found = {field.name: _value(field.name, entries, path) for field in fields(cls)}
        if found["kind"] not in get_args(Kind):
            raise _wrong(path, f"kind is {found['kind']!r}")
        if found["kind"] == "model" and found["preprocessing"] is None:
            raise _wrong(path, "'preprocessing' is missing")
        classes, digest = found["classes"], entries.get("classes_sha256", "")
        if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
            raise _wrong(path, "'classes' is no list of names")
        if sha256(classes) != digest:
            raise BayesVLMError(
                f"{path} lists {len(classes)} classes that are not those it was exported with (sha256 "
                f"{sha256(classes)[:12]}... against {digest[:12]}...); export it again for the classes you want."
            )
        templates = found["templates"]
        return cls(**{**found, "classes": tuple(classes), "templates": templates and tuple(templates)})

    def check_classes(self, classes: Sequence[str], path: Path) -> None:
        """Refuse a class list that is not the one exported, name by name and in order."""
        if isinstance(classes, str):
            raise BayesVLMError(f"classes={classes!r}; it must be the list of names that the file was exported with.")
        given = tuple(classes)
        if given == self.classes:
            return
        pairs = enumerate(zip(given, self.classes, strict=False))
        first = next((place for place, (name, kept) in pairs if name != kept), None)
        differs = (
            f"classes[{first}] is {given[first]!r} and was {self.classes[first]!r}"
            if first is not None
            else "the others are the same"
        )
        raise BayesVLMError(
            f"The class list changed after {path} was exported: it has {len(given)} classes and the file "
            f"{len(self.classes)}, {differs}; export again for the new list."
        )


def sha256(classes: Sequence[str]) -> str:
    """Of a class list: of its names in order, as json in UTF-8."""
    return hashlib.sha256(json.dumps(list(classes), ensure_ascii=False).encode()).hexdigest()


def _entry(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _value(name: str, entries: Mapping[str, str], path: Path) -> Any:
    """An entry as it was before `entries`."""
    if name not in entries and name in _OPTIONAL:
        return None
    if name not in entries:
        raise _wrong(path, f"{name!r} is missing")
    if name in _STRINGS:
        return entries[name]
    try:
        return json.loads(entries[name])
    except ValueError as error:
        raise _wrong(path, f"{name!r} is no json ({first_line(error)})") from None


def _wrong(path: Path, what: str) -> BayesVLMError:
    return BayesVLMError(f"{path} has wrong metadata: {what}; export it again.")
