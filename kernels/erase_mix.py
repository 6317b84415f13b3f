"""What `finish` may do besides: erase a box of each image, and mix each image with another one of the batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.kernels.philox import philox4x32
from gpupipe.kernels.transfer import to_device

__all__ = ["Erase", "Mix", "logarithm", "noise", "series", "soft_targets"]


@dataclass(frozen=True)
class Erase:
    """A box of each image that is replaced after the image was normalized.

    boxes: int32 (N, 4) top, left, height, width, in pixels, inside the image; without height or width nothing happens.
    value: three normalized numbers, one for each channel, or None for noise: independent standard normal numbers.
    keys:  uint32 (N, 2), which decide the noise of each image, see `noise`; needed for noise alone.

    Random erasing: Zhong et al., "Random erasing data augmentation", AAAI 2020.
    """

    boxes: NDArray[np.int32]
    value: tuple[float, float, float] | None = (0.0, 0.0, 0.0)
    keys: NDArray[np.uint32] | None = None

    def repeat(self, times: int) -> Erase:
        """Each image's so many times, one after the other."""
        keys = None if self.keys is None else self.keys.repeat(times, 0)
        return Erase(self.boxes.repeat(times, 0), self.value, keys)

    def check(self, count: int, height: int, width: int) -> None:
        """Raises ValueError unless this is for `count` images of that size."""
        _check_boxes("erase.boxes", self.boxes, count, height, width)
        if self.value is None:
            if self.keys is None:
                raise ValueError("erase.value=None asks for noise, which erase.keys decide: give uint32 (N, 2)")
            _check_array("erase.keys", self.keys, np.uint32, (count, 2))
        elif len(self.value) != 3 or not all(math.isfinite(number) for number in self.value):
            raise ValueError(f"erase.value={self.value}; give three finite numbers, one for each channel, or None")


@dataclass(frozen=True)
class Mix:
    """How each image is mixed with another one of the batch, after both were normalized and erased.

    partners: int32 (N,), the row of the other image; its own row for none, whatever weight and box.
    weights:  float32 (N,), 0 to 1: a pixel becomes weight * own + (1 - weight) * partner's. 1 for CutMix.
    boxes:    int32 (N, 4) top, left, height, width, inside the image: there the partner's pixels replace those of the
              image. Without height or width, as for MixUp, no box.

    MixUp: Zhang et al., "mixup: Beyond empirical risk minimization", ICLR 2018. CutMix: Yun et al., "CutMix:
    Regularization strategy to train strong classifiers with localizable features", ICCV 2019.
    """

    partners: NDArray[np.int32]
    weights: NDArray[np.float32]
    boxes: NDArray[np.int32]

    def repeat(self, times: int) -> Mix:
        """Each image's so many times, one after the other, the first with the first of its partner's and so on."""
        partners = (self.partners[:, None] * times + np.arange(times)).reshape(-1).astype(np.int32)
        return Mix(partners, self.weights.repeat(times), self.boxes.repeat(times, 0))

    def check(self, count: int, height: int, width: int) -> None:
        """Raises ValueError unless this is for `count` images of that size."""
        _check_partners("mix.partners", self.partners, count)
        _check_parts("mix.weights", self.weights, count)
        _check_boxes("mix.boxes", self.boxes, count, height, width)


