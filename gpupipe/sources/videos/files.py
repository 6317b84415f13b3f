"""Videos that lie in a folder, by class or as a list says: video files, and folders of frames."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpupipe.batch import Schema, Video
from gpupipe.errors import DataError
from gpupipe.host.files import is_folder
from gpupipe.sources.folder import EXTENSIONS
from gpupipe.sources.source import content_fingerprint
from gpupipe.sources.storage import pack_strings
from gpupipe.sources.videos.encoded import VIDEOS, video_decoder
from gpupipe.sources.videos.given import video_at
from gpupipe.sources.videos.source import VideoSource

__all__ = ["Listed", "VideoFiles", "in_folder"]


@dataclass
class Listed:
    """The videos in their order: paths, of which "" is one that is not there, below a folder; keys, their names; where
    they are known labels, names of classes, and how many frames each has."""

    folder: str
    paths: Sequence[str]
    keys: Sequence[str]
    labels: Sequence[int] | None = None
    classes: list[str] | None = None
    counts: Sequence[int] | None = None


class VideoFiles(VideoSource):
    """Videos at paths, which are looked at when they are read."""

    def __init__(self, listed: Listed, schema: Schema) -> None:
        super().__init__(schema)
        self._listed = listed
        if any(path.lower().endswith(VIDEOS) for path in listed.paths):
            video_decoder()  # which says what is missing now, and not in a worker
        self.classes = listed.classes
        self.class_to_idx = None if self.classes is None else {name: i for i, name in enumerate(self.classes)}
        if listed.labels is not None:
            self.targets = np.array(listed.labels, np.int64)
            self.targets.setflags(write=False)
        numbers = [np.array(known, np.int64) for known in (listed.labels, listed.counts) if known is not None]
        self.fingerprint = content_fingerprint(self.classes or [], [*pack_strings(listed.keys), *numbers])

    def __len__(self) -> int:
        return len(self._listed.keys)

    def __repr__(self) -> str:
        return f"VideoFiles({self._listed.folder!r}, {len(self)} videos)"

    def key(self, index: int) -> str:
        return self._listed.keys[index]

    def _where(self, index: int) -> str:
        return os.path.join(self._listed.folder, self._listed.paths[index] or self.key(index))

    def _video(self, index: int, name: str) -> Video | None:
        counts, where = self._listed.counts, self._where(index)
        if not self._listed.paths[index] or not os.path.exists(where):
            return None
        return video_at(where, self._frames(name), None if counts is None else counts[index])

    def lacks(self, index: int, name: str) -> str:
        return f"there is no video file and no folder of this name in {self._listed.folder}"


def in_folder(root: str, classes: bool) -> Listed:
    """What is in a folder: its folders are classes, what is in those the videos, a file or a folder of frames each. By
    name. Without classes it may have the videos itself. Raises DataError where there are none."""
    names = sorted(entry.name for entry in os.scandir(root) if is_folder(entry))
    if not classes and names and any(map(_is_image, os.listdir(os.path.join(root, names[0])))):
        names = []
    if classes and not names:
        raise DataError(
            f"no class folders in {root}: videos, which are files or folders of frames, belong into one folder per "
            "class (root/running/1.mp4, root/running/2/00001.jpg); for a list pass its .csv or .txt, with folder= of "
            "the field, for videos without labels leave the label out of fields"
        )
    keys: list[str] = [] if classes or not names else [one for one in _videos_in(root) if one not in names]
    labels: list[int] = []
    for label, name in enumerate(names or [""]):
        found = _videos_in(os.path.join(root, name))
        if not found:
            raise DataError(f"no videos in {os.path.join(root, name)}: files {', '.join(VIDEOS)}, or folders of frames")
        keys += [os.path.join(name, video) for video in found]
        labels += [label] * len(found)
    return Listed(root, keys, keys, labels if classes else None, names if classes else None)


def _is_image(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS)


def _videos_in(folder: str) -> list[str]:
    names = []
    for entry in os.scandir(folder):
        if _is_image(entry.name):
            raise DataError(
                f"{entry.path} is an image where videos belong: each video is a folder of its frames, or a video file"
            )
        if not entry.name.startswith(".") and (entry.name.lower().endswith(VIDEOS) or is_folder(entry)):
            names.append(entry.name)
    return sorted(names)
