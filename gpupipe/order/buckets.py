"""Batches of like samples: of one aspect ratio, or of about one size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gpupipe.errors import ConfigError
from gpupipe.host.checks import flag, whole
from gpupipe.kernels.sizes import nearest_bucket
from gpupipe.order.feistel import Domain, permute, round_keys, snug, square, subkeys, unpermute
from gpupipe.order.protocol import AHEAD, BUCKETS, TURNS, EpochCache, Indices, OnceEach, as_array, digest

__all__ = ["Buckets", "check_budget"]


@dataclass(frozen=True, eq=False)
class Buckets(OnceEach):
    """Every global batch is of samples of one bucket, and every sample comes once an epoch.

    Each epoch shuffles the samples within their bucket, and the batches of all buckets: a short one, which has what is
    left of a bucket, comes anywhere. Where it is no multiple of the ranks it ends with repeats, as `loader.padding`
    says. The Loader needs no `batch_size`: it is the order's. Memory: 8 bytes a sample and 24 a batch, and of each
    epoch that is looked into 24 a batch.

    groups:     the bucket of each sample, integers from 0 on. What torchvision's references group by
                (`--aspect-ratio-group-factor k`) is `numpy.searchsorted(2 ** numpy.linspace(-1, 1, 2 * k + 1), width /
                height, side="right")`.
    batch_size: of the global batch, or of that of each bucket.
    drop_last:  leave out the short batches: in each epoch others of a bucket's samples.
    """

    groups: ArrayLike
    batch_size: int | Sequence[int]
    drop_last: bool = False
    _plan: _Plan = field(init=False, repr=False)
    _drawn: EpochCache[_Drawn] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        groups = as_array("Buckets: groups", self.groups)
        if groups.ndim != 1 or not np.issubdtype(groups.dtype, np.integer) or (groups < 0).any():
            raise ConfigError("Buckets: groups must be one list of integers of 0 or more, the bucket of each sample")
        counts = np.bincount(groups)
        several = isinstance(self.batch_size, Sequence | np.ndarray)
        sizes = list(self.batch_size) if several else [self.batch_size] * len(counts)  # type: ignore[arg-type]
        if len(sizes) < len(counts):
            raise ConfigError(f"Buckets: batch_size has {len(sizes)} numbers, but groups name {len(counts)} buckets")
        checked = [whole("Buckets: batch_size", size, 1, 2**31) for size in sizes[: len(counts)]]
        plan = _planned(groups, counts, np.array(checked, np.int64), flag("Buckets: drop_last", self.drop_last))
        object.__setattr__(self, "_plan", plan)
        object.__setattr__(self, "_drawn", EpochCache(partial(_draw, plan.lengths), keeps=AHEAD))

    @classmethod
    def by_aspect(
        cls,
        sizes: ArrayLike,
        buckets: Sequence[tuple[int, int]],
        batch_size: int | Sequence[int],
        drop_last: bool = False,
    ) -> Buckets:
        """By aspect ratio, as diffusion models are trained on: for `BucketCrop(buckets)`, by which all of a batch have
        the size of their bucket.

        An image's bucket is that of which the aspect ratio differs by the smallest factor, so that as little as can be
        is cut off. (kohya's sd-scripts and NovelAI take the smallest difference of width / height instead, diffusers
        that of height * bucket's width and width * bucket's height.)

        sizes:   (N, 2), height and width of each image: `source.image_sizes()`.
        buckets: (height, width), each of another aspect ratio.
        """
        shapes = _pairs("Buckets.by_aspect: buckets", buckets)
        if len(np.unique(shapes[:, 0] / shapes[:, 1])) < max(1, len(shapes)):
            raise ConfigError("Buckets.by_aspect: buckets must be pairs (height, width), each of another aspect ratio")
        return cls(nearest_bucket(_pairs("Buckets.by_aspect: sizes", sizes, 0), shapes), batch_size, drop_last)

    @classmethod
    def by_size(
        cls,
        sizes: ArrayLike,
        budget: int,
        *,
        buckets: int = 8,
        multiple: int = 1,
        batch_size: int | None = None,
        drop_last: bool = False,
    ) -> Buckets:
        """By size, for batches that are padded to their largest sample along each side: each has as many samples as the
        `budget` has room for when all are as large as the largest of their bucket.

        So no batch is above the budget, padding counted. Samples are divided in two, again and again, by height, width
        or their ratio, where that saves the most padding. Batch sizes are those of timm's NaFlex loader
        (`calculate_naflex_batch_size`) for the sizes of the buckets.

        sizes:    (N,) of sequences, such as images' tokens; or (N, 2) of images, heights and widths: `output_sizes` of
                  the crop, made multiples of what is padded to. budget: tokens or pixels of a global batch.
        buckets:  the more there are, the less is padded, and the more batches are short.
        multiple: batch sizes are multiples of that, such as the ranks. batch_size: the largest; None: the budget's.
        """
        where = "Buckets.by_size"
        given = as_array(f"{where}: sizes", sizes)
        sides = given[:, None] if given.ndim == 1 else given
        if sides.ndim != 2 or not sides.size or sides.shape[1] > 2 or not np.issubdtype(sides.dtype, np.integer):
            raise ConfigError(f"{where}: sizes must be a list of integers, or of pairs of them, one for each sample")
        for name, value in (("budget", budget), ("buckets", buckets), ("multiple", multiple)):
            whole(f"{where}: {name}", value, 1, 2**62)
        sides = np.maximum(sides, 1).astype(np.int64)  # 0: of what can't be read
        groups, most = _divided(sides, buckets)
        check_budget(where, most[groups], budget, multiple)
        counts = budget // most
        if batch_size is not None:
            counts = np.minimum(counts, whole(f"{where}: batch_size", batch_size, multiple))
        return cls(groups, (counts // multiple * multiple).tolist(), drop_last)

    def __len__(self) -> int:
        return int(self._plan.lengths.sum())

    @property
    def samples(self) -> int:
        """How many samples the dataset has to have."""
        return len(self._plan.members)

    @property
    def largest(self) -> int:
        """Samples of the largest batch."""
        return int(self._plan.lengths.max(initial=1))

    def starts(self, seed: int, epoch: int) -> Indices:
        """Where each batch of an epoch begins, and where the last one ends."""
        return self._drawn(seed, epoch).starts

    def indices(self, seed: int, epoch: int, positions: Indices) -> Indices:
        """The samples of each position's batch, at its place there."""
        return self._members(seed, epoch, *self._numbers(seed, epoch, positions))

    def alike(self, seed: int, epoch: int, position: int, count: int) -> Indices:
        """The samples that follow in the same bucket; where it has one alone, with which no other has to go, those of
        the following positions."""
        buckets, numbers = self._numbers(seed, epoch, np.array([position]))
        size = int(self._plan.counts[buckets[0]])
        if size == 1:
            return self.indices(seed, epoch, (position + 1 + np.arange(min(len(self) - 1, count))) % len(self))
        following = (numbers + 1 + np.arange(min(size - 1, count))) % size
        return self._members(seed, epoch, np.repeat(buckets, len(following)), following)

    def _inverse(self, seed: int, epoch: int, indices: Indices) -> Indices:
        plan, drawn = self._plan, self._drawn(seed, epoch)
        listed = self._listed[indices]
        buckets = np.searchsorted(plan.begins, listed, side="right") - 1
        keys = subkeys(round_keys(seed, epoch, BUCKETS), buckets)
        numbers = unpermute(listed - plan.begins[buckets], plan.domains.at(buckets), keys)
        batches, within = np.divmod(numbers, plan.sizes[buckets])
        comes = batches < (plan.first[1:] - plan.first[:-1])[buckets]
        slots = drawn.slots[np.where(comes, batches + plan.first[buckets], 0)] if len(drawn.slots) else batches
        return np.where(comes, drawn.starts[slots] + within, -1)

    def _numbers(self, seed: int, epoch: int, positions: Indices) -> tuple[Indices, Indices]:
        """The bucket of each position, and which of the bucket's samples in their order of this epoch."""
        plan, drawn = self._plan, self._drawn(seed, epoch)
        slots = np.searchsorted(drawn.starts, positions, side="right") - 1
        batches = drawn.batches[slots]
        buckets = plan.buckets[batches]
        return buckets, (batches - plan.first[buckets]) * plan.sizes[buckets] + positions - drawn.starts[slots]

    def _members(self, seed: int, epoch: int, buckets: Indices, numbers: Indices) -> Indices:
        keys = subkeys(round_keys(seed, epoch, BUCKETS), buckets)
        plan = self._plan
        found: Indices = plan.members[plan.begins[buckets] + permute(numbers, plan.domains.at(buckets), keys)]
        return found

    @cached_property
    def _listed(self) -> Indices:
        """Each sample's place among the plan's members: 8 bytes a sample, once the inverse is asked for."""
        listed = np.empty_like(self._plan.members)
        listed[self._plan.members] = np.arange(len(listed))
        return listed

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the buckets' members and batch sizes, and whether short ones are left out."""
        plan = self._plan
        parts = plan.members.tobytes(), plan.counts.tobytes(), plan.sizes.tobytes(), bytes([self.drop_last])
        return f"buckets-{len(plan.counts)}-{len(self)}-{digest(*parts)}"


