"""Class probabilities with what they are made of: the object `BayesVLM.classify` returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesvlm.core.cosine import CosineMoments
from bayesvlm.core.dataframe import prediction_frame
from bayesvlm.core.distribution import EmbeddingDistribution
from bayesvlm.core.errors import BayesVLMError, check_count
from bayesvlm.core.features import Features, Index, row_index
from bayesvlm.core.notebook import bar, html_table, split_bar
from bayesvlm.core.predict import EntropySplit, entropy, monte_carlo, sigmoid_probit
from bayesvlm.core.printing import FIRST, beginning, described


@dataclass(frozen=True, eq=False)
class ParameterDraws:
    """What it takes to draw the parameters behind a prediction; nothing is drawn before `split` is called.

    Args:
        image, text: how the towers' embeddings are distributed.
        images: features of the inputs, [N].
        texts: features of the classes, [C].
        scale: t.
        count: how many draws.
        seed: of the draws.
    """

    image: EmbeddingDistribution
    images: Features
    text: EmbeddingDistribution
    texts: Features
    scale: float
    count: int = 128
    seed: int = 0

    __repr__ = described

    def split(self) -> EntropySplit:
        """Average probabilities over the draws, and their entropy in two parts."""
        return monte_carlo(self.image, self.images, self.text, self.texts, self.scale, self.count, self.seed)

    def __getitem__(self, index: Index) -> ParameterDraws:
        """The same draws for some of the inputs: a draw is of the parameters, and shared by all."""
        return replace(self, images=self.images[index])

    def to(self, *args: Any, **kwargs: Any) -> ParameterDraws:
        """Move or cast, as `torch.Tensor.to`."""
        names = ("image", "images", "text", "texts")
        return replace(self, **{name: getattr(self, name).to(*args, **kwargs) for name in names})


@dataclass(frozen=True)
class SigmoidLink:
    """From the moments of cosines to the probability of each label by itself; see `sigmoid_probit`."""

    scale: float
    bias: float


class TopK(NamedTuple):
    """The most probable classes of each input, the most probable first."""

    probs: Tensor  # [N, k]
    indices: Tensor  # [N, k]
    names: tuple[tuple[str, ...], ...] | None  # k per input; None where the classes have none


@dataclass(frozen=True, eq=False)
class Prediction:
    """Class probabilities with what they are made of.

    `epistemic + aleatoric` is `entropy`. Only parameter draws tell the two apart, and their average has an entropy of
    its own, often a lower one: the probit flattens the logits where the draws average over softmaxes. So the draws give
    the shares, which divide the entropy of the probabilities that are shown:

        epistemic = entropy * monte_carlo.epistemic / monte_carlo.total

    That lies between 0 and `entropy` with every link, is 0 where the draws agree, and with link="mc" it is the mutual
    information between label and parameters. `monte_carlo.epistemic` is that with every link.

    `monte_carlo`, and with it the two parts, `variance` and `label_probs` are computed on first access and kept. All of
    it is plain data: a prediction pickles, moves with `.to`, and gives some of its rows when indexed.

    Args:
        probs: of every class.
        moments: of the cosines.
        classes: their names, where there are any.
        draws: the entropy split over parameter draws, or what it takes to make it; of a model that predicts variances
            over draws of each embedding by itself: what its own noise changes.
        label_link: for models trained with the sigmoid loss, the probabilities of each label by itself, or their link.
        places: of the rows among the inputs, of a stream and of some rows of a prediction; None: all of them, in order.
        unreadable: of a stream: by place, why an input has no row.
    """

    probs: Tensor  # [N, C]
    moments: CosineMoments
    classes: tuple[str, ...] | None = None
    draws: ParameterDraws | EntropySplit | None = None
    label_link: SigmoidLink | Tensor | None = None
    places: tuple[int, ...] | None = None
    unreadable: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.probs.shape[0])

    def __getitem__(self, index: Index) -> Prediction:
        """The chosen rows, still two-dimensional: an integer gives a prediction of length one."""
        rows = row_index(index, len(self), self.probs.device)
        link, draws = self.label_link, self.draws
        if isinstance(link, Tensor):
            link = link[rows]
        if "monte_carlo" in self.__dict__:
            draws = self.monte_carlo
        if draws is not None:
            draws = EntropySplit(*(part[rows] for part in draws)) if isinstance(draws, EntropySplit) else draws[rows]
        known = range(len(self)) if self.places is None else self.places
        if isinstance(rows, slice):
            places = tuple(known[rows])
        else:
            chosen = rows.nonzero()[:, 0] if rows.dtype == torch.bool else rows
            places = tuple(known[place] for place in chosen.tolist())
        return Prediction(self.probs[rows], self.moments[rows], self.classes, draws, link, places)

    def __iter__(self) -> Iterator[Prediction]:
        """Row by row, each a prediction of length one."""
        return (self[row] for row in range(len(self)))

    def to(self, *args: Any, **kwargs: Any) -> Prediction:
        """Move or cast, as `torch.Tensor.to`."""
        link, draws = self.label_link, self.draws
        if isinstance(link, Tensor):
            link = link.to(*args, **kwargs)
        if isinstance(draws, EntropySplit):
            draws = EntropySplit(*(part.to(*args, **kwargs) for part in draws))
        elif draws is not None:
            draws = draws.to(*args, **kwargs)
        if "monte_carlo" in self.__dict__:
            draws = EntropySplit(*(part.to(*args, **kwargs) for part in self.monte_carlo))
        probs, moments = self.probs.to(*args, **kwargs), self.moments.to(*args, **kwargs)
        return replace(self, probs=probs, moments=moments, draws=draws, label_link=link)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if "monte_carlo" in state:  # what it was made from is not needed again
            state["draws"] = state["monte_carlo"]
        return state

    # What it says ----------------------------------------------------------------------------------------------------

    @property
    def labels(self) -> Tensor:  # [N]
        """Index of the most probable class."""
        return self.probs.argmax(dim=1)

    @property
    def names(self) -> tuple[str, ...]:  # [N]
        """Name of the most probable class."""
        if self.classes is None:
            raise BayesVLMError(
                "The classes of this prediction were given as Features, which carry no names; look the indices in "
                ".labels up in a list of your own."
            )
        return tuple(self.classes[label] for label in self.labels.tolist())

    def topk(self, k: int) -> TopK:
        """The k most probable classes of each input: `.probs` and `.indices` as of `torch.topk`, and their `.names`."""
        if check_count("k", k) > (count := self.probs.shape[1]):
            raise BayesVLMError(f"k is {k}, and there are {count} classes; ask for at most {count}.")
        probs, indices = self.probs.topk(k, dim=1)
        if self.classes is None:
            return TopK(probs, indices, None)
        return TopK(probs, indices, tuple(tuple(map(self.classes.__getitem__, row)) for row in indices.tolist()))

    @property
    def entropy(self) -> Tensor:  # [N]
        """Entropy of `probs`, in nats: `epistemic + aleatoric`."""
        return entropy(self.probs)

    @property
    def mean(self) -> Tensor:  # [N, C]
        """Expected cosine."""
        return self.moments.mean

    @property
    def variance(self) -> Tensor:  # [N, C]
        """Variance of the cosine."""
        return self.moments.variance

    @cached_property
    def label_probs(self) -> Tensor | None:  # [N, C]
        """Probability of each label by itself, `sigmoid_probit`, for models trained with the sigmoid loss; else None.

        A row does not add up to 1: an image may carry several labels, or none. Another class in the list changes
        nothing for the rest. They are small, because the loss counted one right text among thousands of wrong ones for
        each image: 0.2 can be a clear yes, so choose thresholds on validation images
        (`bayesvlm.safety.LabelThresholds`), not 0.5. docs/probability.md explains both kinds of probability.
        """
        if isinstance(self.label_link, SigmoidLink):
            return sigmoid_probit(self.moments, self.label_link.scale, self.label_link.bias)
        return self.label_link

    @property
    def epistemic(self) -> Tensor:  # [N]
        """What more data on the model would resolve: the draws' epistemic share of `entropy`, in nats."""
        return self.entropy * self.monte_carlo.epistemic_share.to(self.probs)

    @property
    def aleatoric(self) -> Tensor:  # [N]
        """What is left when the parameters are known: the rest of `entropy`, in nats."""
        return self.entropy - self.epistemic

    @cached_property
    def monte_carlo(self) -> EntropySplit:
        """Over the parameter draws alone: their average `.probs`, its entropy `.total`, and that in its two parts, the
        expected entropy `.aleatoric` and the mutual information `.epistemic`, in nats."""
        if self.draws is None:
            raise BayesVLMError(
                "This prediction was made without a posterior to draw from, so its entropy has no parts; fit one."
            )
        return self.draws if isinstance(self.draws, EntropySplit) else self.draws.split()

    @property
    def is_drawn(self) -> bool:
        """Whether the parameters were drawn already, so that the two parts of the entropy cost nothing."""
        return "monte_carlo" in self.__dict__ or isinstance(self.draws, EntropySplit)

    def to_pandas(
        self, top: int | None = None, *, wide: bool = False, parts: bool = False, level: float = 0.95
    ) -> Any:  # pandas.DataFrame
        """A table with a row per input: the predicted class, its probability, its cosine, and the entropy.

        The index says which input a row is of, in a stream its place there, so that the tables of a stream can be
        concatenated. The columns are `label`, `prob`, for SigLIP `label_prob` of the label by itself, `cosine` and its
        `std`, `low` and `high` of its credible interval, and in nats `entropy`, and its parts `epistemic` and
        `aleatoric` where the parameters were drawn already.

        Args:
            top: that many classes of each input, a row each, with their rank in the index as well.
            wide: a further column per class, called as the class, with its probability.
            parts: have the two parts of the entropy, drawing the parameters if need be.
            level: probability that the interval covers.
        """
        return prediction_frame(self, top, wide, parts, level)

    # How it prints ---------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        lines = [self._title()]
        for row, (shares, best) in enumerate(zip(*self._best(), strict=True)):
            said = (f"{self._name(k)} {share:.3f}" for share, k in zip(shares, best, strict=True))
            lines.append(f"  {row}: {', '.join(said)}; entropy {float(entropy(self.probs[row])):.3f}")
        return "\n".join([*lines, "  ..."] if len(self) > FIRST else lines)

    def _repr_html_(self) -> str:
        """A small table for notebooks: the first inputs, each with its best classes, their cosines' intervals, and the
        entropy in its two parts."""
        first = self[:FIRST]
        low, high = first.moments.interval(0.95)
        parts = None if self.draws is None else (first.aleatoric.tolist(), first.epistemic.tolist())
        most = max(float(first.entropy.max()), 1e-9) if len(first) else 1.0
        rows = []
        for row, (shares, best) in enumerate(zip(*self._best(), strict=True)):
            nats = first.entropy[row].item()
            aleatoric, epistemic = (nats, 0.0) if parts is None else (parts[0][row], parts[1][row])
            for place, (share, k) in enumerate(zip(shares, best, strict=True)):
                interval = f"{float(low[row, k]):.2f} to {float(high[row, k]):.2f}"
                shown = [str(row), split_bar(aleatoric, epistemic, most, f"{nats:.2f}")] if place == 0 else ["", ""]
                rows.append([shown[0], self._name(k), bar(share, f"{share:.3f}"), interval, shown[1]])
        note = "" if parts is None else " Entropy in nats: aleatoric, then epistemic (hatched)."
        columns = ["", "class", "probability", "95 % of the cosine", "entropy"]
        return html_table(self._title(), columns, rows, len(self) > FIRST, note, marked=(2, 4))

    def _title(self) -> str:
        names = "" if self.classes is None else f" ({beginning([repr(name) for name in self.classes])})"
        return f"Prediction of {len(self)} inputs among {self.probs.shape[1]} classes{names}"

    def _best(self) -> tuple[list[list[float]], list[list[int]]]:
        """Probabilities and classes that are shown of the first inputs."""
        probs, order = self.probs[:FIRST].topk(min(FIRST, self.probs.shape[1]), dim=1)
        return probs.tolist(), order.tolist()

    def _name(self, index: int) -> str:
        return f"class {index}" if self.classes is None else repr(self.classes[index])
