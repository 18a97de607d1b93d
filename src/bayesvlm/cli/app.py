"""`bayesvlm app`: a page to try it on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from bayesvlm.cli.options import Device
from bayesvlm.cli.output import remark


def app(
    posterior: Annotated[
        list[str] | None,
        typer.Argument(
            help="Saved posteriors (folders), or embedded models, to choose from on the page. "
            "[default: the embedded models]"
        ),
    ] = None,
    index: Annotated[
        Path | None, typer.Option("--index", help="A folder that `bayesvlm index` wrote, to search in.")
    ] = None,
    root: Annotated[
        list[Path] | None,
        typer.Option(
            help="Posteriors below this folder may be named on the page; repeatable. [default: here, if only this "
            "machine gets in]"
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 lets other machines in, and nobody is asked who.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(help="The port it listens on. [default: the first free one from 7860 on]")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser", help="Open the page in a browser.")] = False,
    device: Device = None,
) -> None:
    """Serve a page to ask, break, search and label on, in a browser on this machine.

    Nothing leaves the machine: no fonts, no statistics, no models are fetched. A model of the Hub must be here already.

    Examples:

        bayesvlm app

        bayesvlm app posterior/ --index index/ --browser
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    from bayesvlm.app.models import Models, default_names
    from bayesvlm.core.errors import BayesVLMError

    try:
        from bayesvlm.app.desk import Desk
        from bayesvlm.app.ending import tidy_end
        from bayesvlm.app.guard import is_local
        from bayesvlm.app.memory import share_heaps
        from bayesvlm.app.page import check_address, launch
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("gradio", "starlette"):  # the second comes with the first
            raise
        raise BayesVLMError("The page needs Gradio, which is not installed: `pip install 'bayesvlm[app]'`.") from None

    if port is not None and not 0 < port < 65536:
        raise BayesVLMError(f"--port {port}: a port is a number from 1 to 65535, such as 7860.")
    taken = BayesVLMError(
        f"The page cannot listen on {host}:{port or 7860}: the port is taken, or the address is not this machine's; "
        "choose another --port or --host."
    )
    try:  # before a model is loaded
        check_address(host, port or 0)
    except OSError:
        raise taken from None
    names = posterior or list(default_names())
    local = is_local(host)
    share_heaps()
    with tidy_end():
        remark(f"load      {names[0]}")
        desk = Desk(Models(names, root or ([Path()] if local else []), device), index, device)
        if not local:
            remark(f"warning: {host} can be reached from other machines, and the page asks nobody who they are")

        def listening(address: str) -> None:
            remark(f"page      {address}; stop it with Ctrl-C")
            desk.warm()

        try:
            launch(desk, host, port, browser=browser, said=listening, ending=lambda: remark("ending    ..."))
        except OSError:
            raise taken from None
        finally:
            desk.settle()
