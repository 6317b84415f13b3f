"""A torch sampler as an order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gpupipe.errors import ConfigError
from gpupipe.kernels.philox import philox4x32, split64
from gpupipe.order.base import Indices

if TYPE_CHECKING:
    import torch.utils.data

__all__ = ["SamplerOrder"]


@dataclass(frozen=True, eq=False)
class SamplerOrder:
    """Any sized torch `Sampler` as an order: its sequence is listed once an epoch.

    torch's global generator, and the sampler's own if it has one, are seeded from (seed, epoch) for the listing and
    put back after it, and `set_epoch` is called where there is one; so a sampler that draws from these gives the
    same sequence on every rank and after every resume. The listing has to hold whole indices for the whole world:
    pass a plain sampler, not a `DistributedSampler`, since the loader itself cuts the epoch into ranks.
    """

    sampler: torch.utils.data.Sampler[int]
    _cache: dict[tuple[int, int], Indices] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not hasattr(self.sampler, "__len__"):
            raise ConfigError(f"SamplerOrder: {type(self.sampler).__name__} has no len(); give it a __len__")
        if getattr(self.sampler, "num_replicas", 1) > 1:
            raise ConfigError(
                f"SamplerOrder: {type(self.sampler).__name__} already cuts the epoch into num_replicas="
                f"{self.sampler.num_replicas} parts, and the loader would cut each of them again; "  # type: ignore[attr-defined]
                "pass shuffle=True or a sampler of the whole dataset"
            )

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]

    def indices(self, seed: int, epoch: int, positions: Indices) -> Indices:
        """The sampler's sequence at the positions."""
        if (seed, epoch) not in self._cache:
            listed = np.fromiter(self._listing(seed, epoch), dtype=np.int64)
            if len(listed) != len(self):
                raise ConfigError(
                    f"SamplerOrder: {type(self.sampler).__name__} yielded {len(listed)} indices, its len() says "
                    f"{len(self)}; make the two agree"
                )
            self._cache.clear()
            self._cache[seed, epoch] = listed
        return self._cache[seed, epoch][positions]

    def _listing(self, seed: int, epoch: int) -> list[int]:
        import torch

        low, high = (int(word) for word in philox4x32((0, 0, epoch, 0), split64(seed))[:2])
        keyed = (high << 31) ^ low
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)
        own = getattr(self.sampler, "generator", None)
        own = own if isinstance(own, torch.Generator) else None
        before = None if own is None else own.get_state()
        try:
            if own is not None:
                own.manual_seed(keyed)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(keyed)
                return list(self.sampler)
        finally:
            if own is not None and before is not None:
                own.set_state(before)

    @property
    def fingerprint(self) -> str:
        """Names the sampler's class and length."""
        return f"sampler-{type(self.sampler).__name__}-{len(self)}"
