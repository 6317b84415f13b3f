"""From what a user passes to a source."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from gpupipe.batch import Field, Frames, Schema
from gpupipe.errors import ConfigError, DataError
from gpupipe.host.files import is_folder
from gpupipe.sources.dataset import DatasetSource
from gpupipe.sources.folder import EXTENSIONS, open_folder
from gpupipe.sources.mixture import Mixture, MixtureSource
from gpupipe.sources.needing import library
from gpupipe.sources.packed import MARKS, packing_in
from gpupipe.sources.patterns import SHARD, expand_shards, is_url
from gpupipe.sources.refusals import refuse, refuse_list, refuse_path, refuse_urls
from gpupipe.sources.remote.objects import is_remote, name, shown
from gpupipe.sources.shards import open_shards
from gpupipe.sources.source import Source
from gpupipe.sources.stores.kinds import store_opener
from gpupipe.sources.stream import Stream, StreamSource, is_iterable_dataset
from gpupipe.sources.subset import SubsetSource
from gpupipe.sources.tables.files import Parquet, names_parquet
from gpupipe.sources.tables.settings import Manifest, Query

__all__ = ["names_files", "open_source", "shards_of"]

Open = Callable[[Any], Source]

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson")


def open_source(
    data: Any,
    *,
    fields: Mapping[str, Field] | None = None,
    rebuild: bool = False,
    label_field: str = "label",
    index: str | os.PathLike[str] | None = None,
    cache: Any = "auto",
) -> Source:
    """The source for `data`:

    - a path of a folder: an image folder, or .tar shards, as `gpupipe pack` writes them;
    - a path, brace pattern or glob of .tar files, or a list of these: WebDataset shards;
    - the same of .parquet files, of which a folder may have others below it, or a `Parquet`;
    - a path of a .zip archive of an image folder, of an LMDB database, or of arrays: HDF5, .npz, .npy; a dict of
      paths of .npy files, each with the name that its array has here;
    - a Hugging Face dataset, or the folder to which one was saved by `save_to_disk`;
    - a table that lists samples, in a file (.csv, .tsv, .jsonl, .ndjson, or a `Manifest`) or in a database (a
      `Query`);
    - an object with `__len__` and `__getitem__` that gives samples: tuples, dicts, or single values;
    - a torch (or Hugging Face) IterableDataset, or a `Stream`: samples in a sequence;
    - with `Frames` among the fields videos: a folder of them by class, a list, .tar shards; see docs/guide/video.md;
    - a source, which is returned as it is, or a `torch.utils.data.Subset` of one, as `random_split` gives it;
    - a `Mixture` of any of these but streams.

    fields: what a sample has; None: `image` and `label`, a class number. See `gpupipe.Field` for where a field
    lies in each kind of data. rebuild: index again even if the index is fresh, and read sizes of images
    again that it does not have. label_field: the key of a shard's `.json` members that holds the class number. index:
    the file that `gpupipe index URL --out FILE` has written, for shards by URL. cache: what a disk keeps of data by
    URL: "auto", a folder, a size, a `Cache`, or None.

    Raises DataError where the data is missing or unfit, ConfigError for anything else.
    """
    source = _open(data, fields, rebuild, label_field, index, cache)
    if rebuild and source is not data:
        source.rebuilt = time.time()
    return source


def _open(
    data: Any,
    fields: Mapping[str, Field] | None,
    rebuild: bool,
    label_field: str,
    index: str | os.PathLike[str] | None,
    cache: Any,
) -> Source:
    if isinstance(data, Source):
        if cache != "auto":
            raise ConfigError(f"cache={cache!r}: {data!r} is opened already; pass it to open_source")
        return _with_fields(data, fields)
    if isinstance(data, Mixture):
        opened = partial(open_source, fields=fields, rebuild=rebuild, label_field=label_field)
        parts = [(part, "auto" if isinstance(part, Source) else cache) for part, _ in data.sources.values()]
        return MixtureSource(data, [opened(part, cache=own) for part, own in parts])
    if _is_subset(data):
        return SubsetSource(open_source(data.dataset, fields=fields, rebuild=rebuild, cache=cache), data.indices)
    if any(isinstance(field, Frames) for field in (fields or {}).values()):
        return _open_videos(data, Schema.of(fields), rebuild)
    if (urls := _urls(data)) is not None:
        given = None if index is None else os.fspath(index)
        return _by_url(urls, fields, rebuild=rebuild, label_field=label_field, index=given, cache=cache)
    if index is not None:
        raise ConfigError(f"index={index!r} is for .tar shards by URL, and the data is none of these: leave it out")
    if fields is None and isinstance(data, (str, os.PathLike)) and (packing := packing_in(os.path.expanduser(data))):
        fields = packing.fields
    if _is_parquet(data) or _is_table(data):
        return _open_table(data, fields, rebuild, cache)
    if cache != "auto":
        raise ConfigError(f"cache={cache!r} is for data by URL, and {data!r} is none: leave it out")
    store = store_opener(data)
    if store is not None:
        return store(fields, rebuild=rebuild)
    data = _loaded(data)
    if _is_hugging_face(data):
        from gpupipe.sources.tables.hugging_face import open_hugging_face

        return open_hugging_face(data, fields)
    shards = partial(open_shards, fields=fields, label_field=label_field, rebuild=rebuild)
    if isinstance(data, (str, os.PathLike)):
        return _opened(os.fspath(data), shards, partial(open_folder, fields=fields, rebuild=rebuild))
    if isinstance(data, Stream) or is_iterable_dataset(data):
        return StreamSource(data if isinstance(data, Stream) else Stream(data), fields)
    refuse(data, usual=fields is None)
    if names_files(data):
        refuse_list([os.fspath(part) for part in data])
        return shards(data)
    if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        return DatasetSource(data, fields)
    raise ConfigError(
        f"data is {type(data).__name__}: pass a folder, .tar shards (a path, a pattern, a list), an object with "
        "__len__ and __getitem__ that gives samples, or gpupipe.Stream(...) of a function that makes iterators"
    )


def _open_videos(data: Any, schema: Schema, rebuild: bool) -> Source:
    if names_files(data):
        from gpupipe.sources.videos.opening import open_videos

        return open_videos(data, schema, rebuild)
    if isinstance(data, Mapping) or is_iterable_dataset(data) or not hasattr(data, "__getitem__"):
        raise ConfigError(f"data is {type(data).__name__}: videos are of files, or of a dataset with __getitem__")
    return DatasetSource(data, schema)


def _urls(data: Any) -> list[str] | None:
    """The URLs that it is, of shards or a folder; None for what is none. Raises ConfigError for some among paths."""
    if not names_files(data):
        return None
    paths = [os.fspath(part) for part in (data if isinstance(data, list | tuple) else [data])]
    urls = [path for path in paths if is_remote(path)]
    if not urls or _is_parquet(data) or any(name(url).lower().endswith(TABLES) for url in urls):
        return None
    if len(urls) < len(paths):
        raise ConfigError(
            f"data has URLs ({shown(urls[0])}) and paths ({next(path for path in paths if path not in urls)}): open "
            "each by itself, and mix them by gpupipe.Mixture"
        )
    refuse_urls(urls)
    return urls


def _by_url(urls: list[str], fields: Mapping[str, Field] | None, **options: Any) -> Source:
    from gpupipe.sources.remote.opening import open_urls

    return open_urls(urls, fields, **options)


def _is_parquet(data: Any) -> bool:
    """Whether it names Parquet files."""
    if isinstance(data, Parquet) or not names_files(data):
        return isinstance(data, Parquet)
    return names_parquet([os.fspath(part) for part in (data if isinstance(data, list | tuple) else [data])])


def _is_hugging_face(data: Any) -> bool:
    datasets = sys.modules.get("datasets")  # which is imported where there is one
    return datasets is not None and type(data) is getattr(datasets, "Dataset", None)


def _loaded(data: Any) -> Any:
    """The dataset of a folder in which Hugging Face's `save_to_disk` has written one; else the same."""
    if isinstance(data, str | os.PathLike) and os.path.isdir(folder := os.path.expanduser(data)):
        if os.path.isfile(os.path.join(folder, "dataset_dict.json")):
            splits = ", ".join(repr(below.path) for below in _folders_in(folder))
            raise ConfigError(f"{folder} holds a DatasetDict, several datasets: pass the folder of one, {splits}")
        if all(os.path.isfile(os.path.join(folder, name)) for name in ("state.json", "dataset_info.json")):
            return library("datasets", "trainers").load_from_disk(folder)
    return data


