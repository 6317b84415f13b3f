"""Files that would cost more than is allowed are refused here, before any decoder sees them: so all engines agree."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PillowImage

from gpupipe.batch import Clip, Image, Images
from gpupipe.decode.headers import NOTHING
from gpupipe.errors import ConfigError
from gpupipe.host.limits import Limits
from gpupipe.kernels import jpeg_costs
from gpupipe.sources.headers import opened_image

if TYPE_CHECKING:
    from gpupipe.decode.fetching import Fetched

__all__ = ["check_costs", "check_limits", "each_image", "too_many_pixels"]

# Bytes a pixel at the peak, of the whole image, by the CPU's decoder that needs most (see `Limits`); blocks of a JPEG
# that are kept come to it.
PLAIN, TURNED, OTHER_COLORS = 7, 10, 12  # JPEGs
USUAL, WIDE, MOST = 11, 18, 20
BLOCK = 128
MODERN = ("JPEG2000", "AVIF")


def each_image(images: Images) -> Images:
    """The images one by one, where rows are clips."""
    return images.flat if images.data and isinstance(images.data[0], Clip) else images


def check_limits(limits: Limits | None) -> Limits:
    """The same, or the usual ones, of no more pixels than Pillow takes. Raises ConfigError for what is none, or where
    more pixels are asked for."""
    if not isinstance(limits, Limits | None):
        raise ConfigError(f"limits={limits!r} must be a gpupipe.Limits, or None for the usual ones")
    allowed = PillowImage.MAX_IMAGE_PIXELS
    if limits is None:
        usual = Limits()
        return usual if allowed is None else replace(usual, max_pixels=min(usual.max_pixels, int(2 * allowed)))
    if allowed is not None and limits.max_pixels > 2 * allowed:
        raise ConfigError(
            f"Limits: max_pixels={limits.max_pixels}, but Pillow refuses more than {2 * allowed} pixels; set "
            f"PIL.Image.MAX_IMAGE_PIXELS = {-(-limits.max_pixels // 2)} before, and where workers are spawned in "
            "worker_init_fn, too"
        )
    return limits


def check_costs(fetched: Fetched, name: str, field: Image) -> None:
    """Rows of an image field whose files would cost more than the limits allow are failures."""
    images, limits = each_image(fetched.columns[name]), fetched.job.limits
    if not len(images) or images.sizes is None:
        return
    files = [data if data.ndim == 1 else NOTHING for data in images.data]
    channels, heights, widths, kept, work, scans = jpeg_costs(files).T
    is_jpeg = channels > 0
    sides = np.where(is_jpeg[:, None], np.stack([heights, widths], axis=1), images.sizes[:, :2])
    pixels = sides.prod(axis=1)
    memory = pixels * np.where(images.sizes[:, 2] > 1, TURNED, PLAIN) + BLOCK * kept
    memory = np.where((channels == 1) | (channels == 3), memory, OTHER_COLORS * pixels * is_jpeg)
    for row in np.flatnonzero(~is_jpeg & (MOST * pixels > limits.max_memory)).tolist():
        memory[row] = _bytes_a_pixel(files[row], field) * pixels[row]
    costs = {"max_pixels": pixels, "max_memory": memory, "max_scans": scans, "max_work": work}
    over = np.logical_or.reduce([cost > getattr(limits, limit) for limit, cost in costs.items()])
    for place in np.flatnonzero(over).tolist():
        if not len(files[place]):
            continue
        limit = next(limit for limit, cost in costs.items() if cost[place] > getattr(limits, limit))
        height, width = sides[place].tolist()
        said = f"{name!r}: " if len(fetched.source.fields.images) > 1 else ""
        said += f"it has {width} x {height} pixels" + _more(limit, int(costs[limit][place]), int(scans[place]))
        row = place * len(fetched.job) // len(images)
        fetched.fail(row, *_refusal(said, limit, limits))


def too_many_pixels(size: tuple[int, int], limits: Limits) -> str | None:
    """Why an image of that height and width is refused, if it is."""
    height, width = size
    if height * width <= limits.max_pixels:
        return None
    return ", ".join(_refusal(f"it has {width} x {height} pixels", "max_pixels", limits))


def _more(limit: str, cost: int, scans: int) -> str:
    """What of it is too much."""
    return {
        "max_memory": f", whose decoding takes {cost:,} bytes of memory",
        "max_scans": f" in {scans:,} scans",
        "max_work": f", whose decoding goes through {cost:,} blocks in {scans:,} scan{'s' * (scans > 1)}",
    }.get(limit, "")


def _refusal(said: str, limit: str, limits: Limits) -> tuple[str, str]:
    """Why, and what can be done."""
    allowed = getattr(limits, limit)
    return (
        f"{said}, more than the {allowed:,} that are allowed",
        f"make it smaller or remove it, or pass limits=gpupipe.Limits({limit}=...)",
    )


def _bytes_a_pixel(data: NDArray[np.uint8], field: Image) -> int:
    """Of what is no JPEG, where it matters; 0 for what will not be decoded."""
    if not len(data):
        return 0
    try:
        with opened_image(data.data) as image:
            if image.format in MODERN:
                return MOST
            blended = field.background is not None and image.has_transparency_data
            return WIDE if blended or image.mode[:1] in "IF" else USUAL
    except Exception:  # damaged files make Pillow raise nearly every kind
        return 0
