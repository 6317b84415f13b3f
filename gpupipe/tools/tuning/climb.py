"""Local search: moves that change one thing, as long as something gets better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gpupipe.decode.decoders import Decoders
from gpupipe.decode.tuned import Tuned
from gpupipe.tools.tuning.candidates import dali_engine, shared, threads, with_odds
from gpupipe.tools.tuning.trials import Trials

__all__ = ["Move", "change_load", "change_share", "change_threads", "change_workers", "climb", "switch_crop"]

Move = Callable[[Tuned], Tuned]
"""The candidate beside another in some direction, or the same one at the end of the road."""

BETTER = 1.005  # smaller gains are noise


def climb(trials: Trials, stage: str, start: Tuned, moves: Sequence[Move]) -> Tuned:
    """The best that single moves lead to, each repeated while it helps; at latest when the time is over."""
    best, seen = start, None
    while best != seen:
        seen = best
        for move in moves:
            while trials.rate(stage, move(best)) > BETTER * trials.rate(stage, best):
                best = move(best)
    return best


def change_share(factor: float) -> Move:
    """The CPU's part of each batch, by the odds."""

    def move(candidate: Tuned) -> Tuned:
        decoders = _decoders(candidate)
        if not decoders.cpu_workers:
            return candidate
        return shared(candidate, cpu_share=with_odds(decoders.cpu_share, factor), cpu_workers=decoders.cpu_workers)

    return move


def change_workers(step: int, most: int) -> Move:
    """Worker processes, with the share that as much work for each of them means."""

    def move(candidate: Tuned) -> Tuned:
        decoders = _decoders(candidate)
        workers = min(max(decoders.cpu_workers + step, 1), most)
        if not decoders.cpu_workers:
            return candidate
        share = with_odds(decoders.cpu_share, workers / decoders.cpu_workers)
        return shared(candidate, cpu_share=share, cpu_workers=workers)

    return move


def change_threads(step: int, most: int) -> Move:
    """DALI's threads."""

    def move(candidate: Tuned) -> Tuned:
        count = min(max(threads(candidate) + step, 1), most)
        return dali_engine(count, _decoders(candidate), candidate.prefetch_factor)

    return move


def change_load(step: float) -> Move:
    """The hardware engines' part of what DALI decodes."""

    def move(candidate: Tuned) -> Tuned:
        decoders = _decoders(candidate)
        load = min(max(decoders.hw_decoder_load + step, 0.0), 1.0)
        return dali_engine(threads(candidate), replace(decoders, hw_decoder_load=load), candidate.prefetch_factor)

    return move


def switch_crop(candidate: Tuned) -> Tuned:
    """Decoding the crop's window alone, or the whole image."""
    decoders = _decoders(candidate)
    other = replace(decoders, crop_decode=not decoders.crop_decode)
    return dali_engine(threads(candidate), other, candidate.prefetch_factor)


def _decoders(candidate: Tuned) -> Decoders:
    assert candidate.decoders is not None, "only DALI's settings are changed"
    return candidate.decoders
