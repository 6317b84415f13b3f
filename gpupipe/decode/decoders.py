"""Which decoders of a machine share the work of engine="dali" on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from gpupipe.errors import ConfigError
from gpupipe.host.checks import whole

__all__ = ["Decoders"]


@dataclass(frozen=True)
class Decoders:
    """How each batch is shared out among the hardware JPEG engines, the GPU's hybrid decoder and the CPU.

    cpu_share:        share of the samples, 0 to below 1, that worker processes decode with gpupipe's CPU kernel: those
                      whose crop is the smallest part of its image, where decoding no more than the crop saves most.
    cpu_workers:      how many of the loader's `num_workers` are such processes; the others are DALI's threads. 0 where
                      cpu_share is 0.
    hw_decoder_load:  DALI's share, 0 to 1, for the hardware engines; the rest goes to the hybrid decoder. 0 leaves the
                      engines unused.
    crop_decode:      DALI decodes only the crop's window; else the whole image, and cuts the window out. None: only the
                      window with DALI's CPU backend, else the whole image. Several views are always cut from one.

    `gpupipe tune` finds the best for a machine and its data. Raises ConfigError for values out of range.
    """

    cpu_share: float = 0.0
    cpu_workers: int = 0
    hw_decoder_load: float = 0.65  # DALI's default
    crop_decode: bool | None = None

    def __post_init__(self) -> None:
        for name in ("cpu_share", "hw_decoder_load"):
            if isinstance(getattr(self, name), bool) or not isinstance(getattr(self, name), int | float):
                raise ConfigError(f"{name}={getattr(self, name)!r} must be a number")
        if not 0 <= self.cpu_share < 1:
            raise ConfigError(f"cpu_share={self.cpu_share} must be in [0, 1); for 1 use engine='torch'")
        whole("cpu_workers", self.cpu_workers, 0)
        if (self.cpu_share > 0) != (self.cpu_workers > 0):
            raise ConfigError(
                f"cpu_share={self.cpu_share} and cpu_workers={self.cpu_workers}: both must be 0, or neither"
            )
        if not 0 <= self.hw_decoder_load <= 1:
            raise ConfigError(f"hw_decoder_load={self.hw_decoder_load} must be in [0, 1]")
        if self.crop_decode not in (None, False, True):
            raise ConfigError(f"crop_decode={self.crop_decode!r} must be None, False or True")
