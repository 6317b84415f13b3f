"""One image on the CPU: from encoded bytes, or from pixels, to a view's uint8 pixels.

Decode: nvImageCodec's CPU decoders, which come with DALI, decode PNGs (mean of 300 ImageNet training images, one core
of an AMD EPYC: 3.7 ms against Pillow's 5.1) and WebPs (2.8 against 3.3) to the same bits as Pillow. What they refuse,
and all other formats, Pillow decides: of some kinds of TIFF and PNM nvImageCodec gives other pixels, as of 100 levels
or with alpha. JPEGs come here where the C++ kernel refuses them: of damaged ones nvImageCodec takes some that Pillow
refuses, and where a progressive one lacks scans it guesses otherwise. Resize: gpupipe's C++ kernel; where that was not
built Pillow does all of it, to the same bits.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from gpupipe.host.limits import Limits
from gpupipe.host.muted import muted
from gpupipe.kernels import Crops, crop_resize, native
from gpupipe.kernels.crops import folded
from gpupipe.kernels.png import SIGNATURE as PNG, chunks
from gpupipe.sources.headers import HAS_AVIF, explain_damage, opened_image, orientation_of
from gpupipe.sources.rgb import Background, as_rgb

__all__ = [
    "DecodeError",
    "by_pillow",
    "decode_window",
    "mentions_exif",
    "parse",
    "render",
    "resized_by_pillow",
]

log = logging.getLogger("gpupipe")

Pixels = NDArray[np.uint8]
Box = tuple[int, int, int, int]

# Of EXIF's orientations from 2 on.
TURNS = (
    *(Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.ROTATE_180, Image.Transpose.FLIP_TOP_BOTTOM),
    *(Image.Transpose.TRANSPOSE, Image.Transpose.ROTATE_270, Image.Transpose.TRANSVERSE, Image.Transpose.ROTATE_90),
)

JPEG = b"\xff\xd8"
TAKEN = re.compile(JPEG + b"|" + re.escape(PNG) + b"|RIFF....WEBP", re.DOTALL)
"""How files begin of which nvImageCodec is asked at all: the header of a JPEG 2000 whose tiles have no width ends the
process in its parser, by a division."""

_local = threading.local()


class DecodeError(Exception):
    """The bytes are not an image that can be decoded; the message says why."""


def render(
    data: Pixels,
    height: int,
    width: int,
    crops: Sequence[Crops],
    exif: bool,
    out: Sequence[torch.Tensor],
    background: Background = None,
) -> None:
    """Decode one image if need be, and crop, resize and flip it into each of `out`.

    data:  uint8, the bytes of a file (bytes,), or pixels (height, width, 3).
    height, width: the size of the image that the crops were made for, upright if `exif`, which is about files alone.
    crops: of this one image, one for each view; out: of each view uint8 (out_height, out_width, 3), contiguous.
    background: of files with transparency, see `as_rgb`.
    Raises DecodeError.
    """
    if native.library() is None:
        image = Image.fromarray(data) if data.ndim == 3 else by_pillow(data, height, width, exif, background)
        for one, view in zip(crops, out, strict=True):
            view.copy_(torch.from_numpy(resized_by_pillow(image, one)))
        return
    windows = np.concatenate([one.windows for one in crops])
    first = np.clip(windows[:, :2].min(axis=0), 0, (height - 1, width - 1))
    last = np.minimum((windows[:, :2] + windows[:, 2:]).max(axis=0), (height, width))
    box = (*first.tolist(), *np.maximum(last - first, 1).tolist())
    if data.ndim == 3:
        box, pixels = (0, 0, height, width), data
    else:
        pixels = decode_window(data, height, width, box, exif, background)
    for one, view in zip(crops, out, strict=True):
        crop_resize([_window(pixels, box, one)], one, out=view.numpy()[None], threads=1)


def _window(pixels: Pixels, box: Box, crops: Crops) -> Pixels:
    """The pixels of one crop's window, of those of a box of the image; with `fill` where it reaches out of them."""
    top, left, height, width = crops.windows[0].tolist()
    top, left = top - box[0], left - box[1]
    within = pixels[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)]
    if crops.fill is None or within.shape[:2] == (height, width):
        return within
    window = np.full((height, width, 3), crops.fill, np.uint8)
    y, x = max(-top, 0), max(-left, 0)
    window[y : y + within.shape[0], x : x + within.shape[1]] = within
    return window


