"""Tensors on their way to a GPU, and rows of one batch into another."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["put", "to_device"]


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`tensor` on `device`, copied on the current stream; the host does not wait. What is there comes back as it is.

    From pageable memory the copy would hold up the host. torch allocates pinned memory just once, and gives it out
    again only after the copy is through.
    """
    if tensor.device.type == "cpu" and device.type == "cuda" and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def put(whole: torch.Tensor, rows: NDArray[np.int64], part: torch.Tensor) -> None:
    """`whole[rows] = part`, of contiguous tensors, on the device of `whole`; eight bytes at a time where a row's size
    allows."""
    at, made = to_device(torch.from_numpy(rows), whole.device), to_device(part, whole.device)
    into, values = (tensor.view(len(tensor), -1).view(torch.uint8) for tensor in (whole, made))
    if into.shape[1] % 8 == into.storage_offset() % 8 == values.storage_offset() % 8 == 0:
        into, values = into.view(torch.int64), values.view(torch.int64)
    into.index_copy_(0, at, values)
