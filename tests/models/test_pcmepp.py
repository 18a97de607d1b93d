"""PCME++ from its published files, against a forward pass written out from the paper's code on the raw weights."""

from __future__ import annotations

import json
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
from bayesvlm.models.probabilistic import PCMEPP, load_probabilistic, pcmepp_score, probabilistic_family

_EPS = 1e-5
_VISION = {"image_size": 32, "layers": 3, "width": 48, "head_width": 16, "patch_size": 16}
_TEXT = {"context_length": 7, "vocab_size": 31, "width": 24, "heads": 4, "layers": 4, "unc_layers": 2}
_BASE: dict[str, Any] = {
    "embed_dim": 20,
    "vision_cfg": _VISION,  # two blocks in its branch, if it does not say
    "text_cfg": _TEXT,
    "quick_gelu": False,
    "cast_dtype": None,
    "output_dict": False,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "published": _BASE,
    "branches of their own length": _BASE
    | {"vision_cfg": _VISION | {"unc_layers": 3, "mlp_ratio": 2.5}, "text_cfg": _TEXT | {"unc_layers": 1}},
    "quick GELU": _BASE | {"quick_gelu": True},
    # as it is saved from the constructor's data classes: every entry, defaults included
    "every entry": _BASE
    | {
        "vision_cfg": _VISION
        | {"unc_layers": 2, "mlp_ratio": 4.0, "ls_init_value": None, "patch_dropout": 0.0, "input_patchnorm": False}
        | {"global_average_pool": False, "attentional_pool": False, "n_queries": 256, "attn_pooler_heads": 8}
        | {"output_tokens": False, "timm_model_name": None, "timm_model_pretrained": False, "timm_pool": "avg"}
        | {"timm_proj": "linear", "timm_proj_bias": False, "timm_drop": 0.0, "timm_drop_path": None},
        "text_cfg": _TEXT
        | {"ls_init_value": None, "hf_model_name": None, "hf_tokenizer_name": None, "hf_model_pretrained": True}
        | {"proj": "mlp", "pooler_type": "mean_pooler", "embed_cls": False, "pad_id": 0, "output_tokens": False},
    },
}


