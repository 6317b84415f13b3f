"""A Loader in the place of a DataLoader that is there already."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, default_collate

from gpupipe.errors import ConfigError
from gpupipe.loader.distributed import rank_and_world_size
from gpupipe.loader.loader import Loader
from gpupipe.migration.alone import ReadsAll
from gpupipe.migration.data import data_of
from gpupipe.migration.report import Line, Translation, described
from gpupipe.migration.samplers import Sampling, batches_of, follow, sampling_of
from gpupipe.migration.seeds import seed_of, warn_of_likes
from gpupipe.order import Order, Sequential, Shuffled
from gpupipe.recipe.translation.untouched import replaced_in

__all__ = ["from_dataloader"]

log = logging.getLogger("gpupipe")

CARRIED = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "timeout", "multiprocessing_context")
ORDERS = {"order", "shuffle"}
RANKS = {"rank", "world_size"}
PROCESSES = ("prefetch_factor", "persistent_workers", "multiprocessing_context")


def from_dataloader(loader: DataLoader[Any], *, strict: bool = False, **overrides: Any) -> Loader:
    """A Loader with the samples, batches, workers and seed of a DataLoader that is built. Nothing of it is iterated.

    Where the dataset is image files with a label each (those of torchvision and timm, `Subset` and `ConcatDataset` of
    them) and `Recipe.from_torchvision` knows its transform, the very files that it has listed become a source and the
    transform a recipe, at full speed. Any other map-style dataset runs as it is written: its `__getitem__` in the
    workers, then its `collate_fn`, and what that returns goes through unchanged. `print(loader.translation)` says what
    became of each part, and why what runs as it is written does.

    Orders are of the same kind as the sampler's, but other permutations. Ranks share an epoch where the sampler was a
    distributed one, whose `set_epoch` is the Loader's from then on, or with rank=None, world_size=None; with any other
    sampler each rank reads all, which a warning says where there are several, as trainers that share out a DataLoader's
    samples by themselves leave a Loader's as they are. The seed is the generator's initial one, else the sampler's,
    else torch.initial_seed(), or 0 where ranks are passed, whatever has been drawn since:
    two loaders of one generator have the same permutations and draws, which a warning says. Batches are on the CPU, as
    those of a DataLoader are; with device="cuda" they are made on the GPU, and a `.to(device)` costs nothing. Changes
    of the dataset afterwards are not seen where it was translated.

    strict: raise ConfigError, with all reasons, rather than run anything as it is written.
    overrides: Loader's arguments, which win. A `recipe` stands for the dataset's transform; None: all as it is written.

    Raises ConfigError for what a Loader can't do: an IterableDataset, a sampler without end or one that cuts the epoch
    into ranks in a way of its own.
    """
    _check(loader)
    overrides = {name: value for name, value in overrides.items() if name not in ORDERS or value is not None}
    passed = [*overrides]
    ordered = ORDERS & set(overrides)
    sampler, batch_size, drop_last, sampling = _batches(loader, overrides)
    collate = None if loader.collate_fn is default_collate else loader.collate_fn
    data = data_of(loader.dataset, collate, batch_size, loader.worker_init_fn, overrides)
    options: dict[str, Any] = {name: getattr(loader, name) for name in (*CARRIED, "worker_init_fn")}
    options |= data.options | {"batch_size": batch_size or 1, "drop_last": drop_last, "device": "cpu"}
    ranks_were_given = bool(RANKS & set(overrides))
    if ranks_were_given:
        rank, world_size = rank_and_world_size(overrides.pop("rank", None), overrides.pop("world_size", None))
        sampling = replace(sampling, rank=rank, world_size=world_size)
    options |= {"rank": sampling.rank, "world_size": sampling.world_size}
    options |= {} if ordered else _order(sampling.order, len(loader.dataset))  # type: ignore[arg-type]
    seed = seed_of(loader, sampling)
    lines = [*data.lines, Line("sampler", described(type(sampler)), sampling.now), seed.line]
    translation = Translation((*lines, *_rest(loader, sampling, passed)))
    if strict and not translation.complete:
        reasons = "; ".join(f"{line.part}: {line.why}" for line in translation.untranslated)
        raise ConfigError(f"strict=True, and not all is translated: {reasons}")
    for line in () if "recipe" in overrides else translation.untranslated:
        log.warning("gpupipe: from_dataloader: %s of the DataLoader runs as it is written: %s", line.part, line.why)
    made = Loader(data.data, **_merged(options | seed.options, overrides) | {"recipe": data.recipe})
    vars(made)["dataset"] = loader.dataset  # of which trainers ask the length, the classes, the targets
    made.translation = translation
    if seed.generator is not None and not {"seed", "generator"} & set(overrides):
        warn_of_likes(seed.generator, made)
    made.sampler.with_rest = True
    follow(sampling, made)
    if sampling.world_size == 1 and not ranks_were_given:
        made.check_world = ReadsAll(type(sampler).__name__, len(made.order))
        made.check_world(1)
    return made


def _check(loader: Any) -> None:
    if not isinstance(loader, DataLoader):
        raise ConfigError(
            f"from_dataloader: {type(loader).__name__} is no torch.utils.data.DataLoader; pass the DataLoader itself, "
            "before anything is wrapped around it"
        )
    for name in ("__iter__", "__len__", "_get_iterator", "_index_sampler", "_auto_collation"):
        if name in vars(loader) or getattr(type(loader), name) is not getattr(DataLoader, name):
            raise ConfigError(
                f"from_dataloader: {type(loader).__name__} has an {name} of its own, which would not be called; pass a "
                "torch.utils.data.DataLoader, with persistent_workers=True where workers are to live on"
            )
    if isinstance(loader.dataset, IterableDataset):
        raise ConfigError(
            f"from_dataloader: {type(loader.dataset).__name__} is an IterableDataset, whose samples have no numbers to "
            "shuffle, share out and resume by; pass its files to gpupipe.Loader (WebDataset shards as "
            "'train-{000..099}.tar'), give it __len__ and __getitem__, or write "
            "gpupipe.Loader(gpupipe.Stream(dataset), recipe, ...), which reads it in one process and decodes in many"
        )
    if not hasattr(loader.dataset, "__len__"):
        raise ConfigError(f"from_dataloader: {type(loader.dataset).__name__} has no __len__; give it one")


def _batches(loader: DataLoader[Any], overrides: dict[str, Any]) -> tuple[Any, int | None, bool, Sampling]:
    """Sampler or batch sampler, batch_size (None: no automatic batching), drop_last, and the order."""
    own: Any = loader.batch_sampler
    if own is not None and (type(own) is not BatchSampler or replaced_in(BatchSampler)):
        return own, *_grouped(own, loader, overrides)
    sampler = loader.sampler if own is None else own.sampler
    batch_size, drop_last = (None, False) if own is None else (own.batch_size, own.drop_last)
    if own is None and "batch_size" in overrides and "collate_fn" not in overrides:
        raise ConfigError(
            f"from_dataloader: batch_size={overrides['batch_size']}, but the DataLoader has batch_size=None, and so a "
            f"collate_fn for one sample, {described(loader.collate_fn)}: pass collate_fn= with it (None: torch's "
            "default_collate), or batch_size to the DataLoader"
        )
    if ORDERS & set(overrides):
        sampling = _passed(sampler)
    elif hasattr(sampler, "__len__"):
        full = overrides.get("batch_size", batch_size) if overrides.get("drop_last", drop_last) else None
        sampling = sampling_of(sampler, full)
    else:
        batches = BatchSampler(sampler, overrides.get("batch_size", batch_size) or 1, drop_last)
        sampling = batches_of(batches, len(loader.dataset))  # type: ignore[arg-type]
    return sampler, batch_size, drop_last, sampling


def _grouped(own: Any, loader: DataLoader[Any], overrides: dict[str, Any]) -> tuple[int, bool, Sampling]:
    """The same of a batch sampler that makes batches in a way of its own."""
    wanted = overrides.get("batch_size")
    if ORDERS & set(overrides):
        if wanted is None:
            raise ConfigError(f"from_dataloader: batch_sampler is a {type(own).__name__}; with order= pass batch_size=")
        return wanted, False, _passed(own)
    sampling = batches_of(own, len(loader.dataset))  # type: ignore[arg-type]
    found: int = sampling.order.batch_size  # type: ignore[union-attr]
    if wanted not in (None, found):
        raise ConfigError(
            f"from_dataloader: batch_size={wanted}, but the batches of the batch_sampler, {type(own).__name__}, have "
            f"{found} samples: leave it out, or pass order= or shuffle= in the place of the batch_sampler"
        )
    return found, False, sampling


def _passed(sampler: Any) -> Sampling:
    """Where the order was passed: the ranks stay those of the sampler."""
    rank, ranks = getattr(sampler, "rank", 0), getattr(sampler, "num_replicas", 1)
    return Sampling(None, "the order that was passed", rank, ranks, getattr(sampler, "seed", None))


def _order(order: Order | None, size: int) -> dict[str, Any]:
    """As an argument of Loader's, which knows of shuffle= that it takes every sample."""
    if order in (Sequential(size), Shuffled(size)):
        return {"shuffle": order == Shuffled(size)}
    return {"order": order}


