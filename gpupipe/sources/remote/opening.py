"""Opening what lies at URLs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpupipe.batch import Field, Schema
from gpupipe.batch.stored import schema_from_json
from gpupipe.errors import ConfigError
from gpupipe.sources.building import reopen_index
from gpupipe.sources.folder import files_of
from gpupipe.sources.needing import library
from gpupipe.sources.remote.apart import apart
from gpupipe.sources.remote.cache import cache_settings
from gpupipe.sources.remote.folder import RemoteFolderSource
from gpupipe.sources.remote.once import as_json
from gpupipe.sources.remote.reader import Reading
from gpupipe.sources.remote.shards import RemoteShardSource
from gpupipe.sources.remote.source import RemoteSource
from gpupipe.sources.shards import wanted_members
from gpupipe.sources.source import Source
from gpupipe.sources.tables.files import Parquet

__all__ = ["cached", "open_urls"]


def open_urls(
    data: Sequence[str],
    fields: Mapping[str, Field] | None,
    *,
    label_field: str,
    rebuild: bool,
    index: str | None,
    cache: Any,
) -> Source:
    """The shards, the image folder or the Parquet at these URLs. Raises as `open_source` does."""
    library("obstore", "remote")
    schema = Schema.of(fields)
    answer = apart(
        "gpupipe.sources.remote.finding:found",
        data=list(data),
        fields=None if fields is None else as_json(schema),
        label_field=label_field,
        rebuild=rebuild,
        index=index,
    )
    if answer["fields"] is not None:
        schema = schema_from_json(answer["fields"])
    if answer["kind"] == "parquet":
        library("pyarrow", "tables")
        from gpupipe.sources.tables.parquet import open_parquet

        return cached(open_parquet(Parquet(data[0]), schema, rebuild=rebuild), cache)
    stored = reopen_index(answer["index"], answer["fingerprint"])
    source: RemoteShardSource | RemoteFolderSource
    if answer["kind"] == "shards":
        source = RemoteShardSource(answer["place"], stored, schema, wanted_members(schema))
    else:
        source = RemoteFolderSource(answer["place"], stored, schema, files_of(schema))
    source.check_absent()
    return cached(source, cache)


def cached(source: RemoteSource, cache: Any) -> Source:
    """The source, which keeps on a disk what it reads from a storage. Raises ConfigError where that is nothing."""
    if source.reads_storage:
        settings = cache_settings(cache)
        source.reading = Reading(settings and settings.in_run())
    elif cache != "auto":
        raise ConfigError(f"cache={cache!r} is for data by URL, and {source!r} is none: leave it out")
    return source
