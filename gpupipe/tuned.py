"""Settings that `gpupipe tune` has found on this machine, for loaders that leave them out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from gpupipe import system
from gpupipe.cache import recall, remember
from gpupipe.decoders import Decoders
from gpupipe.errors import ConfigError
from gpupipe.machine import decoder_facts

__all__ = ["Tuned", "keep", "tuned"]

KIND = "tuned"


@dataclass(frozen=True)
class Tuned:
    """Arguments of `Loader` of the same names; `decoders` is None for engine="torch"."""

    engine: Literal["dali", "torch"]
    num_workers: int
    prefetch_factor: int
    decoders: Decoders | None = None


def tuned(device: torch.device) -> Tuned | None:
    """What was found last for batches on `device` and as many CPUs for a process as now; None if nothing was."""
    found = recall(KIND, _key(device, system.default_workers()))
    try:
        return None if found is None else _from_dict(found)
    except (TypeError, ConfigError):  # of another version of gpupipe
        return None


def keep(device: torch.device, found: Tuned, cpus: int | None = None) -> bool:
    """Remember it for later loaders in processes with so many CPUs, None: as many as now. Whether that could be done.

    A process's CPUs are `system.default_workers()`: those that may be used, shared by the machine's training processes.
    """
    return remember(KIND, _key(device, cpus or system.default_workers()), asdict(found)) is not None


def _key(device: torch.device, cpus: int) -> dict[str, Any]:
    return decoder_facts(device) | {"cpus": cpus}


def _from_dict(found: dict[str, Any]) -> Tuned:
    decoders = found["decoders"]
    return Tuned(**(found | {"decoders": None if decoders is None else Decoders(**decoders)}))
