"""The seed that a DataLoader's generators give its Loader."""

from __future__ import annotations

import logging
import weakref
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

from gpupipe.loader.loader import Loader
from gpupipe.migration.report import Line
from gpupipe.migration.samplers import Sampling
from gpupipe.order import Sequential, Subset

__all__ = ["Seed", "seed_of", "warn_of_likes"]

log = logging.getLogger("gpupipe")

_taken: weakref.WeakKeyDictionary[torch.Generator, Counter[int]] = weakref.WeakKeyDictionary()
"""How many shuffled loaders of this process have a seed from a generator."""


@dataclass(frozen=True)
class Seed:
    """As an argument of Loader's, and of the report. generator: what it is taken from; None: from a sampler."""

    options: dict[str, Any]
    line: Line
    generator: torch.Generator | None = None


def seed_of(loader: DataLoader[Any], sampling: Sampling) -> Seed:
    """All ranks that share an epoch need the same: then it is the sampler's, or 0, as programs seed torch by rank."""
    generator = loader.generator
    own = None if generator is None else generator.initial_seed() % 2**64
    if own is not None and sampling.world_size == 1 and sampling.seed in (None, own):
        return Seed({"generator": generator}, Line("seed", "the generator's", str(own)), generator)
    if sampling.seed is None and sampling.world_size > 1:
        return Seed({"seed": 0}, Line("seed", "drawn from torch's generator, of which each rank has its own", "0"))
    if sampling.seed is not None:
        return Seed({"seed": sampling.seed}, Line("seed", "the sampler's", str(sampling.seed)))
    seed = torch.initial_seed() % 2**64
    now = f"torch.initial_seed(), {seed}"
    return Seed({"seed": seed}, Line("seed", "drawn from torch's generator", now), torch.default_generator)


def warn_of_likes(generator: torch.Generator, loader: Loader) -> None:
    """Says once of a generator's seed that a second shuffled loader has it, where DataLoaders would draw on."""
    order = loader.order
    if isinstance(order, Sequential) or (isinstance(order, Subset) and not order.shuffle):
        return
    counts = _taken.setdefault(generator, Counter())
    counts[loader.seed] += 1
    if counts[loader.seed] == 2:
        log.warning(
            "gpupipe: from_dataloader: a shuffled loader that this program has built before has the same seed, %d, of "
            "the same generator: both have the same permutations and draws, where DataLoaders draw on. Pass seed= "
            "where they are to differ: loaders side by side, or one that is built anew in each epoch",
            loader.seed,
        )