class _Plan(NamedTuple):
    """What is the same in all epochs, of N samples in K buckets, which have T batches.

    members, counts, begins: the samples (N,) bucket by bucket, and how many each bucket has and where it begins (K,).
    sizes, first:            of each bucket (K,): samples of its batches, and which is its first, (K + 1,).
    buckets, lengths:        of each batch (T,), bucket by bucket: its bucket, and how many samples it has.
    domains:                 of each bucket's samples.
    """

    members: Indices
    counts: Indices
    begins: Indices
    sizes: Indices
    first: Indices
    buckets: Indices
    lengths: Indices
    domains: Domain


class _Drawn(NamedTuple):
    """Of one epoch: which `batches` (T,) come in turn, in which of these `slots` (T,) each one comes, and where they
    begin, and the last one ends, `starts` (T + 1,)."""

    batches: Indices
    slots: Indices
    starts: Indices


def _planned(groups: Indices, counts: Indices, sizes: Indices, drop_last: bool) -> _Plan:
    full, rest = np.divmod(counts, sizes)
    batches = full + ((rest > 0) & (not drop_last))
    first = np.concatenate([[0], np.cumsum(batches)])
    buckets = np.repeat(np.arange(len(counts)), batches)
    within = np.arange(len(buckets)) - first[buckets]
    return _Plan(
        members=np.argsort(groups, kind="stable").astype(np.int64),
        counts=counts,
        begins=np.cumsum(counts) - counts,
        sizes=sizes,
        first=first,
        buckets=buckets,
        lengths=np.where(within < full[buckets], sizes[buckets], rest[buckets]),
        domains=snug(np.maximum(counts, 1)),
    )


