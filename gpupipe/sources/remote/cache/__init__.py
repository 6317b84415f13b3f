"""A cache on the machine's disk for what was read from a storage, for all its processes: blocks with checksums, a
ledger that never lets them take more than their share, and nothing of a killed process left behind."""

from __future__ import annotations

from gpupipe.sources.remote.cache.keys import key_of
from gpupipe.sources.remote.cache.settings import Cache, cache_settings, on_disk, parse_size
from gpupipe.sources.remote.cache.store import BlockCache, Claim, keep_alive

__all__ = ["BlockCache", "Cache", "Claim", "cache_settings", "keep_alive", "key_of", "on_disk", "parse_size"]