def _with_fields(source: Source, fields: Mapping[str, Field] | None) -> Source:
    if fields is None or list(Schema.of(fields).items()) == list(source.fields.items()):
        return source
    raise ConfigError(
        f"fields={dict(fields)!r}, but {source!r} was opened with {dict(source.fields)!r}: leave fields out, or pass "
        "them to open_source"
    )


def _is_table(data: Any) -> bool:
    """Whether it is a manifest, a query, or the path or URL of a manifest."""
    if isinstance(data, Manifest | Query) or not isinstance(data, str | os.PathLike):
        return isinstance(data, Manifest | Query)
    text = os.fspath(data)
    if is_remote(text):
        return name(text).lower().endswith(TABLES)
    return text.lower().endswith(TABLES) and not is_url(text) and not os.path.isdir(os.path.expanduser(text))


def _open_table(data: Any, fields: Mapping[str, Field] | None, rebuild: bool, cache: Any) -> Source:
    library("pyarrow", "tables")
    from gpupipe.sources.remote.opening import cached
    from gpupipe.sources.tables.manifest import open_manifest
    from gpupipe.sources.tables.parquet import open_parquet
    from gpupipe.sources.tables.query import open_query

    if _is_parquet(data):
        data = data if isinstance(data, Parquet) else Parquet(data)
        return cached(open_parquet(data, fields, rebuild=rebuild), cache)
    if isinstance(data, Query):
        return cached(open_query(data, Schema.of(fields)), cache)
    data = data if isinstance(data, Manifest) else Manifest(data)
    return cached(open_manifest(data, Schema.of(fields), rebuild=rebuild), cache)


