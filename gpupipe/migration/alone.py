"""What is said where each of several ranks reads all samples, as the DataLoader had no distributed sampler."""

from __future__ import annotations

import logging

from gpupipe.loader.distributed import rank_and_world_size

__all__ = ["ReadsAll"]

log = logging.getLogger("gpupipe")


class ReadsAll:
    """Asked when a loader is built and when an iteration begins, by when a trainer may have started the ranks: warns
    once. sampler: the DataLoader's; samples: that each rank reads."""

    def __init__(self, sampler: str, samples: int) -> None:
        self._sampler, self._samples = sampler, samples
        self._was_said = False

    def __call__(self, world_size: int) -> None:
        ranks = rank_and_world_size(None, None)[1]
        if self._was_said or ranks <= world_size:
            return
        self._was_said = True
        log.warning(
            "gpupipe: from_dataloader: each of %d ranks reads all %d samples, as the DataLoader's %s shares nothing "
            "out, and a Lightning Trainer or accelerator.prepare, which share a DataLoader's samples out by "
            "themselves, leave a Loader's as they are: pass rank=None, world_size=None where ranks are to share them, "
            "rank=0, world_size=1 where each is to read all",
            ranks,
            self._samples,
            self._sampler,
        )
