"""Tells Hugging Face Accelerate where in its epoch a loader stands, as Accelerate's own data loaders do.

`Accelerator.prepare` leaves a Loader as it is. But `gather_for_metrics` and `accumulate` ask Accelerate's GradientState
whether the batch at work is an epoch's last, and how many samples the last global batch has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

__all__ = ["announced"]

T = TypeVar("T")


def announced(batches: Iterator[T], is_last: Callable[[], bool], remainder: int) -> Iterator[T]:
    """`batches`, announced to Accelerate from the first to the last if the program uses it.

    is_last:   whether the batch just handed out is the epoch's last.
    remainder: samples of the last global batch, 0 if it is full.

    Accelerate keeps one pile of the loaders that are being iterated and asks the one that began last; so a loop over a
    second loader inside a loop over a first works, and a loop that takes turns between two hears of the later only.
    """
    place = _place()
    if place is None:
        yield from batches
        return
    place.begin()
    place.remainder = remainder
    try:
        for batch in batches:
            place.end_of_dataloader = is_last()
            yield batch
            del batch  # its memory is free for the next one as soon as the consumer has done with it
    finally:
        place.end()


def _place() -> Any:
    """What Accelerate keeps of a loader that is being iterated, or None where no Accelerator has been made."""
    state = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    if state is None or not getattr(state, "_shared_state", None):
        return None
    from accelerate.data_loader import DataLoaderStateMixin

    place: Any = DataLoaderStateMixin()
    place.gradient_state = state()
    return place
