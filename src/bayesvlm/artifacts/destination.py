"""Where a command saves a posterior: nothing of somebody else's is replaced, and no two commands write at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from bayesvlm.artifacts.checkpoint import saved_sums
from bayesvlm.artifacts.files import remove_leftovers
from bayesvlm.artifacts.locks import only_command_in
from bayesvlm.artifacts.saved import CARD, CONFIG, PROJECTIONS, TENSORS, SavedPosterior, check_destination, is_posterior
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.estimation import TOWERS


@contextmanager
def posterior_destination(folder: Path, overwrite: bool, checkpoint: Path | None = None) -> Iterator[Path]:
    """The folder, checked and this command's alone while the block lasts; without `overwrite` it holds no posterior.

    What a killed command left behind of files it was writing is removed. `SavedPosterior.save` itself replaces what is
    there, as `save_pretrained` of transformers does.

    Args:
        checkpoint: of the fit that saves there: a posterior that this very fit was saving when it was killed is no
            reason to refuse.
    """
    check_destination(folder)
    with only_command_in(folder):
        names = [TENSORS, CONFIG, CARD, PROJECTIONS, *([] if checkpoint is None else [checkpoint.name])]
        remove_leftovers(folder, names)
        if is_posterior(folder) and not overwrite and not (checkpoint and _was_saving(folder, checkpoint)):
            raise BayesVLMError(
                f"{folder} holds a posterior already; name another folder with --out, or replace it with --overwrite."
            )
        yield folder


def _was_saving(folder: Path, checkpoint: Path) -> bool:
    """Whether the posterior there is what a fit with this checkpoint has saved, or is the cut-off beginning of it."""
    sums = saved_sums(checkpoint)
    if sums is None:
        return False
    try:
        found = SavedPosterior.load(folder).factors
    except BayesVLMError:
        return True
    return all(
        torch.equal(found[tower].A_sum, sums[tower].A_sum) and torch.equal(found[tower].B_sum, sums[tower].B_sum)
        for tower in TOWERS
    )
