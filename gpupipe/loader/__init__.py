"""The DataLoader-compatible stream of batches."""

from __future__ import annotations

from gpupipe.loader.loader import Loader

__all__ = ["Loader"]
