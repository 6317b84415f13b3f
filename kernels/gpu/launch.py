"""What every launch of a kernel needs: the tensor's device, and small host arrays brought there without waiting."""

from __future__ import annotations

from contextlib import AbstractContextManager

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["OPTIONS", "on_device_of", "to_device"]

# Each operation is rounded by itself, as in the references: no product is fused with a sum.
OPTIONS = {"enable_fp_fusion": False}


def on_device_of(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """Triton launches on the current device, which need not be the tensor's."""
    return torch.cuda.device_of(tensor)


def to_device(words: NDArray[np.int32], device: torch.device) -> torch.Tensor:
    """A copy of `words` on the device, on the current stream; the host does not wait for it.

    torch gives the pinned memory out again only after the copy is through, and allocates it just once.
    """
    if device.type == "cpu":  # in Triton's interpreter
        return torch.from_numpy(words)
    staged = torch.empty(words.shape, dtype=torch.int32, pin_memory=True)
    staged.numpy()[...] = words
    return staged.to(device, non_blocking=True)
