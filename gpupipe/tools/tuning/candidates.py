"""Settings that can be measured: `Tuned`, made by what changes from one to the next."""

from __future__ import annotations

from dataclasses import replace

from gpupipe.decode.choose import PREFETCH
from gpupipe.decode.decoders import Decoders
from gpupipe.decode.tuned import Tuned

__all__ = ["dali_engine", "parts", "share_for", "shared", "threads", "torch_engine", "with_odds", "worker_processes"]

LEAST, MOST = 0.02, 0.98  # of cpu_share, where both sides work


def torch_engine(workers: int, prefetch: int = PREFETCH["torch"]) -> Tuned:
    """The CPU alone."""
    return Tuned("torch", workers, prefetch)


def dali_engine(threads: int, decoders: Decoders, prefetch: int = PREFETCH["dali"]) -> Tuned:
    """DALI with so many threads, and the worker processes that `decoders` names."""
    rounded = replace(
        decoders, cpu_share=round(decoders.cpu_share, 3), hw_decoder_load=round(decoders.hw_decoder_load, 2)
    )
    return Tuned("dali", threads + decoders.cpu_workers, prefetch, rounded)


def threads(candidate: Tuned) -> int:
    """DALI's threads; 0 without DALI."""
    return 0 if candidate.decoders is None else candidate.num_workers - candidate.decoders.cpu_workers


def shared(candidate: Tuned, *, cpu_share: float, cpu_workers: int) -> Tuned:
    """DALI as in `candidate`, with so many worker processes beside it for so much of each batch."""
    assert candidate.decoders is not None, "only DALI shares"
    share = min(max(cpu_share, LEAST), MOST)
    decoders = replace(candidate.decoders, cpu_share=share, cpu_workers=cpu_workers)
    return dali_engine(threads(candidate), decoders, candidate.prefetch_factor)


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


def worker_processes(candidate: Tuned) -> int:
    """Of the torch engine, or beside DALI."""
    return candidate.num_workers - threads(candidate)
