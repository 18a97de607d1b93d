"""What the tabs of one page share: models and what is made of each."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from bayesvlm.app.ask import Asker
from bayesvlm.app.described import Description, describe
from bayesvlm.app.found import Collection, of_index, of_world
from bayesvlm.app.labelling import Labeller
from bayesvlm.app.models import OPEN, Models, Recent
from bayesvlm.core.errors import BayesVLMError

log = logging.getLogger(__name__)


class Desk:
    """All that visitors share; nothing of it changes with what they do, but for what is kept to be quick.

    Args:
        models: that may be opened.
        index: a folder to search in, which brings its model; None: drawings of the world, by the visitor's model.
        device: for the model of that index.
    """

    def __init__(self, models: Models, index: Path | None = None, device: str | None = None) -> None:
        self.models = models
        self._askers: Recent[str, Asker] = Recent(OPEN, lambda name: Asker(models(name)))
        self._labellers: Recent[str, Labeller] = Recent(OPEN, lambda name: Labeller(models(name)))
        self._descriptions: Recent[str, Description] = Recent(OPEN, lambda name: describe(models(name)))
        self._warming: threading.Thread | None = None
        self._ending = threading.Event()
        self._given = None if index is None else of_index(index, device)
        self._collections: Recent[str, Collection] = Recent(
            OPEN, lambda name: of_world(models(name), self._ending.is_set)
        )

    def asker(self, name: str) -> Asker:
        """What answers a visitor with this model."""
        return self._askers(self.models.resolved(name))

    def labeller(self, name: str) -> Labeller:
        """What chooses for a visitor with this model."""
        return self._labellers(self.models.resolved(name))

    def description(self, name: str) -> Description:
        """What there is to say of a model."""
        return self._descriptions(self.models.resolved(name))

    def collection(self, name: str) -> Collection:
        """What a visitor with this model searches in."""
        return self._given or self._collections(self.models.resolved(name))

    def warm(self) -> None:
        """Make in the background what the first search would wait for."""
        if self._given is None:
            self._warming = threading.Thread(target=self._made_early, name="bayesvlm-app-index")
            self._warming.start()

    def settle(self) -> None:
        """Make nothing in the background any more: an interpreter that ends starts no more threads for it."""
        self._ending.set()
        if self._warming is not None:
            self._warming.join()

    def _made_early(self) -> None:
        try:
            self.collection(self.models.names[0])
        except BayesVLMError as error:  # said again, on the page, to who searches
            if not self._ending.is_set():
                log.warning("%s", error)
