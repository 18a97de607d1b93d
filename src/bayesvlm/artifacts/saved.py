"""Posteriors on disk: safetensors + json + a model card, written atomically and checked on load. Never a pickle.

A saved posterior is a folder:

    posterior.safetensors    A and B of both towers: plain sums (so that runs add), float64, the upper triangle of each
    config.json              schema, model id and revision, hashes of the projections and of the whole encoder, loss,
                             tau, lam, pairs, provenance
    README.md                a model card with the posterior's own numbers
    projections.safetensors  only where they are not a named model's: given by hand, or fine-tuned

Schema 1, which bayesvlm 0.1 wrote, has whole squares in posterior.safetensors and is read as well.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from safetensors.torch import save as to_safetensors
from torch import Tensor

from bayesvlm.artifacts.card import model_card
from bayesvlm.artifacts.files import check_writable, read_safetensors, write_together
from bayesvlm.artifacts.reading import check_disjoint
from bayesvlm.artifacts.triangles import packed, unpacked
from bayesvlm.artifacts.weights import agree
from bayesvlm.core.errors import BayesVLMError, BayesVLMWarning, check_choice, check_positive
from bayesvlm.core.estimation import TOWERS, Loss, Normalise, Tower, best_lams
from bayesvlm.core.evidence import Structure
from bayesvlm.core.factors import KroneckerFactors
from bayesvlm.core.printing import described
from bayesvlm.core.projection import Projection
from bayesvlm.core.settings import Covariance, Link

SCHEMA = 2
SQUARES = 1  # the schema whose tensors are whole matrices
TENSORS, CONFIG, CARD, PROJECTIONS = "posterior.safetensors", "config.json", "README.md", "projections.safetensors"
LamSource = Literal["evidence", "given"]
_CHOICES = {"loss": Loss, "lam_source": LamSource, "structure": Structure, "covariance": Covariance, "link": Link}
_KINDS: dict[str, Any] = {
    "logit_scale": (int, float), "logit_bias": (int, float), "normalise": str, "weights": dict,
    "weight_norm_squared": dict, "bias": dict, "model": str, "revision": str, "provenance": dict, "tensors_sha256": str,
    "encoder_weights": dict, "all_weights": dict,
}  # fmt: skip
_ALIKE = (
    "weights", "loss", "logit_scale", "logit_bias", "normalise", "tau", "structure", "covariance", "link", "lam_source",
)  # fmt: skip


@dataclass(frozen=True)
class PosteriorConfig:
    """Everything about a posterior that is not a matrix; config.json is this, as json."""

    loss: Loss
    tau: float
    lam: dict[str, float]
    lam_source: LamSource
    structure: Structure = "damped"
    covariance: Covariance = "diagonal"
    link: Link = "probit"
    logit_scale: float | None = None  # None: the model's, when one is given
    logit_bias: float | None = None
    normalise: Normalise | None = None  # of the sigmoid loss
    weights: dict[str, str] | None = None  # dtype -> sha256 of the projections rounded to it; None: not tied to any
    weight_norm_squared: dict[str, float] | None = None
    bias: dict[str, bool] | None = None
    model: str | None = None
    revision: str | None = None
    encoder_weights: dict[str, str] | None = None  # of a fine-tuned model: hashes of the projections it came with
    all_weights: dict[str, str] | None = None  # dtype -> hash of the whole encoder rounded to it; None: not known
    provenance: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class SavedPosterior:
    """A posterior as it lies on disk: factors, config and, where no model that is named has them, the projections."""

    factors: dict[Tower, KroneckerFactors]
    config: PosteriorConfig
    projections: dict[Tower, Projection] | None = None

    __repr__ = described

    def save(self, folder: str | Path) -> Path:
        """Write the folder; every file is complete under another name before it takes its own."""
        folder = check_destination(folder)
        tensors = to_safetensors(_factor_tensors(self.factors))
        config = {
            "bayesvlm_schema": SCHEMA,
            **asdict(self.config),
            "pairs": {tower: self.factors[tower].n for tower in TOWERS},
            "tensors_sha256": hashlib.sha256(tensors).hexdigest(),
        }
        files = {TENSORS: tensors}
        if self.projections is not None:
            files[PROJECTIONS] = to_safetensors(_projection_tensors(self.projections))
        files[CARD] = model_card(config, self.factors).encode()
        files[CONFIG] = (json.dumps(config, indent=2) + "\n").encode()  # last: it vouches for the tensors
        write_together(folder, files)
        if self.projections is None:
            (folder / PROJECTIONS).unlink(missing_ok=True)  # of an earlier save
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> SavedPosterior:
        """Read a folder written by `save`; refuses what is damaged, of an unknown schema or inconsistent."""
        folder = Path(folder)
        if not folder.is_dir():
            raise BayesVLMError(f"{folder} is not a folder; a saved posterior is one, with {TENSORS} and {CONFIG}.")
        raw = _read_config(folder / CONFIG)
        config = _config_from(raw, folder / CONFIG)
        tensors = read_safetensors(folder / TENSORS)
        squares = raw["bayesvlm_schema"] == SQUARES
        factors = {tower: _factors_from(tensors, squares, tower, raw["pairs"][tower], folder) for tower in TOWERS}
        with (folder / TENSORS).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != raw["tensors_sha256"]:
            raise BayesVLMError(
                f"{folder / TENSORS} is not the file that {CONFIG} was written with (sha256 {digest[:12]}... against "
                f"{raw['tensors_sha256'][:12]}...); one was changed or a save was cut off: fit or copy it again."
            )
        projections = _load_projections(folder / PROJECTIONS) if (folder / PROJECTIONS).exists() else None
        if projections is None and config.encoder_weights is not None:
            raise BayesVLMError(
                f"This posterior is of a model after it was fine-tuned, and {folder / PROJECTIONS} is missing; copy "
                "the whole folder."
            )
        return cls(factors, config, projections)

    def merge(self, *others: SavedPosterior) -> SavedPosterior:
        """All the pairs together; see `merged`."""
        return SavedPosterior.merged(
            (f"posterior {number}", saved) for number, saved in enumerate((self, *others), start=1)
        )

    @classmethod
    def merged(cls, posteriors: Iterable[tuple[str, SavedPosterior]]) -> SavedPosterior:
        """All the pairs together. Every posterior must be for the same projections, loss and settings.

        Posteriors that read some of the same pairs are refused, by what their provenance says they read; where it does
        not say, there is a warning, as there is where shares of a plan are missing.

        Args:
            posteriors: with what to call each in a sentence; one is looked at after the other and not kept.
        """
        sums: dict[Tower, KroneckerFactors] = {}
        first: SavedPosterior | None = None
        provenances: dict[str, dict[str, Any]] = {}
        encoders: list[dict[str, str] | None] = []
        copies: dict[str, str] = {}
        for name, saved in posteriors:
            first = first or saved
            first._check_alike(name, saved)
            known = next((encoder for encoder in encoders if encoder is not None), None)
            encoders.append(saved.config.all_weights)
            if known is not None and encoders[-1] is not None and not agree(encoders[-1], known):
                raise BayesVLMError(
                    "The posteriors were estimated with different encoders in front of the same projections; only "
                    "posteriors of the same model can be merged."
                )
            digest = hashlib.sha256(saved.factors["image"].A_sum.cpu().numpy().tobytes()).hexdigest()
            if digest in copies:
                raise BayesVLMError(
                    f"Two of the posteriors, {copies[digest]} and {name}, are copies of one another; their pairs would "
                    "count twice."
                )
            copies[digest], provenances[name] = name, saved.config.provenance
            sums = {t: sums[t].merge(saved.factors[t]) if sums else saved.factors[t] for t in TOWERS}
        if first is None or len(provenances) < 2:
            raise BayesVLMError(f"merge was given {len(provenances)} posterior; it adds up two or more.")
        for remark in check_disjoint(provenances):
            warnings.warn(f"{remark}.", BayesVLMWarning, stacklevel=3)
        config = replace(
            first.config,
            all_weights=None if None in encoders else encoders[0],
            provenance={"merged": list(provenances.values()), "pairs": sums["image"].n},
        )
        if config.lam_source == "evidence" and config.weight_norm_squared is not None:
            config = replace(config, lam=best_lams(sums, config.weight_norm_squared, config.tau, config.structure))
        return cls(sums, config, first.projections)

    def _check_alike(self, name: str, other: SavedPosterior) -> None:
        """Refuse to add one that is not for the same projections, with the same loss and settings."""
        if other.config.weights is None:
            raise BayesVLMError(
                f"A posterior that is not tied to a model's weights cannot be merged ({name}); convert it with --model."
            )
        differing = [entry for entry in _ALIKE if _entry(other, entry) != _entry(self, entry)]
        if self.config.lam_source == "given" and other.config.lam != self.config.lam:
            differing.append("lam")
        if differing:
            raise BayesVLMError(
                f"The posteriors differ in {differing[0]} ({_entry(self, differing[0])} and "
                f"{_entry(other, differing[0])}, of {name}); only posteriors of the same model, made with the same "
                "settings, can be merged."
            )


def _entry(saved: SavedPosterior, name: str) -> object:
    value = getattr(saved.config, name)
    return value["float32"][:12] if name == "weights" else value


def check_destination(folder: str | Path) -> Path:
    """The folder a posterior may be saved to: new, empty, or one that does not hold something else's config.json."""
    folder = check_writable(folder, "A posterior")
    if (folder / CONFIG).exists() and not _has_schema(folder):
        raise BayesVLMError(
            f"A posterior cannot be saved to {folder}: it holds the {CONFIG} of something else (a model?), which would "
            "be overwritten; give another folder."
        )
    return folder


