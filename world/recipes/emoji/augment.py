"""Drawings with transparency -> training pictures, a batch at a time, on the device they lie on.

The random numbers are drawn beforehand and used up in order, so that the rest is a pure function, which compiles.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

LUMA = (0.299, 0.587, 0.114)


NUMBERS = 64  # uniform random numbers a picture uses up, at most


class Augmentation:
    """Affine maps, mirrors, backgrounds, line art, colours, blur, holes: one batch.

    Args:
        uniforms: [N, NUMBERS], in 0..1.
        noise: [N, 3, H, W], standard normal.
        line_art: the share of pictures redrawn as lines, silhouettes or outlined colours; 0 leaves that out.
    """

    def __init__(self, uniforms: Tensor, noise: Tensor, line_art: float) -> None:
        self.uniforms, self.noise, self.line_art = uniforms, noise, line_art
        self.used = 0

    def __call__(self, drawings: Tensor, mirrors: Tensor) -> Tensor:
        """Pictures in 0..1.

        Args:
            drawings: [N, 4, H, W], uint8 RGBA.
            mirrors: [N], whether a mirrored drawing means the same.
        """
        rgba = drawings.float() / 255
        rgba = torch.cat([rgba[:, :3] * rgba[:, 3:], rgba[:, 3:]], dim=1)  # premultiplied: edges interpolate rightly
        rgba = self.warp(rgba, mirrors)
        picture = rgba[:, :3] + (1 - rgba[:, 3:]) * self.background()
        picture = self.colour(picture)
        if self.line_art:
            white = rgba[:, :3] + (1 - rgba[:, 3:])
            picture = self.mix(picture, self.lines(white, rgba[:, 3:]), self.line_art)
        picture = self.mix(picture, F.avg_pool2d(picture, 3, 1, 1, count_include_pad=False), 0.2)
        return self.holes(picture).clamp(0, 1)

    def uniform(self, low: float = 0.0, high: float = 1.0, channels: int = 1) -> Tensor:
        """The next random numbers, [N, channels, 1, 1]."""
        drawn = self.uniforms[:, self.used : self.used + channels, None, None]
        self.used += channels
        return drawn * (high - low) + low

    def mix(self, picture: Tensor, other: Tensor, share: float) -> Tensor:
        """`other` for that share of the batch."""
        return torch.where(self.uniform() < share, other, picture)

    def warp(self, rgba: Tensor, mirrors: Tensor) -> Tensor:
        """Rotate, scale, stretch, shear, shift, mirror: one affine map a picture."""
        draw = lambda low, high: self.uniform(low, high).flatten()  # noqa: E731
        angle = draw(-1, 1) * math.radians(15)
        scale, stretch = torch.exp(draw(math.log(0.65), math.log(1.12))), torch.exp(draw(-0.15, 0.15))
        shear = draw(-0.12, 0.12)
        flip = torch.where((draw(0, 1) < 0.5) & mirrors, -1.0, 1.0)
        cos, sin = torch.cos(angle), torch.sin(angle)
        x, y = 1 / (scale * stretch), stretch / scale
        theta = torch.stack(
            [
                torch.stack([flip * cos * x, (shear - sin) * y, draw(-0.12, 0.12)], dim=1),
                torch.stack([flip * sin * x, cos * y, draw(-0.12, 0.12)], dim=1),
            ],
            dim=1,
        )
        grid = F.affine_grid(theta, list(rgba.shape), align_corners=False)
        return F.grid_sample(rgba, grid, align_corners=False)

    def background(self) -> Tensor:
        """White for six in ten, else a colour, some with a gradient or noise."""
        colour = self.uniform(0.3, 1.0, channels=3)
        ramp = torch.linspace(-0.5, 0.5, self.noise.shape[-1], device=self.noise.device)
        slope = self.uniform(-0.4, 0.4) * ramp + self.uniform(-0.4, 0.4) * ramp[:, None]
        textured = colour + slope + self.uniform(0.0, 0.1) * self.noise
        return self.mix(self.mix(colour.expand_as(textured), textured, 0.5), torch.ones_like(textured), 0.6)

    def colour(self, picture: Tensor) -> Tensor:
        """Brightness, contrast, saturation, hue; one in seven grey."""
        grey = luma(picture)
        jittered = grey + (picture - grey) * self.uniform(0.5, 1.5)
        jittered = rotate_hue(jittered, self.uniform(-0.35, 0.35))
        contrast, brightness = self.uniform(0.7, 1.3), self.uniform(-0.12, 0.12)
        jittered = (jittered - 0.5) * contrast + 0.5 + brightness
        picture = self.mix(picture, jittered, 0.8)
        return self.mix(picture, luma(picture).expand_as(picture), 0.15)

    def lines(self, white: Tensor, alpha: Tensor) -> Tensor:
        """The drawing as black lines, as a silhouette with white lines, as two tones, or as outlined flat colours."""
        smooth = F.avg_pool2d(white, 3, 1, 1, count_include_pad=False)
        edges = torch.maximum(gradient(smooth), gradient(alpha))
        threshold = self.uniform(0.12, 0.45)
        line = torch.sigmoid((edges - threshold) * 30)
        thick = F.max_pool2d(line, 3, 1, 1)
        line = self.mix(line, thick, 0.5)
        strokes = 1 - line
        silhouette = 1 - alpha * (1 - line)
        tones = torch.sigmoid((luma(white) - self.uniform(0.35, 0.75)) * 25)
        tones = torch.minimum(tones, 1 - torch.sigmoid((gradient(alpha) - 0.3) * 30))
        outlined = white * strokes
        drawn = self.mix(strokes.expand_as(white), silhouette.expand_as(white), 0.2)
        drawn = self.mix(drawn, tones.expand_as(white), 0.3)
        return self.mix(drawn, self.colour(outlined), 0.25)

    def holes(self, picture: Tensor) -> Tensor:
        """One rectangle in white or a colour, for three pictures in ten."""
        size = picture.shape[-1]
        at = torch.arange(size, device=picture.device)
        width, height = self.uniform(0.1, 0.45) * size, self.uniform(0.1, 0.45) * size
        left, top = self.uniform() * (size - width), self.uniform() * (size - height)
        inside = (at[None, None, None, :] >= left) & (at[None, None, None, :] < left + width)
        inside = inside & (at[None, None, :, None] >= top) & (at[None, None, :, None] < top + height)
        fill = self.mix(torch.ones_like(picture[:, :, :1, :1]), self.uniform(channels=3), 0.5)
        return self.mix(picture, torch.where(inside, fill, picture), 0.3)


def luma(picture: Tensor) -> Tensor:  # [N, 1, H, W]
    """Perceived brightness."""
    return (picture * picture.new_tensor(LUMA)[None, :, None, None]).sum(dim=1, keepdim=True)


def rotate_hue(picture: Tensor, angle: Tensor) -> Tensor:
    """Turn the colours about the grey axis (Rodrigues), by an angle for each picture [N, 1, 1, 1]."""
    axis = picture.mean(dim=1, keepdim=True)
    cross = (picture.roll(1, dims=1) - picture.roll(-1, dims=1)) / math.sqrt(3)
    return picture * torch.cos(angle) + cross * torch.sin(angle) + axis * (1 - torch.cos(angle))


def gradient(picture: Tensor) -> Tensor:  # [N, 1, H, W]
    """The largest Sobel gradient over the channels; the border repeats itself."""
    kernel = picture.new_tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]) / 4
    channels = picture.shape[1]
    weight = torch.stack([kernel, kernel.T])[:, None].repeat(channels, 1, 1, 1)
    slopes = F.conv2d(F.pad(picture, (1, 1, 1, 1), mode="replicate"), weight, groups=channels)
    return slopes.unflatten(1, (channels, 2)).square().sum(dim=2).amax(dim=1, keepdim=True).sqrt()
