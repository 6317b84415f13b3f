"""A contender in a process of its own, which compares the preset with its original, too."""

from __future__ import annotations

from gpupipe.tools.benchmark.child import Host as Measuring
from preset_peers.agreement import Agreement, Comparison

__all__ = ["Host"]


class Host(Measuring):
    """Of presets.py."""

    def compare(self, preset: str, count: int) -> Agreement:
        """Before anything is timed."""
        return Comparison(preset, self.settings.data, count).run()
