"""Files that gpupipe itself has written, and others may have changed: the index, the cache, a loader's state."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import numpy as np
from tars import jpeg, write_samples

import gpupipe
from fuzz import mutators
from fuzz.harness import Finding, Target
from fuzz.stores import rows
from gpupipe.sources import open_source
from gpupipe.sources.remote.cache import BlockCache, key_of, on_disk

COUNT = 5
SIZE = 300


def index_seeds(scratch: Path) -> Sequence[bytes]:
    write_samples(scratch / "hostile.tar", 0, COUNT)
    open_source(scratch / "hostile.tar", rebuild=True)
    data = next(scratch.glob(".gpupipe*.index")).read_bytes()
    return [b"b" + data, b"m" + data]  # as it is, or packed anew with right checksums


def index_mutated(draw, data, others):  # type: ignore[no-untyped-def]
    if data[:1] == b"b":
        return b"b" + PLAIN(draw, data[1:], others)
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data[1:])) as archive, zipfile.ZipFile(buffer, "w") as made:
        chosen = draw.choice(archive.namelist())
        for name in archive.namelist():
            content = archive.read(name)
            if name == chosen:
                head = 128 if draw.random() < 0.7 else 0  # an array's numbers, or its header, too
                content = content[:head] + PLAIN(draw, content[head:] or b"xxxx", [content])
            made.writestr(name, content)
    return b"m" + buffer.getvalue()


PLAIN = mutators.plain(b'"version": 3', b"'descr': '|O'", b"\xff" * 8, b"../", b'"shards": []', b"null", b"{}", b"[]")


def index_check(scratch: Path) -> Callable[[bytes], Hashable]:
    """Bits that flip never give another content; one that was made so gives nothing that is not in the shard."""
    shard = scratch / "hostile.tar"
    place = next(scratch.glob(".gpupipe*.index"))
    whole = shard.read_bytes()
    truth = [(row["image"].tobytes(), int(row["label"])) for row in rows(open_source(shard), "")]  # type: ignore[index, union-attr, call-overload]

    def check(data: bytes) -> Hashable:
        place.write_bytes(data[1:])
        source = open_source(shard)
        made = rows(source, "hostile.tar")
        for index, row in enumerate(made):
            if row is None:
                continue
            image = b"" if row["image"] is None else row["image"].tobytes()  # type: ignore[attr-defined]
            if image not in whole:
                raise Finding("what is not in the shard")
            if data[:1] == b"b" and (image, int(row["label"])) != truth[index]:  # type: ignore[call-overload]
                raise Finding("another sample")
        for index in range(min(len(source), 50)):
            source.key(index)
            source.location(index)
        if data[:1] == b"b" and len(made) != COUNT:
            raise Finding(f"{len(made)} samples")
        return len(made), sum(row is None for row in made)

    return check


KEYS = [key_of((("s3://a/data/x.tar", 10**6, '"e"'), number * SIZE, SIZE)) for number in range(6)]


def content(key: str) -> np.ndarray:
    return np.random.default_rng(int(key[:24], 16)).integers(0, 256, SIZE, np.uint8)


def cache_settings(scratch: Path) -> gpupipe.Cache:
    return gpupipe.Cache(folder=scratch / "cache", size=50 * on_disk(SIZE), reserve=0, run="mine")


def cache_seeds(scratch: Path) -> Sequence[bytes]:
    """The ledger, a block, and what else lies there, each with its place before it."""
    cache = BlockCache(cache_settings(scratch))
    cache.claim(KEYS[:4], hold=False)
    cache.put({key: content(key) for key in KEYS[:4]})
    cache.close()
    shutil.copytree(scratch / "cache", scratch / "whole", dirs_exist_ok=True)
    files = [path for path in sorted((scratch / "whole").rglob("*")) if path.is_file()]
    return [str(path.relative_to(scratch / "whole")).encode() + b"\n" + path.read_bytes() for path in files]


def cache_mutated(draw, data, others):  # type: ignore[no-untyped-def]
    name, _, content = data.partition(b"\n")
    pieces = [other.partition(b"\n")[2] for other in others]
    return name + b"\n" + mutators.plain(b"SQLite format 3\0", b"UPDATE", b"blocks", b"\xff" * 8)(draw, content, pieces)


def cache_check(scratch: Path) -> Callable[[bytes], Hashable]:
    """It never raises, and never gives other bytes; afterwards it works."""

    def check(data: bytes) -> Hashable:
        name, _, changed = data.partition(b"\n")
        shutil.rmtree(scratch / "cache")
        shutil.copytree(scratch / "whole", scratch / "cache")
        (scratch / "cache" / name.decode()).write_bytes(changed)
        cache = BlockCache(cache_settings(scratch))
        try:
            found = cache.read(KEYS)
            claimed = cache.claim(KEYS, hold=False)
            put = cache.put({key: content(key) for key in claimed.mine})
            again = cache.read(KEYS)
            for key, block in (found | again).items():
                if not np.array_equal(block, content(key)):
                    raise Finding("another block")
            cache.find(KEYS)
            return len(found), len(claimed.mine), len(put), len(again)
        finally:
            cache.close()

    return check


def state_seeds(scratch: Path) -> Sequence[bytes]:
    with _loader() as loader:
        next(iter(loader))
        return [json.dumps(loader.state_dict()).encode()]


def _loader() -> gpupipe.Loader:
    data = [(jpeg(number, 9, 9), number) for number in range(8)]
    return gpupipe.Loader(data, gpupipe.imagenet_eval(8, dtype="uint8"), 2, engine="torch", num_workers=0, seed=5)


def state_check(scratch: Path) -> Callable[[bytes], Hashable]:
    loader = _loader()

    def check(data: bytes) -> Hashable:
        try:
            state = json.loads(data)
        except (ValueError, RecursionError):
            return "no JSON"
        try:
            loader.load_state_dict(state)
        except gpupipe.StateError as error:
            raise gpupipe.DataError(str(error)) from error
        saved = loader.state_dict()
        if {"origin": 0, **state} != saved:  # which older versions did not save
            raise Finding(f"it is {saved} after {state}")
        return saved["position"]

    return check


TARGETS = [
    Target("index", index_seeds, index_check, index_mutated, named="hostile.tar"),
    Target("cache", cache_seeds, cache_check, cache_mutated),
    Target(
        "state",
        state_seeds,
        state_check,
        mutators.plain(b"true", b"null", b"{", b"-1", b"1e9", b'"version": 1', b'"position": 4', b'"\\u001b"'),
        named="state",
    ),
]
