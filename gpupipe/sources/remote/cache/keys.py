"""Names of blocks: what is in one is in its name, so a block never has to be looked at to see whether it is the one."""

from __future__ import annotations

from hashlib import blake2b

__all__ = ["block_size", "key_of"]

DIGEST = 20  # bytes: nobody finds two extents with the same


def key_of(extent: tuple[tuple[str, int, str], int, int]) -> str:
    """The name of an Extent's block, whose Object has URL, size and ETag: a hash of URL, ETag and offset, then the
    extent's size. "" for what can't be kept, as nothing would say that the object has been replaced."""
    (url, _, etag), offset, size = extent
    if not etag or size <= 0:
        return ""
    text = f"{url}\0{etag}\0{offset}".encode("utf-8", "surrogatepass")
    return f"{blake2b(text, digest_size=DIGEST).hexdigest()}.{size}"


def block_size(key: str) -> int:
    """The bytes of a block."""
    return int(key[2 * DIGEST + 1 :])
