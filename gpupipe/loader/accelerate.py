"""Tells Hugging Face Accelerate where in its epoch a loader stands, as Accelerate's own data loaders do.

`Accelerator.prepare` leaves a Loader as it is. But `gather_for_metrics` and `accumulate` ask Accelerate's GradientState
whether the batch at work is an epoch's last, and how many samples the last global batch has.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["Announcement"]


class Announcement:
    """An iteration, announced to Accelerate from its first batch to its last if the program uses it.

    remainder: samples of the last global batch, 0 if it is full.

    Accelerate keeps one pile of the loaders that are being iterated and asks the one that began last; so a loop over a
    second loader inside a loop over a first works, and a loop that takes turns between two hears of the later only.
    """

    def __init__(self, remainder: int) -> None:
        self._place = _place()
        if self._place is not None:
            self._place.begin()
            self._place.remainder = remainder

    def delivered(self, is_last: bool, remainder: int) -> None:
        """The batch at work is the epoch's last, or it is not. remainder: as it is known now."""
        if self._place is not None:
            self._place.end_of_dataloader, self._place.remainder = is_last, remainder

    def end(self) -> None:
        """The iteration is over."""
        if self._place is not None:
            self._place.end()


def _place() -> Any:
    """What Accelerate keeps of a loader that is being iterated, or None where no Accelerator has been made."""
    state = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    if state is None or not getattr(state, "_shared_state", None):
        return None
    from accelerate.data_loader import DataLoaderStateMixin

    place: Any = DataLoaderStateMixin()
    place.gradient_state = state()
    return place
