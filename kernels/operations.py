"""The operations that `augment` knows, as numbers, and what each takes: the program of a batch is plain arrays."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    *("ELASTIC", "LIMITS", "Op", "PERSPECTIVE", "VALUES", "affine_matrix", "elastic_values", "gaussian_weights"),
    *("noise_key", "perspective_matrix"),
]

VALUES = 6
"""Values that every operation has room for; perspectives take 8, and blurs of more than 11 pixels more, see
`gaussian_weights`. What is beyond the room of an array is 0."""

PERSPECTIVE = 8
"""So many values a perspective takes."""
ELASTIC = 6
"""So many values of an elastic operation stand before its weights."""


class Op(IntEnum):
    """One step of a sample's program, and its values. Meaning and rounding are torchvision v2's on uint8.

    Factors are 1 for the unchanged image. Levels are 0 to 255.
    """

    IDENTITY = 0
    AFFINE_NEAREST = 1
    """Values a, b, c, d, e, f: output pixel (x, y) is the input's at (a*x + b*y + c, d*x + e*y + f), in pixels, with
    the first pixel's centre at (0, 0). Where that lies outside, the fill."""
    AFFINE_BILINEAR = 2
    """The same, interpolated between four pixels; those outside count as the fill."""
    BRIGHTNESS = 3
    """Factor, 0 or more."""
    CONTRAST = 4
    """Factor, 0 or more: away from the mean gray level of the image."""
    SATURATION = 5
    """Factor, 0 or more: away from each pixel's gray level."""
    HUE = 6
    """Turn of the hue, -0.5 to 0.5 of the circle."""
    SHARPNESS = 7
    """Factor, 0 or more: away from the image smoothed by a 3 x 3 filter; the border stays."""
    POSTERIZE = 8
    """How many bits of each level are kept, 0 to 8."""
    SOLARIZE = 9
    """Levels from this one on are inverted."""
    AUTOCONTRAST = 10
    """Each channel is stretched from 0 to 255. No values."""
    EQUALIZE = 11
    """Each channel's histogram is flattened. No values."""
    INVERT = 12
    """No values."""
    GRAYSCALE = 13
    """Three equal channels. No values."""
    GAUSSIAN_BLUR = 14
    """The weights of the middle pixel, its neighbours, theirs, ...; see `gaussian_weights`. Borders are reflected."""
    SOLARIZE_ADD = 15
    """Level that is added to levels below 128, as in timm."""
    AFFINE_BICUBIC = 16
    """As the other two, from sixteen pixels by Pillow's cubic filter: those beyond the border are as the outermost
    ones, and the fill stands where a coordinate lies more than half a pixel outside."""
    CHANNELS = 20
    """Which of the orders of R, G and B, 0 to 5, as `itertools.permutations` gives them: 3 is G, B, R."""
    NOISE = 21
    """Mean and standard deviation, in levels, of normal numbers that are added, cut to whole levels; then the key that
    decides them, see `noise_key`."""
    MIX_BEGIN = 22
    """The image's share, 0 to 1, begins a sum, and the image is kept, to go back to."""
    MIX_ADD = 23
    """The image's share is added to the sum, then it is again what was kept. Before a beginning both are 0."""
    MIX_END = 24
    """The image's share is added to the sum, which it then is, cut to whole levels."""
    HSV = 25
    """What is added to the hue, -180 to 180 in steps of two degrees, and the factors of saturation and value, in
    OpenCV's bytes: all are cut to whole numbers before and after."""
    HOLES = 26
    """How many; then top, left, height and width of each, whole numbers of pixels. The fill is put there."""
    GAMMA = 27
    """The power, 0 to 100, to which levels above 0 are raised, 255 standing for 1."""
    PERSPECTIVE_NEAREST = 40
    """As AFFINE_NEAREST, with two values more, g and h, by which both coordinates are divided: g*x + h*y + 1. See
    `perspective_matrix`."""
    PERSPECTIVE_BILINEAR = 41
    """The same as AFFINE_BILINEAR."""
    ELASTIC_NEAREST = 42
    """Each pixel is the input's some way right and some way down, for which it has two uniform numbers from -1 to 1 of
    its own, blurred, times the first two values. Then the key that decides them, see `noise_key`, and the blur's
    weights as GAUSSIAN_BLUR's. See `elastic_values`."""
    ELASTIC_BILINEAR = 43
    """The same as AFFINE_BILINEAR."""


