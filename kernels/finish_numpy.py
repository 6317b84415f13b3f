"""`finish` without the C++ kernels: NumPy, one sample after the other."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.kernels.erase_mix import Erase, Mix, box_noise

__all__ = ["finish_samples"]


def finish_samples(
    images: torch.Tensor,
    offset: tuple[float, ...],
    scale: tuple[float, ...],
    channels_last: bool,
    out: torch.Tensor,
    erase: Erase | None = None,
    mix: Mix | None = None,
) -> None:
    """Write (level - offset) * scale, erased and mixed, into `out`; each sample stays in the cache between the passes.

    With NumPy, whose loops are as fast here as torch's on one thread (6.6 and 7.3 ms for 128 images of 224 x 224 on
    an AMD EPYC) and never wait for others: torch's parallel regions end at a barrier, and where worker processes hold
    the cores that cut a loader of 1,200 img/s to 280.
    """
    rows = _Rows(images, offset, scale, channels_last, erase)
    targets = out.permute(0, 2, 3, 1).reshape(rows.shape) if channels_last else out
    scratch, other = np.empty(rows.shape[1:], np.float32), np.empty(rows.shape[1:], np.float32)
    for row, target in enumerate(targets):
        exact = target.numpy() if out.dtype == torch.float32 else scratch
        rows.make(row, exact)
        if mix is not None and mix.partners[row] != row:
            rows.make(mix.partners[row], other)
            _mix(rows, mix, row, exact, other)
        if exact is scratch:
            _cast(scratch, target)


class _Rows:
    """The samples normalized and erased, in float32 and in the layout of `out`."""

    def __init__(
        self,
        images: torch.Tensor,
        offset: tuple[float, ...],
        scale: tuple[float, ...],
        channels_last: bool,
        erase: Erase | None,
    ) -> None:
        self._height, self._width = images.shape[1:3]
        self._channels_last = channels_last
        self._erase = erase
        offsets, scales = np.array(offset, np.float32), np.array(scale, np.float32)
        if channels_last:
            # Rows of interleaved pixels: the constants repeat along a row, so that the inner loop is long.
            self._offsets, self._scales = np.tile(offsets, self._width), np.tile(scales, self._width)
            self._sources = images.numpy().reshape(-1, self._height, self._width * 3)
        else:
            self._offsets, self._scales = offsets.reshape(3, 1, 1), scales.reshape(3, 1, 1)
            self._sources = images.numpy().transpose(0, 3, 1, 2)
        self.shape = self._sources.shape

    def make(self, row: int, numbers: NDArray[np.float32]) -> None:
        np.copyto(numbers, self._sources[row])
        numbers -= self._offsets
        numbers *= self._scales
        if self._erase is not None and self._erase.boxes[row, 2:].all():
            self._fill(self._erase, row, numbers)

    def inside(self, numbers: NDArray[np.float32], box: NDArray[np.int32]) -> NDArray[np.float32]:
        """The pixels of a box, (height, width, 3), as a view."""
        top, left, height, width = box
        pixels = numbers.reshape(self._height, self._width, 3) if self._channels_last else numbers.transpose(1, 2, 0)
        return pixels[top : top + height, left : left + width]

    def _fill(self, erase: Erase, row: int, numbers: NDArray[np.float32]) -> None:
        box = erase.boxes[row]
        if erase.value is not None:
            self.inside(numbers, box)[...] = erase.value
        else:
            assert erase.keys is not None  # checked before
            self.inside(numbers, box)[...] = box_noise(
                (int(erase.keys[row, 0]), int(erase.keys[row, 1])), box, self._width
            )


def _mix(rows: _Rows, mix: Mix, row: int, own: NDArray[np.float32], other: NDArray[np.float32]) -> None:
    weight, box = mix.weights[row], mix.boxes[row]
    if weight != 1:
        own *= weight
        own += other * (np.float32(1) - weight)
    rows.inside(own, box)[...] = rows.inside(other, box)


# torch runs a loop over fewer elements than this on the calling thread (at::internal::GRAIN_SIZE).
_SERIAL = 32768 - 1


def _cast(exact: NDArray[np.float32], target: torch.Tensor) -> None:
    """float32 to half precision, which NumPy has in part (no bfloat16), in pieces that torch runs on this thread."""
    for piece, place in zip(
        torch.from_numpy(exact).view(-1).split(_SERIAL), target.view(-1).split(_SERIAL), strict=True
    ):
        place.copy_(piece)
