"""Which engine, on which device: what was asked for, or the best that this machine has."""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Literal

import torch

from gpupipe.decode.decoders import Decoders
from gpupipe.decode.engine import Engine
from gpupipe.decode.items import Items
from gpupipe.decode.rendering import Rendering
from gpupipe.decode.selftest import fit
from gpupipe.decode.sharing import Share, SharingEngine
from gpupipe.decode.substitutes import Substitutes
from gpupipe.decode.torch import TorchEngine
from gpupipe.decode.tuned import Tuned, tuned
from gpupipe.errors import ConfigError, EngineUnavailableError
from gpupipe.host import system
from gpupipe.host.checks import whole
from gpupipe.kernels import native
from gpupipe.recipe import PerImage, Views
from gpupipe.sources import DatasetSource, ItemSource, Source
from gpupipe.sources.parts import asks_users
from gpupipe.workers.work import Plane
from gpupipe.workers.worker import WorkerInit

__all__ = [
    *("PREFETCH", "EngineName", "EngineSettings", "choose", "concurrency", "made_by", "open_engine", "served"),
    "substitutes",
]

log = logging.getLogger("gpupipe")

EngineName = Literal["auto", "dali", "torch"]

PREFETCH = {
    "dali": 3,  # one batch with the consumer, one on its way out, one being decoded
    "torch": 2,  # torch.utils.data.DataLoader's default
}
"""`prefetch_factor=None`, by engine."""


@dataclass(frozen=True)
class EngineSettings:
    """How an engine is run, in the words of `torch.utils.data.DataLoader`.

    num_workers: processes of the torch engine (0: none, the work is done in the thread that asks for batches), or
    DALI's CPU threads and the worker processes beside it. prefetch_factor: batches ahead per worker, or for DALI in
    all. decoders: for DALI alone.
    """

    engine: Literal["dali", "torch"]
    device: torch.device
    batch_size: int
    num_workers: int
    prefetch_factor: int
    pin_memory: bool
    persistent_workers: bool
    timeout: float
    multiprocessing_context: Any
    decoders: Decoders | None = None
    worker_init_fn: WorkerInit | None = None

    def __post_init__(self) -> None:
        # As tuned, perhaps: the Loader has checked what it was given.
        whole("num_workers", self.num_workers, 0)
        whole("prefetch_factor", self.prefetch_factor, 1)
        if self.worker_init_fn is not None and not callable(self.worker_init_fn):
            raise ConfigError(
                f"worker_init_fn={self.worker_init_fn!r} must be a function of the worker's number, or None"
            )
        decoders = self.decoders
        if decoders is None:
            return
        if not isinstance(decoders, Decoders):
            raise ConfigError(f"decoders={decoders!r} must be a gpupipe.Decoders")
        if self.engine == "torch":
            raise ConfigError("decoders says how DALI shares batches out, so it needs engine='dali', not 'torch'")
        if decoders.cpu_workers and decoders.cpu_workers >= self.num_workers:
            raise ConfigError(
                f"num_workers={self.num_workers} are to be the {decoders.cpu_workers} cpu_workers of decoders and at "
                "least one thread of DALI; raise num_workers"
            )

    @property
    def dali_threads(self) -> int:
        """CPU threads of DALI."""
        return max(1, self.num_workers - self.worker_processes)

    @property
    def worker_processes(self) -> int:
        """Of the torch engine, or beside DALI."""
        if self.engine == "torch":
            return self.num_workers
        return self.decoders.cpu_workers if self.decoders else 0


def choose(engine: str, device: str | torch.device) -> tuple[Literal["dali", "torch"], torch.device]:
    """The engine and the device that "auto" or explicit wishes mean here.

    Raises EngineUnavailableError for what this machine lacks, ConfigError for a name that is none.
    """
    where = _device(device)
    if engine not in ("auto", "dali", "torch"):
        raise ConfigError(f"engine={engine!r} must be 'auto', 'dali' or 'torch'")
    # On the CPU the torch engine is the faster of the two, see the README's table.
    if engine == "torch" or (engine == "auto" and where.type != "cuda"):
        return "torch", where
    problem = _dali_problem()
    if problem is None:
        return "dali", where
    if engine == "dali":
        raise EngineUnavailableError(
            f"engine='dali' needs NVIDIA DALI, which can't be imported ({problem}); pip install "
            f"nvidia-dali-cuda{'130' if str(torch.version.cuda).startswith('13') else '120'}, or pass engine='torch'"
        )
    log.warning("gpupipe: DALI can't be imported (%s), so the CPU decodes; pip install nvidia-dali-cuda120", problem)
    return "torch", where


