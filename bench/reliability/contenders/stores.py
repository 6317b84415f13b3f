"""Libraries that read storages, each from files of its own form, as its documentation has it."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, ClassVar

from torch.utils.data import DataLoader

from reliability.case import NoFunction
from reliability.contenders.base import Setup, Stored, Stream
from reliability.data import gray, write_samples

__all__ = ["BATCH", "KEY", "TARS", "Connector", "LitData", "Streaming", "settings_of", "split_into_tars"]

BATCH, TARS, PER_FILE = 4, 4, 12
REGION, KEY = "us-east-1", "secret-of-the-case"


def split_into_tars(folder: Path, samples: Mapping[int, bytes]) -> None:
    """As `number.tar`."""
    for number in range(TARS):
        write_samples(folder / f"{number}.tar", {key: samples[key] for key in list(samples)[number::TARS]})


def settings_of(stored: Stored) -> dict[str, str]:
    """Of clients of S3: the server, and keys, or where they are given."""
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": KEY}
    role = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": stored.role}
    servers = dict.fromkeys(("S3_ENDPOINT_URL", "AWS_ENDPOINT_URL"), stored.server)
    return (role if stored.role else keys) | servers | {"AWS_DEFAULT_REGION": REGION}


def _apart(function: Callable[..., Iterator[Any]], *arguments: Any) -> Iterator[Any]:
    """What the function gives, tensors as lists, in a process of its own: some keep threads and shared memory until
    their process ends."""
    receive, send = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_send, args=(send, function, *arguments))
    process.start()
    send.close()
    try:
        while (found := receive.recv()) is not None:
            if isinstance(found, str):
                raise RuntimeError(found)
            yield found
    except EOFError:
        _ended(process)
        raise RuntimeError(f"its process ended with exit code {process.exitcode}") from None
    finally:
        receive.close()
        if not _ended(process):
            process.kill()
            _ended(process)
        process.close()


def _ended(process: BaseProcess, seconds: float = 5.0) -> bool:
    """Whether it has ended in time. `join` would wait for those, too, that it has started."""
    deadline = time.monotonic() + seconds
    while process.exitcode is None and time.monotonic() < deadline:
        time.sleep(0.005)
    return process.exitcode is not None


def _send(connection: Connection, function: Callable[..., Iterator[Any]], *arguments: Any) -> None:
    try:
        for columns in function(*arguments):
            connection.send([column.tolist() for column in columns])
        connection.send(None)
    except Exception as error:
        connection.send(f"{type(error).__name__}: {error}")
    finally:
        atexit._run_exitfuncs()  # multiprocessing leaves them out


class OfStores(Stream):
    """What it does with a `Setup` is not asked here."""

    def __init__(self, setup: Setup) -> None:
        raise NoFunction(f"{self.name} is asked for what it reads of a storage only")

    def __iter__(self) -> Iterator[list[int]]:
        raise AssertionError("there is none")

    def set_epoch(self, epoch: int) -> None:
        raise AssertionError("there is none")

    caches: ClassVar[bool] = True

    @classmethod
    def write(cls, folder: Path, samples: Mapping[int, bytes]) -> None:
        list(_apart(cls.written, folder, samples))

    @classmethod
    def read(cls, stored: Stored) -> Iterator[tuple[int, float]]:
        if stored.cache is not None and not cls.caches:
            raise NoFunction("it has no cache")
        if stored.local is not None and not cls.caches:
            raise NoFunction("it reads S3 only")
        os.environ |= settings_of(stored)
        for numbers, levels in _apart(cls.batches, stored):
            yield from zip(numbers, levels, strict=True)

    @classmethod
    @abstractmethod
    def written(cls, folder: Path, samples: Mapping[int, bytes]) -> Iterator[Any]:
        """`write`; nothing is given."""

    @classmethod
    @abstractmethod
    def batches(cls, stored: Stored) -> Iterator[Any]:
        """Of numbers and gray levels."""


class LitData(OfStores):
    """StreamingDataset in a StreamingDataLoader."""

    name = library = "litdata"

    @classmethod
    def written(cls, folder: Path, samples: Mapping[int, bytes]) -> Iterator[Any]:
        from litdata.streaming import Cache

        cache = Cache(str(folder), chunk_size=PER_FILE)
        for place, (number, image) in enumerate(samples.items()):
            cache[place] = {"number": number, "image": image}
        cache.done()
        cache.merge()
        return iter(())

    @classmethod
    def batches(cls, stored: Stored) -> Iterator[Any]:
        from litdata import StreamingDataLoader, StreamingDataset
        from litdata.streaming import downloader

        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # it would take https only
        options: dict[str, Any] = {"storage_options": {"endpoint_url": stored.server}}
        if stored.cache is not None:
            options["cache_dir"] = str(stored.cache)
        if stored.limit is not None:
            options["max_cache_size"] = stored.limit
        url = str(stored.local or f"s3://{stored.bucket}")
        dataset = StreamingDataset(url, shuffle=True, transform=_decoded, **options)
        return iter(StreamingDataLoader(dataset, batch_size=BATCH, num_workers=stored.workers))


class Streaming(OfStores):
    """StreamingDataset behind a DataLoader."""

    name = library = "streaming"

    @classmethod
    def written(cls, folder: Path, samples: Mapping[int, bytes]) -> Iterator[Any]:
        from streaming import MDSWriter

        size = sum(map(len, samples.values())) // TARS
        with MDSWriter(out=str(folder), columns={"number": "int", "image": "bytes"}, size_limit=size) as writer:
            for number, image in samples.items():
                writer.write({"number": number, "image": image})
        return iter(())

    @classmethod
    def batches(cls, stored: Stored) -> Iterator[Any]:
        from streaming import StreamingDataset
        from streaming.base.util import clean_stale_shared_memory

        clean_stale_shared_memory()

        class Decoded(StreamingDataset):
            def __getitem__(self, index: Any) -> Any:
                return _decoded(super().__getitem__(index))

        local = stored.local or stored.cache or Path(os.environ["TMPDIR"]) / "mds"
        remote = None if stored.local else f"s3://{stored.bucket}"
        options = {"local": str(local), "remote": remote, "cache_limit": stored.limit}
        dataset = Decoded(shuffle=True, batch_size=BATCH, **options)
        for stream in dataset.streams:
            stream._downloader.clean_up()  # forked workers would share its connection, and read each other's answers
        return iter(DataLoader(dataset, batch_size=BATCH, num_workers=stored.workers))


class Connector(OfStores):
    """S3MapDataset, an object for each image; it keeps nothing."""

    name = library = "s3torchconnector"
    caches = False

    @classmethod
    def written(cls, folder: Path, samples: Mapping[int, bytes]) -> Iterator[Any]:
        for number, image in samples.items():
            (folder / f"{number}.jpg").write_bytes(image)
        return iter(())

    @classmethod
    def batches(cls, stored: Stored) -> Iterator[Any]:
        from s3torchconnector import S3ClientConfig, S3MapDataset

        dataset = S3MapDataset.from_objects(
            [f"s3://{stored.bucket}/{number}.jpg" for number in range(TARS * PER_FILE)],
            region=REGION,
            endpoint=stored.server,
            transform=_object,
            s3client_config=S3ClientConfig(force_path_style=True),
        )
        return iter(DataLoader(dataset, BATCH, shuffle=True, num_workers=stored.workers))


def _decoded(sample: Mapping[str, Any]) -> tuple[int, float]:
    return int(sample["number"]), gray(bytes(sample["image"]))


def _object(reader: Any) -> tuple[int, float]:
    return int(Path(reader.key).stem), gray(reader.read())
