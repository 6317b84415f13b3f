"""Contenders of presets.py: each preset by gpupipe, and by the code of those who published it."""

from __future__ import annotations

__all__ = ["ORIGINAL", "OURS", "WAYS"]

OURS, ORIGINAL = "gpupipe", "original"
WAYS = {OURS: "preset_peers.ours:Ours?preset=", ORIGINAL: "preset_peers.theirs:Theirs?preset="}
