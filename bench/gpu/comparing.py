"""Contenders measured in turn, and what those that fail have printed."""

from __future__ import annotations

import tempfile
from pathlib import Path

from gpu.arguments import say
from gpu.rows import Row, from_results
from gpupipe.tools.benchmark.measurement import BenchSettings
from gpupipe.tools.benchmark.runner import file_name, measure

__all__ = ["compare"]

LAST = 2000  # letters of a failed one's log


def compare(part: str, named: dict[str, str], settings: BenchSettings) -> list[Row]:
    """The rows of contenders by label, each in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="gpupipe-") as logs:
        results = measure(list(named.values()), settings, Path(logs), say, together=True)
        for result in results:
            if result.reason:
                log = Path(logs, f"{file_name(result.name)}.log")
                printed = log.read_text(errors="replace")[-LAST:] if log.exists() else ""
                say(f"!! {result.name}: {result.reason}\n{printed}")
    return from_results(part, list(named), results)
