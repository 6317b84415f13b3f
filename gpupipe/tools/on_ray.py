"""Tasks on a Ray cluster, each with a number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpupipe.errors import DataError, GpupipeError
from gpupipe.host.progress import progress
from gpupipe.sources.needing import library

__all__ = ["run_on_ray"]

RETRIES = 3  # of a task whose process or machine is lost; Ray's own number


def run_on_ray(work: Callable[[Any, int], None], shared: Any, numbers: Sequence[int], doing: str) -> None:
    """`work(shared, number)` for each number, on a CPU each: of the cluster that this process is connected to, or that
    $RAY_ADDRESS names, else of one on this machine. A task whose process or machine is lost is tried again by Ray.

    Raises ConfigError where Ray is not installed, what `work` raises of gpupipe's errors, and DataError where a task is
    lost for good; what others have done till then stays.
    """
    ray = library("ray", "ray")
    connected = ray.is_initialized()
    if not connected:
        ray.init(include_dashboard=False, log_to_driver=False)
    waiting: list[Any] = []
    try:
        stored = ray.put(shared)  # once, not with every task
        task = ray.remote(work).options(max_retries=RETRIES)
        waiting = [task.remote(stored, number) for number in numbers]
        with progress(f"{doing} on Ray", len(waiting)) as advance:
            while waiting:
                done, waiting = ray.wait(waiting)
                ray.get(done)
                advance(len(done))
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, GpupipeError):
            raise cause from error
        raise DataError(f"{doing}: a task was lost: {cause or error}; run the same again to go on") from error
    finally:
        for left in waiting:  # after an error
            ray.cancel(left)
        if not connected:
            ray.shutdown()
