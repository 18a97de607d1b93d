"""Texts as each family saw them: its cleaning, its tokenizer, its padding.

Neither repository holds a tokenizer: the authors take another model's. One in the folder goes first, so that a copy
works offline.
"""

from __future__ import annotations

import html
import string
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError, first_line
from bayesvlm.models.probabilistic.configuration import Cleaning, Configuration
from bayesvlm.models.quiet import quiet

_FILES = ("tokenizer.json", "vocab.json", "spiece.model", "tokenizer.model")
_BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt")
_PUNCTUATION = str.maketrans("_", " ", string.punctuation.replace("_", ""))
_COMPATIBLE = (0x3000, *range(0xFB00, 0xFB07), *range(0xFF01, 0xFFF0))  # a wide space, ligatures, wide letters
_PLAIN = {code: unicodedata.normalize("NFKC", chr(code)) for code in _COMPATIBLE}
_PLAIN |= dict.fromkeys((0x02BC, *range(0x2018, 0x201C)), "'") | dict.fromkeys(range(0x201C, 0x2020), '"')


class Tokeniser:
    """Texts to the tokens a model was trained on."""

    def __init__(self, tokenizer: Any, config: Configuration) -> None:
        self.tokenizer, self._config = tokenizer, config
        self._clean = _CLEANINGS[config.tokens.cleaning]

    def __call__(self, texts: Sequence[str]) -> Tensor:  # [N, context_length] int64
        """Every text cleaned, truncated and filled up to the full context.

        Raises:
            BayesVLMError: when the tokenizer belongs to another model, which has more tokens.
        """
        encoded = self.tokenizer(
            [self._clean(text) for text in texts],
            padding="max_length",
            padding_side="right",
            truncation=True,
            max_length=self._config.context_length,
            return_attention_mask=True,
            return_tensors="pt",
        )
        tokens: Tensor = encoded["input_ids"]
        if self._config.tokens.zero_padded:
            tokens = tokens.masked_fill(encoded["attention_mask"] == 0, 0)
        if (highest := int(tokens.max())) >= self._config.vocab_size:
            raise BayesVLMError(
                f"The tokenizer gave token {highest}, but the model knows only {self._config.vocab_size} tokens; its "
                f"tokenizer files belong to another model, so copy those of {self._config.tokens.repository!r}."
            )
        return tokens


def load_tokeniser(folder: str | Path, config: Configuration) -> Tokeniser:
    """The tokenizer in the folder, or else the one its authors use, from the Hub or its local cache.

    Raises:
        BayesVLMError: when there is none in either place, or its files are damaged.
    """
    folder = Path(folder)
    source = folder if any((folder / file).is_file() for file in _FILES) else _fetch(folder, config.tokens.repository)
    from transformers import AutoTokenizer  # here, because it takes seconds

    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True, trust_remote_code=False)
    except ImportError as error:
        raise BayesVLMError(
            f"The tokenizer in {str(source)!r} needs SentencePiece; run `pip install sentencepiece protobuf`."
        ) from error
    except Exception as error:  # tokenizer files are parsed by several libraries, each with errors of its own
        raise BayesVLMError(
            f"The tokenizer in {str(source)!r} could not be loaded ({first_line(error)}); "
            f"copy its files again from {config.tokens.repository or 'where the model was published'}."
        ) from error
    return Tokeniser(tokenizer, config)


def _fetch(folder: Path, repository: str | None) -> Path:
    if repository is None:
        raise BayesVLMError(
            f"The folder {str(folder)!r} holds no tokenizer (none of {', '.join(_FILES)}), and its config.json names "
            "none in text_cfg.hf_tokenizer_name; copy the files of the tokenizer it was trained with into the folder."
        )
    try:
        return Path(snapshot_download(repository, allow_patterns=[*_FILES, *_BESIDE]))
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError) as error:
        raise BayesVLMError(
            f"The folder {str(folder)!r} holds no tokenizer, and that of {repository!r}, which the model was trained "
            "with, is not in the local cache and could not be fetched; connect (and unset HF_HUB_OFFLINE), or copy "
            "tokenizer.json and tokenizer_config.json of that repository into the folder."
        ) from error


def _basic(text: str) -> str:
    """HTML entities resolved, quotes straight, wide letters and ligatures plain, characters composed.

    The authors run ftfy first; this is what it does to text that was decoded with the right encoding.
    """
    text = html.unescape(html.unescape(text))
    return unicodedata.normalize("NFC", text.translate(_PLAIN))


def _whitespace(text: str) -> str:
    return " ".join(_basic(text).split())


def _lower(text: str) -> str:
    return _whitespace(text).lower()


def _canonicalize(text: str) -> str:
    """As SigLIP was trained: lower case, no ASCII punctuation, an underscore for a space."""
    return " ".join(_basic(text).translate(_PUNCTUATION).lower().split())


_CLEANINGS: dict[Cleaning, Callable[[str], str]] = {
    "canonicalize": _canonicalize,
    "lower": _lower,
    "whitespace": _whitespace,
}
