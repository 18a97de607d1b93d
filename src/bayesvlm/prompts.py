"""From class names and prompt templates to the texts that are encoded, and which class each of them is of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features

Template = str | Callable[[str], str]
"""A prompt with {c} (or {}, as transformers and open_clip have it) for the class name, or what makes it of the name."""

Templates = Template | Sequence[Template]

ClassNames = Sequence[str] | Sequence[Sequence[str]] | Mapping[str, str | Sequence[str]]
"""A name for each class; or several, of which the first is the one shown; or the one shown, and the several."""

PLACES = ("{c}", "{}")
SHOWN = 5  # names in an error


@dataclass(frozen=True)
class ClassPrompts:
    """The prompts of a list of classes.

    Attributes:
        names: what each class is called, [C].
        texts: all prompts, class after class, [M].
        groups: which class each prompt is of, [M].
    """

    names: tuple[str, ...]
    texts: tuple[str, ...]
    groups: tuple[int, ...]

    @classmethod
    def of(cls, classes: ClassNames, templates: Templates | None = None) -> ClassPrompts:
        """Every name of every class in every template; what is the same prompt counts once in its class.

        >>> asked = ClassPrompts.of({"couch": ["couch", "sofa"], "bed": "bed"}, ["a {c}.", "my {}."])
        >>> asked.texts
        ('a couch.', 'my couch.', 'a sofa.', 'my sofa.', 'a bed.', 'my bed.')
        >>> asked.names, asked.groups
        (('couch', 'bed'), (0, 0, 0, 0, 1, 1))

        Args:
            classes: names or prompts; a list of names in the place of a name are synonyms of one class.
            templates: one or several; None: the names are the prompts, as they are.

        Raises:
            BayesVLMError: for what is no list of names, a name that stands twice, a template without a place for it.
        """
        named, synonyms = _checked(classes)
        repeated = _repeated(named)
        if repeated:
            raise BayesVLMError(
                f"The class list names {repeated} more than once; "
                "probabilities would be split between the copies, list each class once."
            )
        shared = _repeated([name for names in synonyms for name in names])
        if shared:
            raise BayesVLMError(
                f"The synonyms have {shared} more than once; a name is of one class, and counts once in it."
            )
        return cls.filled(named, synonyms, templates)

    @classmethod
    def filled(
        cls, named: Sequence[str], synonyms: Sequence[Sequence[str]] | None, templates: Templates | None
    ) -> ClassPrompts:
        """The same for classes that were checked already, or may be called alike, as those of a data set may."""
        fills = check_templates(templates)
        texts: list[str] = []
        groups: list[int] = []
        for index, names in enumerate(synonyms or [(name,) for name in named]):
            made = dict.fromkeys(fill(template, name) for name in names for template in fills)
            texts += made
            groups += [index] * len(made)
        for number, template in enumerate(fills):
            if callable(template) and len(set(named)) > 1 and len({template(name) for name in named}) == 1:
                raise BayesVLMError(
                    f"templates[{number}], a function, has no place for the class name: it gives "
                    f"{template(named[0])[:60]!r} for every class."
                )
        return cls(tuple(named), tuple(texts), tuple(groups))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def repeated(self) -> list[str]:
        """A prompt of each group of classes that have all their prompts in common, and cannot be told apart."""
        prompts: dict[int, tuple[str, ...]] = {}
        for text, group in zip(self.texts, self.groups, strict=True):
            prompts[group] = (*prompts.get(group, ()), text)
        return sorted(texts[0] for texts, count in Counter(prompts.values()).items() if count > 1)

    @property
    def single(self) -> bool:
        """Whether every class has one prompt."""
        return len(self.texts) == len(self.names)

    def blocks(self, size: int) -> Iterator[tuple[list[str], list[int]]]:
        """The prompts and groups of whole classes, about so many prompts at a time, groups counted from 0 in each."""
        start = 0
        while start < len(self.texts):
            stop = min(start + size, len(self.texts))
            while stop < len(self.texts) and self.groups[stop] == self.groups[stop - 1]:
                stop += 1
            first = self.groups[start]
            yield list(self.texts[start:stop]), [group - first for group in self.groups[start:stop]]
            start = stop


def fill(template: Template, name: str) -> str:
    """A class name in its template."""
    if not isinstance(template, str):
        made: object = template(name)
        if not isinstance(made, str) or not made.strip():
            raise BayesVLMError(
                f"A template that is a function gives {str(made)[:60]!r}, a {type(made).__name__}, for {name!r}; it "
                "must return the prompt, a str that is not empty."
            )
        return made
    place = next((place for place in PLACES if place in template), PLACES[0])
    return template.replace(place, name)


def check_templates(templates: Templates | None) -> list[Template]:
    """Templates as a list; None is the name alone."""
    if templates is None:
        return [PLACES[0]]
    if not isinstance(templates, str) and hasattr(templates, "tolist"):  # an array, or a column of a table
        templates = templates.tolist()
    alone = isinstance(templates, str) or callable(templates) or not isinstance(templates, Sequence)
    given: list[Any] = [templates] if alone else list(templates)  # type: ignore[arg-type]
    if not given:
        raise BayesVLMError(
            "templates is an empty list; give at least one, such as 'a photo of a {c}.', or leave it out."
        )
    for number, template in enumerate(given):
        called = "templates" if alone else f"templates[{number}]"
        if not isinstance(template, str) and not callable(template):
            raise BayesVLMError(
                f"{called} is {str(template)[:60]!r}, a {type(template).__name__}; a template is a str with {{c}} for "
                "the class name, or a function of the name."
            )
        if isinstance(template, str) and not any(place in template for place in PLACES):
            raise BayesVLMError(f"{called}={template!r} has no place for the class name; put {{c}} where it goes.")
    repeated = _repeated([fill(template, PLACES[0]) for template in given if isinstance(template, str)])
    if repeated:
        raise BayesVLMError(f"The templates have {repeated} more than once; it would count twice, give each once.")
    return given


def _checked(classes: Any) -> tuple[list[str], list[tuple[str, ...]]]:
    """The name that each class is shown by, and all of its names."""
    if isinstance(classes, Mapping):
        named = list(classes)
        if unnamed := [key for key in named if not isinstance(key, str)]:
            raise BayesVLMError(
                f"classes has the key {unnamed[0]!r}; keys are the names that are shown, as in {{'seat': ['couch', "
                "'sofa']}, so pass the names alone: list(classes.values())."
            )
        synonyms = [(names,) if isinstance(names, str) else names for names in classes.values()]
    else:
        if not isinstance(classes, str | Features) and hasattr(classes, "tolist"):  # an array, or a column of a table
            classes = classes.tolist()
        if isinstance(classes, str | bytes) or not isinstance(classes, Sequence):
            given = f"{str(classes)[:60]}, a {type(classes).__name__}"
            raise BayesVLMError(f"classes={given}; it must be a list of class names or prompts, or Features.")
        synonyms = [(names,) if isinstance(names, str) else names for names in classes]
        named = [names[0] if isinstance(names, Sequence | np.ndarray) and len(names) else "" for names in synonyms]
    if not named:
        raise BayesVLMError("The class list is empty; pass at least one class name or prompt.")
    for index, (name, names) in enumerate(zip(named, synonyms, strict=True)):
        if isinstance(names, Sequence | np.ndarray) and len(names) == 0:
            raise BayesVLMError(f"classes[{index}] is an empty list; give the class a name at least.")
        if not isinstance(names, Sequence | np.ndarray) or isinstance(names, bytes):
            raise BayesVLMError(
                f"classes[{index}] is {str(names)[:60]!r}, a {type(names).__name__}; every class must be one str, a "
                "name or a prompt, or a list of str, its synonyms."
            )
        for each in (name, *names):
            if not isinstance(each, str) or not each.strip():
                among = f", one of {str(list(names))[:60]}," if len(names) > 1 else ""
                raise BayesVLMError(
                    f"classes[{index}] is {str(each)[:60]!r}{among} of type {type(each).__name__}, and no name; every "
                    "name must be a str that is not empty."
                )
    return named, [tuple(map(str, names)) for names in synonyms]


def _repeated(names: Sequence[str]) -> str:
    """Those that stand several times, for an error."""
    found = sorted(name for name, count in Counter(names).items() if count > 1)
    return ", ".join(map(repr, found[:SHOWN]))
