"""Storages by URL, each behind the same few questions; what a question costs is one request.

Credentials and settings are found as each vendor's own tools find them, by obstore or, where it is installed, by the
vendor's library; none is ever part of a message.
"""

from __future__ import annotations

import os
import re
import threading
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Iterator
from datetime import timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

from gpupipe.sources.needing import library
from gpupipe.sources.reading import MOST_BYTES
from gpupipe.sources.remote.credentials import CLASSES, provider_of, remedy_of
from gpupipe.sources.remote.faults import Fault, Kind, fault_of
from gpupipe.sources.remote.foreign import ForeignStore
from gpupipe.sources.remote.objects import Object, is_web, login_apart, scheme
from gpupipe.sources.remote.plain import Answer, Plain
from gpupipe.sources.remote.store import Found, Store, found_of

__all__ = ["ENDPOINTS", "Place", "Stores", "object_at", "placed"]

ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
CONNECT = 5.0  # seconds for a connection to be made, at most
NO_TEXT = re.compile(r"[/\x00-\x1f\x7f\ud800-\udfff]")
KEPT = 256  # storages, of 120 kB and 10 ms each: a presigned URL is one of its own
PAGE = 1000  # names of one answer to a listing


class Place(NamedTuple):
    """A storage (a bucket, a host with its query) and the name of an object in it, not quoted."""

    root: str
    path: str


@lru_cache(4096)
def placed(url: str) -> Place:
    """Where it lies. Raises Fault for a name that can't be asked for."""
    if is_web(url):
        try:
            parts = urlsplit(url)
        except ValueError:
            raise Fault(Kind.WRONG, "its URL is none", "check it") from None
        names = [unquote(part, errors="surrogateescape") for part in parts.path.split("/")[1:]]
        if _wrong(names):  # asked for as it is written
            return Place(url.partition("#")[0], "")
        query = f"?{parts.query}" if parts.query else ""
        return Place(f"{parts.scheme}://{parts.netloc}/{query}", "/".join(names))
    start, _, rest = url.partition("://")
    bucket, _, path = rest.partition("/")
    if path and _wrong(path.removesuffix("/").split("/")):
        reason = "its name begins with a slash, or has '//', '/./', '/../' or what is no text in it"
        raise Fault(Kind.WRONG, reason, "the storage's clients can't ask for that: rename it")
    return Place(f"{start}://{bucket}", path)


def _wrong(names: list[str]) -> bool:
    return any(name in ("", ".", "..") or NO_TEXT.search(name) for name in names)


class Stores:
    """The storages in use, made when they are first asked. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: OrderedDict[tuple[str, float], Store] = OrderedDict()

    def of(self, root: str, timeout: float) -> Store:
        """The storage, whose requests end after so many seconds."""
        key = root, timeout
        with self._lock:
            store = self._made.get(key)
            if store is None:
                store = self._made[key] = _made(root, timeout)
                if len(self._made) > KEPT:
                    self._made.popitem(last=False)
            self._made.move_to_end(key)
            return store

    def known(self, root: str, timeout: float) -> Store | None:
        """The same, if it was made."""
        return self._made.get((root, timeout))

    def forget(self, root: str, store: Store) -> None:
        """Make it anew, with credentials that are looked up anew, when it is next asked for."""
        with self._lock:
            if store in self._made.values():  # otherwise another thread was faster
                for key in [key for key in self._made if key[0] == root]:
                    del self._made[key]


def _made(root: str, timeout: float) -> Store:
    kind = scheme(root)
    if not is_web(root) and kind not in CLASSES:
        return ForeignStore(root)
    stores = library("obstore.store", "remote")
    options: dict[str, Any] = {
        "timeout": timedelta(seconds=timeout),
        "connect_timeout": timedelta(seconds=min(CONNECT, timeout)),
        "allow_http": not root.lower().startswith("https://"),  # nor by a redirect from https
    }
    _check_endpoint(kind)
    settings: dict[str, Any] = {"client_options": options, "retry_config": {"max_retries": 0}}
    try:
        if is_web(root):
            address, header = _password(root)
            options |= {"default_headers": header}
            plain = Plain(address, header, CONNECT, timeout)
            return ObjectStore(stores.HTTPStore.from_url(address, **settings), plain)
        make = getattr(stores, CLASSES[kind])
        return ObjectStore(make.from_url(root, credential_provider=provider_of(kind), **settings))
    except Fault:
        raise
    except Exception:  # a setting is missing or wrong, which the text may repeat
        raise Fault(Kind.WRONG, "its storage can't be opened with these settings", remedy_of(kind)) from None


def _check_endpoint(kind: str) -> None:
    """The library would take the process down."""
    for variable in ENDPOINTS if CLASSES.get(kind) == "S3Store" else ():
        address = os.environ.get(variable)
        if address is not None and not re.match(r"https?://[^/\s]", address):
            raise Fault(Kind.WRONG, f"{variable} is no address", "write it as http://host:port, or unset it")


def _password(root: str) -> tuple[str, dict[str, str]]:
    """A host's address without name and password, and the header that they make, which redirects elsewhere lose."""
    both, address = login_apart(root)
    header = {"Authorization": f"Basic {b64encode(unquote(both).encode()).decode()}"} if both else {}
    return address, header


