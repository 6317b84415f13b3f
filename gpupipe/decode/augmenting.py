"""The recipe's augmentations of one view of a batch: in a worker, or in the consumer's process on a GPU."""

from __future__ import annotations

import torch

from gpupipe.batch import Job
from gpupipe.kernels import augment
from gpupipe.plan import augmentation
from gpupipe.recipe import Recipe

__all__ = ["THREADS", "augmented"]

# On one thread: where workers hold the CPUs, more make it wait for them (1,434 img/s against 1,321 on 2 cores).
THREADS = 1


def augmented(
    recipe: Recipe, job: Job, view: int, field: int, images: torch.Tensor, threads: int = THREADS
) -> torch.Tensor:
    """The images of one view, uint8 (N, height, width, 3), with the recipe's augmentations; field: see `Schema.number`.

    On the CPU in place; on a GPU in new memory, which spares the pass that an operation in place needs there.
    """
    drawn = augmentation(recipe, job.seed, job.epoch, job.positions, view, field)
    if drawn is None:
        return images
    out = images if images.device.type == "cpu" else None
    return augment(images, drawn.ops, drawn.values, fill=drawn.fill, out=out, threads=threads)
