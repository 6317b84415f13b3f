"""Where encoded images lie: image folders, WebDataset shards, tables, a user's own dataset. All with random access."""

from __future__ import annotations

from gpupipe.sources.contract import check_source
from gpupipe.sources.dataset import DatasetSource, ItemSource
from gpupipe.sources.folder import FolderSource
from gpupipe.sources.headers import explain_damage
from gpupipe.sources.mixture import Mixture, MixtureSource
from gpupipe.sources.opening import names_files, open_source
from gpupipe.sources.shards import ShardSource
from gpupipe.sources.source import Encoded, Source
from gpupipe.sources.stream import Stream, StreamSource
from gpupipe.sources.subset import SubsetSource
from gpupipe.sources.tables.files import Parquet
from gpupipe.sources.tables.settings import Manifest, Query

__all__ = [
    "DatasetSource",
    "Encoded",
    "FolderSource",
    "ItemSource",
    "Manifest",
    "Mixture",
    "MixtureSource",
    "Parquet",
    "Query",
    "ShardSource",
    "Source",
    "Stream",
    "StreamSource",
    "SubsetSource",
    "check_source",
    "explain_damage",
    "names_files",
    "open_source",
]
