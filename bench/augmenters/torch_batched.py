"""The same arithmetic in plain torch, a batch at a time: images are grouped by operation, as each drew its own.

Eager, and with each operation compiled. Groups are made on the host, where the draws are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle

import numpy as np
import torch
import torch.nn.functional as nnf
from numpy.typing import NDArray

from augmenters.work import MEAN, STD, Finish, Work, program
from gpupipe.kernels import Mix, Op

__all__ = ["Compiled", "Eager", "mixed"]

Function = Callable[..., torch.Tensor]
GRAY = (0.2989, 0.587, 0.114)


class Eager:
    """Function by function."""

    same = True
    per_image = True
    ahead = 0

    def open(self, work: Work, ring: Sequence[torch.Tensor]) -> Callable[[], torch.Tensor]:
        """Grouped steps, then one function that normalizes, erases and mixes."""
        batches, form = cycle([images.permute(0, 3, 1, 2).contiguous() for images in ring]), work.finish
        draws = None if work.draws is None else program(work.draws, ring[0].shape[1])
        functions = {op: self.prepare(function, True) for op, function in FUNCTIONS.items()}
        finish, fixed = self.prepare(finished, False), None if form is None else constants(form, ring[0].device)

        def call() -> torch.Tensor:
            images = next(batches)
            if draws is not None:
                images = augmented(images, *draws, functions)
            return images if form is None or fixed is None else run_finish(finish, images, form, fixed)

        return call

    def prepare(self, function: Function, any_size: bool) -> Function:
        """As it is. any_size: it is called with groups of changing size."""
        return function


class Compiled(Eager):
    """The same functions by torch.compile. It fuses multiplications with additions, so levels may differ by 1."""

    def prepare(self, function: Function, any_size: bool) -> Function:
        """One graph for groups of any size, else one for each form; torch compiles at the first call."""
        torch._dynamo.config.recompile_limit = 64  # the default, 8, is fewer than the forms of a finish
        return torch.compile(function, dynamic=any_size)


def augmented(
    images: torch.Tensor, ops: NDArray[np.int32], values: NDArray[np.float32], functions: dict[Op, Function]
) -> torch.Tensor:
    """uint8 (N, 3, height, width): for each step, each operation on the images that drew it."""
    out = images.clone()
    for step in range(ops.shape[1]):
        for op in set(ops[:, step].tolist()) - {Op.IDENTITY}:
            rows = np.flatnonzero(ops[:, step] == op)
            at, numbers = to_device(rows, images.device), to_device(values[rows, step], images.device)
            group = out if len(rows) == len(ops) else out[at]
            out.index_copy_(0, at, functions[Op(op)](group, numbers))
    return out


def to_device(array: NDArray[np.generic], device: torch.device) -> torch.Tensor:
    """A copy that the host does not wait for."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


Constants = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


def constants(form: Finish, device: torch.device) -> Constants:
    """Offset, scale and what boxes are filled with, (1, 3, 1, 1) each; None for noise, and where nothing is erased."""
    numbers = [[255 * m for m in MEAN], [1 / (255 * s) for s in STD]]
    offset, scale = (torch.tensor(one, device=device).view(1, 3, 1, 1) for one in numbers)
    value = None if form.erase is None else form.erase.value
    return offset, scale, None if value is None else torch.tensor(value, device=device).view(1, 3, 1, 1)


def run_finish(finish: Function, images: torch.Tensor, form: Finish, fixed: Constants) -> torch.Tensor:
    """With the draws as tensors on the device."""
    device = images.device
    boxes = None if form.erase is None else to_device(form.erase.boxes, device)
    mixing = None if form.mix is None else mix_tensors(form.mix, device)
    layout = torch.channels_last if form.channels_last else torch.contiguous_format
    return finish(images, fixed, boxes, mixing, form.dtype, layout)


