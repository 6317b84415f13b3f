"""What `augment` does, in plain torch and one sample at a time: the definition that the other kernels equal to the bit.

Arithmetic is in float32, each operation rounded by itself (nothing fused), in the order written here. It follows
torchvision v2's functions on uint8 (torchvision/transforms/v2/functional), whose levels it gives; where torch fuses a
multiplication and an addition there, a level may differ by 1. Where an affine operation reads within 1e-5 of the middle
between two pixels, the nearest one may be the other. The bicubic one is Pillow's (src/libImaging/Geometry.c), within 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.kernels.erase_mix import logarithm, noise, series
from gpupipe.kernels.operations import ELASTIC, Op
from gpupipe.kernels.philox import philox4x32

__all__ = ["augment_reference", "displacement"]

GRAY = (0.2989, 0.587, 0.114)  # torchvision's weights of R, G and B
ORDERS = tuple(permutations(range(3)))
NEAREST = (Op.AFFINE_NEAREST, Op.PERSPECTIVE_NEAREST, Op.ELASTIC_NEAREST)
BILINEAR = (Op.AFFINE_BILINEAR, Op.PERSPECTIVE_BILINEAR, Op.ELASTIC_BILINEAR)
MIXING = (Op.MIX_BEGIN, Op.MIX_ADD, Op.MIX_END)
Fill = Sequence[float] | None


def augment_reference(
    images: torch.Tensor, ops: NDArray[np.int32], values: NDArray[np.float32], fill: Fill = None
) -> torch.Tensor:
    """As `augment`: uint8 (N, height, width, 3) in and out, on any device."""
    out = images.clone()
    numbers = torch.from_numpy(values).to(images.device)
    for row, steps in enumerate(ops.tolist() if images.numel() else []):
        kept, total = torch.zeros_like(out[row]), torch.zeros_like(out[row], dtype=torch.float32)
        for step, op in enumerate(steps):
            if op not in MIXING:
                out[row] = _step(out[row], Op(op), numbers[row, step], fill)
                continue
            share = out[row].float() * numbers[row, step, 0]
            if op == Op.MIX_BEGIN:
                kept, total = out[row].clone(), share
            else:
                total = total + share
                out[row] = kept if op == Op.MIX_ADD else _levels(total)
    return out


def _step(image: torch.Tensor, op: Op, values: torch.Tensor, fill: Fill) -> torch.Tensor:
    """One operation on one image, uint8 (height, width, 3)."""
    if op is Op.IDENTITY:
        return image
    if op in (*NEAREST, *BILINEAR, Op.AFFINE_BICUBIC):
        return _moved(image, values, op, fill)
    if op is Op.HOLES:
        return _with_holes(image, values, fill)
    return FUNCTIONS[op](image, values)


def _levels(exact: torch.Tensor) -> torch.Tensor:
    """Numbers cut to 0 to 255, then truncated."""
    return exact.clamp(0, 255).to(torch.uint8)


def _gray(image: torch.Tensor) -> torch.Tensor:
    """float32 (height, width), whole numbers."""
    red, green, blue = image.float().unbind(-1)
    return ((red * GRAY[0] + green * GRAY[1]) + blue * GRAY[2]).floor()


def _blend(image: torch.Tensor, other: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return _levels(image.float() * factor + other * (1 - factor))


def _contrast(image: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    gray = _gray(image)
    # The sum is whole and exact. Divided by tensors, since on a GPU torch multiplies by the inverse of a number.
    mean = gray.double().sum().float() / gray.new_tensor(gray.numel())
    return _blend(image, mean, values[0])


def _sharpness(image: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    height, width = image.shape[:2]
    if height <= 2 or width <= 2:
        return image
    whole = image.int()
    box = sum(whole[y : height - 2 + y, x : width - 2 + x] for y in range(3) for x in range(3))
    inner = whole[1:-1, 1:-1]
    # (8 neighbours + 5 times the middle) / 13, rounded: a half can't occur, as 13 is odd.
    smooth = torch.div(2 * (box + 4 * inner) + 13, 26, rounding_mode="floor").float()
    out = image.clone()
    out[1:-1, 1:-1] = _levels(inner.float() + (smooth - inner.float()) * (1 - values[0]))
    return out


def _autocontrast(image: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    channels = image.reshape(-1, 3).float()
    low, high = channels.amin(0), channels.amax(0)
    step = (high - low) * (1 / 255)
    flat = low == high
    low, step = torch.where(flat, 0, low), torch.where(flat, 1, step)
    return _levels((image.float() - low) / step)


def _equalize(image: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Pillow's way (ImageOps.equalize), whose `step` counts the pixels but those of the highest level."""
    channels = []
    for channel in image.unbind(-1):
        histogram = torch.bincount(channel.flatten().int(), minlength=256)
        step = (channel.numel() - int(histogram[int(channel.max())])) // 255
        below = histogram.cumsum(0) - histogram
        table = ((below + step // 2) // max(step, 1)).clamp(max=255).to(torch.uint8)
        channels.append(table[channel.int()] if step else channel)
    return torch.stack(channels, -1)


def _hue(image: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """To hue, saturation, value and back, as torchvision and Pillow's Convert.c."""
    rgb = image.float() / torch.tensor(255.0, device=image.device)
    red, green, blue = rgb.unbind(-1)
    high, low = rgb.amax(-1), rgb.amin(-1)
    spread = high - low
    gray = spread == 0
    divisor = torch.where(gray, 1, spread)
    from_red, from_green, from_blue = ((high - channel) / divisor for channel in (red, green, blue))
    sector = torch.where(
        high == red,
        from_blue - from_green,
        torch.where(high == green, (from_red + 2) - from_blue, (from_green + 4) - from_red),
    )
    hue = sector * (1 / 6) + 1
    hue = (hue - hue.floor()) + values[0]
    hue = hue - hue.floor()
    saturation = spread / torch.where(gray, 1, high)

    sixth = hue * 6
    whole = sixth.floor()
    part = saturation * (sixth - whole)
    rest = 1 - saturation
    falling, rising, least = ((factor * high).clamp(0, 1) for factor in (1 - part, part + rest, rest))
    exact = _by_sixth(whole, high, least, falling, rising)  # hue can be 1.0
    return (exact * 255.999).to(torch.uint8)  # 256 - 0.001, as `to_dtype`


def _hsv(image: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """To OpenCV's bytes of hue, saturation and value (modules/imgproc/src/color_hsv.simd.hpp), and back."""
    red, green, blue = image.int().unbind(-1)
    value = torch.maximum(torch.maximum(red, green), blue)
    spread = value - torch.minimum(torch.minimum(red, green), blue)
    saturation = (spread * _parts(255, value) + 2048) >> 12
    sector = torch.where(
        value == red, green - blue, torch.where(value == green, blue - red + 2 * spread, red - green + 4 * spread)
    )
    hue = (sector * _parts(30, spread) + 2048) >> 12
    turned = torch.where(hue < 0, hue + 180, hue).float() + values[0]
    circle = turned.new_tensor(180.0)
    hue = (turned - (turned / circle).floor() * circle).floor()
    high, strength = ((part.float() * factor).clamp(0, 255).floor() * (1 / 255)
                      for part, factor in ((value, values[2]), (saturation, values[1])))  # fmt: skip
    sixth = hue * (1 / 30)
    whole = sixth.floor()
    part = torch.where(whole < 6, sixth - whole, 0)
    least, falling = high * (1 - strength), high * (1 - strength * part)
    rising = high * (1 - strength * (1 - part))
    return _levels(_by_sixth(whole, high, least, falling, rising) * 255)


def _parts(whole: int, by: torch.Tensor) -> torch.Tensor:
    """whole * 4096 / by, rounded; 0 for none."""
    parts = by.new_tensor(float(whole << 12), dtype=torch.float32) / by.clamp(min=1).float()
    return torch.where(by > 0, parts.round(), 0).int()


def _by_sixth(whole: torch.Tensor, *choices: torch.Tensor) -> torch.Tensor:
    """Which of value, least, falling and rising is red, green and blue in each sixth of the circle, which may be 6."""
    select = torch.tensor([[0, 3, 1], [2, 0, 1], [1, 0, 3], [1, 2, 0], [3, 1, 0], [0, 1, 2]], device=whole.device)
    return torch.stack(choices, -1).gather(-1, select[whole.long() % 6])


def _gamma(image: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """By e**x as a series, times a power of 2."""
    exact = np.arange(1, 256, dtype=np.float32) / np.float32(255)
    x = np.float32(values[0].item()) * logarithm(exact)
    power = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    rest = x - power * np.float32(0.693147181)
    raised = series(rest, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1, 1)
    scale = ((np.maximum(power, -127).astype(np.int32) + 127) << 23).view(np.float32)  # 0 for -127
    levels = np.minimum(raised * scale, np.float32(1)) * np.float32(255.999)
    table = torch.from_numpy(np.append(np.float32(0), levels).astype(np.uint8)).to(image.device)
    return table[image.int()]


def _with_holes(image: torch.Tensor, values: torch.Tensor, fill: Fill) -> torch.Tensor:
    whole = values.clamp(0, 65535).int().tolist()
    color = torch.tensor((0.0, 0.0, 0.0) if fill is None else fill, device="cpu").round().to(image)
    out = image.clone()
    for first in range(1, min(1 + 4 * whole[0], len(whole) - 3), 4):
        top, left, height, width = whole[first : first + 4]
        out[top : top + height, left : left + width] = color
    return out


def _gaussian_blur(image: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Along rows, then along columns, without rounding between; added from the middle outwards."""
    exact = image.float()
    for axis in (1, 0):
        exact = _blurred(exact, axis, values)
    return exact.round().clamp(0, 255).to(torch.uint8)


def _blurred(exact: torch.Tensor, axis: int, weights: torch.Tensor) -> torch.Tensor:
    size = exact.shape[axis]
    at = torch.arange(size, device=exact.device)
    total = exact * weights[0]
    for distance in range(1, len(weights)):
        before, after = (exact.index_select(axis, _reflected(at + d, size)) for d in (-distance, distance))
        total = total + (before + after) * weights[distance]
    return total


def _reflected(at: torch.Tensor, size: int) -> torch.Tensor:
    """Positions beyond the border, mirrored about the outermost pixel, as often as it takes."""
    period = max(2 * (size - 1), 1)
    folded = at.remainder(period)
    return torch.where(folded < size, folded, period - folded)


def _noise(image: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    normal = noise(_key(values), *image.shape[:2])
    exact = values[0] + torch.from_numpy(normal).to(image.device) * values[1]
    return _levels(image.float() + exact.clamp(-255, 255).trunc())  # more changes nothing


def _key(values: torch.Tensor) -> tuple[int, int]:
    """Two words of 32 bits, whose halves are the values from the third to the sixth."""
    first, second, third, fourth = values[2:6].clamp(0, 65535).int().tolist()
    return first | second << 16, third | fourth << 16


def displacement(values: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """How far right and down each pixel of an elastic operation is read: float32 (2, height, width), in pixels."""
    words = philox4x32((np.arange(height * width).reshape(height, width), 0, 0, 0), _key(values))[:2]
    # 23 bits and a half, as of noise, which float32 holds.
    uniform = ((words >> np.uint64(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2**-22) - np.float32(1)
    planes = torch.from_numpy(uniform).to(values.device)
    for axis in (2, 1):
        planes = _blurred(planes, axis, values[ELASTIC:])
    return planes * values[:2, None, None]


def _moved(image: torch.Tensor, values: torch.Tensor, op: Op, fill: Fill) -> torch.Tensor:
    height, width = image.shape[:2]
    down = torch.arange(height, device=image.device).float().unsqueeze(1)
    right = torch.arange(width, device=image.device).float().unsqueeze(0)
    x = values[0] * right + (values[1] * down + values[2])
    y = values[3] * right + (values[4] * down + values[5])
    if op in (Op.ELASTIC_NEAREST, Op.ELASTIC_BILINEAR):
        across, along = displacement(values, height, width)
        x, y = right + across, down + along
    if op in (Op.PERSPECTIVE_NEAREST, Op.PERSPECTIVE_BILINEAR):
        part = values[6] * right + (values[7] * down + 1)
        x, y = x / part, y / part
    color = torch.tensor((0.0, 0.0, 0.0) if fill is None else fill, dtype=torch.float32, device=image.device)
    if op in NEAREST:
        pixels, inside = _pixels(image, y.round(), x.round())  # half to even, as torch's grid_sample
        return torch.where(inside, pixels, color).round().to(torch.uint8)
    if op is Op.AFFINE_BICUBIC:
        inside = (y >= -0.5) & (y < height - 0.5) & (x >= -0.5) & (x < width - 0.5)
        made = _cubic(image, torch.where(inside, y, 0), torch.where(inside, x, 0))
        return torch.where(inside.unsqueeze(-1), made, color.round().to(torch.uint8))
    top, left = y.floor(), x.floor()
    lower, right_share = (y - top).unsqueeze(-1), (x - left).unsqueeze(-1)
    total = torch.zeros_like(image, dtype=torch.float32)
    covered = torch.zeros_like(lower)
    for row, vertical in ((top, 1 - lower), (top + 1, lower)):
        for column, horizontal in ((left, 1 - right_share), (left + 1, right_share)):
            pixels, inside = _pixels(image, row, column)
            share = torch.where(inside, vertical * horizontal, 0)
            total, covered = total + pixels * share, covered + share
    if fill is not None:
        total = (total - color) * covered + color  # torchvision's formula, which dims an edge twice
    return total.round().clamp(0, 255).to(torch.uint8)


def _pixels(image: torch.Tensor, y: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 pixels at whole coordinates, and whether these lie inside, (height, width, 1).

    Coordinates may be anything: infinite ones, and what is no number, lie outside.
    """
    height, width = image.shape[:2]
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    at = torch.where(inside, y, 0).long(), torch.where(inside, x, 0).long()
    return image[at].float(), inside.unsqueeze(-1)


def _cubic(image: torch.Tensor, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Along four rows, then along the column of what they give, without rounding between."""
    rows, below = _neighbours(y, image.shape[0])
    columns, beside = _neighbours(x, image.shape[1])
    return _levels(_weighed([_weighed([image[row, at].float() for at in columns], beside) for row in rows], below))


def _neighbours(place: torch.Tensor, size: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The pixel before each place along an axis, the one before that, and the next two; the shares of the last three.

    Keys' cubic with a = -1. Those beyond the border are the outermost one.
    """
    first = place.floor()
    part = (place - first).unsqueeze(-1)
    shares = [((2 - part) * part - 1) * part, ((1 - part) * part + 1) * part, (part - 1) * part * part]
    return [(first + distance).clamp(0, size - 1).long() for distance in (0, -1, 1, 2)], shares


def _weighed(pixels: Sequence[torch.Tensor], shares: Sequence[torch.Tensor]) -> torch.Tensor:
    """What is flat stays so: the first pixel, and a share of what each other one differs from it."""
    total = pixels[0]
    for pixel, share in zip(pixels[1:], shares, strict=True):
        total = total + (pixel - pixels[0]) * share
    return total


FUNCTIONS: dict[Op, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    Op.BRIGHTNESS: lambda image, values: _levels(image.float() * values[0]),
    Op.CONTRAST: _contrast,
    Op.SATURATION: lambda image, values: _blend(image, _gray(image).unsqueeze(-1), values[0]),
    Op.HUE: _hue,
    Op.SHARPNESS: _sharpness,
    Op.POSTERIZE: lambda image, values: image & ((0xFF00 >> int(values[0])) & 0xFF),
    Op.SOLARIZE: lambda image, values: torch.where(image.float() >= values[0], 255 - image, image),
    Op.AUTOCONTRAST: _autocontrast,
    Op.EQUALIZE: _equalize,
    Op.INVERT: lambda image, values: 255 - image,
    Op.GRAYSCALE: lambda image, values: _levels(_gray(image)).unsqueeze(-1).expand(image.shape),
    Op.GAUSSIAN_BLUR: _gaussian_blur,
    Op.CHANNELS: lambda image, values: image[..., list(ORDERS[int(values[0])])],
    Op.NOISE: _noise,
    Op.HSV: _hsv,
    Op.GAMMA: _gamma,
    Op.SOLARIZE_ADD: lambda image, values: torch.where(image < 128, _levels(image.float() + values[0]), image),
}
