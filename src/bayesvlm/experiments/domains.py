"""Labelled sets that show the same classes in different ways, as domains: the paper's, and folders of your own."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError, check_choice
from bayesvlm.data import resolve
from bayesvlm.data.labelled import set_prompts
from bayesvlm.data.names import DataName, data_root
from bayesvlm.experiments.adaptation import BUDGETS, Labelled, Task
from bayesvlm.experiments.feature_store import EncodedSet, FeatureStore
from bayesvlm.prompts import Templates

PARTS = {"target": (0,), "validation": (1,), "pool": (2, 3, 4)}
"""Fifths of a domain, by a hash of the image's key: these sets come without a split of their own."""


@dataclass(frozen=True)
class Domains:
    """Sets of the same classes.

    Args:
        name: what they are together.
        sets: domain -> a name that `resolve` takes; the pool has images of all of them.
        targets: the domains to get better at, where none is named.
        budgets: numbers of labels.
    """

    name: str
    sets: Mapping[str, str]
    targets: tuple[str, ...]
    budgets: tuple[int, ...] = BUDGETS


COLLECTIONS = {
    "officehome": Domains(
        "officehome",
        {name: f"officehome:{name}" for name in ("Art", "Clipart", "Product", "RealWorld")},
        ("Art", "Clipart", "Product"),
    ),
    "imagenet-variants": Domains(
        "imagenet-variants", {"R": "imagenet-r", "Sketch": "imagenet-sketch"}, ("R", "Sketch"), (*BUDGETS, 500)
    ),
}
"""The paper's."""


def find_domains(name: str, root: str | Path | None = None) -> Domains:
    """One of `COLLECTIONS`, or a folder whose subfolders are domains with class folders of images.

    Args:
        name: of the collection, or of the folder: here, or below `root`.
        root: the folder of the data sets; see `resolve`.
    """
    if name in COLLECTIONS:
        return COLLECTIONS[name]
    folder = DataName(name, name).local(data_root(root))
    if folder is None or not folder.is_dir():
        known = ", ".join(COLLECTIONS)
        raise BayesVLMError(f"{name!r} is neither one of world, {known} nor a folder of domains; give one of these.")
    inside = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(inside) < 2:
        raise BayesVLMError(
            f"{name} has {len(inside)} subfolders; two domains or more are needed, each with class folders of images."
        )
    paths = {path.name: path.as_posix() if path.is_absolute() else f"./{path.as_posix()}" for path in inside}
    return Domains(folder.resolve().name, paths, tuple(paths))


def domain_task(
    encoder: FeatureStore,
    domains: Domains,
    target: str,
    *,
    root: str | Path | None = None,
    templates: Templates | None = None,
    strict: bool = False,
) -> Task:
    """Get better at one of the domains, with labels from all of them.

    A fifth of the target's domain is the target, a fifth of it is for validation; the pool is three fifths of every
    domain, less what shows none of the target's classes.

    Args:
        target: one of the domains.
        root: the folder of the known data sets; see `resolve`.
        templates: prompts with {c} for the class, or "all" of the set's; None takes its first.
        strict: stop at the first image that cannot be read.
    """
    check_choice("target", target, tuple(domains.sets))
    opened = {name: resolve(of, root=root).open(strict=strict) for name, of in domains.sets.items()}
    encoded = {name: encoder.images(data) for name, data in opened.items()}
    classes = opened[target].classes
    place = {name: index for index, name in enumerate(classes)}
    pool, origins = [], []
    for name, data in opened.items():
        known = torch.tensor([place.get(label, -1) for label in data.classes])
        chosen = _part(encoded[name], "pool", known)
        pool.append(chosen)
        origins += [name] * len(chosen)
    same = torch.arange(len(classes))
    aimed, held = (_part(encoded[target], part, same) for part in ("target", "validation"))
    if not (len(aimed) and len(held)):
        raise BayesVLMError(
            f"The domain {target!r} has {len(encoded[target].keys)} images, of which {len(aimed)} fall to the target "
            f"and {len(held)} to validation; both need some, so give a larger one."
        )
    texts = encoder.classes(set_prompts(opened[target], templates))
    skipped = {f"{name}/{key}": why for name, each in encoded.items() for key, why in each.skipped.items()}
    return Task(f"{domains.name}/{target}", Labelled.concatenate(pool), aimed, held, texts, tuple(origins), skipped)


def _part(data: EncodedSet, part: str, place: Tensor) -> Labelled:
    """The images of a part, with `place[label]` for their labels; those with -1 are left out."""
    labels = place[data.labels]
    inside = [row for row, key in enumerate(data.keys) if _fifth(key) in PARTS[part] and labels[row] >= 0]
    return Labelled(data.features[inside], labels[inside])


def _fifth(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4]) % 5
