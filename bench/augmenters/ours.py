"""gpupipe.kernels: `augment` and `finish`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle

import torch

from augmenters.work import MEAN, STD, Finish, Work, program
from gpupipe.kernels import augment, finish

__all__ = ["Ours", "finished"]


class Ours:
    """As the loader calls them."""

    same = True
    per_image = True
    ahead = 0

    def open(self, work: Work, ring: Sequence[torch.Tensor]) -> Callable[[], torch.Tensor]:
        """The draws are arrays on the host, and travel with every batch."""
        batches, form = cycle(ring), work.finish
        if work.draws is None:
            assert form is not None
            return lambda: finished(next(batches), form)
        ops, values = program(work.draws, ring[0].shape[1])
        if form is None:
            return lambda: augment(next(batches), ops, values)
        return lambda: finished(augment(next(batches), ops, values), form)


def finished(images: torch.Tensor, form: Finish) -> torch.Tensor:
    """Normalized, erased, mixed, cast."""
    return finish(images, MEAN, STD, form.dtype, form.channels_last, erase=form.erase, mix=form.mix)
