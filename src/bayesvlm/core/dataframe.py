"""Results as tables of pandas: a prediction has a row per input, or one per input and class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayesvlm.core.cosine import CosineMoments
from bayesvlm.core.errors import BayesVLMError

if TYPE_CHECKING:
    from bayesvlm.core.prediction import Prediction


_ROWS = 4096  # of inputs whose variances are multiplied out at a time


def needed_pandas() -> Any:
    """pandas, if it is installed."""
    try:
        import pandas
    except ImportError:
        raise BayesVLMError(
            "to_pandas() makes tables of pandas, which is not installed: `pip install 'bayesvlm[pandas]'`."
        ) from None
    return pandas


def prediction_frame(prediction: Prediction, top: int | None, wide: bool, parts: bool, level: float) -> Any:
    """What `Prediction.to_pandas` returns."""
    pandas = needed_pandas()
    if top is not None and wide:
        raise BayesVLMError(f"top={top} gives a row per class and wide=True a column per class; choose one of them.")
    inputs, classes = prediction.probs.shape
    shown = prediction.labels[:, None] if top is None else prediction.topk(top).indices  # [N, k]
    columns = _columns(prediction, shown, parts, level)
    if wide:
        names = prediction.classes or range(classes)
        called = [f"{name} (class)" if name in columns else name for name in names]
        columns |= dict(zip(called, _array(prediction.probs.T), strict=True))
    places = pandas.Index(range(inputs) if prediction.places is None else prediction.places, name="input")
    if top is None:
        return pandas.DataFrame(columns, index=places)
    ranks = range(1, shown.shape[1] + 1)
    return pandas.DataFrame(columns, index=pandas.MultiIndex.from_product([places, ranks], names=["input", "rank"]))


def _columns(prediction: Prediction, shown: Tensor, parts: bool, level: float) -> dict[Any, Any]:  # shown: [N, k]
    """Of the classes that are shown of each input, a column per quantity: [N k] each."""
    k = shown.shape[1]
    moments = _chosen(prediction.moments, shown)
    low, high = moments.interval(level)
    names = prediction.classes
    labels = shown.flatten().tolist()
    columns: dict[Any, Any] = {"label": labels if names is None else [names[label] for label in labels]}

    def add(name: str, values: Tensor) -> None:  # [N, k], or [N] of what is the same for all classes of an input
        columns[name] = _array((values if values.ndim == 2 else values[:, None].expand(-1, k)).ravel())

    add("prob", prediction.probs.gather(1, shown))
    if prediction.label_probs is not None:
        add("label_prob", prediction.label_probs.gather(1, shown))
    add("cosine", moments.mean)
    add("std", moments.std)
    add("low", low)
    add("high", high)
    add("entropy", prediction.entropy)
    if parts or prediction.is_drawn:
        add("epistemic", prediction.epistemic)
        add("aleatoric", prediction.aleatoric)
    return columns


def _chosen(moments: CosineMoments, shown: Tensor) -> CosineMoments:  # shown: [N, k]
    """Of each input's classes those that are shown, without multiplying out the variance of all at once."""
    blocks = [slice(start, start + _ROWS) for start in range(0, len(shown), _ROWS)] or [slice(0)]
    variance = torch.cat([moments.variance_of(block).gather(1, shown[block]) for block in blocks])
    return CosineMoments(moments.mean.gather(1, shown), variance)


def _array(values: Tensor) -> Any:
    """On the CPU, in a precision that numpy has."""
    values = values.detach().cpu()
    return (values.float() if values.dtype in (torch.bfloat16, torch.float16) else values).numpy()
