"""What a choice starts from: images that are labelled already, and pool items that are not to be chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesvlm.active.finetune import Labels
from bayesvlm.classes import label_indices
from bayesvlm.core.blocks import row_blocks
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.vlm import BayesVLM

SAME = 1e-3
"""Distance between features of one image, relative to their length: well above float32's rounding, whatever the
processor and the batch, and well below what tells two images apart."""
BLOCK = 2**22  # pairs of rows that are compared at once


@dataclass(frozen=True, eq=False)
class Known:
    """Labelled images, and which pool items are among them or left out.

    Args:
        images, labels: what is labelled already, in the order it was; None where nothing is.
        labelled: [N], pool items that are among those images.
        excluded: [N], further pool items that are not to be chosen.
    """

    images: Features | None
    labels: Tensor  # [L]
    labelled: Tensor  # [N]
    excluded: Tensor  # [N]

    @classmethod
    def of(
        cls,
        vlm: BayesVLM,
        pool: Features,
        labelled: tuple[Features, Labels] | None,
        exclude: Sequence[int] | Tensor | None,
        names: tuple[str, ...] | None,
        classes: int,
    ) -> Known:
        """What `rank` was given, checked; a pool item with the features of a labelled image, up to rounding, is it."""
        out = _chosen_rows(exclude, len(pool))
        if labelled is None or len(labelled[0]) == 0:
            return cls(None, torch.empty(0, dtype=torch.long), torch.zeros_like(out), out)
        images = vlm.image_features(labelled[0])
        labels = label_indices(labelled[1], names, len(images), classes)
        among = _rows_among(pool, images)
        return cls(images, labels, among, out & ~among)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def taken(self) -> Tensor:  # [N]
        """Pool items that cannot be chosen."""
        return self.labelled | self.excluded

    def check_budget(self, budget: int) -> None:
        """Refuse a budget that what is left of the pool cannot fill."""
        size, gone = len(self.labelled), int(self.taken.sum())
        if budget > size - gone:
            without = f", {gone} of them labelled or excluded already" if gone else ""
            raise BayesVLMError(
                f"The budget is {budget} and the pool has {size} items{without}; choose at most {size - gone}."
            )


def _chosen_rows(rows: Sequence[int] | Tensor | None, count: int) -> Tensor:  # [N]
    """Indices as a mask."""
    mask = torch.zeros(count, dtype=torch.bool)
    if rows is None:
        return mask
    try:
        if len(rows) == 0:
            return mask
        indices = torch.as_tensor(rows).cpu()
    except (TypeError, ValueError, RuntimeError):  # whatever torch makes of names and of objects
        raise BayesVLMError(
            f"exclude is {str(rows)[:60]!r}, a {type(rows).__name__}; give a list of whole numbers, rows of the pool."
        ) from None
    if indices.ndim != 1 or indices.is_floating_point() or indices.dtype == torch.bool:
        raise BayesVLMError(
            f"exclude is {indices.dtype} of shape {list(indices.shape)}; give whole numbers, rows of the pool."
        )
    if int(indices.min()) < 0 or int(indices.max()) >= count:
        raise BayesVLMError(
            f"exclude has rows from {int(indices.min())} to {int(indices.max())}, and the pool has {count}; give rows "
            f"of 0 to {count - 1}."
        )
    mask[indices.long()] = True
    return mask


def _rows_among(pool: Features, images: Features) -> Tensor:  # [N]
    """Pool rows that are one of the images, in everything, up to what another processor, batch or dtype changes.

    Two rows are one image where they are no further apart than `SAME` of the longer one's length, or than a rounding
    step of the dtype of either, if that is more.
    """
    kept, known = pool.tensors(), images.tensors()
    if kept.keys() != known.keys():
        return torch.zeros(len(pool), dtype=torch.bool)
    found = []
    for rows in row_blocks(len(pool), len(images), BLOCK):
        same = torch.ones(1, dtype=torch.bool)
        for name, tensor in kept.items():
            one, other = (each.detach().cpu().double() for each in (tensor[rows], known[name]))
            length = torch.maximum(one.norm(dim=1)[:, None], other.norm(dim=1))
            steps = [torch.finfo(each.dtype).eps for each in (tensor, known[name])]
            same = same & (torch.cdist(one, other) <= max(SAME, *steps) * length)
        found.append(same.any(dim=1))
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.bool)
