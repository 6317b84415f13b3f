"""What a verdict on a machine's decoders, or settings that were tuned on it, depend on."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["DALI", "NVIMAGECODEC", "decoder_facts", "driver_version", "facts_with", "installed"]

DALI = ("nvidia-dali-cuda120", "nvidia-dali-cuda130")
NVIMAGECODEC = ("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13")


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
