"""What every engine takes and gives: jobs in, batches out, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gpupipe.batch import Batch, Job

if TYPE_CHECKING:
    import torch

__all__ = ["Batches", "Engine"]


@dataclass(frozen=True)
class Batches:
    """The batches of some jobs, each with its job: `next` gives one after the other, until StopIteration.

    What the iterator of the jobs raises is raised in the place of the batch that it kept from coming, after all before.
    close: nothing more is wanted of them; may be called twice.
    """

    next: Callable[[], Batch]
    close: Callable[[], None]

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Batch:
        return self.next()


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
        return None

    def interrupt(self) -> None:
        """From another thread: whoever waits in the stream for something that may never come is to end soon."""
        return

    def close(self) -> None:
        """Give back threads, processes and memory. May be called twice."""
        ...
