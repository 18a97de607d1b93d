"""`bayesvlm info`: what a saved posterior holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesvlm.cli.options import Json
from bayesvlm.cli.output import emit, table

if TYPE_CHECKING:
    from bayesvlm.core.factors import KroneckerFactors

TAUS = (1.0, 4.0)  # of the first release and of the paper's experiments
CHOICES = (("evidence", "damped"), ("evidence", "exact"), ("official", "damped"))


def info(
    posterior: Annotated[str, typer.Argument(help="A saved posterior: folder or Hub id.")],
    image_norm_squared: Annotated[
        float | None, typer.Option(help="Sum of the image projection's squared weights, if not saved.")
    ] = None,
    text_norm_squared: Annotated[
        float | None, typer.Option(help="Sum of the text projection's squared weights, if not saved.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what a saved posterior holds: sizes, traces, spectra, settings, and the best prior precision lam.

    Example:

        bayesvlm info posterior/
    """
    from bayesvlm.artifacts import SavedPosterior, hub
    from bayesvlm.core.errors import BayesVLMError, check_positive
    from bayesvlm.core.estimation import TOWERS

    folder = hub.find_posterior(posterior)
    if folder is None:
        raise BayesVLMError(
            f"{posterior} is not a saved posterior; give a folder with posterior.safetensors and config.json "
            "(published Hessian folders go through `bayesvlm convert` first)."
        )
    saved = SavedPosterior.load(folder)
    config = saved.config
    given = {"image": image_norm_squared, "text": text_norm_squared}
    for tower, value in given.items():
        if value is not None:
            check_positive(f"--{tower}-norm-squared", value)
    norms = {t: given[t] or (config.weight_norm_squared or {}).get(t) for t in TOWERS}
    towers: dict[str, Any] = {t: _tower(saved.factors[t], norms[t], config.lam[t]) for t in TOWERS}
    result = {
        "posterior": str(folder),
        "model": config.model,
        "revision": config.revision,
        "weights": (config.weights or {}).get("float32"),
        "all_weights": (config.all_weights or {}).get("float32"),
        "loss": config.loss,
        "tau": config.tau,
        "lam": config.lam,
        "lam_source": config.lam_source,
        "structure": config.structure,
        "covariance": config.covariance,
        "link": config.link,
        "provenance": {name: _short(name, fact) for name, fact in config.provenance.items()},
        "towers": towers,
    }
    weights = (config.weights or {"float32": "not tied to any"})["float32"][:16]
    encoder = (config.all_weights or {"float32": "not recorded"})["float32"]
    head = [
        f"posterior {folder}",
        f"model {config.model or 'not named'}, projections {weights}, encoder {encoder}, loss {config.loss}",
        f"tau = {config.tau:g}, structure {config.structure}, covariance {config.covariance}, link {config.link}",
    ]
    emit(result, [*head, _factor_table(towers, config), *_lam_tables(towers)], as_json)


def _short(name: str, fact: Any) -> Any:
    """A fact of the provenance, without the fingerprints of images."""
    if name != "tuned_images" or not isinstance(fact, dict):
        return fact
    return {key: value for key, value in fact.items() if key != "fingerprints"}


def _tower(factors: KroneckerFactors, norm_squared: float | None, lam: float) -> dict[str, Any]:
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.core.evidence import Evidence

    alpha, beta = factors.A_spectrum.values, factors.B_spectrum.values
    source = "recorded or given"
    if norm_squared is None:
        norm_squared = Evidence(alpha, beta, 1.0, objective="official").implied_weight_norm_squared(lam)
        source = "implied by lam at tau = 1 under the official objective"
        if norm_squared <= 0:
            raise BayesVLMError(
                f"The posterior does not record |W|^2, the sum of a projection's squared weights, and its lam = "
                f"{lam:g} would make it {norm_squared:.3g}; give --image-norm-squared and --text-norm-squared."
            )
    return {
        "pairs": factors.n,
        "p": len(alpha),
        "d": len(beta),
        "trace_A": float(factors.A.trace()),
        "trace_B": float(factors.B.trace()),
        "eigenvalues_A": [float(alpha[0]), float(alpha[-1])],
        "eigenvalues_B": [float(beta[0]), float(beta[-1])],
        "weight_norm_squared": norm_squared,
        "weight_norm_squared_source": source,
        "lam": [_solved(factors, norm_squared, tau, *choice) for tau in TAUS for choice in CHOICES],
    }


def _solved(
    factors: KroneckerFactors, norm_squared: float, tau: float, objective: str, structure: str
) -> dict[str, Any]:
    """One row of the table; lam is None where the objective has no maximum (the official one, on singular factors)."""
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.core.evidence import Evidence

    spectra = factors.A_spectrum.values, factors.B_spectrum.values
    try:
        lam = Evidence(*spectra, norm_squared, tau, structure, objective).best_lam()  # type: ignore[arg-type]
    except BayesVLMError:
        lam = None
    return {"tau": tau, "objective": objective, "structure": structure, "lam": lam}


def _factor_table(towers: dict[str, Any], config: Any) -> Any:
    def row(label: str, show: Any) -> list[str]:
        return [label, *(show(towers[tower]) for tower in towers)]

    rows = [
        row("pairs n", lambda t: str(t["pairs"])),
        row("inputs p, outputs d", lambda t: f"{t['p']}, {t['d']}"),
        row("trace of A", lambda t: f"{t['trace_A']:.8g}"),
        row("trace of B", lambda t: f"{t['trace_B']:.7g}"),
        row("eigenvalues of A", lambda t: "{:.4g} to {:.4g}".format(*t["eigenvalues_A"])),
        row("eigenvalues of B", lambda t: "{:.4g} to {:.4g}".format(*t["eigenvalues_B"])),
        [f"lam ({config.lam_source})", *(f"{config.lam[tower]:.6g}" for tower in towers)],
    ]
    return table("factors (1/sqrt(n) included)", ["", *towers], rows)


def _lam_tables(towers: dict[str, Any]) -> list[Any]:
    rows = []
    for index, line in enumerate(towers["image"]["lam"]):
        label = f"tau = {line['tau']:g}, {line['objective']}, {line['structure']}"
        solved = [towers[tower]["lam"][index]["lam"] for tower in towers]
        rows.append([label, *("no maximum" if lam is None else f"{lam:.6g}" for lam in solved)])
    norms = ", ".join(f"{tower} {towers[tower]['weight_norm_squared']:.6g}" for tower in towers)
    sources = {towers[tower]["weight_norm_squared_source"] for tower in towers}
    return [
        table("lam that maximises the evidence (official: as the authors released it)", ["", *towers], rows),
        f"for |W|^2 = {norms} ({'; '.join(sorted(sources))})",
    ]