def is_posterior(folder: str | Path) -> bool:
    """Whether a local folder holds a saved posterior (rather than a model), be it a damaged one."""
    return (Path(folder) / TENSORS).exists() or _has_schema(Path(folder))


def _has_schema(folder: Path) -> bool:
    try:
        return "bayesvlm_schema" in json.loads((folder / CONFIG).read_text())
    except (OSError, ValueError, TypeError):
        return False


def _factor_tensors(factors: Mapping[Tower, KroneckerFactors]) -> dict[str, Tensor]:
    return {
        f"{tower}.{name}": packed(getattr(factors[tower], f"{name}_sum").cpu()) for tower in TOWERS for name in "AB"
    }


def _factors_from(
    tensors: Mapping[str, Tensor], squares: bool, tower: Tower, pairs: int, folder: Path
) -> KroneckerFactors:
    missing = [name for name in (f"{tower}.A", f"{tower}.B") if name not in tensors]
    if missing:
        raise BayesVLMError(f"{folder / TENSORS} has no tensor {' or '.join(missing)}; it is not a saved posterior.")
    try:
        A, B = (tensors[f"{tower}.{name}"] if squares else unpacked(tensors[f"{tower}.{name}"], name) for name in "AB")
        return KroneckerFactors(A, B, pairs).check()
    except BayesVLMError as error:
        raise BayesVLMError(f"{folder / TENSORS}, {tower} tower: {error}") from None


