"""Options that several commands share, so that they are spelt and explained once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one json object instead of text.")]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at the first unreadable image instead of skipping it.")]
Model = Annotated[
    str | None,
    typer.Option("--model", help="The model to use, where the posterior's own has moved (Hub id or folder)."),
]
Device = Annotated[
    str | None, typer.Option("--device", help="cpu, cuda, cuda:1, ... [default: cuda where there is one]")
]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for the saved posterior.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there; otherwise it is refused.")]
Template = Annotated[str, typer.Option("--template", help="Prompt around each class name; {c} is the name.")]
Root = Annotated[
    Path | None, typer.Option("--root", help="Where known sets lie. [default: $BAYESVLM_DATA, else ./data]")
]
Cache = Annotated[
    Path | None,
    typer.Option("--cache", help="Where features are kept. [default: $BAYESVLM_CACHE, else ~/.cache/bayesvlm]"),
]
