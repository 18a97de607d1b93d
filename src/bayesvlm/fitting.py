"""The pass over image-text pairs: batches in, factors out, resumable from a checkpoint."""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bayesvlm.artifacts.checkpoint import restore_checkpoint, save_checkpoint
from bayesvlm.artifacts.weights import weight_hashes
from bayesvlm.core.contrast import Precision
from bayesvlm.core.errors import BayesVLMError, BayesVLMWarning
from bayesvlm.core.estimation import TOWERS, FactorEstimator, Normalise, Tower
from bayesvlm.core.factors import KroneckerFactors
from bayesvlm.core.features import Features
from bayesvlm.core.projection import Projection
from bayesvlm.data.pairs import PairSet
from bayesvlm.images.decoding import PIXEL_VALUES, Readable
from bayesvlm.plain import PlainVLM
from bayesvlm.progress import progress_bar

logger = logging.getLogger(__name__)


def fit_factors(
    vlm: PlainVLM,
    pairs: Iterable[tuple[Any, Any]],
    record: Mapping[str, Any],
    *,
    negatives: int,
    normalise: Normalise,
    precision: Precision | None,
    memory: int | None,
    checkpoint: Path | None,
    total: int | None,
    progress: bool | None,
) -> dict[Tower, KroneckerFactors]:
    """The factors of both towers of a model from image-text pairs; see `BayesVLM.fit`.

    Args:
        record: what is known of the pairs; a checkpoint with another record is refused.
    """
    bias = vlm.logit_bias or 0.0
    estimator = FactorEstimator(vlm.image, vlm.text, vlm.scale, bias, vlm.loss, negatives, normalise, precision, memory)
    weights = weight_hashes(vlm.image, vlm.text)["float32"]
    return estimate_factors(
        estimator,
        pairs.decoded(vlm.encoder("images").preprocessor.prepared) if isinstance(pairs, PairSet) else pairs,
        lambda images, texts: (vlm.image_features(images, progress=False), vlm.text_features(texts, progress=False)),
        checkpoint=checkpoint,
        run={**record, "normalise": normalise, "weights": weights, "precision": precision},
        total=total,
        progress=progress,
    )


def estimate_factors(
    estimator: FactorEstimator,
    pairs: Iterable[tuple[Any, Any]],
    encode: Callable[[Any, Any], tuple[Features, Features]],
    *,
    checkpoint: Path | None,
    run: Mapping[str, Any],
    total: int | None,
    progress: bool | None,
) -> dict[Tower, KroneckerFactors]:
    """Feed all pairs to the estimator, once.

    Args:
        estimator: fresh.
        pairs: batches of (images, texts).
        encode: from a batch to the features of both towers.
        checkpoint: where the sums are kept after every finished contrast batch, or None.
        run: what identifies the run; a checkpoint of another run, or of other pairs, is refused.
        total: number of pairs, for the progress bar.
        progress: None shows a bar on a terminal.
    """
    if isinstance(pairs, str | Path) or not isinstance(pairs, Iterable):
        raise BayesVLMError(
            f"pairs is a {type(pairs).__name__}; it must be an iterable of batches, each (images, texts). "
            "Folders are read by bayesvlm.data.PairFolder.open."
        )
    ledger = _Ledger(estimator.negatives)
    done, digest = restore_checkpoint(checkpoint, estimator, run) if checkpoint else (0, "")
    with progress_bar("estimating the posterior", total=total, unit="pairs", show=progress) as advance:
        for batch in pairs:
            if not isinstance(batch, tuple | list) or len(batch) != 2:
                raise BayesVLMError(
                    f"A batch of pairs is a {type(batch).__name__}; it must be two things: (images, texts)."
                )
            images, texts = _as_batch(batch[0]), _as_batch(batch[1])
            if len(images) != len(texts):
                raise BayesVLMError(
                    f"A batch has {len(images)} images and {len(texts)} texts; pairs need equally many."
                )
            skip = min(max(done - ledger.pairs, 0), len(texts))
            if checkpoint:
                ledger.add(images, texts)
                if skip and ledger.pairs >= done:
                    _check_same_pairs(checkpoint, ledger, done, digest)
                    logger.info("going on from %s, which holds %d pairs", checkpoint, done)
            advance(len(texts))
            if skip == len(texts):
                continue
            closed = estimator.pairs_closed
            estimator.update(*encode(images[skip:], texts[skip:]))
            if checkpoint and estimator.pairs_closed > closed:
                save_checkpoint(checkpoint, estimator, run, ledger.digests[estimator.pairs_closed])
    if ledger.pairs < done:
        raise BayesVLMError(
            f"{checkpoint} holds {done} pairs, but only {ledger.pairs} were given now; it was made from other pairs: "
            "delete it to start afresh."
        )
    factors = estimator.factors()
    for tower in TOWERS:
        factors[tower].check()
    _warn_few(factors["image"].n, estimator.image, estimator.text)
    return factors


