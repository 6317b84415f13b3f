"""What code of the user's raised, as an error that names the sample and that `except` finds by the user's type too, and
what it returned."""

from __future__ import annotations

import importlib
import pickle
import traceback
import types
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np

from gpupipe.errors import CollateError, SampleError

__all__ = ["as_raised", "collate_error", "form_of"]

# Python takes these for the end of an iteration or of the program, or prints them in a form of their own.
SPECIAL = (StopIteration, StopAsyncIteration, GeneratorExit, KeyboardInterrupt, SystemExit, SyntaxError)

FIELDS = frozenset({"index", "location", "reason", "remedy", "original", "message"})

Error = SampleError | CollateError
DEPTH = 3  # of containers that a message tells
MOST_SENT = 1 << 16  # bytes

Fields = tuple[Any, ...]
Made = TypeVar("Made", bound=Error)


def as_raised(error: Exception, index: int, location: str, reason: str, remedy: str = "") -> SampleError:
    """The SampleError for `error`, which is its `__cause__`; an instance of the error's type as well.

    It has the error's `args`, and its other attributes by way of `__cause__`; its text is the SampleError's. Where
    there can be no class that is both (a type that needs arguments in `__new__`, say), it has the nearest base of the
    error's that can be, in the end none. In another process it has the nearest type that can be imported there, the
    traceback as text, and as its cause a copy of the error, if that can be pickled and is not large. torch's DataLoader
    raises the type alone, and only if a text is all that it asks for.
    """
    original = "".join(traceback.format_exception(error))
    return _raised(SampleError, error, (index, location, reason, remedy, original))


def collate_error(error: Exception, message: str) -> CollateError:
    """The same for what `collate_fn`, an `OnBatch` or a `__getitems__` raised, which is of no one sample."""
    return _raised(CollateError, error, (message,))


def form_of(value: Any, depth: int = 0) -> str:
    """What code of the user's returned: its type, with dtype and shape or with its parts."""
    name = type(value).__name__
    if isinstance(value, np.ndarray) or hasattr(value, "numel"):
        return f"{name} {str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if depth < DEPTH and isinstance(value, dict):
        return f"{name} ({', '.join(f'{key!r}: {form_of(one, depth + 1)}' for key, one in value.items())})"
    if depth < DEPTH and isinstance(value, list | tuple):
        return f"{name} of {len(value)} ({', '.join(form_of(one, depth + 1) for one in value[:8])})"
    return name


def _raised(base: type[Made], error: Exception, fields: Fields) -> Made:
    made: Made = _typed(base, type(error).__mro__, fields)
    made.args = error.args
    made.__cause__ = error
    return made


def _typed(base: type, kinds: tuple[type, ...], fields: Fields) -> Any:
    """An error that is of the first of the types that can be, beside its own."""
    for kind in kinds:
        if _fits(base, kind):
            try:
                return _class_of(base, kind)(*fields)
            except Exception:  # whatever the user's metaclass, `__init_subclass__`, `__new__` or `__setattr__` raises
                continue
    return base(*fields)


def _fits(base: type, kind: type) -> bool:
    return issubclass(kind, Exception) and not issubclass(kind, SPECIAL) and kind not in base.__mro__


@lru_cache(maxsize=64)
def _class_of(base: type[Any], kind: type[Exception]) -> type[Any]:
    """The class of errors that are both. Raises whatever making a class of the user's can raise."""
    # Those in C, as OSError's errno, would be None rather than missing.
    inner = {
        name
        for one in kind.__mro__
        if one not in base.__mro__
        for name, value in vars(one).items()
        if isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType)
    }
    own: dict[str, Any] = {
        name: property(partial(_of_cause, name=name))
        for name in inner - FIELDS
        if not name.startswith("__")  # Python's own
    }
    own |= {
        "__module__": base.__module__,
        "__getattr__": _of_cause,
        "__reduce__": lambda error: (_rebuilt, (base, _names(base, kind), error._fields(), _sent(error.__cause__))),
    }
    name = f"{base.__name__}[{kind.__name__}]"
    return types.new_class(name, (base, kind), exec_body=lambda body: body.update(own))


def _of_cause(error: Error, name: str) -> Any:
    """An attribute of what the user's code raised."""
    if name.startswith("__"):  # Python's own, such as notes, which would be printed twice
        raise AttributeError(name)
    return getattr(error.__cause__, name)


# By name, as pickle sends classes. One that can't be had in the other process must not be an error there: it would
# arise in the middle of a message from a worker.


def _names(base: type, kind: type[Exception]) -> list[tuple[str, str]]:
    """Where the type and its bases can be imported from, nearest first; a function's own classes can't."""
    names = [(one.__module__, one.__qualname__) for one in kind.__mro__ if _fits(base, one)]
    return [(module, name) for module, name in names if _imported(module, name) in kind.__mro__]


def _rebuilt(base: type, names: list[tuple[str, str]], fields: Fields, sent: bytes | None = None) -> Any:
    found = (_imported(module, name) for module, name in names)
    made = _typed(base, tuple(kind for kind in found if kind is not None), fields)
    cause = None if sent is None else _received(sent)
    if cause is not None:
        with suppress(Exception):  # of the user's, which may refuse attributes
            cause.__cause__ = made.__cause__  # the traceback as text
            made.__cause__ = cause
    return made


def _sent(cause: BaseException | None) -> bytes | None:
    """What was raised, for another process; None: it can't be pickled, or is large, as with a whole response in it."""
    # In parts, as pickle makes an exception anew of its `args`, which are often not what its `__init__` takes.
    for form in (cause, (type(cause), getattr(cause, "args", ()), getattr(cause, "__dict__", {}))):
        try:
            sent = pickle.dumps(form)
        except Exception:  # code of the user's
            continue
        if len(sent) <= MOST_SENT and _received(sent) is not None:
            return sent
    return None


def _received(sent: bytes) -> Exception | None:
    try:
        cause = pickle.loads(sent)
        if isinstance(cause, tuple):
            kind, args, attributes = cause
            cause = kind.__new__(kind, *args)
            vars(cause).update(attributes)
    except Exception:  # code of the user's, or a type that this process lacks
        return None
    return cause if isinstance(cause, Exception) else None


def _imported(module: str, name: str) -> type | None:
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception:  # importing runs code of the user's
        return None
    return found if isinstance(found, type) else None
