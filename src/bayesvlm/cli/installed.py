"""Commands that come with other distributions, each an entry point: `bayesvlm-paper` brings `reproduce`."""

from __future__ import annotations

from importlib.metadata import entry_points

import typer

GROUP = "bayesvlm.commands"
ELSEWHERE = {"reproduce": "paper"}
"""A command of ours that another distribution brings -> the extra to install."""


def add_installed(app: typer.Typer) -> None:
    """Add the commands that are installed; those of ours that are not say in a sentence what to install."""
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    for name, entry in found.items():
        app.command(name)(entry.load())
    for name in ELSEWHERE.keys() - found.keys():
        anything = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
        app.command(name, hidden=True, context_settings=anything)(_absent)


def _absent(context: typer.Context) -> None:
    from bayesvlm.core.errors import BayesVLMError

    name = context.info_name or ""
    raise BayesVLMError(
        f"`bayesvlm {name}` comes with a distribution of its own, which is not installed: "
        f"`pip install 'bayesvlm[{ELSEWHERE[name]}]'`."
    )
