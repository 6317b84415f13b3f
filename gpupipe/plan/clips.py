"""Which frames of its video a clip has."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Frames
from gpupipe.plan.stream import CLIP, Stream, below

__all__ = ["clips"]

Longs = NDArray[np.int64]
Words = NDArray[np.uint64]


def clips(field: Frames, seed: int, epoch: int, positions: Longs, number: int = 0) -> Callable[[int, int], Longs]:
    """Of the samples at these positions of an epoch, which frames each has: a function of the row and of how many
    frames its video has, which gives int64 (clips * frames,), one clip after the other.

    number: which of a sample's images the field is, as for `cropping`. The function raises ValueError for a video that
    is too short.
    """
    parts = field.clips if field.clip[1] else field.clip[0]
    blocks = np.arange(CLIP, CLIP + -(-parts // 4), dtype=np.uint64)[:, None]
    words = Stream(seed, epoch, positions, field=number).words(blocks).swapaxes(0, 1).reshape(-1, len(positions))
    frames, stride = field.clip if field.clip[1] else (1, 1)
    offsets = np.arange(frames) * (stride or 1)

    def of_row(row: int, count: int) -> Longs:
        if count < 1:
            raise ValueError("it has no frames")
        if count < field.span and field.short == "error":
            raise ValueError(
                f"it has {count} frames, and a clip of clip={field.clip} spans {field.span}; short='loop' repeats them"
            )
        starts = STARTS[field.sampling](field, count, parts, words[:parts, row])
        return (starts[:, None] + offsets).reshape(-1) % count

    return of_row


# Where the clips, or parts, of a video of `count` frames begin: by the arithmetic of mmaction2's SampleFrames; of parts
# without a stride the middles are those of TSN's own code.


def _random(field: Frames, count: int, parts: int, words: Words) -> Longs:
    length = field.clip[0] * field.clip[1] if field.clip[1] else 1
    room = count - length + 1
    if room >= parts:
        return np.arange(parts) * (room // parts) + below(words, room // parts)
    if count > max(parts, length):
        return np.sort(below(words, room))
    return np.around(np.arange(parts) * (max(room, 0) / parts)).astype(np.int64)


def _even(field: Frames, count: int, parts: int, words: Words) -> Longs:
    at = np.arange(parts)
    if field.clip[1] is None:
        return (count / parts * (at + 0.5)).astype(np.int64)
    room = max(count - field.span, 0)
    return np.array([room // 2]) if parts == 1 else np.round(at * (room / (parts - 1))).astype(np.int64)


STARTS: dict[str, Callable[[Frames, int, int, Words], Longs]] = {"random": _random, "even": _even}
