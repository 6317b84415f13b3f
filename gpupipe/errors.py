"""What gpupipe raises. Every message names the sample or setting, the value, the likely cause and what to do next."""

from __future__ import annotations

import re
from typing import Any, ClassVar

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

DOCUMENTATION = "docs"  # where it lies: in the repository, until it has an address
LINK = re.compile(rf" \({re.escape(DOCUMENTATION)}/errors\.md#[a-z]+\)")


def unlinked(text: str) -> str:
    """A message that becomes part of another one, without where to read on: that one says it itself."""
    return LINK.sub("", text)


def _plain(text: str) -> str:
    return printable(unlinked(text), MOST_MESSAGE)


class GpupipeError(Exception):
    """Base of everything that gpupipe raises on purpose. Messages are printable, of bounded length, and end with where
    in the documentation to read on; `args` are without that."""

    _page: ClassVar[str] = "errors.md#gpupipeerror"  # not `page`, which may be an attribute of the user's own error

    def __init__(self, *args: Any) -> None:
        super().__init__(*(_plain(one) if isinstance(one, str) else one for one in args))

    def __str__(self) -> str:
        return f"{self._text()} ({DOCUMENTATION}/{self._page})" if self._page else self._text()

    def _text(self) -> str:
        """The message alone."""
        return super().__str__()


class ConfigError(GpupipeError, ValueError):
    """A setting has a value that can't work."""

    _page = "errors.md#configerror"


class TranslationError(ConfigError):
    """Something written for another library has no counterpart here that gives the same.

    `operation` is what can't be translated, with the setting at fault where there is one ("Resize(max_size=300)"),
    `reason` why, `alternative` what comes nearest.
    """

    _page = "errors.md#translationerror"

    def __init__(self, operation: str, reason: str, alternative: str) -> None:
        super().__init__(operation, reason, alternative)
        self.operation, self.reason, self.alternative = self.args

    def _text(self) -> str:
        return f"{self.operation} can't be translated: {self.reason}; {self.alternative}"


class DataError(GpupipeError, ValueError):
    """A dataset as a whole can't be used: missing, empty, cut, without labels, changed since it was indexed."""

    _page = "errors.md#dataerror"


class TooManyBadError(DataError):
    """More samples of an epoch are bad than `max_bad` allows."""

    _page = "errors.md#toomanybaderror"


class EngineUnavailableError(GpupipeError, RuntimeError):
    """An engine or a device was asked for that this machine lacks."""

    _page = "errors.md#engineunavailableerror"


class StateError(GpupipeError, ValueError):
    """A state dict does not belong to this loader; the message names the field and both values."""

    _page = "errors.md#stateerror"


class _WorkerFault(GpupipeError, RuntimeError):
    """`batches` has the epoch and step of the batch that each worker at fault was making, if it was at one."""

    def __init__(self, message: str, batches: tuple[tuple[int, int], ...] = ()) -> None:
        self.batches = batches
        super().__init__(message)


class LoaderTimeoutError(_WorkerFault):
    """No batch came within the `timeout` of the loader."""

    _page = "errors.md#loadertimeouterror"


class WorkerError(_WorkerFault):
    """A worker process of the torch engine died."""

    _page = "errors.md#workererror"


class SampleError(GpupipeError, RuntimeError):
    """One sample can't be read or decoded.

    `index` is its index in the source, `location` says where it lies (file, or key, shard and offset), `reason` what is
    wrong. Where a dataset of the user's own raised an exception, the error is of that type, too (see
    `gpupipe.sources.raised`), and `original` is its traceback, as text, which stays with the error where a process
    sends it to another.
    """

    _page = "errors.md#sampleerror"

    def __init__(self, index: int, location: str, reason: str, remedy: str = "", original: str = "") -> None:
        self.index = index
        self.location = printable(location)
        self.reason = _plain(reason)
        self.remedy = remedy or REPAIR
        self.original = original
        if original:
            self.__cause__ = OriginalTraceback(original)  # printed with the error; `raise ... from` puts the real one
        # By name: super() could be a type of the user's with other arguments.
        Exception.__init__(self, self._text())

    def _text(self) -> str:
        return f"sample {self.index} ({self.location}): {self.reason}; {self.remedy}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._text()!r})"

    def bare(self) -> SampleError:
        """A copy without tracebacks, whose frames would live as long as it does."""
        return type(self)(*self._fields())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._fields()

    def _fields(self) -> tuple[int, str, str, str, str]:
        return self.index, self.location, self.reason, self.remedy, self.original


class SkippedSampleError(SampleError):
    """A sample that lacks a field whose `missing` is "skip": the next good one takes its place, whatever `on_error`."""

    _page = "errors.md#skippedsampleerror"


class CollateError(DataError):
    """`collate_fn`, an `OnBatch` or a dataset's `__getitems__` can't make a batch; of the type that it raised, too, as
    with SampleError."""

    def __init__(self, message: str) -> None:
        self.message = _plain(message)
        Exception.__init__(self, self.message)

    def _text(self) -> str:
        return self.message

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.message!r})"

    def _fields(self) -> tuple[str]:
        return (self.message,)


class OriginalTraceback(Exception):
    """A traceback of another process, as text: `multiprocessing.pool` shows its workers' in the same way."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'
