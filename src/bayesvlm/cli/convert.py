"""`bayesvlm convert`: the authors' published Hessian folders as a saved posterior."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bayesvlm.cli.options import Device, Json, Out, Overwrite
from bayesvlm.cli.output import emit


def convert(
    published: Annotated[Path, typer.Argument(help="The authors' folder, with A_img_analytic.pt and others.")],
    out: Out,
    model: Annotated[
        str | None,
        typer.Option("--model", help="The model (Hub id or folder) that the factors belong to."),
    ] = None,
    pairs: Annotated[int, typer.Option(help="How many pairs the factors were estimated on.")] = 327680,
    loss: Annotated[str, typer.Option(help="The model's loss, without --model: infonce or sigmoid.")] = "infonce",
    overwrite: Overwrite = False,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Import a Hessian folder published by the paper's authors, safely (nothing in it is ever run).

    The published lam is kept. Without --model the posterior is not tied to any weights, and needs --model when used.

    Examples:

        bayesvlm convert hessians/CLIP-ViT-B-32-laion2B-s34B-b79K/ --model laion/CLIP-ViT-B-32-laion2B-s34B-b79K -o out/

        bayesvlm convert hessians/CLIP-ViT-B-32-laion2B-s34B-b79K/ -o out/ && bayesvlm info out/
    """
    from bayesvlm.artifacts import PosteriorConfig, SavedPosterior
    from bayesvlm.artifacts.destination import posterior_destination
    from bayesvlm.artifacts.hessians import read_published
    from bayesvlm.core.errors import check_choice
    from bayesvlm.core.estimation import TOWERS
    from bayesvlm.vlm import BayesVLM

    check_choice("--loss", loss, ("infonce", "sigmoid"))
    with posterior_destination(out, overwrite):
        factors, lam = read_published(published, pairs)
        config = PosteriorConfig(
            loss=loss,  # type: ignore[arg-type]
            tau=1.0,
            lam=lam,
            lam_source="given",
            provenance={"source": "published Hessians", "folder": published.name, "pairs": pairs},
        )
        saved = SavedPosterior(factors, config)
        if model is not None:
            saved = BayesVLM.from_pretrained(model, device=device).with_posterior(saved).saved()
        saved.save(out)
    traces = {t: {"A": float(factors[t].A.trace()), "B": float(factors[t].B.trace())} for t in TOWERS}
    text = [f"{t}: trace of A {traces[t]['A']:.8g}, trace of B {traces[t]['B']:.7g}, lam {lam[t]:.6g}" for t in TOWERS]
    tied = f"tied to {model}" if model else "not tied to any weights: name the model with --model when using it"
    emit(
        {"posterior": str(out), "traces": traces, "lam": lam, "model": model},
        [*text, f"saved to {out}, {tied}"],
        as_json,
    )
