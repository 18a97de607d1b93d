"""Model: a posterior, its card, and whether its probabilities mean what they say."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch

from bayesvlm.app.curve import Series, curve
from bayesvlm.app.drawings import drawings
from bayesvlm.app.markup import page, percent, quiet, table
from bayesvlm.app.models import Opened
from bayesvlm.app.naming import ways
from bayesvlm.artifacts.card import model_card
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.evaluation import Outcomes, accuracy, ece, nlpd

SPLIT = "new-drawing"
"""Drawings that tuned nothing."""
BINS = 10


@dataclass(frozen=True)
class Quality:
    """How good one way to predict is on the drawings."""

    name: str
    top1: float
    nlpd: float
    nlpd_error: float
    ece: float
    points: tuple[tuple[float, float], ...]  # mean confidence and share of right answers, by bin


@dataclass(frozen=True)
class Description:
    """A model: its card in Markdown, and the quality of its probabilities."""

    name: str
    card: str
    drawings: int
    classes: int
    qualities: tuple[Quality, ...]


def describe(opened: Opened) -> Description:
    """A model on drawings that tuned nothing, plain and with what it does not know."""
    shown = drawings(SPLIT)
    names = tuple(_classes())
    labels = torch.tensor([names.index(each.name) for each in shown])
    vlm, texts = opened.vlm, opened.texts(names)
    images = vlm.image_features([each.image for each in shown], progress=False)
    called = ways(vlm)
    probs = {called.plain: vlm.plain(images, texts), called.bayes: vlm.classify(images, texts).probs}
    qualities = tuple(_quality(name, each.cpu(), labels) for name, each in probs.items())
    return Description(opened.name, _card(opened), len(shown), len(names), qualities)


def _classes() -> list[str]:
    from bayesvlm.embedded import world

    return list(world("What models are measured on").load(SPLIT).classes)


def _quality(name: str, probs: torch.Tensor, labels: torch.Tensor) -> Quality:
    loss, binned = nlpd(probs, labels), Outcomes.of(probs, labels).reliability(BINS)
    kept = binned.count > 0
    points = zip(binned.confidence[kept].tolist(), binned.accuracy[kept].tolist(), strict=True)
    return Quality(
        name, accuracy(probs, labels).value, loss.value, loss.standard_error, ece(probs, labels), tuple(points)
    )


def _card(opened: Opened) -> str:
    try:
        saved = opened.vlm.saved()
    except BayesVLMError as error:
        return str(error)
    card = model_card(asdict(saved.config), saved.factors)
    shown = card.split("---\n", 2)[-1]  # without what is meant for the Hub
    # A card has no tags, links or pictures of its own: those would be of whoever made the posterior.
    return shown.replace("<", "&lt;").replace("[", "\\[")


def description_html(description: Description) -> str:
    """The quality as the page has it; the card is Markdown of its own."""
    rows = [
        [q.name, percent(q.top1), f"{q.nlpd:.3f} ± {q.nlpd_error:.3f}", percent(q.ece)] for q in description.qualities
    ]
    colours = ("plain", "bayes")
    series = [Series(q.name, q.points, colour) for q, colour in zip(description.qualities, colours, strict=True)]
    return page(
        "<h3>Do its probabilities mean what they say?</h3>",
        quiet(
            f"{description.drawings} drawings of {SPLIT}, {description.classes:,} names. "
            "NLPD: minus the logarithm of the probability of the right name, on average, ± its standard error. ECE: "
            "how far probabilities are from the share of right answers. Of both, less is better. A point on the dotted "
            "line keeps its word: of answers given with 70\u00a0%, 70\u00a0% are right."
        ),
        table(["", "top-1", "NLPD", "ECE"], rows),
        curve(series, "confidence", "share of right answers", (0, 1, 0, 1), diagonal=True),
    )
