"""What gpupipe raises. Every message names the sample or setting, the value, the likely cause and what to do next."""

from __future__ import annotations

from typing import Any

from gpupipe.texts import MOST_MESSAGE, printable

__all__ = [
    "ConfigError",
    "DataError",
    "EngineUnavailableError",
    "GpupipeError",
    "LoaderTimeoutError",
    "SampleError",
    "SkippedSampleError",
    "StateError",
    "TooManyBadError",
    "TranslationError",
    "WorkerError",
]

REPAIR = "repair or remove it, or pass on_error='skip' to replace bad samples"
"""What can be done about a sample whose file is at fault, and nothing else."""


class GpupipeError(Exception):
    """Base of everything that gpupipe raises on purpose. Messages are printable, and of bounded length."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*(printable(one, MOST_MESSAGE) if isinstance(one, str) else one for one in args))


class ConfigError(GpupipeError, ValueError):
    """A setting has a value that can't work."""


class TranslationError(ConfigError):
    """Something written for another library has no counterpart here that gives the same.

    `operation` is what can't be translated, with the setting at fault where there is one ("Resize(max_size=300)"),
    `reason` why, `alternative` what comes nearest.
    """

    def __init__(self, operation: str, reason: str, alternative: str) -> None:
        super().__init__(operation, reason, alternative)
        self.operation, self.reason, self.alternative = self.args

    def __str__(self) -> str:
        return f"{self.operation} can't be translated: {self.reason}; {self.alternative}"


class DataError(GpupipeError, ValueError):
    """A dataset as a whole can't be used: missing, empty, cut, without labels, changed since it was indexed."""


class TooManyBadError(DataError):
    """More samples of an epoch are bad than `max_bad` allows."""


class EngineUnavailableError(GpupipeError, RuntimeError):
    """An engine or a device was asked for that this machine lacks."""


class StateError(GpupipeError, ValueError):
    """A state dict does not belong to this loader; the message names the field and both values."""


class _WorkerFault(GpupipeError, RuntimeError):
    """`batches` has the epoch and step of the batch that each worker at fault was making, if it was at one."""

    def __init__(self, message: str, batches: tuple[tuple[int, int], ...] = ()) -> None:
        self.batches = batches
        super().__init__(message)


class LoaderTimeoutError(_WorkerFault):
    """No batch came within the `timeout` of the loader."""


class WorkerError(_WorkerFault):
    """A worker process of the torch engine died."""


class SampleError(GpupipeError, RuntimeError):
    """One sample can't be read or decoded.

    `index` is its index in the source, `location` says where it lies (file, or key, shard and offset), `reason` what is
    wrong. Where a dataset of the user's own raised an exception, the error is of that type, too (see
    `gpupipe.sources.raised`), and `original` is its traceback, as text, which stays with the error where a process
    sends it to another.
    """

    def __init__(self, index: int, location: str, reason: str, remedy: str = "", original: str = "") -> None:
        self.index = index
        self.location = printable(location)
        self.reason = printable(reason, MOST_MESSAGE)
        self.remedy = remedy or REPAIR
        self.original = original
        if original:
            self.__cause__ = OriginalTraceback(original)  # printed with the error; `raise ... from` puts the real one
        # By name: super() could be a type of the user's with other arguments.
        Exception.__init__(self, str(self))

    def __str__(self) -> str:
        return f"sample {self.index} ({self.location}): {self.reason}; {self.remedy}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def bare(self) -> SampleError:
        """A copy without tracebacks, whose frames would live as long as it does."""
        return type(self)(*self._fields())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._fields()

    def _fields(self) -> tuple[int, str, str, str, str]:
        return self.index, self.location, self.reason, self.remedy, self.original


class SkippedSampleError(SampleError):
    """A sample that lacks a field whose `missing` is "skip": the next good one takes its place, whatever `on_error`."""


class CollateError(DataError):
    """`collate_fn` or an `OnBatch` can't make a batch; of the type that it raised, too, as with SampleError."""

    def __init__(self, message: str) -> None:
        self.message = printable(message, MOST_MESSAGE)
        Exception.__init__(self, self.message)

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.message!r})"

    def _fields(self) -> tuple[str]:
        return (self.message,)


class OriginalTraceback(Exception):
    """A traceback of another process, as text: `multiprocessing.pool` shows its workers' in the same way."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'
