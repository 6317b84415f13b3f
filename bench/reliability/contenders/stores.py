"""Libraries that read storages, each from files of its own form, as its documentation has it."""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from signal import SIGKILL, Signals
from typing import Any, ClassVar

from torch import Tensor
from torch.utils.data import DataLoader

from reliability.case import Failed, NoFunction
from reliability.contenders.base import Setup, Stored, Stream
from reliability.data import decoded

__all__ = [
    *("KEY", "PATIENCE", "TIMEOUT", "Connector", "LitData", "OfStores", "Streaming", "apart", "settings_of"),
    "torch_options",
]

FILES, PER_FILE = 4, 12
PATIENCE, TIMEOUT = 10, 20  # seconds for a read, where there is a setting, and for a batch of torch's DataLoader
PR_SET_PDEATHSIG = 1  # prctl(2)
REGION, KEY = "us-east-1", "secret-of-the-case"


def settings_of(stored: Stored) -> dict[str, str]:
    """Of clients of S3: the server, and keys, or where they are given."""
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": KEY}
    role = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": stored.role}
    servers = dict.fromkeys(("S3_ENDPOINT_URL", "AWS_ENDPOINT_URL"), stored.server)
    return (role if stored.role else keys) | servers | {"AWS_DEFAULT_REGION": REGION}


def torch_options(stored: Stored) -> dict[str, Any]:
    """For a DataLoader, or what takes its arguments."""
    timeout = TIMEOUT if stored.workers else 0
    return {"batch_size": stored.batch, "num_workers": stored.workers, "timeout": timeout, **stored.options}


def apart(function: Callable[..., Iterator[Any]], *arguments: Any) -> Iterator[tuple[list[int], list[float]]]:
    """Numbers and mean levels of the images of which the function gives batches, in a process of its own.

    Some libraries keep threads, files and shared memory until their process ends. It is killed with the one that asks:
    as if they were one, whatever is left of it then.
    """
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
        if process.exitcode is not None and process.exitcode < 0:
            raise Failed(f"its process was ended by {Signals(-process.exitcode).name}") from None
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
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)
    try:
        for numbers, images in function(*arguments):
            connection.send((numbers.tolist(), images.float().mean((1, 2, 3)).tolist()))
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
    def write(cls, folder: Path, samples: Mapping[int, bytes], kind: str = "", beside: Any = None) -> None:
        if kind:
            cls.kind_of(kind)
        list(apart(cls.written, folder, samples, beside))

    @classmethod
    def read(cls, stored: Stored) -> Iterator[tuple[int, float]]:
        if stored.cache is not None and not cls.caches:
            raise NoFunction("it has no cache")
        if stored.local is not None:
            cls.kind_of(stored.kind)
        if stored.skip:
            raise NoFunction(f"{cls.name} has no function that passes over bad samples")
        os.environ |= settings_of(stored)
        for numbers, levels in apart(cls.batches, stored):
            yield from zip(numbers, levels, strict=True)

    @classmethod
    @abstractmethod
    def written(cls, folder: Path, samples: Mapping[int, bytes], beside: Any) -> Iterator[Any]:
        """`write`; nothing is given."""

    @classmethod
    @abstractmethod
    def batches(cls, stored: Stored) -> Iterator[Any]:
        """Of numbers and images."""


class LitData(OfStores):
    """StreamingDataset in a StreamingDataLoader."""

    name = library = "litdata"
    kinds = ("chunks",)

    @classmethod
    def written(cls, folder: Path, samples: Mapping[int, bytes], beside: Any) -> Iterator[Any]:
        from litdata.streaming import Cache

        cache = Cache(str(folder), chunk_size=PER_FILE)
        for place, (number, image) in enumerate(samples.items()):
            cache[place] = {"number": number, "image": image} | ({"beside": beside} if beside else {})
        cache.done()
        cache.merge()
        return iter(())

    @classmethod
    def batches(cls, stored: Stored) -> Iterator[Any]:
        from litdata import StreamingDataLoader, StreamingDataset
        from litdata.streaming import downloader

        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # it would take https only
        downloader._OBSTORE_CLIENT_OPTIONS["timeout"] = f"{PATIENCE}s"
        cache = stored.cache or Path(os.environ["TMPDIR"]) / "chunks"  # its own is one for all of a user
        options: dict[str, Any] = {"storage_options": {"endpoint_url": stored.server}, "cache_dir": str(cache)}
        if stored.limit is not None:
            options["max_cache_size"] = stored.limit
        url = str(stored.local or f"s3://{stored.bucket}")
        transform = partial(_decoded, size=stored.size)
        dataset = StreamingDataset(url, shuffle=True, transform=transform, **options)
        return iter(StreamingDataLoader(dataset, **torch_options(stored)))


class Streaming(OfStores):
    """StreamingDataset behind a DataLoader."""

    name = library = "streaming"
    kinds = ("mds",)

    @classmethod
    def written(cls, folder: Path, samples: Mapping[int, bytes], beside: Any) -> Iterator[Any]:
        from streaming import MDSWriter

        size = sum(map(len, samples.values())) // FILES
        columns = {"number": "int", "image": "bytes"} | ({"beside": "pkl"} if beside else {})
        with MDSWriter(out=str(folder), columns=columns, size_limit=size) as writer:
            for number, image in samples.items():
                writer.write({"number": number, "image": image, "beside": beside})
        return iter(())

    @classmethod
    def batches(cls, stored: Stored) -> Iterator[Any]:
        from streaming import StreamingDataset
        from streaming.base.util import clean_stale_shared_memory

        clean_stale_shared_memory()

        class Decoded(StreamingDataset):
            def __getitem__(self, index: Any) -> Any:
                return _decoded(super().__getitem__(index), stored.size)

        local = stored.local or stored.cache or Path(os.environ["TMPDIR"]) / "mds"
        remote = None if stored.local else f"s3://{stored.bucket}"
        options: dict[str, Any] = {"local": str(local), "remote": remote, "cache_limit": stored.limit}
        options["download_timeout"] = PATIENCE
        dataset = Decoded(shuffle=True, batch_size=stored.batch, **options)
        for stream in dataset.streams:
            stream._downloader.clean_up()  # forked workers would share its connection, and read each other's answers
        return iter(DataLoader(dataset, **torch_options(stored)))


class Connector(OfStores):
    """S3MapDataset, an object for each image; it keeps nothing."""

    name = library = "s3torchconnector"
    caches = False

    @classmethod
    def written(cls, folder: Path, samples: Mapping[int, bytes], beside: Any) -> Iterator[Any]:
        for number, image in samples.items():
            (folder / f"{number}.jpg").write_bytes(image)
        return iter(())

    @classmethod
    def batches(cls, stored: Stored) -> Iterator[Any]:
        from s3torchconnector import S3ClientConfig, S3MapDataset

        dataset = S3MapDataset.from_objects(
            [f"s3://{stored.bucket}/{number}.jpg" for number in range(FILES * PER_FILE)],
            region=REGION,
            endpoint=stored.server,
            transform=partial(_object, size=stored.size),
            s3client_config=S3ClientConfig(force_path_style=True),
        )
        return iter(DataLoader(dataset, shuffle=True, **torch_options(stored)))


def _decoded(sample: Mapping[str, Any], size: int) -> tuple[int, Tensor]:
    return int(sample["number"]), decoded(bytes(sample["image"]), size)


def _object(reader: Any, size: int) -> tuple[int, Tensor]:
    return int(Path(reader.key).stem), decoded(reader.read(), size)
