"""`finish` on a GPU: one launch, on the current stream, without waiting for it."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.kernels.erase_mix import Erase, Mix
from gpupipe.kernels.gpu import OPTIONS
from gpupipe.kernels.gpu.finish_kernels import CONSTANT, NOISE, RECORD, finish_flat, finish_planes
from gpupipe.kernels.transfer import to_device

__all__ = ["finish"]

# With 8 warps each thread has 4 pixels of 12 bytes, or 4 levels; 8 where two bytes each fill a vector of 16 bytes.
WARPS = 8
PIXELS = 1024
LEVELS, LEVELS_OF_TWO_BYTES = 1024, 2048
Triple = tuple[float, ...]


def finish(
    images: torch.Tensor,
    offset: Triple,
    scale: Triple,
    channels_last: bool,
    out: torch.Tensor,
    erase: Erase | None = None,
    mix: Mix | None = None,
) -> None:
    """(level - offset) * scale per channel, in float32, erased and mixed, rounded once to the dtype of `out`.

    images: contiguous uint8 (N, height, width, 3). out: (N, 3, height, width) float32, float16, bfloat16 or uint8, in
    the memory format that channels_last says; uint8 is only rearranged. height * width * 3 must be below 2**31.
    """
    n, height, width, _ = images.shape
    count = height * width
    if n * count == 0:
        return
    if out.dtype == torch.uint8 and channels_last:
        out.permute(0, 2, 3, 1).copy_(images)
        return
    value = (0.0, 0.0, 0.0) if erase is None or erase.value is None else erase.value
    constants = [float(number) for number in (*offset, *scale, *value)]
    with torch.cuda.device_of(images):  # Triton launches on the current device
        plain = erase is None and mix is None
        records = images if plain else to_device(torch.from_numpy(_records(n, erase, mix)), images.device)
        erasing = 0 if erase is None else NOISE if erase.value is None else CONSTANT
        flags = {"ERASE": erasing, "MIX": mix is not None, "num_warps": WARPS, **OPTIONS}
        if channels_last:
            levels = LEVELS_OF_TWO_BYTES if plain and out.element_size() == 2 else LEVELS
            grid = (n * -(-3 * count // levels),)
            finish_flat[grid](images, out, records, count, width, *constants, BYTES=levels, **flags)
        else:
            words = count % 4 == 0 and images.data_ptr() % 4 == 0
            grid = (n * -(-count // PIXELS),)
            finish_planes[grid](
                images, out, records, count, width, *constants,
                PIXELS=PIXELS, WORDS=words, FLOAT=out.dtype != torch.uint8, **flags,
            )  # fmt: skip


def _records(n: int, erase: Erase | None, mix: Mix | None) -> NDArray[np.int32]:
    """What the kernels read of each sample, see `finish_kernels`."""
    records = np.zeros((n, RECORD), np.int32)
    if erase is not None:
        records[:, :4] = erase.boxes
        if erase.value is None:
            assert erase.keys is not None
            records[:, 4:6] = np.ascontiguousarray(erase.keys, np.uint32).view(np.int32)
    if mix is not None:
        alone = mix.partners == np.arange(n)  # whatever the weight and the box
        records[:, 6] = mix.partners
        records[:, 7] = np.where(alone, np.float32(1), mix.weights.astype(np.float32)).view(np.int32)
        records[:, 8:] = np.where(alone[:, None], 0, mix.boxes)
    return records