def resized_by_pillow(image: Image.Image, crops: Crops) -> Pixels:
    """One view of an RGB image: each pass computes no more of the other axis than the output needs."""
    (top, left, height, width), (tall, wide), (y, x) = (
        array[0].tolist() for array in (crops.windows, crops.resized, crops.anchors)
    )
    if max(height * wide, tall * max(wide, crops.size[1])) > Limits().max_pixels:
        raise DecodeError(
            f"Pillow would resize {width} x {height} of its pixels to {wide} x {tall}, and not just the part that is "
            f"wanted, which is too much; {native.problem()}"
        )
    how = Image.Resampling.BICUBIC if crops.bicubic[0] else Image.Resampling.BILINEAR
    view = _cut(image, top, left, (height, width), crops.fill).resize((wide, height), how)
    if crops.padding != "constant":
        rows, columns = (
            folded(np.arange(first, first + out), side, crops.padding)
            for first, out, side in zip((y, x), crops.size, (tall, wide), strict=True)
        )
        whole = np.array(view.resize((wide, tall), how))
        return whole[np.ix_(rows, columns[::-1] if crops.flips[0] else columns)]
    view = _cut(view, 0, x, (height, crops.size[1]), crops.fill).resize((crops.size[1], tall), how)
    view = _cut(view, y, 0, crops.size, crops.fill)
    return np.array(ImageOps.mirror(view) if crops.flips[0] else view)


def _cut(image: Image.Image, top: int, left: int, size: tuple[int, int], fill: tuple[int, int, int] | None) -> Any:
    """A part of the image, with `fill` where it reaches out of it."""
    height, width = size
    box = (left, top, left + width, top + height)
    if fill is None or (top >= 0 and left >= 0 and box[2] <= image.width and box[3] <= image.height):
        return image.crop(box)
    view = Image.new("RGB", (width, height), fill)
    view.paste(image, (-left, -top))
    return view


def decode_window(
    encoded: Pixels, height: int, width: int, window: Box, exif: bool, background: Background = None
) -> Pixels:
    """The pixels of a window (top, left, height, width) of an encoded image, uint8 RGB (h, w, 3).

    height, width: what the image's size should be. Raises DecodeError.
    """
    decoded = _nvimagecodec(encoded, height, width, window, exif, background)
    if decoded is not None:
        return decoded
    top, left, tall, wide = window
    return np.array(by_pillow(encoded, height, width, exif, background).crop((left, top, left + wide, top + tall)))


@dataclass(frozen=True)
class _Codec:
    """nvImageCodec's module, a decoder on the CPU, and its parameters for images as stored."""

    module: Any
    decoder: Any
    params: Any


def _codec() -> _Codec | None:
    """One per thread, made anew after a fork; None, said once, where nvImageCodec can't be used."""
    if getattr(_local, "owner", None) != os.getpid():
        _local.owner = os.getpid()
        try:
            _local.codec = _open_codec()
        except Exception as error:  # whatever a missing or unfit binary raises
            log.warning(
                "nvImageCodec can't be used (%s); Pillow decodes instead, more slowly; "
                "pip install --force-reinstall nvidia-nvimgcodec-cu12",
                error,
            )
            _local.codec = None
    codec: _Codec | None = _local.codec
    return codec


def _open_codec() -> _Codec:
    os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")  # failures are ours to report, with the sample's name
    from nvidia import nvimgcodec

    decoder = nvimgcodec.Decoder(
        backends=[nvimgcodec.Backend(nvimgcodec.BackendKind.CPU_ONLY)], max_num_cpu_threads=1, device_id=CPU_ONLY_DEVICE
    )
    params = nvimgcodec.DecodeParams(apply_exif_orientation=False, color_spec=nvimgcodec.ColorSpec.SRGB)
    return _Codec(nvimgcodec, decoder, params)


CPU_ONLY_DEVICE = -99999  # NVIMGCODEC_DEVICE_CPU_ONLY of nvimgcodec.h; the Python module does not name it


