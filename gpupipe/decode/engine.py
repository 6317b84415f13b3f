"""What every engine takes and gives: jobs in, batches out, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from gpupipe.batch import Batch, Job

if TYPE_CHECKING:
    import torch

__all__ = ["Batches", "Engine"]


class Batches(Protocol):
    """The batches of some jobs, each with its job.

    What the iterator of the jobs raises is raised in the place of the batch that it kept from coming, after all before.
    """

    def __iter__(self) -> Iterator[Batch]: ...

    def __next__(self) -> Batch: ...

    def close(self) -> None:
        """Nothing more is wanted of them. May be called twice."""
        ...


class Engine(Protocol):
    """Makes batches. It knows its source and recipe, and nothing of orders, epochs' ends or ranks."""

    name: str
    device: torch.device

    def stream(self, jobs: Iterable[Job]) -> Batches:
        """A batch for each job, in their order. It may take jobs ahead of the batches that it has given.

        What makes them is at work when this returns.
        """
        ...

    def ready(self) -> int | None:
        """Batches of the current stream that are made and wait to be taken; None where the engine can't tell."""
        ...

    def interrupt(self) -> None:
        """From another thread: whoever waits in the stream for something that may never come is to end soon."""
        ...

    def close(self) -> None:
        """Give back threads, processes and memory. May be called twice."""
        ...
