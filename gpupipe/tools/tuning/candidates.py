"""Settings that can be measured: `Tuned`, and what changes from one to the next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpupipe.decode.choose import PREFETCH
from gpupipe.decode.decoders import Decoders
from gpupipe.decode.tuned import Tuned

__all__ = [
    *("changed", "dali_engine", "parts", "queued", "share_for", "threads", "torch_engine", "with_odds"),
    *("worker_processes",),
]

HANDED_ON = 4  # batches finished ahead of the consumer, and in the making
LEAST, MOST = 0.02, 0.98  # of cpu_share, where both sides work


def torch_engine(workers: int, prefetch: int = PREFETCH["torch"]) -> Tuned:
    """The CPU alone."""
    return Tuned("torch", workers, prefetch)


def dali_engine(threads: int, decoders: Decoders, prefetch: int = PREFETCH["dali"], **changes: Any) -> Tuned:
    """DALI with so many threads, and the worker processes that `decoders` names; changes: of `decoders`."""
    both = {"cpu_share": decoders.cpu_share, "hw_decoder_load": decoders.hw_decoder_load} | changes
    if changes.get("cpu_workers", decoders.cpu_workers):
        both["cpu_share"] = round(min(max(both["cpu_share"], LEAST), MOST), 3)
    both["hw_decoder_load"] = round(min(max(both["hw_decoder_load"], 0.0), 1.0), 2)
    made = replace(decoders, **both)
    return Tuned("dali", threads + made.cpu_workers, prefetch, made)


def changed(candidate: Tuned, count: int | None = None, **changes: Any) -> Tuned:
    """DALI as in `candidate`, but with so many threads and with these settings of its `Decoders`."""
    assert candidate.decoders is not None, "only DALI's settings are changed"
    count = threads(candidate) if count is None else count
    return dali_engine(count, candidate.decoders, candidate.prefetch_factor, **changes)


def threads(candidate: Tuned) -> int:
    """DALI's threads; 0 without DALI."""
    return 0 if candidate.decoders is None else candidate.num_workers - candidate.decoders.cpu_workers


def worker_processes(candidate: Tuned) -> int:
    """Of the torch engine, or beside DALI."""
    return candidate.num_workers - threads(candidate)


def queued(candidate: Tuned) -> int:
    """The most batches that may have been made before anyone asked: all queues, and what lies behind an engine."""
    ahead = candidate.prefetch_factor
    inside = (
        candidate.num_workers * ahead if candidate.engine == "torch" else max(ahead, 2 * worker_processes(candidate))
    )
    return inside + HANDED_ON


def share_for(cpu_rate: float, dali_rate: float) -> float:
    """The CPU's share at which both sides take as long for their parts of a batch."""
    return cpu_rate / (cpu_rate + dali_rate)


def with_odds(share: float, factor: float) -> float:
    """The share whose odds are `factor` times as high: 0.5 and 2 give 2/3."""
    odds = share / (1 - share) * factor
    return odds / (1 + odds)


def parts(candidate: Tuned, default: Tuned) -> int:
    """How much there is to keep in mind: 0 for what a loader does by itself, 1 for one engine, 2 for both."""
    if candidate == default:
        return 0
    return 2 if candidate.decoders is not None and candidate.decoders.cpu_workers else 1
