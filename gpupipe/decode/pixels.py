"""From encoded bytes and a plan to uint8 pixels on the CPU, one sample at a time.

Decode: nvImageCodec's CPU decoders, which come with DALI, decode only the window of a JPEG, to the same bits as
Pillow (0.74 ms against 1.05 ms for Pillow's whole image and 0.95 ms for simplejpeg's, mean of 300 ImageNet training
images, one core of an AMD EPYC). What they refuse, Pillow decides. Resize: gpupipe's C++ kernel, or where that was not
built torch's antialiased uint8 kernel, which is within 1 level of Pillow's.
"""

from __future__ import annotations

import io
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from gpupipe.kernels import crop_resize, native
from gpupipe.plan import Plan
from gpupipe.recipe import Filter
from gpupipe.sources.headers import FORMATS, explain_damage

__all__ = ["DecodeError", "decode_window", "mentions_exif", "parse", "render"]

log = logging.getLogger("gpupipe")

Pixels = NDArray[np.uint8]
Box = tuple[int, int, int, int]

# Beyond this multiple of the output's area a resize of the whole window is wasteful (a 7 x 3000 image grows to
# 256 x 109714 before its centre is cropped), and Pillow makes just the pixels that are wanted.
MAX_OVERDRAW = 16

_RESIZE = {
    "bilinear": torch.ops.aten._upsample_bilinear2d_aa.out,
    "bicubic": torch.ops.aten._upsample_bicubic2d_aa.out,
}
_PILLOW = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
_flip = torch.ops.aten.flip.out
_local = threading.local()


class DecodeError(Exception):
    """The bytes are not an image that can be decoded; the message says why."""


def render(
    encoded: Pixels, height: int, width: int, plans: Sequence[Plan], exif: bool, out: Sequence[torch.Tensor]
) -> None:
    """Decode one image, and crop, resize and flip it into each of `out`.

    encoded: uint8 (bytes,); height, width: the size of the image that the plans were made for, upright if `exif`.
    plans:   of this one image, one for each view; out: of each view uint8 (out_height, out_width, 3), contiguous.
    Raises DecodeError.
    """
    windows = np.concatenate([plan.windows for plan in plans])
    top, left = windows[:, :2].min(axis=0).tolist()
    bottom, right = (windows[:, :2] + windows[:, 2:]).max(axis=0).tolist()
    pixels = decode_window(encoded, height, width, (top, left, bottom - top, right - left), exif)
    for plan, (y, x, tall, wide), images in zip(plans, windows.tolist(), out, strict=True):
        _render_view(pixels[y - top : y - top + tall, x - left : x - left + wide], plan, images)


def _render_view(pixels: Pixels, plan: Plan, out: torch.Tensor) -> None:
    """The pixels of a plan's window, resized and flipped."""
    resized = (int(plan.resized[0, 0]), int(plan.resized[0, 1]))
    anchor = (int(plan.anchors[0, 0]), int(plan.anchors[0, 1]))
    flip = bool(plan.flips[0])
    if native.library() is not None:
        crop_resize(
            [np.ascontiguousarray(pixels)],
            plan.size,
            flips=plan.flips,
            filter=plan.filter,
            resized=plan.resized,
            anchors=plan.anchors,
            threads=1,
            out=out.numpy()[None],
        )
    elif resized == plan.size:
        _whole_window(pixels, out, flip, plan.filter)
    elif resized[0] * resized[1] > MAX_OVERDRAW * plan.size[0] * plan.size[1]:
        _copy(torch.from_numpy(resize_part(pixels, resized, anchor, plan.size, plan.filter)), out, flip)
    else:
        whole = torch.empty((*resized, 3), dtype=torch.uint8)
        _whole_window(pixels, whole, False, plan.filter)
        rows, columns = (slice(start, start + length) for start, length in zip(anchor, plan.size, strict=True))
        _copy(whole[rows, columns], out, flip)


def _whole_window(pixels: Pixels, out: torch.Tensor, flip: bool, filter: Filter) -> None:
    """All of `pixels` resized to `out`. The kernels write in place: 0.08 ms against 0.21 ms through a new tensor."""
    target = torch.empty_like(out) if flip else out
    planes = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    _RESIZE[filter](planes, list(out.shape[:2]), False, None, None, out=target.permute(2, 0, 1)[None])
    if flip:
        _copy(target, out, flip)


def _copy(pixels: torch.Tensor, out: torch.Tensor, flip: bool) -> None:
    if flip:
        _flip(pixels, [1], out=out)
    else:
        out.copy_(pixels)


