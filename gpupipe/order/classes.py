"""Labels as classes."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpupipe.errors import ConfigError
from gpupipe.order.protocol import Indices, as_array

__all__ = ["classes_of"]


def classes_of(where: str, labels: ArrayLike) -> tuple[NDArray[np.integer], Indices, Indices]:
    """The C different labels in ascending order, each sample's place among them (N,), and each one's samples (C,).

    Raises ConfigError, whose message begins with `where`, unless `labels` is one list of one integer or more.
    """
    array = as_array(f"{where}: labels", labels)
    if array.ndim != 1 or not len(array) or not np.issubdtype(array.dtype, np.integer):
        raise ConfigError(
            f"{where}: labels must be one list of integers, such as source.targets; got {array.dtype} of shape "
            f"{array.shape}"
        )
    found, of_sample, counts = np.unique(array, return_inverse=True, return_counts=True)
    return found, of_sample.astype(np.int64), counts.astype(np.int64)
