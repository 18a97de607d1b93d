"""A source of labelled images, to be opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from bayesvlm.data.labelled.samples import LabelledSet
from bayesvlm.data.sources import Kind, Source
from bayesvlm.prompts import check_templates


@dataclass(frozen=True)
class LabelledSource(Source):
    """Where labelled images are, and how they are opened."""

    kind: ClassVar[Kind] = "labelled"

    def open(self, templates: str | Sequence[str] | None = None, strict: bool = False) -> LabelledSet:
        """List the images, fetching them from the Hub where they are not here.

        Args:
            templates: prompts with {c} for the class, in the place of the set's own; those of the embedded world stay.
            strict: stop at the first image that cannot be read, instead of skipping it.

        Raises:
            BayesVLMError: where it is not here and cannot be fetched, with a sentence on how to get it.
        """
        if templates is not None:
            check_templates(templates)
        given = (templates,) if isinstance(templates, str) else templates
        found: LabelledSet = self.opener(templates=given and tuple(given), strict=strict)
        return found
