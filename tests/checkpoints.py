"""Tiny checkpoints of every family, made once per session."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # models are imported where they are needed: the environment of open_clip has to be mended first
    from bayesvlm.models import Adapter

FAMILIES = ("clip", "siglip", "siglip2-fixed", "siglip2-naflex")


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One folder per family; the one with SigLIP's own SentencePiece tokenizer only where that can be loaded."""
    from bayesvlm.testing import save_tiny_clip, save_tiny_siglip, save_tiny_siglip2

    root = tmp_path_factory.mktemp("checkpoints")
    made = {
        "clip": save_tiny_clip(root / "clip"),
        "siglip2-fixed": save_tiny_siglip(root / "siglip2-fixed"),
        "siglip2-naflex": save_tiny_siglip2(root / "siglip2-naflex"),
    }
    with contextlib.suppress(ImportError):
        made["siglip"] = _with_sentencepiece(made["siglip2-fixed"], root / "siglip")
    return made


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest, folders: dict[str, Path]) -> str:
    if request.param not in folders:
        pytest.skip("SigLIP's own tokenizer needs sentencepiece and protobuf, which are not installed")
    return request.param


@pytest.fixture
def adapter(family: str, folders: dict[str, Path]) -> Adapter:
    """A fresh adapter, which a test may damage."""
    return _load(folders[family])


@pytest.fixture
def clip(folders: dict[str, Path]) -> Adapter:
    return _load(folders["clip"])


@pytest.fixture
def siglip(folders: dict[str, Path]) -> Adapter:
    return _load(folders["siglip2-fixed"])


def _load(folder: Path) -> Adapter:
    from bayesvlm.models import load_adapter

    return load_adapter(folder, device="cpu")


def _with_sentencepiece(source: Path, target: Path) -> Path:
    """The same model with the tokenizer files of the first SigLIP: spiece.model, and no tokenizer.json."""
    import google.protobuf  # noqa: F401
    import sentencepiece

    shutil.copytree(source, target)
    (target / "tokenizer.json").unlink()
    corpus = ["a photo of a cat and a dog", "the quick brown fox jumps over the lazy dog", "two zebras at dusk, 1 2 3"]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus * 20),
        model_writer=model,
        vocab_size=60,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=3,
    )
    (target / "spiece.model").write_bytes(model.getvalue())
    special = {"eos_token": "</s>", "pad_token": "</s>", "unk_token": "<unk>"}
    settings = {
        "tokenizer_class": "SiglipTokenizer",
        "do_lower_case": True,
        "model_input_names": ["input_ids"],
        "model_max_length": 24,
        "processor_class": "SiglipProcessor",
    }
    (target / "tokenizer_config.json").write_text(json.dumps(special | settings))
    (target / "special_tokens_map.json").write_text(json.dumps(special))
    return target
