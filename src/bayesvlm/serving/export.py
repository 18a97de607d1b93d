"""A model for fixed classes as files that run without this package: ONNX, or programs of torch.export."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayesvlm import __version__
from bayesvlm.core.errors import BayesVLMError, writing
from bayesvlm.core.features import Features
from bayesvlm.images.decoding import PIXEL_VALUES
from bayesvlm.predicting import predict
from bayesvlm.progress import progress_bar
from bayesvlm.prompts import ClassNames, ClassPrompts, Templates, check_templates
from bayesvlm.serving.graph import HeadGraph, ModelGraph
from bayesvlm.serving.metadata import ExportMetadata, Kind
from bayesvlm.serving.pixels import PixelRecipe
from bayesvlm.serving.programs import OPSET, Graph, data_file, run_file, save_onnx, save_program, traced

if TYPE_CHECKING:
    from bayesvlm.models import Adapter
    from bayesvlm.models.image_tower import ImageTower
    from bayesvlm.vlm import BayesVLM

TOLERANCE = 1e-4
"""The most that a probability of a file may differ from torch's."""

ONNX, PT2 = ".onnx", ".pt2"
_NEEDED = {ONNX: ("onnx", "onnxscript", "onnxruntime"), PT2: ()}
_TRIED = 3  # inputs that a file is tried on
_PER_FILE = 2  # steps of the bar: traced; written and tried


@dataclass(frozen=True, eq=False)
class EncodedClasses:
    """What a file is for.

    Args:
        features: activations of the classes, [C].
        names: what they are called; None: they have numbers.
        templates: the prompts that the names were put into; None: the names are the prompts.
    """

    features: Features
    names: tuple[str, ...] | None = None
    templates: Templates | None = None


@dataclass(frozen=True)
class Exported:
    """What was written.

    Args:
        model: the file from pixels to answers; None: the head alone was asked for.
        head: the file from what enters the image tower's last linear layer to the same answers.
        metadata: of the first of the two.
        difference: the largest between a probability of these files and torch's, on noise.
    """

    model: Path | None
    head: Path
    metadata: ExportMetadata
    difference: float

    @property
    def files(self) -> list[Path]:
        """All of them, with what holds the weights of a model too large for one."""
        written = [path for path in (self.model, self.head) if path is not None]
        return [file for path in written for file in (path, data_file(path)) if file.exists()]


def export_paths(path: str | Path, head_only: bool = False) -> dict[Kind, Path]:
    """What is written where: `model.onnx` and, beside it, `model.head.onnx`."""
    path = Path(path)
    if path.suffix not in _NEEDED:
        raise BayesVLMError(
            f"{path} ends in {path.suffix or 'nothing'!r}; name a file ending in {ONNX} (ONNX) or {PT2} (torch.export)."
        )
    absent = [package for package in _NEEDED[path.suffix] if find_spec(package) is None]
    if absent:
        raise BayesVLMError(f"Export to ONNX needs {' and '.join(absent)}: `pip install 'bayesvlm[onnx]'`.")
    return {"head": path} if head_only else {"model": path, "head": path.with_suffix(f".head{path.suffix}")}


def export_model(
    vlm: BayesVLM,
    classes: ClassNames | Features,
    path: str | Path,
    *,
    templates: Templates | None = None,
    names: Sequence[str] | None = None,
    head_only: bool = False,
    progress: bool | None = None,
) -> Exported:
    """Write a model for fixed classes to a file: from pixels to probabilities, mean, standard deviation and entropy.

    A file ending in .onnx runs wherever ONNX does, one ending in .pt2 with torch alone; both take any number of images
    at once, in float32. The head alone is written beside it, `model.head.onnx`, for people who keep their own encoder.
    Each file is run and compared with torch before it takes its name; what had that name is replaced.

    Args:
        vlm: a model with a posterior, damped or exact, whose link is not "mc".
        classes, templates: as for `classify`.
        path: of the file.
        names: of classes that are given as Features.
        head_only: write the head to `path` and nothing else, which needs no encoder.
        progress: None shows a bar on a terminal.

    Raises:
        BayesVLMError: for what cannot be exported; nothing is written then.
    """
    export_paths(path, head_only)
    _ = HeadGraph.check(vlm), None if head_only else _encoder(vlm)  # before the classes are encoded
    named = None if isinstance(classes, Features) else ClassPrompts.of(classes).names
    if named is not None and names is not None:
        raise BayesVLMError("names= is for classes given as Features; these have names already, so leave it out.")
    features = vlm.class_features(classes, templates, progress=progress)
    asked = EncodedClasses(features, named if names is None else tuple(names), templates)
    return export_encoded(vlm, asked, path, head_only=head_only, progress=progress)


