"""Samples in a sequence: an IterableDataset, or a function that makes iterators. None has a number to ask for it by."""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Columns, Field
from gpupipe.batch.batch import ENDLESS
from gpupipe.errors import ConfigError, DataError, SampleError
from gpupipe.host.checks import flag, whole
from gpupipe.sources.dataset import DatasetSource

__all__ = ["Stream", "StreamSource", "is_iterable_dataset"]

WANTED = (
    "and no IterableDataset, nor a function of the pass (an int from 0 on) that gives an iterator: pass one of both"
)
HUGGING_FACES = "datasets.iterable_dataset.IterableDataset"
ITERABLE = ("torch.utils.data.dataset.IterableDataset", HUGGING_FACES)

_BEGINNINGS: dict[int, Any] = {}  # by the id of data, which may be neither hashed nor written to, as long as it lives


def is_iterable_dataset(data: Any) -> bool:
    """Whether it is torch's IterableDataset or Hugging Face's, told by name: neither may be there."""
    return _is_named(data, *ITERABLE)


def _is_named(data: Any, *names: str) -> bool:
    return any(f"{kind.__module__}.{kind.__qualname__}" in names for kind in type(data).__mro__)


@dataclass(frozen=True)
class Stream:
    """Data that comes in a sequence, each pass over it from its beginning.

    data:          an IterableDataset, or any iterable that can be iterated over again; or a function of the pass (an
                   int, from 0 on) that gives an iterator. Items are as a dataset's: tuples, dicts. A `set_epoch` that
                   it has is called with the pass before each.
    buffer_size:   samples that are shuffled together, and so are held in memory, encoded; 0: they come in their order.
    epoch_samples: samples of an epoch, which then goes on where the one before has stopped, in the next pass where one
                   has ended. None: each pass is an epoch, whose length shows when it is over.
    stateful:      whether the data has a `state_dict` and a `load_state_dict` that bring it back to the very item, so
                   that a loader which resumes need not read what came before. Not so if the data shuffles in a buffer
                   of its own, as Hugging Face's `shuffle` does: its state loses what is in that. Each pass begins at
                   the state in which a loader has first found the data.

    Every rank reads all of it and keeps its own samples, each of which comes to one rank and one worker, once: the same
    batches on any number of ranks. The process of the loader reads; workers decode. So items should be encoded.
    """

    data: Any
    buffer_size: int = 0
    epoch_samples: int | None = None
    stateful: bool = False

    def __post_init__(self) -> None:
        whole("Stream: buffer_size", self.buffer_size, 0)
        if self.epoch_samples is not None:
            whole("Stream: epoch_samples", self.epoch_samples, 1, ENDLESS)
        if isinstance(self.data, Iterator):
            raise ConfigError(
                f"Stream: data is {type(self.data).__name__}, an iterator, which can be read once: pass a function "
                "that makes one, such as `lambda number: read(...)`"
            )
        if not isinstance(self.data, Iterable) and not _takes_a_pass(self.data):
            raise ConfigError(f"Stream: data is {self.name}, {WANTED}")
        lacking = [name for name in ("state_dict", "load_state_dict") if not callable(getattr(self.data, name, None))]
        if flag("Stream: stateful", self.stateful) and lacking:
            raise ConfigError(f"Stream: stateful=True, but {self.name} has no {' and no '.join(lacking)}; leave it out")

    @property
    def fingerprint(self) -> str:
        """Names it; what it will give nobody knows."""
        return f"stream {getattr(self.data, 'fingerprint', self.name)}"

    @property
    def order(self) -> str:
        """Names what decides the order of its samples, for states."""
        return f"stream(buffer_size={self.buffer_size}, epoch_samples={self.epoch_samples})"

    @property
    def name(self) -> str:
        """Of the data, for messages."""
        return str(getattr(self.data, "__qualname__", type(self.data).__qualname__))

    def beginning(self) -> Any:
        """The data's own state at the beginning of a pass; None where it has none.

        That is the state in which a loader has first found the data, as it later stands where loaders have left it.
        Hugging Face's has another wherever it has been read, if only for a look at an item; it begins by None.
        """
        if not self.stateful or _is_named(self.data, HUGGING_FACES):
            return None
        key = id(self.data)
        if key not in _BEGINNINGS:
            state = copy.deepcopy(self.data.state_dict())
            try:
                weakref.finalize(self.data, _BEGINNINGS.pop, key).atexit = False
            except TypeError:  # there are no weak references to it
                return state
            _BEGINNINGS[key] = state
        return _BEGINNINGS[key]

    def begin(self, number: int, state: Any, beginning: Any) -> Iterator[Any]:
        """A pass, from where a state of the data's own stands; None: from its beginning, to which the state `beginning`
        brings the data, if it is stateful. Raises ConfigError for what is no iterator."""
        set_epoch = getattr(self.data, "set_epoch", None)
        if self.stateful and state is None:  # before the pass is set: it may hold the one in which it was taken
            self.data.load_state_dict(copy.deepcopy(beginning))
        if callable(set_epoch):
            set_epoch(number)
        if self.stateful and state is not None:
            self.data.load_state_dict(copy.deepcopy(state))
        made = self.data if isinstance(self.data, Iterable) else self.data(number)
        if not isinstance(made, Iterable):
            raise ConfigError(f"Stream: {self.name} gave {type(made).__name__} for pass {number}, {WANTED}")
        return iter(made)


