"""Options that several commands share, so that they are spelt and explained once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one json object instead of text.")]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at the first image or caption that cannot be used.")]
StrictPosterior = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Stop at the first image that cannot be used, and at a posterior made with another encoder.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option("--model", help="Where the posterior's model is now, if it has moved: Hub id or folder."),
]
Device = Annotated[
    str | None, typer.Option("--device", help="Where to compute: cpu, cuda, cuda:1. [default: cuda if there is one]")
]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for the saved posterior.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace an earlier result; without it the command stops instead.")
]
Classes = Annotated[
    str | None, typer.Option("--classes", help='Class names, separated by commas; synonyms by bars: "couch|sofa,bed".')
]
ClassesFile = Annotated[
    Path | None, typer.Option("--classes-file", help="A file of class names, one per line; synonyms separated by bars.")
]
SetClasses = Annotated[
    Path | None,
    typer.Option(
        "--classes-file",
        help="Class names apart from the folders or labels: one per line in their order, or a csv with the columns "
        "folder,name; synonyms separated by bars.",
    ),
]
Template = Annotated[
    list[str] | None,
    typer.Option(
        "--template",
        help="The prompt, with {c} for the class name; repeatable: embeddings of several are averaged. [default: what "
        "tau was tuned with, else what the model or the data set has]",
    ),
]
Templates = Annotated[
    str | None,
    typer.Option(
        "--templates",
        help="Several prompts: a file, one per line; those of a known set (imagenet: 80); or all, the data set's own.",
    ),
]
OwnTemplates = Annotated[
    str | None,
    typer.Option("--templates", help="Several prompts: a file, one per line, or those of a known set (imagenet: 80)."),
]
QueryTemplate = Annotated[
    list[str] | None,
    typer.Option(
        "--template",
        help="The prompt to ask in, with {c} for the query; repeatable: embeddings of several are averaged. [default: "
        "what the index was calibrated with, else the query as it is]",
    ),
]
Root = Annotated[
    Path | None, typer.Option("--root", help="Folder of the known sets. [default: $BAYESVLM_DATA, else ./data]")
]
Cache = Annotated[
    Path | None,
    typer.Option("--cache", help="Folder for encoded images. [default: $BAYESVLM_CACHE, else ~/.cache/bayesvlm]"),
]


def check_shares(shares: Mapping[str, float | None]) -> None:
    """Refuse shares that are none, by the option they were given with, before any work is done."""
    from bayesvlm.core.errors import BayesVLMError

    for option, value in shares.items():
        if value is not None and not 0 < value < 1:
            raise BayesVLMError(f"{option} is {value:g}; it is a share between 0 and 1, such as 0.05.")