def _projection_tensors(projections: Mapping[Tower, Projection]) -> dict[str, Tensor]:
    tensors = {}
    for tower in TOWERS:
        tensors[f"{tower}.weight"] = projections[tower].weight.cpu().contiguous()
        bias = projections[tower].bias
        if bias is not None:
            tensors[f"{tower}.bias"] = bias.cpu().contiguous()
    return tensors


def _load_projections(path: Path) -> dict[Tower, Projection]:
    tensors = read_safetensors(path)
    try:
        return {tower: Projection(tensors[f"{tower}.weight"], tensors.get(f"{tower}.bias")) for tower in TOWERS}
    except KeyError as missing:
        raise BayesVLMError(f"{path} has no tensor {missing}; it must hold both towers' projections.") from None


def _read_config(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text())
    except FileNotFoundError:
        raise BayesVLMError(f"{path} does not exist; a saved posterior needs it, copy the whole folder.") from None
    except (OSError, ValueError) as error:
        raise BayesVLMError(f"{path} is not readable json ({error}); copy or make the posterior again.") from None
    schema = raw.get("bayesvlm_schema") if isinstance(raw, dict) else None
    if schema not in (SQUARES, SCHEMA):
        raise BayesVLMError(
            f"{path} has schema {schema!r}, this version reads {SQUARES} and {SCHEMA}; "
            + ("upgrade bayesvlm." if isinstance(schema, int) and schema > SCHEMA else "it is not a saved posterior.")
        )
    return dict(raw)


def _config_from(raw: Mapping[str, Any], path: Path) -> PosteriorConfig:
    """The configuration in `raw`, every entry present and possible."""
    raw = {"encoder_weights": None, "all_weights": None, **raw}  # the first posteriors of 0.1 had neither
    names = PosteriorConfig.__dataclass_fields__
    missing = [name for name in (*names, "pairs", "tensors_sha256") if name not in raw]
    if missing:
        raise BayesVLMError(f"{path} has no entry {missing[0]!r}; it is incomplete, fit or copy the posterior again.")
    try:
        for name, choice in _CHOICES.items():
            check_choice(name, raw[name], get_args(choice))
        check_positive("tau", raw["tau"])
        for tower in TOWERS:
            check_positive(f"lam of the {tower} tower", raw["lam"][tower])
            if not isinstance(raw["pairs"][tower], int) or not 1 <= raw["pairs"][tower] < 2**63:
                raise BayesVLMError(f"pairs of the {tower} tower is {raw['pairs'][tower]!r}; it must be 1 or more.")
        for name, kinds in _KINDS.items():
            if raw[name] is not None and (isinstance(raw[name], bool) or not isinstance(raw[name], kinds)):
                raise BayesVLMError(
                    f"{name} is {raw[name]!r}, a value of the wrong type; fit or copy the posterior again."
                )
        if raw["encoder_weights"] is not None and raw["weights"] is None:
            raise BayesVLMError("It has encoder_weights but no weights; fit or copy the posterior again.")
        for name in ("weights", "encoder_weights", "all_weights"):
            if raw[name] is not None and not isinstance(raw[name].get("float32"), str):
                raise BayesVLMError(f"{name} must hold hashes by dtype, float32 among them.")
    except BayesVLMError as error:
        raise BayesVLMError(f"{path}: {error}") from None
    except (KeyError, TypeError) as error:
        raise BayesVLMError(f"{path}: lam and pairs need an entry for each tower, image and text ({error}).") from None
    return PosteriorConfig(**{name: raw[name] for name in names})
