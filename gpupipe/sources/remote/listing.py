"""Listings of folders: page by page, and of large ones the folders below them at once.

A listing of all names goes one page of a thousand after the other: 1.28 million names in 1,000 folders are 1,280 pages,
64 to 130 s of S3's 50 to 100 ms. Folder by folder they come in a few seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial

from gpupipe.sources.remote.asking import Asker
from gpupipe.sources.remote.credentials import CLASSES
from gpupipe.sources.remote.faults import Fault
from gpupipe.sources.remote.objects import Object, key_of, query_apart, scheme, shown
from gpupipe.sources.remote.store import Found, Store
from gpupipe.sources.remote.stores import PAGE, object_at, placed

__all__ = ["listed", "pages"]

Listed = tuple[list[Object], list[str]]  # objects, and folders that are to be listed yet
Start = Callable[[Callable[[], Listed]], Future[Listed]]

MANY = 16  # folders that are worth to be listed at once; where there are fewer those below them are looked for,
DEPTH = 3  # so many levels down


def pages(asker: Asker, url: str) -> Iterator[list[Object]]:
    """Of all that lies below a folder: where one fails, it goes on behind the last that came."""
    folder, query = query_apart(url)
    url = folder.rstrip("/") + query
    after, under_way = "", None

    def page(store: Store, path: str) -> list[tuple[str, Found]]:
        nonlocal under_way
        under_way = store.pages(path, after) if under_way is None else under_way
        try:
            return next(under_way, [])
        except Fault:
            under_way = None
            raise

    while found := asker.ask(url, lambda: f"the listing of {shown(url)}", page):
        after = found[-1][0]
        root = placed(url).root
        yield [object_at(root, *each) for each in found]


def listed(asker: Asker, url: str, start: Start) -> list[Object]:
    """All objects below a folder, in any order; `start` has a question answered in a thread."""
    found: list[Object] = []
    folders = [url]
    for _ in range(DEPTH):
        looked = [start(partial(_look, asker, folder)) for folder in folders]
        folders = []
        for answer in looked:
            objects, below = answer.result()
            found += objects
            folders += below
        if not folders or len(folders) >= MANY:
            break
    for answer in [start(partial(_all, asker, folder)) for folder in folders]:
        found += answer.result()[0]
    return found


def _all(asker: Asker, url: str) -> Listed:
    return [each for page in pages(asker, url) for each in page], []


def _look(asker: Asker, url: str) -> Listed:
    """All objects of a folder that is small, or has no folders where its listing begins; of others those that lie in it
    itself, and the folders."""
    under_way = pages(asker, url)
    first = next(under_way, [])
    large = len(first) >= PAGE and scheme(url) in CLASSES
    if not large or not any("/" in key_of(url, each.url) for each in first):
        return first + [each for page in under_way for each in page], []
    objects, folders = asker.ask(url, lambda: f"the listing of {shown(url)}", lambda store, path: store.level(path))
    root = placed(url).root
    return [object_at(root, *each) for each in objects], [f"{root}/{path}" for path in folders]
