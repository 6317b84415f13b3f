"""Video files, decoded by torchcodec on FFmpeg.

Frames are asked for by their number, which torchcodec finds by a scan of the whole file's packets: 0.4 ms of the 24
that a clip of 8 frames of a 10 s video takes (340 x 256, H.264, one core of an AMD EPYC), so it is not kept. Without
it, in torchcodec's "approximate" mode, the number follows from the average rate, and is wrong where that varies.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import ConfigError
from gpupipe.host.files import open_regular
from gpupipe.sources.needing import library

__all__ = ["VIDEOS", "EncodedVideo", "video_decoder"]

VIDEOS = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi")
# What a file begins with. FFmpeg guesses what it is, and of others some make it open what they name: playlists (HLS,
# DASH, IMF), lists of files, descriptions of streams, by URL too. It looks for their words anywhere before the first
# zero, so a box must begin with one, as those below 16 MiB do, and a Matroska header be whole, of which it is sure.
BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")
MATROSKA = b"\x1a\x45\xdf\xa3"
PREFIX = 128


@dataclass
class EncodedVideo:
    """A video file, by its path, or by what reads its bytes."""

    file: str | Callable[[], NDArray[np.uint8]]

    @cached_property
    def _decoder(self) -> Any:
        source, open_video = self._source(), video_decoder()
        try:
            return open_video(source, dimension_order="NHWC", num_ffmpeg_threads=1, seek_mode="exact")
        except (RuntimeError, ValueError, TypeError) as error:
            raise ValueError(f"the video can't be opened: {_first_line(error)}") from error

    def _source(self) -> str | bytes:
        """For FFmpeg: an absolute path, in which it sees no protocol, or bytes; of a kind that names no other files."""
        if isinstance(self.file, str):
            with open(open_regular(self.file), "rb", buffering=0) as file:
                _check_kind(file.read(PREFIX))
            return os.path.abspath(self.file)
        data = self.file()
        _check_kind(data[:PREFIX].tobytes())
        return data.tobytes()

    def __len__(self) -> int:
        return len(self._decoder)

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of its frames."""
        return self._decoder.metadata.height or 0, self._decoder.metadata.width or 0

    @property
    def rate(self) -> float | None:
        """On the average."""
        rate: float | None = self._decoder.metadata.average_fps
        return rate

    def read(self, numbers: Sequence[int]) -> list[NDArray[np.uint8]]:
        try:
            frames = self._decoder.get_frames_at(list(numbers)).data.numpy()
        except (RuntimeError, ValueError, IndexError) as error:
            raise ValueError(f"the video can't be decoded: {_first_line(error)}") from error
        return list(frames)


def video_decoder() -> Any:
    """torchcodec's. Raises ConfigError where it is not installed, or does not find FFmpeg, or this torch."""
    try:
        return library("torchcodec.decoders", "video").VideoDecoder
    except RuntimeError as error:
        raise ConfigError(
            f"torchcodec can't be loaded ({_first_line(error)}): it needs FFmpeg's libraries (apt-get install ffmpeg), "
            "and of its versions the one for this torch"
        ) from error


def _check_kind(head: bytes) -> None:
    is_box = head[:1] == b"\0" and head[4:8] in BOXES
    if not (is_box or _is_matroska(head) or (head[:4] == b"RIFF" and head[8:12] == b"AVI ")):
        raise ValueError(f"it begins with the bytes {head[:12]!r}, as no MP4, MOV, Matroska, WebM or AVI file does")


def _is_matroska(head: bytes) -> bool:
    """Whether it begins with a whole EBML header of a kind that FFmpeg knows (RFC 8794, section 4)."""
    if not head.startswith(MATROSKA) or len(head) < 5 or not head[4]:
        return False
    length = 9 - head[4].bit_length()
    size = int.from_bytes(head[4 : 4 + length], "big") & ((1 << 7 * length) - 1)
    header = head[4 + length :][:size]
    return len(header) == size and (b"matroska" in header or b"webm" in header)


def _first_line(error: Exception) -> str:
    """What it says, without the function and line of torchcodec's where it was raised."""
    said = (str(error).splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\w+, \S+:\d+, *", "", said)
