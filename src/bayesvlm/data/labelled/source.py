"""A source of labelled images, to be opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from bayesvlm.data.labelled.class_names import ClassNames, GivenNames
from bayesvlm.data.labelled.renamed import named
from bayesvlm.data.labelled.samples import LabelledSet
from bayesvlm.data.sources import Kind, Source
from bayesvlm.prompts import check_templates


@dataclass(frozen=True)
class LabelledSource(Source):
    """Where labelled images are, and how they are opened."""

    kind: ClassVar[Kind] = "labelled"

    def open(
        self,
        templates: str | Sequence[str] | None = None,
        strict: bool = False,
        classes: ClassNames | GivenNames | None = None,
    ) -> LabelledSet:
        """List the images, fetching them from the Hub where they are not here.

        Args:
            templates: prompts with {c} for the class, in the place of the set's own; those of the embedded world stay.
            strict: stop at the first image that cannot be read, instead of skipping it.
            classes: names for the classes, apart from the folders or labels: a file, a list in the order of the sorted
                folders, or a mapping from folder or label to name; `data.labelled.class_names` has the forms.

        Raises:
            BayesVLMError: where it is not here and cannot be fetched, with a sentence on how to get it.
        """
        given = None if templates is None else tuple(check_templates(templates))
        names = ClassNames.of(classes) if classes is not None else None
        found: LabelledSet = self.opener(templates=given, strict=strict)
        return named(found, names)
