"""Objects of a storage, parts of them, and their URLs.

A URL is what users know: `s3://bucket/key`, `gs://bucket/key` and `az://container/key` have the key as it is, whatever
characters are in it; `http(s)://` ones are quoted, as everywhere on the web.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote

from gpupipe.errors import DataError
from gpupipe.sources.reading import ChangedError
from gpupipe.texts import printable

__all__ = [
    "Extent",
    "MissingError",
    "Object",
    "ReadError",
    "ReplacedError",
    "is_remote",
    "is_web",
    "join",
    "key_of",
    "login_apart",
    "name",
    "parent",
    "query_apart",
    "scheme",
    "shown",
    "unsigned",
]

URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
# In the queries of S3, CloudFront, Google and Azure, the signature and what is signed with it.
SIGNATURES = ("x-amz-signature", "x-goog-signature", "signature", "sig")
OF_SIGNATURE = re.compile(
    "(x-amz-[a-z-]+|x-goog-[a-z-]+|signature|expires|policy|key-pair-id|awsaccesskeyid|googleaccessid|sig|se|st|sp|spr|sv|sr"
    "|ske|skt|sks|skv|skoid|sktid)=",
    re.IGNORECASE,
)
WEB = ("http", "https")
LOCAL = ("file", "local", "pipe")  # no storage: "file" is for paths, a pipe is never run


class Object(NamedTuple):
    """An object as an index saw it.

    etag pins every read of it: an ETag, with its quotes; where a web server has none "modified TIME"; "" where neither
    is told, so that only the size is compared.
    """

    url: str
    size: int
    etag: str


class Extent(NamedTuple):
    """`size` bytes of an object from `offset` on."""

    object: Object
    offset: int
    size: int


class ReadError(ValueError):
    """An object, or a part of it, can't be read. The message names both, the cause and what to do."""


class MissingError(ReadError):
    """There is no such object."""


class ReplacedError(ReadError, ChangedError):
    """An object is not the one that the index saw."""


def is_remote(text: str) -> bool:
    """Whether it names an object or a folder of a storage, rather than a path, or a command."""
    return scheme(text) not in ("", *LOCAL)


def scheme(url: str) -> str:
    """ "s3", "https"; empty for what is no URL."""
    match = URL.match(url)
    return match[1].lower() if match else ""


def is_web(url: str) -> bool:
    """Whether it is a URL of the web, whose path is quoted and may be followed by a query."""
    return scheme(url) in WEB


def shown(url: str) -> str:
    """For messages and logs: without secrets, which stand before an @ and in queries, and with all that could confuse
    a terminal escaped."""
    login, text = login_apart(url)
    if scheme(url).startswith("abfs") and ":" not in login:  # it is the container
        text = url
    if scheme(url) not in ("s3", "s3a", "gs", "az"):  # a key may have both characters
        text, *cut = re.split(r"[?#]", text, maxsplit=1)
        text += "?..." if cut else ""
    return printable(text)


@lru_cache(4096)
def unsigned(url: str) -> str:
    """A URL without a password and its signature, which is another each time that the same object is signed."""
    path, query = query_apart(login_apart(url)[1] if is_web(url) else url)
    parts = query[1:].split("&")
    if not any(part.partition("=")[0].lower() in SIGNATURES for part in parts):
        return path + query
    kept = "&".join(part for part in parts if not OF_SIGNATURE.match(part))
    return f"{path}?{kept}" if kept else path


def login_apart(url: str) -> tuple[str, str]:
    """Name and password before a host, and the URL without them."""
    start, slashes, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    login, _, host = host.rpartition("@")
    return login, f"{start}{slashes}{host}{slash}{path}"


def query_apart(url: str) -> tuple[str, str]:
    """A URL and its query, with the question mark; a key may have one."""
    path, mark, query = url.partition("?") if is_web(url) else (url, "", "")
    return path, mark + query


def parent(url: str) -> str:
    """The folder that an object lies in, without a slash at its end; with its query, which may be the right to read."""
    path, query = query_apart(url)
    return path.rstrip("/").rpartition("/")[0] + query


def name(url: str) -> str:
    """The last part of its path, not quoted: a file's name."""
    path, _ = query_apart(url)
    last = path.rstrip("/").rpartition("/")[2]
    return unquote(last) if is_web(url) else last


def join(folder: str, path: str) -> str:
    """The URL of what lies at this relative path, as a file system has it, in a folder. Raises DataError for a path
    that leaves the folder or is absolute."""
    parts = [part for part in path.split("/") if part not in ("", ".")]  # which mean nothing to a file system
    if not parts or ".." in parts or path[0] == "/" or path[-1] == "/":
        raise DataError(f"{path!r} is no path below {shown(folder)}: it is absolute or empty, or has '..' in it")
    start, query = query_apart(folder)
    inner = "/".join(parts)
    return f"{start.rstrip('/')}/{quote(inner) if is_web(folder) else inner}{query}"


def key_of(folder: str, url: str) -> str:
    """The path of an object relative to a folder that it lies in, as a file system has it; the inverse of `join`."""
    start, _ = query_apart(folder)
    path, _ = query_apart(url)
    inner = path.removeprefix(start.rstrip("/") + "/")
    return unquote(inner) if is_web(url) else inner
