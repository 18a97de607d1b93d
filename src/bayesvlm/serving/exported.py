"""An exported ONNX file, read back with its metadata checked and run by onnxruntime: numpy in, numpy out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bayesvlm.core.errors import BayesVLMError, check_count, first_line
from bayesvlm.images.decoding import PIXEL_VALUES, ImageInputs, as_images, to_rgb
from bayesvlm.serving.graph import LABEL_OUTPUT, OUTPUTS
from bayesvlm.serving.metadata import ExportMetadata
from bayesvlm.serving.pixels import PixelRecipe

Array = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class ExportedPrediction:
    """What an exported file says of some inputs.

    Args:
        probs: of every class, [N, C].
        mean, std: of the cosine with every class, [N, C].
        entropy: of `probs`, in nats, [N].
        classes: their names.
        label_probs: of each label by itself, of models trained with the sigmoid loss, [N, C]; None of others.
    """

    probs: Array
    mean: Array
    std: Array
    entropy: Array
    classes: tuple[str, ...]
    label_probs: Array | None = None

    @property
    def labels(self) -> NDArray[np.int64]:  # [N]
        """Index of the most probable class."""
        best: NDArray[np.int64] = np.argmax(self.probs, axis=1)
        return best

    def __len__(self) -> int:
        return len(self.probs)

    def __repr__(self) -> str:
        return f"ExportedPrediction of {len(self)} inputs among {len(self.classes)} classes"


class ExportedModel:
    """A file that `export` wrote, ready to run. Made by `load_exported`."""

    def __init__(self, session: Any, metadata: ExportMetadata, path: Path) -> None:
        self._session, self.metadata, self.path = session, metadata, path
        self._outputs = [output.name for output in session.get_outputs()]
        self.inputs = {each.name: tuple(each.shape[1:]) for each in session.get_inputs()}
        self.recipe = None if metadata.preprocessing is None else _recipe(metadata, path)
        self._check_shapes()

    @property
    def classes(self) -> tuple[str, ...]:
        """What the columns of the answers are called."""
        return self.metadata.classes

    def __call__(self, images: ImageInputs, batch_size: int = 32) -> ExportedPrediction:
        """Answers for one image or many, which may be anything that `BayesVLM.classify` takes for images."""
        if self.recipe is None:
            raise BayesVLMError(
                f"{self.path} holds the head alone, which takes no images; call .run({', '.join(self.inputs)}) with "
                "what your encoder gives, or load the file of the whole model."
            )
        check_count("batch_size", batch_size)
        asked, parts = as_images(images), []
        for start in range(0, len(asked), batch_size):
            batch = enumerate(asked[start : start + batch_size], start)
            read = [to_rgb(image, f"images[{place}]", self.recipe.resizing) for place, image in batch]
            parts.append(self.run(**{PIXEL_VALUES: self.recipe(read)}))
        return _joined(parts)

    def run(self, **inputs: ArrayLike) -> ExportedPrediction:
        """Answers for arrays, by the names of the file's inputs: `pixel_values`, or `activations` (and `residual`)."""
        if inputs.keys() != self.inputs.keys():
            raise BayesVLMError(
                f"{self.path} takes {' and '.join(self.inputs)}, and was given {' and '.join(inputs) or 'nothing'}."
            )
        arrays = {name: np.asarray(value, dtype=np.float32) for name, value in inputs.items()}
        for name, array in arrays.items():
            if array.shape[1:] != self.inputs[name] or array.ndim == 0 or len(array) == 0:
                expected = ", ".join(map(str, ("N", *self.inputs[name])))
                raise BayesVLMError(f"{name} is {list(array.shape)}; {self.path} takes [{expected}].")
        if len({len(array) for array in arrays.values()}) > 1:
            rows = {name: len(array) for name, array in arrays.items()}
            raise BayesVLMError(f"There are {rows} rows; each input needs one of each.")
        found = dict(zip(self._outputs, self._session.run(self._outputs, arrays), strict=True))
        probs, mean, std, entropy = (found[name] for name in OUTPUTS)
        return ExportedPrediction(probs, mean, std, entropy, self.classes, found.get(LABEL_OUTPUT))

    def __repr__(self) -> str:
        name = self.metadata.model or "a model of projections"
        return f"ExportedModel({self.path}, {self.metadata.kind} of {name}, {len(self.classes)} classes)"

    def _check_shapes(self) -> None:
        """Refuse a file whose graph is not what its metadata says."""
        missing = [name for name in OUTPUTS if name not in self._outputs]
        if missing:
            raise BayesVLMError(f"{self.path} has no output {' and '.join(missing)}; export it again.")
        for output in self._session.get_outputs():
            if output.name != "entropy" and output.shape[1:] != [len(self.classes)]:
                raise BayesVLMError(
                    f"{self.path} has wrong metadata: {len(self.classes)} classes, and {output.name} of shape "
                    f"{output.shape}; export it again."
                )
        if self.recipe is not None:
            expected = {PIXEL_VALUES: (3, *self.recipe.crop[::-1])}
            if self.inputs != expected:
                raise BayesVLMError(
                    f"{self.path} has wrong metadata: its preprocessing makes {expected} and the graph takes "
                    f"{self.inputs}; export it again."
                )