class ObjectStore:
    """One that obstore knows.

    plain: what reads ranges of the web's, where it can. There, where no ETag is told, the time of change is what tells
    versions apart. In buckets it does not: AIStore gives the time of the last access.
    """

    def __init__(self, store: Any, plain: Plain | None = None) -> None:
        self._store = store
        self._plain = plain

    def begin(self, path: str, offset: int, size: int, etag: str) -> Answer | None:
        return None if self._plain is None else self._plain.begin(path, offset, size, _pinned(etag))

    def read(
        self, path: str, offset: int, size: int, etag: str, begun: Answer | None = None
    ) -> tuple[NDArray[np.uint8], Found]:
        pinned = _pinned(etag)
        if self._plain is not None and (answer := self._plain.read(path, offset, size, pinned, begun)) is not None:
            return answer
        options: dict[str, Any] = {} if size < 0 else {"range": (offset, offset + size)}
        if pinned:
            options["if_match"] = pinned
        try:
            answer = self._store.get(path, options=options)
            found = self._found(answer.meta)
            if size < 0 and found.size > MOST_BYTES:
                raise Fault(Kind.WRONG, f"it has {found.size:,} bytes, more than the {MOST_BYTES:,} of any image")
            return np.frombuffer(answer.bytes(), np.uint8), found
        except Fault:
            raise
        except Exception as error:
            raise fault_of(error) from None

    def head(self, path: str) -> Found:
        try:
            return self._found(self._store.head(path))
        except Exception as error:
            raise fault_of(error) from None

    def pages(self, folder: str, after: str) -> Iterator[list[tuple[str, Found]]]:
        try:
            for page in self._store.list(folder or None, offset=after or None, chunk_size=PAGE):
                yield [(meta["path"], self._found(meta)) for meta in page]
        except Exception as error:
            raise fault_of(error) from None

    def level(self, folder: str) -> tuple[list[tuple[str, Found]], list[str]]:
        try:
            answer = self._store.list_with_delimiter(folder or None)
        except Exception as error:
            raise fault_of(error) from None
        return [(meta["path"], self._found(meta)) for meta in answer["objects"]], [*answer["common_prefixes"]]

    def _found(self, meta: Any) -> Found:
        return found_of(meta["size"], meta["e_tag"], None if self._plain is None else meta["last_modified"])


def _pinned(etag: str) -> str:
    """What is sent: a weak one never matches."""
    return etag if etag.startswith('"') else ""


def object_at(root: str, path: str, found: Found) -> Object:
    """The object of a listing."""
    if is_web(root):
        start, mark, query = root.partition("?")
        return Object(f"{start.rstrip('/')}/{quote(path)}{mark}{query}", *found)
    return Object(f"{root}/{path}", *found)
