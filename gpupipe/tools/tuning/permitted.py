"""Which decoders the machine's self-test lets a tuning try."""

from __future__ import annotations

import torch

from gpupipe.decode.selftest import find_verdict, fitted
from gpupipe.tools.tuning.search_gpu import Allowed

__all__ = ["permitted"]


def permitted(device: torch.device) -> Allowed:
    """Says of decoders whether they may be used on `device`. On a GPU the self-test is made, if it was not yet."""
    if device.type != "cuda":
        return lambda decoders: True
    verdict = find_verdict(device)
    return lambda decoders: fitted(decoders, verdict) == decoders
