"""What a call of the pipeline may set, beside the image, and what is set once for every call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

from bayesvlm.core.errors import BayesVLMError, check_count
from bayesvlm.prompts import ClassNames, Templates
from bayesvlm.serving.label_sets import listed
from bayesvlm.vlm import BayesVLM

TEMPLATE = "This is a photo of {}."
"""The template of transformers' pipeline."""

_TOKENS: dict[str, tuple[Any, ...]] = {
    "padding": (True, "longest", "max_length"),
    "truncation": (True, "longest_first"),
}
"""What a caller may ask of the tokenizer: what is done anyway."""


@dataclass(frozen=True)
class CallOptions:
    """The defaults are those of `pipeline` and its calls, which say what each is."""

    candidate_labels: ClassNames | str | None = None
    hypothesis_template: Templates | None = TEMPLATE
    top_k: int | None = None
    level: float = 0.95
    epistemic: bool = True
    batch_size: int | None = None
    num_workers: int | None = None
    timeout: float | None = 10.0

    def __post_init__(self) -> None:
        for name, least in (("top_k", 1), ("batch_size", 1), ("num_workers", 0)):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), least)
        if not (isinstance(self.level, Real) and 0 < self.level < 1):
            raise BayesVLMError(f"level={self.level!r}; a credible level lies strictly between 0 and 1, such as 0.95.")
        if self.candidate_labels is not None:
            object.__setattr__(self, "candidate_labels", listed(self.candidate_labels))

    def with_given(self, given: Mapping[str, Any], vlm: BayesVLM, of: str = "a call", more: str = "") -> CallOptions:
        """These with others in the place of some.

        Args:
            of: what was called, and what more it takes, to say where something is not known.
        """
        said = dict(given)
        _check_tokens(said.pop("tokenizer_kwargs", None) or {}, vlm)
        for name, value in said.items():
            if name not in self.__dataclass_fields__:
                raise BayesVLMError(
                    f"{name}={str(value)[:60]!r} is not known to {of} of this pipeline, which takes "
                    f"{', '.join(self.__dataclass_fields__)}{more}."
                )
        return replace(self, **said)


def _check_tokens(asked: Mapping[str, Any], vlm: BayesVLM) -> None:
    """Refuse what a tokenizer is asked for, unless it is what it does anyway."""
    if not isinstance(asked, Mapping):
        raise BayesVLMError(f"tokenizer_kwargs is {asked!r}, a {type(asked).__name__}; it is a dict, best left out.")
    longest = getattr(vlm.encoder("texts"), "context_length", None)
    for name, value in asked.items():
        if value not in (*_TOKENS.get(name, ()), *([longest] if name == "max_length" else [])):
            raise BayesVLMError(
                f"tokenizer_kwargs has {name}={value!r}; texts are padded and truncated as the model was trained, so "
                "leave it out."
            )
