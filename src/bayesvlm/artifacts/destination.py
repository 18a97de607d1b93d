"""Where a command saves a posterior: nothing of somebody else's is replaced, and no two commands write at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bayesvlm.artifacts.locks import only_command_in
from bayesvlm.artifacts.saved import check_destination, is_posterior
from bayesvlm.core.errors import BayesVLMError


@contextmanager
def posterior_destination(folder: Path, overwrite: bool) -> Iterator[Path]:
    """The folder, checked and this command's alone while the block lasts; without `overwrite` it holds no posterior.

    `SavedPosterior.save` itself replaces what is there, as `save_pretrained` of transformers does.
    """
    check_destination(folder)
    with only_command_in(folder):
        if is_posterior(folder) and not overwrite:
            raise BayesVLMError(
                f"{folder} holds a posterior already; name another folder with --out, or replace it with --overwrite."
            )
        yield folder
