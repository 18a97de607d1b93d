"""A fit of batches from any iterable: one group of pairs, told from others by what they look like."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bayesvlm.artifacts.checkpoint import restore_checkpoint, save_checkpoint
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.estimation import FactorEstimator
from bayesvlm.core.features import Features
from bayesvlm.core.groups import GroupFactors, GroupSums, OpenGroup, Tally
from bayesvlm.fitting.groups import FitSettings
from bayesvlm.fitting.stages import CURVATURE, IMAGES, TEXTS, WAITING, Stages
from bayesvlm.images.decoding import PIXEL_VALUES, Readable
from bayesvlm.plain import PlainVLM
from bayesvlm.progress import progress_bar

logger = logging.getLogger("bayesvlm.fitting")


def sum_batches(
    vlm: PlainVLM,
    pairs: Iterable[tuple[Any, Any]],
    negatives: int,
    settings: FitSettings,
    *,
    limit: int | None,
    checkpoint: Path | None,
    run: Mapping[str, Any],
    total: int | None,
    progress: bool | None,
) -> GroupSums:
    """The sums over all pairs, as one group.

    What is encoded together ends where a contrast batch does, so that a run that goes on encodes the same batches.

    Args:
        pairs: batches of (images, texts).
        limit: take so many pairs only.
        checkpoint: where the sums are kept after every finished contrast batch, or None.
        run: what identifies the run; a checkpoint of another run, or of other pairs, is refused.
        total: number of pairs, for the progress bar.
    """
    if isinstance(pairs, str | Path) or not isinstance(pairs, Iterable):
        raise BayesVLMError(
            f"pairs is a {type(pairs).__name__}; it must be an iterable of batches, each (images, texts). "
            "Folders are read by bayesvlm.data.PairFolder.open."
        )
    opened = restore_checkpoint(checkpoint, run)[1] if checkpoint else None
    done = 0 if opened is None else opened.position
    ledger, stages = _Ledger(), Stages()
    with (
        settings.aside(vlm.device) as beside,
        progress_bar(
            "estimating the posterior", total=total, unit="pairs", show=progress, note=stages.__str__
        ) as advance,
    ):
        estimator = settings.estimator(vlm, negatives, beside, opened)
        batches = _pieces(_checked(pairs), negatives, limit)
        while True:
            with stages(WAITING):
                batch = next(batches, None)
            if batch is None:
                break
            images, texts = batch
            if checkpoint:
                ledger.add(images, texts)
            else:
                ledger.pairs += len(texts)
            advance(len(texts))
            if opened is not None and ledger.pairs <= done:
                if ledger.pairs == done:
                    _check_same_pairs(checkpoint, ledger, opened)
                    logger.info("going on from %s, which holds %d pairs", checkpoint, done)
                continue
            with stages(IMAGES):
                seen = vlm.image_features(images, workers=settings.workers, progress=False)
            with stages(TEXTS):
                said = vlm.text_features(texts, progress=False)
            with stages(CURVATURE):
                estimator.add(seen, said)
                if ledger.pairs % negatives == 0:
                    estimator.close(_kept(checkpoint, run, estimator, ledger) if checkpoint else None)
        if ledger.pairs < done:
            raise BayesVLMError(
                f"{checkpoint} holds {done} pairs, but only {ledger.pairs} were given now; it was made from other "
                "pairs: delete it to start afresh."
            )
        with stages(CURVATURE):
            factors = estimator.factors()
    return GroupSums().add(GroupFactors(0, factors, Tally(ledger.pairs, seconds=stages.taken())))


def _kept(checkpoint: Path, run: Mapping[str, Any], estimator: FactorEstimator, ledger: _Ledger) -> Callable[[], None]:
    """Writes the state after the pairs seen so far, once the sums hold them."""
    position, digest = ledger.pairs, ledger.digest()

    def write() -> None:
        state = OpenGroup(0, position, dict(estimator.closed), estimator.recent, digest=digest)
        save_checkpoint(checkpoint, run, GroupSums(), state)

    return write


def _checked(pairs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """The batches, each two things of one length."""
    for batch in pairs:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise BayesVLMError(
                f"A batch of pairs is a {type(batch).__name__}; it must be two things: (images, texts)."
            )
        images, texts = _as_batch(batch[0]), _as_batch(batch[1])
        if len(images) != len(texts):
            raise BayesVLMError(f"A batch has {len(images)} images and {len(texts)} texts; pairs need equally many.")
        yield images, texts


def _pieces(batches: Iterator[tuple[Any, Any]], negatives: int, limit: int | None) -> Iterator[tuple[Any, Any]]:
    """The batches, cut where a contrast batch ends, and where the limit is reached."""
    position = 0
    for images, texts in batches:
        start = 0
        while start < len(texts):
            if position == limit:
                return
            stop = start + negatives - position % negatives
            stop = min(len(texts), stop if limit is None else min(stop, start + limit - position))
            whole = start == 0 and stop == len(texts)
            yield (images, texts) if whole else (images[start:stop], texts[start:stop])
            position, start = position + stop - start, stop


class _Ledger:
    """A running hash of the pairs seen: a resumed run must see the same."""

    def __init__(self) -> None:
        self.pairs = 0
        self._hash = hashlib.sha256()

    def add(self, images: Any, texts: Any) -> None:
        for index in range(len(texts)):
            self._hash.update(_mark(images[index]))
            self._hash.update(_mark(texts[index]))
        self.pairs += len(texts)

    def digest(self) -> str:
        return self._hash.hexdigest()


def _check_same_pairs(checkpoint: Path | None, ledger: _Ledger, opened: OpenGroup) -> None:
    if ledger.digest() != opened.digest:
        raise BayesVLMError(
            f"The first {opened.position} pairs are not those {checkpoint} was made from; delete the file to start "
            "afresh."
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
