"""ProLIP from its published files, against a forward pass written out from the paper's code on the raw weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from models import published
from models.published import Shapes, State
from safetensors.torch import load_file, save_file
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.models.probabilistic import ProLIP, csd, load_probabilistic, probabilistic_family

# The five published architectures, made small: what each of them says and the others do not is kept.
_VISION = {"image_size": 32, "layers": 2, "width": 48, "head_width": 16, "patch_size": 16, "embed_unc": True}
_TEXT = {
    "context_length": 6,
    "vocab_size": 29,
    "hf_tokenizer_name": "timm/ViT-B-16-SigLIP",
    "tokenizer_kwargs": {"clean": "canonicalize"},
    "width": 24,
    "heads": 4,
    "layers": 3,
    "no_causal_mask": True,
    "proj_bias": True,
    "pool_type": "last",
    "embed_cls": True,
    "embed_unc": True,
    "norm_kwargs": {"eps": 1e-6},
    "init_unc_bias": -10,
}
_BASE = {"embed_dim": 24, "init_logit_bias": -10, "vision_cfg": _VISION | {"init_unc_bias": -10}, "text_cfg": _TEXT}
_CLIP_TEXT = {name: value for name, value in _TEXT.items() if name not in ("norm_kwargs", "hf_tokenizer_name")}
VARIANTS: dict[str, dict[str, Any]] = {
    "ViT-B-16": _BASE,
    "ViT-B-16-long": _BASE | {"text_cfg": _TEXT | {"context_length": 20}},
    "ViT-L-16": _BASE | {"vision_cfg": _VISION | {"image_size": 48}},
    "ViT-SO400M-14": _BASE
    | {
        "vision_cfg": _VISION | {"head_width": 24, "patch_size": 8, "mlp_ratio": 3.7362},
        "text_cfg": _TEXT | {"mlp_ratio": 3.7362},
    },
    "ViT-H-14": _BASE | {"quick_gelu": True, "text_cfg": _CLIP_TEXT},
    # not published: 1e-6 and 1e-5 could not be told apart here
    "an epsilon that shows": _BASE | {"text_cfg": _TEXT | {"norm_kwargs": {"eps": 0.1}}},
    # as it is saved from the constructor's data classes: every entry, defaults included
    "every entry": _BASE
    | {
        "quick_gelu": False,
        "init_logit_scale": 2.6592600369327783,
        "cast_dtype": None,
        "output_dict": True,
        "vision_cfg": _VISION
        | {"mlp_ratio": 4.0, "ls_init_value": None, "attentional_pool": False, "attn_pooler_queries": 256}
        | {"attn_pooler_heads": 8, "no_ln_pre": False, "pos_embed_type": "learnable", "pool_type": "tok"}
        | {"output_tokens": False, "act_kwargs": None, "norm_kwargs": None, "init_unc_bias": -10}
        | {"timm_model_name": None, "timm_model_pretrained": False, "timm_pool": "avg", "timm_proj": "linear"}
        | {"timm_proj_bias": False, "timm_drop": 0.0, "timm_drop_path": None},
        "text_cfg": _TEXT
        | {"mlp_ratio": 4.0, "ls_init_value": None, "pad_id": 0, "final_ln_after_pool": False, "output_tokens": False}
        | {"act_kwargs": None, "hf_model_name": None, "hf_model_pretrained": True, "hf_proj_type": "mlp"}
        | {"hf_pooler_type": "mean_pooler"},
    },
}


def shapes_of(config: dict[str, Any]) -> Shapes:
    """Every key of a published model.safetensors."""
    vision, text, embedding = config["vision_cfg"], config["text_cfg"], config["embed_dim"]
    width, patch = vision["width"], vision["patch_size"]
    shapes: Shapes = {
        "logit_scale": (),
        "logit_bias": (),
        "visual.class_embedding": (width,),
        "visual.unc_embedding": (width,),
        "visual.positional_embedding": ((vision["image_size"] // patch) ** 2 + 2, width),
        "visual.proj": (width, embedding),
        "visual.conv1.weight": (width, 3, patch, patch),
    }
    shapes |= published.norm_shapes("visual.ln_pre", width) | published.norm_shapes("visual.ln_post", width)
    shapes |= published.linear_shapes("visual.uncertainty_proj", width, embedding)
    hidden = int(width * vision.get("mlp_ratio", 4))
    shapes |= published.block_shapes("visual.transformer", vision["layers"], width, hidden)
    width = text["width"]
    shapes |= {
        "text.cls_emb": (width,),
        "text.unc_emb": (width,),
        "text.positional_embedding": (text["context_length"] + 2, width),
        "text.token_embedding.weight": (text["vocab_size"], width),
    }
    shapes |= published.norm_shapes("text.ln_final", width)
    shapes |= published.linear_shapes("text.text_projection", width, embedding)
    shapes |= published.linear_shapes("text.text_uncertainty_projection", width, embedding)
    hidden = int(width * text.get("mlp_ratio", 4))
    return shapes | published.block_shapes("text.transformer", text["layers"], width, hidden)


def reference_image(state: State, config: dict[str, Any], pixels: Tensor) -> tuple[Tensor, Tensor]:
    """[CLS, UNC, patches]; ln_post twice for CLS and once for UNC; the log variance not rescaled by the norm."""
    vision, quick, eps = config["vision_cfg"], config.get("quick_gelu", False), 1e-5
    x = published.patches(state["visual.conv1.weight"], pixels)
    first = torch.stack([state["visual.class_embedding"], state["visual.unc_embedding"]]).repeat(len(x), 1, 1)
    x = torch.cat([first, x], dim=1) + state["visual.positional_embedding"]
    x = published.norm(state, "visual.ln_pre", x, eps)
    heads = vision["width"] // vision["head_width"]
    for layer in range(vision["layers"]):
        x = published.block(state, f"visual.transformer.resblocks.{layer}", x, heads, eps, quick, causal=False)
    x = published.norm(state, "visual.ln_post", x, eps)
    mean = published.norm(state, "visual.ln_post", x[:, 0], eps) @ state["visual.proj"]
    return published.unit(mean), published.linear(state, "visual.uncertainty_proj", x[:, 1])


def reference_text(state: State, config: dict[str, Any], tokens: Tensor) -> tuple[Tensor, Tensor]:
    """[tokens, UNC, CLS], no mask; the log variance from the projected mean, before it is normalised."""
    text, quick = config["text_cfg"], config.get("quick_gelu", False)
    eps = text.get("norm_kwargs", {}).get("eps", 1e-5)
    x = state["text.token_embedding.weight"][tokens]
    last = torch.stack([state["text.unc_emb"], state["text.cls_emb"]]).repeat(len(x), 1, 1)
    x = torch.cat([x, last], dim=1) + state["text.positional_embedding"]
    for layer in range(text["layers"]):
        x = published.block(state, f"text.transformer.resblocks.{layer}", x, text["heads"], eps, quick, causal=False)
    mean = published.linear(state, "text.text_projection", published.norm(state, "text.ln_final", x[:, -1], eps))
    return published.unit(mean), published.linear(state, "text.text_uncertainty_projection", mean)


def batch(config: dict[str, Any], seed: int = 1) -> tuple[Tensor, Tensor]:
    """Pixels [3, 3, S, S] and tokens [4, L]."""
    generator = torch.Generator().manual_seed(seed)
    size, text = config["vision_cfg"]["image_size"], config["text_cfg"]
    pixels = torch.randn(3, 3, size, size, generator=generator)
    return pixels, torch.randint(0, text["vocab_size"], (4, text["context_length"]), generator=generator)


def saved(folder: Path, config: dict[str, Any]) -> tuple[Path, State]:
    state = published.random_state(shapes_of(config))
    return published.save(folder, config, state), state


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A ProLIP that a test may damage."""
    return saved(tmp_path / "prolip", _BASE)[0]


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_outputs_are_those_of_the_forward_written_out(tmp_path: Path, config: dict[str, Any]) -> None:
    path, state = saved(tmp_path, config)
    model = load_probabilistic(path)
    pixels, tokens = batch(config)
    for found, expected in (
        (model.encode_image(pixels), reference_image(state, config, pixels)),
        (model.encode_text(tokens), reference_text(state, config, tokens)),
    ):
        torch.testing.assert_close(found[0], expected[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found[1], expected[1], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found[0].norm(dim=-1), torch.ones(len(found[0])))


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_every_published_key_is_a_parameter_and_comes_back(tmp_path: Path, config: dict[str, Any]) -> None:
    path, state = saved(tmp_path, config)
    model = load_probabilistic(path)
    assert isinstance(model, ProLIP)
    assert {name: list(weight.shape) for name, weight in model.state_dict().items()} == {
        name: list(weight.shape) for name, weight in state.items()
    }
    assert all(torch.equal(weight, state[name]) for name, weight in model.named_parameters())
    again = load_probabilistic(published.save(tmp_path / "again", config, model.state_dict()))
    pixels, tokens = batch(config)
    assert all(map(torch.equal, again.encode_image(pixels), model.encode_image(pixels)))
    assert all(map(torch.equal, again.encode_text(tokens), model.encode_text(tokens)))


def test_every_weight_matters(tmp_path: Path) -> None:
    """A weight that is loaded and left out of the computation would go unnoticed by comparing names."""
    path, state = saved(tmp_path, _BASE)
    model = load_probabilistic(path).requires_grad_(True)
    pixels, tokens = batch(_BASE)
    image, text = model.encode_image(pixels), model.encode_text(tokens)
    weights = torch.randn(3, 4, generator=torch.Generator().manual_seed(2))
    (model.score(image, text) * weights).sum().backward()
    idle = [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert idle == []
    assert len(list(model.parameters())) == len(state)


def test_the_score_is_the_native_one(folder: Path) -> None:
    model = load_probabilistic(folder).double()
    generator = torch.Generator().manual_seed(3)
    image, text = (
        (
            published.unit(torch.randn(rows, 24, generator=generator, dtype=torch.float64)),
            torch.randn(rows, 24, generator=generator, dtype=torch.float64),
        )
        for rows in (5, 4)
    )
    expected = torch.empty(5, 4, dtype=torch.float64)
    for i in range(5):
        for j in range(4):
            spread = sum(float(image[1][i, k].exp() + text[1][j, k].exp()) for k in range(24))
            dot = sum(float(image[0][i, k] * text[0][j, k]) for k in range(24))
            expected[i, j] = model.logit_scale.exp() * (dot - spread / 2) + model.logit_bias
    torch.testing.assert_close(model.score(image, text), expected, atol=1e-12, rtol=1e-12)
    scale, bias = float(model.logit_scale.exp()), float(model.logit_bias)
    found = csd(image[0], image[1].exp(), text[0], text[1].exp(), scale, bias)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)


def test_a_batch_is_its_items(folder: Path) -> None:
    model = load_probabilistic(folder)
    pixels, tokens = batch(_BASE)
    one = [model.encode_text(row[None]) for row in tokens]
    torch.testing.assert_close(torch.cat([mean for mean, _ in one]), model.encode_text(tokens)[0])
    torch.testing.assert_close(model.encode_image(pixels[1:2])[1], model.encode_image(pixels)[1][1:2])


def test_the_model_is_ready_to_use_and_half_precision_is_widened(folder: Path) -> None:
    weights = {name: weight.half() for name, weight in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors")
    model = load_probabilistic(folder)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}


@pytest.mark.parametrize(
    ("vocab_size", "entries", "repository", "cleaning"),
    [
        (32100, {}, "timm/ViT-B-16-SigLIP", "canonicalize"),
        (49408, {}, "apple/DFN5B-CLIP-ViT-H-14", "whitespace"),
        (32100, {"hf_tokenizer_name": "timm/ViT-SO400M-14-SigLIP"}, "timm/ViT-SO400M-14-SigLIP", "canonicalize"),
        (49408, {"tokenizer_kwargs": {"clean": "lower"}}, "apple/DFN5B-CLIP-ViT-H-14", "lower"),
        (29, {}, None, "whitespace"),
    ],
)
def test_where_the_tokenizer_comes_from(
    tmp_path: Path, vocab_size: int, entries: dict[str, Any], repository: str | None, cleaning: str
) -> None:
    text = {name: value for name, value in _CLIP_TEXT.items() if name != "tokenizer_kwargs"}
    config = _BASE | {"text_cfg": text | {"vocab_size": vocab_size} | entries}
    tokens = load_probabilistic(saved(tmp_path, config)[0]).config.tokens
    assert asdict(tokens) == {"repository": repository, "cleaning": cleaning, "zero_padded": False}


def without_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["visual.unc_embedding"]
    save_file(weights, folder / "model.safetensors")


def with_another_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {"visual.extra": torch.zeros(2)}, folder / "model.safetensors")


