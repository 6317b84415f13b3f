"""The sizes of images whose index does not tell them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpupipe.kernels import plain_sizes
from gpupipe.sources.headers import MOST_PIXELS, header_of

__all__ = ["NOTHING", "headers_of"]

NOTHING: NDArray[np.uint8] = np.empty(0, np.uint8)


def headers_of(images: Sequence[NDArray[np.uint8]]) -> NDArray[np.int32]:
    """`header_of` each image: (N, 3). Plain JPEGs by a kernel, in 2 us each and not 10."""
    files = [data if data.ndim == 1 and data.flags.c_contiguous else NOTHING for data in images]
    sizes = plain_sizes(files, MOST_PIXELS)
    headers = np.concatenate([sizes, np.ones((len(files), 1), np.int32)], axis=1)
    for row in np.flatnonzero(sizes[:, 0] == 0).tolist():
        headers[row] = header_of(images[row])
    return headers
