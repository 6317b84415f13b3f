"""Storages that only fsspec knows: a slow way, with a second request for whether the bytes are still those."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.sources.needing import library
from gpupipe.sources.remote.faults import MISSING, NETWORK, Fault, Kind
from gpupipe.sources.remote.objects import scheme
from gpupipe.sources.remote.store import Found

__all__ = ["ForeignStore"]

log = logging.getLogger("gpupipe")

# What tells one version of a file from the next: names in the facts that the file systems of fsspec give. The first two
# are Hugging Face's, whose files in repositories have no others.
VERSIONS = "blob_id xet_hash ETag etag e_tag md5Hash checksum generation LastModified last_modified updated mtime"
VERSIONS += " modified created"


@cache
def _said(kind: str) -> None:
    log.warning(
        "gpupipe: %s:// is read by fsspec, with a second request for each part to know that its object is still the "
        "same; s3://, gs://, az:// and https:// are several times faster",
        kind,
    )


class ForeignStore:
    """One that fsspec opens, by its own configuration files and environment."""

    def __init__(self, root: str) -> None:
        fsspec = library("fsspec", "remote")
        try:
            self._files, start = fsspec.core.url_to_fs(root)
        except Exception as error:
            known = "take s3://, gs://, az:// or https://, or install what fsspec needs for it"
            raise Fault(Kind.WRONG, f"{scheme(root)}:// can't be read ({type(error).__name__})", known) from None
        self._root = start.rstrip("/")
        _said(scheme(root))

    def begin(self, path: str, offset: int, size: int, etag: str) -> None:
        """See Store."""

    def read(
        self, path: str, offset: int, size: int, etag: str, begun: object = None
    ) -> tuple[NDArray[np.uint8], Found]:
        """See Store: the version is looked up after the bytes were read."""
        with _faults():
            end = None if size < 0 else offset + size
            data = self._files.cat_file(f"{self._root}/{path}", start=offset, end=end)
            return np.frombuffer(data, np.uint8), self.head(path)

    def head(self, path: str) -> Found:
        """See Store."""
        with _faults():
            self._files.invalidate_cache()
            return _found(self._files.info(f"{self._root}/{path}"))

    def level(self, folder: str) -> tuple[list[tuple[str, Found]], list[str]]:
        """See Store; its listing is one page."""
        raise NotImplementedError

    def pages(self, folder: str, after: str) -> Iterator[list[tuple[str, Found]]]:
        """See Store: all in one page."""
        with _faults():
            files = self._files.find(f"{self._root}/{folder}", detail=True)
        found = {name.removeprefix(f"{self._root}/"): _found(facts) for name, facts in files.items()}
        yield [(path, facts) for path, facts in sorted(found.items()) if path > after]


def _found(facts: dict[str, Any]) -> Found:
    version = next((str(facts[name]) for name in VERSIONS.split() if facts.get(name)), "")
    return Found(int(facts["size"] or 0), f'"{version}"' if version else "")


@contextmanager
def _faults() -> Iterator[None]:
    try:
        yield
    except Fault:
        raise
    except FileNotFoundError:
        raise Fault(Kind.MISSING, "it is not there", MISSING) from None
    except PermissionError:
        raise Fault(Kind.DENIED, "it may not be read") from None
    except Exception as error:  # each file system has exceptions of its own, whose texts may hold secrets
        raise Fault(Kind.BROKEN, f"its file system raised {type(error).__name__}", NETWORK) from None
