"""From what a user passes to a source of videos."""

from __future__ import annotations

import os
from typing import Any

from gpupipe.batch import Frames, Schema
from gpupipe.errors import ConfigError, DataError
from gpupipe.sources.patterns import SHARD, expand_shards, is_url
from gpupipe.sources.videos.encoded import VIDEOS
from gpupipe.sources.videos.files import VideoFiles, in_folder
from gpupipe.sources.videos.lists import in_list
from gpupipe.sources.videos.shards import open_video_shards
from gpupipe.sources.videos.source import VideoSource, wants_labels

__all__ = ["open_videos"]

LISTS = (".csv", ".txt")
KINDS = "a folder of videos by class, .tar shards, a list (.csv, .txt), or a dataset that gives paths or bytes"


def open_videos(data: Any, schema: Schema, rebuild: bool = False) -> VideoSource:
    """The source of videos at a path, or several of shards. Raises ConfigError for other data, DataError where it is
    missing or unfit."""
    paths = [os.path.expanduser(os.fspath(part)) for part in (data if isinstance(data, list | tuple) else [data])]
    labels = wants_labels(schema)
    if any(map(is_url, paths)):
        raise ConfigError(f"data={data!r} is a URL, and videos are read from local files: pass {KINDS}")
    if len(paths) == 1 and os.path.isdir(paths[0]):
        shards = sorted(entry.path for entry in os.scandir(paths[0]) if SHARD.fullmatch(entry.name))
        if not shards:
            return VideoFiles(in_folder(os.path.abspath(paths[0]), labels), schema)
        paths = shards
    if len(paths) == 1 and paths[0].lower().endswith(LISTS):
        folders = {field.folder for field in _videos(schema)}
        if len(folders) > 1:
            raise ConfigError(f"fields: of a list all videos lie below one folder, not {folders}")
        return VideoFiles(in_list(os.path.abspath(paths[0]), folders.pop(), labels), schema)
    if not all(path.endswith(".tar") or any(mark in path for mark in "{*?[") for path in paths):
        one = f"; {paths[0]} is one video: pass the folder of its class folder" * paths[0].lower().endswith(VIDEOS)
        if len(paths) == 1 and not os.path.exists(paths[0]):
            raise DataError(f"there is no {paths[0]}: check the path, or whether the disk is mounted")
        raise ConfigError(f"data={data!r} is no data of videos: pass {KINDS}{one}")
    patterns = {field.pattern for field in _videos(schema)}
    if len(patterns) > 1:
        raise ConfigError(f"fields: of shards all videos have one pattern, not {patterns}")
    return open_video_shards(expand_shards(paths), schema, patterns.pop(), rebuild)


def _videos(schema: Schema) -> list[Frames]:
    return [field for field in schema.values() if isinstance(field, Frames)]
