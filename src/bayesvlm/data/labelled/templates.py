"""The prompts of a labelled set: its first template, all of them, or others; and those published for known sets.

The lists are those that CLIP's authors chose for each set and published with it (MIT licence); other models have been
measured with them since. Our sets have the customary single one first, and it alone is used unless more are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.labelled.folders import TEMPLATES
from bayesvlm.data.labelled.renamed import synonyms_of
from bayesvlm.data.labelled.samples import LabelledSet
from bayesvlm.prompts import ClassPrompts, Template, Templates, check_templates

ALL: Final = "all"
"""In the place of templates: every one that a set has."""


def chosen_templates(
    data: LabelledSet, templates: Templates | None = None, own: Sequence[Template] | None = None
) -> list[Template]:
    """The templates that are used of a set, each once.

    Args:
        templates: None takes the set's first, which is what the paper does; "all", every one it has; or others, given
            as for `BayesVLM.classify`.
        own: of the model, for sets that were not published with any, such as folders; None: the paper's for those, too.
    """
    if templates is None:
        return [data.templates[0]] if own is None or data.templates is not TEMPLATES else list(own)
    return list(dict.fromkeys(data.templates)) if templates == ALL else check_templates(templates)


def set_prompts(
    data: LabelledSet, templates: Templates | None = None, own: Sequence[Template] | None = None
) -> ClassPrompts:
    """The prompts of a set's classes; arguments as for `chosen_templates`."""
    return ClassPrompts.filled(data.classes, synonyms_of(data), chosen_templates(data, templates, own))


def shown_templates(templates: Sequence[Template]) -> str:
    """One prompt as it is, several by their number."""
    return repr(templates[0]) if len(templates) == 1 else f"{len(templates)} templates, averaged,"


def read_templates(file: Path) -> tuple[str, ...]:
    """Templates from a text file, one per line, as CLIP-benchmark's zeroshot_classification_templates.txt has them."""
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise BayesVLMError(
            f"The templates file {file} cannot be read ({error}); it must be UTF-8 text, one prompt per line with "
            "{c} for the class name."
        ) from None
    found = tuple(line for line in lines if line)
    if not found:
        raise BayesVLMError(
            f"The templates file {file} is empty; expected one prompt per line, with {{c}} for the class name."
        )
    try:
        check_templates(found)
    except BayesVLMError as error:
        raise BayesVLMError(f"{file}: {error}") from None
    return found


def _a_and_the(*templates: str) -> tuple[str, ...]:
    """Each template with "a" and with "the" in the place of a star."""
    return tuple(template.replace("*", article) for article in ("a", "the") for template in templates)


IMAGENET = (
    "a photo of a {c}.",
    "a bad photo of a {c}.",
    "a photo of many {c}.",
    "a sculpture of a {c}.",
    "a photo of the hard to see {c}.",
    "a low resolution photo of the {c}.",
    "a rendering of a {c}.",
    "graffiti of a {c}.",
    "a bad photo of the {c}.",
    "a cropped photo of the {c}.",
    "a tattoo of a {c}.",
    "the embroidered {c}.",
    "a photo of a hard to see {c}.",
    "a bright photo of a {c}.",
    "a photo of a clean {c}.",
    "a photo of a dirty {c}.",
    "a dark photo of the {c}.",
    "a drawing of a {c}.",
    "a photo of my {c}.",
    "the plastic {c}.",
    "a photo of the cool {c}.",
    "a close-up photo of a {c}.",
    "a black and white photo of the {c}.",
    "a painting of the {c}.",
    "a painting of a {c}.",
    "a pixelated photo of the {c}.",
    "a sculpture of the {c}.",
    "a bright photo of the {c}.",
    "a cropped photo of a {c}.",
    "a plastic {c}.",
    "a photo of the dirty {c}.",
    "a jpeg corrupted photo of a {c}.",
    "a blurry photo of the {c}.",
    "a photo of the {c}.",
    "a good photo of the {c}.",
    "a rendering of the {c}.",
    "a {c} in a video game.",
    "a photo of one {c}.",
    "a doodle of a {c}.",
    "a close-up photo of the {c}.",
    "the origami {c}.",
    "the {c} in a video game.",
    "a sketch of a {c}.",
    "a doodle of the {c}.",
    "a origami {c}.",
    "a low resolution photo of a {c}.",
    "the toy {c}.",
    "a rendition of the {c}.",
    "a photo of the clean {c}.",
    "a photo of a large {c}.",
    "a rendition of a {c}.",
    "a photo of a nice {c}.",
    "a photo of a weird {c}.",
    "a blurry photo of a {c}.",
    "a cartoon {c}.",
    "art of a {c}.",
    "a sketch of the {c}.",
    "a embroidered {c}.",
    "a pixelated photo of a {c}.",
    "itap of the {c}.",
    "a jpeg corrupted photo of the {c}.",
    "a good photo of a {c}.",
    "a plushie {c}.",
    "a photo of the nice {c}.",
    "a photo of the small {c}.",
    "a photo of the weird {c}.",
    "the cartoon {c}.",
    "art of the {c}.",
    "a drawing of the {c}.",
    "a photo of the large {c}.",
    "a black and white photo of a {c}.",
    "the plushie {c}.",
    "a dark photo of a {c}.",
    "itap of a {c}.",
    "graffiti of the {c}.",
    "a toy {c}.",
    "itap of my {c}.",
    "a photo of a cool {c}.",
    "a photo of a small {c}.",
    "a tattoo of the {c}.",
)
CIFAR = _a_and_the(
    "a photo of * {c}.",
    "a blurry photo of * {c}.",
    "a black and white photo of * {c}.",
    "a low contrast photo of * {c}.",
    "a high contrast photo of * {c}.",
    "a bad photo of * {c}.",
    "a good photo of * {c}.",
    "a photo of * small {c}.",
    "a photo of * big {c}.",
)
DTD = _a_and_the(
    "a photo of * {c} texture.", "a photo of * {c} pattern.", "a photo of * {c} thing.", "a photo of * {c} object."
)
EUROSAT = ("a centered satellite photo of {c}.", *_a_and_the("a centered satellite photo of * {c}."))
CARS = (
    "a photo of a {c}.",
    "a photo of the {c}.",
    "a photo of my {c}.",
    "i love my {c}!",
    "a photo of my dirty {c}.",
    "a photo of my clean {c}.",
    "a photo of my new {c}.",
    "a photo of my old {c}.",
)
SUN397 = _a_and_the("a photo of * {c}.")
UCF101 = tuple(
    dict.fromkeys(
        (
            "a photo of a person doing {c}.",
            *_a_and_the(
                *(
                    f"a {kind} of * person {verb}{{c}}."
                    for verb in ("", "using ", "doing ", "during ", "performing ", "practicing ")
                    for kind in ("photo", "video", "example", "demonstration")
                )
            ),
        )
    )
)
