"""The drawing styles: which package holds them, under which licence, and whether models are trained on them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Style:
    """One vendor's way of drawing.

    Args:
        name: of the style.
        family: styles of one family draw the same outlines, so that they must never be split.
        package: the npm package, pinned in package.json.
        folder: of one file a drawing, inside the package; empty for an iconify package, which is one json file.
        licence: SPDX identifier of the artwork (not of the package's code).
        attribution: the line the licence asks for.
        trained: whether models may be trained on it.
    """

    name: str
    family: str
    package: str
    folder: str
    licence: str
    attribution: str
    trained: bool


_NOTO = "Noto Emoji, copyright Google LLC, licensed under the Apache License 2.0"
_FLUENT = "Fluent Emoji, copyright Microsoft Corporation, licensed under the MIT License"
_EMOJIONE = "EmojiOne 2.2.7, copyright Ranks.com Inc. (emojione.com), licensed under CC BY 4.0"
_OPENMOJI = "OpenMoji (openmoji.org), the open-source emoji and icon project, licensed under CC BY-SA 4.0"

STYLES = (
    Style("noto", "noto", "@iconify-json/noto", "", "Apache-2.0", _NOTO, True),
    Style("noto-v1", "noto-v1", "@iconify-json/noto-v1", "", "Apache-2.0", _NOTO + " (first version)", True),
    Style(
        "twemoji",
        "twemoji",
        "@iconify-json/twemoji",
        "",
        "CC-BY-4.0",
        "Twemoji, copyright Twitter, Inc and other contributors, licensed under CC BY 4.0",
        True,
    ),
    Style("fluent-3d", "fluent", "@lobehub/fluent-emoji-3d", "assets", "MIT", _FLUENT, True),
    Style("fluent-colour", "fluent", "@lobehub/fluent-emoji-modern", "assets", "MIT", _FLUENT, True),
    Style("fluent-flat", "fluent", "@lobehub/fluent-emoji-flat", "assets", "MIT", _FLUENT, True),
    Style("emojione-colour", "emojione", "emojione", "assets/svg", "CC-BY-4.0", _EMOJIONE, False),
    Style("emojione-black", "emojione", "emojione", "assets/svg_bw", "CC-BY-4.0", _EMOJIONE, False),
    Style("openmoji-colour", "openmoji", "openmoji", "color/svg", "CC-BY-SA-4.0", _OPENMOJI, False),
    Style("openmoji-black", "openmoji", "openmoji", "black/svg", "CC-BY-SA-4.0", _OPENMOJI, False),
    Style(
        "fluent-high-contrast",
        "fluent-high-contrast",
        "@iconify-json/fluent-emoji-high-contrast",
        "",
        "MIT",
        _FLUENT,
        False,
    ),
)
