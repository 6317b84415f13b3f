"""Any object as bytes, and back. Tensors on the CPU go as their bytes: no file descriptor travels with them.

torch's own pickling puts each tensor into new shared memory and sends its descriptor, for which the consumer has to ask
the worker: for ever, if that is stopped. What lies elsewhere (on a GPU, say) is left to it.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

__all__ = ["pack", "unpack"]

APART = 1 << 18  # bytes of an array from which on it is not copied into the pickle: enough to be worth a map


def pack(value: Any) -> list[memoryview]:
    """A pickle and the large arrays in it, whose memory this refers to."""
    apart: list[memoryview] = []

    def within(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes >= APART:
            apart.append(raw)
        return raw.nbytes < APART

    stream = io.BytesIO()
    _Pickler(stream, pickle.HIGHEST_PROTOCOL, True, within).dump(value)
    return [stream.getbuffer(), *apart]


def unpack(parts: Sequence[Any]) -> Any:
    """What was packed, over the memory of the parts."""
    return pickle.loads(parts[0], buffers=parts[1:])


class _Pickler(ForkingPickler):
    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor or not _is_plain(value):
            return NotImplemented
        dense = value.resolve_conj().resolve_neg()
        dense = dense if dense.is_contiguous() else dense.clone()  # without gaps, in the memory format that it has
        data = _flat(dense).view(torch.uint8).numpy()
        return _tensor, (data, dense.dtype, tuple(dense.shape), dense.stride())


def _is_plain(tensor: torch.Tensor) -> bool:
    on_cpu = tensor.device.type == "cpu" and tensor.layout is torch.strided
    return on_cpu and not (tensor.requires_grad or tensor.is_quantized)


def _tensor(
    data: np.ndarray[Any, Any], dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]
) -> torch.Tensor:
    return _flat(torch.from_numpy(data)).view(dtype).as_strided(shape, strides)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """One side; of a tensor of one value or none the stride may be 0, by which torch refuses to view it."""
    return tensor.as_strided((tensor.numel(),), (1,))
