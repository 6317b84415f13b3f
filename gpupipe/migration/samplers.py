"""A sampler's order, as one of gpupipe's where it is of the same kind, and the ranks that it is for."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from gpupipe.errors import ConfigError
from gpupipe.host.generators import global_generators, kept
from gpupipe.loader.loader import Loader
from gpupipe.order import (
    BatchesOrder,
    Order,
    Repeated,
    SamplerOrder,
    Sequential,
    Shuffled,
    Subset,
    VirtualEpochs,
    Weighted,
)
from gpupipe.order.sampler import is_listing, parts_of
from gpupipe.recipe.translation.untouched import replaced_in

__all__ = ["Sampling", "batches_of", "follow", "sampling_of"]

OTHER = "another permutation than torch's in each epoch"
DEALT = "a step's samples go to the ranks in runs, not in turn"
REPEATING = ("RASampler", "RepeatAugSampler")  # of torchvision's references and DeiT, and of timm


@dataclass(frozen=True)
class Sampling:
    """order: of the whole epoch, None where one was passed. rank, world_size: which part of it this process reads.

    seed: that of the sampler, where it has one. told: the samplers whose `set_epoch` is to be the loader's, too.
    """

    order: Order | None
    now: str
    rank: int = 0
    world_size: int = 1
    seed: int | None = None
    told: tuple[Any, ...] = ()


def sampling_of(sampler: Any, full: int | None = None) -> Sampling:
    """The order of a DataLoader's sampler that has a length. Raises ConfigError for one that can't be.

    full: how many samples a batch has to have, or None where it may have fewer.
    """
    kind = type(sampler)
    if replaced_in(kind):  # by the program, of torch's class
        return _listed(sampler)
    if kind is SequentialSampler:
        return Sampling(Sequential(len(sampler)), "Sequential")
    if kind is RandomSampler:
        return _random(sampler)
    if kind is SubsetRandomSampler:
        return _own(sampler, Subset(sampler.indices, shuffle=True), f"Subset, shuffled: {OTHER}")
    if kind is WeightedRandomSampler:
        weighted = Weighted(sampler.weights, sampler.num_samples, sampler.replacement)
        return _own(sampler, weighted, "Weighted, with the weights as they are now: other draws than torch's")
    if kind is DistributedSampler:
        return _distributed(sampler, full)
    if kind.__name__ in REPEATING and _deals_copies(sampler):
        return _repeating(sampler)
    if kind.__name__ == "OrderedDistributedSampler" and list(sampler) == _in_turn(sampler):
        order = Sequential(len(sampler.dataset))
        return Sampling(order, f"Sequential: {DEALT}", sampler.rank, sampler.num_replicas)
    return _listed(sampler)


def batches_of(batch_sampler: Any, samples: int) -> Sampling:
    """The order of a batch sampler, batch after batch, for a dataset of so many samples. Raises ConfigError.

    It is listed for the ranks of a DistributedSampler in it, which draws by seed and epoch as it does there.
    """
    parts = parts_of(batch_sampler)
    _check_ranks(*(part for part in parts if type(part) is not DistributedSampler))
    distributed = next((part for part in parts if type(part) is DistributedSampler), None)
    order = BatchesOrder(batch_sampler, samples, distributed)
    now = "as it is, listed anew in each epoch"
    if not order.is_sized:
        now += f", of {len(order)} samples each: a longer listing is cut, a shorter one goes on with another"
    told = _told(parts)
    if distributed is None:
        seeds = (seed for part in parts if (seed := _initial(part)) is not None)
        return Sampling(order, now, seed=next(seeds, None), told=told)
    return Sampling(order, now, distributed.rank, distributed.num_replicas, distributed.seed, told)


def follow(sampling: Sampling, loader: Loader) -> None:
    """Go to the samplers' epoch; from now on their `set_epoch` is the loader's, too."""
    for sampler in sampling.told:
        loader.set_epoch(int(getattr(sampler, "epoch", 0)))
        sampler.set_epoch = _Both(sampler.set_epoch, loader)


def _told(parts: list[Any]) -> tuple[Any, ...]:
    return tuple(part for part in parts if hasattr(type(part), "set_epoch"))


class _Both:
    """A sampler's `set_epoch`, then that of a Loader while that lives. A copy of the sampler has its own alone."""

    def __init__(self, own: Callable[[int], Any], loader: Loader) -> None:
        self._own = own
        self._loader = weakref.ref(loader)

    def __call__(self, epoch: int) -> None:
        self._own(epoch)
        loader = self._loader()
        if loader is not None and not is_listing():
            loader.set_epoch(int(epoch))

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self._own,)


def _itself(own: Callable[[int], Any]) -> Callable[[int], Any]:
    return own


