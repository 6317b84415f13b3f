"""Tensors on their way to a GPU."""

from __future__ import annotations

import torch

__all__ = ["to_device"]


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`tensor` on `device`, copied on the current stream; the host does not wait. What is there comes back as it is.

    From pageable memory the copy would hold up the host. torch allocates pinned memory just once, and gives it out
    again only after the copy is through.
    """
    if tensor.device.type == "cpu" and device.type == "cuda" and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
