"""The same in Triton, for tensors on a GPU. Importing this package does not import Triton, which takes a second.

Kernels are compiled when first used, about a second each, and kept in Triton's cache. They compile with Triton 3.0, of
PyTorch 2.4, as with 3.9; the tests without a GPU need the interpreter of 3.9.
"""

from __future__ import annotations

import logging
from functools import lru_cache

import torch

__all__ = ["problem", "usable"]

log = logging.getLogger("gpupipe")
REMEDY = "install the Triton that belongs to this PyTorch (`pip install triton`), and a C compiler, which Triton needs"


def usable(device: torch.device) -> bool:
    """Whether kernels of this package can work on tensors of `device`."""
    return device.type == "cuda" and problem(device) is None


@lru_cache(maxsize=64)
def problem(device: torch.device) -> str | None:
    """Why Triton kernels can't run on a GPU, with the remedy; None where they can. Logged when first asked for."""
    try:
        from gpupipe.kernels.gpu.finish import finish

        images = torch.zeros((1, 2, 2, 3), dtype=torch.uint8, device=device)
        finish(images, (0.0,) * 3, (1.0,) * 3, False, torch.empty((1, 3, 2, 2), device=device))
    except Exception as error:  # Triton raises what its compiler, the C compiler or the driver gives
        reason = f"Triton kernels can't run on {device} ({type(error).__name__}: {error}); {REMEDY}"
        log.warning("%s. Meanwhile plain PyTorch does their work, slower.", reason)
        return reason
    return None