def noise(key: tuple[int, int], height: int, width: int) -> NDArray[np.float32]:
    """The noise with which `finish` erases an image, for all its pixels: float32 (height, width, 3), standard normal.

    Pixel (y, x) takes four words of Philox4x32-10 with the counter (y * width + x, 0, 0, 0): of the first two Box and
    Muller's transform (1958) makes the numbers for R and G, of the others that for B. Depends on no other pixel. Roots
    and angles are those of cpu/noise.h, in operations that IEEE 754 defines to the bit.
    """
    pixels = np.arange(height * width).reshape(height, width)
    words = philox4x32((pixels, 0, 0, 0), key)
    # 23 bits, so that float32 holds the uniform number exactly, and never 0 or 1.
    first, second, third, fourth = ((words >> np.uint64(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2**-23)
    radius, (cosine, sine) = _radius(first), _direction(second)
    return np.stack([radius * cosine, radius * sine, _radius(third) * _direction(fourth)[0]], axis=-1)


def series(z: NDArray[np.float32], *factors: float) -> NDArray[np.float32]:
    """Of powers of z, the factor of the highest first."""
    total = np.full_like(z, factors[0])
    for factor in factors[1:]:
        total = total * z + np.float32(factor)
    return total


def logarithm(u: NDArray[np.float32]) -> NDArray[np.float32]:
    """ln(u) for u above 0. With u = 2**e * m and m near 1, ln(m) is a series in (m - 1) / (m + 1)."""
    root = 0x3F3504F3  # the bits of sqrt(1/2)
    bits = u.view(np.int32) + np.int32(0x3F800000 - root)
    exponent = ((bits >> 23) - 127).astype(np.float32)
    m = ((bits & 0x007FFFFF) + root).astype(np.int32).view(np.float32)
    s = (m - 1) / (m + 1)
    exact: NDArray[np.float32] = 2 * s * series(s * s, 1 / 9, 1 / 7, 1 / 5, 1 / 3, 1)
    exact += exponent * np.float32(0.693147181)
    return exact


def _radius(u: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.sqrt(-2 * logarithm(u))


def _direction(turns: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosine and sine of `turns` times 2 pi, by series for the nearest quarter of a turn."""
    quarter = (4 * turns + np.float32(0.5)).astype(np.int32)
    x = (turns - np.float32(0.25) * quarter.astype(np.float32)) * np.float32(6.28318531)
    z = x * x
    sine = series(z, 1 / 362880, -1 / 5040, 1 / 120, -1 / 6, 1) * x
    cosine = series(z, 1 / 40320, -1 / 720, 1 / 24, -1 / 2, 1)
    odd = quarter & 1 == 1
    both = np.where(odd, sine, cosine), np.where(odd, cosine, sine)
    return np.where((quarter + 1) & 2, -both[0], both[0]), np.where(quarter & 2, -both[1], both[1])


def soft_targets(
    labels: torch.Tensor,
    partners: NDArray[np.int32],
    shares: NDArray[np.float32],
    num_classes: int,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Labels of mixed images: float32 (N, num_classes) on the device of `labels`, each row adding up to 1.

    labels: int64 (N,) classes. partners: rows as in `Mix`. shares: float32 (N,), how much of each image is its own.
    label_smoothing: the part of every target that is spread over all classes, as in torch's CrossEntropyLoss.

    Where both images are of one class, or are the same image, the class gets both shares. Raises ValueError for arrays
    of other shapes or dtypes, and for partners and shares out of range; labels are not looked at, for on a GPU that
    would hold up the host.
    """
    _check_targets(labels, partners, shares, label_smoothing)
    device = labels.device
    rows = torch.from_numpy(np.stack([np.arange(len(partners)), partners]).astype(np.int64))
    weights = torch.from_numpy(np.stack([shares, np.float32(1) - shares]) * np.float32(1 - label_smoothing))
    rows, weights = to_device(rows, device), to_device(weights, device)
    targets = torch.full((len(labels), num_classes), label_smoothing / num_classes, dtype=torch.float32, device=device)
    for classes, share in zip(labels[rows], weights, strict=True):
        targets[rows[0], classes] += share
    return targets


def _check_targets(
    labels: torch.Tensor, partners: NDArray[np.int32], shares: NDArray[np.float32], label_smoothing: float
) -> None:
    if labels.dtype != torch.int64 or labels.ndim != 1:
        raise ValueError(f"labels are {labels.dtype} {tuple(labels.shape)}; give classes, int64 (N,)")
    _check_partners("partners", partners, len(labels))
    _check_parts("shares", shares, len(labels))
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing={label_smoothing}; give 0 to 1")


def _check_array(name: str, array: NDArray[Any], dtype: type[np.generic], shape: tuple[int, ...]) -> None:
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(f"{name} are {array.dtype} {array.shape}, but {np.dtype(dtype)} {shape} is needed")


def _check_rows(name: str, array: NDArray[Any], good: NDArray[np.bool_], needed: str) -> None:
    if not good.all():
        row = int(np.argmin(good))
        raise ValueError(f"{name}[{row}] is {array[row].tolist()}; {needed}")


def _check_boxes(name: str, boxes: NDArray[np.int32], count: int, height: int, width: int) -> None:
    _check_array(name, boxes, np.int32, (count, 4))
    wide = boxes.astype(np.int64)  # so that no sum runs over
    good = np.all(wide >= 0, axis=1) & np.all(wide[:, :2] + wide[:, 2:] <= (height, width), axis=1)
    _check_rows(name, boxes, good, f"give top, left, height, width inside the images of {height} x {width}")


def _check_partners(name: str, partners: NDArray[np.int32], count: int) -> None:
    _check_array(name, partners, np.int32, (count,))
    _check_rows(name, partners, (partners >= 0) & (partners < count), f"give rows of the batch, 0 to {count - 1}")


def _check_parts(name: str, parts: NDArray[np.float32], count: int) -> None:
    _check_array(name, parts, np.float32, (count,))
    _check_rows(name, parts, (parts >= 0) & (parts <= 1), "give 0 to 1")
