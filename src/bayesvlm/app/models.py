"""The posteriors that the page may open, and what is kept of each while it is open."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Generic, TypeVar

from huggingface_hub.errors import LocalEntryNotFoundError

from bayesvlm.artifacts.saved import is_posterior
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.embedded import MODELS
from bayesvlm.vlm import BayesVLM

Key = TypeVar("Key", bound=Hashable)
Made = TypeVar("Made")

OPEN = 3
"""Models that are kept in memory at once."""
KEPT = 64
"""Class lists whose encoding is kept per model."""


class Recent(Generic[Key, Made]):
    """What was made for the keys that were asked for last; it is made once, whoever asks at the same time.

    Who asks for something else meanwhile does not wait for it.
    """

    def __init__(self, size: int, make: Callable[[Key], Made]) -> None:
        self._size, self._make = size, make
        self._kept: OrderedDict[Key, Made] = OrderedDict()
        self._begun: dict[Key, Future[Made]] = {}
        self._lock = threading.Lock()

    def __call__(self, key: Key) -> Made:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            begun = self._begun.get(key)
            if begun is None:
                self._begun[key] = own = Future[Made]()
        return self._made(key, own) if begun is None else begun.result()

    def _made(self, key: Key, own: Future[Made]) -> Made:
        try:
            made = self._make(key)
        except BaseException as error:
            with self._lock:
                del self._begun[key]  # who asks later tries again
            own.set_exception(error)
            raise
        with self._lock:
            del self._begun[key]
            self._kept[key] = made
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)
        own.set_result(made)
        return made


class Opened:
    """A model that is open: shared by all visitors, who change nothing about it.

    Attributes:
        name: as it was asked for.
        vlm: the model with its posterior.
        texts: features of a list of texts, the recent ones kept.
    """

    def __init__(self, name: str, vlm: BayesVLM) -> None:
        self.name, self.vlm = name, vlm
        self.texts: Recent[tuple[str, ...], Features] = Recent(KEPT, self._encoded)

    def _encoded(self, texts: tuple[str, ...]) -> Features:
        return self.vlm.class_features(texts)


class Models:
    """Posteriors by name: those that were named when the page was started, and folders below some folders.

    Nothing else can be opened from the page: a visitor types names, and a name is no path to anywhere.

    Args:
        names: folders, or embedded models; the first is open from the start.
        roots: posteriors in folders below these may be named on the page.
        device: to compute on.
    """

    def __init__(self, names: Sequence[str], roots: Sequence[Path] = (), device: str | None = None) -> None:
        if not names:
            raise BayesVLMError("There is no model to show; name a posterior's folder or an embedded model.")
        self.names = tuple(dict.fromkeys(names))
        self.roots = tuple(Path(root).resolve() for root in roots)
        self._device = device
        self._open: Recent[str, Opened] = Recent(OPEN, self._opened)
        self(self.names[0])

    def __call__(self, name: str) -> Opened:
        """A model of the list, or a posterior's folder below the roots."""
        return self._open(self.resolved(name))

    def resolved(self, name: str) -> str:
        """The one name under which something is kept of a model, however it was typed: `wide`, `./wide`, `wide/`."""
        name = (name or "").strip()
        if name in self.names:
            return name
        folder = self._below_roots(name)
        return next((each for each in self.names if Path(each).resolve() == folder), str(folder))

    def _below_roots(self, name: str) -> Path:
        allowed = ", ".join(map(str, self.roots))
        if not self.roots:
            raise BayesVLMError(f"{name[:80]!r} is not among the models of this page: {', '.join(self.names)}.")
        if not name or "\0" in name:
            raise BayesVLMError(f"The folder {name[:80]!r} is none; type one below {allowed}.")
        for root in self.roots:
            try:
                found = (root / name).resolve()  # an absolute name stands for itself; links are followed, then checked
                there = found.is_relative_to(root) and found.is_dir()
            except (OSError, RuntimeError):  # too long, a link to itself, a folder that may not be looked into
                continue
            if there:
                return self._with_posterior(found)
        raise BayesVLMError(
            f"{name[:80]!r} is no folder below {allowed}; name one there, or start the page with it: "
            "bayesvlm app FOLDER."
        )

    @staticmethod
    def _with_posterior(folder: Path) -> Path:
        if not is_posterior(folder):
            raise BayesVLMError(f"{folder} holds no saved posterior; name a folder that fit or tune wrote.")
        return folder

    def _opened(self, name: str) -> Opened:
        try:
            vlm = BayesVLM.from_pretrained(name, device=self._device)
        except BayesVLMError as error:
            if not _is_missing(error):
                raise
            known = "" if "/" in name else f" (embedded are {', '.join(MODELS)})"
            raise BayesVLMError(
                f"The model of {name!r} is not on this machine, and the page fetches nothing: check the spelling{known}"
                ", fetch the model first with `hf download`, or name a folder that holds it."
            ) from error
        if vlm.adapter is None:
            raise BayesVLMError(f"{name} has projections and no encoder, so it cannot look at pictures; name another.")
        _ = vlm.posterior  # a model without one has nothing to show here
        return Opened(name, vlm)


def _is_missing(error: BaseException | None) -> bool:
    """Whether it comes from a model that would have to be fetched."""
    while error is not None:
        if isinstance(error, LocalEntryNotFoundError):
            return True
        error = error.__cause__ or error.__context__
    return False


def default_names() -> tuple[str, ...]:
    """The embedded models that come with a posterior of their own or predict variances."""
    return MODELS