def _rest(loader: DataLoader[Any], sampling: Sampling, passed: list[str]) -> Iterator[Line]:
    kept = [f"{name}={value}" for name in CARRIED if (value := getattr(loader, name)) is not None]
    yield Line("workers", ", ".join(kept), "the same")
    if loader.worker_init_fn is not None:
        now = "called in each worker; what __getitem__ draws is seeded for each sample, whatever it does"
        yield Line("worker_init_fn", described(loader.worker_init_fn), now)
    if sampling.world_size > 1 or rank_and_world_size(None, None)[1] > 1:
        now = "shares the epoch" if sampling.world_size > 1 else "reads all samples, as its sampler gives them"
        yield Line("ranks", f"rank {sampling.rank} of {sampling.world_size}", now)
    if not getattr(loader, "in_order", True):  # torch 2.4 has none
        yield Line("in_order", "False", "batches come in the order of the epoch")
    if loader.pin_memory_device:
        yield Line("pin_memory_device", loader.pin_memory_device, "that of the current GPU")
    yield Line("device", "batches on the CPU", "the same; device='cuda' makes them on the GPU")
    if passed:
        yield Line("overrides", ", ".join(passed), "as passed to from_dataloader, in the place of what is above")


def _merged(options: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Overrides win; what is for worker processes goes where these do."""
    gone: set[str] = set()
    if {"seed", "generator"} & set(overrides):
        gone |= {"seed", "generator"}
    if overrides.get("num_workers") == 0:
        gone |= set(PROCESSES)
    if not str(overrides.get("device", "cpu")).startswith("cpu"):  # what nobody has set is chosen for the GPU
        gone |= {name for name, unset in (("pin_memory", False), ("prefetch_factor", 2)) if options[name] == unset}
    return {name: value for name, value in options.items() if name not in gone} | overrides
