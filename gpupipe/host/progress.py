"""Progress bars on stderr, where that is a terminal."""

from __future__ import annotations

import functools
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpupipe.texts import printable

__all__ = ["minutes", "progress", "steps"]

_shown = threading.Lock()


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar of so many things; the block (or its threads) calls what it gets with how many more are done."""
    with _bar(title, total) as update:
        yield lambda more: update(advance=more)


@contextmanager
def steps(total: int) -> Iterator[Callable[[str], None]]:
    """A bar of so many steps; what it yields is called with a line before each."""
    done = itertools.count()
    with _bar("starting", total) as update:
        yield lambda text: update(completed=min(next(done), total), description=text)


@contextmanager
def minutes(expected: float) -> Iterator[Callable[[str], None]]:
    """A bar of the time that has passed; what it yields is called with a line before each step."""
    start = time.monotonic()
    with _bar("starting", 60 * expected) as update:
        yield lambda text: update(completed=time.monotonic() - start, description=text)


@contextmanager
def _bar(title: str, total: float) -> Iterator[Callable[..., None]]:
    """What it yields takes what rich's `Progress.update` takes. Within another one it shows nothing: rich has one."""
    if not sys.stderr.isatty() or not _shown.acquire(blocking=False):
        yield lambda **changes: None
        return
    try:
        with _shown_bar(title, total) as update:
            yield update
    finally:
        _shown.release()


@contextmanager
def _shown_bar(title: str, total: float) -> Iterator[Callable[..., None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield functools.partial(bar.update, bar.add_task(printable(title), total=total))
