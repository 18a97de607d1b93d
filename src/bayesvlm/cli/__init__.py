"""`bayesvlm ...`: parse, call, print. Mistakes end in one sentence on the error stream and a non-zero exit."""

from __future__ import annotations

import os
import sys
import warnings
from functools import partial
from typing import Annotated, TextIO

import typer

from bayesvlm.cli.adapt import adapt
from bayesvlm.cli.app import app as page
from bayesvlm.cli.bench import bench
from bayesvlm.cli.classify import classify
from bayesvlm.cli.convert import convert
from bayesvlm.cli.dedupe import dedupe
from bayesvlm.cli.demo import demo
from bayesvlm.cli.detect import detect
from bayesvlm.cli.eval import evaluate
from bayesvlm.cli.export import export
from bayesvlm.cli.finetune import finetune
from bayesvlm.cli.fit import fit
from bayesvlm.cli.index import index
from bayesvlm.cli.info import info
from bayesvlm.cli.installed import add_installed
from bayesvlm.cli.merge import merge
from bayesvlm.cli.search import search
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


for command in (
    demo,
    fit,
    tune,
    evaluate,
    classify,
    search,
    dedupe,
    select,
    finetune,
    adapt,
    export,
    info,
    convert,
    merge,
    bench,
    page,
):
    app.command("eval" if command is evaluate else None)(command)
for group in (detect, index):
    app.add_typer(group)
add_installed(app)


def _show_warning(
    told: set[str],
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Our own warnings are sentences for the user, told once: where in the source they arose is no matter."""
    from bayesvlm.cli.output import remark
    from bayesvlm.core.errors import BayesVLMWarning

    if issubclass(category, BayesVLMWarning):
        if str(message) not in told:
            remark(f"warning: {message}")
        told.add(str(message))
    else:
        remark(warnings.formatwarning(message, category, filename, lineno, line).rstrip())


def main() -> None:
    """Run the command line; the entry point of the console script."""
    from bayesvlm.core.errors import BayesVLMError

    # Read when torch is loaded. Threads that spin while they wait slow everything down where cores are shared.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = partial(_show_warning, set())
            app()
    except BayesVLMError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # `bayesvlm ... | head`
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:  # a full disk, a folder that may not be written: nothing wrong with the program
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or error
        print(f"error: {what}; check that the path is right and that the disk has room.", file=sys.stderr)
        sys.exit(2)
