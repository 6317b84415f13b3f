"""A Loader in the form that `transformers.Trainer` takes: batches as dicts, and a resume that skips without loading.

To resume, the Trainer has `accelerate.skip_first_batches` build a DataLoader from the parts of the one that it was
given: the `dataset`, and the `batch_sampler` without its first entries. So here the entries are the steps of an epoch,
and the dataset gives the batch of a step; what is skipped is never loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.utils.data

from gpupipe.errors import ConfigError
from gpupipe.loader.loader import Loader
from gpupipe.sources.raised import form_of

__all__ = ["TrainerLoader"]

Batch = dict[str, Any]


class TrainerLoader:
    """What `get_train_dataloader`, `get_eval_dataloader` and `get_test_dataloader` of a `transformers.Trainer` return.

    loader:         gives the batches.
    images, labels: the names under which the model's `forward` takes them.

    Iterating yields {images: (N, 3, height, width), labels: (N,)}, as `loader` gives them; batches that are dicts, as
    those with `fields` are, as they are: give the fields the names that the model takes. `resume_from_checkpoint`
    goes on at the checkpoint's step, to the bit, without loading what came before it. The Trainer itself keeps the
    step; that the data, the seed and the batch size are those of before is up to the program. Raises ConfigError for
    anything else than a Loader, and for batches of other forms.
    """

    prefetch_factor = None  # else a DataLoader that is built from the parts has accelerate's 2, which needs workers

    def __init__(self, loader: Loader, images: str = "pixel_values", labels: str = "labels") -> None:
        if not isinstance(loader, Loader):
            raise ConfigError(
                f"TrainerLoader: got {loader!r}, no gpupipe.Loader; where eval_dataset is a dict, the Trainer passes a "
                "name in it: take self.eval_dataset[name]"
            )
        self.loader = loader
        self.sampler = loader.sampler
        self.dataset = _Epoch(self)
        self.batch_sampler = _Steps(self)
        self._names = (images, labels)
        self._epoch_was_set = False

    @property
    def batch_size(self) -> int:
        """Samples per batch of this rank."""
        return self.loader.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether a last batch that is not full is left out."""
        return self.loader.drop_last

    def __len__(self) -> int:
        """Batches in an epoch: the same on every rank."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        """The epoch's batches."""
        return map(self._named, self.loader)

    def _named(self, batch: Any) -> Batch:
        if isinstance(batch, Mapping):
            return dict(batch)
        if not isinstance(batch, tuple | list) or len(batch) != len(self._names):
            raise ConfigError(
                f"TrainerLoader: a batch is {form_of(batch)}, but it must be images and labels, or a dict under the "
                "names that the model takes: give the Loader's fields these names, or let collate_fn make a dict"
            )
        return dict(zip(self._names, batch, strict=True))

    def begin_at(self, step: int) -> Iterator[Batch]:
        """The batches of the current epoch from `step` on. Raises ConfigError where `set_epoch` was never called."""
        if step and not self._epoch_was_set:
            raise ConfigError(
                f"TrainerLoader: batch {step} was asked for before set_epoch, so the epoch to resume in is not known; "
                "this version of transformers does not pass it on: upgrade it"
            )
        position = self.loader.batches.delivered(step)
        self.loader.load_state_dict({**self.loader.state_dict(), "position": position})
        return iter(self)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch."""
        self._epoch_was_set = True
        self.loader.set_epoch(epoch)

    @staticmethod
    def collate_fn(batches: list[Batch]) -> Batch:
        """The one batch that a DataLoader built from the parts has at each step."""
        (batch,) = batches
        return batch


class _Steps(torch.utils.data.Sampler[list[int]]):
    """The steps of an epoch, each in a list of its own."""

    def __init__(self, batches: TrainerLoader) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        try:
            for step in range(len(self)):
                yield [step]
        finally:
            self._batches.dataset.close()

    def set_epoch(self, epoch: int) -> None:
        """The Trainer calls it here where the DataLoader was built from the parts."""
        self._batches.set_epoch(epoch)


class _Epoch(torch.utils.data.Dataset[Batch]):
    """The batches of the current epoch by their step; asked for in turn, they are made ahead as ever."""

    def __init__(self, batches: TrainerLoader) -> None:
        self._batches = batches
        self._iterator: Iterator[Batch] | None = None
        self._next = 0

    def __len__(self) -> int:
        """Samples of an epoch, which is what the Trainer wants to know of a dataset."""
        return len(self._batches.loader.order)

    def __getitem__(self, step: int) -> Batch:
        if self._iterator is None or step != self._next:
            self._iterator = self._batches.begin_at(step)
        self._next = step + 1
        return next(self._iterator)

    def close(self) -> None:
        """End the iteration."""
        self._iterator = None
