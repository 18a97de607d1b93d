"""Words for what images are not: what NegLabel holds the class names against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.prompts import ClassNames, ClassPrompts, Templates
from bayesvlm.safety.scores import least_alike
from bayesvlm.vlm import BayesVLM

_SAME = 1 - 1e-6  # a cosine of texts that the model cannot tell apart
_SHOWN = 5


@dataclass(frozen=True, eq=False)
class Negatives:
    """Texts that the images are not of.

    Args:
        texts: their activations, [M].
        prompts: the words, and what was encoded of each; None: they were given as Features.
    """

    texts: Features
    prompts: ClassPrompts | None

    @classmethod
    def of(
        cls,
        vlm: BayesVLM,
        negatives: Sequence[str] | Features | None,
        classes: ClassNames | Features,
        templates: Templates | None,
        encoded: Features,
    ) -> Negatives:
        """Encoded, in the templates of the classes, if none of them is a class.

        Args:
            encoded: the classes, [C].
        """
        if negatives is None:
            raise BayesVLMError(
                "score='neglabel' needs negatives=, words for what the images are not: some hundreds of everyday words "
                "or more, of which bayesvlm.safety.mine_negatives chooses those least like the classes."
            )
        if isinstance(negatives, Features):
            if not len(negatives):
                raise BayesVLMError("negatives is empty; give words for what the images are not.")
            texts, prompts = negatives.to(vlm.device), None
        else:
            words = word_list("negatives", negatives)
            if not isinstance(classes, Features):
                among = _among(words, classes)
                if among:
                    raise BayesVLMError(f"The classes have {_listed(among)} of the negatives, too; leave them out.")
            prompts = ClassPrompts.of(words, None if isinstance(classes, Features) else templates)
            texts = vlm.encoder("texts").encode_classes(prompts)
        found = cls(texts, prompts)
        found.check_apart(vlm, encoded)
        return found

    def check_apart(self, vlm: BayesVLM, classes: Features) -> None:
        """Refuse negatives that the model cannot tell from a class."""
        highest, place = _cosines(vlm, self.texts, classes).max(dim=1)
        same = (highest > _SAME).nonzero().flatten().tolist()
        if same:
            called = f"negative {same[0]}" if self.prompts is None else repr(self.prompts.names[same[0]])
            raise BayesVLMError(
                f"{len(same)} of the negatives are among the classes: {called} is class {int(place[same[0]])} to this "
                "model; leave them out."
            )


def mine_negatives(
    vlm: BayesVLM,
    words: Sequence[str],
    classes: ClassNames | Features,
    share: float = 0.15,
    *,
    quantile: float = 0.95,
    templates: Templates | None = None,
    progress: bool | None = None,
) -> list[str]:
    """The words least like the class names, to be `negatives`: by a quantile of their cosines with all classes.

    Args:
        vlm: the model, whose plain text embeddings are compared.
        words: a large list, a dictionary's nouns for instance; those that are classes are passed over.
        classes, templates: as for `classify`; the words are put in the same templates.
        share: of the words that is kept.
        quantile: of each word's cosines, by which it is judged.
    """
    given = word_list("words", words)
    among = set() if isinstance(classes, Features) else set(_among(given, classes))
    given = [word for word in given if word not in among]
    if not given:
        raise BayesVLMError("All of the words are classes; give words for what the images are not.")
    prompts = ClassPrompts.of(given, None if isinstance(classes, Features) else templates)
    texts = vlm.encoder("texts").encode_classes(prompts, progress)
    cosines = _cosines(vlm, texts, vlm.class_features(classes, templates))
    other = (cosines.amax(dim=1) <= _SAME).nonzero().flatten().cpu()
    return [given[int(other[place])] for place in least_alike(cosines[other.to(cosines.device)], share, quantile).cpu()]


def word_list(name: str, words: Any) -> list[str]:
    """Different words, in their order."""
    if isinstance(words, str) or not isinstance(words, Sequence) or any(not isinstance(word, str) for word in words):
        raise BayesVLMError(f"{name}={str(words)[:60]!r}; it must be a list of words, or for negatives= Features.")
    found = [word for word in dict.fromkeys(words) if word.strip()]
    if not found:
        raise BayesVLMError(f"{name} is empty; give words for what the images are not.")
    return found


def _among(words: Sequence[str], classes: ClassNames) -> list[str]:
    """Words that are names of classes, synonyms included."""
    asked = ClassPrompts.of(classes)
    known = {name.strip().casefold() for name in (*asked.names, *asked.texts)}
    return [word for word in words if word.strip().casefold() in known]


@torch.no_grad()
def _cosines(vlm: BayesVLM, texts: Features, classes: Features) -> Tensor:  # [M, C]
    unit = (functional.normalize(vlm.text.embed(each), dim=1) for each in (texts, classes))
    words, names = unit
    return words @ names.T


def _listed(words: Sequence[str]) -> str:
    shown = ", ".join(map(repr, words[:_SHOWN]))
    return shown if len(words) <= _SHOWN else f"{shown} and {len(words) - _SHOWN} more"