def shapes_of(config: dict[str, Any]) -> Shapes:
    """Every key of a published model.safetensors."""
    vision, text, embedding = config["vision_cfg"], config["text_cfg"], config["embed_dim"]
    width, patch = vision["width"], vision["patch_size"]
    shapes: Shapes = {
        "logit_scale": (),
        "shift": (1,),
        "negative_scale": (1,),
        "visual.class_embedding": (width,),
        "visual.positional_embedding": ((vision["image_size"] // patch) ** 2 + 1, width),
        "visual.proj": (width, embedding),
        "visual.uncertainty_proj": (width, embedding),
        "visual.conv1.weight": (width, 3, patch, patch),
    }
    shapes |= published.norm_shapes("visual.ln_pre", width) | published.norm_shapes("visual.ln_post", width)
    hidden = int(width * vision.get("mlp_ratio", 4))
    shapes |= published.block_shapes("visual.transformer", vision["layers"], width, hidden)
    shapes |= published.block_shapes("visual.uncertainty_transformer", vision.get("unc_layers", 2), width, hidden)
    width = text["width"]
    shapes |= {
        "positional_embedding": (text["context_length"], width),
        "text_projection": (width, embedding),
        "uncertainty_text_projection": (width, embedding),
        "token_embedding.weight": (text["vocab_size"], width),
    }
    shapes |= published.norm_shapes("ln_final", width)
    shapes |= published.block_shapes("transformer", text["layers"], width, 4 * width)
    return shapes | published.block_shapes("uncertainty_transformer", text["unc_layers"], width, 4 * width)


def reference_branches(
    state: State, prefix: str, x: Tensor, layers: int, branch: int, heads: int, quick: bool, causal: bool
) -> tuple[Tensor, Tensor]:
    """A shared trunk; the last blocks once for the mean, and the uncertainty transformer beside them."""
    for layer in range(layers - branch):
        x = published.block(state, f"{prefix}transformer.resblocks.{layer}", x, heads, _EPS, quick, causal)
    mean = std = x
    for layer in range(branch):
        name = f"{prefix}uncertainty_transformer.resblocks.{layer}"
        std = published.block(state, name, std, heads, _EPS, quick, causal)
    for layer in range(layers - branch, layers):
        mean = published.block(state, f"{prefix}transformer.resblocks.{layer}", mean, heads, _EPS, quick, causal)
    return mean, std


def reference_image(state: State, config: dict[str, Any], pixels: Tensor) -> tuple[Tensor, Tensor]:
    """[CLS, patches]; ln_post for the mean only."""
    vision = config["vision_cfg"]
    x = published.patches(state["visual.conv1.weight"], pixels)
    x = torch.cat([state["visual.class_embedding"].repeat(len(x), 1, 1), x], dim=1)
    x = published.norm(state, "visual.ln_pre", x + state["visual.positional_embedding"], _EPS)
    heads, branch = vision["width"] // vision["head_width"], vision.get("unc_layers", 2)
    mean, std = reference_branches(
        state, "visual.", x, vision["layers"], branch, heads, config["quick_gelu"], causal=False
    )
    mean = published.norm(state, "visual.ln_post", mean[:, 0], _EPS) @ state["visual.proj"]
    return published.unit(mean), std[:, 0] @ state["visual.uncertainty_proj"]


def reference_text(state: State, config: dict[str, Any], tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Causal; both read off at the highest token; ln_final for the mean only."""
    text = config["text_cfg"]
    x = state["token_embedding.weight"][tokens] + state["positional_embedding"]
    mean, std = reference_branches(
        state, "", x, text["layers"], text["unc_layers"], text["heads"], config["quick_gelu"], causal=True
    )
    ends = [row.index(max(row)) for row in tokens.tolist()]
    mean = torch.stack([row[end] for row, end in zip(mean, ends, strict=True)])
    std = torch.stack([row[end] for row, end in zip(std, ends, strict=True)])
    mean = published.norm(state, "ln_final", mean, _EPS) @ state["text_projection"]
    return published.unit(mean), std @ state["uncertainty_text_projection"]


def batch(config: dict[str, Any], seed: int = 1) -> tuple[Tensor, Tensor]:
    """Pixels [3, 3, S, S], and tokens [4, L]: start, words, end, zeros."""
    generator = torch.Generator().manual_seed(seed)
    size, text = config["vision_cfg"]["image_size"], config["text_cfg"]
    pixels = torch.randn(3, 3, size, size, generator=generator)
    length, last = text["context_length"], text["vocab_size"] - 1
    tokens = torch.randint(1, last - 1, (4, length), generator=generator)
    tokens[:, 0] = last - 1
    for row, end in enumerate((2, 4, length - 1, 3)):
        tokens[row, end], tokens[row, end + 1 :] = last, 0
    return pixels, tokens


def saved(folder: Path, config: dict[str, Any]) -> tuple[Path, State]:
    state = published.random_state(shapes_of(config))
    return published.save(folder, config, state), state


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A PCME++ that a test may damage."""
    return saved(tmp_path / "pcmepp", _BASE)[0]


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
    assert isinstance(model, PCMEPP)
    assert {name: list(weight.shape) for name, weight in model.state_dict().items()} == {
        name: list(weight.shape) for name, weight in state.items()
    }
    assert all(torch.equal(weight, state[name]) for name, weight in model.named_parameters())
    again = load_probabilistic(published.save(tmp_path / "again", config, model.state_dict()))
    pixels, tokens = batch(config)
    assert all(map(torch.equal, again.encode_image(pixels), model.encode_image(pixels)))
    assert all(map(torch.equal, again.encode_text(tokens), model.encode_text(tokens)))


def test_every_weight_matters_but_the_temperature_of_clip(tmp_path: Path) -> None:
    """A weight that is loaded and left out of the computation would go unnoticed by comparing names."""
    path, state = saved(tmp_path, _BASE)
    model = load_probabilistic(path).requires_grad_(True)
    pixels, tokens = batch(_BASE)
    image, text = model.encode_image(pixels), model.encode_text(tokens)
    weights = torch.randn(3, 4, generator=torch.Generator().manual_seed(2))
    (model.score(image, text) * weights).sum().backward()
    idle = [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert idle == ["logit_scale"]
    assert len(list(model.parameters())) == len(state)


def test_what_follows_the_end_of_a_text_is_not_seen(folder: Path) -> None:
    """So that a batch of short texts may be cut at its longest."""
    model = load_probabilistic(folder)
    tokens = batch(_BASE)[1][[0, 3]]
    whole, cut = model.encode_text(tokens), model.encode_text(tokens[:, :4])
    torch.testing.assert_close(whole[0], cut[0])
    torch.testing.assert_close(whole[1], cut[1])


def test_the_score_is_the_native_one(folder: Path) -> None:
    model = load_probabilistic(folder).double()
    generator = torch.Generator().manual_seed(3)
    image, text = (
        (
            torch.randn(
                rows, 20, generator=generator, dtype=torch.float64
            ),  # not unit: the distance is the general one
            torch.randn(rows, 20, generator=generator, dtype=torch.float64),
        )
        for rows in (5, 4)
    )
    expected = torch.empty(5, 4, dtype=torch.float64)
    for i in range(5):
        for j in range(4):
            distance = sum(float((image[0][i, k] - text[0][j, k]) ** 2) for k in range(20))
            spread = sum(float(image[1][i, k].exp() + text[1][j, k].exp()) for k in range(20))
            expected[i, j] = float(-model.negative_scale * (distance + spread) + model.shift)
    torch.testing.assert_close(model.score(image, text), expected, atol=1e-12, rtol=1e-12)
    scale, shift = float(model.negative_scale), float(model.shift)
    found = pcmepp_score(image[0], image[1].exp(), text[0], text[1].exp(), scale, shift)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)


def test_where_the_tokenizer_comes_from(folder: Path) -> None:
    assert asdict(load_probabilistic(folder).config.tokens) == {
        "repository": "openai/clip-vit-base-patch16",
        "cleaning": "lower",
        "zero_padded": True,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"uncertainty_transformer.resblocks.1.mlp.c_fc.bias": None},
            "have no uncertainty_transformer.resblocks.1.mlp",
        ),
        ({"uncertainty_projection": torch.zeros(2)}, "have uncertainty_projection, which the model"),
        ({"shift": torch.tensor(5.0)}, r"have shift with shape \[\], but config.json asks for \[1\]"),
    ],
)
def test_weights_of_another_model(folder: Path, change: dict[str, Tensor | None], message: str) -> None:
    weights = {**load_file(folder / "model.safetensors"), **change}
    save_file({name: weight for name, weight in weights.items() if weight is not None}, folder / "model.safetensors")
    with pytest.raises(BayesVLMError, match=message) as caught:
        load_probabilistic(folder)
    assert "\n" not in str(caught.value)


