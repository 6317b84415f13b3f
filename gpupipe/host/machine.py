"""What figures were measured on; what a verdict on a machine's decoders, or settings tuned on it, depend on."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpupipe.host.system import host_cpus, memory_limit, usable_cpus

if TYPE_CHECKING:
    import torch

__all__ = ["DALI", "NVIMAGECODEC", "decoder_facts", "driver_version", "facts_with", "installed", "machine"]

DALI = ("nvidia-dali-cuda120", "nvidia-dali-cuda130")
NVIMAGECODEC = ("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13")
LIBRARIES = (
    *("gpupipe", "torch", "torchvision", "torchdata", "webdataset", *DALI, *NVIMAGECODEC),
    *("pillow", "pillow-simd", "numpy"),
)


def decoder_facts(device: torch.device) -> dict[str, Any]:
    """GPU ("" for a CPU), driver, DALI and nvImageCodec by name and version: a key for `gpupipe.host.cache`."""
    import torch  # here: `gpupipe doctor` asks for versions where torch can't be imported

    return facts_with(torch.cuda.get_device_name(device) if device.type == "cuda" else "")


def facts_with(gpu: str) -> dict[str, Any]:
    """The same for a GPU of this name, "" for a CPU."""
    return {
        "gpu": gpu,
        "driver": driver_version() if gpu else None,
        "dali": _version(DALI),
        "nvimagecodec": _version(NVIMAGECODEC),
    }


def driver_version() -> str | None:
    """The NVIDIA kernel driver's version; None without one."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split("\n")[0].split()
    except OSError:
        return None
    return next((word for word in words if word[0].isdigit() and "." in word), None)


def installed(distribution: str) -> str | None:
    """Its version; None where it is not installed. Nothing is imported."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _version(distributions: tuple[str, ...]) -> str | None:
    """The first of the builds that is installed."""
    return next((f"{name} {version}" for name in distributions if (version := installed(name))), None)


def machine() -> dict[str, Any]:
    """Plain values: date, CPU, memory in bytes, the GPUs that torch sees, driver, versions."""
    import torch

    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": _cpu_model(),
        "host_cpus": host_cpus(),
        "usable_cpus": usable_cpus(),
        "memory_bytes": memory_limit(),
        "load_average": round(os.getloadavg()[0], 2),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "driver": driver_version(),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "versions": {name: version for name in LIBRARIES if (version := installed(name))},
    }


def _cpu_model() -> str:
    """The processor's name as the kernel gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
