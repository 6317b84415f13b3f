"""Videos that a user's dataset gives."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from gpupipe.batch import Frames, Video
from gpupipe.sources.patterns import is_url
from gpupipe.sources.videos.encoded import EncodedVideo
from gpupipe.sources.videos.frames import FrameFolder, GivenFrames

__all__ = ["given_video", "video_at"]


def video_at(path: str, field: Frames, listed: int | None = None) -> Video:
    """The video at a path: a folder of frames, or a video file."""
    if os.path.isdir(path):
        return FrameFolder(path, field.pattern, listed)
    return EncodedVideo(path)


def given_video(field: Frames, value: Any, image: Any) -> Video:
    """A path of a video file or of a folder of frames; the bytes of a video file; a sequence of frames, or pixels
    (frames, height, width, 3), a tensor's (frames, 3, height, width); what has all of `Video`.

    image: makes an image of a frame. Raises TypeError or ValueError, which says what was given.
    """
    if isinstance(value, str | os.PathLike):
        if is_url(path := os.fspath(value)):
            raise ValueError(f"it is {path!r}, a URL, which is never opened: return a path, or the bytes")
        return video_at(path, field)
    if all(hasattr(value, name) for name in ("read", "rate", "__len__")):
        return value  # type: ignore[no-any-return]
    if isinstance(value, bytes | bytearray) or (hasattr(value, "ndim") and value.ndim == 1):
        data = np.frombuffer(value, np.uint8) if isinstance(value, bytes | bytearray) else np.asarray(value)
        return EncodedVideo(lambda: data)
    if not hasattr(value, "__len__") or not hasattr(value, "__getitem__"):
        raise TypeError(f"it is {type(value).__name__}, and a video is a path, bytes or a sequence of frames")
    return GivenFrames([image(frame) for frame in value])