def test_a_pickle_is_refused(folder: Path) -> None:
    torch.save({"logit_scale": torch.zeros(())}, folder / "model.safetensors")
    with pytest.raises(BayesVLMError, match="are truncated or no safetensors"):
        load_probabilistic(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(BayesVLMError, match="holds only a pickle"):
        load_probabilistic(folder)


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        ("", {"vision_cfg": "ViT-B-16"}, 'vision_cfg is "ViT-B-16"; expected an object'),
        ("", {"init_logit_bias": -10}, "has an entry init_logit_bias=-10"),
        ("vision_cfg", {"unc_layers": 4}, "vision_cfg.unc_layers is 4; expected at most the 3 layers"),
        ("vision_cfg", {"global_average_pool": True}, "vision_cfg.global_average_pool is true; expected false"),
        ("vision_cfg", {"attentional_pool": True}, "vision_cfg.attentional_pool is true; expected false"),
        ("vision_cfg", {"input_patchnorm": True}, "vision_cfg.input_patchnorm is true; expected false"),
        ("vision_cfg", {"embed_unc": True}, "has an entry vision_cfg.embed_unc=True"),
        ("text_cfg", {"unc_layers": 0}, "text_cfg.unc_layers is 0; expected a whole number of at least 1"),
        ("text_cfg", {"embed_cls": True}, "text_cfg.embed_cls is true; expected false"),
        ("text_cfg", {"mlp_ratio": 4.0}, "has an entry text_cfg.mlp_ratio=4.0"),
        ("text_cfg", {"heads": 7}, "text_cfg.width is 24; expected a multiple of its 7 heads"),
    ],
)
def test_a_wrong_entry_of_the_configuration(folder: Path, section: str, changes: dict[str, Any], message: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (config[section] if section else config).update(changes)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BayesVLMError, match=message) as caught:
        load_probabilistic(folder)
    assert "\n" not in str(caught.value)


def test_inputs_of_another_shape(folder: Path) -> None:
    model = load_probabilistic(folder)
    with pytest.raises(BayesVLMError, match=r"pixels have shape \[3, 32, 32\]; expected \[N, 3, 32, 32\]"):
        model.encode_image(torch.zeros(3, 32, 32))
    with pytest.raises(BayesVLMError, match=r"tokens have shape \[2, 8\]; expected \[N, L\] with L at most 7"):
        model.encode_text(torch.zeros(2, 8, dtype=torch.long))


def test_the_family_is_told_by_unc_layers(folder: Path) -> None:
    assert probabilistic_family(folder) == "pcmepp"
