"""The loaders that `bench/remote.py` measures, one file for each; nothing here imports them.

Each file has a subclass of `common.Remote` and, where it needs more than this environment has, a tuple `REQUIREMENTS`,
which is installed into an environment of its own, as `bench/peers` does.
"""

from __future__ import annotations

__all__ = ["CONTENDERS", "FOLDER"]

FOLDER = "folder"  # gpupipe on the local one

CONTENDERS = {
    FOLDER: "remote_peers.ours:Folder",
    "gpupipe": "remote_peers.ours:Shards",
    "litdata": "remote_peers.litdata_s3:LitData",
    "streaming": "remote_peers.mosaicml_s3:Streaming",
    "webdataset": "remote_peers.webdataset_http:WebDatasetHttp",
    "webdataset-cache": "remote_peers.webdataset_http:WebDatasetHttp?cached=True",
    "fsspec": "remote_peers.fsspec_s3:Fsspec",
    "fsspec-8": "remote_peers.fsspec_s3:Fsspec?workers=8",
    "s3torchconnector": "remote_peers.connector_s3:Connector",
    "s3torchconnector-8": "remote_peers.connector_s3:Connector?workers=8",
}
