from __future__ import annotations

import importlib.util
import io
import logging
import os
import signal
import tarfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

# Of torch's, here and in what tests start: threads that wait for each other lose much where tests run side by side.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from images import write_folder
from servers.buckets import Azurite, Bucket, FakeGoogle, Moto, Storage
from servers.faults import FaultServer
from servers.nginx import Nginx
from servers.processes import Absent

from gpupipe.kernels import native
from gpupipe.migration import seeds

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined: the interpreter runs it on CPU tensors
os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")  # Ray's 30 s are too few where two cores are busy


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes minutes runs only when it is asked for, as with `-m large`."""
    if "large" not in config.option.markexpr:
        items[:] = [item for item in items if not item.get_closest_marker("large")]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What needs a trainer's library is skipped where it is missing, which the extra `test` does not bring."""
    for mark in item.iter_markers("trainers"):
        for library in mark.args:
            if importlib.util.find_spec(library) is None:
                pytest.skip(f"{library} is not installed: pip install -e '.[dev]'")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that a test makes reaches the user's cache folder."""
    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Python's own handler, which it does not install where SIGINT is ignored, as in a shell's background job.

    Programs that are started meanwhile do not inherit that, either.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _own_log_level() -> None:
    """The command line sets the level for its process, be it one of a fixture that others share."""
    logging.getLogger("gpupipe").setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def _no_loaders_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said of a second shuffled loader of a program is said of a second one of a test."""
    monkeypatch.setattr(seeds, "_taken", weakref.WeakKeyDictionary())


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the C++ kernels were not built."""
    monkeypatch.setattr(native, "_opened", lambda: (None, "the C++ kernels were not built; do this"))


@pytest.fixture(params=["kernels", "plain"])
def cpu_path(request: pytest.FixtureRequest) -> str:
    """Once with the C++ kernels, once without them."""
    if request.param == "plain":
        request.getfixturevalue("no_kernels")
    elif native.library() is None:
        pytest.skip(f"without the C++ kernels: {native.problem()}")
    return request.param


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image folder of 5 classes with 5 images each, of varying sizes."""
    return write_folder(tmp_path_factory.mktemp("folder"), classes=5, per_class=5)


@pytest.fixture(scope="session")
def shards(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same images in the same order as `folder`, in three WebDataset shards, as a brace pattern."""
    root = tmp_path_factory.mktemp("shards")
    files = sorted(folder.glob("*/*.jpg"))
    for number in range(3):
        with tarfile.open(root / f"part-{number}.tar", "w") as tar:
            for file in files[number * 9 : number * 9 + 9]:
                key = f"{file.parent.name}_{file.stem}"
                for name, data in ((f"{key}.jpg", file.read_bytes()), (f"{key}.cls", file.parent.name[-1].encode())):
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    return str(root / "part-{0..2}.tar")


@pytest.fixture
def fault_server() -> Iterator[FaultServer]:
    """HTTP with ranges and ETags, and faults as a test scripts them; it has no objects yet."""
    with FaultServer() as server:
        yield server


def _storage(kind: type[Storage], folder: Path) -> Iterator[Storage]:
    try:
        storage = kind(folder)
    except Absent as absent:
        pytest.skip(str(absent))
    with storage:
        yield storage


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    yield from _storage(Moto, tmp_path_factory.mktemp("moto"))


@pytest.fixture(scope="session")
def fake_google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    yield from _storage(FakeGoogle, tmp_path_factory.mktemp("google"))


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    yield from _storage(Azurite, tmp_path_factory.mktemp("azurite"))


@pytest.fixture(params=["moto", "fake_google", "azurite"])
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty one on each of the servers, which this process and its children find by the environment."""
    storage = request.getfixturevalue(request.param)
    for name, value in storage.environment().items():
        monkeypatch.setenv(name, value)
    return storage.bucket()


@pytest.fixture
def s3_bucket(moto: Storage, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty one, as `bucket`."""
    for name, value in moto.environment().items():
        monkeypatch.setenv(name, value)
    return moto.bucket()


@pytest.fixture
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Nginx]]:
    """serve(folder, latency=, rate=) has a folder served by nginx until the test ends."""
    with ExitStack() as servers:

        def start(root: Path, latency: float = 0.0, rate: int | None = None) -> Nginx:
            try:
                return servers.enter_context(Nginx(root, tmp_path_factory.mktemp("nginx"), latency, rate))
            except Absent as absent:
                pytest.skip(str(absent))

        yield start
