"""From videos, as sources have them, to clips: the frames that are drawn are read, and no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpupipe.batch import Clip, Frames, Images, Video
from gpupipe.decode.costs import too_many_pixels
from gpupipe.decode.headers import NOTHING, headers_of
from gpupipe.errors import ConfigError
from gpupipe.host.whereabouts import note
from gpupipe.plan import clips
from gpupipe.sources.headers import Header, explain_damage

if TYPE_CHECKING:
    from gpupipe.decode.fetching import Fetched

__all__ = ["Each", "read_clips"]

Each = Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]]
UNKNOWN = (0, 0, 1)


def read_clips(fetched: Fetched, name: str, field: Frames, videos: Sequence[Video], each: Each) -> Images:
    """The clips of a job. A row whose video can't be read, or has too few frames, or frames of several sizes, fails.

    each: `map`, or that of several threads.
    """
    job = fetched.job
    drawn = clips(field, job.seed, job.epoch, job.positions, fetched.source.fields.number(name))
    nothing = Clip([NOTHING] * field.count, [0] * field.count)

    def one(row: int) -> tuple[Clip, tuple[int, int, int]]:
        if row in fetched.failures:
            return nothing, UNKNOWN
        note(int(job.indices[row]))
        try:
            video = videos[row]
            sides = getattr(video, "sides", None)
            if sides is not None and (problem := too_many_pixels(sides, job.limits)):
                raise ValueError(f"of its frames each: {problem}")
            numbers = drawn(row, len(video), video.rate).tolist()
            clip = Clip(video.read(numbers), numbers)
            return clip, _size(clip)
        except ConfigError:
            raise
        except Exception as error:  # a video may be of a class of the user's own
            kind = "" if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: "
            fetched.fail(row, f"{name!r}: {kind}{error}")
            return nothing, UNKNOWN

    made = list(each(one, range(len(job))))
    return Images([clip for clip, _ in made], np.array([size for _, size in made], np.int32).reshape(-1, 3))


def _size(clip: Clip) -> tuple[int, int, int]:
    """Height, width and orientation of all frames. Raises ValueError where they have several, or one is damaged."""
    sizes = [Header(*size) for size in headers_of(clip.frames).tolist()]
    for frame, number, size in zip(clip.frames, clip.numbers, sizes, strict=True):
        if size[0] == 0:
            raise ValueError(f"frame {number}: {explain_damage(frame.tobytes())}")
        if size != sizes[0]:
            first = f"frame {clip.numbers[0]} has {sizes[0][0]} x {sizes[0][1]} pixels"
            raise ValueError(f"{first}, frame {number} {size[0]} x {size[1]}: a clip's are cropped alike, in one size")
    return sizes[0]
