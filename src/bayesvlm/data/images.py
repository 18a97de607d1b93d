"""Image files: finding them, decoding them a batch at a time, and keeping count of the ones that cannot be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.models.images import ImageLike, to_rgb

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})


def find_images(folder: Path) -> list[Path]:
    """All image files below a folder, sorted; hidden files and folders left out."""
    if not folder.is_dir():
        raise BayesVLMError(f"{folder} is not a folder; give one with image files in it.")
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


@dataclass
class SkippedImages:
    """Images, or whole shards, that could not be read: skipped and remembered, or with `strict` an error at once."""

    strict: bool = False
    reasons: dict[str, str] = field(default_factory=dict)

    def decode(
        self, images: Sequence[ImageLike], names: Sequence[str] | None = None, workers: int = 4
    ) -> list[Image.Image | None]:
        """The images in RGB; None in the place of one that cannot be read, which is noted under its name (or path)."""
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(self._decode, images, names or [str(image) for image in images]))

    def note(self, name: str, error: BayesVLMError) -> None:
        """Remember what was skipped and why; with `strict`, raise it."""
        if self.strict:
            raise error
        self.reasons[name] = str(error)

    def __len__(self) -> int:
        return len(self.reasons)

    def __str__(self) -> str:
        return describe_skipped(self.reasons)

    def _decode(self, image: ImageLike, name: str) -> Image.Image | None:
        try:
            return to_rgb(image, "image" if isinstance(image, Path) else name)
        except BayesVLMError as error:
            self.note(name, error)
            return None


def describe_skipped(reasons: Mapping[str, str]) -> str:
    """How many could not be used, and why the first ten could not."""
    shown = [reason.rstrip(".") for _, reason in sorted(reasons.items())[:10]]
    more = len(reasons) - len(shown)
    rest = f"\n  and {more} more" if more else ""
    return f"skipped {len(reasons)} that cannot be used:\n  " + "\n  ".join(shown) + rest