_FACTORS = (0, 1e30)  # whose products with levels float32 holds
LIMITS = {
    Op.BRIGHTNESS: _FACTORS,
    Op.CONTRAST: _FACTORS,
    Op.SATURATION: _FACTORS,
    Op.SHARPNESS: _FACTORS,
    Op.HUE: (-0.5, 0.5),
    Op.POSTERIZE: (0, 8),
    Op.CHANNELS: (0, 5),
    Op.MIX_BEGIN: (0, 1),
    Op.MIX_ADD: (0, 1),
    Op.MIX_END: (0, 1),
    Op.HSV: (-180, 180),
    Op.GAMMA: (0, 100),
}
"""The smallest and the largest first value, where an operation does not take every number."""


def affine_matrix(
    size: tuple[int, int],
    *,
    angle: ArrayLike = 0.0,
    shear: tuple[ArrayLike, ArrayLike] = (0.0, 0.0),
    translate: tuple[ArrayLike, ArrayLike] = (0.0, 0.0),
    scale: ArrayLike = 1.0,
    center: Sequence[float] | None = None,
) -> NDArray[np.float32]:
    """The values of an affine operation that turns, shears, scales and moves an image, as torchvision's `affine`.

    size: (height, width) of the image. angle: degrees, clockwise (torchvision's `rotate` counts the other way). shear:
    degrees along x and y. translate: pixels right and down. scale: above 0. center: (x, y) of what stays where it is
    when the image is turned, sheared and scaled, in pixels from the left upper corner; default the middle.

    Numbers or arrays that broadcast to a common shape S. Returns float32 (*S, 6).
    """
    height, width = size
    rotation, shear_x, shear_y = (np.radians(np.asarray(v, np.float64)) for v in (angle, *shear))
    move_x, move_y = (np.asarray(v, np.float64) for v in translate)
    # torchvision counts from the middle of the image, where the pixel centres lie at multiples of a half.
    middle_x, middle_y = (width - 1) / 2, (height - 1) / 2
    center_x, center_y = (0.0, 0.0) if center is None else (center[0] - width / 2, center[1] - height / 2)
    a = np.cos(rotation - shear_y) / np.cos(shear_y)
    b = -(a * np.tan(shear_x) + np.sin(rotation))
    c = np.sin(rotation - shear_y) / np.cos(shear_y)
    d = np.cos(rotation) - c * np.tan(shear_x)
    # The inverse: before it is scaled, the determinant is 1.
    a, b, c, d = (part / np.asarray(scale, np.float64) for part in (a, b, c, d))
    right = center_x - d * (center_x + move_x) + b * (center_y + move_y)
    down = center_y + c * (center_x + move_x) - a * (center_y + move_y)
    values = (
        d,
        -b,
        right + middle_x - d * middle_x + b * middle_y,
        -c,
        a,
        down + middle_y + c * middle_x - a * middle_y,
    )
    return np.stack(np.broadcast_arrays(*values), axis=-1).astype(np.float32)