def load_exported(
    path: str | Path,
    classes: Sequence[str] | None = None,
    *,
    providers: Sequence[Any] | None = None,
    threads: int | None = None,
) -> ExportedModel:
    """Read a file that `bayesvlm export` wrote; needs onnxruntime, and not the model it was made from.

    Args:
        path: of a model, which takes images, or of a head, which takes what enters the last linear layer.
        classes: the list that you believe it was exported for; another one in the file is refused.
        providers: of onnxruntime, in the order of preference; None: the processor.
        threads: that an operation is shared out between; None: one per core.

    Raises:
        BayesVLMError: where onnxruntime is missing, the file is none, or its metadata is wrong.
    """
    path = Path(path)
    try:
        onnxruntime = import_module("onnxruntime")
    except ImportError:
        raise BayesVLMError(
            "An exported file is run by onnxruntime, which is not installed: `pip install 'bayesvlm[onnx]'`."
        ) from None
    if path.suffix == ".pt2":
        raise BayesVLMError(f"{path} is a program of torch.export; read it with torch.export.load({str(path)!r}).")
    if not path.is_file():
        raise BayesVLMError(f"There is no file {path}; name one that `bayesvlm export` wrote.")
    options = onnxruntime.SessionOptions()
    if threads is not None:
        options.intra_op_num_threads = check_count("threads", threads)
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=providers or ["CPUExecutionProvider"])
    except Exception as error:  # its own exception types, of a module that has no stable name
        raise BayesVLMError(
            f"{path} cannot be read by onnxruntime ({first_line(error)}); export it again, and copy all of its files."
        ) from error
    metadata = ExportMetadata.read(session.get_modelmeta().custom_metadata_map, path)
    if classes is not None:
        metadata.check_classes(classes, path)
    return ExportedModel(session, metadata, path)


def _recipe(metadata: ExportMetadata, path: Path) -> PixelRecipe:
    assert metadata.preprocessing is not None
    try:
        return PixelRecipe.from_json(metadata.preprocessing)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BayesVLMError(
            f"{path} has wrong metadata: 'preprocessing' says nothing that can be done ({type(error).__name__}: "
            f"{first_line(error)}); export it again."
        ) from None


def _joined(parts: Sequence[ExportedPrediction]) -> ExportedPrediction:
    if len(parts) == 1:
        return parts[0]
    rows = [[part.probs, part.mean, part.std, part.entropy] for part in parts]
    probs, mean, std, entropy = (np.concatenate(columns) for columns in zip(*rows, strict=True))
    alone = [part.label_probs for part in parts if part.label_probs is not None]
    return ExportedPrediction(probs, mean, std, entropy, parts[0].classes, np.concatenate(alone) if alone else None)
