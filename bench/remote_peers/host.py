"""A loader in a process of its own, from an empty cache to its second pass."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

from gpupipe.host.usage import cpu_seconds
from gpupipe.tools.benchmark.contenders import load
from gpupipe.tools.benchmark.measurement import BenchSettings
from remote_peers.common import Crop, Digest, Passes, Place, Remote

__all__ = ["Host", "Looked", "Pass"]

LOOKED_AT = 16  # batches


@dataclass(frozen=True)
class Pass:
    """Of a pass over the data: images after the first batches, the seconds and CPU seconds for these.

    first: seconds until the first batch. whole: all its images, also those that were not counted. through: it came to
    its end.
    """

    images: int
    seconds: float
    cpu_seconds: float
    first: float
    whole: int
    through: bool


@dataclass(frozen=True)
class Looked:
    """batches: their shape and type; mean: of their values. samples: how many there are in a pass, and a digest of all
    with their labels, whatever their order."""

    batches: str
    mean: float
    samples: str


class Host:
    """Holds a loader between questions."""

    def __init__(self, name: str, settings: BenchSettings) -> None:
        self.name, self.settings = name, settings
        self._passes: Passes | None = None

    @cached_property
    def contender(self) -> Remote:
        """Imported at first use."""
        return load(self.name)  # type: ignore[return-value]

    def check(self, place: Place) -> Looked:
        """Bring the images into the loader's form, and see what it makes of them."""
        self.contender.prepare(self.settings.data)
        passes = self.contender.passes(place, Crop(self.settings), self.settings)
        batches = [images for images, _ in islice(next(passes), LOOKED_AT)]
        passes.close()
        mean = sum(float(images.float().mean()) for images in batches) / len(batches)
        # At the end, as gpupipe's are read by this process itself, which may not fork workers afterwards.
        return Looked(f"{tuple(batches[0].shape)} {batches[0].dtype}", mean, self._samples(place))

    def _samples(self, place: Place) -> str:
        passes = self.contender.passes(place, Digest(), replace(self.settings, batch_size=1))
        found: list[tuple[int, int]] = []
        for numbers, labels in next(passes):
            found += zip(numbers.tolist(), labels.tolist(), strict=True)
        passes.close()
        return f"{len(found)} images, {hashlib.blake2b(repr(sorted(found)).encode(), digest_size=8).hexdigest()}"

    def open(self, place: Place) -> bool:
        """Whether it keeps what it reads. Imports are not counted."""
        self._passes = self.contender.passes(place, Crop(self.settings), self.settings)
        return self.contender.keeps

    def run(self, skipped: int, seconds: float, filling: float = 0.0) -> Pass:
        """The next pass: the clock begins after so many batches and ends after so many seconds. Then it goes on to its
        end, uncounted, for at most as many more as `filling` says, that all is kept."""
        assert self._passes is not None, "open comes first"
        start = time.perf_counter()
        batches = iter(next(self._passes))
        whole = len(next(batches)[1])
        first = time.perf_counter() - start
        for _ in range(skipped - 1):
            whole += len(next(batches)[1])
        cpu, start = cpu_seconds(), time.perf_counter()
        images, end, through = played(batches, start + seconds)
        cpu, rest = cpu_seconds() - cpu, 0
        if filling and not through:
            rest, _, through = played(batches, end + filling)
        return Pass(images, end - start, cpu, first, whole + images + rest, through)

    def close(self) -> None:
        """End the loader."""
        if self._passes is not None:
            self._passes.close()


def played(batches: Iterator[tuple[Any, Any]], until: float) -> tuple[int, float, bool]:
    """Images until the end of the pass or until then, when the last of them came, and whether it was the end."""
    images, end = 0, time.perf_counter()
    for _, labels in batches:
        images += len(labels)
        end = time.perf_counter()
        if end > until:
            return images, end, False
    return images, end, True
