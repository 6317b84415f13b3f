"""Tensors on their way to a GPU."""

from __future__ import annotations

import torch

__all__ = ["to_device"]


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`tensor` on `device`, without waiting for the copy; tensors that are there come back as they are."""
    if tensor.device == device:
        return tensor
    if device.type == "cuda" and not tensor.is_pinned():
        tensor = tensor.pin_memory()  # from pageable memory the copy would hold up the host
    return tensor.to(device, non_blocking=True)
