"""transformers' pipeline for zero-shot image classification, with the uncertainty beside the scores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesvlm.classes import warn_of_one_class
from bayesvlm.core.cosine import prob_cosine
from bayesvlm.core.errors import BayesVLMError, check_count
from bayesvlm.core.features import Features
from bayesvlm.core.marginal import TextDraws
from bayesvlm.core.predict import centred_probit, entropy, plain_logits, probit, sigmoid_probit
from bayesvlm.images.decoding import PIXEL_VALUES, as_images
from bayesvlm.models import resolve_device
from bayesvlm.models.streaming import stream_features
from bayesvlm.plain import BATCH_SIZE
from bayesvlm.prompts import ClassNames
from bayesvlm.serving.call_options import CallOptions
from bayesvlm.serving.image_inputs import Sources, kind_of, singly
from bayesvlm.serving.label_sets import LabelSet, LabelSets
from bayesvlm.vlm import BayesVLM

TASK = "zero-shot-image-classification"
Answer = list[dict[str, Any]]
"""Of one image: a dict for every label, the best first."""


def pipeline(
    task: str | Path | BayesVLM | None = None,
    model: str | Path | BayesVLM | None = None,
    *,
    device: int | str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    plain: bool = False,
    draws: int = 128,
    seed: int = 0,
    allow_urls: bool = False,
    remember: int = 32,
    **options: Any,
) -> ZeroShotImageClassificationPipeline:
    """A pipeline that is called as that of transformers is, and answers in the same dicts, in the same order.

    Args:
        task: "zero-shot-image-classification", which may be left out: one argument alone is the model.
        model: a BayesVLM, which is copied, or whatever `BayesVLM.from_pretrained` loads: a saved posterior's folder or
            id, an embedded model, a model of CLIP's or SigLIP's kind (with `plain`, as it has no posterior).
        device: as for transformers: "cpu", "cuda:1", a number of a GPU, -1 for the CPU; None leaves a BayesVLM where it
            is and takes CUDA for others, where there is one.
        dtype, revision: of the model to load, as for `BayesVLM.from_pretrained`.
        plain: answer without the posterior, with the scores of transformers' pipeline and nothing else. They are its
            scores to the letter: where a tokenizer does not lower-case texts for SigLIP, nor does this.
        draws: of the parameters, for `epistemic`.
        seed: of the draws.
        allow_urls: whether images may be web addresses, which are fetched.
        remember: how many label lists are kept encoded.
        options: of the calls, for every call: `candidate_labels`, `hypothesis_template`, `batch_size`, ...

    Example:
        >>> from bayesvlm import world
        >>> from bayesvlm.serving import pipeline
        >>> pipe = pipeline("emoji-clip", device="cpu")
        >>> image = world.load("openmoji-colour").images[0]
        >>> labels = ["grinning face", "house", "banana"]
        >>> answers = pipe(image, candidate_labels=labels, hypothesis_template="{}")
        >>> answers[0]["label"], sorted(answers[0])
        ('grinning face', ['epistemic', 'interval', 'label', 'score', 'std'])
    """
    if model is None and task != TASK:
        task, model = TASK, task
    if task not in (None, TASK):
        raise BayesVLMError(f"The task {str(task)[:60]!r} is not one of this pipeline, which does {TASK!r}.")
    if isinstance(device, int):
        device = "cpu" if device < 0 else f"cuda:{device}"
    if isinstance(model, BayesVLM):
        if dtype is not None or revision is not None:
            raise BayesVLMError("dtype and revision are of a model that is to be loaded; this one is here already.")
        vlm = model.copy() if device is None else model.to(resolve_device(device))
    elif isinstance(model, str | Path):
        vlm = BayesVLM.from_pretrained(model, device=device, dtype=dtype, revision=revision)
    else:
        raise BayesVLMError(
            f"The model is {'missing' if model is None else f'a {type(model).__name__}'}; pass a BayesVLM, a saved "
            "posterior's folder or id, or a model's name, folder or id."
        )
    more = ", device, dtype, revision, plain, draws, seed, allow_urls, remember"
    chosen = CallOptions().with_given(options, vlm, "the making", more)
    return ZeroShotImageClassificationPipeline(vlm, plain, draws, seed, allow_urls, remember, chosen)


class ZeroShotImageClassificationPipeline:
    """From images and candidate labels to a list of dicts per image, best label first. Made by `pipeline`.

    Several threads may call it at once. It holds a model of its own and changes nothing.

    Attributes:
        task: "zero-shot-image-classification".
        plain: whether it answers without the posterior.
    """

    task = TASK

    def __init__(
        self,
        vlm: BayesVLM,
        plain: bool,
        draws: int,
        seed: int,
        allow_urls: bool,
        remember: int,
        options: CallOptions,
    ) -> None:
        encoder = vlm.encoder("images and labels")
        if not plain and not vlm.fitted:
            raise BayesVLMError(
                f"{encoder.name} has no posterior, so its scores have no uncertainty: fit one "
                "(`bayesvlm fit`, vlm.fit(pairs)) and pass the saved posterior, or ask for the scores alone with "
                "pipeline(..., plain=True)."
            )
        self._vlm, self.plain, self._options = vlm.without_lower_case() if plain else vlm, bool(plain), options
        self._draws, self._seed = check_count("draws", draws), seed
        self._sources, self._remember = Sources(bool(allow_urls), options.timeout), check_count("remember", remember)
        self._forget()
        if options.candidate_labels is not None:  # what is wrong with them is said now
            self._labels(options)

    # What it is ------------------------------------------------------------------------------------------------------

    @property
    def model(self) -> BayesVLM:
        """A copy of its model: what is done to that does not change the pipeline."""
        return self._vlm.copy()

    @property
    def device(self) -> torch.device:
        return self._vlm.device

    def __repr__(self) -> str:
        said = "plain" if self.plain else f"epistemic from {self._draws} draws with seed {self._seed}"
        return f"{type(self).__name__}({self._vlm!r}, device={self.device}, {said})"

    def __getstate__(self) -> dict[str, Any]:
        """A pickle holds no labels: they are encoded again."""
        return {name: value for name, value in self.__dict__.items() if name != "_label_sets"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def _forget(self) -> None:
        draws = None
        if not self.plain:
            draws = TextDraws(self._vlm.posterior["text"], self._vlm.text, self._draws, self._seed)
        self._label_sets = LabelSets(self._vlm, draws, self._remember)

    # What it answers -------------------------------------------------------------------------------------------------

    def __call__(
        self,
        image: Any = None,
        candidate_labels: ClassNames | str | None = None,
        *,
        images: Any = None,
        **options: Any,
    ) -> Any:
        """The labels of an image, of a list of images, or of a generator or data set of them.

        Args:
            image: a PIL image, a path, a web address where that is allowed, an image in base64, an image file's bytes,
                an array or a tensor; or a list of these; or a data set of torch, a generator or any other iterable.
            candidate_labels: names, or one str with commas between them.
            images: the same as `image`, by its other name.
            options: `hypothesis_template`, with {} in the place of the label ("This is a photo of {}."), several of
                which are averaged, None for labels as they are; `batch_size`, images that go through the encoder at
                once (64 of a list, 1 of a stream); `num_workers`, processes that decode; `timeout`, seconds to wait for
                an address; `top_k`, how many labels are answered; `level`, of the interval; `epistemic`, False to leave
                it out; `tokenizer_kwargs`, which may ask for what is done anyway.

        Returns:
            For one image a list of dicts, one per label, the best first; for a list a list of these lists; for a stream
            an iterable of them that reads as it goes. `score` and `label` are those of transformers: a softmax over the
            labels, or of models trained with the sigmoid loss the probability of each label by itself. `std` is the
            standard deviation of the label's cosine with the image, `interval` the central credible interval of that
            cosine. `epistemic`, the same in all dicts of an image, is the part of the entropy of the softmax over these
            labels that more data on the model would resolve, in nats, as `BayesVLM.classify` has it.
        """
        if (image is None) == (images is None):
            raise BayesVLMError(
                "There is no image; pass one, or several, as the first argument."
                if image is None
                else "image and images are two names of one argument; pass one of them."
            )
        given = options if candidate_labels is None else {"candidate_labels": candidate_labels, **options}
        asked = self._options.with_given(given, self._vlm)
        labels = self._labels(asked)
        if self._vlm.loss != "sigmoid":
            warn_of_one_class(labels.names, False, stacklevel=2)
        sources = replace(self._sources, timeout=asked.timeout)
        kind, inputs = kind_of(images if image is None else image)
        if kind == "one":
            (one,) = inputs
            return self._answers(self._encoded(sources.opened(one, "the image"), "the image"), labels, asked)[0]
        if kind == "list":
            return [*self._in_batches(as_images(inputs), sources, labels, asked)]
        streamed = _Stream(self, inputs, sources, labels, asked)
        return streamed if isinstance(inputs, Sized) else iter(streamed)

    def _labels(self, asked: CallOptions) -> LabelSet:
        drawn = not self.plain and (asked.epistemic or self._vlm.settings.link == "mc")
        return self._label_sets.of(asked.candidate_labels, asked.hypothesis_template, drawn)

    def _encoded(self, image: Any, label: str) -> Features:
        """One image, without the threads that many are worth."""
        adapter = self._vlm.encoder("images")
        ready = isinstance(image, Mapping) and PIXEL_VALUES in image
        prepare = adapter.preprocessor.ready if ready else adapter.preprocessor.prepared
        return adapter.encode_pixels(prepare(image, label))

    def _in_batches(
        self, images: Iterable[Any], sources: Sources, labels: LabelSet, asked: CallOptions
    ) -> Iterator[Answer]:
        batches = stream_features(
            self._vlm.encoder("images"),
            sources.each(images),
            batch_size=asked.batch_size or BATCH_SIZE,
            workers=asked.num_workers,
            strict=True,
            label="images",
            total=len(images) if isinstance(images, Sized) else None,
        )
        for batch in batches:
            yield from self._answers(batch.features, labels, asked)

    def _one_by_one(
        self, images: Iterable[Any], sources: Sources, labels: LabelSet, asked: CallOptions
    ) -> Iterator[Answer]:
        """Every answer before the next image is asked for: there may be somebody waiting for it."""
        for place, image in enumerate(singly(images)):
            label = f"images[{place}]"
            yield from self._answers(self._encoded(sources.opened(image, label), label), labels, asked)

    @torch.no_grad()
    def _answers(self, features: Features, labels: LabelSet, asked: CallOptions) -> list[Answer]:
        columns = self._plain(features, labels) if self.plain else self._bayes(features, labels, asked)
        scores = columns["score"]
        most = min(asked.top_k or scores.shape[1], scores.shape[1])
        order = scores.argsort(dim=1, descending=True, stable=True)[:, :most]
        said = {
            name: (each.gather(1, order) if each.ndim == 2 else each[:, None].expand(-1, most)).tolist()
            for name, each in columns.items()
        }
        names = [[labels.names[place] for place in row] for row in order.tolist()]
        if "low" in said:
            said["interval"] = [
                [*zip(*ends, strict=True)] for ends in zip(said.pop("low"), said.pop("high"), strict=True)
            ]
        keys = ["score", "label", *(key for key in ("std", "interval", "epistemic") if key in said)]
        rows = zip(*(names if key == "label" else said[key] for key in keys), strict=True)
        return [[dict(zip(keys, values, strict=True)) for values in zip(*row, strict=True)] for row in rows]

    def _plain(self, features: Features, labels: LabelSet) -> dict[str, Tensor]:
        logits = plain_logits(self._vlm.image.embed(features), labels.mean, self._vlm.scale)
        if self._vlm.loss == "sigmoid":
            return {"score": torch.sigmoid(logits + (self._vlm.logit_bias or 0.0))}
        return {"score": torch.softmax(logits, dim=1)}

    def _bayes(self, features: Features, labels: LabelSet, asked: CallOptions) -> dict[str, Tensor]:
        vlm = self._vlm
        image, link = vlm.posterior["image"], vlm.settings.link
        assert labels.embedded is not None
        moments = prob_cosine(image.embed(features), labels.embedded)
        split = labels.draws.split(image.marginals(features), vlm.scale) if asked.epistemic or link == "mc" else None
        if split is not None and link == "mc":
            probs = split.probs
        else:
            probs = (centred_probit if link == "centred" else probit)(moments, vlm.scale)
        sigmoid = vlm.loss == "sigmoid"
        scores = sigmoid_probit(moments, vlm.scale, vlm.logit_bias or 0.0) if sigmoid else probs
        low, high = moments.interval(asked.level)
        columns = {"score": scores, "std": moments.std, "low": low, "high": high}
        if split is not None and asked.epistemic:
            columns["epistemic"] = entropy(probs) * split.epistemic_share.to(probs)
        return columns


class _Stream:
    """The answers to a data set or a generator, made as they are taken."""

    def __init__(
        self,
        pipe: ZeroShotImageClassificationPipeline,
        images: Iterable[Any],
        sources: Sources,
        labels: LabelSet,
        asked: CallOptions,
    ) -> None:
        self._pipe, self._images, self._asked = pipe, images, (sources, labels, asked)

    def __len__(self) -> int:
        return len(self._images)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Answer]:
        _, _, asked = self._asked
        alone = asked.batch_size in (None, 1) and not asked.num_workers
        each = self._pipe._one_by_one if alone else self._pipe._in_batches
        return each(self._images, *self._asked)