def parse(encoded: Pixels, background: Background = None) -> Any | None:
    """What nvImageCodec reads in an image's header, a CodeStream; None where it refuses, or where its pixels, which are
    DALI's on a CPU too, may not be Pillow's."""
    codec = _codec()
    begin = encoded[:12].tobytes()
    if codec is None or not TAKEN.match(begin):
        return None
    png = encoded.tobytes() if begin.startswith(PNG) else b""
    if png and not _ends(png):
        return None
    try:
        with muted():
            stream = codec.module.CodeStream(encoded)
        alike = _is_alike(stream, png, background)
    except RuntimeError:
        return None
    return stream if alike else None


def _ends(png: bytes) -> bool:
    """Whether all chunks up to the last lie in the file: nvImageCodec takes as much memory as one claims to need,
    3.3 GB for a file of 823 bytes."""
    return any(kind == b"IEND" for kind, _, _ in chunks(png))


def _is_alike(stream: Any, png: bytes, background: Background) -> bool:
    """Whether the pixels are Pillow's: of JPEGs but CMYK, which without Adobe's marker is taken as if it were there;
    and where alpha is dropped of WebPs and of PNGs, but animated ones, of which it may be another frame."""
    if stream.codec_name == "jpeg":
        return bool(stream.num_channels in (1, 3))
    if background is not None or stream.codec_name not in ("png", "webp"):
        return False
    return bool(stream.height) and png.find(b"acTL", 0, png.find(b"IDAT")) < 0


def mentions_exif(encoded: Pixels) -> bool:
    """Whether an image may hold EXIF, as in a JPEG, a PNG or a WebP."""
    content = encoded.tobytes()
    return any(mark in content for mark in (b"Exif", b"eXIf", b"EXIF"))


def _nvimagecodec(
    encoded: Pixels, height: int, width: int, window: Box, exif: bool, background: Background
) -> Pixels | None:
    """The window's pixels, or None where the decoder refuses, or is not to be asked."""
    if encoded[:2].tobytes() == JPEG:
        return None
    codec, stream = _codec(), parse(encoded, background)
    if codec is None or stream is None:
        return None
    if exif and mentions_exif(encoded):
        return None  # of damaged EXIF each reads another orientation; the caller's is Pillow's
    top, left, tall, wide = window
    try:
        if (stream.height, stream.width) != (height, width):
            return None
        if (tall, wide) != (height, width):
            stream = stream.get_sub_code_stream(
                image_idx=0, region=codec.module.Region(top, left, top + tall, left + wide)
            )
        with muted():
            decoded = codec.decoder.decode(stream, params=codec.params)
    except RuntimeError:
        return None
    if decoded is None:
        return None
    pixels: Pixels = np.asarray(decoded)
    return pixels if pixels.shape == (tall, wide, 3) and pixels.dtype == np.uint8 else None


def by_pillow(encoded: Pixels, height: int, width: int, exif: bool, background: Background = None) -> Image.Image:
    """The whole image in RGB, see `as_rgb`."""
    _limit_avif()
    try:
        with opened_image(encoded.data) as opened:
            size = opened.size
            if size in ((width, height), (height, width)):  # what has changed is not decoded: it may be huge
                orientation = orientation_of(opened) if exif else 1
                image = as_rgb(opened, background)
                if orientation != 1:
                    image = image.transpose(TURNS[orientation - 2])
                size = image.size
                if size == (width, height):
                    return image
    except MemoryError:
        raise
    except Exception as error:  # Pillow's plugins raise whatever their parsers do on damaged bytes
        reason = explain_damage(encoded.tobytes()) or f"it can't be decoded ({type(error).__name__}: {error})"
        raise DecodeError(reason) from error
    raise DecodeError(
        f"it is {size[0]} x {size[1]} pixels, but {width} x {height} were expected; the file has changed "
        "since it was indexed"
    )


@cache
def _limit_avif() -> None:
    """One thread decodes an AVIF, unless the program says how many: Pillow starts one on each CPU for each image (with
    64 of them 12 ms for 3.5)."""
    if HAS_AVIF:
        from PIL import AvifImagePlugin

        AvifImagePlugin.DEFAULT_MAX_THREADS = AvifImagePlugin.DEFAULT_MAX_THREADS or 1
