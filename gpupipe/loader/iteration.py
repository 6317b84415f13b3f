"""One iteration over a loader: the batches from where it stands to the end of the epoch.

An error takes the place of the batch that it kept from coming: `next` raises it, and the next `next` gives the batch
after that, as a DataLoader's iterator does. A Ctrl-C takes no place: the batch comes when it is asked for again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gpupipe.errors import GpupipeError
from gpupipe.loader.accelerate import Announcement
from gpupipe.loader.supply import Ended, Failed

if TYPE_CHECKING:
    from gpupipe.loader.loader import Loader

__all__ = ["Iteration", "in_finalizer"]


class Iteration:
    """The iterator of a Loader.

    It begins, and its workers start, when it is made; but if another iteration of the loader is under way, only when
    its first batch is asked for. Until then `set_epoch`, `load_state_dict` and other iterations leave it as it is.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._turn: int | None = None
        self._at = loader._place.point  # what comes next, once it has begun
        self._end = (0, 0)
        self._given = self._over = False
        self._announcement: Announcement | None = None
        if loader._running is None:
            with suppress(Exception):  # it comes again, for whom asks for the first batch
                self._begin()

    def __iter__(self) -> Iteration:
        return self

    def __len__(self) -> int:
        """Batches in the whole epoch, as a DataLoader's iterator has it. Raises TypeError where the Loader does."""
        return len(self._loader)

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        self._check()
        loader = self._loader
        if self._turn != loader._place.turn:
            self._begin()
        at = self._at
        if at.key >= self._end:
            self._leave(at_end=True)
            loader._tally.end(at.epoch)
            loader._place.ended()
            raise StopIteration
        item = loader._counted(loader._supply.take(at))
        if self._announcement is None:
            self._announcement = Announcement(loader._remainder)
        if isinstance(item, Ended):
            self._end = at.key
            return self.__next__()
        if isinstance(item, Failed):
            self._at = at.following
            loader._met(item.bad, at.epoch)
            raise item.taken()
        batch = loader._handed_out(item)
        # Last: a batch that a Ctrl-C keeps from being finished has not been delivered.
        self._at = at.following
        self._given = True
        if item.batch.job.ends is not None:  # a stream's end has shown
            self._end = self._at.key
        is_last = self._at.key >= self._end
        self._announcement.delivered(is_last, loader._remainder)
        if is_last:  # not every training loop asks for the end
            loader._tally.end(at.epoch)
        return batch

    def close(self) -> None:
        """End what is under way. May be called twice."""
        self._leave(at_end=False)

    def __del__(self) -> None:
        if in_finalizer is not None and hasattr(self, "_announcement"):  # None: the interpreter takes itself apart
            in_finalizer(self.close)

    @property
    def under_way(self) -> bool:
        """Whether it has given a batch and may give more."""
        return self._given and not self._over and self._turn == self._loader._place.turn

    def _check(self) -> None:
        self._loader._supply.check_open()
        if self._given and self._turn != self._loader._place.turn:
            raise GpupipeError(
                "this iterator has ended, because a newer one, set_epoch() or load_state_dict() on the same Loader "
                "took over; build a second Loader to read two epochs at the same time"
            )

    def _begin(self) -> None:
        self._check()
        loader = self._loader
        loader._check_unchanged()
        turn = loader._place.begin()
        self._at = loader._place.point
        self._end = (self._at.epoch, len(loader.batches))  # for which an order may have to be listed, and fail
        self._turn = turn
        loader._begun(self)
        loader._supply.begin(self._turn, self._at, loader.mixup_enabled)

    def _leave(self, at_end: bool) -> None:
        if self._turn is not None and not self._over:
            self._loader._supply.leave(self._turn, at_end)
        self._over = True
        if self._announcement is not None:
            self._announcement.end()
            self._announcement = None


def in_finalizer(end: Callable[[], None]) -> None:
    """Call it where an exception reaches nobody, so that `interrupts_held` raises no KeyboardInterrupt there."""
    try:
        raise GeneratorExit
    except GeneratorExit:
        end()
