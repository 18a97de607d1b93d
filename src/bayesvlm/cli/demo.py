"""`bayesvlm demo`: the main job end to end on the embedded world, and a page to look at."""

from __future__ import annotations

import json
import re
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from bayesvlm.cli.options import Device, Json, Overwrite
from bayesvlm.cli.output import emit, remark, table


def demo(
    context: typer.Context,
    model: Annotated[
        str, typer.Option(help="An embedded model, or any other CLIP or SigLIP: Hub id or folder.")
    ] = "emoji-clip",
    out: Annotated[Path, typer.Option("--out", help="Folder for the report, the numbers and the posterior.")] = Path(
        "demo"
    ),
    overwrite: Overwrite = False,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Fit, tune and predict on the embedded world of emoji, and write a report to look at.

    A small CLIP that was trained on six drawing styles meets new drawings, new styles and new concepts. Nothing is
    precomputed but the model's weights. Takes a few minutes on two cores.

    Examples:

        bayesvlm demo

        bayesvlm demo --model emoji-siglip --out demo-siglip
    """
    from bayesvlm.artifacts.files import check_writable
    from bayesvlm.artifacts.locks import only_command_in
    from bayesvlm.artifacts.saved import check_destination
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.embedded import embedded_model, world

    world("What the demo runs on")
    from bayesvlm.experiments.demo import run_demo
    from bayesvlm.experiments.demo_pictures import pictures
    from bayesvlm.experiments.methods import SINGLE
    from bayesvlm.progress import duration
    from bayesvlm.report.demo import next_commands, verdicts, write_demo
    from bayesvlm.report.writing import write_whole
    from bayesvlm.vlm import BayesVLM

    started = time.perf_counter()
    context.with_resource(only_command_in(check_writable(out)))
    there = [name for name in ("report.html", "results.json", "posterior") if (out / name).exists()]
    if there and not overwrite:
        raise BayesVLMError(
            f"{out} holds a {there[0]} already; look at it, name another folder with --out, or replace it with "
            "--overwrite."
        )
    posterior = check_destination(out / "posterior")
    remark(f"load      {model}{' from the package' if embedded_model(model) else ''}, without a posterior")
    vlm = BayesVLM.from_pretrained(model, device=device)
    found, vlm = run_demo(vlm, model, remark)
    remark("report    tables and pictures")
    report = write_demo(found, out)
    vlm.save_pretrained(posterior)
    for name, image in pictures().items():
        write_whole(out / "images" / f"{name}.webp", image)
    seconds = time.perf_counter() - started
    result = {**found.numbers(), "report": str(report), "posterior": str(posterior), "total_seconds": seconds}
    write_whole(out / "results.json", (json.dumps(result, indent=2) + "\n").encode())
    rows = []
    for test in found.sets.values():
        if test.scores:
            by_method = [test.scores[method] for method in SINGLE]
            rows.append(
                [
                    test.title,
                    " / ".join(f"{100 * scores.top1.value:.1f}" for scores in by_method),
                    " / ".join(f"{scores.nlpd.value:.2f}" for scores in by_method),
                    " / ".join(f"{100 * scores.ece:.1f}" for scores in by_method),
                ]
            )
    text: list[Any] = [
        table(" / ".join(SINGLE), ["set", "top-1 %", "NLPD", "ECE %"], rows),
        *map(bullet, verdicts(found)),
        f"done in {duration(seconds)}; the report is {report}",
        "try next:",
        *(f"  {command}    # {comment}" for command, comment in next_commands(out, model)),
        "look at:",
        *(f"  {what}    # {comment}" for what, comment in places(report)),
    ]
    emit(result, text, as_json)


def bullet(verdict: str) -> str:
    """A verdict as a list item; where it says on which sets which method is better, each group on a line of its own."""
    return "- " + re.sub(r" (?=(?:better|level|worse) on |\(nats gained)", "\n    ", verdict.replace("**", ""))


def places(report: Path) -> list[tuple[str, str]]:
    """The page, the app and, in a checkout, the site: each with what it is."""
    extra = "" if find_spec("gradio") else "; needs `pip install 'bayesvlm[app]'`"
    found = [(str(report), "this run: open it in a browser"), ("bayesvlm app", f"ask, break, search and label{extra}")]
    if Path("mkdocs.yml").is_file():
        found.append(("make site", "the documentation: site/index.html"))
    return found
