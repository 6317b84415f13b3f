"""The DALI pipeline definition: decode, crop, resize, flip, normalize, fed with bytes and boxes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, pipeline_def, tensors, types

from gpupipe.recipe import Recipe, Views

__all__ = ["PLACEHOLDER", "as_dali", "build_pipeline", "finishes", "placeholder"]

PLACEHOLDER = Path(__file__).with_name("placeholder.jpg")
"""A 1 x 1 JPEG that stands in for rows that DALI must not see."""

DTYPES = {
    "float32": types.DALIDataType.FLOAT,
    "float16": types.DALIDataType.FLOAT16,
    "uint8": types.DALIDataType.UINT8,
}
FILTERS = {"bilinear": types.INTERP_LINEAR, "bicubic": types.INTERP_CUBIC}

# dtype and dimensions of what a view is fed with: window start and shape, region start and end, mirror.
GEOMETRY = ((types.INT32, 1), (types.INT32, 1), (types.FLOAT, 1), (types.FLOAT, 1), (types.INT32, 0))


def finishes(recipe: Recipe) -> bool:
    """Whether DALI can bring a view into its final form: it has no bfloat16, and nothing may come in between."""
    return recipe.dtype in DTYPES and not (recipe.augmentations or recipe.erasing or recipe.mixing)


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

    Its outputs are the images of each view, in the recipe's form where `finished`, else uint8 HWC, and with `as_paths`
    the bytes that each file has.

    feed: returns the next batch's encoded images (or paths), and for each view window starts and shapes (y, x; int32),
    region starts and ends within the window (y, x; float32) and mirror flags (int32); its StopIteration ends an epoch.
    The arrays must stay alive until the batch is out.
    """
    pipeline = _graph(feed=feed, as_paths=as_paths, exec_dynamic=True, **options)
    pipeline.build()
    return pipeline


@pipeline_def  # type: ignore[untyped-decorator]
def _graph(
    feed: Callable[[], tuple[Any, ...]], as_paths: bool, views: Views, finished: bool, mixed: bool, crop_decode: bool
) -> Any:
    encoded, *geometry = fn.external_source(
        source=feed,
        num_outputs=1 + len(views) * len(GEOMETRY),
        batch=True,
        no_copy=True,
        dtype=[types.UINT8, *(dtype for _ in views for dtype, _ in GEOMETRY)],
        ndim=[1, *(ndim for _ in views for _, ndim in GEOMETRY)],
    )
    if as_paths:
        encoded = fn.io.file.read(encoded)
    upright = views[0].exif_orientation
    decode = dict(device="mixed" if mixed else "cpu", output_type=types.RGB, adjust_orientation=upright)
    whole = None if crop_decode else fn.decoders.image(encoded, **decode)
    outputs = []
    for view, recipe in enumerate(views):
        start, shape, roi_start, roi_end, mirror = geometry[view * len(GEOMETRY) : (view + 1) * len(GEOMETRY)]
        if whole is None:
            images = fn.decoders.image_slice(encoded, start, shape, axis_names="HW", **decode)
        else:
            images = fn.slice(whole, start, shape, axis_names="HW")
        images = fn.resize(
            images,
            size=list(recipe.crop.output_size),
            roi_start=roi_start,
            roi_end=roi_end,
            interp_type=FILTERS[recipe.crop.interpolation],
            antialias=True,
            subpixel_scale=False,
        )
        outputs.append(fn.crop_mirror_normalize(images, mirror=mirror, **_finish_options(recipe, finished)))
    return (*outputs, encoded.shape()) if as_paths else tuple(outputs)


def _finish_options(recipe: Recipe, finished: bool) -> dict[str, Any]:
    """What `crop_mirror_normalize` needs: statistics in levels of 0 to 255, dtype, layout."""
    normalized = finished and recipe.dtype != "uint8"
    mean, std = recipe.statistics if normalized else ((0.0,) * 3, (1 / 255,) * 3)
    interleaved = not finished or recipe.layout == "channels_last"
    return dict(
        dtype=DTYPES[recipe.dtype] if finished else types.DALIDataType.UINT8,
        output_layout="HWC" if interleaved else "CHW",
        mean=[255 * m for m in mean],
        std=[255 * s for s in std],
    )
