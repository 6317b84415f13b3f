"""Arguments that a Loader shares with `torch.utils.data.DataLoader`: checked, or refused with what serves instead."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any, TypeVar, cast

import numpy as np
import torch.multiprocessing

from gpupipe.errors import ConfigError
from gpupipe.host.checks import flag, whole

__all__ = ["WorkerArguments", "check_items", "named", "refuse_unserved", "rows_of", "seed_of", "shortened"]

Init = TypeVar("Init", bound=Callable[..., None])

RECIPE = (
    "what is done to the images is the recipe, Loader's second argument: gpupipe.imagenet_train(224), or a "
    "gpupipe.Recipe of operations named as torchvision's; what a recipe lacks can be done to the batch"
)

# Keywords that other loaders and datasets have for something that stands elsewhere here.
ELSEWHERE = {
    "dataset": "the dataset is Loader's first argument and called `data`",
    "label_field": "it belongs to shards: pass gpupipe.open_source(data, label_field=...) as data",
    "transform": RECIPE,
    "transforms": RECIPE,
}

# DataLoader's arguments with the one value that they can have, and what serves instead of any other.
UNSERVED: dict[str, tuple[Any, str]] = {
    "sampler": (None, "pass it as order=, which takes torch Samplers and gpupipe's orders"),
    "batch_sampler": (None, "pass order= (a torch Sampler of samples, or a gpupipe order) and batch_size="),
    "pin_memory_device": ("", "pass device='cuda:N': batches lie there already, and pinned memory is that GPU's"),
    "in_order": (True, "batches always come in the order of the epoch; leave it out"),
}

INDICES = "pass order=gpupipe.Subset(indices), with shuffle=True in it to shuffle them"

SAMPLERS = {
    "list": INDICES,
    "ndarray": INDICES,
    "range": INDICES,
    "Tensor": INDICES,
    "DistributedSampler": "leave it out: each rank takes its own part of the epoch; pass shuffle=True to shuffle",
    "RandomSampler": "pass shuffle=True, or the sampler as order=",
    "SequentialSampler": "leave it out",
    "SubsetRandomSampler": "pass order=gpupipe.Subset(indices, shuffle=True)",
    "WeightedRandomSampler": "pass order=gpupipe.Weighted(weights)",
}


def named(init: Init) -> Init:
    """`init`, which of a keyword that it lacks says what serves instead, or the name that was meant.

    A decorator, since Python itself would first say that `data` is missing where it was passed as `dataset`.
    """
    known = list(inspect.signature(init).parameters)[1:]

    @functools.wraps(init)
    def checked(self: Any, *arguments: Any, **options: Any) -> None:
        for name in options:
            if name not in known:
                raise _unknown(name, known)
        init(self, *arguments, **options)

    return cast(Init, checked)


def _unknown(name: str, known: list[str]) -> Exception:
    if name in ELSEWHERE:
        return ConfigError(f"Loader has no argument {name}: {ELSEWHERE[name]}")
    nearest = difflib.get_close_matches(name, known, 1)
    meant = f". Did you mean {nearest[0]!r}?" if nearest else ""
    return TypeError(f"Loader.__init__() got an unexpected keyword argument {name!r}{meant}")


def shortened(value: Any) -> str:
    """Its repr, of a long list no more than the beginning."""
    short = reprlib.Repr()
    short.maxother = 200
    return short.repr(value)


def refuse_unserved(*given: Any) -> None:
    """Raise ConfigError for one of `UNSERVED`, which are given in turn, with another value than it can have."""
    for value, (name, (only, instead)) in zip(given, UNSERVED.items(), strict=True):
        if value is only or (isinstance(value, str) and value == only):
            continue
        if name == "sampler":
            instead = SAMPLERS.get(type(value).__name__, instead)
        raise ConfigError(f"{name}={shortened(value)} is not taken: {instead}")


def check_items(recipe: Any, fields: Any, collate_fn: Any, engine: str, cache: Any, limits: Any) -> None:
    """Raise ConfigError for arguments that do not go with a recipe, or with none."""
    if recipe is not None:
        if collate_fn is not None:
            raise ConfigError(
                "collate_fn goes with recipe=None, where a dataset's items are batched as they are; with a recipe each "
                "field has its own: fields={'name': gpupipe.Array(collate=function)}"
            )
        return
    if fields is not None:
        raise ConfigError(
            "fields go with a recipe, which says what becomes of the images; without one a dataset's items are batched "
            "as they are: leave fields out, or pass a recipe such as gpupipe.imagenet_eval(224)"
        )
    if cache != "auto":
        raise ConfigError(f"cache={shortened(cache)} is for data by URL; without a recipe a dataset reads by itself")
    if limits is not None:
        raise ConfigError(f"limits={limits} are for images that a recipe decodes; without one a dataset does it itself")
    if engine == "dali":
        raise ConfigError("engine='dali' decodes images by a recipe; without one pass engine='torch' or 'auto'")


def rows_of(order: Any, batch_size: int, world_size: int, drop_last: bool) -> int:
    """Rows of a rank in the largest batch of an order that makes its batches itself. Raises ConfigError for what goes
    with such an order as little as with a DataLoader's `batch_sampler`."""
    name, rows = type(order).__name__, -(-int(order.largest) // world_size)
    if batch_size not in (1, rows):
        raise ConfigError(
            f"batch_size={batch_size}, but the order, {name}, makes the batches itself: of {order.largest} samples at "
            f"most, {rows} for each of {world_size} ranks; leave it out, and give it to {name} for all ranks together"
        )
    if drop_last:
        raise ConfigError(
            f"drop_last=True, but the order, {name}, makes the batches itself; pass it to the order, if that takes it, "
            "or leave it out"
        )
    return rows


def seed_of(seed: Any, generator: Any) -> int:
    """What decides everything random: `seed`, else what the generator was seeded with, else 0."""
    if generator is None:
        return whole("seed", 0 if seed is None else seed, 0, 2**64)
    if not isinstance(generator, torch.Generator):
        raise ConfigError(f"generator={generator!r} must be a torch.Generator; a number is passed as seed=")
    if seed is not None:
        raise ConfigError(f"seed={seed!r} and generator exclude each other: the generator's initial_seed() is the seed")
    return generator.initial_seed() % 2**64


@dataclass(frozen=True)
class WorkerArguments:
    """Those of a Loader's arguments that say how workers are run, refused where DataLoader refuses them.

    None: num_workers and prefetch_factor are chosen for the machine, pin_memory for the device; workers persist. The
    context becomes an object, as DataLoader's does.
    """

    num_workers: int | None
    prefetch_factor: int | None
    pin_memory: bool | None
    persistent_workers: bool | None
    timeout: float
    multiprocessing_context: Any

    def __post_init__(self) -> None:
        for name, check in OPTIONAL.items():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check(name, getattr(self, name)))
        object.__setattr__(self, "timeout", _seconds(self.timeout))
        for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context"):
            if self.num_workers == 0 and getattr(self, name):
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} is for worker processes, but num_workers=0: leave it out, or "
                    "raise num_workers"
                )


def _seconds(timeout: Any) -> float:
    real = isinstance(timeout, int | float | np.number) and not isinstance(timeout, bool)
    if not real or not 0 <= timeout < math.inf:
        raise ConfigError(f"timeout={timeout!r} must be 0 (wait for ever) or a number of seconds")
    return float(timeout)


def _context(name: str, context: Any) -> BaseContext:
    if isinstance(context, BaseContext):
        return context
    names = torch.multiprocessing.get_all_start_methods()
    if not isinstance(context, str) or context not in names:
        raise ConfigError(f"{name}={context!r} must be one of {', '.join(names)}, or a context of multiprocessing")
    return torch.multiprocessing.get_context(context)


# What is checked where it is not None.
OPTIONAL: dict[str, Callable[[str, Any], Any]] = {
    "num_workers": functools.partial(whole, least=0),
    "prefetch_factor": functools.partial(whole, least=1),
    "pin_memory": flag,
    "persistent_workers": flag,
    "multiprocessing_context": _context,
}
