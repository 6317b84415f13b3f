"""What becomes of a range that is asked for: the bytes of each wanted part that lies in it, or an error."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpupipe.sources.remote.coalescing import Span
from gpupipe.sources.remote.objects import Extent

__all__ = ["Bytes", "Parts", "Taker"]

Bytes = NDArray[np.uint8]


class Taker(Protocol):
    """Of one part's bytes, as a Future is."""

    def set_running_or_notify_cancel(self) -> bool:
        """Whether it still wants them; from then on it takes them."""

    def set_result(self, data: Bytes) -> None:
        """They have come, read-only."""

    def set_exception(self, error: BaseException) -> None:
        """They can't be had."""


class Parts:
    """Those of one span, whose bytes come in so many answers."""

    def __init__(self, span: Span, wanted: Sequence[Extent], takers: Sequence[Taker], answers: int) -> None:
        self.span = span
        self._parts = [(takers[part], wanted[part]) for part in span.parts]
        self._lock = threading.Lock()
        self._begun = self._over = False
        self._data: Bytes | None = np.empty(span.size, np.uint8) if answers > 1 else None
        self._left = answers

    def wanted_still(self) -> bool:
        """Whether to ask: some part has not been cancelled, and none has failed."""
        with self._lock:
            if not self._begun:
                self._begun = True
                self._parts = [part for part in self._parts if part[0].set_running_or_notify_cancel()]
                self._over = not self._parts
            return not self._over

    def fail(self, error: BaseException) -> None:
        """It can't be had."""
        with self._lock:
            over, self._over = self._over, True
        if not over:
            for future, _ in self._parts:
                future.set_exception(error)

    def came(self, offset: int, data: Bytes) -> None:
        """An answer with the bytes from this offset of the object on."""
        if self._data is not None:
            begin = offset - self.span.offset
            self._data[begin : begin + len(data)] = data
            data = self._data
        with self._lock:
            self._left -= 1
            complete = self._left == 0 and not self._over
        if complete:
            self._give(data)

    def _give(self, data: Bytes) -> None:
        data.flags.writeable = False
        for future, (_, offset, size) in self._parts:
            begin = offset - self.span.offset
            future.set_result(data if size in (-1, len(data)) else data[begin : begin + size])