def export_encoded(
    vlm: BayesVLM,
    classes: EncodedClasses,
    path: str | Path,
    *,
    head_only: bool = False,
    progress: bool | None = None,
) -> Exported:
    """`export_model` for classes that are encoded already."""
    paths = export_paths(path, head_only)
    vlm, texts = vlm.to("cpu"), classes.features.to("cpu")
    HeadGraph.check(vlm)
    about = _about(vlm, classes, Path(path).suffix)
    with torch.no_grad():
        head = HeadGraph(vlm, texts)
    metadata, differences = {}, []
    with (
        progress_bar("Exporting", total=_PER_FILE * len(paths), unit="steps", show=progress) as advance,
        _taking_their_names(list(paths.values())) as temporary,
    ):
        for kind, final in paths.items():
            graph, preprocessing = _graph_of_head(vlm, head), None
            if kind == "model":
                tower, recipe = _encoder(vlm)
                graph, preprocessing = _graph_of_model(tower, recipe, head), recipe.to_json()
            metadata[kind] = ExportMetadata(kind=kind, preprocessing=preprocessing, **about)
            program = traced(graph)
            advance(1)
            if final.suffix == PT2:
                save_program(program, metadata[kind], temporary[final])
            else:
                save_onnx(program, graph, metadata[kind], temporary[final])
            differences.append(_tried(vlm, texts, graph, temporary[final], final))
            advance(1)
    found = metadata["head" if head_only else "model"]
    return Exported(paths.get("model"), paths["head"], found, max(differences))


def _encoder(vlm: BayesVLM) -> tuple[ImageTower, PixelRecipe]:
    """The image tower and what comes before it, if both can be exported."""
    adapter = vlm.encoder("images")
    if adapter.dtype != torch.float32:
        dtype = str(adapter.dtype).removeprefix("torch.")
        raise BayesVLMError(
            f"The encoder of {adapter.name!r} runs in {dtype}, and files are exported in float32: load the model with "
            "dtype=torch.float32, export it, and make the file smaller afterwards (docs/serving.md says how)."
        )
    return adapter.image_tower(), PixelRecipe.of(adapter)


def _graph_of_model(tower: ImageTower, recipe: PixelRecipe, head: HeadGraph) -> Graph:
    width, height = recipe.crop
    inputs = {PIXEL_VALUES: torch.zeros(2, 3, height, width)}
    return Graph(ModelGraph(tower.traceable(), head), inputs, head.outputs)


def _graph_of_head(vlm: BayesVLM, head: HeadGraph) -> Graph:
    inputs = {"activations": torch.zeros(2, vlm.image.activation_width)}
    if vlm.image.residual:
        inputs["residual"] = torch.zeros(2, vlm.image.embedding_width)
    return Graph(head, inputs, head.outputs)


def _about(vlm: BayesVLM, classes: EncodedClasses, suffix: str) -> dict[str, Any]:
    """The metadata that both files share."""
    names = classes.names or tuple(f"class {index}" for index in range(len(classes.features)))
    if len(names) != len(classes.features):
        raise BayesVLMError(f"There are {len(names)} names for {len(classes.features)} classes; give one for each.")
    templates = None
    if classes.templates is not None:
        templates = tuple(
            each if isinstance(each, str) else f"function {getattr(each, '__name__', type(each).__name__)}"
            for each in check_templates(classes.templates)
        )
    try:
        tau, lam = vlm.tau, dict(vlm.lam)
    except BayesVLMError:  # inside the inverses of a published posterior
        tau, lam = None, None
    adapter: Adapter | None = vlm.adapter
    return {
        "classes": names,
        "templates": templates,
        "model": None if adapter is None else adapter.name,
        "revision": None if adapter is None else adapter.revision,
        "loss": vlm.loss,
        "temperature": vlm.scale,
        "logit_bias": vlm.logit_bias,
        "tau": tau,
        "lam": lam,
        "structure": vlm.settings.structure,
        "covariance": vlm.settings.covariance,
        "link": vlm.settings.link,
        "opset": OPSET if suffix == ONNX else None,
        "bayesvlm": __version__,
    }


def _tried(vlm: BayesVLM, texts: Features, graph: Graph, written: Path, final: Path) -> float:
    """The largest difference of a file's probabilities to those of `classify`, on noise; a wrong file is refused."""
    generator = torch.Generator().manual_seed(0)
    noise = {name: torch.randn(_TRIED, *each.shape[1:], generator=generator) for name, each in graph.inputs.items()}
    features = _features(vlm, noise)
    expected = predict(vlm, features, texts, None, "probcosine", draws=1, seed=0).probs
    found = run_file(written, noise, graph.outputs)["probabilities"]
    difference = float((torch.from_numpy(found) - expected).abs().max())
    if not difference <= TOLERANCE:
        raise BayesVLMError(
            f"{final} is not written: its probabilities differ from torch's by {difference:.1e}, more than "
            f"{TOLERANCE:g}; export to the other format (.onnx, .pt2), and report the model and the versions of torch "
            "and onnxruntime."
        )
    return difference


def _features(vlm: BayesVLM, inputs: dict[str, Tensor]) -> Features:
    if PIXEL_VALUES in inputs:
        return vlm.encoder("images").encode_pixels(inputs)
    return Features(inputs["activations"], inputs.get("residual"))


@contextmanager
def _taking_their_names(paths: Sequence[Path]) -> Iterator[dict[Path, Path]]:
    """Where to write each file; when the block ends well, all of them take their names, one after another."""
    folder = paths[0].absolute().parent
    with writing(paths[0], "make room, or name another file"):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=f".{paths[0].name}.") as hidden:
            yield {path: Path(hidden, path.name) for path in paths}
            for path in paths:
                data_file(path).unlink(missing_ok=True)  # of an earlier export
            for file in sorted(Path(hidden).iterdir(), reverse=True):  # weights before the graph that names them
                with file.open("rb") as written:
                    os.fsync(written.fileno())
                os.replace(file, folder / file.name)