def _warn_few(pairs: int, image: Projection, text: Projection) -> None:
    """Say so where there are fewer pairs than a tower's activations have directions."""
    widest = max(image.input_width, text.input_width)
    if pairs < widest:
        warnings.warn(
            f"The posterior is estimated from {pairs} pairs, fewer than the {widest} numbers that enter a projection "
            f"(its embeddings have {image.embedding_width}): in the directions that no pair shows it is the prior, and "
            "its variances say little; fit on thousands of pairs.",
            BayesVLMWarning,
            stacklevel=4,
        )


class _Ledger:
    """A running hash of the pairs seen, noted at the end of every contrast batch: a resumed run must see the same."""

    def __init__(self, every: int) -> None:
        self.every, self.pairs = every, 0
        self.digests: dict[int, str] = {}
        self._hash = hashlib.sha256()

    def add(self, images: Any, texts: Any) -> None:
        for index in range(len(texts)):
            self._hash.update(_mark(images[index]))
            self._hash.update(_mark(texts[index]))
            self.pairs += 1
            if self.pairs % self.every == 0:
                self.digests[self.pairs] = self._hash.hexdigest()


def _check_same_pairs(checkpoint: Path, ledger: _Ledger, done: int, digest: str) -> None:
    if ledger.digests.get(done) != digest:
        raise BayesVLMError(
            f"The first {done} pairs are not those {checkpoint} was made from (one image that could not be read then "
            "and can be now is enough); delete the file to start afresh."
        )


def _mark(item: Any) -> bytes:
    """Enough of an image, a text or a row of features to tell it from its neighbours."""
    if isinstance(item, str | Path):
        return str(item).encode(errors="surrogatepass") + b"\0"
    if isinstance(item, Features):
        return _bytes(item.activations)
    if isinstance(item, Image.Image):
        return repr(item.size).encode() + item.resize((4, 4)).tobytes()
    if isinstance(item, Mapping):  # ready for the encoder
        item = item[PIXEL_VALUES]
    if isinstance(item, Readable):
        item.seek(0)  # type: ignore[attr-defined]
        return item.read()
    if isinstance(item, Tensor):
        return _bytes(item)
    return np.ascontiguousarray(item).tobytes() if isinstance(item, np.ndarray) else bytes(item)


def _bytes(tensor: Tensor) -> bytes:
    """Of any dtype, also those that numpy does not have."""
    return tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()


def _as_batch(values: Any) -> Any:
    """A batch as something with a length: one text, path or image is a batch of one."""
    if isinstance(values, str | Path | bytes | Image.Image | Readable):
        return [values]
    if isinstance(values, Mapping) and PIXEL_VALUES in values:  # a batch that is ready for the encoder, row by row
        rows = range(len(values[PIXEL_VALUES]))
        return [{name: column[row : row + 1] for name, column in values.items()} for row in rows]
    return values if hasattr(values, "__len__") else list(values)
