"""Loads shards by URL and from disk, by every engine, in a process that has not read from a storage before."""

from __future__ import annotations

import gc
import itertools
import logging
import multiprocessing
import os
import sys
import threading
import time
from typing import Any

import pytest
import torch

import gpupipe
from gpupipe.sources.remote.client import used_here

RECIPE = gpupipe.imagenet_train(24)
FORKED: dict[str, Any] = dict(engine="torch", device="cpu", num_workers=2)
IN_PROCESS: dict[str, Any] = dict(engine="torch", device="cpu", num_workers=0)
DALI: dict[str, Any] = dict(engine="dali", device="cpu", num_workers=2)


def opened(data: Any, options: dict[str, Any], **more: Any) -> gpupipe.Loader:
    return gpupipe.Loader(data, RECIPE, 5, shuffle=True, seed=3, **options | more)


def rows(loader: gpupipe.Loader, count: int | None = None) -> list[tuple[torch.Tensor, list[int]]]:
    """What it gives, up to a batch."""
    return [(images.clone(), labels.tolist()) for images, labels in itertools.islice(loader, count)]


def same(one: Any, other: Any) -> bool:
    assert len(one) == len(other)
    return all(torch.equal(a[0], b[0]) and a[1] == b[1] for a, b in zip(one, other, strict=True))


def settled(threads: int, files: int) -> None:
    """Nothing is left of what was closed; the client's own threads stay."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        gc.collect()
        names = [thread.name for thread in threading.enumerate()]
        ours = [name for name in names if name != "gpupipe-storage"]
        if len(ours) <= threads and len(os.listdir("/proc/self/fd")) <= files:
            return
        time.sleep(0.05)
    raise AssertionError(f"{names} are left, and {os.listdir('/proc/self/fd')} files")


def check(remote: Any, local: Any, options: dict[str, Any]) -> None:
    """As from disk: two epochs, one left midway, a resume, two at once."""
    with opened(local, options) as plain:
        expected = [rows(plain), rows(plain)]
    with opened(remote, options) as loader:
        assert same(rows(loader, 3), expected[0][:3])
        assert same(rows(loader), expected[1])
        use = loader.stats()
        assert use["storage_requests"] > 0 or use["cache_hits"] > 0
        loader.set_epoch(0)
        assert same(rows(loader, 4), expected[0][:4])
        loader.set_epoch(0)
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        state = loader.state_dict()
        with opened(remote, options) as other:
            other.load_state_dict(state)
            assert same(rows(other), expected[0][3:])
            both = [(one[0].clone(), two[0].clone()) for one, two in zip(batches, other, strict=False)]
            assert all(torch.equal(one[0], images) for one, (images, _) in zip(expected[0][3:], both, strict=False))
            assert all(torch.equal(one[0], images) for one, (_, images) in zip(expected[1], both, strict=False))


def main(remote: str, local: str, cache: str) -> None:
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("gpupipe").addHandler(handler)
    source = gpupipe.open_source(remote, cache=None)
    kept = gpupipe.open_source(remote, cache=gpupipe.Cache(cache, "100M"))
    check(source, local, FORKED)
    check(kept, local, FORKED | {"persistent_workers": False})
    assert not used_here()
    check(kept, local, IN_PROCESS)
    assert not used_here()  # the cache has all of it
    check(source, local, IN_PROCESS)
    assert used_here()
    threads, files = 1, len(os.listdir("/proc/self/fd")) + 4
    check(source, local, DALI)
    check(kept, local, DALI)
    settled(threads, files)
    assert not any("forkserver" in text for text in said)
    with opened(local, FORKED) as loader:
        rows(loader, 1)
    assert not any("forkserver" in text for text in said)
    with opened(source, FORKED) as loader, opened(local, IN_PROCESS) as plain:
        assert same(rows(loader, 3), rows(plain, 3))
    assert sum("forkserver" in text for text in said) == 1
    with pytest.raises(gpupipe.ConfigError, match="'forkserver' or 'spawn'"):
        opened(source, FORKED, multiprocessing_context="fork")
    print("as from disk")


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")  # from Python 3.14 on another is usual
    main(*sys.argv[1:])
