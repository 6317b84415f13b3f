"""Rows of one batch put into another."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.kernels.transfer import to_device

__all__ = ["put"]


def put(whole: torch.Tensor, rows: NDArray[np.int64], part: torch.Tensor) -> None:
    """`whole[rows] = part`, of contiguous tensors, on the device of `whole`; eight bytes at a time where a row's size
    allows."""
    at, made = to_device(torch.from_numpy(rows), whole.device), to_device(part, whole.device)
    into, values = (tensor.view(len(tensor), -1).view(torch.uint8) for tensor in (whole, made))
    if into.shape[1] % 8 == into.storage_offset() % 8 == values.storage_offset() % 8 == 0:
        into, values = into.view(torch.int64), values.view(torch.int64)
    into.index_copy_(0, at, values)
