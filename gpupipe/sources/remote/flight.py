"""How many requests are under way at once: as many as the storage's latency and bandwidth ask for."""

from __future__ import annotations

__all__ = ["FEWEST", "FIRST", "MOST", "Flight"]

FEWEST, FIRST, MOST = 4, 32, 128
STEP = 1.5
GAIN = 1.08  # a step up stays where it brings that much more, a step down where it costs no more than that
ROUND = 0.1  # seconds that a measurement takes at least, and at least this many answers for each request under way:
ANSWERS = 2
PATIENCE = 1.0  # seconds between two halvings
HOLD = 8  # measurements between two steps once none has helped


class Flight:
    """Steps up and down and keeps what pays: no model of latency or bandwidth, which change with the hour and differ
    between connections and objects.

    `limit` requests may be under way. Only time counts in which more of them were wanted: a loader that is slower than
    the storage says nothing of it. A storage that asks for patience (503, 429) halves it.
    """

    def __init__(self) -> None:
        self.limit = FIRST
        self._before: tuple[int, float] | None = None  # the limit before the step that is tried, and its rate
        self._direction = STEP
        self._hold = 0
        self._throttled = -PATIENCE
        self._begin: float | None = None
        self._bytes = self._answers = 0

    def answered(self, size: int, now: float, more: bool) -> None:
        """An answer of so many bytes has come; more: whether further requests wait for their turn."""
        if not more:
            self._begin = None
            return
        if self._begin is None:
            self._begin, self._bytes, self._answers = now, 0, 0
            return
        self._bytes += size
        self._answers += 1
        if now - self._begin >= ROUND and self._answers >= ANSWERS * self.limit:
            self._measured(self._bytes / (now - self._begin))
            self._begin = None

    def throttled(self, now: float) -> None:
        """The storage has asked for patience: of the requests that were under way then many hear the same."""
        if now - self._throttled < PATIENCE:
            return
        self._throttled = now
        self.limit = max(FEWEST, self.limit // 2)
        self._before, self._hold, self._begin = None, HOLD, None

    def _measured(self, rate: float) -> None:
        best = rate
        if self._before is not None:
            limit, best = self._before
            up = self.limit > limit
            if rate < best * (GAIN if up else 1 / GAIN):  # it did not pay: back, and the other way after a while
                self._turn(limit)
                return
            best = rate if up else best  # several steps down together may cost no more, either
        elif self._hold > 0:
            self._hold -= 1
            return
        step = min(MOST, max(FEWEST, round(self.limit * self._direction)))
        if step == self.limit:
            self._turn(step)
        else:
            self._before, self.limit = (self.limit, best), step

    def _turn(self, limit: int) -> None:
        self.limit, self._before, self._hold = limit, None, HOLD
        self._direction = 1 / self._direction