def resize_part(
    pixels: Pixels, resized: tuple[int, int], anchor: tuple[int, int], size: tuple[int, int], filter: Filter
) -> Pixels:
    """The part at `anchor`, of `size`, of `pixels` resized to `resized`; Pillow computes only that part."""
    scale = (pixels.shape[0] / resized[0], pixels.shape[1] / resized[1])
    top, left = anchor[0] * scale[0], anchor[1] * scale[1]
    # Rounding may carry the box past the edge in the last place, which Pillow refuses.
    bottom = min((anchor[0] + size[0]) * scale[0], float(pixels.shape[0]))
    right = min((anchor[1] + size[1]) * scale[1], float(pixels.shape[1]))
    image = Image.fromarray(pixels).resize((size[1], size[0]), _PILLOW[filter], box=(left, top, right, bottom))
    return np.array(image)


def decode_window(encoded: Pixels, height: int, width: int, window: Box, exif: bool) -> Pixels:
    """The pixels of a window (top, left, height, width) of an encoded image, uint8 RGB (h, w, 3).

    height, width: what the image's size should be. Raises DecodeError.
    """
    decoded = _nvimagecodec(encoded, height, width, window, exif)
    return _pillow(encoded, height, width, window, exif) if decoded is None else decoded


@dataclass(frozen=True)
class _Codec:
    """nvImageCodec's module, a decoder on the CPU, and its parameters for images as stored and upright."""

    module: Any
    decoder: Any
    params: tuple[Any, Any]


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
    rgb = nvimgcodec.ColorSpec.SRGB
    params = [nvimgcodec.DecodeParams(apply_exif_orientation=exif, color_spec=rgb) for exif in (False, True)]
    return _Codec(nvimgcodec, decoder, (params[0], params[1]))


CPU_ONLY_DEVICE = -99999  # NVIMGCODEC_DEVICE_CPU_ONLY of nvimgcodec.h; the Python module does not name it


def parse(encoded: Pixels) -> Any | None:
    """What nvImageCodec reads in an image's header, a CodeStream; None where it refuses."""
    codec = _codec()
    if codec is None or not len(encoded):
        return None
    try:
        stream = codec.module.CodeStream(encoded)
        stream.codec_name, stream.height  # noqa: B018  (it parses when it is first asked)
    except RuntimeError:
        return None
    return stream


def mentions_exif(encoded: Pixels) -> bool:
    """Whether an image may hold EXIF, as in a JPEG, a PNG or a WebP."""
    content = encoded.tobytes()
    return any(mark in content for mark in (b"Exif", b"eXIf", b"EXIF"))


def _nvimagecodec(encoded: Pixels, height: int, width: int, window: Box, exif: bool) -> Pixels | None:
    """The window's pixels, or None where the decoder refuses."""
    codec, stream = _codec(), parse(encoded)
    if codec is None or stream is None:
        return None
    if stream.codec_name == "jpeg" and stream.num_channels == 4:
        return None  # without Adobe's marker nvImageCodec takes CMYK for inverted, as with it; Pillow knows
    if exif and mentions_exif(encoded):
        return None  # of damaged EXIF each reads another orientation; the caller's is Pillow's
    top, left, tall, wide = window
    try:
        # Pillow, and so torchvision, turns every TIFF upright by its tag.
        upright = stream.codec_name == "tiff"
        stored = (stream.height, stream.width)
        if stored != (height, width) and not (upright and stored == (width, height)):
            return None
        if (tall, wide) != (height, width):
            stream = stream.get_sub_code_stream(
                image_idx=0, region=codec.module.Region(top, left, top + tall, left + wide)
            )
        decoded = codec.decoder.decode(stream, params=codec.params[upright])
    except RuntimeError:
        return None
    if decoded is None:
        return None
    pixels: Pixels = np.asarray(decoded)
    return pixels if pixels.shape == (tall, wide, 3) and pixels.dtype == np.uint8 else None


def _pillow(encoded: Pixels, height: int, width: int, window: Box, exif: bool) -> Pixels:
    """The window's pixels by Pillow, which decodes the whole image."""
    try:
        with Image.open(io.BytesIO(encoded.tobytes()), formats=FORMATS) as opened:
            image = ImageOps.exif_transpose(opened) if exif else opened
            if image.size != (width, height):
                raise DecodeError(
                    f"it is {image.size[0]} x {image.size[1]} pixels, but {width} x {height} were expected; "
                    "the file has changed since it was indexed"
                )
            top, left, tall, wide = window
            return np.array(image.convert("RGB").crop((left, top, left + wide, top + tall)))
    except DecodeError:
        raise
    except Exception as error:  # Pillow's plugins raise whatever their parsers do on damaged bytes
        reason = explain_damage(encoded.tobytes()) or f"it can't be decoded ({type(error).__name__}: {error})"
        raise DecodeError(reason) from error
