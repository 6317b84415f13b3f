"""The same in Triton, for tensors on a GPU. Importing this package does not import Triton, which takes a second.

Kernels are compiled when first used, about a second each, and kept in Triton's cache. They compile with Triton 3.0, of
PyTorch 2.4, as with 3.9; the tests without a GPU need the interpreter of 3.9.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Literal

import numpy as np
import torch

from gpupipe.kernels.operations import VALUES, Op

__all__ = ["OPTIONS", "Face", "problem", "usable"]

log = logging.getLogger("gpupipe")
REMEDY = "install the Triton that belongs to this PyTorch (`pip install triton`), and a C compiler, which Triton needs"
# Of every launch: each operation is rounded by itself, as in the references, no product is fused with a sum.
OPTIONS = {"enable_fp_fusion": False}

Face = Literal["augment", "finish"]


def usable(device: torch.device, face: Face) -> bool:
    """Whether the kernels behind a function of `gpupipe.kernels` can work on tensors of `device`."""
    return device.type == "cuda" and problem(device, face) is None


@lru_cache(maxsize=64)
def problem(device: torch.device, face: Face) -> str | None:
    """Why a function's Triton kernels can't run on a GPU, with the remedy; None where they can. Logged when first asked
    for. Raises torch.OutOfMemoryError."""
    try:
        TRIALS[face](torch.zeros((1, 2, 2, 3), dtype=torch.uint8, device=device))
    except torch.OutOfMemoryError:  # which may pass
        raise
    except Exception as error:  # Triton raises what its compiler, the C compiler or the driver gives
        reason = f"Triton kernels of {face} can't run on {device} ({type(error).__name__}: {error}); {REMEDY}"
        log.warning("%s. Meanwhile plain PyTorch does their work, slower.", reason)
        return reason
    return None


def _try_finish(images: torch.Tensor) -> None:
    from gpupipe.kernels.gpu.finish import finish

    finish(images, (0.0,) * 3, (1.0,) * 3, False, torch.empty((1, 3, 2, 2), device=images.device))


def _try_augment(images: torch.Tensor) -> None:
    """One pass with a table, one with a blur: each kernel once."""
    from gpupipe.kernels.gpu.augment import augment

    values = np.zeros((1, 2, VALUES), np.float32)
    values[0, 1, :2] = 0.5, 0.25
    augment(images, np.array([[Op.EQUALIZE, Op.GAUSSIAN_BLUR]], np.int32), values, None, torch.empty_like(images))


TRIALS: dict[Face, Callable[[torch.Tensor], None]] = {"augment": _try_augment, "finish": _try_finish}
