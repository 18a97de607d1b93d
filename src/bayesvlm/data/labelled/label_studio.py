"""What Label Studio exports of a project of image classification: its tasks, their annotations, its addresses.

JSON        [{"data": {"image": ...}, "annotations": [{"result": [{"type": "choices", "value": {"choices": [...]}}]}]}]
JSON-MIN    [{"image": ..., "NAME": ..., "annotator": ...}]     NAME is that of the <Choices> tag
CSV         the columns of JSON-MIN, a row per annotation
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, unquote_plus

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.rows import as_mappings, find_column

CANCELLED = "was_cancelled"
"""The column of an annotation that somebody skipped; its choice does not count."""
LABEL = "label"

_EXPECTED = "expected the tasks of Label Studio, as it exports them in JSON or JSON-MIN"
_LOCAL = re.compile(r"(?:\w+://[^/]+)?/?data/local-files/\?d=(?P<path>[^&]+)")
_UPLOAD = re.compile(r"(?:\w+://[^/]+)?/?(?:data/)?upload/\d+/(?P<name>[^/]+)")
_UPLOAD_PREFIX = re.compile(r"[0-9a-f]{8}-(?=.)")


def task_rows(content: object, file: Path, image_columns: Sequence[str], label_columns: Sequence[str]) -> list[Any]:
    """A row per annotation of Label Studio's JSON, and of a task nobody has annotated; JSON-MIN as it is.

    Args:
        content: what the file holds.
        file: what errors call it.
        image_columns: what the image may be called in a task's data.
        label_columns: what the tag that gives the label may be called, where a task has several.
    """
    tasks = as_mappings(content, file, _EXPECTED)
    if not any("data" in task for task in tasks):
        return list(tasks)
    tags = list(
        dict.fromkeys(tag for number, task in enumerate(tasks, 1) for _, tag, _ in _choices(task, file, number))
    )
    tag = tags[0] if len(tags) == 1 else find_column(tags, label_columns)
    if tags and tag is None:
        raise BayesVLMError(
            f"{file} has choices called {', '.join(map(repr, tags))}; call the one that gives the label "
            f"{LABEL!r} in Label Studio's labelling interface."
        )
    rows: list[dict[str, Any]] = []
    for number, task in enumerate(tasks, start=1):
        data = task.get("data")
        if not isinstance(data, dict) or find_column(list(data), image_columns) is None:
            raise BayesVLMError(
                f"{file}, task {number} has no image in its data; expected one called {' or '.join(image_columns)}."
            )
        kept = {name: value for name, value in data.items() if name not in label_columns}
        chosen = [(annotation, value) for annotation, of, value in _choices(task, file, number) if of == tag]
        truth = [(annotation, value) for annotation, value in chosen if annotation.get("ground_truth")]
        labels = [value for _, value in truth or chosen]
        rows += [{**kept, LABEL: label} for label in labels or [None]]
    return rows


def _choices(task: Mapping[str, Any], file: Path, number: int) -> Iterator[tuple[Mapping[str, Any], str, object]]:
    """Every annotation that was not skipped, the tags of its choices, and what was chosen."""
    where = f"{file}, task {number}"
    annotations = task.get("annotations", task.get("completions")) or []
    for annotation in as_mappings(annotations, f"{where}: its annotations", _EXPECTED):
        if annotation.get(CANCELLED) or annotation.get("skipped"):
            continue
        for result in as_mappings(annotation.get("result") or [], f"{where}: an annotation's result", _EXPECTED):
            value = result.get("value")
            if isinstance(value, dict) and "choices" in value:
                yield annotation, str(result.get("from_name", LABEL)), value["choices"]


def chosen_label(value: object) -> object:
    """A label out of the ways in which choices are written: a list, {"choices": [...]}, and json of either.

    >>> chosen_label('{"choices": ["cat", "dog"]}'), chosen_label(["cat"]), chosen_label("cat")
    (['cat', 'dog'], 'cat', 'cat')
    """
    if isinstance(value, str) and value.startswith(('{"choices"', "[")):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return value
    if isinstance(value, dict) and isinstance(value.get("choices"), list):
        value = value["choices"]
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def places_of(image: str) -> tuple[str, ...]:
    """Where an image may lie that Label Studio serves: of its local storage, and of files uploaded to it.

    >>> places_of("/data/local-files/?d=photos/a%20cat.jpg")
    ('photos/a cat.jpg', '/photos/a cat.jpg')
    >>> places_of("/data/upload/3/0a1b2c3d-cat.jpg")
    ('cat.jpg', '0a1b2c3d-cat.jpg')
    >>> places_of("photos/cat.jpg")
    ('photos/cat.jpg',)
    """
    if found := _LOCAL.fullmatch(image):
        paths = dict.fromkeys((unquote(found["path"]), unquote_plus(found["path"])))
        return tuple(place for path in paths for place in (path, f"/{path.lstrip('/')}"))
    if found := _UPLOAD.fullmatch(image):
        name = unquote(found["name"])
        return tuple(dict.fromkeys((_UPLOAD_PREFIX.sub("", name), name)))
    return (image,)
