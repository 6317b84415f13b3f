"""What code of the user's raised at a sample, as a SampleError that `except` finds by the user's own type, too."""

from __future__ import annotations

import importlib
import traceback
import types
from functools import lru_cache, partial
from typing import Any

from gpupipe.errors import SampleError

__all__ = ["as_raised"]

# Python takes these for the end of an iteration or of the program, or prints them in a form of their own.
SPECIAL = (StopIteration, StopAsyncIteration, GeneratorExit, KeyboardInterrupt, SystemExit, SyntaxError)

FIELDS = frozenset({"index", "location", "reason", "remedy", "original"})

Fields = tuple[int, str, str, str, str]


def as_raised(error: Exception, index: int, location: str, reason: str) -> SampleError:
    """The SampleError for `error`, which is its `__cause__`; an instance of the error's type as well.

    It has the error's `args`, and its other attributes by way of `__cause__`; its text is the SampleError's. Where
    there can be no class that is both (a type that needs arguments in `__new__`, say), it has the nearest base of the
    error's that can be, in the end none. In another process it has the nearest type that can be imported there, and
    the traceback as text. torch's DataLoader raises the type alone, and only if a text is all that it asks for.
    """
    original = "".join(traceback.format_exception(error))
    made = _typed(type(error).__mro__, (index, location, reason, "", original))
    made.args = error.args
    made.__cause__ = error
    return made


def _typed(kinds: tuple[type, ...], fields: Fields) -> SampleError:
    """A SampleError that is of the first of the types that can be."""
    for kind in kinds:
        if _fits(kind):
            try:
                return _class_of(kind)(*fields)
            except Exception:  # whatever the user's metaclass, `__init_subclass__`, `__new__` or `__setattr__` raises
                continue
    return SampleError(*fields)


def _fits(kind: type) -> bool:
    return issubclass(kind, Exception) and not issubclass(kind, SPECIAL) and kind not in SampleError.__mro__


@lru_cache(maxsize=64)
def _class_of(kind: type[Exception]) -> type[SampleError]:
    """The class of errors that are SampleErrors and `kind`. Raises whatever making a class of the user's can raise."""
    # Those in C, as OSError's errno, would be None rather than missing.
    inner = {
        name
        for base in kind.__mro__
        if base not in SampleError.__mro__
        for name, value in vars(base).items()
        if isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType)
    }
    own: dict[str, Any] = {
        name: property(partial(_of_cause, name=name))
        for name in inner - FIELDS
        if not name.startswith("__")  # Python's own
    }
    own |= {
        "__module__": SampleError.__module__,
        "__getattr__": _of_cause,
        "__reduce__": lambda error: (_rebuilt, (_names(kind), error._fields())),
    }
    name = f"SampleError[{kind.__name__}]"
    return types.new_class(name, (SampleError, kind), exec_body=lambda body: body.update(own))


def _of_cause(error: SampleError, name: str) -> Any:
    """An attribute of what the user's code raised."""
    if name.startswith("__"):  # Python's own, such as notes, which would be printed twice
        raise AttributeError(name)
    return getattr(error.__cause__, name)


# By name, as pickle sends classes. One that can't be had in the other process must not be an error there: it would
# arise in the middle of a message from a worker.


def _names(kind: type[Exception]) -> list[tuple[str, str]]:
    """Where the type and its bases can be imported from, nearest first; a function's own classes can't."""
    names = [(base.__module__, base.__qualname__) for base in kind.__mro__ if _fits(base)]
    return [(module, name) for module, name in names if _imported(module, name) in kind.__mro__]


def _rebuilt(names: list[tuple[str, str]], fields: Fields) -> SampleError:
    found = (_imported(module, name) for module, name in names)
    return _typed(tuple(kind for kind in found if kind is not None), fields)


def _imported(module: str, name: str) -> type | None:
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception:  # importing runs code of the user's
        return None
    return found if isinstance(found, type) else None
