"""Where a loader stands: what it has delivered of which epoch, and where its next iteration begins."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from gpupipe.order import RankBatches

__all__ = ["Place", "Point"]

log = logging.getLogger("gpupipe")


@dataclass(frozen=True)
class Point:
    """A step of an epoch that is cut into steps by `batches`."""

    epoch: int
    step: int
    batches: RankBatches

    @property
    def key(self) -> tuple[int, int]:
        """Epoch and step."""
        return self.epoch, self.step

    @property
    def following(self) -> Point:
        """The next step; after the last one the next epoch's first."""
        return (
            self.later(self.epoch, self.step + 1)
            if self.step + 1 < len(self.batches)
            else self.later(self.epoch + 1, 0)
        )

    @property
    def is_full(self) -> bool:
        """Whether the global batch is a full one."""
        return self.batches.samples(self.step) == self.batches.global_batch

    def ending(self, samples: int | None) -> Point:
        """The same step of an epoch that has shown to have so many samples; None: it has not."""
        return self if samples is None else replace(self, batches=replace(self.batches, size=samples))

    def later(self, epoch: int, step: int) -> Point:
        """A step of this epoch, or of one that follows."""
        return Point(epoch, step, self.batches if epoch == self.epoch else self.batches.at(epoch))


class Place:
    """`epoch` and `step`: so many of the epoch's steps are delivered. `batches`: how the epoch is cut into steps.

    turn: counts iterations and whatever ends one, so that an iterator notices that something has come between.
    """

    def __init__(self, batches: RankBatches) -> None:
        self.batches = batches
        self.epoch = self.step = self.turn = 0
        self._used = False  # an iteration has delivered something of the epoch
        self._again = False  # the next one begins the epoch anew all the same, as set_epoch has said
        self._told = False

    @property
    def point(self) -> Point:
        """The step to deliver next; of an epoch that is over none, but where one would stand."""
        return Point(self.epoch, self.step, self.batches)

    def begin(self) -> int:
        """An iteration begins; returns its turn.

        Where the one before was left after it had delivered something, and nobody has said where to go on, that is the
        next epoch: as in a DataLoader, whose every iteration is shuffled anew.
        """
        if self._used:
            if not self._again:
                self._tell()
            self._go(self.epoch + (not self._again))
        self.turn += 1
        return self.turn

    def delivered(self, step: int) -> None:
        """The batch of that step has been handed out."""
        self.step = step + 1
        self._used, self._again = True, False

    def ended(self) -> None:
        """The epoch is over."""
        self._go(self.epoch + 1)

    def set_epoch(self, epoch: int, running: bool) -> None:
        """Go to the start of an epoch. The current one goes on where a loaded state has put it.

        running: whether an iteration is under way, which goes on if the epoch is its own.
        """
        if epoch != self.epoch:
            if not self._used and 0 < self.step < len(self.batches):
                log.warning(
                    "gpupipe: set_epoch(%d) drops the loaded state, which stands in epoch %d; to go on there, begin "
                    "the training loop with range(loader.epoch, epochs)",
                    epoch,
                    self.epoch,
                )
            self._go(epoch)
            self.turn += 1  # an iteration of the old epoch is over
        elif running:
            self._again = True
        elif self._used:
            self._go(epoch)

    def load(self, epoch: int, position: int, origin: int) -> None:
        """Go on after that many global positions of an epoch, whose batches are cut from `origin` on."""
        self._go(epoch)
        self.batches = replace(self.batches, origin=origin)
        self.step = self.batches.step_at(position)
        self.turn += 1

    def _go(self, epoch: int) -> None:
        self.epoch, self.step = epoch, 0
        self._used = self._again = False
        self.batches = self.batches.at(epoch)

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            log.info(
                "gpupipe: the iteration of epoch %d was left after %d of %d batches; the next one is epoch %d, and so "
                "on (set_epoch goes to any; a state saved before goes on where the epoch was left)",
                self.epoch,
                self.step,
                len(self.batches),
                self.epoch + 1,
            )
