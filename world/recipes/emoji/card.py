"""The page that lies beside an embedded model: what it is, what it was trained on and how, what it can do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PAGE = """---
license: mit
library_name: {library}
pipeline_tag: zero-shot-image-classification
tags: [{family}, emoji, bayesvlm]
---
# {name}

A small {published} that reads 64-pixel emoji, trained from scratch for the embedded world of bayesvlm:
{parameters:,} parameters, half precision. It shows what the software does; it is of no use for photographs.

**Data.** The training split: drawings of 1,531 concepts by Google (Noto, two versions), Twitter (Twemoji) and Microsoft
(Fluent, three renderings), {line_art}, captions from emojibase.
`../../data/LICENSES.md` has the licences and attributions of the artwork. Never seen in training: a hundred further
concepts, one drawing family of every concept, EmojiOne, OpenMoji, Fluent high contrast, flags.

**Recipe.** `world/recipes/emoji/train.py {name}` of the repository; its numbers:

| field | value |
|---|---|
{fields}

**Top-1 of the plain model**, among 1,531 names (unseen concepts: among their hundred), prompt = name:

| split | top-1 % | NLPD |
|---|---|---|
{scores}

```python
from bayesvlm import BayesVLM
vlm = BayesVLM.from_pretrained("{name}")  # with {brings}
```
"""


def card(name: str, recipe: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """The page in Markdown, from the recipe's fields and what `train.evaluate` returned."""
    return _PAGE.format(
        name=name,
        family=recipe["family"],
        published={"clip": "CLIPModel", "siglip": "SiglipModel", "prolip": "ProLIP"}[recipe["family"]],
        library="bayesvlm" if recipe["family"] == "prolip" else "transformers",
        brings="variances of its own" if recipe["family"] == "prolip" else "its posterior",
        parameters=result["parameters"],
        line_art="also redrawn as synthetic line art" if recipe["line_art"] else "always in colour",
        fields="\n".join(f"| {field} | {value} |" for field, value in recipe.items()),
        scores="\n".join(f"| {split} | {s['top1']:.1f} | {s['nlpd']:.2f} |" for split, s in result["scores"].items()),
    )