def _draw(lengths: Indices, seed: int, epoch: int) -> _Drawn:
    count = len(lengths)
    batches = permute(np.arange(count), square(max(1, count)), round_keys(seed, epoch, TURNS))
    slots = np.empty_like(batches)
    slots[batches] = np.arange(count)
    return _Drawn(batches, slots, np.concatenate([[0], np.cumsum(lengths[batches])]))


def _pairs(where: str, pairs: ArrayLike, least: int = 1) -> Indices:
    """int64 (N, 2), heights and widths. Raises ConfigError, whose message begins with `where`, for anything else."""
    sizes = as_array(where, pairs)
    if sizes.shape[1:] != (2,) or not np.issubdtype(sizes.dtype, np.integer) or sizes.min(initial=least) < least:
        raise ConfigError(f"{where} must be pairs of integers (height, width) of {least} or more, one for each")
    return sizes.astype(np.int64)


def check_budget(where: str, costs: Indices, budget: int, multiple: int) -> None:
    """Raise ConfigError unless any `multiple` of the samples are within the budget."""
    largest = int(costs.argmax())
    if costs[largest] * multiple > budget:
        raise ConfigError(
            f"{where}: budget={budget} is below {multiple} times {costs[largest]}, which sample {largest} takes; raise "
            "it, lower `multiple`, take more buckets, or leave out what is so large: see source.filter"
        )


def _divided(sides: Indices, buckets: int) -> tuple[Indices, Indices]:
    """The bucket of each sample (N,), and what a sample of each bucket takes, padded."""
    parts = [_best_cut(sides, np.arange(len(sides)))]
    while len(parts) < buckets and (widest := max(parts, key=lambda part: part.saved)).saved:
        parts.remove(widest)
        parts += [_best_cut(sides, widest.rows[: widest.at]), _best_cut(sides, widest.rows[widest.at :])]
    groups = np.empty(len(sides), np.int64)
    for number, part in enumerate(parts):
        groups[part.rows] = number
    return groups, np.array([part.most for part in parts], np.int64)


@dataclass(frozen=True, eq=False)
class _Part:
    """Samples in one line, so that `saved` is what is not padded when they are cut `at` a place: 0: nothing is. most:
    what a sample takes when they are not."""

    rows: Indices
    at: int
    saved: int
    most: int


def _best_cut(sides: Indices, rows: Indices) -> _Part:
    own = sides[rows]
    most = int(own.max(axis=0).prod())
    best = _Part(rows, 0, 0, most)
    for key in (*own.T, own[:, 0] / own[:, -1])[: 2 * own.shape[1] - 1]:
        order = np.argsort(key, kind="stable")
        line, count = own[order], np.arange(1, len(rows))
        before = np.maximum.accumulate(line, axis=0).prod(axis=1)[:-1]
        behind = np.maximum.accumulate(line[::-1], axis=0).prod(axis=1)[-2::-1]
        saved = (len(rows) * most - count * before - count[::-1] * behind) * (np.diff(key[order]) > 0)
        at = int(saved.argmax()) if len(saved) else 0
        if len(saved) and saved[at] > best.saved:
            best = _Part(rows[order], at + 1, int(saved[at]), most)
    return best
