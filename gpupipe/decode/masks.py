"""From a mask as a source has it to an array of its field's dtype, and how it moves after its crop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.lib.format import MAGIC_PREFIX
from numpy.typing import NDArray
from PIL import UnidentifiedImageError

from gpupipe.batch import Mask
from gpupipe.decode.costs import too_many_pixels
from gpupipe.host.limits import Limits
from gpupipe.kernels import augment
from gpupipe.kernels.png import decode_png
from gpupipe.plan import Moves
from gpupipe.sources.headers import FORMATS, opened_image

__all__ = ["mask_pixels", "move_masks"]

# Of one channel. A palette's numbers are the classes, so its colours are not looked at.
MODES = ("1", "L", "P", "I", "I;16")


def mask_pixels(value: NDArray[Any], field: Mask, limits: Limits) -> NDArray[Any]:
    """(height, width) in the field's dtype, of an encoded file, uint8 (bytes,), or of an array (height, width).

    Raises ValueError for what is no mask of one channel, has more pixels than are allowed, or holds values that the
    dtype can't.
    """
    pixels = _decoded(value, limits) if value.ndim == 1 else value
    if pixels.ndim == 3 and 1 in (pixels.shape[0], pixels.shape[2]):  # with the one channel
        pixels = pixels[0] if pixels.shape[0] == 1 else pixels[..., 0]
    if pixels.ndim != 2:
        raise ValueError(f"it has the shape {pixels.shape}; a mask is (height, width)")
    typed = pixels.astype(field.dtype, copy=False)
    if typed is not pixels and field.dtype != "bool" and not np.array_equal(typed, pixels):
        raise ValueError(
            f"it holds values from {pixels.min()} to {pixels.max()}, which dtype={field.dtype!r} can't; pass another"
        )
    return typed


def move_masks(masks: Sequence[NDArray[Any]], moves: Moves, ignore: int) -> None:
    """N masks (height, width) after the crops of their images, in place, as these move. ignore: what pixels become
    that come from outside.

    By the kernels that move images, which see three bytes of each number as colors: so a mask fits its image to the
    pixel, and numbers of any dtype stay what they are.
    """
    image = torch.empty(0, device="cpu")
    for row in np.flatnonzero(moves.ops.any(axis=1)).tolist():
        fill = np.array([ignore], masks[row].dtype).view(np.uint8)
        if image.shape[1:3] != masks[row].shape:
            image = torch.zeros((1, *masks[row].shape, 3), dtype=torch.uint8, device="cpu")
        numbers = masks[row][..., None].view(np.uint8)  # (height, width, bytes)
        for first in range(0, len(fill), 3):
            some = numbers[..., first : first + 3]
            pixels = image.numpy()[0, ..., : some.shape[-1]]
            pixels[:] = some
            color = [*fill[first : first + 3], 0, 0][:3]
            augment(image, moves.ops[row, None], moves.values[row, None], fill=color, out=image, threads=1)
            some[:] = pixels


def _decoded(encoded: NDArray[np.uint8], limits: Limits) -> NDArray[Any]:
    plain = decode_png(encoded, limits.max_pixels)
    if plain is not None:
        return plain
    if encoded[: len(MAGIC_PREFIX)].tobytes() == MAGIC_PREFIX:
        raise ValueError("it is an .npy array; a mask is an image file, as .png, and arrays are gpupipe.Array")
    try:
        with opened_image(encoded.data) as image:
            if problem := too_many_pixels((image.height, image.width), limits):
                raise ValueError(problem)
            image.load()
            if image.mode not in MODES:
                raise ValueError(f"it is an image of mode {image.mode}; a mask has one channel")
            return np.asarray(image)
    except ValueError:
        raise
    except UnidentifiedImageError:  # whose own text has an address in it
        raise ValueError(f"it is no image file ({', '.join(FORMATS)})") from None
    except Exception as error:  # Pillow's plugins raise whatever their parsers do on damaged bytes
        raise ValueError(f"it can't be decoded ({type(error).__name__}: {error})") from error
