"""Opening tar shards and image folders by URL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpupipe.batch import Field, Schema
from gpupipe.batch.stored import schema_from_json, schema_to_json
from gpupipe.sources.building import reopen_index
from gpupipe.sources.folder import files_of
from gpupipe.sources.needing import library
from gpupipe.sources.remote.apart import apart
from gpupipe.sources.remote.cache import cache_settings
from gpupipe.sources.remote.folder import RemoteFolderSource
from gpupipe.sources.remote.reader import Reading
from gpupipe.sources.remote.shards import RemoteShardSource
from gpupipe.sources.shards import wanted_members
from gpupipe.sources.source import Source

__all__ = ["open_urls"]


def open_urls(
    data: Sequence[str],
    fields: Mapping[str, Field] | None,
    *,
    label_field: str,
    rebuild: bool,
    index: str | None,
    cache: Any,
) -> Source | None:
    """The shards or the image folder at these URLs; None for a folder of Parquet. Raises as `open_source` does."""
    library("obstore", "remote")
    settings = cache_settings(cache)
    schema = Schema.of(fields)
    plain = None if fields is None else schema_to_json(Schema({name: _plain(field) for name, field in schema.items()}))
    answer = apart(
        "gpupipe.sources.remote.finding:found",
        data=list(data),
        fields=plain,
        label_field=label_field,
        rebuild=rebuild,
        index=index,
    )
    if answer["kind"] == "parquet":
        return None
    if answer["fields"] is not None:
        schema = schema_from_json(answer["fields"])
    stored = reopen_index(answer["index"], answer["fingerprint"])
    source: RemoteShardSource | RemoteFolderSource
    if answer["kind"] == "shards":
        source = RemoteShardSource(answer["place"], stored, schema, wanted_members(schema))
    else:
        source = RemoteFolderSource(answer["place"], stored, schema, files_of(schema))
    source.reading = Reading(settings and settings.in_run())
    source.check_absent()
    return source


def _plain(field: Field) -> Field:
    """Without what JSON can't hold and no index depends on."""
    return replace(field, collate=None)
