"""JPEGs, a batch at a time on the CPU: cropped, resized, mirrored pixels; and which of them all decoders take alike."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpupipe.host.limits import Limits
from gpupipe.host.system import usable_cpus
from gpupipe.kernels import native
from gpupipe.kernels.crops import PADDINGS, Crops

__all__ = ["BadImage", "Decoded", "Walked", "crop_resize", "decode_crops", "walk_jpegs"]

Pixels = NDArray[np.uint8]
REASONS = ("", "not_jpeg", "unsupported", "damaged", "limit", "changed", "no_memory")  # the codes of cpu/jpeg.h


@dataclass(frozen=True)
class BadImage:
    """Why one image was refused.

    code: "not_jpeg", "unsupported" (a JPEG of a kind that is left to others, such as CMYK), "damaged", "limit",
          "changed" (not of the expected size, or the box lies outside), "no_memory".
    """

    code: str
    message: str


@dataclass(frozen=True)
class Decoded:
    """images: for each of the crops uint8 (N, height, width, 3), or as `out` was given. failures: row -> why it was
    refused; its pixels are undefined."""

    images: tuple[Pixels, ...]
    failures: dict[int, BadImage]


def decode_crops(
    encoded: Sequence[bytes | Pixels],
    crops: Sequence[Crops],
    *,
    out: Sequence[Pixels] | None = None,
    orientations: ArrayLike | None = None,
    sizes: ArrayLike | None = None,
    decode: Literal["exact", "fast"] = "exact",
    limits: Limits | None = None,
    threads: int | None = None,
    variant: str | None = None,
) -> Decoded:
    """Several crops of each JPEG, which is decoded once, and no more of it than they need between them.

    encoded:      N files as bytes or 1-D uint8 arrays.
    crops:        one for each view of the images, in sizes of their own. Of a resized window no more is computed than
                  the output.
    out:          uint8 (N, height, width, 3) for each of `crops`, C-contiguous, written in place, such as pinned or
                  shared memory. For crops with `outputs` (N, pixels, 3): each row begins with its image's pixels.
    orientations: (N,) EXIF orientation 1 to 8 by which the image is turned upright; boxes are of the upright image.
    sizes:        (N, 2) height and width as stored, which a file must have; 0 for any.
    decode:       "exact" gives the pixels of Pillow's `Image.crop` and `Image.resize` to the bit. "fast" lets libjpeg
                  shrink by 2, 4 or 8 while it decodes, where every box is that many times its `resized`: less work for
                  large photographs, and slightly other pixels.
    limits:       of pixels, scans and the memory that libjpeg itself takes; beyond them is refused as "limit".
    threads:      at most so many at once, this one among them; default the CPUs that the process may use.
    variant:      "avx512", "avx2" or "portable" instead of the best that the CPU has; all give the same bits.

    Resize by Pillow's algorithm (src/libImaging/Resample.c): weights in 22-bit fixed point, first along rows, then
    along columns, each pass rounded to 8 bits. (Pillow 13 turns the order round where the height shrinks more than the
    width, which changes some pixels by 1.) Raises ValueError for arguments of wrong shapes, RuntimeError where the
    kernels were not built. An image that can't be decoded fails alone, with a message. Releases the GIL.
    """
    arrays = [np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data for data in encoded]
    for row, array in enumerate(arrays):
        if array.ndim != 1 or array.dtype != np.uint8 or (len(array) and array.strides != (1,)):
            raise ValueError(f"image {row} is {array.dtype} {array.shape}; give bytes or a contiguous 1-D uint8 array")
    if not crops:
        raise ValueError("crops is empty; give one of each image or more")
    call = _Call(arrays, crops, out, threads, variant)
    call.set(
        bytes=np.array([len(array) for array in arrays], dtype=np.int64),
        sizes=_array(0 if sizes is None else sizes, (len(arrays), 2), np.int32, "sizes"),
        orientations=_array(1 if orientations is None else orientations, (len(arrays),), np.uint8, "orientations"),
    )
    call.images.fast = _one_of(decode, {"exact": 0, "fast": 1}, "decode")
    chosen = limits or Limits()
    call.images.limits = native.CLimits(chosen.max_pixels, chosen.max_memory, chosen.max_scans)
    return call.run("gp_decode_crop_resize")


def crop_resize(
    windows: Sequence[Pixels],
    crops: Crops,
    *,
    out: Pixels | None = None,
    threads: int | None = None,
    variant: str | None = None,
) -> Pixels:
    """Resize windows that are pixels already: uint8 (height, width, 3) each, of the height and width in `crops`.

    Returns uint8 (N, height, width, 3), `out` if it is given; else as `decode_crops`.
    """
    for row, (array, sides) in enumerate(zip(windows, crops.windows[:, 2:].tolist(), strict=True)):
        if array.shape != (*sides, 3) or array.dtype != np.uint8 or not array.size:
            raise ValueError(f"window {row} is {array.dtype} {array.shape}, but uint8 {(*sides, 3)} is needed")
    inside = np.concatenate([np.zeros((len(crops), 2), np.int32), crops.windows[:, 2:]], axis=1)
    arrays = [np.ascontiguousarray(array) for array in windows]
    call = _Call(arrays, [replace(crops, windows=inside)], None if out is None else [out], threads, variant)
    return call.run("gp_resize").images[0]


@dataclass(frozen=True)
class Walked:
    """headers: int32 (N, 3), height and width as stored, and the EXIF orientation: 1 to 8, 1 where there is none, 0
             where decoders may read it differently; all three are 0 for what is odd.
    odd:     row -> why it is no plain JPEG.
    """

    headers: NDArray[np.int32]
    odd: dict[int, str]


def walk_jpegs(encoded: Sequence[NDArray[np.uint8]], threads: int = 1) -> Walked:
    """Walk the segments of N files strictly, each 1-D contiguous uint8: which of them every decoder takes alike.

    A plain JPEG has 8 bits, Huffman codes, and one frame, baseline or progressive, of 1 or 3 components; its segments
    are filled to their ends with what ITU T.81, annex B, allows there; its scans find all their tables, and are no more
    than `Limits().max_scans`. Anything else is odd, which need not be damage. What is coded is not looked at.
    Releases the GIL. Raises RuntimeError where the kernels were not built.
    """
    opened = native.library()
    if opened is None:
        raise RuntimeError(native.problem())
    count = len(encoded)
    data = native.addresses(encoded)
    sizes = np.array([len(each) for each in encoded], np.int64)
    headers = np.zeros((count, 3), np.int32)
    odd = (ctypes.c_char_p * count)()
    arrays = (array.ctypes.data for array in (data, sizes, headers))
    files = native.Walks(count, threads, Limits().max_scans, *arrays, ctypes.addressof(odd))
    opened.gp_walk_files(ctypes.byref(files))
    return Walked(headers, {row: reason.decode() for row, reason in enumerate(odd) if reason is not None})


class _View:
    """One of the crops as the library reads it; it keeps the arrays alive."""

    def __init__(self, crops: Crops, out: Pixels | None, count: int) -> None:
        sizes = np.array(crops.size) if crops.outputs is None else crops.outputs
        if sizes.min(initial=1) < 1:
            raise ValueError(f"size={crops.size} must be at least (1, 1)")
        self.windows = _array(crops.windows, (count, 4), np.int32, "windows")
        self.resized = _array(crops.resized, (count, 2), np.int32, "resized")
        self.anchors = _array(crops.anchors, (count, 2), np.int32, "anchors")
        if crops.fill is None:
            _check_parts(self.resized, self.anchors, sizes)
        self.flips = _array(crops.flips, (count,), np.uint8, "flips")
        self.bicubic = _array(crops.bicubic, (count,), np.uint8, "bicubic")
        self.out = _out(out, self._shape(crops, out, count))
        self.fill = None if crops.fill is None else np.array(crops.fill, np.uint8)
        self.view = native.View(*crops.size)
        if self.fill is not None:
            self.view.fill = self.fill.ctypes.data
        self.view.padding = PADDINGS.index(crops.padding)
        if crops.outputs is not None:
            self.outputs = _array(crops.outputs, (count, 2), np.int32, "outputs")
            self.view.outputs, self.view.stride = self.outputs.ctypes.data, self.out.strides[0]
        for name in ("windows", "resized", "anchors", "flips", "bicubic", "out"):
            setattr(self.view, name, getattr(self, name).ctypes.data)

    @staticmethod
    def _shape(crops: Crops, out: Pixels | None, count: int) -> tuple[int, ...]:
        if crops.outputs is None:
            return (count, *crops.size, 3)
        most = int(crops.outputs.astype(np.int64).prod(axis=1).max(initial=1))
        return (count, most if out is None or out.ndim < 2 else max(most, out.shape[1]), 3)


class _Call:
    """The arguments of one call as the library reads them; it keeps the arrays alive."""

    def __init__(
        self,
        data: Sequence[Pixels],
        crops: Sequence[Crops],
        out: Sequence[Pixels] | None,
        threads: int | None,
        variant: str | None,
    ) -> None:
        count = len(data)
        self.codes = np.zeros(count, np.int32)
        self.messages = np.zeros((count, native.MESSAGE_BYTES), np.uint8)
        outs = [None] * len(crops) if out is None else out
        self.views = [_View(one, images, count) for one, images in zip(crops, outs, strict=True)]
        self._structures = (native.View * len(crops))(*(view.view for view in self.views))
        self.images = native.CImages(
            count=count,
            view_count=len(crops),
            threads=usable_cpus() if threads is None else threads,
            variant=native.variant_name(variant),
            views=ctypes.addressof(self._structures),
        )
        self._kept: list[NDArray[Any]] = []
        self.set(data=native.addresses(data), codes=self.codes, messages=self.messages)

    def set(self, **arrays: NDArray[Any]) -> None:
        """Hand arrays over by address."""
        for name, array in arrays.items():
            setattr(self.images, name, array.ctypes.data)
            self._kept.append(array)

    def run(self, function: str) -> Decoded:
        """Call it, and collect what failed."""
        opened = native.library()
        if opened is None:
            raise RuntimeError(native.problem())
        getattr(opened, function)(ctypes.byref(self.images))
        failures = {int(row): self._failure(int(row)) for row in np.flatnonzero(self.codes)}
        return Decoded(tuple(view.out for view in self.views), failures)

    def _failure(self, row: int) -> BadImage:
        message = self.messages[row].tobytes().split(b"\0", 1)[0].decode("ascii", "replace")
        return BadImage(REASONS[int(self.codes[row])], message)


def _array(given: ArrayLike, shape: tuple[int, ...], dtype: type[Any], name: str) -> NDArray[Any]:
    """`given` as the library reads it; one number stands for all."""
    array = np.ascontiguousarray(given, dtype) if np.ndim(given) else np.full(shape, given, dtype)
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}, but {shape} is needed")
    return array


def _check_parts(resized: NDArray[np.int32], anchors: NDArray[np.int32], sizes: NDArray[Any]) -> None:
    outside = ((anchors < 0) | (anchors + sizes > resized)).any(axis=1)
    if outside.any():
        row = int(outside.argmax())
        part, at, box = (tuple(np.broadcast_to(of, anchors.shape)[row].tolist()) for of in (sizes, anchors, resized))
        raise ValueError(f"image {row}: the part of {part} at {at} lies outside the resized box of {box}")


def _out(out: Pixels | None, shape: tuple[int, ...]) -> Pixels:
    if out is None:
        return np.empty(shape, np.uint8)
    if out.shape != shape or out.dtype != np.uint8 or not out.flags.c_contiguous or not out.flags.writeable:
        raise ValueError(f"out is {out.dtype} {out.shape}, but writable contiguous uint8 {shape} is to be written")
    return out


def _one_of(name: str, choices: dict[str, int], setting: str) -> int:
    if name not in choices:
        raise ValueError(f"{setting}={name!r} must be one of {', '.join(choices)}")
    return choices[name]