def served(engine: EngineName, views: Views) -> EngineName:
    """The engine that is to be looked for, where a recipe has what DALI can't do: "torch" in the place of "auto".

    Raises ConfigError where DALI is asked for by name.
    """
    own = next((one for view in views for one in view.own if isinstance(one, PerImage)), None)
    if own is None or engine not in ("auto", "dali"):
        return engine
    if engine == "dali":
        raise ConfigError(
            f"engine='dali' can't call {own}, a function of your own on each image; pass engine='torch', whose workers "
            "call it, or make it an OnBatch, which every engine has"
        )
    if torch.cuda.is_available():
        log.warning("gpupipe: the CPU decodes, since DALI can't call %s; an OnBatch would leave that to the GPU", own)
    return "torch"


def _device(device: str | torch.device) -> torch.device:
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise ConfigError(f"device={device!r} must be 'auto', 'cpu', 'cuda' or 'cuda:N'")
    if found.type == "cpu":
        return found
    if not torch.cuda.is_available():
        reason = "this build of torch has no CUDA" if torch.version.cuda is None else "torch finds no usable GPU"
        raise EngineUnavailableError(
            f"device='{device}' was asked for, but {reason}; install the NVIDIA driver and a CUDA build of torch "
            "(`gpupipe doctor` shows what is missing), or pass device='cpu'"
        )
    index = torch.cuda.current_device() if found.index is None else found.index
    if index >= torch.cuda.device_count():
        raise EngineUnavailableError(f"device='{device}': this process sees {torch.cuda.device_count()} GPUs")
    return torch.device("cuda", index)


def _dali_problem() -> str | None:
    """Why DALI can't be used, or None."""
    try:
        importlib.import_module("nvidia.dali")
    except (ImportError, OSError) as error:
        return str(error)
    return None


def concurrency(
    wish: str,
    engine: Literal["dali", "torch"],
    device: torch.device,
    num_workers: int | None,
    prefetch_factor: int | None,
    decoders: Decoders | None,
) -> Tuned:
    """What was asked for; where nothing was, what was tuned on this machine; else the defaults.

    wish: "auto", or the engine that was asked for; engine: the one that it means here.
    """
    if num_workers is None and prefetch_factor is None and decoders is None:
        found = tuned(device)
        if found is not None and wish in ("auto", found.engine):
            log.info("gpupipe: as tuned on this machine: %s", found)
            return _trusted(found, wish, device)
        if engine == "dali" and device.type == "cuda":
            log.info("gpupipe: DALI decodes all; `gpupipe tune DATA` finds what is fastest on this machine")
    settled = Tuned(
        engine,
        system.default_workers() if num_workers is None else num_workers,
        PREFETCH[engine] if prefetch_factor is None else prefetch_factor,
        Decoders() if engine == "dali" and decoders is None else decoders,
    )
    return _trusted(settled, wish, device)


def _trusted(found: Tuned, wish: str, device: torch.device) -> Tuned:
    """Without what the self-test of the machine's decoders rules out."""
    if found.engine == "torch" or not isinstance(found.decoders, Decoders):
        return found
    try:
        return replace(found, decoders=fit(found.decoders, device))
    except EngineUnavailableError as error:
        if wish != "auto":
            raise
        log.warning("gpupipe: the CPU decodes, since %s", error)
        return replace(found, engine="torch", prefetch_factor=PREFETCH["torch"], decoders=None)


def made_by(
    settings: EngineSettings, source: Source, views: Views, collate_fn: Callable[[list[Any]], Any] | None
) -> Rendering | Items:
    """What makes batches in worker processes: views of images, or without any a dataset's items as they are."""
    if isinstance(source, ItemSource):
        return Items(source, collate_fn)
    # Workers beside DALI make parts of batches. A GPU augments a batch itself, in a fraction of a worker's time.
    return Rendering(source, views, augmented=settings.engine == "torch" and settings.device.type == "cpu")


def substitutes(work: Rendering | Items, settings: EngineSettings, seeds: torch.Generator) -> Substitutes | None:
    """What makes single rows where workers alone may, as they ask a user's dataset; None: the loader's process may, as
    no code of a user's is asked, or it is asked there anyway, without workers or with DALI."""
    if settings.engine == "dali" or not settings.num_workers or not asks_users(work.source):
        return None
    alone = replace(settings, batch_size=1, num_workers=1, pin_memory=False, persistent_workers=True)
    return Substitutes(partial(_torch_engine, work, alone, seeds, 1))


