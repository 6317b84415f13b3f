"""The loader that the parts `host` and `memory` look at: as tuned, else as it comes with DALI."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gpu.arguments import say
from gpupipe.tools.benchmark.contenders import Batch, load
from gpupipe.tools.benchmark.measurement import BenchSettings

__all__ = ["device", "feed"]


def device() -> torch.device:
    """The GPU; the CPU where there is none, to try things."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def feed(settings: BenchSettings) -> Iterator[Iterator[Batch]]:
    """Batches without end from gpupipe, closed at the end."""
    contender = load("gpupipe-tuned")
    reason = contender.available(settings)
    if reason is not None:
        say(f"not as tuned: {reason}")
        contender = load(f"gpupipe-dali-{'gpu' if device().type == 'cuda' else 'cpu'}")
    stream = contender.open(settings)
    try:
        yield iter(stream)
    finally:
        stream.close()