def mix_tensors(mix: Mix, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Partners, weights, and boxes where there are any."""
    boxes = to_device(mix.boxes, device) if mix.boxes.any() else None
    return to_device(mix.partners, device), to_device(mix.weights, device), boxes


def finished(
    images: torch.Tensor,
    fixed: Constants,
    boxes: torch.Tensor | None,
    mixing: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None,
    dtype: torch.dtype,
    layout: torch.memory_format,
) -> torch.Tensor:
    """Normalized, erased, mixed, cast."""
    offset, scale, value = fixed
    exact = (images.float() - offset) * scale
    if boxes is not None:
        exact = torch.where(inside(boxes, exact), torch.randn_like(exact) if value is None else value, exact)
    if mixing is not None:
        exact = mixed_tensors(exact, *mixing)
    return exact.to(dtype, memory_format=layout)


def inside(boxes: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """bool (N, 1, height, width), true in each image's box."""
    height, width = images.shape[2:]
    top, left, tall, wide = boxes.view(-1, 4, 1, 1, 1).unbind(1)
    down = torch.arange(height, device=images.device).view(1, 1, height, 1)
    right = torch.arange(width, device=images.device).view(1, 1, 1, width)
    return (down >= top) & (down < top + tall) & (right >= left) & (right < left + wide)


def mixed(exact: torch.Tensor, mix: Mix) -> torch.Tensor:
    """Float images with their partners."""
    return mixed_tensors(exact, *mix_tensors(mix, exact.device))


def mixed_tensors(
    exact: torch.Tensor, partners: torch.Tensor, weights: torch.Tensor, boxes: torch.Tensor | None
) -> torch.Tensor:
    """Float images with their partners; inside the boxes the partner's alone."""
    weight, others = weights.view(-1, 1, 1, 1), exact[partners.long()]
    both = weight * exact + (1 - weight) * others
    return both if boxes is None else torch.where(inside(boxes, exact), others, both)


def factor(values: torch.Tensor) -> torch.Tensor:
    """Each image's first value, (N, 1, 1, 1)."""
    return values[:, :1, None, None]


def levels(exact: torch.Tensor) -> torch.Tensor:
    """Cut to 0 to 255, truncated."""
    return exact.clamp(0, 255).to(torch.uint8)


def gray(images: torch.Tensor) -> torch.Tensor:
    """float32 (N, 1, height, width), whole numbers."""
    red, green, blue = images.float().split(1, dim=1)
    return ((red * GRAY[0] + green * GRAY[1]) + blue * GRAY[2]).floor()


def blend(images: torch.Tensor, other: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Away from the other image."""
    return levels(images.float() * factor(values) + other * (1 - factor(values)))


def brightness(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return levels(images.float() * factor(values))


def contrast(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    total = gray(images).sum((1, 2, 3), keepdim=True, dtype=torch.float64)
    return blend(images, total.float() / (images.shape[2] * images.shape[3]), values)


def saturation(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return blend(images, gray(images), values)


def grayscale(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return levels(gray(images)).expand(images.shape)


def sharpness(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    exact = images.float()
    box = nnf.avg_pool2d(exact, 3, stride=1, divisor_override=1)
    inner = exact[:, :, 1:-1, 1:-1]
    smooth = torch.floor((2 * (box + 4 * inner) + 13) / 26)
    out = images.clone()
    out[:, :, 1:-1, 1:-1] = levels(inner + (smooth - inner) * (1 - factor(values)))
    return out


def posterize(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    mask = torch.bitwise_right_shift(torch.full_like(values[:, 0], 0xFF00, dtype=torch.int32), values[:, 0].int())
    return images & (mask & 0xFF).to(torch.uint8).view(-1, 1, 1, 1)


def solarize(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.where(images.float() >= factor(values), 255 - images, images)


def solarize_add(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.where(images < 128, levels(images.float() + factor(values)), images)


def invert(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return 255 - images


def autocontrast(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    exact = images.float()
    low, high = exact.amin((2, 3), keepdim=True), exact.amax((2, 3), keepdim=True)
    step = (high - low) * (1 / 255)
    flat = low == high
    return levels((exact - torch.where(flat, 0, low)) / torch.where(flat, 1, step))


def equalize(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    flat = images.flatten(0, 1).flatten(1).long()
    histogram = flat.new_zeros(len(flat), 256).scatter_add_(1, flat, torch.ones_like(flat))
    step = (flat.shape[1] - histogram.gather(1, flat.amax(1, keepdim=True))) // 255
    below = histogram.cumsum(1) - histogram
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    table = torch.where(step > 0, table, torch.arange(256, device=images.device))
    return table.gather(1, flat).to(torch.uint8).view(images.shape)


# Which of value, least, falling and rising is red, green and blue: two bits for each sixth of the circle.
SIXTHS = tuple(
    sum(choice << 2 * sixth for sixth, choice in enumerate(row))
    for row in ((0, 2, 1, 1, 3, 0), (3, 0, 0, 2, 1, 1), (1, 1, 3, 0, 0, 2))
)


def hue(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    rgb = images.float() / 255
    red, green, blue = rgb.unbind(1)
    high, low = rgb.amax(1), rgb.amin(1)
    spread = high - low
    plain = spread == 0
    divisor = torch.where(plain, 1, spread)
    from_red, from_green, from_blue = ((high - channel) / divisor for channel in (red, green, blue))
    second = torch.where(high == green, (from_red + 2) - from_blue, (from_green + 4) - from_red)
    turned = torch.where(high == red, from_blue - from_green, second) * (1 / 6) + 1
    turned = (turned - turned.floor()) + values[:, :1, None]
    turned = turned - turned.floor()
    part_of = spread / torch.where(plain, 1, high)
    whole = (turned * 6).floor()
    part = part_of * (turned * 6 - whole)
    rest = 1 - part_of
    falling, rising, least = ((one * high).clamp(0, 1) for one in (1 - part, part + rest, rest))
    choices = torch.stack([high, least, falling, rising], 1)
    sixth = (2 * (whole.int() % 6)).unsqueeze(1)
    select = torch.cat([torch.bitwise_right_shift(code, sixth) & 3 for code in SIXTHS], 1)
    chosen = choices.gather(1, select.long())
    return (chosen * 255.999).to(torch.uint8)


def gaussian_blur(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Two grouped convolutions: every image has its own weights."""
    n, channels, height, width = images.shape
    taps = torch.cat([values.flip(1), values[:, 1:]], 1).repeat_interleave(channels, 0)
    radius = values.shape[1] - 1
    exact = nnf.pad(images.float(), (radius, radius, radius, radius), mode="reflect")
    exact = exact.reshape(1, n * channels, height + 2 * radius, width + 2 * radius)
    exact = nnf.conv2d(exact, taps[:, None, None, :], groups=n * channels)
    exact = nnf.conv2d(exact, taps[:, None, :, None], groups=n * channels)
    return exact.view(images.shape).round().to(torch.uint8)


def coordinates(images: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each output pixel comes from, float32 (N, height, width): y, x."""
    height, width = images.shape[2:]
    down = torch.arange(height, device=images.device).float().view(1, height, 1)
    right = torch.arange(width, device=images.device).float().view(1, 1, width)
    a, b, c, d, e, f = (value.view(-1, 1, 1) for value in values[:, :6].unbind(1))
    return d * right + (e * down + f), a * right + (b * down + c)


def pixels(images: torch.Tensor, y: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """uint8 pixels at whole coordinates, and whether they lie inside, (N, 1, height, width)."""
    height, width = images.shape[2:]
    valid = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    at = y.clamp(0, height - 1).long() * width + x.clamp(0, width - 1).long()
    found = images.flatten(2).gather(2, at.flatten(1).unsqueeze(1).expand(-1, 3, -1))
    return found.view(images.shape), valid.unsqueeze(1)


def affine_nearest(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    y, x = coordinates(images, values)
    found, valid = pixels(images, y.round(), x.round())
    return found * valid


def affine_bilinear(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    y, x = coordinates(images, values)
    top, left = y.floor(), x.floor()
    lower, later = (y - top).unsqueeze(1), (x - left).unsqueeze(1)
    total = torch.zeros_like(images, dtype=torch.float32)
    for row, vertical in ((top, 1 - lower), (top + 1, lower)):
        for column, horizontal in ((left, 1 - later), (left + 1, later)):
            found, valid = pixels(images, row, column)
            total = total + found.float() * ((vertical * horizontal) * valid)
    return levels(total.round())


FUNCTIONS: dict[Op, Function] = {
    Op.AFFINE_NEAREST: affine_nearest,
    Op.AFFINE_BILINEAR: affine_bilinear,
    Op.BRIGHTNESS: brightness,
    Op.CONTRAST: contrast,
    Op.SATURATION: saturation,
    Op.HUE: hue,
    Op.SHARPNESS: sharpness,
    Op.POSTERIZE: posterize,
    Op.SOLARIZE: solarize,
    Op.SOLARIZE_ADD: solarize_add,
    Op.AUTOCONTRAST: autocontrast,
    Op.EQUALIZE: equalize,
    Op.INVERT: invert,
    Op.GRAYSCALE: grayscale,
    Op.GAUSSIAN_BLUR: gaussian_blur,
}
