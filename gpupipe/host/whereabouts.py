"""The sample that this process is at, noted so that a message can name it if the process dies or hangs there.

A source notes each sample before it reads it. A note goes into a cell of two numbers; a worker process of an engine has
its cell in shared memory, where the loader's process can read it. Elsewhere nobody looks at it.

A note costs 0.3 us (one core of an AMD EPYC, a virtual machine). Threads that read beside others have cells of their
own.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import local
from time import monotonic_ns

__all__ = ["NOWHERE", "Noted", "Renumbered", "note", "note_apart", "note_in", "whereabouts"]

NOWHERE = -1
"""Noted where there is no one sample, as other negative numbers are that an engine gives a meaning to."""


class _Here(local):
    """Where a thread notes, and by which numbers."""

    cell = memoryview(bytearray(16)).cast("q")  # of all threads that have none of their own
    numbers: Mapping[int, int] | None = None


_here = _Here()


def note(index: int) -> None:
    """This process is now at sample `index`, or for negative numbers at what its engine means by them."""
    numbers, cell = _here.numbers, _here.cell
    if numbers is not None:
        if index not in numbers:
            return
        index = numbers[index]
    cell[1] = monotonic_ns()
    cell[0] = index


def note_in(cell: memoryview) -> None:
    """From now on notes go into `cell`: two int64, the index and when it was noted, as `time.monotonic_ns` counts."""
    _Here.cell, _here.numbers = cell, None


def note_apart() -> memoryview:
    """From now on notes of this thread go into a cell of its own, this one."""
    _here.cell = memoryview(bytearray(16)).cast("q")
    return _here.cell


def whereabouts(cell: memoryview | None = None) -> tuple[int | None, float]:
    """The sample that was noted in a cell, None: this thread's, and how many seconds ago; None where that is no one."""
    index, since = _here.cell if cell is None else cell
    return index if index >= 0 else None, (monotonic_ns() - since) / 1e9


class Renumbered:
    """`with Renumbered(numbers):` around another source, which notes samples by numbers of its own: the sample that it
    calls i is `numbers[i]`, and others are not noted."""

    def __init__(self, numbers: Mapping[int, int]) -> None:
        self._outer = outer = _here.numbers
        if outer is not None:
            numbers = {inner: outer[number] for inner, number in numbers.items() if number in outer}
        self._inner = numbers

    def __enter__(self) -> None:
        _here.numbers = self._inner

    def __exit__(self, *_: object) -> None:
        _here.numbers = self._outer


class Noted(Renumbered):
    """`with Noted(index):` around code of others, which may note samples of its own: another source's numbers."""

    def __init__(self, index: int) -> None:
        note(index)
        self._outer, self._inner = _here.numbers, {}
