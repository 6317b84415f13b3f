"""What video.py measures gpupipe beside, and the videos that it is measured on."""

from __future__ import annotations

__all__ = ["FILES", "FRAMES", "OURS", "READERS"]

OURS, FRAMES, FILES = "gpupipe", "frames", "files"
READERS = {
    FRAMES: {"pillow": "Pillow + torchvision v2", "torchvision": "torchvision's decoder + v2"},
    FILES: {"torchcodec": "torchcodec + torchvision v2", "approximate": "torchcodec, approximate, + v2"},
}
"""By kind of data, what reads frames, and how that is called in tables."""
