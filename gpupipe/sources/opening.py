"""From what a user passes to a source."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

from gpupipe.errors import ConfigError, DataError
from gpupipe.host.files import is_folder
from gpupipe.sources.dataset import DatasetSource
from gpupipe.sources.folder import EXTENSIONS, open_folder
from gpupipe.sources.packed import check_whole
from gpupipe.sources.patterns import is_url
from gpupipe.sources.refusals import refuse, refuse_list, refuse_path
from gpupipe.sources.shards import open_shards
from gpupipe.sources.source import Source
from gpupipe.sources.subset import SubsetSource

__all__ = ["names_files", "open_source"]

SHARD = re.compile(r"[^.].*\.tar$")  # no hidden file, such as those that macOS puts beside what it copies


def open_source(data: Any, *, label_field: str = "label", rebuild: bool = False) -> Source:
    """The source for `data`:

    - a path of a folder: an image folder with one sub-folder per class, or .tar shards, as `gpupipe pack` writes them;
    - a path, brace pattern or glob of .tar files, or a list of these: WebDataset shards;
    - an object with `__len__` and `__getitem__` that gives (encoded bytes, label);
    - a source, which is returned as it is, or a `torch.utils.data.Subset` of one, as `random_split` gives it.

    `label_field` is the field of a shard's `.json` members that holds the label; `rebuild` indexes again even if the
    index is fresh. Raises DataError where the data is missing or unfit, ConfigError for anything else.
    """
    if isinstance(data, Source):
        return data
    if _is_subset(data):
        return SubsetSource(open_source(data.dataset), data.indices)
    if isinstance(data, (str, os.PathLike)):
        return _open_path(os.fspath(data), label_field, rebuild)
    refuse(data)
    if names_files(data):
        refuse_list([os.fspath(part) for part in data])
        return open_shards(data, label_field=label_field, rebuild=rebuild)
    if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        return DatasetSource(data)
    raise ConfigError(
        f"data is {type(data).__name__}: pass a folder, .tar shards (a path, a pattern, a list), "
        "or an object with __len__ and __getitem__ that gives (encoded bytes, label)"
    )


def names_files(data: Any) -> bool:
    """Whether it is a path or several, rather than an object that has the samples."""
    parts = data if isinstance(data, (list, tuple)) else [data]
    return all(isinstance(part, (str, os.PathLike)) for part in parts)


def _open_path(path: str, label_field: str, rebuild: bool) -> Source:
    refuse_path(path)
    folder = os.path.expanduser(path)
    looks_like_shards = os.path.exists(folder) or any(mark in path for mark in "{*?[")
    looks_like_shards = looks_like_shards or path.endswith(".tar") or is_url(path)
    if looks_like_shards and not os.path.isdir(folder):
        return open_shards([path], label_field=label_field, rebuild=rebuild)
    shards = _shards_in(folder)
    if not shards:
        return _open_image_folder(folder, rebuild)
    images = _first_image_below(folder)
    if images is not None:
        raise ConfigError(
            f"{folder} holds .tar files ({os.path.basename(shards[0])}) and class folders with images ({images}): pass "
            f"{os.path.join(path, '*.tar')!r} for the shards, or move them away to have the image folder"
        )
    check_whole(folder, shards)
    return open_shards(shards, label_field=label_field, rebuild=rebuild)


def _open_image_folder(folder: str, rebuild: bool) -> Source:
    try:
        return open_folder(folder, rebuild=rebuild)
    except DataError as error:
        shards = [below.path for below in _folders_in(folder) if _shards_in(below.path)]
        if not shards or _first_image_below(folder) is not None:
            raise
        raise ConfigError(
            f"{folder} has no images, but {len(shards)} of its folders hold .tar shards: pass one, as {shards[0]}"
        ) from error


def _shards_in(folder: str) -> list[str]:
    """What is named as a .tar file in a folder, by name; what is none is refused when it is opened, not left out."""
    if not os.path.isdir(folder):
        return []
    with os.scandir(folder) as entries:
        return sorted(entry.path for entry in entries if SHARD.match(entry.name) and not is_folder(entry))


def _folders_in(folder: str) -> list[os.DirEntry[str]]:
    if not os.path.isdir(folder):
        return []
    with os.scandir(folder) as entries:
        return sorted((entry for entry in entries if is_folder(entry)), key=lambda entry: entry.name)


def _first_image_below(folder: str) -> str | None:
    """The path below `folder` of an image in one of its folders, or in theirs; None if there is none."""
    seen = set()  # links may lead to folders above, or to one folder from many
    for below in _folders_in(folder):
        for place, folders, files in os.walk(below.path, followlinks=True):
            stat = os.stat(place)
            if (stat.st_dev, stat.st_ino) in seen:
                folders.clear()
                continue
            seen.add((stat.st_dev, stat.st_ino))
            for file in sorted(files):
                if file.lower().endswith(EXTENSIONS):
                    return os.path.relpath(os.path.join(place, file), folder)
    return None


def _is_subset(data: Any) -> bool:
    """Whether it is torch's Subset of a source; of a class of the user's own `__getitem__` may do something else."""
    torch_data = sys.modules.get("torch.utils.data")  # torch is imported where that is so
    if torch_data is None or type(data) is not torch_data.Subset:
        return False
    return isinstance(data.dataset, Source) or _is_subset(data.dataset)
