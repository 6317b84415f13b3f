"""Videos: folders of frames, files of frames in shards, video files; in folders by class, in lists, in tars."""

from __future__ import annotations

from gpupipe.sources.videos.given import given_video
from gpupipe.sources.videos.opening import open_videos

__all__ = ["given_video", "open_videos"]
