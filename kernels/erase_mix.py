"""What `finish` may do besides: erase a box of each image, and mix each image with another one of the batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.philox import philox4x32

__all__ = ["Erase", "Mix", "noise", "soft_targets"]


@dataclass(frozen=True)
class Erase:
    """A box of each image that is replaced after it was normalized.

    boxes: int32 (N, 4) top, left, height, width, in pixels, inside the image; without height or width nothing happens.
    value: three normalized numbers, one for each channel, or None for noise: independent standard normal numbers.
    keys:  uint32 (N, 2), which decide the noise of each image, see `noise`; needed for that alone.
    """

    boxes: NDArray[np.int32]
    value: tuple[float, float, float] | None = (0.0, 0.0, 0.0)
    keys: NDArray[np.uint32] | None = None


@dataclass(frozen=True)
class Mix:
    """How each image is mixed with another one of the batch, after both were normalized and erased.

    partners: int32 (N,), the row of the other image; its own row for none.
    weights:  float32 (N,), 0 to 1: a pixel becomes weight * own + (1 - weight) * partner's. 1 for CutMix.
    boxes:    int32 (N, 4) top, left, height, width: inside, the partner's pixels replace the image's own. Without
              height or width, as for MixUp, no box.
    """

    partners: NDArray[np.int32]
    weights: NDArray[np.float32]
    boxes: NDArray[np.int32]


def noise(key: tuple[int, int], height: int, width: int) -> NDArray[np.float32]:
    """The noise with which `finish` erases an image, for all its pixels: float32 (height, width, 3), standard normal.

    Pixel (y, x) takes four words of Philox4x32-10 with the counter (y * width + x, 0, 0, 0): of the first two Box and
    Muller's transform (1958) makes the numbers for R and G, of the others that for B. Depends on no other pixel.
    """
    count = height * width
    words = philox4x32((np.arange(count), 0, 0, 0), key)
    # 23 bits, so that float32 holds the uniform number exactly, and never 0 or 1.
    first, second, third, fourth = ((words >> np.uint64(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2**-23)
    turn = np.float32(2 * np.pi)
    radius, other = np.sqrt(np.float32(-2) * np.log(first)), np.sqrt(np.float32(-2) * np.log(third))
    channels = radius * np.cos(turn * second), radius * np.sin(turn * second), other * np.cos(turn * fourth)
    return np.stack(channels, axis=-1).reshape(height, width, 3)


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
    """
    device = labels.device
    rows = torch.from_numpy(np.stack([np.arange(len(partners)), partners]).astype(np.int64))
    weights = torch.from_numpy(np.stack([shares, np.float32(1) - shares]).astype(np.float32)) * (1 - label_smoothing)
    if device.type == "cuda":
        rows, weights = rows.pin_memory(), weights.pin_memory()  # else the copies would hold up the host
    rows, weights = (tensor.to(device, non_blocking=True) for tensor in (rows, weights))
    targets = torch.full((len(labels), num_classes), label_smoothing / num_classes, device=device)
    for classes, share in zip(labels[rows], weights, strict=True):
        targets[rows[0], classes] += share
    return targets
