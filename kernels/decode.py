"""Encoded JPEGs to cropped, resized, mirrored pixels on the CPU, a batch at a time."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpupipe.host.system import usable_cpus
from gpupipe.kernels import native

__all__ = ["BadImage", "Crops", "Decoded", "Limits", "crop_resize", "decode_crop_resize", "decode_crops"]

Pixels = NDArray[np.uint8]
FILTERS = {"bilinear": 0, "bicubic": 1}
# The codes of cpu/jpeg.h.
REASONS: dict[int, Literal["not_jpeg", "unsupported", "damaged", "limit", "changed", "no_memory"]] = {
    1: "not_jpeg",
    2: "unsupported",
    3: "damaged",
    4: "limit",
    5: "changed",
    6: "no_memory",
}


@dataclass(frozen=True)
class Limits:
    """What one image may cost; beyond it is refused with the code "limit".

    max_pixels: height times width of the whole image; Pillow's error limit.
    max_memory: bytes that libjpeg may take, which matters for progressive files: it keeps all their coefficients,
                6 bytes a pixel without chroma subsampling.
    max_scans:  of a progressive file; each is a pass over all coefficients. Usual files have 10.
    """

    max_pixels: int = 178_956_970
    max_memory: int = 1 << 30
    max_scans: int = 100


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
    """images: uint8 (N, height, width, 3). failures: row -> why it was refused; its pixels are undefined."""

    images: Pixels
    failures: dict[int, BadImage] = field(default_factory=dict)


@dataclass(frozen=True)
class Crops:
    """A box of each of N images, and what it becomes.

    boxes:   (N, 4) top, left, height, width, in pixels of the image.
    size:    (height, width) of every output.
    flips:   (N,) bool, mirrored left to right; default none.
    resized: (N, 2) height, width to which the box is resized; default `size`. Where it is larger, the output is the
             part at `anchors`, (N, 2) top, left, default (0, 0), and no more than that part is computed.
    filter:  "bilinear" or "bicubic", antialiased.
    out:     uint8 (N, height, width, 3), C-contiguous, written in place, such as pinned or shared memory.
    """

    boxes: ArrayLike
    size: tuple[int, int]
    flips: ArrayLike | None = None
    resized: ArrayLike | None = None
    anchors: ArrayLike | None = None
    filter: Literal["bilinear", "bicubic"] = "bilinear"
    out: Pixels | None = None


def decode_crop_resize(
    encoded: Sequence[bytes | Pixels],
    boxes: ArrayLike,
    size: tuple[int, int],
    *,
    flips: ArrayLike | None = None,
    resized: ArrayLike | None = None,
    anchors: ArrayLike | None = None,
    orientations: ArrayLike | None = None,
    sizes: ArrayLike | None = None,
    filter: Literal["bilinear", "bicubic"] = "bilinear",
    decode: Literal["exact", "fast"] = "exact",
    limits: Limits | None = None,
    threads: int | None = None,
    out: Pixels | None = None,
    variant: str | None = None,
) -> Decoded:
    """Cut a box out of each JPEG and resize it, antialiased, decoding only the rows and columns that this needs.

    boxes, size, flips, resized, anchors, filter, out: see `Crops`. The rest: see `decode_crops`.
    """
    (made,) = decode_crops(
        encoded,
        [Crops(boxes, size, flips, resized, anchors, filter, out)],
        orientations=orientations,
        sizes=sizes,
        decode=decode,
        limits=limits,
        threads=threads,
        variant=variant,
    )
    return made


def decode_crops(
    encoded: Sequence[bytes | Pixels],
    crops: Sequence[Crops],
    *,
    orientations: ArrayLike | None = None,
    sizes: ArrayLike | None = None,
    decode: Literal["exact", "fast"] = "exact",
    limits: Limits | None = None,
    threads: int | None = None,
    variant: str | None = None,
) -> list[Decoded]:
    """Several crops of each JPEG, which is decoded once, and no more of it than they need between them.

    encoded:      N files as bytes or 1-D uint8 arrays.
    crops:        one for each view of the images, in sizes of their own.
    orientations: (N,) EXIF orientation 1 to 8 by which the image is turned upright; boxes are of the upright image.
    sizes:        (N, 2) height and width as stored, which a file must have; 0 for any.
    decode:       "exact" gives the pixels of Pillow's `Image.crop` and `Image.resize` to the bit. "fast" lets libjpeg
                  shrink by 2, 4 or 8 while it decodes, where every box is that many times its `resized`: less work for
                  large photographs, and slightly other pixels.
    threads:      at most so many at once, this one among them; default the CPUs that the process may use.
    variant:      "avx512", "avx2" or "portable" instead of the best that the CPU has; all give the same bits.

    Returns the images of each of `crops`, all with the same failures. Resize by Pillow's algorithm
    (src/libImaging/Resample.c): weights in 22-bit fixed point, first along rows, then along columns, each pass rounded
    to 8 bits. (Pillow 13 turns the order round where the height shrinks more than the width, which changes some pixels
    by 1.) Raises ValueError for arguments of wrong shapes, RuntimeError where the kernels were not built. An image that
    can't be decoded fails alone, with a message. Releases the GIL.
    """
    arrays = [np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data for data in encoded]
    for row, array in enumerate(arrays):
        if array.ndim != 1 or array.dtype != np.uint8 or (len(array) and array.strides != (1,)):
            raise ValueError(f"image {row} is {array.dtype} {array.shape}; give bytes or a contiguous 1-D uint8 array")
    if not crops:
        raise ValueError("crops is empty; give one of each image or more")
    call = _Call(arrays, crops, threads, variant)
    call.set(
        bytes=np.array([len(array) for array in arrays], dtype=np.int64),
        sizes=_array(sizes, (len(arrays), 2), np.int32, "sizes", 0),
        orientations=_array(orientations, (len(arrays),), np.uint8, "orientations", 1),
    )
    call.images.fast = _one_of(decode, {"exact": 0, "fast": 1}, "decode")
    chosen = limits or Limits()
    call.images.limits = native.Limits(chosen.max_pixels, chosen.max_memory, chosen.max_scans)
    return call.run("gp_decode_crop_resize")


def crop_resize(
    pixels: Sequence[Pixels],
    size: tuple[int, int],
    *,
    flips: ArrayLike | None = None,
    resized: ArrayLike | None = None,
    anchors: ArrayLike | None = None,
    filter: Literal["bilinear", "bicubic"] = "bilinear",
    threads: int | None = None,
    out: Pixels | None = None,
    variant: str | None = None,
) -> Pixels:
    """Resize decoded images, each uint8 (height, width, 3), C-contiguous; else as `decode_crop_resize`.

    Returns uint8 (N, height, width, 3).
    """
    for row, array in enumerate(pixels):
        if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8 or not array.flags.c_contiguous:
            raise ValueError(f"image {row} is {array.dtype} {array.shape}; give contiguous uint8 (height, width, 3)")
        if not array.size:
            raise ValueError(f"image {row} has no pixels")
    boxes = np.array([(0, 0, *array.shape[:2]) for array in pixels], np.int32).reshape(-1, 4)
    call = _Call(pixels, [Crops(boxes, size, flips, resized, anchors, filter, out)], threads, variant)
    (made,) = call.run("gp_resize")
    return made.images


class _View:
    """One of the crops as the library reads it; it keeps the arrays alive."""

    def __init__(self, crops: Crops, count: int) -> None:
        height, width = crops.size
        if height < 1 or width < 1:
            raise ValueError(f"size={crops.size} must be at least (1, 1)")
        self.windows = _array(crops.boxes, (count, 4), np.int32, "boxes", 0)
        self.resized = _array(crops.resized, (count, 2), np.int32, "resized", crops.size)
        self.anchors = _array(crops.anchors, (count, 2), np.int32, "anchors", 0)
        _check_parts(self.resized, self.anchors, crops.size)
        self.flips = _array(crops.flips, (count,), np.uint8, "flips", 0)
        self.out = _out(crops.out, (count, height, width, 3))
        self.view = native.View(height, width, _one_of(crops.filter, FILTERS, "filter"))
        for name in ("windows", "resized", "anchors", "flips", "out"):
            setattr(self.view, name, getattr(self, name).ctypes.data)


class _Call:
    """The arguments of one call as the library reads them; it keeps the arrays alive."""

    def __init__(
        self, data: Sequence[Pixels], crops: Sequence[Crops], threads: int | None, variant: str | None
    ) -> None:
        count = len(data)
        self.codes = np.zeros(count, np.int32)
        self.messages = np.zeros((count, native.MESSAGE_BYTES), np.uint8)
        self.views = [_View(one, count) for one in crops]
        self._structures = (native.View * len(crops))(*(view.view for view in self.views))
        self.images = native.Images(
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

    def run(self, function: str) -> list[Decoded]:
        """Call it, and collect what failed."""
        opened = native.library()
        if opened is None:
            raise RuntimeError(native.problem())
        getattr(opened, function)(ctypes.byref(self.images))
        failures = {int(row): self._failure(int(row)) for row in np.flatnonzero(self.codes)}
        return [Decoded(view.out, dict(failures)) for view in self.views]

    def _failure(self, row: int) -> BadImage:
        message = self.messages[row].tobytes().split(b"\0", 1)[0].decode("ascii", "replace")
        return BadImage(REASONS[int(self.codes[row])], message)


def _array(given: ArrayLike | None, shape: tuple[int, ...], dtype: type[Any], name: str, default: Any) -> NDArray[Any]:
    if given is None:
        return np.ascontiguousarray(np.broadcast_to(np.array(default, dtype), shape))
    array = np.ascontiguousarray(given, dtype)
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}, but {shape} is needed")
    return array


def _check_parts(resized: NDArray[np.int32], anchors: NDArray[np.int32], size: tuple[int, int]) -> None:
    outside = ((anchors < 0) | (anchors + np.array(size) > resized)).any(axis=1)
    if outside.any():
        row = int(outside.argmax())
        raise ValueError(
            f"image {row}: the part of {size} at {tuple(anchors[row].tolist())} lies outside the resized box of "
            f"{tuple(resized[row].tolist())}"
        )


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
