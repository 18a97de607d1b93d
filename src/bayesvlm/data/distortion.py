"""Images made worse on purpose, by the paper's three kinds and six levels: how far may proxy data be from the truth?"""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import Literal, get_args

from PIL import Image, ImageFilter

from bayesvlm.core.errors import BayesVLMError, check_choice

Kind = Literal["greyscale", "jpeg", "blur"]
LEVELS: dict[Kind, tuple[float, ...]] = {
    "greyscale": (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
    "jpeg": (100, 50, 25, 10, 5, 1),
    "blur": (0, 10, 20, 30, 40, 50),
}
"""Share of grey, quality, radius in pixels of an image whose shorter side has 224; from the mildest on."""
_SIDE = 224


@dataclass(frozen=True)
class Distortion:
    """One kind at one level.

    Args:
        kind: "greyscale" (between the image and its grey version), "jpeg" (compressed and read again), "blur".
        level: as in `LEVELS`; the radius of a blur is for an image of 224 pixels and grows with the shorter side.
    """

    kind: Kind
    level: float

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, get_args(Kind))
        low, high = sorted((LEVELS[self.kind][0], LEVELS[self.kind][-1]))
        if not low <= self.level <= high or (self.kind == "jpeg" and self.level % 1):
            number = "a whole number" if self.kind == "jpeg" else "a number"
            raise BayesVLMError(f"level={self.level}; for {self.kind} it is {number} from {low:g} to {high:g}.")
        object.__setattr__(self, "level", float(self.level))  # 10 and 10.0 are one level, also where it is written

    def __call__(self, image: Image.Image) -> Image.Image:
        """The image, distorted; its size stays."""
        image = image.convert("RGB")
        if self.kind == "greyscale":
            return Image.blend(image, image.convert("L").convert("RGB"), self.level)
        if self.kind == "blur":
            return image.filter(ImageFilter.GaussianBlur(self.level * min(image.size) / _SIDE))
        packed = BytesIO()
        image.save(packed, format="JPEG", quality=int(self.level))
        return Image.open(packed).convert("RGB")
