"""Any map-style torch Dataset, whatever its items are."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch import Columns
from gpupipe.errors import ConfigError, DataError
from gpupipe.sources.dataset import UserSource

__all__ = ["ItemSource"]


class ItemSource(UserSource):
    """The items of a user's dataset as they are: there are no fields, but the column "items", a list.

    Raises ConfigError for what is no map-style dataset, DataError for one without samples.
    """

    fields = None  # type: ignore[assignment]  # what an item holds is the dataset's own affair

    def __init__(self, dataset: Any) -> None:
        _check(dataset)
        super().__init__(dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]

    def fetch(self, indices: NDArray[np.int64], before: Callable[[int], None] | None = None) -> Columns:
        """The items, with one `__getitem__` for each; `before` is called with its row before each of them.

        Raises SampleError, with the dataset's own exception as its cause.
        """
        return {"items": list(self.items(indices, before))}

    @property
    def gives_several(self) -> bool:
        """Whether the dataset has a `__getitems__` by which torch's DataLoader reads a batch.

        That of torch's Subset counts if the dataset in it has one: else it only asks for one item after the other.
        """
        from torch.utils.data import Subset

        dataset = self.dataset
        while isinstance(dataset, Subset) and type(dataset).__getitems__ is Subset.__getitems__:
            dataset = dataset.dataset
        return bool(getattr(dataset, "__getitems__", None))

    def several(self, indices: NDArray[np.int64]) -> Sequence[Any]:
        """The items by one call of `__getitems__`. Raises what that raises, DataError for another number of items."""
        items: Sequence[Any] = self.dataset.__getitems__(indices.tolist())
        if len(items) != len(indices):
            raise DataError(f"{type(self.dataset).__name__}.__getitems__ gave {len(items)} items for {len(indices)}")
        return items


def _check(dataset: Any) -> None:
    from torch.utils.data import IterableDataset

    if isinstance(dataset, str | os.PathLike):
        raise ConfigError(
            f"data={os.fspath(dataset)!r} names files, which recipe=None does not read: pass a recipe, such as "
            "gpupipe.imagenet_train(224), or a dataset that reads them"
        )
    map_style = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if isinstance(dataset, IterableDataset) or not map_style:
        raise ConfigError(
            f"data is {type(dataset).__name__}, but recipe=None needs a map-style dataset, with __len__ and "
            "__getitem__, as samples are asked for by their number, so as to shuffle and to resume anywhere"
        )
