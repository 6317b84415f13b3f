"""Which frames of its video a clip has."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Frames
from gpupipe.errors import ConfigError
from gpupipe.plan.stream import CLIP, Stream, below

__all__ = ["clips"]

Longs = NDArray[np.int64]
Words = NDArray[np.uint64]
Draw = Callable[[int, int, float | None], Longs]


def clips(field: Frames, seed: int, epoch: int, positions: Longs, number: int = 0) -> Draw:
    """Of the samples at these positions of an epoch, which frames each has: a function of the row and of how many
    frames its video has, and how many a second, which gives int64 (clips * frames,), one clip after the other.

    number: which of a sample's images the field is, as for `cropping`. The function raises ValueError for a video that
    is too short, or of which it is not known how many frames a second it has where that counts.
    """
    frames, stride = field.clip
    parts = field.clips if stride else frames
    blocks = np.arange(CLIP, CLIP + -(-parts // 4), dtype=np.uint64)[:, None]
    words = Stream(seed, epoch, positions, field=number).words(blocks).swapaxes(0, 1).reshape(-1, len(positions))

    def of_row(row: int, count: int, rate: float | None) -> Longs:
        offsets, length = _offsets(field, rate)
        span = int(offsets[-1]) + 1
        if count < 1:
            raise ValueError("it has no frames")
        if count < span and field.short == "error":
            raise ValueError(
                f"it has {count} frames, and a clip of clip={field.clip} spans {span}; short='loop' repeats them"
            )
        if field.sampling == "random":
            starts = _random(count, length, parts, words[:parts, row])
        else:
            starts = _middles(count, parts) if stride is None else _even(count - span, parts)
        return (starts[:, None] + offsets).reshape(-1) % count

    return of_row


def _offsets(field: Frames, rate: float | None) -> tuple[Longs, int]:
    """The frames of a clip from its first on, and so many frames of the video are a clip's."""
    frames, stride = field.clip
    if stride is None:
        return np.zeros(1, np.int64), 1
    if field.fps is None:
        return np.arange(frames) * stride, frames * stride
    if rate is None:
        raise ConfigError(
            f"Frames: fps={field.fps:g} is for video files: nothing says how many a second these frames are"
        )
    length = max(1, round(frames * stride * rate / field.fps))
    return np.linspace(0, length - 1, frames).astype(np.int64), length


# Where clips, or parts, of a video of `count` frames begin, by the arithmetic of mmaction2's SampleFrames.


def _random(count: int, length: int, parts: int, words: Words) -> Longs:
    """Each drawn in its own part of the video."""
    room = count - length + 1
    if room >= parts:
        return np.arange(parts) * (room // parts) + below(words, room // parts)
    if count > max(parts, length):
        return np.sort(below(words, room))
    return np.around(np.arange(parts) * (max(room, 0) / parts)).astype(np.int64)


def _even(room: int, parts: int) -> Longs:
    """From the begin to the end; one in the middle."""
    room = max(room, 0)
    return np.array([room // 2]) if parts == 1 else np.round(np.arange(parts) * (room / (parts - 1))).astype(np.int64)


def _middles(count: int, parts: int) -> Longs:
    """Of equal parts, as TSN's own code has them."""
    return (count / parts * (np.arange(parts) + 0.5)).astype(np.int64)
