"""One place that turns anything a user calls an image into upright RGB, and finds the files that hold one."""

from bayesvlm.images.decoding import ImageLike, Readable, as_images, heif_version, to_rgb
from bayesvlm.images.files import SkippedImages, find_images
from bayesvlm.images.resizing import Resizing

__all__ = ["ImageLike", "Readable", "Resizing", "SkippedImages", "as_images", "find_images", "heif_version", "to_rgb"]
