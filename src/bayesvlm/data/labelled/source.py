"""A source of labelled images, to be opened; and the prompts of what was opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.labelled.class_names import ClassNames, GivenNames
from bayesvlm.data.labelled.renamed import named
from bayesvlm.data.labelled.samples import LabelledSet
from bayesvlm.data.sources import Kind, Source


@dataclass(frozen=True)
class LabelledSource(Source):
    """Where labelled images are, and how they are opened."""

    kind: ClassVar[Kind] = "labelled"

    def open(self, template: str | None = None, strict: bool = False, classes: GivenNames | None = None) -> LabelledSet:
        """List the images, fetching them from the Hub where they are not here.

        Args:
            template: a prompt with {c} for the class, in the place of the set's own; those of the embedded world stay.
            strict: stop at the first image that cannot be read, instead of skipping it.
            classes: names for the classes, apart from the folders or labels: a file, a list in the order of the sorted
                folders, or a mapping from folder or label to name; `data.labelled.class_names` has the forms.

        Raises:
            BayesVLMError: where it is not here and cannot be fetched, with a sentence on how to get it.
        """
        if template is not None and "{c}" not in template:
            raise BayesVLMError(f"template={template!r} has no place for the class name; put {{c}} where it goes.")
        names = None if classes is None else ClassNames.of(classes)
        found: LabelledSet = self.opener(templates=None if template is None else (template,), strict=strict)
        return named(found, names)


def prompts(data: LabelledSet, template: str | None = None) -> list[str]:
    """The class names in a template with {c}: the one given, or the set's first."""
    return [(template or data.templates[0]).replace("{c}", name) for name in data.classes]
