"""A torch sampler as an order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gpupipe.errors import ConfigError
from gpupipe.host.generators import global_generators, kept, own_generators, seed_all, states
from gpupipe.kernels.philox import philox4x32, split64
from gpupipe.order.protocol import Indices, as_array, digest, with_parts

if TYPE_CHECKING:
    import torch.utils.data

__all__ = ["LISTING", "SamplerOrder", "is_listing", "parts_of", "unchanged"]

LISTING = threading.RLock()
"""Of one thread at a time: all draw from the same global generators."""
_THREAD = threading.local()


@dataclass(frozen=True, eq=False)
class SamplerOrder:
    """Any sized torch `Sampler` as an order: its sequence is listed once an epoch.

    The global generators of torch, numpy and random, and those that the sampler has as attributes, are seeded from
    (seed, epoch) for the listing and put back after it, as are lists and arrays of its own that it has shuffled in
    place. What else it changes in itself stays, such as a list that one epoch takes up where the last has left it.
    `set_epoch` is called where there is one, first of samplers that it is made of. So a sampler that draws from these
    gives the same sequence on every rank and after every resume. The listing has to hold whole indices for the whole
    world: pass a plain sampler, not a `DistributedSampler`, since the loader itself cuts the epoch into ranks.

    A new listing is shown to each of the `watchers`: (order, seed, epoch, indices).
    """

    sampler: torch.utils.data.Sampler[int]
    watchers: list[Callable[[SamplerOrder, int, int, Indices], None]] = field(
        default_factory=list, init=False, repr=False
    )
    _cache: dict[tuple[int, int], Indices] = field(default_factory=dict, init=False, repr=False)
    _fingerprint: list[str] = field(default_factory=list, init=False, repr=False)
    _length: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        if not hasattr(self.sampler, "__len__"):
            raise ConfigError(
                f"SamplerOrder: {type(self.sampler).__name__} has no len(); give it a __len__, or where epochs differ "
                "in length pass order=, a gpupipe order such as Stratified, or shuffle="
            )
        if getattr(self.sampler, "num_replicas", 1) > 1:
            raise ConfigError(
                f"SamplerOrder: {type(self.sampler).__name__} already cuts the epoch into num_replicas="
                f"{self.sampler.num_replicas} parts, and the loader would cut each of them again; "  # type: ignore[attr-defined]
                "pass shuffle=True or a sampler of the whole dataset"
            )
        object.__setattr__(self, "_length", len(self.sampler))

    def __len__(self) -> int:
        return self._length

    def indices(self, seed: int, epoch: int, positions: Indices) -> Indices:
        """The sampler's sequence at the positions."""
        with LISTING:
            if (seed, epoch) not in self._cache:
                listed = self._listed(seed, epoch)
                for watcher in self.watchers:
                    watcher(self, seed, epoch, listed)
                self._cache.clear()
                self._cache[seed, epoch] = listed
                self._fingerprint.clear()  # the sampler's weights, say, may be others in each epoch
            return self._cache[seed, epoch][positions]

    def _yielded(self) -> list[int]:
        """What it gives now, as the generators are."""
        return list(self.sampler)

    @contextmanager
    def _seeded(self, seed: int, epoch: int) -> Iterator[None]:
        """The generators are those of an epoch, which the sampler is told."""
        parts = parts_of(self.sampler)
        generators = [*global_generators(), *(one for part in parts for one in own_generators(part))]
        with LISTING, kept(generators):
            before, _THREAD.lists = is_listing(), True
            try:
                for part in reversed(parts):
                    if hasattr(part, "set_epoch"):
                        part.set_epoch(epoch)
                seed_all(generators, philox4x32((0, 0, epoch, 0), split64(seed)).tolist())
                with _in_order(parts, generators):
                    yield
            finally:
                _THREAD.lists = before

    def _listed(self, seed: int, epoch: int) -> Indices:
        with self._seeded(seed, epoch):
            listed = as_array(f"SamplerOrder: what {type(self.sampler).__name__} yields", self._yielded())
        if listed.ndim != 1 or not np.issubdtype(listed.dtype, np.integer):
            raise ConfigError(
                f"SamplerOrder: {type(self.sampler).__name__} yields {listed.dtype} of shape {listed.shape[1:]}; it "
                "must yield one integer for each sample: pass a sampler of samples, not of batches"
            )
        self._check_length(len(listed), epoch)
        return listed.astype(np.int64, copy=False)

    def _check_length(self, listed: int, epoch: int) -> None:
        """Raise ConfigError unless that many indices are an epoch, which a loader has cut into batches by now."""
        name, now = type(self.sampler).__name__, len(self.sampler)  # type: ignore[arg-type]
        if listed != now:
            raise ConfigError(
                f"SamplerOrder: {name} yielded {listed} indices, its len() says {now}; make the two agree"
            )
        if listed != len(self):
            raise ConfigError(
                f"SamplerOrder: {name} has {now} samples in epoch {epoch}, but had {len(self)} when this order was "
                "made of it, and all epochs of a loader are of one length; build it and its order anew"
            )

    @property
    def name(self) -> str:
        """The sampler's class and length."""
        return f"sampler-{type(self.sampler).__name__}-{len(self)}"

    @property
    def fingerprint(self) -> str:
        """The sampler's class and length, with a hash of what it lists for seed 0 and epoch 0.

        That takes as long as listing an epoch, once an epoch if it is asked for: 0.6 s for RandomSampler and a million
        samples, 1.1 s for WeightedRandomSampler (one core of an Intel Xeon).
        """
        with LISTING:
            if not self._fingerprint:
                with unchanged(self.sampler):
                    listed = self._cache.get((0, 0))
                    listed = self._listed(0, 0) if listed is None else listed
                self._fingerprint.append(f"{self.name}-{digest(listed.tobytes())}")
            return self._fingerprint[0]