def perspective_matrix(size: tuple[int, int], corners: ArrayLike) -> NDArray[np.float32]:
    """The values of a perspective, as torchvision's `perspective` from the image's corners to these.

    size: (height, width) of the image. corners: (*S, 4, 2), x and y of where the first pixel comes to lie, the last one
    of the first row, the last one and the first one of the last row. Returns float32 (*S, 8); what is not finite, or
    has no inverse, is all 0: corners of which three lie on a line may give that.
    """
    height, width = size
    first, second, third, fourth = np.moveaxis(np.asarray(corners, np.float64), -2, 0)
    # From the unit square (Heckbert 1989, "Fundamentals of texture mapping and image warping", 2.2.3).
    along, down, rest = second - third, fourth - third, first - second + third - fourth
    area, right, below = (_cross(*pair) for pair in ((along, down), (rest, down), (along, rest)))
    columns = (second * (area + right)[..., None] - first * area[..., None],
               fourth * (area + below)[..., None] - first * area[..., None],
               first * area[..., None])  # fmt: skip
    forward = np.concatenate(
        [np.stack(columns, axis=-1), np.stack([right, below, area], axis=-1)[..., None, :]], axis=-2
    )
    rows = np.moveaxis(forward, -2, 0)
    back = np.stack([np.cross(rows[at - 2], rows[at - 1]) for at in range(3)], axis=-1)  # the inverse, but for a factor
    back = np.array([width - 1, height - 1, 1])[:, None] * back
    # torchvision's coordinates are halves, in the middle of pixels.
    back = np.array([[1, 0, -0.5], [0, 1, -0.5], [0, 0, 1]]) @ back @ np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        values = (back / back[..., 2:, 2:]).reshape(*back.shape[:-2], 9)[..., :8].astype(np.float32)
    good = np.isfinite(values).all(axis=-1) & (np.linalg.det(back) != 0)
    out: NDArray[np.float32] = np.where(good[..., None], values, np.float32(0))
    return out


def _cross(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    area: NDArray[np.float64] = first[..., 0] * second[..., 1] - first[..., 1] * second[..., 0]
    return area


def gaussian_weights(kernel_size: int, sigma: ArrayLike) -> NDArray[np.float32]:
    """The values of a Gaussian blur, of kernel_size x kernel_size pixels, as torchvision's `gaussian_blur`.

    kernel_size: odd. sigma: above 0, in pixels, a number or an array of shape S.
    Returns float32 (*S, max(6, kernel_size // 2 + 1)): the weights from the middle outwards, then zeros.
    """
    if kernel_size < 1 or kernel_size % 2 == 0:
        raise ValueError(f"kernel_size={kernel_size} must be odd and positive")
    spread = np.asarray(sigma, np.float64)[..., None]
    if not (spread > 0).all():
        raise ValueError(f"sigma={sigma!r} must be above 0")
    radius = kernel_size // 2
    heights = np.exp(-0.5 * (np.arange(radius + 1) / spread) ** 2)
    weights = np.zeros((*heights.shape[:-1], max(VALUES, radius + 1)), np.float32)
    weights[..., : radius + 1] = heights / (2 * heights.sum(axis=-1, keepdims=True) - heights[..., :1])
    return weights


def noise_key(words: NDArray[np.unsignedinteger]) -> NDArray[np.float32]:
    """The last values of NOISE: two words of 32 bits, (*S, 2), as float32 (*S, 4) of 16 bits each, lower ones first.

    The pixel with the number n has the numbers of `noise` with this key.
    """
    halves = np.stack([words & 0xFFFF, words >> 16], axis=-1)
    return halves.reshape(*words.shape[:-1], 4).astype(np.float32)


def elastic_values(alpha: tuple[float, float], sigma: float, words: NDArray[np.unsignedinteger]) -> NDArray[np.float32]:
    """The values of an elastic operation, as torchvision's ElasticTransform, with a kernel of 8 sigma for the blur.

    alpha: of the ways right and down, in halves of a pixel. sigma: 0 or more, in pixels. words: the key, (*S, 2) of 32
    bits. Returns float32 (*S, ELASTIC + weights).
    """
    weights = gaussian_weights(int(8 * sigma + 1) | 1, sigma) if sigma else np.ones(1, np.float32)
    values = np.zeros((*words.shape[:-1], ELASTIC + len(weights)), np.float32)
    values[..., :2] = np.asarray(alpha) / 2
    values[..., 2:ELASTIC] = noise_key(words)
    values[..., ELASTIC:] = weights
    return values
