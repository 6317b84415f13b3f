"""What a worker process is for, as far as this room knows it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch

from gpupipe.batch import Batch, Columns, Job

__all__ = ["Plane", "Work", "new_planes"]


@dataclass(frozen=True)
class Plane:
    """An array of fixed size that each row of a batch has: `shape` and `dtype` of one row, in one view of a field."""

    name: str
    view: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class Work(Protocol):
    """Makes batches. It is sent to the worker processes, by pickle where they are no forks.

    layout: the planes of a batch; those of a field in the order of its views. Without any, batches are objects of any
            kind, each made as a whole.
    in_parts: whether several workers may make a batch together, each some of its rows.
    """

    @property
    def layout(self) -> tuple[Plane, ...]: ...

    @property
    def in_parts(self) -> bool: ...

    def __call__(self, job: Job, out: Columns) -> Batch:
        """The batch of a job, collated or not; not where the job is a part of one, `whole` being False.

        out: of each name in the layout a tuple with the tensor (N, *shape) of each view, to be written in place. They
             are what the batch's columns have under these names; all else that these have is small.
        """
        ...


def new_planes(layout: Iterable[Plane], count: int, pinned: bool = False) -> Columns:
    """New memory for the planes of `count` rows: by name a tuple with the tensor of each view."""
    planes: Columns = {}
    for plane in layout:
        view = torch.empty((count, *plane.shape), dtype=plane.dtype, device="cpu", pin_memory=pinned)
        planes[plane.name] = (*planes.get(plane.name, ()), view)
    return planes
