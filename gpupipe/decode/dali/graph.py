"""The DALI pipeline definition: decode, crop, resize, flip, fed with bytes and boxes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, pipeline_def, tensors, types

from gpupipe.recipe import Recipe, Views

__all__ = ["FILTERS", "as_dali", "build_pipeline", "geometry", "placeholder"]

FILTERS = np.array([[int(types.INTERP_LINEAR)], [int(types.INTERP_CUBIC)]], np.int32)
"""DALI's numbers of a bilinear and of a bicubic filter."""

# What a view is fed with: window start and shape, region start and end, filter; where its crop has a fill, the padded
# window's start and shape in that window, the size of what is shown of it, and the start of the output in that; where
# it varies, the size of the output. Of each the type, and what a row has that DALI must not see.
GEOMETRY = ((types.INT32, 0), (types.INT32, 1), (types.FLOAT, 0), (types.FLOAT, 1), (types.INT32, 1))
PADDING = ((types.INT32, 0), (types.INT32, 1), (types.FLOAT, 1), (types.INT32, 0))
OUTPUT = (types.INT32, 1)


def geometry(recipe: Recipe) -> tuple[tuple[Any, int], ...]:
    """The type of each array that a view is fed with, and what is in it beside the placeholder."""
    padding = () if recipe.crop.fill is None else PADDING
    return (*GEOMETRY, *padding, OUTPUT) if recipe.crop.varies else (*GEOMETRY, *padding)


@cache
def placeholder() -> NDArray[np.uint8]:
    """A 1 x 1 JPEG that stands in for rows that DALI must not see."""
    return np.fromfile(Path(__file__).with_name("placeholder.jpg"), np.uint8)


def as_dali(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs with the encoded images as DALI's own lists, which it takes faster than lists of arrays."""
    return tuple(
        tensors.TensorListCPU([tensors.TensorCPU(data) for data in given]) if isinstance(given, list) else given
        for given in inputs
    )


def build_pipeline(feed: Callable[[], tuple[Any, ...]], **options: Any) -> Any:
    """A built pipeline; `options` are those of `_graph`, see `gpupipe.Decoders` for the last two, and DALI's own.

    Its outputs are the images of each view, uint8 HWC, of one image field after the other; where sizes vary, rows of
    the crop's `most_pixels` times 3 that begin with them.

    feed: returns for each image field the next batch's encoded images, a list, and for each view window starts and
    shapes (y, x; int32), region starts and ends within the window (y, x; float32; a region that ends left of its start
    is mirrored) and filters (of `FILTERS`), and what `PADDING` and `OUTPUT` say; its StopIteration ends an epoch. The
    arrays must stay alive until the batch is out.
    fields: how many image fields there are.
    """
    pipeline = _graph(feed=feed, exec_dynamic=True, **options)
    pipeline.build()
    return pipeline


@pipeline_def  # type: ignore[untyped-decorator]
def _graph(
    feed: Callable[[], tuple[Any, ...]],
    views: Views,
    mixed: bool,
    crop_decode: bool,
    hw_decoder_load: float,
    fields: int = 1,
) -> Any:
    each = (types.UINT8, *(kind for recipe in views for kind, _ in geometry(recipe)))
    inputs = fn.external_source(
        source=feed, num_outputs=fields * len(each), batch=True, no_copy=True, dtype=[*(each * fields)], ndim=1
    )
    decode: dict[str, Any] = dict(
        device="mixed" if mixed else "cpu", output_type=types.RGB, adjust_orientation=views[0].exif_orientation
    )
    if mixed:
        decode["hw_decoder_load"] = hw_decoder_load
    outputs = []
    for first in range(0, len(inputs), len(each)):
        encoded, *rest = inputs[first : first + len(each)]
        outputs += _field(encoded, rest, views, crop_decode, decode)
    return tuple(outputs)


def _field(encoded: Any, arrays: list[Any], views: Views, crop_decode: bool, decode: dict[str, Any]) -> list[Any]:
    """The views of one image field."""
    whole = None if crop_decode else fn.decoders.image(encoded, **decode)
    given = iter(arrays)
    return [_view(encoded, whole, recipe, [next(given) for _ in geometry(recipe)], decode) for recipe in views]


def _view(encoded: Any, whole: Any, recipe: Recipe, arrays: list[Any], decode: dict[str, Any]) -> Any:
    start, shape, roi_start, roi_end, filters, *rest = arrays
    crop = recipe.crop
    size: Any = rest.pop() if crop.varies else list(crop.output_size)
    if whole is None:
        images = fn.decoders.image_slice(encoded, start, shape, axis_names="HW", **decode)
    else:
        images = fn.slice(whole, start, shape, axis_names="HW")
    if rest:
        padded_start, padded_shape, shown, at = rest
        fill: Any = dict(axis_names="HW", out_of_bounds_policy="pad", fill_values=list(crop.color or ()))
        images = fn.slice(images, padded_start, padded_shape, **fill)
    resized = fn.resize(
        images,
        size=shown if rest else fn.cast(size, dtype=types.FLOAT) if crop.varies else size,
        roi_start=roi_start,
        roi_end=roi_end,
        interp_type=fn.cast(filters, dtype=types.INTERP_TYPE),
        antialias=True,
        subpixel_scale=False,
    )
    view = fn.slice(resized, start=at, shape=size, **fill) if rest else resized
    return fn.pad(fn.reshape(view, shape=[-1]), axes=0, shape=[3 * crop.most_pixels]) if crop.varies else view
