"""Facts of the machine: CPUs that this process may use, memory, shared memory, open files.

A container or a batch system often gives a process a small part of its host. The host's CPU count then starts far too
many workers, and the default 64 MiB of a container's /dev/shm ends a run with a bus error. All functions here read
the kernel's own files; none needs a library beyond the standard one.
"""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from gpupipe.errors import ConfigError

__all__ = [
    *("batches_in_memory", "cgroup_cpu_quota", "cgroup_memory_limit", "default_workers", "docker_size"),
    *("host_cpus", "local_world_size", "memory_limit", "open_file_limit", "open_files_needed"),
    *("shm_bytes_free", "shm_bytes_needed", "shm_bytes_total", "shm_size", "usable_cpus"),
]

MIB, GIB = 1 << 20, 1 << 30
SHM_MARGIN = 0.10  # pages are 4 KiB, and other things lie in the same place
SHM_BASE = 16 * MIB  # labels, semaphores, torch's own small segments
BATCHES_BESIDE_QUEUE = 2  # one that the training step reads, one that is being finished (normalized, copied)
FILES_BASE = 128  # interpreter, libraries, sockets of torch.distributed, logs
FILES_PER_WORKER = 8  # pipe ends of the index and result queues, the sentinel, the worker's own shards
FILES_PER_BATCH = 1  # a plain DataLoader's workers hand over a descriptor for each
UNLIMITED_V1 = 1 << 60  # cgroup v1 writes "no limit" as the largest multiple of the page size below 2**63


def host_cpus() -> int:
    """Number of logical CPUs that the host has, whether this process may use them or not."""
    return os.cpu_count() or 1


def usable_cpus() -> int:
    """Number of CPUs that this process may really use, at least 1.

    The smaller of two: the CPUs in the process's affinity mask (taskset, cpusets, batch systems), and the cgroup's
    CPU time per period, rounded up (`docker --cpus=2.5` gives 3: a third worker still adds the last half).
    """
    return _usable_cpus(_affinity(), cgroup_cpu_quota())


def _usable_cpus(affinity: int, quota: float | None) -> int:
    if quota is None:
        return max(1, affinity)
    # 1e-9: a quota of exactly 3 CPUs must not become 4 through the division's rounding.
    return max(1, min(affinity, math.ceil(quota - 1e-9)))


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return host_cpus()


def cgroup_cpu_quota(root: str | Path = "/") -> float | None:
    """CPUs' worth of time that the process's cgroups grant, the tightest of all levels; None without a limit.

    `root` is where `proc/self/cgroup` and `sys/fs/cgroup` are looked for. A limit on a parent binds its children, so
    every level up to the mount point is read. Reads v2 (`cpu.max`) and v1 (`cpu.cfs_quota_us`, `cpu.cfs_period_us`).
    """
    quotas = [_cpu_quota_of(folder) for folder in _cgroup_folders(Path(root), "cpu")]
    return min((quota for quota in quotas if quota is not None), default=None)


def _cpu_quota_of(folder: Path) -> float | None:
    fields = (_read(folder / "cpu.max") or "").split()
    if not fields:
        fields = [_read(folder / "cpu.cfs_quota_us") or "", _read(folder / "cpu.cfs_period_us") or ""]
    try:
        quota, period = int(fields[0]), int(fields[1])
    except (ValueError, IndexError):  # "max", or no such file
        return None
    return quota / period if quota > 0 and period > 0 else None  # v1 writes -1 for "no limit"


def memory_limit() -> int | None:
    """Bytes of memory that this process may use: the smaller of the cgroup's limit and the host's; None if unknown."""
    known = [value for value in (cgroup_memory_limit(), _host_memory()) if value is not None]
    return min(known, default=None)


def cgroup_memory_limit(root: str | Path = "/") -> int | None:
    """Bytes that the process's cgroups grant, the tightest of all levels; None without a limit."""
    limits = [_memory_limit_of(folder) for folder in _cgroup_folders(Path(root), "memory")]
    return min((limit for limit in limits if limit is not None), default=None)


def _memory_limit_of(folder: Path) -> int | None:
    text = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes") or ""
    if not text.isdigit() or int(text) >= UNLIMITED_V1:
        return None
    return int(text)


