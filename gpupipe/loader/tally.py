"""How many rows of an iteration were bad, and how many may be."""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from typing import Any

import numpy as np

from gpupipe.errors import ConfigError, SampleError, TooManyBadError
from gpupipe.host.checks import whole
from gpupipe.order import RankBatches

__all__ = ["MaxBad", "Tally", "check_max_bad", "listed"]

log = logging.getLogger("gpupipe")

MaxBad = float | int
"""A share of an epoch's rows, in [0, 1], or a number of them."""

USUAL = 0.5  # more than half bad is no epoch
FEWEST = 1000  # rows of which a share is taken where it is not known how many an epoch will have
SHOWN = 5


def check_max_bad(max_bad: Any, on_error: str) -> MaxBad:
    """`max_bad` as given, or the usual one. Raises ConfigError for what is none, or where nothing is replaced."""
    if max_bad is None:
        return USUAL
    if on_error != "skip":
        raise ConfigError(f"max_bad={max_bad!r} goes with on_error='skip'; with {on_error!r} each bad sample raises")
    if not isinstance(max_bad, float | np.floating):
        with suppress(ConfigError):
            return whole("max_bad", max_bad, 0)
    elif 0 <= max_bad <= 1:
        return float(max_bad)
    what = "a share in [0.0, 1.0] of an epoch's samples, or an int, a number of them"
    raise ConfigError(f"max_bad={max_bad!r} must be {what}: 1.0 is all, 1 a single one")


class Tally:
    """Counts the bad rows of one iteration at a time as its batches are delivered, so that engines, workers and what
    is made ahead make no difference."""

    def __init__(self, max_bad: MaxBad) -> None:
        self._max_bad = max_bad
        self.total = 0  # of all iterations
        self.begin()

    def begin(self, step: int = 0) -> None:
        """An iteration begins, at that step of its epoch: after a resume not the first one."""
        self._step = step
        self._rows = self._count = 0
        self._first: list[SampleError] = []

    def add(self, rows: int, bad: list[SampleError], epoch: int, batches: RankBatches) -> None:
        """Count a batch that is about to be handed out: its rows, and for each that was bad why.

        batches: how its epoch is cut. Raises TooManyBadError, then for every other batch of the iteration, too.
        """
        self._rows += rows
        self._count += len(bad)
        self.total += len(bad)
        self._first += bad[: SHOWN - len(self._first)]
        if not self._count:
            return
        of = max(FEWEST, self._rows) if batches.is_endless else batches.rows()
        most = self._max_bad if isinstance(self._max_bad, int) else int(self._max_bad * of + 1e-6)
        if self._count > most:
            whole = "" if batches.is_endless else f" of its {of}"
            which = f"{self._rows} samples from step {self._step} on" if self._step else f"first {self._rows} samples"
            raise TooManyBadError(
                f"{self._count} of the {which} of epoch {epoch} were bad, and max_bad="
                f"{self._max_bad} allows {most}{whole}: {listed(self._first)}; look at the storage, repair or remove "
                "them (`bad_samples` lists all), or pass a larger max_bad"
            )

    def on_all_ranks(self, batches: RankBatches) -> int:
        """Bad samples of which an epoch can't have more without too many on some rank, 1 or more."""
        if isinstance(self._max_bad, int):
            return max(1, self._max_bad * batches.world_size)
        rows = 0 if batches.is_endless else batches.rows() * batches.world_size  # padding counted, as on each rank
        return max(1, math.ceil(self._max_bad * max(batches.size, rows)))

    def end(self, epoch: int) -> None:
        """The epoch is over; may be called twice."""
        if self._count:
            log.warning(
                "gpupipe: %d of %d samples of epoch %d were bad and replaced: %s",
                *(self._count, self._rows, epoch, listed(self._first[:1])),
            )
        self.begin()


def listed(errors: list[SampleError]) -> str:
    """The first ones, without what could be done about each."""
    return "; ".join(f"sample {error.index} ({error.location}): {error.reason}" for error in errors[:SHOWN])
