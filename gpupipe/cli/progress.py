"""A progress bar for commands that measure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["minutes", "steps"]


@contextmanager
def steps(total: int) -> Iterator[Callable[[str], None]]:
    """A progress bar on stderr; what it yields is called with a line before each step."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=total)
        done = iter(range(total + 1))
        yield lambda text: progress.update(task, completed=next(done, total), description=text)


@contextmanager
def minutes(expected: float) -> Iterator[Callable[[str], None]]:
    """A progress bar on stderr of the time that has passed; what it yields is called with a line before each step."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    start = time.monotonic()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=60 * expected)
        yield lambda text: progress.update(task, completed=time.monotonic() - start, description=text)
