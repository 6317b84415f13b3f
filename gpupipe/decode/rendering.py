"""A batch of uint8 pixels on the CPU: by the C++ kernel, and what that refuses one by one through other decoders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.decode.augmenting import augmented as with_augmentations
from gpupipe.decode.engine import EngineBatch, Job, fetch, job_plan
from gpupipe.decode.pixels import DecodeError, render
from gpupipe.errors import SampleError
from gpupipe.host.tracing import Stage, who
from gpupipe.host.whereabouts import note
from gpupipe.kernels import BadImage, Crops, decode_crops, native
from gpupipe.plan import Plan
from gpupipe.recipe import Recipe, Views
from gpupipe.sources.headers import explain_damage
from gpupipe.workers.board import BATCH

if TYPE_CHECKING:
    from gpupipe.sources import SampleMeta, Source

__all__ = ["render_batch"]

NOTHING = np.empty(0, np.uint8)


def render_batch(
    source: Source, views: Views, job: Job, out: Sequence[torch.Tensor], *, augmented: bool, threads: int = 1
) -> EngineBatch:
    """Make the batch of a job into `out`: of each view uint8 (N, height, width, 3), on the CPU, contiguous.

    augmented: whether to apply the recipes' augmentations too. Rows that can't be made are in the batch's failures.
    """
    with Stage("read") as read:
        encoded, meta, failures = fetch(source, job)
    with Stage("decode") as decode:
        note(BATCH)
        failures |= _decoded(source, views, job, encoded, meta, out, threads)
        for view, images in enumerate(out if augmented else ()):
            with_augmentations(views[view], job, view, images, threads)  # in place
    return EngineBatch(
        tuple(out),
        torch.from_numpy(meta.labels.astype(np.int64)),
        failures,
        augmented=augmented,
        bytes_read=sum(data.nbytes for data in encoded if data is not None),
        spans=(read.span(who()), decode.span(who())),
    )


def _decoded(
    source: Source,
    views: Views,
    job: Job,
    encoded: list[NDArray[np.uint8] | None],
    meta: SampleMeta,
    out: Sequence[torch.Tensor],
    threads: int,
) -> dict[int, SampleError]:
    """Make the rows whose bytes are there; those that can't be made, and why."""
    plans = [job_plan(recipe, job, meta, view) for view, recipe in enumerate(views)]
    reasons: dict[int, str] = {}
    rest: Iterable[int] = range(len(encoded))
    if native.library() is not None:
        rest = refused = _by_kernel(encoded, meta, plans, views[0], out, threads)
        reasons = {row: bad.message for row, bad in refused.items() if bad.code == "limit"}  # for others too
    for row in rest:
        data = encoded[row]
        if data is None or row in reasons:
            continue
        note(int(job.indices[row]))
        try:
            _one_by_one(data, meta, plans, row, views[0].exif_orientation, [images[row] for images in out])
        except DecodeError as error:
            reasons[row] = str(error)
    indices = job.indices.tolist()
    return {row: SampleError(indices[row], source.location(indices[row]), text) for row, text in reasons.items()}


def _by_kernel(
    encoded: list[NDArray[np.uint8] | None],
    meta: SampleMeta,
    plans: list[Plan],
    recipe: Recipe,
    out: Sequence[torch.Tensor],
    threads: int,
) -> dict[int, BadImage]:
    """Make what the kernel can; the rows that it refused."""
    return decode_crops(
        [NOTHING if data is None else data for data in encoded],
        [_crops(planned, images) for planned, images in zip(plans, out, strict=True)],
        orientations=meta.orientations if recipe.exif_orientation else None,
        sizes=np.stack([meta.heights, meta.widths], axis=1),
        decode=recipe.decode,
        threads=threads,
    )[0].failures


def _crops(plan: Plan, out: torch.Tensor) -> Crops:
    return Crops(plan.windows, plan.size, plan.flips, plan.resized, plan.anchors, plan.filter, out.numpy())


def _one_by_one(
    data: NDArray[np.uint8], meta: SampleMeta, plans: list[Plan], row: int, exif: bool, out: list[torch.Tensor]
) -> None:
    height, width = int(meta.heights[row]), int(meta.widths[row])
    if height == 0:
        raise DecodeError(explain_damage(data.tobytes()))
    if exif and meta.orientations[row] >= 5:
        height, width = width, height
    render(data, height, width, [planned.row(row) for planned in plans], exif, out)
