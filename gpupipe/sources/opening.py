"""From what a user passes to a source."""

from __future__ import annotations

import os
import sys
from typing import Any, TypeGuard

from gpupipe.errors import ConfigError
from gpupipe.sources.base import Source
from gpupipe.sources.dataset import DatasetSource
from gpupipe.sources.folder import open_folder
from gpupipe.sources.patterns import is_url
from gpupipe.sources.shards import open_shards
from gpupipe.sources.subset import SubsetSource

__all__ = ["open_source"]

METHODS = ("__len__", "meta", "read", "fetch", "location", "key", "paths")


def open_source(data: Any, *, label_field: str = "label", rebuild: bool = False) -> Source:
    """The source for `data`:

    - a path of a folder: an image folder with one sub-folder per class;
    - a path, brace pattern or glob of .tar files, or a list of these: WebDataset shards;
    - an object with `__len__` and `__getitem__` that gives (encoded bytes, label);
    - a source, which is returned as it is, or a `torch.utils.data.Subset` of one, as `random_split` gives it.

    `label_field` is the field of a shard's `.json` members that holds the label; `rebuild` indexes again even if the
    index is fresh. Raises DataError where the data is missing or unfit, ConfigError for anything else.
    """
    if _is_source(data):
        return data
    if _is_subset(data):
        return SubsetSource(open_source(data.dataset), data.indices)
    if isinstance(data, (str, os.PathLike)):
        return _open_path(os.fspath(data), label_field, rebuild)
    if isinstance(data, (list, tuple)) and all(isinstance(part, (str, os.PathLike)) for part in data):
        return open_shards(data, label_field=label_field, rebuild=rebuild)
    if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        return DatasetSource(data)
    raise ConfigError(
        f"data is {type(data).__name__}: pass a folder, .tar shards (a path, a pattern, a list), "
        "or an object with __len__ and __getitem__ that gives (encoded bytes, label)"
    )


def _open_path(path: str, label_field: str, rebuild: bool) -> Source:
    folder = os.path.expanduser(path)
    looks_like_shards = os.path.isfile(folder) or any(mark in path for mark in "{*?[")
    looks_like_shards = looks_like_shards or path.endswith(".tar") or is_url(path)
    if looks_like_shards and not os.path.isdir(folder):
        return open_shards([path], label_field=label_field, rebuild=rebuild)
    return open_folder(folder, rebuild=rebuild)


def _is_source(data: Any) -> TypeGuard[Source]:
    # not isinstance with a runtime protocol: that would evaluate properties, and `targets` may raise
    return all(callable(getattr(type(data), name, None)) for name in METHODS)


def _is_subset(data: Any) -> bool:
    """Whether it is torch's Subset of a source; of a class of the user's own `__getitem__` may do something else."""
    torch_data = sys.modules.get("torch.utils.data")  # torch is imported where that is so
    if torch_data is None or type(data) is not torch_data.Subset:
        return False
    return _is_source(data.dataset) or _is_subset(data.dataset)
