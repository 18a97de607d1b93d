"""Which label stands for which class: names or numbers, in the order that scikit-learn expects of columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError

Labels = NDArray[Any]  # [N]


@dataclass(frozen=True, eq=False)
class LabelSpace:
    """The labels of the classes, in the order of the columns.

    Args:
        labels: sorted, as scikit-learn's metrics take columns to be; names that no label has asked for stay as given.
        order: place of each column's class in the caller's list, [C].
        names: of the classes in the caller's order, or None.
        indexed: whether labels are the numbers of names in a list, which scikit-learn may have numbered otherwise.
    """

    labels: Labels  # [C]
    order: NDArray[np.intp]  # [C]
    names: tuple[str, ...] | None
    indexed: bool = False

    def columns(self, y: Labels) -> NDArray[np.intp]:  # [N]
        """The column of every label; -1 where no class has it.

        Numbers are places in the caller's list where the classes go by name, and names are names where they go by
        number.
        """
        keys: list[Any] = self.labels.tolist()
        if _are_names(y) != _are_names(self.labels):
            keys = self.order.tolist() if self.names is None or not _are_names(y) else self.column_names()
        column = {key: place for place, key in enumerate(keys)}
        return np.array([column.get(label, -1) for label in y.tolist()], dtype=np.intp)

    def column_names(self) -> list[str]:
        """Names of the classes, in the order of the columns."""
        return [str(label) for label in self.labels] if self.names is None else [self.names[k] for k in self.order]

    def known(self, y: Labels) -> NDArray[np.intp]:  # [N]
        """The column of every label, all of which must be among the classes."""
        found = self.columns(y)
        unknown = sorted({str(label) for label in y[found < 0].tolist()})
        if not unknown:
            return found
        few = ", ".join(map(repr, self.labels[:5].tolist())) + (", ..." if len(self.labels) > 5 else "")
        shown, remedy = ", ".join(unknown[:5]), f"number them from 0 to {len(self.labels) - 1}"
        if _are_names(y):
            shown = ", ".join(map(repr, unknown[:5]))
            remedy = "spell them as in classes, or if they are captions, fit([(X, y)])"
        elif not self.indexed:
            remedy = "use those that classes has"
        raise BayesVLMError(f"y has labels that none of the {len(self.labels)} classes ({few}) has: {shown}; {remedy}.")

    @property
    def unsorted(self) -> bool:
        """Whether the labels are names in another order than the alphabet's, which is scikit-learn's."""
        return _are_names(self.labels) and bool((self.labels[1:] < self.labels[:-1]).any())

    @property
    def ambiguous(self) -> bool:
        """Whether numbers could mean names in another order: scikit-learn's own is the alphabet's."""
        return self.indexed and self.names is not None and list(self.names) != sorted(self.names)

    def seem_encoded(self, columns: NDArray[np.intp], predicted: NDArray[np.intp]) -> bool:
        """Whether numbers mean names in alphabetical order, judged by what the model sees in the images.

        `cross_val_predict` and the ensembles of scikit-learn put such numbers in the place of string labels. Only a
        difference of three standard errors counts, so that few images, or a model that sees little in them, show
        nothing: `ambiguous` is what decides whether to warn.
        """
        if not self.ambiguous:
            return False
        alphabetical = np.argsort(np.array(self.names))[columns]
        as_encoded, as_given = int((predicted == alphabetical).sum()), int((predicted == columns).sum())
        return bool(as_encoded - as_given > 3 * np.sqrt(as_encoded + as_given))


def checked_labels(y: Any) -> Labels:
    """Labels of classes, one-dimensional and finite."""
    flat: Labels = column_or_1d(y.detach().cpu().numpy() if isinstance(y, Tensor) else y, warn=True)
    if len(flat) == 0:
        raise BayesVLMError("y is empty: there are 0 samples; give one label per image, or no y.")
    assert_all_finite(flat, input_name="y")
    if flat.dtype.kind not in "biuUT":  # of these it doubts that many classes and few images are meant
        check_classification_targets(flat)
    return flat


def label_space(classes: Any, names: tuple[str, ...] | None, y: Labels | None) -> LabelSpace:
    """Labels as `y` has them, or as the classes are given.

    Args:
        classes: as the caller gave them; keys of a mapping are labels.
        names: of the classes, or None where they are Features.
        y: labels of images, or None.
    """
    keys = list(classes) if isinstance(classes, Mapping) else names
    if keys is not None and not all(isinstance(key, str) for key in keys):
        return _sorted(_scalar_keys(keys), names)
    if y is not None and _are_names(y):
        if names is None:
            raise BayesVLMError("y holds names, but the classes are Features, which have none; pass integers from 0.")
        return _sorted(np.array(names, dtype=object if y.dtype == object else None), names)
    places = np.arange(len(classes))
    if y is None:
        return LabelSpace(places if names is None else np.array(names), places, names)
    numbers = places.astype(y.dtype)
    return LabelSpace(numbers if (numbers == places).all() else places, places, names, indexed=True)


def _scalar_keys(keys: Sequence[Any]) -> Labels:
    """Labels that are no names as an array, if they are of one kind and have an order, as columns need."""
    array, kinds = None, {Real if isinstance(key, Real) else type(key) for key in keys}
    if len(kinds) == 1 and all(key == key for key in keys):  # which NaN is not
        try:
            sorted(keys)
            array = np.array(keys)
        except (TypeError, ValueError):  # no order; a ragged array
            array = None
    if array is None or array.ndim != 1:
        shown = ", ".join(repr(key)[:40] for key in keys[:5])
        raise BayesVLMError(
            f"The labels in classes are {shown}{', ...' * (len(keys) > 5)}; give the keys of {{label: name}} all as "
            "numbers or all as names, so that columns have an order."
        )
    return array


def named_after(y: Labels | None, templates: Any) -> dict[Any, str]:
    """Classes that are called what their labels are."""
    if y is None:
        raise BayesVLMError("There are no classes: pass classes=[...], or labels as y, which then name the classes.")
    if not _are_names(y) and templates is None:
        raise BayesVLMError(
            "y holds numbers, perhaps because scikit-learn encoded the names (as cross_val_predict does), and "
            "classes=None takes labels for the names of the classes; pass classes=[...] in the order of the numbers, "
            "or templates= in which a number makes sense, such as 'the digit {c}'."
        )
    return {label: str(label) for label in np.unique(y).tolist()}


def _sorted(labels: Labels, names: Sequence[str] | None) -> LabelSpace:
    order = np.argsort(labels, kind="stable")
    return LabelSpace(labels[order], order, None if names is None else tuple(names))


def _are_names(labels: Labels) -> bool:
    return labels.dtype.kind in "UT" or (labels.dtype == object and all(isinstance(label, str) for label in labels))
