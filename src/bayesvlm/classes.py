"""Class lists and labels as callers give them, checked."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError, BayesVLMWarning
from bayesvlm.core.features import Features
from bayesvlm.prompts import ClassNames, ClassPrompts


def class_names(classes: ClassNames | Features) -> tuple[str, ...] | None:
    """What each class is called, checked; None for Features, which carry no names."""
    if isinstance(classes, Features):
        if len(classes) == 0:
            raise BayesVLMError("The class list is empty; pass at least one class name or prompt.")
        return None
    return ClassPrompts.of(classes).names


def warn_of_one_class(classes: ClassNames | Features, each_by_itself: bool, stacklevel: int) -> None:
    """Say that a softmax over one class tells nothing; `each_by_itself`: the model has `label_probs` as well."""
    if len(classes) == 1:
        instead = "; label_probs has that of the label by itself" if each_by_itself else ""
        warnings.warn(
            f"There is one class only, so its probability is always 1 and says nothing: name what else an input could "
            f"be{instead}.",
            BayesVLMWarning,
            stacklevel=stacklevel + 1,
        )


def label_indices(
    labels: Sequence[int] | Sequence[str] | Tensor, names: tuple[str, ...] | None, inputs: int, classes: int
) -> Tensor:  # [N]
    """Labels (indices or class names) as indices into the class list."""
    if not isinstance(labels, Sequence | Tensor | np.ndarray):
        raise BayesVLMError(f"labels={labels!r}; it must be a list, array or tensor of class indices or names.")
    if len(labels) != inputs:
        raise BayesVLMError(f"There are {inputs} inputs and {len(labels)} labels; each input needs one.")
    if inputs == 0:
        raise BayesVLMError("There are no labelled inputs; give at least one.")
    if not isinstance(labels, Tensor) and isinstance(labels[0], str):
        if names is None:
            raise BayesVLMError("The labels are names but the classes are Features; pass integer labels.")
        index = {name: i for i, name in enumerate(names)}
        unknown = sorted({str(label) for label in labels if label not in index})
        if unknown:
            raise BayesVLMError(f"Labels {unknown[:5]} are not among the {len(names)} classes; spell them alike.")
        return torch.tensor([index[str(label)] for label in labels])
    try:
        target = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError):  # whatever torch makes of None, of names among numbers, of objects
        place = next((i for i, label in enumerate(labels) if not hasattr(label, "__index__")), 0)
        raise BayesVLMError(
            f"labels[{place}] is {str(labels[place])[:60]!r}, a {type(labels[place]).__name__}; give every input one "
            "label, all of them class names or all of them indices."
        ) from None
    if target.is_floating_point() or target.ndim != 1:
        raise BayesVLMError(
            f"labels must be integers [N] or class names, got {target.dtype} of shape {list(target.shape)}."
        )
    if int(target.min()) < 0 or int(target.max()) >= classes:
        raise BayesVLMError(
            f"Labels run from {int(target.min())} to {int(target.max())}, but there are {classes} classes; "
            f"number them 0 to {classes - 1}."
        )
    return target.long()
