"""Progress bars for commands that measure, on stderr where that is a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["minutes", "steps"]


@contextmanager
def steps(total: int) -> Iterator[Callable[[str], None]]:
    """A bar of so many steps; what it yields is called with a line before each."""
    done = iter(range(total + 1))
    with _bar(total) as show:
        yield lambda text: show(next(done, total), text)


@contextmanager
def minutes(expected: float) -> Iterator[Callable[[str], None]]:
    """A bar of the time that has passed; what it yields is called with a line before each step."""
    start = time.monotonic()
    with _bar(60 * expected) as show:
        yield lambda text: show(time.monotonic() - start, text)


@contextmanager
def _bar(total: float) -> Iterator[Callable[[float, str], None]]:
    """What it yields is called with how much is done and a line of text."""
    if not sys.stderr.isatty():
        yield lambda done, text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=total)
        yield lambda done, text: progress.update(task, completed=done, description=text)