def with_a_wrong_name(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["text.text_uncertainty_proj.bias"] = weights.pop("text.text_uncertainty_projection.bias")
    save_file(weights, folder / "model.safetensors")


def with_another_shape(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {"visual.proj": torch.zeros(24, 48)}, folder / "model.safetensors")


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def only_a_pickle(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def a_pickle_by_that_name(folder: Path) -> None:
    torch.save({"logit_scale": torch.zeros(())}, folder / "model.safetensors")


def truncated_weights(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def list_config(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without_a_weight, "have no visual.unc_embedding, which config.json asks for"),
        (with_another_weight, "have visual.extra, which the model of config.json does not"),
        (with_a_wrong_name, "have no text.text_uncertainty_projection.bias"),
        (with_another_shape, r"visual.proj with shape \[24, 48\], but config.json asks for \[48, 24\]"),
        (no_weights, "holds no weights; expected model.safetensors"),
        (only_a_pickle, r"holds only a pickle .* expected model.safetensors"),
        (a_pickle_by_that_name, "are truncated or no safetensors"),
        (truncated_weights, "are truncated or no safetensors"),
        (no_config, "holds no config.json"),
        (broken_config, "is not a JSON object"),
        (list_config, "is not a JSON object but a list"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_damaged_folder(folder: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(folder)
    with pytest.raises(BayesVLMError, match=message) as caught:
        load_probabilistic(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        ("", {"embed_dim": "wide"}, 'embed_dim is "wide"; expected a whole number of at least 1'),
        ("", {"embed_dim": None}, "embed_dim is null"),
        ("", {"quick_gelu": 1}, "quick_gelu is 1; expected true or false"),
        ("", {"text_cfg": {}}, "text_cfg.width is 768; expected the embedding's width, 24"),
        ("", {"colour": "blue"}, "has an entry colour='blue', which no published model"),
        ("vision_cfg", {"width": 0}, "vision_cfg.width is 0; expected a whole number"),
        ("vision_cfg", {"head_width": 9}, "vision_cfg.width is 48; expected a multiple of its 5 heads"),
        ("vision_cfg", {"head_width": 96}, "vision_cfg.width is 48; expected a multiple of its 0 heads"),
        ("vision_cfg", {"image_size": [32, 32]}, r"vision_cfg.image_size is \[32, 32\]; expected a whole number"),
        ("vision_cfg", {"pool_type": "avg"}, 'vision_cfg.pool_type is "avg"; expected "tok"'),
        ("vision_cfg", {"no_ln_pre": True}, "vision_cfg.no_ln_pre is true; expected false"),
        ("vision_cfg", {"ls_init_value": 1e-5}, "vision_cfg.ls_init_value is 1e-05; expected null"),
        ("vision_cfg", {"mlp_ratio": "4"}, 'vision_cfg.mlp_ratio is "4"; expected a number above zero'),
        ("vision_cfg", {"unc_layers": 2}, "has an entry vision_cfg.unc_layers=2"),
        ("vision_cfg", {"norm_kwargs": {"eps": 0}}, "vision_cfg.norm_kwargs.eps is 0"),
        ("text_cfg", {"heads": 5}, "text_cfg.width is 24; expected a multiple of its 5 heads"),
        ("text_cfg", {"embed_unc": False}, "text_cfg.embed_unc is false; expected true"),
        ("text_cfg", {"no_causal_mask": False}, "text_cfg.no_causal_mask is false; expected true"),
        ("text_cfg", {"proj_bias": False}, "text_cfg.proj_bias is false; expected true"),
        ("text_cfg", {"norm_kwargs": "eps"}, 'text_cfg.norm_kwargs is "eps"; expected an object'),
        ("text_cfg", {"norm_kwargs": {"bias": 1}}, "has an entry text_cfg.norm_kwargs.bias=1"),
        ("text_cfg", {"tokenizer_kwargs": {"clean": "no"}}, 'text_cfg.tokenizer_kwargs.clean is "no"; expected one of'),
        ("text_cfg", {"hf_tokenizer_name": 3}, "text_cfg.hf_tokenizer_name is 3; expected a string"),
    ],
)
def test_a_wrong_entry_of_the_configuration(folder: Path, section: str, changes: dict[str, Any], message: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (config[section] if section else config).update(changes)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BayesVLMError, match=message) as caught:
        load_probabilistic(folder)
    assert str(folder / "config.json") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_inputs_of_another_shape(folder: Path) -> None:
    model = load_probabilistic(folder)
    with pytest.raises(BayesVLMError, match=r"pixels have shape \[2, 3, 32, 16\]; expected \[N, 3, 32, 32\]"):
        model.encode_image(torch.zeros(2, 3, 32, 16))
    with pytest.raises(BayesVLMError, match=r"tokens have shape \[2, 5\]; expected \[N, 6\]"):
        model.encode_text(torch.zeros(2, 5, dtype=torch.long))


def test_the_family_is_told_by_embed_unc(folder: Path) -> None:
    assert probabilistic_family(folder) == "prolip"
    config = json.loads((folder / "config.json").read_text())
    config["vision_cfg"]["embed_unc"] = False
    (folder / "config.json").write_text(json.dumps(config))
    assert probabilistic_family(folder) is None
    with pytest.raises(BayesVLMError, match="describes neither a ProLIP"):
        load_probabilistic(folder)
