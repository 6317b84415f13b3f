"""What every launch of a kernel needs."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

__all__ = ["OPTIONS", "on_device_of"]

# Each operation is rounded by itself, as in the references: no product is fused with a sum.
OPTIONS = {"enable_fp_fusion": False}


def on_device_of(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """Triton launches on the current device, which need not be the tensor's."""
    return torch.cuda.device_of(tensor)