def _own(sampler: Any, order: Order, now: str) -> Sampling:
    return Sampling(order, now, seed=_initial(sampler))


def _initial(sampler: Any) -> int | None:
    """The seed of its generator, if it has one."""
    generator = getattr(sampler, "generator", None)
    return generator.initial_seed() % 2**64 if isinstance(generator, torch.Generator) else None


def _random(sampler: RandomSampler) -> Sampling:
    size, positions = len(sampler.data_source), sampler.num_samples
    if sampler.replacement:
        return _own(sampler, Weighted(np.ones(size), positions), "Weighted, all alike: other draws than torch's")
    order = _first(Shuffled(size), positions)
    return _own(sampler, order, f"Shuffled: {OTHER}" if positions == size else f"Shuffled, {positions}: {OTHER}")


def _first(order: Order, positions: int) -> Order:
    """So many positions of an order, or of as many of its epochs in a row as they need."""
    epochs = math.ceil(positions / len(order)) if len(order) else 1
    whole = VirtualEpochs(order, epochs * len(order)) if epochs > 1 else order
    return whole if positions == len(whole) else Repeated(whole, 1, positions)


def _distributed(sampler: Any, full: int | None) -> Sampling:
    """Each rank has as many samples as with the sampler. Where its padding fills a last batch that would else be left
    out, that is a part of the epoch; else the Loader pads, which knows how many rows are padding."""
    order, ranks = _base(sampler), sampler.num_replicas
    if sampler.total_size != len(order) and (sampler.drop_last or (full and sampler.num_samples % full == 0)):
        order = _first(order, sampler.total_size)
    now = f"Shuffled: {OTHER}; {DEALT}" if sampler.shuffle else f"Sequential: {DEALT}"
    return Sampling(order, now, sampler.rank, ranks, sampler.seed, told=(sampler,))


def _base(sampler: Any) -> Order:
    size = len(sampler.dataset)
    return Shuffled(size) if sampler.shuffle else Sequential(size)


def _repeating(sampler: Any) -> Sampling:
    repeats, positions = _repeats(sampler), sampler.num_selected_samples * sampler.num_replicas
    now = f"Repeated, {repeats} copies, {positions} positions: {OTHER}; the copies of a sample come to one rank"
    order = Repeated(_base(sampler), repeats, positions)
    return Sampling(order, now, sampler.rank, sampler.num_replicas, getattr(sampler, "seed", 0), told=(sampler,))


def _repeats(sampler: Any) -> int:
    return int(getattr(sampler, "num_repeats", getattr(sampler, "repetitions", 0)))


def _deals_copies(sampler: Any) -> bool:
    """Whether what it lists is what the samplers of that name list: each sample `repeats` times in a row, dealt to the
    ranks in turn. Its class can't be imported, and one of that name may do something else."""
    needed = ("dataset", "num_replicas", "rank", "shuffle", "num_selected_samples")
    repeats = _repeats(sampler)
    if not all(hasattr(sampler, name) for name in needed) or repeats != getattr(sampler, "num_repeats", repeats):
        return False
    with kept(global_generators()):
        listed = np.asarray(list(sampler), np.int64)
    groups = (sampler.rank + sampler.num_replicas * np.arange(len(listed))) // max(1, repeats)
    size = len(sampler.dataset)
    if not repeats or len(listed) != sampler.num_selected_samples or (len(groups) and groups[-1] >= size):
        return False
    of_group = np.full(size, -1)
    of_group[groups] = listed
    known = of_group[of_group >= 0]
    same = bool((of_group[groups] == listed).all()) and len(np.unique(known)) == len(known)
    return same and (bool(sampler.shuffle) or bool((listed == groups).all()))


def _in_turn(sampler: Any) -> list[int]:
    size = len(sampler.dataset)
    return [position % size for position in range(sampler.rank, sampler.total_size, sampler.num_replicas)]


def _listed(sampler: Any) -> Sampling:
    _check_ranks(sampler)
    if isinstance(sampler, list | tuple | range | np.ndarray | torch.Tensor):
        return Sampling(Subset(sampler), "Subset, as listed")
    told = _told([sampler])
    return Sampling(SamplerOrder(sampler), "as it is, listed anew in each epoch", seed=_initial(sampler), told=told)


def _check_ranks(*samplers: Any) -> None:
    for sampler in samplers:
        if getattr(sampler, "num_replicas", 1) > 1:
            raise ConfigError(
                f"from_dataloader: {type(sampler).__name__} cuts the epoch into num_replicas={sampler.num_replicas} "
                "parts, in a way that gpupipe does not know; pass order=, a gpupipe order or a torch Sampler of the "
                "whole dataset, of which each rank then takes its part"
            )
