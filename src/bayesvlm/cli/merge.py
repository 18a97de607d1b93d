"""`bayesvlm merge`: posteriors of shards or runs, added."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bayesvlm.cli.options import Json, Out, Overwrite
from bayesvlm.cli.output import emit


def merge(
    posteriors: Annotated[list[Path], typer.Argument(help="Two or more saved posteriors of the same model.")],
    out: Out,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Add up posteriors of the same model fitted on different pairs; factors are sums, so this is exact.

    Posteriors remember what they were fitted on: two that read the same shard or row are refused, wherever copies of
    it lie and however often they were merged before. Shards of a fit (fit --shard i/n) that are missing are named.

    Examples:

        bayesvlm merge shard-0/ shard-1/ shard-2/ --out posterior/

        bayesvlm merge laion/ cc12m/ --out posterior/
    """
    from bayesvlm.artifacts import SavedPosterior
    from bayesvlm.artifacts.destination import posterior_destination
    from bayesvlm.core.errors import BayesVLMError

    if len(posteriors) < 2:
        raise BayesVLMError(f"merge was given {len(posteriors)} posterior; it adds up two or more.")
    if len({folder.resolve() for folder in posteriors}) < len(posteriors):
        raise BayesVLMError("The same posterior is given more than once; its pairs would count twice.")
    with posterior_destination(out, overwrite):
        merged = SavedPosterior.merged((str(folder), SavedPosterior.load(folder)) for folder in posteriors)
        merged.save(out)
    n, lam = merged.factors["image"].n, merged.config.lam
    text = [
        f"{n} pairs of {len(posteriors)} posteriors saved to {out}",
        f"tau = {merged.config.tau:g}, lam = {lam['image']:.6g} (image), {lam['text']:.6g} (text)",
    ]
    emit({"posterior": str(out), "pairs": n, "lam": lam, "tau": merged.config.tau}, text, as_json)
