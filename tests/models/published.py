"""Checkpoints under the key names ProLIP and PCME++ are published with, and their transformer, in plain torch.

Nothing here uses the package: names, shapes and every step are written out a second time, to be compared with.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

Shapes = dict[str, tuple[int, ...]]
State = dict[str, Tensor]


def block_shapes(prefix: str, layers: int, width: int, hidden: int) -> Shapes:
    """OpenCLIP's names of a stack of residual attention blocks."""
    shapes: Shapes = {}
    for layer in range(layers):
        block = f"{prefix}.resblocks.{layer}"
        shapes |= norm_shapes(f"{block}.ln_1", width) | norm_shapes(f"{block}.ln_2", width)
        shapes[f"{block}.attn.in_proj_weight"] = (3 * width, width)
        shapes[f"{block}.attn.in_proj_bias"] = (3 * width,)
        shapes |= linear_shapes(f"{block}.attn.out_proj", width, width)
        shapes |= linear_shapes(f"{block}.mlp.c_fc", width, hidden)
        shapes |= linear_shapes(f"{block}.mlp.c_proj", hidden, width)
    return shapes


def norm_shapes(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def linear_shapes(name: str, entering: int, leaving: int) -> Shapes:
    return {f"{name}.weight": (leaving, entering), f"{name}.bias": (leaving,)}


def random_state(shapes: Shapes, seed: int = 0) -> State:
    """Noise for every weight, biases and layer norms included, so that none can be left out unnoticed."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        state[name] = noise / math.sqrt(shape[-1]) if len(shape) == 2 and "embedding" not in name else 0.5 * noise
    return state


def save(folder: Path, config: dict[str, Any], state: State) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    save_file(state, folder / "model.safetensors")
    return folder


def block(state: State, name: str, x: Tensor, heads: int, eps: float, quick: bool, causal: bool) -> Tensor:
    """One residual attention block on x [N, L, w], a head at a time."""
    entering = norm(state, f"{name}.ln_1", x, eps) @ state[f"{name}.attn.in_proj_weight"].T
    query, key, value = (entering + state[f"{name}.attn.in_proj_bias"]).chunk(3, dim=-1)
    size, length = x.shape[-1] // heads, x.shape[1]
    seen = []
    for head in range(heads):
        columns = slice(head * size, (head + 1) * size)
        scores = query[..., columns] @ key[..., columns].transpose(1, 2) / math.sqrt(size)
        if causal:
            scores = scores + torch.full((length, length), -math.inf).triu(1)
        seen.append(scores.softmax(dim=-1) @ value[..., columns])
    x = x + linear(state, f"{name}.attn.out_proj", torch.cat(seen, dim=-1))
    hidden = linear(state, f"{name}.mlp.c_fc", norm(state, f"{name}.ln_2", x, eps))
    hidden = hidden * torch.sigmoid(1.702 * hidden) if quick else hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2
    return x + linear(state, f"{name}.mlp.c_proj", hidden)


def norm(state: State, name: str, x: Tensor, eps: float) -> Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    scaled = centred / (centred.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]


def linear(state: State, name: str, x: Tensor) -> Tensor:
    return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def patches(weight: Tensor, pixels: Tensor) -> Tensor:
    """[N, 3, S, S] to [N, patches, w], row by row."""
    size = weight.shape[-1]
    rows = []
    for top in range(0, pixels.shape[2], size):
        for left in range(0, pixels.shape[3], size):
            patch = pixels[:, :, top : top + size, left : left + size]
            rows.append(patch.flatten(1) @ weight.flatten(1).T)
    return torch.stack(rows, dim=1)


def unit(x: Tensor) -> Tensor:
    return x / x.square().sum(dim=-1, keepdim=True).sqrt()