def _takes_a_pass(function: Any) -> bool:
    """Whether it can be called with one argument, as far as that can be told."""
    try:
        inspect.signature(function).bind(0)
    except TypeError:
        return False
    except ValueError:  # of some functions in C nothing is known
        return callable(function)
    return True


class StreamSource(DatasetSource):
    """The samples of a stream: they are read where jobs are made, and go to the workers with them.

    name: of the data, for messages.
    """

    def __init__(self, stream: Stream, fields: Mapping[str, Field] | None = None, name: str = "") -> None:
        self.stream = stream
        self.name = name or stream.name
        super().__init__(_Sized(stream), fields)

    def __repr__(self) -> str:
        return f"StreamSource({self.name})"

    def __reduce__(self) -> tuple[Any, ...]:
        """What a worker process needs, which reads nothing: not the data, which may hold what can't be sent."""
        return _in_worker, (None if self._is_usual else dict(self.fields), self.stream.epoch_samples, self.name)

    def column(self, name: str) -> NDArray[Any] | list[Any]:
        """Raises DataError: nothing is known of all samples."""
        raise DataError(f"{self!r} gives its samples in their order alone, so that no {name!r} is known of all")

    def location(self, index: int) -> str:
        """The sample's number in its epoch."""
        return f"item {index} of the stream {self.name}"

    def fetch(self, indices: NDArray[np.int64], before: Callable[[int], None] | None = None) -> Columns:
        """Raises SampleError: nothing is read by its number."""
        index = int(indices[0]) if len(indices) else 0
        reason = "a stream gives its samples in their order alone, not by their number"
        raise SampleError(index, self.location(index), reason, "iterate over a Loader of it")


class _Sized:
    """What is asked of a dataset, for the data of a stream."""

    def __init__(self, stream: Stream) -> None:
        self.fingerprint = stream.fingerprint
        self.classes = getattr(stream.data, "classes", None)
        self.class_to_idx = getattr(stream.data, "class_to_idx", None)
        self._size = stream.epoch_samples or ENDLESS

    def __len__(self) -> int:
        return self._size


def _nothing(number: int) -> Iterator[Any]:
    return iter(())


def _in_worker(fields: dict[str, Field] | None, epoch_samples: int | None, name: str) -> StreamSource:
    return StreamSource(Stream(_nothing, epoch_samples=epoch_samples), fields, name)
