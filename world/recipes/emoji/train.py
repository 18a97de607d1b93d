"""Train the embedded models: `python world/recipes/emoji/train.py emoji-clip --artwork artwork/training.npz`.

Needs a CUDA device (minutes on an H200) and the drawings that `build.py --artwork` writes. Everything random comes from
the recipe's seed; two runs agree to what GPU arithmetic allows. The result is a folder in the published layout of the
family, fp16 safetensors, loadable by `transformers.AutoModel`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import shutil
import tarfile
import time
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoTokenizer, CLIPConfig, CLIPModel, SiglipConfig, SiglipModel

import prolip
from augment import NUMBERS, Augmentation
from bayesvlm.models.layout import (
    CLIP_MEAN,
    CLIP_STD,
    save_clip_pixels,
    save_clip_tokenizer,
    save_gemma_tokenizer,
    save_siglip_pixels,
)
from bayesvlm.models.probabilistic import ProLIP, load_tokeniser, probabilistic_family
from bayesvlm.models.probabilistic.configuration import read_entries
from bayesvlm.models.probabilistic.prolip import read_prolip
from captions import CONTEXT, captions, clip_merges, gemma_merges, read_classes, vocabulary_texts
from card import card

ROOT = Path(__file__).resolve().parents[3]
DATA, MODELS = ROOT / "world/src/bayesvlm_world/data", ROOT / "world/src/bayesvlm_world/models"
SIZE, PATCH = 64, 8
VARIANTS = 32  # captions of a class to draw from


@dataclass(frozen=True)
class Recipe:
    """One model: its family, its sizes, how it is trained."""

    family: Literal["clip", "siglip", "prolip"]
    line_art: float = 0.4
    vision_width: int = 256
    vision_layers: int = 4
    vision_hidden: int = 640
    text_width: int = 256
    text_layers: int = 4
    text_hidden: int = 512
    projection: int = 128  # CLIP's; SigLIP embeds in the vision width
    vocabulary: int = 700
    steps: int = 8_000
    batch: int = 512
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    warm_up: int = 600
    smoothing: float = 0.1  # of CLIP's targets at first: points of top-1, and variances that tell more
    smoothed: float = 0.7  # by this share of the training it has fallen to nothing
    bottleneck: float = 0.0  # ProLIP's: keeps its variances from vanishing
    seed: int = 0


RECIPES = {
    "emoji-clip": Recipe("clip"),
    "emoji-clip-colour": Recipe("clip", line_art=0.0),
    "emoji-siglip": Recipe(
        "siglip",
        vision_width=192,
        vision_layers=6,
        vision_hidden=576,
        steps=10_000,
        smoothing=0.0,
    ),
    "emoji-prolip": Recipe(
        "prolip",
        vision_width=192,
        vision_layers=5,
        vision_hidden=576,
        text_width=192,
        text_hidden=384,
        projection=192,
        steps=10_000,
        smoothing=0.0,
        bottleneck=1e-5,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=RECIPES)
    parser.add_argument(
        "--artwork", type=Path, default=ROOT / "artwork/training.npz", help="made by build.py --artwork"
    )
    parser.add_argument("--out", type=Path, default=MODELS, help="the folder is written below this one")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=NUMBER", help="depart from the recipe")
    options = parser.parse_args()
    recipe = RECIPES[options.name]
    for change in options.set:
        field, value = change.split("=")
        recipe = dataclasses.replace(recipe, **{field: type(getattr(recipe, field))(value)})
    folder = options.out / options.name
    model = make_model(recipe, folder)
    pairs = Pairs(options.artwork, folder, recipe.seed)
    train(model, recipe, pairs)
    if recipe.smoothing:
        find_scale(model, recipe, pairs)
    if recipe.family == "prolip":
        prolip.save(model, folder)
    else:
        model.half().save_pretrained(folder)
    fields, result = dataclasses.asdict(recipe), evaluate(model, recipe, folder)
    (folder / "README.md").write_text(card(options.name, fields, result), encoding="utf-8")
    print(json.dumps({"name": options.name, "recipe": fields} | result))


# Model ----------------------------------------------------------------------------------------------------------------


def make_model(recipe: Recipe, folder: Path) -> Any:
    """The untrained model on the GPU, its other files in the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    texts = vocabulary_texts(read_classes(DATA))
    widths = {"hidden_size": recipe.text_width, "intermediate_size": recipe.text_hidden}
    text = widths | {"num_hidden_layers": recipe.text_layers, "num_attention_heads": recipe.text_width // 32}
    vision = {
        "hidden_size": recipe.vision_width,
        "intermediate_size": recipe.vision_hidden,
        "num_hidden_layers": recipe.vision_layers,
        "num_attention_heads": recipe.vision_width // 64,
        "image_size": SIZE,
        "patch_size": PATCH,
    }
    text |= {"max_position_embeddings": CONTEXT}
    torch.manual_seed(recipe.seed)  # transformers draws the first weights from the global generator
    if recipe.family == "clip":
        vocabulary = save_clip_tokenizer(folder, clip_merges(texts, recipe.vocabulary), CONTEXT)
        save_clip_pixels(folder, SIZE)
        start, end = vocabulary["<|startoftext|>"], vocabulary["<|endoftext|>"]
        text |= {"vocab_size": len(vocabulary), "bos_token_id": start, "eos_token_id": end, "pad_token_id": end}
        text |= {"hidden_act": "gelu"}  # faster on a CPU than CLIP's quick_gelu
        vision |= {"hidden_act": "gelu"}
        model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=recipe.projection))
    elif recipe.family == "prolip":
        vocabulary = save_gemma_tokenizer(folder, gemma_merges(texts, recipe.vocabulary), CONTEXT, "SiglipProcessor")
        vision = {"image_size": SIZE, "patch_size": PATCH, "width": recipe.vision_width, "head_width": 64}
        vision |= {"layers": recipe.vision_layers, "mlp_ratio": recipe.vision_hidden / recipe.vision_width}
        text = {"context_length": CONTEXT, "vocab_size": len(vocabulary), "width": recipe.text_width}
        text |= {"heads": recipe.text_width // 32, "layers": recipe.text_layers}
        text |= {"mlp_ratio": recipe.text_hidden / recipe.text_width}
        depth = max(recipe.vision_layers, recipe.text_layers)
        model = prolip.make(folder, vision, text, recipe.projection, depth)
    else:
        vocabulary = save_gemma_tokenizer(folder, gemma_merges(texts, recipe.vocabulary), CONTEXT, "SiglipProcessor")
        save_siglip_pixels(folder, "Siglip", {"size": {"height": SIZE, "width": SIZE}})
        text |= {name: vocabulary[f"<{name[:3]}>"] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        text |= {"vocab_size": len(vocabulary), "projection_size": recipe.vision_width}
        model = SiglipModel(SiglipConfig(text_config=text, vision_config=vision))
        torch.nn.init.constant_(model.logit_scale, math.log(10))
        torch.nn.init.constant_(model.logit_bias, -10.0)
    return model.cuda()


def tokenise(folder: Path, texts: list[str]) -> Tensor:  # [N, L]
    """Token ids, padded to the context; SigLIP's tokenizer leaves lower-casing to its caller."""
    if probabilistic_family(folder) is not None:
        return load_tokeniser(folder, read_prolip(read_entries(folder)))(texts)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    lowered = [text.lower() for text in texts]
    return tokenizer(lowered, padding="max_length", truncation=True, max_length=CONTEXT, return_tensors="pt").input_ids


# Training -------------------------------------------------------------------------------------------------------------


def train(model: Any, recipe: Recipe, pairs: Pairs) -> None:
    """AdamW with warm-up and cosine, bf16; a batch is of distinct concepts, one random drawing of each."""
    generator = torch.Generator("cuda").manual_seed(recipe.seed)
    torch.set_float32_matmul_precision("high")
    model.train()
    step = Step(model, recipe)
    started = time.perf_counter()
    for index in range(recipe.steps):
        rgba, mirrors, ids = pairs.draw(recipe.batch, generator)
        uniforms = torch.rand(recipe.batch, NUMBERS, generator=generator, device="cuda")
        noise = torch.randn(recipe.batch, 3, SIZE, SIZE, generator=generator, device="cuda")
        loss = step(_rate(index, recipe), _smoothing(index, recipe), rgba, mirrors, uniforms, noise, ids)
        if index % 500 == 0 or index == recipe.steps - 1:
            seconds = time.perf_counter() - started
            print(
                f"step {index:6d}  loss {loss.item():.4f}  t {model.logit_scale.exp().item():.1f}  {seconds:.0f} s",
                flush=True,
            )


class Step:
    """One training step. After a few it is captured as a CUDA graph and replayed: launching it from Python takes
    several times as long as the GPU needs for it."""

    EAGER = 4  # steps before the capture: compilation, the optimiser's state

    def __init__(self, model: Any, recipe: Recipe) -> None:
        self.model, self.recipe = model, recipe
        decayed = [p for p in model.parameters() if p.ndim > 1]
        others = [p for p in model.parameters() if p.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self.rate, self.smoothing = torch.zeros((), device="cuda"), torch.zeros((), device="cuda")
        self.optimiser = torch.optim.AdamW(groups, lr=self.rate, betas=(0.9, 0.98), fused=True, capturable=True)
        self.loss_of = torch.compile(partial(batch_loss, model, recipe))
        self.inputs: list[Tensor] = []
        self.graph: torch.cuda.CUDAGraph | None = None
        self.stream, self.taken = torch.cuda.Stream(), 0

    def __call__(self, rate: float, smoothing: float, *inputs: Tensor) -> Tensor:
        """The loss of the batch, before the step."""
        self.rate.fill_(rate * self.recipe.learning_rate)
        self.smoothing.fill_(smoothing)
        self.taken += 1
        if self.taken <= self.EAGER:
            self.inputs = list(inputs)
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):  # a capture must not find gradients that wait on the main stream
                loss = self._take()
            torch.cuda.current_stream().wait_stream(self.stream)
            return loss
        for kept, new in zip(self.inputs, inputs, strict=True):
            kept.copy_(new)
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.loss = self._take()
        self.graph.replay()
        return self.loss

    def _take(self) -> Tensor:
        self.optimiser.zero_grad(set_to_none=True)
        loss = self.loss_of(self.smoothing, *self.inputs)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        with torch.no_grad():
            self.model.logit_scale.clamp_(max=math.log(100))
        return loss.detach()


def batch_loss(
    model: Any,
    recipe: Recipe,
    smoothing: Tensor,
    rgba: Tensor,
    mirrors: Tensor,
    uniforms: Tensor,
    noise: Tensor,
    ids: Tensor,
) -> Tensor:
    """The loss of a batch of drawings and captions, augmented by these random numbers."""
    pixels = normalise(Augmentation(uniforms, noise, recipe.line_art)(rgba, mirrors), recipe)
    if recipe.family == "prolip":
        return prolip.loss(model, pixels, ids, recipe.bottleneck)
    with torch.autocast("cuda", torch.bfloat16):
        image, text = embeddings(model, pixels, ids)
    image, text = F.normalize(image.float(), dim=1), F.normalize(text.float(), dim=1)
    return infonce(model, image, text, smoothing) if recipe.family == "clip" else sigmoid(model, image, text)


@torch.no_grad()
def find_scale(model: Any, recipe: Recipe, pairs: Pairs, batches: int = 64) -> None:
    """Set the scale to what CLIP's own loss, without smoothing, asks for on training pairs as they are.

    Smoothed targets want a small scale, with which no model is ever published: it would not be sure of anything.
    """
    generator = torch.Generator("cuda").manual_seed(recipe.seed)
    model.eval()
    cosines = []
    for _ in range(batches):
        rgba, _, ids = pairs.draw(recipe.batch, generator)
        rgba = rgba.float() / 255
        image, text = embeddings(model, normalise(rgba[:, :3] * rgba[:, 3:] + 1 - rgba[:, 3:], recipe), ids)
        cosines.append(F.normalize(image, dim=1) @ F.normalize(text, dim=1).T)
    stacked = torch.stack(cosines)  # [batches, N, N]
    target = torch.arange(recipe.batch, device="cuda").repeat(batches)

    def loss(scale: float) -> float:
        ways = (scale * stacked, scale * stacked.transpose(1, 2))
        return sum(F.cross_entropy(way.flatten(0, 1), target).item() for way in ways)

    scale = min((1.01**power for power in range(463)), key=loss)  # 1 to 100, each 1 % more
    model.logit_scale.fill_(math.log(scale))
    print(f"scale without smoothing: {scale:.1f}", flush=True)


class Pairs:
    """The training drawings, sorted by class, and captions of every class, tokenised, on the GPU."""

    def __init__(self, artwork: Path, folder: Path, seed: int) -> None:
        stored = np.load(artwork)
        self.pixels = torch.from_numpy(stored["pixels"]).permute(0, 3, 1, 2).contiguous().cuda()  # [N, 4, H, W]
        self.counts = torch.bincount(torch.from_numpy(stored["classes"])).cuda()  # [C]
        self.first = self.counts.cumsum(0) - self.counts  # [C]
        classes = [named for named in read_classes(DATA) if named.seen]
        said = [text for named in classes for text in captions(named, VARIANTS, seed)]
        self.tokens = tokenise(folder, said).unflatten(0, (len(classes), VARIANTS)).cuda()  # [C, V, L]
        self.mirrors = torch.tensor([named.mirrors for named in classes]).cuda()  # [C]

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """A random drawing and caption of each of so many random classes: RGBA, may it be mirrored, token ids."""
        classes = torch.randperm(len(self.counts), generator=generator, device="cuda")[:count]
        share = torch.rand(count, generator=generator, device="cuda")
        index = self.first[classes] + (share * self.counts[classes]).long()
        variant = torch.randint(VARIANTS, (count,), generator=generator, device="cuda")
        return self.pixels[index], self.mirrors[classes], self.tokens[classes, variant]


def embeddings(model: Any, pixels: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Both towers' embeddings, before normalisation; the means of those that have variances."""
    if isinstance(model, ProLIP):
        return model.visual(pixels)[0], model.text(ids)[0]
    image, text = model.get_image_features(pixel_values=pixels), model.get_text_features(input_ids=ids)
    return tuple(output if isinstance(output, Tensor) else output.pooler_output for output in (image, text))


def normalise(pictures: Tensor, recipe: Recipe) -> Tensor:
    """As the image processor of the family does."""
    if recipe.family == "siglip":
        return (pictures - 0.5) / 0.5
    mean = pictures.new_tensor(CLIP_MEAN)[None, :, None, None]
    std = pictures.new_tensor(CLIP_STD)[None, :, None, None]
    return (pictures - mean) / std


def infonce(model: Any, image: Tensor, text: Tensor, smoothing: Tensor) -> Tensor:
    """CLIP's symmetric cross-entropy over the batch, its targets smoothed."""
    logits = model.logit_scale.exp() * image @ text.T
    target = torch.arange(len(logits), device=logits.device)
    own = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
    alike = (logits.logsumexp(0).mean() + logits.logsumexp(1).mean()) / 2 - logits.mean()
    return (1 - smoothing) * own + smoothing * alike


def sigmoid(model: Any, image: Tensor, text: Tensor) -> Tensor:
    """SigLIP's sum of binary cross-entropies over all pairs, for each image."""
    logits = model.logit_scale.exp() * image @ text.T + model.logit_bias
    sign = 2 * torch.eye(len(logits), device=logits.device) - 1
    return -F.logsigmoid(sign * logits).sum() / len(logits)


def _smoothing(step: int, recipe: Recipe) -> float:
    return recipe.smoothing * max(0.0, 1 - step / (recipe.smoothed * recipe.steps))


def _rate(step: int, recipe: Recipe) -> float:
    if step < recipe.warm_up:
        return (step + 1) / recipe.warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - recipe.warm_up) / (recipe.steps - recipe.warm_up)))


