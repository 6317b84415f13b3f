"""Files of a packing written by tasks of a Ray cluster, one task a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpupipe.errors import DataError, GpupipeError
from gpupipe.host.progress import progress
from gpupipe.sources import Source
from gpupipe.sources.needing import library
from gpupipe.tools.packing.files import write_files
from gpupipe.tools.packing.plan import Plan

__all__ = ["write_on_ray"]

RETRIES = 3  # of a task whose process or machine is lost; Ray's own number


def write_on_ray(source: Source, folder: Path, plan: Plan, numbers: list[int]) -> None:
    """Write these files by one thread each. A task whose process or machine is lost is tried again, as Ray does it.

    Raises ConfigError where Ray is not installed, what `write_files` raises, and DataError where a task is lost for
    good; what was written till then stays.
    """
    ray = library("ray", "ray")
    connected = ray.is_initialized()
    if not connected:
        ray.init(include_dashboard=False, log_to_driver=False)
    waiting: list[Any] = []
    try:
        shared = ray.put((source, folder, plan))  # once, not with every task
        task = ray.remote(_task).options(max_retries=RETRIES)
        waiting = [task.remote(shared, number) for number in numbers]
        with progress("packing on Ray", len(waiting)) as advance:
            while waiting:
                done, waiting = ray.wait(waiting)
                ray.get(done)
                advance(len(done))
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, GpupipeError):
            raise cause from error
        raise DataError(f"a task that packs into {folder} was lost: {cause or error}; run it again to go on") from error
    finally:
        for left in waiting:  # after an error
            ray.cancel(left)
        if not connected:
            ray.shutdown()


def _task(shared: tuple[Source, Path, Plan], number: int) -> None:
    source, folder, plan = shared
    write_files(source, folder, plan, [number], workers=1)