def names_files(data: Any) -> bool:
    """Whether it is a path or several, rather than an object that has the samples."""
    parts = data if isinstance(data, (list, tuple)) else [data]
    return all(isinstance(part, (str, os.PathLike)) for part in parts)


def _opened(path: str, open_shards: Open, open_folder: Open) -> Source:
    refuse_path(path)
    folder = os.path.expanduser(path)
    looks_like_shards = os.path.exists(folder) or any(mark in path for mark in "{*?[")
    looks_like_shards = looks_like_shards or path.endswith(".tar") or is_url(path)  # of which expand_shards tells
    if looks_like_shards and not os.path.isdir(folder):
        return open_shards([path])
    shards = _shards_in(folder)
    if not shards:
        return _image_folder(folder, open_folder)
    images = _first_image_below(folder)
    if images is not None:
        raise ConfigError(
            f"{folder} holds .tar files ({os.path.basename(shards[0])}) and class folders with images ({images}): "
            f"pass {os.path.join(path, '*.tar')!r} for the shards, or move them away to have the image folder"
        )
    return open_shards(shards)


def _image_folder(folder: str, open_folder: Open) -> Source:
    try:
        return open_folder(folder)
    except DataError as error:
        shards = [below.path for below in _folders_in(folder) if _shards_in(below.path)]
        if not shards or _first_image_below(folder) is not None:
            raise
        raise ConfigError(
            f"{folder} has no images, but {len(shards)} of its folders hold .tar shards: pass one, as {shards[0]}"
        ) from error


def shards_of(data: Any, fields: Mapping[str, Field] | None) -> tuple[list[Path], Mapping[str, Field] | None]:
    """The .tar shards that a path, several, or a folder mean, and the fields that `open_source` looks for in them.

    Raises ConfigError where these are other data.
    """
    paths = [os.fspath(path) for path in (data if isinstance(data, list | tuple) else [data])]
    if len(paths) == 1 and os.path.isdir(folder := os.path.expanduser(paths[0])):
        packing = packing_in(folder)
        fields = packing.fields if fields is None and packing is not None else fields
        paths = _shards_in(folder) or paths
    if urls := list(filter(is_remote, paths)):
        raise ConfigError(f"{shown(urls[0])} can't be indexed in shares: leave that out, one process reads many")
    if not all(path.endswith(".tar") for path in paths):
        raise ConfigError(f"{', '.join(paths[:3])} can't be indexed in shares: pass .tar shards, or leave that out")
    return expand_shards(paths), fields


def _shards_in(folder: str) -> list[str]:
    """What is named as a .tar file in a folder, by name; what is none is refused when it is opened, not left out."""
    return [entry.path for entry in _entries(folder) if SHARD.fullmatch(entry.name) and not is_folder(entry)]


def _folders_in(folder: str) -> list[os.DirEntry[str]]:
    return [entry for entry in _entries(folder) if is_folder(entry)]


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """By name; none where there is no such folder."""
    if not os.path.isdir(folder):
        return []
    with os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def _first_image_below(folder: str) -> str | None:
    """The path below `folder` of an image in one of its folders, or in theirs; None if there is none."""
    seen = set()  # links may lead to folders above, or to one folder from many
    for below in _folders_in(folder):
        if below.name == MARKS:
            continue
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
