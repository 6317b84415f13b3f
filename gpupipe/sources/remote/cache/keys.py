"""Names of blocks: what is in one is in its name, so a block never has to be looked at to see whether it is the one.

key   dddddd hhhhhhhhhhhhhhh x ssssssssssssssss . size      d: the data set's hash, h and s: the bytes' own
file  dddddd hhhhhhhhhhhhhhh . size                         s: what its checksum begins with, so that blocks whose
                                                               files have the same name are told apart
"""

from __future__ import annotations

import os
import re
from hashlib import blake2b

from gpupipe.sources.remote.objects import is_web, shown, unsigned
from gpupipe.sources.remote.stores import ENDPOINTS

__all__ = ["ID", "SET", "block_id", "block_size", "file_name", "key_of", "named", "seed_of", "set_name"]

SET, ID, SEED = 6, 21, 22  # where the parts end and begin
FILE = re.compile(rf"([0-9a-f]{{{SET}}})([0-9a-f]{{{ID - SET}}})\.(\d{{1,18}})(?:\.([0-9a-f-]+))?")

# Which of several a bucket's name is of: two servers may have one of a name each.
SERVICES = (*ENDPOINTS, "AZURE_STORAGE_ACCOUNT_NAME")

_sets: dict[str, tuple[str, str]] = {}  # folder -> hash, service
_names: dict[int, str] = {}  # the same number -> folder, without secrets


def key_of(extent: tuple[tuple[str, int, str], int, int]) -> str:
    """The name of an Extent's block, whose Object has URL, size and ETag: a hash of these, without the object's size
    and a signature, of the service that has the bucket, and of the extent; then its size, by which it is checked.

    "" for what can't be kept, as nothing would say that the object has been replaced."""
    (url, _, etag), offset, size = extent
    if not etag or size <= 0:
        return ""
    data_set, service = _data_set(url)
    text = f"{unsigned(url)}\0{etag}\0{offset}\0{size}\0{service}".encode("utf-8", "surrogatepass")
    return f"{data_set}{blake2b(text, digest_size=16).hexdigest()}.{size}"


def _data_set(url: str) -> tuple[str, str]:
    """Its hash, and what names the service that has it."""
    folder = "/".join(url.partition("?")[0].split("/")[:-1][:5])  # s3://bucket/a/b
    if folder not in _sets:
        hashed = blake2b(folder.encode("utf-8", "surrogatepass"), digest_size=SET // 2).hexdigest()
        _sets[folder] = hashed, "" if is_web(url) else "\0".join(os.environ.get(name, "") for name in SERVICES)
        _names[int(hashed, 16)] = shown(folder)
    return _sets[folder]


def set_name(data_set: int) -> str:
    """Where a data set lies that this process has made a key of: its storage, and two folders at most."""
    return _names.get(data_set, "")


def block_id(key: str) -> int:
    """60 bits, by which the ledger knows it."""
    return int(key[SET:ID], 16)


def block_size(key: str) -> int:
    """Its bytes."""
    return int(key[key.rindex(".") + 1 :])


def seed_of(key: str) -> int:
    """64 bits that its name in the folder does not have."""
    return int(key[SEED : SEED + 16], 16)


def file_name(key: str) -> str:
    """Its name in the folder."""
    return key[:ID] + key[key.rindex(".") :]


def named(data_set: int, block: int, size: int) -> str:
    """The same from what the ledger has."""
    return f"{data_set:06x}{block:015x}.{size}"