# A look at the result -------------------------------------------------------------------------------------------------


@torch.no_grad()
def evaluate(model: Any, recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Top-1 of the plain model on every test split, among the seen classes (the unseen ones: among themselves)."""
    model = model.float().eval()
    classes = read_classes(DATA)
    labels = tokenise(folder, [named.label for named in classes]).cuda()
    _, text = embeddings(model, torch.zeros(1, 3, SIZE, SIZE, device="cuda"), labels)
    text, seen = F.normalize(text, dim=1), sum(named.seen for named in classes)
    scores = {}
    for split in sorted(path.name for path in (DATA / "emoji").iterdir() if path.is_dir()):
        if split in ("train", "set-aside"):
            continue
        images, target = read_split(DATA / "emoji" / split)
        pixels = normalise(images.cuda().float() / 255, recipe)
        image = torch.cat([embeddings(model, chunk, labels[:1])[0] for chunk in pixels.split(1024)])
        first, last = (seen, len(classes)) if split == "unseen-concepts" else (0, seen)
        logits = model.logit_scale.exp() * F.normalize(image, dim=1) @ text[first:last].T
        right = logits.argmax(dim=1).cpu() == target - first
        nlpd = F.cross_entropy(logits.cpu(), target - first)
        scores[split] = {"top1": round(100 * right.float().mean().item(), 1), "nlpd": round(nlpd.item(), 3)}
    parameters = sum(p.numel() for p in model.parameters())
    return {"parameters": parameters, "scale": model.logit_scale.exp().item(), "scores": scores}


def read_split(folder: Path) -> tuple[Tensor, Tensor]:
    """Images [N, 3, H, W] uint8 and classes [N] of one split."""
    images, target = [], []
    for shard in sorted(folder.glob("*.tar.gz")):
        with tarfile.open(shard) as tar:
            for member in tar:
                content = tar.extractfile(member).read()
                if member.name.endswith(".webp"):
                    images.append(np.asarray(Image.open(BytesIO(content)).convert("RGB")))
                elif member.name.endswith(".cls"):
                    target.append(int(content))
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2), torch.tensor(target)


if __name__ == "__main__":
    main()
