"""What the models read: captions of every class, and a vocabulary of byte pairs learnt from them."""

from __future__ import annotations

import csv
import json
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from bayesvlm.models.layout import GEMMA_LETTERS, clip_tokenizer

CONTEXT = 32  # tokens
MIRRORED = {  # words of drawings that are others in a mirror: what points or turns, and what bears letters or figures
    *("left", "right", "leftwards", "rightwards", "clock", "thirty", "waxing", "waning", "quarter", "crescent"),
    *("increasing", "decreasing", "chart", "map", "globe", "sign", "stop", "hundred", "zzz", "pool", "dvd", "mail"),
    *("note", "notes", "score", "banknote", "newspaper", "calendar", "medal", "ticket", "tickets", "card", "joker"),
    *(
        "hotel",
        "hospital",
        "mahjong",
        "receipt",
        "identification",
        "atm",
        "store",
        "bank",
        "police",
        "taxi",
        "ambulance",
    ),
}


@dataclass(frozen=True)
class Named:
    """A class of the world, as concepts.csv lists it."""

    label: str
    keywords: tuple[str, ...]
    group: str
    seen: bool

    @property
    def mirrors(self) -> bool:
        """Whether the drawing means the same in a mirror: not for symbols, nor for what the words above name."""
        return self.group != "symbols" and MIRRORED.isdisjoint(re.findall("[a-z]+", self.label.lower()))


def read_classes(data: Path) -> list[Named]:
    """The classes in order."""
    with (data / "emoji/concepts.csv").open(encoding="utf-8", newline="") as file:
        return [
            Named(row["label"], tuple(filter(None, row["keywords"].split("|"))), row["group"], row["seen"] == "1")
            for row in csv.DictReader(file)
        ]


def captions(named: Named, count: int, seed: int) -> list[str]:
    """Ways to say it: half of them the label alone, the others with one to three keywords."""
    draw = random.Random(f"{seed}/{named.label}")
    others = [word for word in named.keywords if word != named.label]
    made = [named.label] * (count // 2)
    while len(made) < count:
        words = draw.sample(others, min(len(others), draw.randint(1, 3)))
        made.append(", ".join([named.label, *words]))
    return made


def vocabulary_texts(classes: Sequence[Named]) -> set[str]:
    """What the vocabulary is learnt from: names and keywords of the seen concepts; the others are spelt from pieces."""
    return {word for named in classes if named.seen for word in (named.label, *named.keywords)}


def clip_merges(texts: Iterable[str], size: int) -> list[tuple[str, str]]:
    """Byte pairs for CLIP's tokenizer, `size` tokens with the bytes and the two special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = clip_tokenizer({"<|endoftext|>": 0}, [])
    trainer = trainers.BpeTrainer(
        vocab_size=size - 2,
        initial_alphabet=alphabet,
        end_of_word_suffix="</w>",
        show_progress=False,
        special_tokens=[symbol + "</w>" for symbol in alphabet],
    )
    return _learn(tokenizer, texts, trainer)


def gemma_merges(texts: Iterable[str], size: int) -> list[tuple[str, str]]:
    """Pairs of characters for Gemma's tokenizer, within words, `size` tokens in all."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Lowercase(), normalizers.Replace(" ", "▁"), normalizers.Replace(Regex(f"[^{GEMMA_LETTERS}]"), "")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    letters = [*GEMMA_LETTERS]
    merges = size - 5 - 256 - len(letters)
    trainer = trainers.BpeTrainer(
        vocab_size=merges + len(letters), initial_alphabet=letters, limit_alphabet=len(letters), show_progress=False
    )
    return _learn(tokenizer, texts, trainer)


def _learn(tokenizer: Tokenizer, texts: Iterable[str], trainer: trainers.BpeTrainer) -> list[tuple[str, str]]:
    tokenizer.train_from_iterator(sorted(texts), trainer)
    learnt: Sequence[Sequence[str]] = json.loads(tokenizer.to_str())["model"]["merges"]
    return [(left, right) for left, right in learnt]