def _host_memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """Folders that may hold the limits of `controller`, from the process's own cgroup up to the mount point.

    Lines of proc/self/cgroup are `id:controllers:path`; v2 has no controllers. Inside a container without a cgroup
    namespace the path is the host's and does not exist below the mount: its parents, up to the mount, still count.
    """
    base = root / "sys/fs/cgroup"
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        controllers, path = parts[1], PurePosixPath(parts[2].lstrip("/"))
        if controllers == "":
            mounts = [base, base / "unified"]
        elif controller in controllers.split(","):
            mounts = [base / controller, base / controllers]
        else:
            continue
        inside = PurePosixPath(*(part for part in path.parts if part != ".."))
        for mount in mounts:
            yield mount / inside
            yield from (mount / parent for parent in inside.parents)


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def local_world_size() -> int:
    """Training processes on this machine: the LOCAL_WORLD_SIZE that torchrun sets, 1 without it.

    Raises ConfigError where the variable is not a positive whole number.
    """
    text = os.environ.get("LOCAL_WORLD_SIZE", "1")
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(
            f"LOCAL_WORLD_SIZE={text!r} is not a positive whole number; "
            "unset it, or set it to the number of training processes on this machine (torchrun does)"
        )
    return int(text)


def default_workers(processes: int | None = None) -> int:
    """What `num_workers=None` means: usable CPUs divided by the training processes that share them, at least 1.

    `processes` is the number of training processes on this machine; None takes `local_world_size()`.
    """
    return max(1, usable_cpus() // (processes or local_world_size()))


def batches_in_memory(num_workers: int, prefetch_factor: int) -> int:
    """Batches for which the torch engine has memory: those in the workers' queues, and two on the consumer's side.

    Those are the one that the training step reads and the one that is being finished.
    """
    return max(0, num_workers) * max(1, prefetch_factor) + BATCHES_BESIDE_QUEUE


def shm_bytes_needed(batch_size: int, pixels: int, num_workers: int, prefetch_factor: int) -> int:
    """Bytes that one loader keeps in /dev/shm with the torch engine; 0 without workers, where nothing crosses.

    Workers hand over uint8 RGB batches through shared memory. pixels: of one sample, height * width, of all its views.

        batch   = batch_size * pixels * 3
        batches = num_workers * prefetch_factor + 2
        needed  = batch * batches * 1.1 + 16 MiB

    See `batches_in_memory`. The margin is for page rounding and neighbours.
    With several training processes on a machine, each of them needs this.
    """
    if num_workers <= 0:
        return 0
    batch = batch_size * pixels * 3
    batches = batches_in_memory(num_workers, prefetch_factor)
    return math.ceil(batch * batches * (1 + SHM_MARGIN)) + SHM_BASE


def docker_size(size: int) -> str:
    """`size` bytes as docker writes it, rounded up: whole GiB ("2g") from 1 GiB, else whole MiB ("200m")."""
    return f"{math.ceil(size / GIB)}g" if size >= GIB else f"{max(1, math.ceil(size / MIB))}m"


def shm_size(needed: int) -> str:
    """How large /dev/shm has to be for so many bytes beside what it holds, as docker writes it."""
    free, total = shm_bytes_free(), shm_bytes_total()
    return docker_size(needed if free is None or total is None else total - free + needed)


def shm_bytes_free(path: str | Path = "/dev/shm") -> int | None:
    """Bytes that this process can still allocate in the shared-memory mount at `path`; None where it is missing."""
    facts = _mounted(path)
    return facts and facts.f_bavail * facts.f_frsize


def shm_bytes_total(path: str | Path = "/dev/shm") -> int | None:
    """Size in bytes of the shared-memory mount at `path`; None where it is missing."""
    facts = _mounted(path)
    return facts and facts.f_blocks * facts.f_frsize


def _mounted(path: str | Path) -> os.statvfs_result | None:
    try:
        return os.statvfs(path)
    except OSError:
        return None


def open_file_limit() -> int | None:
    """Files that this process may have open at once (the soft limit of `ulimit -n`); None for no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def open_files_needed(num_workers: int, prefetch_factor: int) -> int:
    """Open files that one training process needs with the torch engine, an upper estimate.

        128 + 8 * num_workers + num_workers * prefetch_factor + 2

    The base covers the interpreter and its libraries; each worker costs its pipe ends and shards. The memory of
    all batches costs two; with a plain DataLoader each batch costs one.
    """
    workers = max(0, num_workers)
    batches = batches_in_memory(workers, prefetch_factor)
    return FILES_BASE + FILES_PER_WORKER * workers + FILES_PER_BATCH * batches