def is_listing() -> bool:
    """Whether this thread lists a sampler, so that it is no one else who calls its `set_epoch`."""
    return getattr(_THREAD, "lists", False)


def parts_of(sampler: Any) -> list[Any]:
    """The sampler, and the samplers that it is made of, each before those that it is made of itself."""
    return with_parts(sampler, _inner_samplers)


def _inner_samplers(sampler: Any) -> list[Any]:
    import torch.utils.data

    return [value for value in _attributes(sampler).values() if isinstance(value, torch.utils.data.Sampler)]


@contextmanager
def unchanged(sampler: Any) -> Iterator[None]:
    """Puts back what the sampler notes of itself, such as the epoch that it was told or what a list has left."""
    parts = parts_of(sampler)
    before = [(part, dict(_attributes(part))) for part in parts]
    contents = _contents(parts)
    try:
        yield
    finally:
        for part, attributes in before:
            now = _attributes(part)
            now.update(attributes)  # never empty: another thread may ask for the length
            for name in now.keys() - attributes.keys():
                del now[name]
        for value, content in contents:
            value[:] = content


@contextmanager
def _in_order(parts: list[Any], generators: list[Any]) -> Iterator[None]:
    """Puts back what the samplers shuffle in place, or each epoch's order would depend on those before it."""
    contents, began = _contents(parts), states(generators)
    try:
        yield
    finally:
        if states(generators) != began:
            for value, content in contents:
                if _is_reordered(value, content):
                    value[:] = content


def _contents(parts: list[Any]) -> list[tuple[Any, Any]]:
    """The samplers' lists and arrays, also those that a list or dict has, and copies of them."""
    held = [value for part in parts for value in _attributes(part).values()]
    for value in [value for value in held if isinstance(value, dict | list)]:
        held += value.values() if isinstance(value, dict) else value
    return [(value, value.copy()) for value in held if _is_changeable(value)]


def _is_reordered(value: Any, content: Any) -> bool:
    """Whether it has the very elements that it had."""
    if isinstance(value, list):
        return sorted(map(id, value)) == sorted(map(id, content))
    return np.array_equal(np.sort(value, axis=None), np.sort(content, axis=None))


def _is_changeable(value: Any) -> bool:
    """A list, or an array that may be of samples or of batches: to copy features or images would be dear."""
    if type(value) is np.ndarray:
        return value.ndim in (1, 2) and value.dtype.kind in "iu" and value.flags.writeable
    return isinstance(value, list)


def _attributes(holder: Any) -> dict[str, Any]:
    found: dict[str, Any] = getattr(holder, "__dict__", {})
    return found
