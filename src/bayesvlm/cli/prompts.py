"""Class names and the prompts made from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, overload

from bayesvlm.core.errors import BayesVLMError

if TYPE_CHECKING:
    from bayesvlm.data.labelled.class_names import ClassNames
    from bayesvlm.vlm import BayesVLM


@overload
def templates_given(each: Sequence[str] | None, several: str | None, otherwise: Sequence[str]) -> list[str]: ...


@overload
def templates_given(each: Sequence[str] | None, several: str | None) -> list[str] | str | None: ...


def templates_given(
    each: Sequence[str] | None, several: str | None, otherwise: Sequence[str] | None = None
) -> list[str] | str | None:
    """The prompts that --template and --templates ask for; "all" is left to the data set that has them.

    Args:
        each: of --template.
        several: of --templates.
        otherwise: where neither is given; None: a data set has its own, so that "all" can be asked for.
    """
    from bayesvlm.data.labelled import KNOWN, read_templates
    from bayesvlm.data.labelled.templates import ALL
    from bayesvlm.prompts import check_templates

    if several is None:
        if not each:
            return None if otherwise is None else list(otherwise)
        check_templates(each)
        return list(each)
    if each:
        raise BayesVLMError("--template and --templates both name prompts; give the one or the other.")
    if several == ALL and otherwise is None:
        return ALL
    file = Path(several).expanduser()
    if several in KNOWN and not file.exists():
        return list(KNOWN[several].templates)
    if not file.exists():
        every = "" if otherwise is None else "; all is for commands whose data set has prompts"
        raise BayesVLMError(
            f"--templates {several}: there is no such file, nor a known set of that name; give a file with one prompt "
            f"per line, such as zeroshot_classification_templates.txt, or a set such as imagenet{every}."
        )
    return list(read_templates(file))


def tuned_otherwise(vlm: BayesVLM, templates: Sequence[str]) -> str | None:
    """What to say where tau was tuned with other prompts, as far as the posterior says; None elsewhere."""
    from bayesvlm.data.labelled.templates import shown_templates

    before = vlm.provenance.get("tuned_with")
    if before is None or list(before) == list(templates):
        return None
    return (
        f"tau was tuned with {shown_templates(before)} and classes are asked for with {shown_templates(templates)}: "
        "probabilities may be far from calibrated; ask with the same (--template), or tune again"
    )


def read_classes(listed: str | None, file: Path | None) -> list[Sequence[str]]:
    """The classes that `class_names` reads, to ask a model for: a name, or a list of the names of one class."""
    return to_ask_for(class_names(listed, file))


def to_ask_for(names: ClassNames) -> list[Sequence[str]]:
    """A class with one name is that name, one with several a list of them."""
    return [found[0] if len(found) == 1 else found for found in names.names]


def class_names(listed: str | None, file: Path | None) -> ClassNames:
    """Class names from `--classes a,b,c`, or one per line from `--classes-file`, or a csv with what the data call them.

    "couch | sofa" are names of one class.
    """
    from bayesvlm.data.labelled.class_names import TABLES, ClassNames

    if (listed is None) == (file is None):
        raise BayesVLMError("Give the classes once: --classes 'cat,dog' or --classes-file names.txt (one per line).")
    if file is not None and file.suffix.lower() in TABLES:
        return ClassNames.of(file)
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise BayesVLMError(
                f"The class file {file} cannot be read ({error}); it must be UTF-8, one name per line."
            ) from None
    else:
        lines = (listed or "").split(",")
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        where = f"--classes-file {file}" if file else f"--classes {listed!r}"
        raise BayesVLMError(f"{where} names no class; give at least one, such as cat.")
    several = tuple(tuple(each.strip() for each in name.split("|")) for name in names)
    return ClassNames(str(file or "--classes"), several)
