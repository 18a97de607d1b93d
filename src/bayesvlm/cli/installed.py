"""Commands that come with other distributions, each an entry point: `bayesvlm-paper` brings `reproduce`."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

import typer

GROUP = "bayesvlm.commands"
ELSEWHERE = {"reproduce": "paper"}
"""A command of ours that another distribution brings -> the extra to install."""
_ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def add_installed(app: typer.Typer) -> None:
    """Add the commands that are installed; one that is missing or cannot be imported says so when it is called."""
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    for name, entry in found.items():
        try:
            command = entry.load()
        except Exception as error:  # whatever a distribution raises, the other commands go on
            _add_refusal(app, name, _broken(entry, error), hidden=False)
        else:
            app.command(name)(command)
    for name in sorted(ELSEWHERE.keys() - found.keys()):
        sentence = (
            f"`bayesvlm {name}` comes with a distribution of its own, which is not installed: "
            f"`pip install 'bayesvlm[{ELSEWHERE[name]}]'`."
        )
        _add_refusal(app, name, sentence, hidden=True)


def _broken(entry: EntryPoint, error: Exception) -> str:
    package = entry.module.partition(".")[0] if entry.dist is None else entry.dist.name
    reason = (str(error).strip() or "no reason given").splitlines()[0]
    return (
        f"`bayesvlm {entry.name}` comes with {package}, which cannot be imported ({type(error).__name__}: {reason}); "
        "install it again or remove it."
    )


def _add_refusal(app: typer.Typer, name: str, sentence: str, hidden: bool) -> None:
    """A command that takes any words and answers with the sentence, which is also its line in the list of commands."""

    def refuse() -> None:
        from bayesvlm.core.errors import BayesVLMError

        raise BayesVLMError(sentence)

    app.command(name, help=sentence, hidden=hidden, context_settings=_ANYTHING)(refuse)