def open_engine(
    work: Rendering | Items, settings: EngineSettings, seeds: torch.Generator, beside: Substitutes | None = None
) -> Engine:
    """The engine that the settings name, ready to stream; says once which one it is.

    seeds: where those of worker processes come from. beside: what ends with the workers of the torch engine.
    """
    if settings.engine == "dali":
        assert isinstance(work, Rendering)
        return _open_dali(work, settings, seeds)
    log.info("gpupipe: torch engine, %d workers, batches on %s", settings.num_workers, settings.device)
    return _open_torch(work, settings, seeds, settings.prefetch_factor, beside)


def _open_dali(work: Rendering, settings: EngineSettings, seeds: torch.Generator) -> Engine:
    from gpupipe.decode.dali.engine import DaliEngine

    decoders = settings.decoders or Decoders()
    if settings.worker_init_fn is not None:
        log.warning(
            "gpupipe: worker_init_fn is not called for what DALI decodes, as the loader's own process reads that; open "
            "files and connections when the first sample is asked for, or pass engine='torch'"
        )
    log.info(
        "gpupipe: DALI engine on %s, %d threads, %d CPU workers for %g %% of each batch",
        settings.device,
        settings.dali_threads,
        settings.worker_processes,
        100 * decoders.cpu_share,
    )
    dali = DaliEngine(
        work.source,
        work.views,
        settings.device,
        batch_size=settings.batch_size,
        num_threads=settings.dali_threads,
        prefetch_depth=settings.prefetch_factor,
        decoders=decoders,
        ahead=_ahead(work, settings),
        timeout=settings.timeout,
    )
    if not decoders.cpu_share:
        return dali
    cpu = _open_torch(work, settings, seeds, PREFETCH["torch"])
    return SharingEngine(dali, cpu, Share(work.source, work.views, decoders.cpu_share))


def _open_torch(
    work: Rendering | Items,
    settings: EngineSettings,
    seeds: torch.Generator,
    prefetch_factor: int,
    beside: Substitutes | None = None,
) -> Engine:
    _say_without_kernels()
    if settings.worker_processes:
        _check_shm(work.layout, settings, prefetch_factor)
    elif settings.device.type == "cuda":
        log.warning("gpupipe: num_workers=0 decodes in the training process, so the GPU waits; raise num_workers")
    return _torch_engine(work, settings, seeds, prefetch_factor, beside)


def _torch_engine(
    work: Rendering | Items,
    settings: EngineSettings,
    seeds: torch.Generator,
    prefetch_factor: int,
    beside: Substitutes | None = None,
) -> TorchEngine:
    source, workers = work.source, settings.worker_processes
    options: dict[str, Any] = {}
    if workers:
        options = {
            name: getattr(settings, name)
            for name in ("persistent_workers", "timeout", "multiprocessing_context", "worker_init_fn")
        }
        options["prefetch_factor"] = prefetch_factor
    return TorchEngine(
        work,
        settings.device,
        batch_size=settings.batch_size,
        num_workers=workers,
        pin_memory=settings.pin_memory,
        generator=seeds,
        source=source,
        ahead=_ahead(work, settings),
        beside=beside,
        describe=source.location,
        dataset=source.dataset if isinstance(source, DatasetSource | ItemSource) else source,
        **options,
    )


def _ahead(work: Rendering | Items, settings: EngineSettings) -> int:
    """Of how many batches before it is read a source wants to know."""
    parts = len(work.views[0].parts) if isinstance(work, Rendering) else 1
    return math.ceil(work.source.looks_ahead / (settings.batch_size * parts))


@lru_cache(maxsize=1)
def _say_without_kernels() -> None:
    """Once in a process."""
    if native.library() is None:
        log.warning("gpupipe: Pillow makes the pixels, more slowly: %s", native.problem())


def _check_shm(layout: Sequence[Plane], settings: EngineSettings, prefetch_factor: int) -> None:
    """An error here, rather than a bus error in a worker later."""
    processes = system.local_world_size()
    needed = processes * system.shm_bytes_needed(
        settings.batch_size,
        math.ceil(sum(math.prod(plane.shape) * plane.dtype.itemsize for plane in layout) / 3),
        settings.worker_processes,
        prefetch_factor,
    )
    free, total = system.shm_bytes_free(), system.shm_bytes_total()
    if free is not None and total is not None and free < needed:
        raise ConfigError(
            f"/dev/shm has {free >> 20} of its {total >> 20} MiB free, but batch_size={settings.batch_size}, "
            f"{settings.worker_processes} workers and {prefetch_factor} batches ahead for each in {processes} "
            f"processes need {needed >> 20} MiB; start the container with --shm-size={system.shm_size(needed)} or "
            "more, lower these settings, or close loaders that are not used"
        )
