"""How long a request is tried: bounded in number and in time."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field

from gpupipe.errors import ConfigError

__all__ = ["Patience"]

VARIABLE = "GPUPIPE_STORAGE_SECONDS"
SECONDS = 120.0


def _seconds() -> float:
    text = os.environ.get(VARIABLE) or str(SECONDS)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86400:
        raise ConfigError(f"{VARIABLE}={text!r} must be a number of seconds above 0, for each read of storage")
    return seconds


@dataclass(frozen=True)
class Patience:
    """seconds: after which nothing is tried again, counted from the first try; $GPUPIPE_STORAGE_SECONDS, else 120. One
    try, which may begin just before that, takes a quarter of them at most.
    tries: of each request.
    """

    seconds: float = field(default_factory=_seconds)
    tries: int = 16

    @property
    def rest(self) -> float:
        """Seconds for which an object that was given up is left alone."""
        return self.seconds / 4

    def timeout(self, slow: int) -> float:
        """Seconds for one try after so many that took too long: what stands still is asked for anew soon, what is only
        slow gets more time then."""
        return self.seconds / (16, 8, 4)[min(slow, 2)]

    def pause(self, tries: int) -> float:
        """Seconds to wait after so many tries: twice as long after each, and by chance, so that clients who were sent
        away together do not come back together."""
        return min(self.seconds / 12, 0.1 * 2.0 ** (tries - 1)) * random.uniform(0.5, 1.0)
