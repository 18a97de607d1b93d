"""Break it: a picture and a text destroyed step by step; what mean, variance and answer do on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from PIL import Image

from bayesvlm.app.markup import (
    axis_line,
    axis_of,
    bar,
    called,
    cosine,
    facts,
    interval,
    page,
    pair,
    percent,
    picture,
    quiet,
    rounded,
    table,
)
from bayesvlm.app.models import Opened
from bayesvlm.app.uploads import Picture
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.distortion import LEVELS, Distortion
from bayesvlm.experiments.corruption import crossed_out, greyed

STEPS = 6
"""From intact to what the sliders say, both included."""
_BLUR = LEVELS["blur"][-1]


@dataclass(frozen=True)
class Damage:
    """How much of what is destroyed, all from 0 to 1."""

    blur: float = 0.0
    grey: float = 0.0
    occlusion: float = 0.0
    letters: float = 0.0

    def __post_init__(self) -> None:
        for name, share in vars(self).items():
            if not 0 <= share <= 1:
                raise BayesVLMError(f"{name} is {share}; move its slider to between 0 and 1.")

    def times(self, share: float) -> Damage:
        """A part of the way there."""
        return Damage(*(share * value for value in vars(self).values()))

    def picture(self, image: Image.Image) -> Image.Image:
        """The picture, destroyed so far; what is greater destroys more of the same, not other things."""
        image = Distortion("blur", _BLUR * self.blur)(image) if self.blur else image
        image = Distortion("greyscale", self.grey)(image) if self.grey else image
        return greyed(image, self.occlusion, torch.Generator().manual_seed(0))

    def text(self, text: str) -> str:
        """The text, with that share of its letters crossed out."""
        return crossed_out(text, self.letters, torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class Step:
    """One point on the way: the cosine of picture and text, and what the picture is taken for."""

    share: float
    text: str
    mean: float
    variance: float
    low: float
    high: float
    answer: str
    prob: float
    entropy: float


@dataclass(frozen=True)
class Way:
    """From intact to broken: the last picture, and the steps."""

    image: Image.Image
    steps: Sequence[Step]


def destroy(opened: Opened, shown: Picture, text: str, names: Sequence[str], damage: Damage) -> Way:
    """What the model says on the way to a damage."""
    vlm, whole = opened.vlm, shown.image
    shares = [step / (STEPS - 1) for step in range(STEPS)]
    pictures = [damage.times(share).picture(whole) for share in shares]
    texts = [damage.times(share).text(text) for share in shares]
    images = vlm.image_features(pictures, progress=False)
    prediction = vlm.classify(images, opened.texts(tuple(names)))
    distinct = list(dict.fromkeys(texts))
    moments = vlm.similarity(images, vlm.text_features(distinct, progress=False))
    low, high = moments.interval(0.95)
    steps = []
    for row, (share, written) in enumerate(zip(shares, texts, strict=True)):
        place = row, distinct.index(written)
        steps.append(
            Step(
                share,
                written,
                float(moments.mean[place]),
                float(moments.variance[place]),
                float(low[place]),
                float(high[place]),
                names[int(prediction.labels[row])],
                float(prediction.probs[row].max()),
                float(prediction.entropy[row]),
            )
        )
    return Way(pictures[-1], steps)


def way_html(way: Way) -> str:
    """The way as the page has it."""
    first, last = way.steps[0], way.steps[-1]
    axis = axis_of([step.low for step in way.steps], [step.high for step in way.steps])
    ratio = last.variance / first.variance
    change = f"{ratio:.2f} times that of the intact pair"
    rows = "".join(f"<li>{_step(step, axis)}</li>" for step in way.steps)
    return page(
        facts(
            ("picture", picture(way.image, "the picture, destroyed")),
            ("text", f"<p><strong>{called(last.text)}</strong></p>"),
            (
                "cosine of picture and text",
                f"<p><strong>{cosine(last.mean, last.low, last.high)}</strong></p>"
                + quiet(f"intact: {cosine(first.mean, first.low, first.high)}"),
            ),
            (
                "its variance",
                f"<p><strong data-variance='{last.variance:.6e}'>{last.variance:.3e}</strong></p>" + quiet(change),
            ),
            (
                "answer among the names",
                f"<p><strong>{called(last.answer)}, {percent(last.prob)}</strong></p>"
                + f"<p class='quiet'>intact: {called(first.answer)}, {percent(first.prob)}; "
                f"entropy {first.entropy:.2f} → {last.entropy:.2f} nats (0: sure)</p>",
            ),
        ),
        "<h3>On the way there</h3>",
        f"<ul class='rows'>{rows}</ul>",
        axis_line(axis),
        "<details><summary>The same as a table</summary>",
        table(
            ["of the way", "text", "cosine", "variance", "answer", "probability"],
            [
                [
                    rounded(step.share),
                    step.text,
                    cosine(step.mean, step.low, step.high),
                    f"{step.variance:.3e}",
                    step.answer,
                    percent(step.prob),
                ]
                for step in way.steps
            ],
        ),
        "</details>",
    )


def _step(step: Step, axis: tuple[float, float]) -> str:
    said = f"<span class='quiet'>variance {step.variance:.2e}</span>"
    return (
        f"<div class='line'><span>{rounded(step.share)} of the way: {called(step.answer)}</span>{said}</div>"
        + pair(("probability", bar((step.prob, "bayes")), percent(step.prob)))
        + interval(step.mean, step.low, step.high, axis)
    )
