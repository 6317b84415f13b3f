"""The DALI pipeline definition: decode, crop, resize, flip, normalize, fed with bytes and boxes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, pipeline_def, tensors, types

from gpupipe.recipe import Recipe

__all__ = ["PLACEHOLDER", "as_dali", "build_pipeline", "placeholder"]

PLACEHOLDER = Path(__file__).with_name("placeholder.jpg")
"""A 1 x 1 JPEG that stands in for rows that DALI must not see."""

DTYPES = {
    "float32": types.DALIDataType.FLOAT,
    "float16": types.DALIDataType.FLOAT16,
    "bfloat16": types.DALIDataType.UINT8,  # DALI has none: it gives the pixels, and `kernels.finish` the rest
    "uint8": types.DALIDataType.UINT8,
}


def placeholder() -> NDArray[np.uint8]:
    """The bytes of `PLACEHOLDER`."""
    return np.fromfile(PLACEHOLDER, np.uint8)


def as_dali(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs with the encoded images as one of DALI's own lists, which it takes faster than a list of arrays."""
    encoded = inputs[0]
    if isinstance(encoded, list):
        encoded = tensors.TensorListCPU([tensors.TensorCPU(data) for data in encoded])
    return encoded, *inputs[1:]


def build_pipeline(feed: Callable[[], tuple[Any, ...]], as_paths: bool, **options: Any) -> Any:
    """A built pipeline; `options` are those of `_graph`.

    Its outputs are the images, finished as far as DALI can, and with `as_paths` the bytes that each file has.

    feed: returns the next batch's encoded images (or paths), window starts and shapes (y, x; int32), region starts
    and ends within the window (y, x; float32) and mirror flags (int32); its StopIteration ends an epoch. The arrays
    must stay alive until the batch is out.
    """
    pipeline = _graph(feed=feed, as_paths=as_paths, exec_dynamic=True, **options)
    pipeline.build()
    return pipeline


@pipeline_def  # type: ignore[untyped-decorator]
def _graph(feed: Callable[[], tuple[Any, ...]], as_paths: bool, recipe: Recipe, mixed: bool, crop_decode: bool) -> Any:
    encoded, start, shape, roi_start, roi_end, mirror = fn.external_source(
        source=feed,
        num_outputs=6,
        batch=True,
        no_copy=True,
        dtype=[types.UINT8, types.INT32, types.INT32, types.FLOAT, types.FLOAT, types.INT32],
        ndim=[1, 1, 1, 1, 1, 0],
    )
    if as_paths:
        encoded = fn.io.file.read(encoded)
    decode = dict(device="mixed" if mixed else "cpu", output_type=types.RGB, adjust_orientation=recipe.exif_orientation)
    if crop_decode:
        images = fn.decoders.image_slice(encoded, start, shape, axis_names="HW", **decode)
    else:
        images = fn.slice(fn.decoders.image(encoded, **decode), start, shape, axis_names="HW")
    images = fn.resize(
        images,
        size=list(recipe.crop.output_size),
        roi_start=roi_start,
        roi_end=roi_end,
        interp_type=types.INTERP_LINEAR,
        antialias=True,
        subpixel_scale=False,
    )
    images = fn.crop_mirror_normalize(images, mirror=mirror, **_finish_options(recipe))
    return (images, encoded.shape()) if as_paths else images


def _finish_options(recipe: Recipe) -> dict[str, Any]:
    """What `crop_mirror_normalize` needs: statistics in levels of 0 to 255, dtype, layout."""
    finished = recipe.dtype in ("float32", "float16")
    mean, std = recipe.statistics if finished else ((0.0,) * 3, (1 / 255,) * 3)
    interleaved = recipe.dtype == "bfloat16" or recipe.layout == "channels_last"
    return dict(
        dtype=DTYPES[recipe.dtype],
        output_layout="HWC" if interleaved else "CHW",
        mean=[255 * m for m in mean],
        std=[255 * s for s in std],
    )
