"""What a choice starts from: images that are labelled already, and pool items that are not to be chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesvlm.active.finetune import Labels
from bayesvlm.classes import label_indices
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.vlm import BayesVLM


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
        """What `rank` was given, checked; a pool item whose features are a labelled image's is that image."""
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
    if rows is None or len(rows) == 0:
        return mask
    indices = torch.as_tensor(rows).cpu()
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
    """Pool rows that are equal to one of the images' in everything."""

    def contents(features: Features) -> list[bytes]:
        tensors = [tensor.detach().cpu().contiguous().numpy() for tensor in features.tensors().values()]
        return [b"".join(tensor[row].tobytes() for tensor in tensors) for row in range(len(features))]

    known = set(contents(images))
    return torch.tensor([content in known for content in contents(pool)], dtype=torch.bool)
