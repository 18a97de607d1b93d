"""`bayesvlm ...`: parse, call, print. Mistakes end in one sentence on the error stream and a non-zero exit."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from bayesvlm.cli.adapt import adapt
from bayesvlm.cli.classify import classify
from bayesvlm.cli.convert import convert
from bayesvlm.cli.demo import demo
from bayesvlm.cli.eval import evaluate
from bayesvlm.cli.fit import fit
from bayesvlm.cli.info import info
from bayesvlm.cli.merge import merge
from bayesvlm.cli.reproduce import reproduce
from bayesvlm.cli.select import select
from bayesvlm.cli.tune import tune

app = typer.Typer(
    name="bayesvlm",
    help="CLIP and SigLIP that know what they do not know: fit a posterior, tune it, classify with it.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(show: bool) -> None:
    if show:
        from bayesvlm import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """CLIP and SigLIP that know what they do not know: fit a posterior, tune it, classify with it."""


for command in (demo, fit, tune, evaluate, classify, select, adapt, reproduce, info, convert, merge):
    app.command("eval" if command is evaluate else None)(command)


def main() -> None:
    """Run the command line; the entry point of the console script."""
    from bayesvlm.core.errors import BayesVLMError

    try:
        app()
    except BayesVLMError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # `bayesvlm ... | head`
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:  # a full disk, a folder that may not be written: nothing wrong with the program
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror or error}; check the path and the disk.", file=sys.stderr)
        sys.exit(2)
