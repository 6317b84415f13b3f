"""What the figures were measured on: machine, libraries, settings."""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path
from typing import Any

from gpupipe.host.machine import driver_version, installed
from gpupipe.host.system import host_cpus, memory_limit, usable_cpus
from gpupipe.tools.benchmark.settings import Settings

__all__ = ["describe", "environment", "machine"]

LIBRARIES = (
    "gpupipe",
    "torch",
    "torchvision",
    "torchdata",
    "webdataset",
    "nvidia-dali-cuda120",
    "nvidia-dali-cuda130",
    "nvidia-nvimgcodec-cu12",
    "nvidia-nvimgcodec-cu13",
    "pillow",
    "pillow-simd",
    "numpy",
)


def environment(settings: Settings) -> dict[str, Any]:
    """What `machine` says, and the settings."""
    # Results are shown to others.
    return machine() | {"settings": settings.as_dict() | {"data": Path(settings.data).name}}


def machine() -> dict[str, Any]:
    """Plain values: date, CPU, memory in bytes, GPUs, driver, versions."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "host_cpus": host_cpus(),
        "usable_cpus": usable_cpus(),
        "memory_bytes": memory_limit(),
        "load_average": round(os.getloadavg()[0], 2),
        "gpus": gpu_names(),
        "driver": driver_version(),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "versions": versions(),
    }


def describe(facts: dict[str, Any]) -> str:
    """One line for a table's or a plot's caption."""
    gpus = ", ".join(facts["gpus"]) or "no GPU"
    settings = facts["settings"]
    return (
        f"{facts['cpu']}, {facts['usable_cpus']} usable CPUs, {gpus}; batch {settings['batch_size']}, "
        f"{settings['size']} px, {settings['workers']} workers, {settings['threads']} threads; {facts['date'][:10]}"
    )


def cpu_model() -> str:
    """The processor's name as the kernel gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def gpu_names() -> list[str]:
    """The CUDA devices that torch sees."""
    import torch

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def versions() -> dict[str, str]:
    """Versions of the libraries that are installed."""
    return {name: version for name in LIBRARIES if (version := installed(name))}
