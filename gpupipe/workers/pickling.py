"""Whether an object can be sent to a worker process that is not a fork, found out before one is started."""

from __future__ import annotations

import io
import multiprocessing
from collections.abc import Iterator
from multiprocessing import context
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

from gpupipe.errors import ConfigError

__all__ = ["check_picklable"]

DEPTH = 16  # attributes of attributes that are searched for what can't be pickled


def check_picklable(name: str, sent: Any, start_method: str) -> None:
    """Raise ConfigError, which names the part of `sent` that is to blame, unless it can be pickled."""
    problem = _problem(sent)
    if problem is None:
        return
    path, part = _blamed(name, sent)
    remedy = "or pass multiprocessing_context='fork'" if "fork" in multiprocessing.get_all_start_methods() else ""
    raise ConfigError(
        f"multiprocessing_context={start_method!r} sends the {name} to its workers by pickle, but {path} "
        f"({type(part).__name__}) can't be pickled: {_problem(part)}; define functions at the top of a module, open "
        f"files and connections when the first sample is asked for, leave locks out in __getstate__, {remedy}"
    )


def _problem(sent: Any) -> str | None:
    """What pickling it raises, in words."""
    before = context.get_spawning_popen()
    context.set_spawning_popen(_Starting())  # type: ignore[arg-type]
    try:
        _Pickler(_Nowhere()).dump(sent)
    except Exception as error:  # pickling runs code of the user's
        return f"{type(error).__name__}: {error}"
    finally:
        context.set_spawning_popen(before)
    return None


class _Starting:
    """Stands for the worker that is being started: locks and queues may be pickled for it, and for it alone."""

    def duplicate_for_child(self, descriptor: int) -> int:
        return descriptor

    def DupFd(self, descriptor: int) -> int:  # the name that multiprocessing.reduction calls
        return descriptor


class _Nowhere(io.RawIOBase):
    def write(self, data: Any) -> int:
        return len(data)


class _Pickler(ForkingPickler):
    def reducer_override(self, value: Any) -> Any:
        """Leave out what can be pickled for sure and may be large."""
        if isinstance(value, torch.Tensor) or (isinstance(value, np.ndarray) and not value.dtype.hasobject):
            return int, ()
        return NotImplemented


def _blamed(path: str, part: Any) -> tuple[str, Any]:
    """The innermost part that can't be pickled, and the way to it."""
    for _ in range(DEPTH):
        for step, inner in _parts(part):
            if _problem(inner) is not None:
                path, part = path + step, inner
                break
        else:
            break
    return path, part


def _parts(whole: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(whole, dict):
        yield from ((f"[{key!r}]", inner) for key, inner in whole.items())
    elif isinstance(whole, (list, tuple)):
        yield from ((f"[{number}]", inner) for number, inner in enumerate(whole))
    else:
        yield from ((f".{name}", inner) for name, inner in getattr(whole, "__dict__", {}).items())
