"""Settings that `gpupipe tune` has found on this machine, for loaders that leave them out."""

from __future__ import annotations

import datetime
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gpupipe.decode.decoders import Decoders
from gpupipe.errors import ConfigError
from gpupipe.host import system
from gpupipe.host.cache import everything, recall, remember
from gpupipe.host.checks import whole
from gpupipe.host.machine import decoder_facts, facts_with

if TYPE_CHECKING:
    import torch

__all__ = ["Kept", "Tuned", "keep", "kept", "tuned"]

KIND = "tuned"
MOST_AHEAD = 16  # batches; tuning tries 6 at most
MOST_WORKERS = 64  # on few CPUs; tuning tries two for each of them at most


@dataclass(frozen=True)
class Tuned:
    """Arguments of `Loader` of the same names; `decoders` is None for engine="torch"."""

    engine: Literal["dali", "torch"]
    num_workers: int
    prefetch_factor: int
    decoders: Decoders | None = None

    def __str__(self) -> str:
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return ", ".join(f"{name}={value!r}" for name, value in values if value is not None)


@dataclass(frozen=True)
class Kept:
    """What a tuning has left.

    path: the file; without it the settings are forgotten.
    text: the settings, for which processes, when they were measured, and how busy the machine was with others.
    used: whether loaders use it: not what other versions of the driver, the libraries or gpupipe have left.
    """

    path: Path
    text: str
    used: bool


def tuned(device: torch.device) -> Tuned | None:
    """What was found last for batches on `device` and as many CPUs for a process as now; None if nothing was."""
    found = recall(KIND, _key(device, system.default_workers()))
    return None if found is None else _settings(found, system.default_workers())


def keep(device: torch.device, found: Tuned, cpus: int | None = None, others: float = 0.0) -> bool:
    """Remember it for later loaders in processes with so many CPUs, None: as many as now. Whether that could be done.

    A process's CPUs are `system.default_workers()`: those that may be used, shared by the machine's training processes.
    others: the share of their time that other processes took while it was measured.
    """
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    value = {"settings": asdict(found), "measured": now, "others": round(others, 4)}
    return remember(KIND, _key(device, cpus or system.default_workers()), value) is not None


def kept(gpu: str) -> list[Kept]:
    """All that is kept for batches on a GPU of this name, "" for the CPU, whatever a process's CPUs."""
    return [_kept(path, key, value) for path, key, value in everything(KIND) if key.get("gpu") == gpu]


def _kept(path: Path, key: dict[str, Any], value: dict[str, Any]) -> Kept:
    try:
        cpus, others = int(key["cpus"]), float(value["others"])
        measured = datetime.datetime.fromisoformat(value["measured"])
        settings = _settings(value, cpus)
    except (KeyError, TypeError, ValueError):
        settings = None
    if settings is None:
        return Kept(path, "settings of another version of gpupipe, unused", used=False)
    used = key == facts_with(key["gpu"]) | {"cpus": cpus}
    text = (
        f"{settings}, for processes with {cpus} CPUs, measured {measured:%Y-%m-%d %H:%M} UTC while other processes "
        f"took {others:.0%} of the CPUs" + ("" if used else ", with other versions than are here now, so unused")
    )
    return Kept(path, text, used)


def _key(device: torch.device, cpus: int) -> dict[str, Any]:
    return decoder_facts(device) | {"cpus": cpus}


def _settings(value: dict[str, Any], cpus: int) -> Tuned | None:
    """None for those of another version of gpupipe, and for what no tuning for so many CPUs finds."""
    try:
        found = value["settings"]
        decoders = None if found["decoders"] is None else Decoders(**found["decoders"])
        made = Tuned(**(found | {"decoders": decoders}))
        processes = 0 if decoders is None else decoders.cpu_workers
        whole("num_workers", made.num_workers, processes, max(MOST_WORKERS, 2 * cpus) + 1)
        whole("prefetch_factor", made.prefetch_factor, 1, MOST_AHEAD + 1)
    except (KeyError, TypeError, ConfigError):
        return None
    return made if made.engine == ("torch" if decoders is None else "dali") else None
