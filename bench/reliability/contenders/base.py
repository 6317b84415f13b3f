"""What the cases ask of a library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from reliability.case import NoFunction
from reliability.data import Numbered

__all__ = ["Setup", "Stored", "Stream"]


@dataclass(frozen=True)
class Setup:
    """One rank's share of a dataset, in batches.

    batch_size: samples per batch of this rank.
    options:    for the DataLoader that each contender has, in its words: prefetch_factor, timeout, persistent_workers,
                multiprocessing_context. Left out where there are no workers.
    folder:     for files that a contender makes of the dataset.
    """

    dataset: Numbered
    batch_size: int
    folder: Path
    rank: int = 0
    world: int = 1
    workers: int = 0
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def global_batch(self) -> int:
        """Samples a step over all ranks."""
        return self.batch_size * self.world

    @property
    def worker_options(self) -> Mapping[str, Any]:
        """`options` where there are workers."""
        return self.options if self.workers else {}


@dataclass(frozen=True)
class Stored:
    """Where a dataset lies that a contender has written, and how it is read from there.

    server: http://host:port, which answers GET and HEAD, also those of S3's clients, whatever keys they have.
    bucket: the path below it, and the name of a bucket to these clients.
    cache:  a folder for what was read; None for what a contender does where it is told nothing.
    limit:  bytes that the cache may take; None for as many as it likes.
    query:  behind the URL of each object, where the contender reads by HTTP: the right to read it, a secret.
    role:   a URL that gives clients of S3 credentials, which end, as the role of a container does; where it is set, all
            read by S3.
    local:  the folder that has the data itself; where it is set no storage is asked.
    urls:   shards to read instead, where a contender takes URLs.
    kind:   the form of the data, of the contender's `kinds`; "" for its first.
    batch:  samples in a batch.
    size:   pixels of a side of what comes out.
    skip:   whether bad samples are passed over, as the contender's documentation has it; else they end the epoch.
    options: for the contender's own loader, in its words; cases that use them ask some contenders only.
    """

    server: str = ""
    bucket: str = ""
    cache: Path | None = None
    limit: int | None = None
    workers: int = 1
    query: str = ""
    role: str = ""
    local: Path | None = None
    urls: tuple[str, ...] = ()
    kind: str = ""
    batch: int = 4
    size: int = 8
    skip: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


class Stream(ABC):
    """A library's loader as its documentation recommends it: each iteration gives the sample numbers of each batch.

    A library without one of these functions raises NoFunction.
    """

    name: ClassVar[str]
    library: ClassVar[str] = ""  # that its functions import, where its module does not
    kinds: ClassVar[tuple[str, ...]] = ()  # the forms of data that it reads, the one that it is for first

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    @abstractmethod
    def __iter__(self) -> Iterator[list[int]]:
        """An epoch."""

    @property
    def padding(self) -> int:
        """How many rows at the end of the batch given last the library itself marks as repeats."""
        return 0

    @abstractmethod
    def set_epoch(self, epoch: int) -> None:
        """The next iteration gives this epoch."""

    def state(self) -> Any:
        """Where the stream stands, for `load`."""
        raise NoFunction(f"{self.name} has no state")

    def load(self, state: Any, epoch: int) -> None:
        """The next iteration goes on in `epoch` where another stream stood when its `state` was taken."""
        raise NoFunction(f"{self.name} has no state")

    @classmethod  # noqa: B027  most keep nothing
    def prepare(cls) -> None:
        """Called before open files and threads are counted, for what stays for the life of a process."""

    @classmethod
    def kind_of(cls, kind: str) -> str:
        """The form of data that is asked for: its first one for "". Raises NoFunction if it has none such."""
        if not cls.kinds or (kind and kind not in cls.kinds):
            raise NoFunction(f"{cls.name} reads no {kind or 'files'}")
        return kind or cls.kinds[0]

    @classmethod
    def write(cls, folder: Path, samples: Mapping[int, bytes], kind: str = "", beside: Any = None) -> None:
        """These images, by number, as the files of a dataset, on a disk or for a storage.

        beside: an object that is written as a pickle beside each.
        """
        raise NoFunction(f"{cls.name} reads no files")

    @classmethod
    def read(cls, stored: Stored) -> Iterator[tuple[int, float]]:
        """One epoch of what was written: the number and the mean gray level of each sample, as they come.

        The level is that of `size` pixels in the centre, the shorter side resized to them.
        """
        raise NoFunction(f"{cls.name} reads no files")

    def close(self) -> None:  # noqa: B027  most have nothing to close
        """Give back processes, threads and files, as the library's users do."""

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
