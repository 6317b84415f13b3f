"""The DataLoader-compatible stream of finished batches."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import BaseContext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.batch import Batch, Field, Job
from gpupipe.decode.choose import (
    EngineName,
    EngineSettings,
    choose,
    concurrency,
    made_by,
    open_engine,
    served,
    substitutes,
)
from gpupipe.decode.costs import check_limits
from gpupipe.decode.decoders import Decoders
from gpupipe.decode.engine import Engine
from gpupipe.decode.seeding import worker_seeds
from gpupipe.device.finishing import Finished, Finisher
from gpupipe.device.handover import HandOver
from gpupipe.errors import ConfigError, SampleError, TooManyBadError
from gpupipe.host.checks import flag, whole
from gpupipe.host.limits import Limits
from gpupipe.host.readers import Readers
from gpupipe.loader.arguments import (
    WorkerArguments,
    check_items,
    named,
    refuse_unserved,
    rows_of,
    seed_of,
    shortened,
)
from gpupipe.loader.attributes import DataLoaderAttributes
from gpupipe.loader.classes import check_labels, with_numbers
from gpupipe.loader.distributed import (
    check_world_size,
    compare_between_ranks,
    gathered,
    rank_and_world_size,
    ranks_of_node,
    torch_samplers,
)
from gpupipe.loader.iteration import Iteration, in_finalizer
from gpupipe.loader.jobs import Jobs
from gpupipe.loader.place import Place, Point
from gpupipe.loader.repair import OnError, Repair, check_on_error, may_fail_by_draws
from gpupipe.loader.samplers import BatchSampler, epoch_sampler
from gpupipe.loader.state import LoaderState, recipe_fingerprint
from gpupipe.loader.stats import Meter, epochs_by_source, gpu_memory
from gpupipe.loader.streaming import StreamReader, refuse_choosing
from gpupipe.loader.supply import Ended, Failed, Supply
from gpupipe.loader.tally import MaxBad, Tally, check_max_bad
from gpupipe.order import Buckets, NodeBlocks, Order, RankBatches, SamplerOrder, cut_by
from gpupipe.order.plain import check_whole
from gpupipe.order.protocol import makes_batches, samples_of
from gpupipe.recipe import Mixing, MultiCrop, Recipe, Views, check_fields
from gpupipe.sources import ItemSource, Source, StreamSource, names_files, open_source
from gpupipe.sources.dataset import UserSource
from gpupipe.sources.parts import asks_users
from gpupipe.workers.worker import WorkerInit

if TYPE_CHECKING:
    import torch.utils.data

    from gpupipe.loader.keeping import Keeping
    from gpupipe.sources.remote.cache import Cache

__all__ = ["Loader"]

log = logging.getLogger("gpupipe")


class Loader(DataLoaderAttributes):
    """Finished batches, in the place of `torch.utils.data.DataLoader`.

    data:        an image folder; WebDataset shards (a path, a brace pattern, a glob, a list, their folder); a
                 map-style dataset; a `Source`; a `Mixture`; an IterableDataset or a `Stream`. See `open_source`.
    recipe:      what is done to each image: `imagenet_train(224)`, `imagenet_eval(224)`, another preset, a `Recipe` of
                 your own, or a `MultiCrop` of several. None: the items of a map-style dataset are batched as they are,
                 as DataLoader does it, by torch's `default_collate` or by `collate_fn`.
    fields:      what a sample has, by name, and what becomes of each: see `Image` and the other kinds. None: those of
                 an opened source, else an image and its label.
    batch_size:  samples per batch of this rank; of an order that makes its batches itself, such as `Buckets`, it is
                 that order's.
    shuffle:     a new order in every epoch. None: False.
    drop_last:   leave out the last batch if it is not full. Otherwise it is short; on several ranks each takes an
                 equal part of it, and fewer than world_size rows in all repeat the epoch's first samples: see
                 `padding`, and `gather`, which leaves them out.
    seed:        with epoch and position it decides everything random. None: 0.
    generator:   a torch.Generator in the place of `seed`: its initial_seed() is taken, whatever has been drawn from
                 it. Nothing is drawn from it here. All ranks need the same seed.
    num_workers: worker processes of the torch engine (0: none), or DALI's CPU threads and the worker processes beside
                 it. None: the CPUs that this process may use, shared with the other ranks of the machine.
    prefetch_factor: batches ahead, per worker or for DALI in all. None: 2 for the torch engine, 3 for DALI.
    decoders:    with DALI, how each batch is shared out among the machine's decoders. None: DALI makes all of it.
                 Where num_workers, prefetch_factor and decoders are all None, what `gpupipe tune` has found last on
                 this machine is taken.
    pin_memory:  None: worker processes' batches are pinned if they go to a GPU. True: those that stay on the CPU are
                 in page-locked memory, too, where there is a GPU, as in DataLoader.
    persistent_workers: None or True: workers live on until the loader is closed or dropped, and the next epoch's first
                 batches are made while the last ones of this are consumed. What you change in your dataset between
                 epochs does not reach them then. False: as in DataLoader, workers end with each epoch, and nothing is
                 made before its epoch begins; nor is it with num_workers=0 or a torch Sampler as order.
    multiprocessing_context: as in DataLoader; used by the torch engine. It is refused with num_workers=0, as
                 prefetch_factor and persistent_workers=True are.
    worker_init_fn: called with its number in each worker process, after torch has seeded that, as in DataLoader; what
                 DALI decodes is read in the loader's own process, where it is not called, and a warning says so. It
                 can't decide what `__getitem__` draws from the global generators of torch, numpy and random: these
                 are seeded for each sample from (seed, epoch, position).
    timeout:     seconds without a batch from the torch engine's workers after which LoaderTimeoutError names a worker,
                 its state and the sample it is at; 0 waits for ever. So many are given to what the loader's own process
                 reads for a batch, too, with DALI or num_workers=0. A dataset of yours is interrupted there as by a
                 Ctrl-C, if the main thread calls it: for a GPU another one does.
    engine, device: "auto" takes DALI on the GPU if there is one, else the torch engine on the CPU. DALI calls no
                 `PerImage`: a recipe that has one takes the torch engine, whose batches a GPU finishes, too.
    rank, world_size: None takes torch.distributed's, else RANK and WORLD_SIZE.
    order:       an `Order` or a torch `Sampler` instead of `shuffle`; of a mixture, also instead of its weights.
    on_error:    "raise" a SampleError at a bad sample, or "skip": replace it with the next good one of the epoch's
                 order and list it in `bad_samples`; an epoch's end says how many there were.
    max_bad:     with on_error="skip", how much of an epoch may be bad: a share, 0.0 to 1.0, or as an int a number of
                 samples, on each rank; above it TooManyBadError. None: 0.5. Each iteration counts from 0, also after a
                 resume. What a field's missing="skip" passes over is not bad.
    limits:      what decoding one image may cost: see `gpupipe.Limits`. They are no part of the state, as on_error is
                 none: the usual reason for others is an image that was refused, at which the run is to go on.
    collate_fn:  goes with recipe=None alone; with a recipe each field has its own `collate`.
    cache:       of data that lies in a storage, what the machine's disk keeps: see `open_source`.
    sampler, batch_sampler, pin_memory_device, in_order: DataLoader's, which have nothing to do here. Any value but
                 DataLoader's default is a ConfigError that says what serves instead.

    DataLoader's attributes can be read: `sampler` and `batch_sampler` list the epoch's indices, `dataset` is the user's
    dataset, or the `source` where files were passed. None of what a Loader is built of can be set afterwards.

    Iterating yields (images, labels) where these are the fields, else a dict by field, all tensors on the device:
    images (N, 3, height, width) in the recipe's dtype and layout, masks (N, height, width), both padded or listed where
    their `collate` says so, and a list where the recipe has several views; labels int64 (N,), or float32 (N, classes)
    where it mixes samples, which takes an even batch_size; boxes and points `Ragged`; texts and keys lists; others as
    their `collate` says.

    Each iteration that has delivered something is followed by the next epoch, also where it was left early; `set_epoch`
    goes to any epoch, and `load_state_dict` to where a state was saved. On several ranks every rank has to leave an
    epoch at the same step, or call `set_epoch`.

    Raises ConfigError, DataError and EngineUnavailableError when built; while iterating, SampleError for a bad sample,
    TooManyBadError, DataError where `collate_fn`, `__getitems__` or an `OnBatch` fails (each of the type that your code
    raised, too), WorkerError for a worker that has died, LoaderTimeoutError. The error takes the place of its batch:
    the next `next()` gives the batch after it, with new workers where one had died. The state stands before the batch
    that did not come until another one has.
    """

    @named
    def __init__(
        self,
        data: Any,
        recipe: Recipe | MultiCrop | None = None,
        batch_size: int = 1,
        shuffle: bool | None = False,
        *,
        fields: Mapping[str, Field] | None = None,
        drop_last: bool = False,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        num_workers: int | None = None,
        pin_memory: bool | None = None,
        prefetch_factor: int | None = None,
        decoders: Decoders | None = None,
        persistent_workers: bool | None = None,
        timeout: float = 300,
        multiprocessing_context: str | BaseContext | None = None,
        worker_init_fn: WorkerInit | None = None,
        engine: EngineName = "auto",
        device: str | torch.device = "auto",
        rank: int | None = None,
        world_size: int | None = None,
        order: Order | torch.utils.data.Sampler[int] | None = None,
        on_error: OnError = "raise",
        max_bad: MaxBad | None = None,
        limits: Limits | None = None,
        sampler: None = None,
        batch_sampler: None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        cache: Cache | Literal["auto"] | str | int | os.PathLike[str] | None = "auto",
        pin_memory_device: Literal[""] = "",
        in_order: Literal[True] = True,
    ) -> None:
        refuse_unserved(sampler, batch_sampler, pin_memory_device, in_order)
        if not isinstance(recipe, Recipe | MultiCrop | None):
            raise ConfigError(
                f"recipe={recipe!r} must be a Recipe, such as gpupipe.imagenet_train(224), a MultiCrop of them, or "
                "None for a dataset whose items are batched as they are"
            )
        check_items(recipe, fields, collate_fn, engine, cache, limits)
        check_on_error(on_error)
        limits = check_limits(limits)
        self._tally = Tally(check_max_bad(max_bad, on_error))
        world_was_given = world_size is not None
        self.check_world: Callable[[int], None] = _nothing if world_was_given else check_world_size
        rank, world_size = rank_and_world_size(rank, world_size)
        batch_size, drop_last = whole("batch_size", batch_size, 1), flag("drop_last", drop_last)
        if makes_batches(order):
            batch_size = rows_of(order, batch_size, world_size, drop_last)
        shuffle = shuffle is not None and flag("shuffle", shuffle)
        workers = WorkerArguments(
            num_workers, prefetch_factor, pin_memory, persistent_workers, timeout, multiprocessing_context
        )
        self.seed, self.generator = seed_of(seed, generator), generator
        views = () if recipe is None else recipe.view_recipes
        if views and views[0].mixing is not None and makes_batches(order):
            raise ConfigError(
                f"the recipe mixes neighbours, and {type(order).__name__} makes batches that may end between two of "
                "them: leave MixUp and CutMix out, or take another order"
            )
        if views and views[0].mixing is not None and batch_size % 2:
            raise ConfigError(
                f"batch_size={batch_size} must be even where the recipe mixes samples: each is mixed with its "
                "neighbour, which has to be on the same rank"
            )
        wish: EngineName = "torch" if recipe is None else served(engine, views)
        name, where = choose(wish, device)
        found = concurrency(wish, name, where, workers.num_workers, workers.prefetch_factor, decoders)
        self.settings = EngineSettings(
            engine=found.engine,
            device=where,
            batch_size=batch_size,
            num_workers=found.num_workers,
            prefetch_factor=found.prefetch_factor,
            pin_memory=where.type == "cuda" if workers.pin_memory is None else workers.pin_memory,
            persistent_workers=workers.persistent_workers is not False and found.num_workers > 0,
            timeout=workers.timeout,
            multiprocessing_context=workers.multiprocessing_context,
            decoders=found.decoders,
            worker_init_fn=worker_init_fn,
        )
        RankBatches(0, batch_size, rank, world_size, drop_last)  # settings are refused before a long scan of the data
        self.source: Source = ItemSource(data) if recipe is None else open_source(data, fields=fields, cache=cache)
        self.dataset: Any = data if hasattr(data, "__getitem__") and not names_files(data) else self.source
        if recipe is not None:
            check_fields(recipe, self.source.fields)
        self.recipe = with_numbers(recipe, self.source, batch_size, every_sample=order is None)
        self._views: Views = () if self.recipe is None else self.recipe.view_recipes
        self._reader = StreamReader(self.source, self.seed) if isinstance(self.source, StreamSource) else None
        if self._reader is not None:
            refuse_choosing(order, shuffle, self._several)
        self.order = _order(order, shuffle, self.source)
        check_whole("Loader", order, data)
        if not world_was_given:
            compare_between_ranks(self.order, world_size)
        cut = cut_by(self.order, self.seed)
        self._place = Place(RankBatches(len(self.order), batch_size, rank, world_size, drop_last, cut=cut))
        if isinstance(self.order, NodeBlocks) and self.order.batch_size != batch_size * world_size:
            log.warning(
                "gpupipe: NodeBlocks(batch_size=%d) is for that global batch, and this loader's is %d: nodes read of "
                "each other's shares, which their caches do not hold; pass NodeBlocks this one",
                *(self.order.batch_size, batch_size * world_size),
            )
        if not len(self.order):
            log.warning("gpupipe: the order %s lists no sample, so an epoch is empty", self.order.fingerprint)
        elif not len(self.batches):
            log.warning(
                "gpupipe: an epoch of %d samples has no full batch of %d, so with drop_last=True it is empty",
                len(self.order),
                self.batches.global_batch,
            )
        self.sampler = epoch_sampler(self)
        self.batch_sampler = BatchSampler(self.sampler)
        work = made_by(self.settings, self.source, self._views, collate_fn)
        self._readers = Readers(1, self.settings.timeout)
        here = work.here(self._readers)
        beside = substitutes(work, self.settings, worker_seeds(self.seed, rank))
        repair = Repair(
            here if beside is None else beside,
            self.order,
            on_error,
            self._tally.on_all_ranks(self.batches),
            self.batches.sure,
            by_draws=may_fail_by_draws(self.source, self._views),
            twice=self.settings.engine == "torch" and asks_users(self.source),
        )
        self.meter = Meter(self.source)
        self._finisher = Finisher(self.source.fields, self._views, where, self.settings.pin_memory)
        self._mixes = self._mixing is not None
        lane = HandOver(where) if where.type == "cuda" and not self._draws_globally else None
        self.meter.finisher = "consumer" if lane is None else "thread"
        self._jobs = Jobs(self.order, self.seed, len(self.source), self._several, limits)
        self._supply = Supply(
            open_engine(
                work if self.settings.worker_processes else here, self.settings, worker_seeds(self.seed, rank), beside
            ),
            self._jobs,
            partial(_mended, repair, work.collate, self._mixing, self.source),
            self._finisher,
            self.meter,
            lane,
            # A sampler is asked when its epoch begins, as DataLoader asks it: its weights may be others then.
            # An end that is not known has to be met.
            goes_on=self.settings.persistent_workers and not torch_samplers(self.order) and not self.batches.is_endless,
            reader=self._reader,
            keeping=self._keeping(),
        )
        self._iteration: weakref.ref[Iteration] | None = None
        self._last: _Delivered | None = None
        self._mark: Mapping[str, Any] | None = None
        self._bad: dict[tuple[int | None, int], SampleError] = {}  # by epoch, where each has samples of its own
        self._built = True

    # What DataLoader has.

    @property
    def decoders(self) -> Decoders | None:
        """How DALI shares batches out with other decoders; None with the torch engine."""
        return self.settings.decoders

    @property
    def mixup_enabled(self) -> bool:
        """Whether samples are mixed. timm's train.py sets it to False for the last epochs; labels keep their form.

        An iteration goes by what holds when it begins. Not part of the state: after a resume, set it again. Raises
        ConfigError for True where the recipe mixes nothing.
        """
        return self._mixes

    @mixup_enabled.setter
    def mixup_enabled(self, enabled: bool) -> None:
        if enabled and self._mixing is None:
            raise ConfigError("mixup_enabled=True: the recipe mixes nothing; add MixUp, CutMix or MixUpOrCutMix to it")
        self._mixes = enabled

    def __len__(self) -> int:
        """Batches in an epoch: the same on every rank. Raises TypeError for a stream whose end is not known."""
        if self.batches.is_endless:
            raise TypeError(
                f"{self.source!r} has no length before its end is met; pass Stream(epoch_samples=...) for epochs of one"
            )
        return len(self.batches)

    def __iter__(self) -> Iteration:
        """The epoch's batches; the workers start now, the first batch comes when it is asked for."""
        return Iteration(self)

    # What it has beyond.

    @property
    def epoch(self) -> int:
        """The current epoch: the one being iterated, or the next to come."""
        return self._place.epoch

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self.batches.rank

    @property
    def world_size(self) -> int:
        """How many ranks share an epoch."""
        return self.batches.world_size

    @property
    def engine(self) -> Literal["dali", "torch"]:
        """The engine at work."""
        return self.settings.engine

    @property
    def device(self) -> torch.device:
        """Where batches lie."""
        return self.settings.device

    @property
    def padding(self) -> int:
        """How many rows at the end of the batch delivered last are padding: repeats that make the ranks equal.

        Only an epoch's last batch has any, or of an order's own batches any that is short, and only on several ranks
        without `drop_last`.
        """
        return 0 if self._last is None else self._last.batches.padding(self._last.step)

    @property
    def last_step(self) -> int | None:
        """The step, from 0 on, that the batch delivered last has in its epoch; None before the first batch.

        After a resume within an epoch it goes on where the state stood, where `enumerate` begins at 0.
        """
        return None if self._last is None else self._last.step

    @property
    def last_indices(self) -> NDArray[np.int64] | None:
        """The samples in the batch delivered last, (N,) int64, one for each row, padding included; None before it.

        Where on_error="skip" replaced a bad sample its substitute stands here. `source.key(index)` names a sample.
        """
        return None if self._last is None else self._last.indices

    @property
    def bad_samples(self) -> list[SampleError]:
        """The bad samples that this rank has met in batches that were delivered, or failed for them, each once;
        of a stream each once in an epoch."""
        return list(self._bad.values())

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """`values` of the batch delivered last, from all ranks, in the order of their positions and without padding.

        values: one row for each of the batch's, (N, ...), on the device that torch.distributed's backend works with.
        Every rank calls it in each step and gets the same rows, so that a whole epoch has each sample once.

        Raises ConfigError where the number of rows is another, or torch.distributed has other ranks than the loader.
        """
        if self._last is None:
            raise ConfigError("gather: no batch has been delivered yet; call it in the loop over this Loader")
        step, batches = self._last.step, self._last.batches
        rows = len(batches.positions(step))
        if len(values) != rows:
            raise ConfigError(
                f"gather: got {len(values)} rows, but the batch delivered last has {rows}; pass one for each of its "
                "images, padding included"
            )
        return gathered(values, self.world_size)[: batches.samples(step)]

    def stats(self) -> dict[str, float]:
        """What was delivered, how fast, and how long the consumer waited: plain numbers for a progress bar or a log.

        Counters, over this loader's life (subtract two calls for any stretch between):
            batches, images, bytes_read: delivered, and the encoded bytes read for them.
            images/NAME: of a mixture, those of each source.
            wait_s:   seconds in which the consumer stood in next() until the engine's batch was there. Without workers
                      that is the time to make the batches. For a GPU until the batch is on its way: the host's
                      seconds, not the GPU's.
            finish_s: seconds in which uint8 batches were brought into the recipe's dtype and layout: in the consumer's
                      thread, or for a GPU in one of the loader's own, and then the host's seconds.
            bad_samples: how many the property of this name lists. replaced: rows whose sample was bad, and is another.
            storage_bytes, storage_requests, storage_retries, storage_wait_s: of data in object storage, the bytes read
                of it, by so many requests, how many of those were made again, and the seconds in which readers, all
                workers together, stood waiting for it.
            cache_hits, cache_misses, cache_bytes, cache_hit_share: parts of objects that the disk cache had, or had to
                be read; the bytes of the first, and their share of both, 0 to 1.
        Rates, over the current iteration, or the last one, from its first batch to its latest; 0 before the second:
            img_per_s, mb_per_s: images and encoded megabytes (1e6 bytes) a second.
            wait_share: the share of the time that wait_s takes, 0 to 1.
        Of the same iteration:
            first_batch_s: seconds from the first next() to the first batch; iter() has started the workers.
        Now:
            epochs/NAME: of a mixture, how often all ranks have gone through each source, from epoch 0 to where this one
                stands, resumes included; left out where `order` is none of the mixture's.
            queue_depth: batches that are made and wait to be taken; left out with DALI on the CPU, which does not tell.
            gpu_used_mb, gpu_torch_mb: on a GPU, its memory (in 1e6 bytes) that is in use by all processes, as the
                driver says, and what of it torch has in this one, batches and model. DALI and CUDA hold the rest.
        """
        ready = self._supply.ready()
        depth = {} if ready is None else {"queue_depth": ready}
        passes = epochs_by_source(
            self.source, self.order, self.seed, self.epoch, self.batches.delivered(self._place.step)
        )
        bad = {"bad_samples": len(self._bad), "replaced": self._tally.total}
        return self.meter.as_dict() | passes | depth | gpu_memory(self.device) | bad

    def batch_indices(self, step: int) -> NDArray[np.int64]:
        """The samples that the order has for this rank at `step` of the current epoch, (N,) int64; nothing is loaded.

        Steps count from the epoch's start, also after a resume. What a delivered batch holds, substitutes of bad
        samples included, is `last_indices`. Raises ConfigError for a stream, which has to be read for them.
        """
        return self._indices(step, self.batches)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; the current one goes on where a loaded state has put it."""
        if not isinstance(epoch, int) or not 0 <= epoch < 2**32:
            raise ConfigError(f"set_epoch: epoch={epoch!r} must be an int in [0, 2**32)")
        self._place.set_epoch(epoch, running=self._running is not None)

    def state_dict(self) -> dict[str, Any]:
        """What has been delivered, as a few plain values that JSON can hold (below 1 kB).

        Prefetched batches don't count, nor does a batch in whose place an error came. It can be loaded with another
        engine, worker count or world size; with another global batch if `load_state_dict` is told so. After an
        iteration that was left early it stands where that was left: there a run that loads it goes on.
        """
        return self._state(self.batches.delivered(self._place.step)).as_dict()

    def load_state_dict(self, state: dict[str, Any], *, allow_new_global_batch: bool = False) -> None:
        """Go on after the last batch that `state` says was delivered. Raises StateError where it does not fit.

        allow_new_global_batch: take a state of another batch_size * world_size. Its epoch goes on at its position, each
        sample still once, in batches of the new size; `len` is then the number of steps as if the epoch had been in
        such batches throughout, after a shorter first one. The next epoch is cut as ever.
        """
        loaded = LoaderState.from_dict(state)
        loaded.check(self._state(0), len(self.order), self.batches, allow_new_global_batch)
        other = loaded.global_batch != self.batches.global_batch
        origin = loaded.position % self.batches.global_batch if other else loaded.origin
        if self._reader is not None:
            self._supply.drop()  # also of the place where it stands: it may be that of an error ahead
            self._reader.load(loaded.stream)
        self._mark = loaded.stream
        self._place.load(loaded.epoch, loaded.position, origin)

    def close(self) -> None:
        """End workers and threads and give back memory. Batches that were delivered stay valid."""
        self._place.turn += 1
        self._supply.close()
        self._readers.close()
        self._finisher.clear()

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise ConfigError(
            "a Loader holds processes and memory of its own, so that it can't be copied or pickled: build another one "
            "with the same arguments, and give it this one's state_dict()"
        )

    def __del__(self) -> None:
        # None: the interpreter takes itself apart, and all has ended. A fork has no such threads.
        if os is not None and self._built and self._supply.owner == os.getpid():
            in_finalizer(self.close)

    def __repr__(self) -> str:
        size = repr(self.source) if self.batches.is_endless else f"{len(self.source)} samples, {len(self)} batches"
        return (
            f"Loader({size} of {self.batch_size}{' at most' * (self.batches.cut is not None)}, engine={self.engine!r}, "
            f"device='{self.device}', rank {self.rank} of {self.world_size}, recipe={self.recipe!r})"
        )

    # What an Iteration asks for.

    @property
    def _running(self) -> Iteration | None:
        """The iteration that is under way: it has delivered something, and may go on."""
        found = None if self._iteration is None else self._iteration()
        return found if found is not None and found.under_way else None

    def _begun(self, iteration: Iteration) -> None:
        """That iteration has begun."""
        self._iteration = weakref.ref(iteration)
        self.meter.begin()
        self._tally.begin(self._place.point.step)

    def _check_unchanged(self) -> None:
        """Raise ConfigError where torch.distributed has been initialized with other ranks since, or a dataset has
        another length."""
        self.check_world(self.world_size)
        for part in self.source.all_parts():
            if isinstance(part, UserSource):
                part.check_size()

    @property
    def _engine(self) -> Engine | None:
        """None once the loader is closed."""
        return self._supply.engine

    def _met(self, bad: list[SampleError], epoch: int) -> None:
        """Those bad samples have been met; a stream's numbers begin anew in each epoch."""
        for error in bad:
            self._bad.setdefault((None if self._reader is None else epoch, error.index), error)

    def _counted(self, item: Finished | Failed | Ended) -> Finished | Failed | Ended:
        """The same, but where too many samples have been bad with it."""
        if isinstance(item, Finished):
            job, batch = item.batch.job, item.batch
            try:
                self._tally.add(len(job), batch.replaced, job.epoch, self._point_of(job).batches)
            except TooManyBadError as error:
                return Failed(error, batch.bad)
        return item

    def _handed_out(self, finished: Finished) -> Any:
        """What the consumer gets; it counts as delivered."""
        self.meter.delivered(finished)
        job = finished.batch.job
        self._met(finished.batch.bad, job.epoch)
        if job.given is not None:
            self._mark = job.given.mark
        self._last = _Delivered(job.step, self._point_of(job).batches, job.indices)
        self._place.delivered(job.step)
        return finished.output

    def _keeping(self) -> Keeping | None:
        """What tells jobs which samples a cache is to keep; None where there is none, or it decides by itself."""
        cache = self.source.cache
        if cache is None or not len(self.order) or self.source.stored_bytes(np.empty(0, np.int64)) is None:
            return None
        if self._several is not None:
            name = type(self._several.several[0]).__name__
            log.warning("gpupipe: no plan of the cache counts the partners of a %s, so it keeps what came last", name)
            return None
        from gpupipe.loader.keeping import Keeping

        return Keeping(
            self.source, cache, self.order, self.seed, ranks_of_node(self.rank, self.world_size), self.settings
        )

    @property
    def _several(self) -> Recipe | None:
        """The recipe, where it makes one sample of several."""
        return next((recipe for recipe in self._views if recipe.several), None)

    @property
    def _mixing(self) -> Mixing | None:
        """How samples are mixed."""
        return self._views[0].mixing if self._views else None

    @property
    def _draws_globally(self) -> bool:
        """Whether this process calls transforms, if only to make a bad sample's substitute. They draw from the global
        generators, which are seeded for them and put back; the consumer's thread has the same, so it must not run
        meanwhile."""
        return any(one.is_transform for view in self._views for one in view.own)

    @property
    def _remainder(self) -> int:
        """Samples of the epoch's last global batch, 0 if it is full."""
        batches = self.batches if self._last is None or not self.batches.is_endless else self._last.batches
        rest = batches.samples(len(batches) - 1) if len(batches) else 0
        full = batches.global_batch if batches.cut is None else -(-rest // batches.world_size) * batches.world_size
        return rest % max(1, full)

    def _point_of(self, job: Job) -> Point:
        """Where a job of the current epoch is, whose end it may show."""
        return Point(job.epoch, job.step, self.batches).ending(job.ends)

    def _indices(self, step: int, batches: RankBatches) -> NDArray[np.int64]:
        """The samples at that step of the current epoch, cut so."""
        if self._reader is not None:
            raise ConfigError("a stream's samples are known when they are read: see `last_indices`")
        return self._job(step, batches).indices

    def _job(self, step: int, batches: RankBatches | None = None) -> Job:
        """What is to be made at that step of the current epoch. batches: how that is cut, if not as it is."""
        return self._jobs(Point(self.epoch, step, self.batches if batches is None else batches))

    def _state(self, position: int) -> LoaderState:
        return LoaderState(
            source=self.source.fingerprint,
            recipe=recipe_fingerprint(self.recipe, self.source.fields),
            order=self.order.fingerprint if self._reader is None else self._reader.order,
            seed=self.seed,
            global_batch=self.batches.global_batch,
            drop_last=self.drop_last,
            epoch=self.epoch,
            position=position,
            origin=self.batches.origin,
            stream=None if self._mark is None else dict(self._mark),
        )


@dataclass(frozen=True)
class _Delivered:
    """The batch that was delivered last: its step, how its epoch was cut, and the samples in it."""

    step: int
    batches: RankBatches
    indices: NDArray[np.int64]


def _mended(
    repair: Repair, collate: Callable[[Batch], Batch], mixing: Mixing | None, source: Source, batch: Batch
) -> Batch:
    """The batch with every row made good, collated; where samples are mixed, labels have to be places of classes."""
    mended = collate(repair(batch))
    if mixing is not None:
        check_labels(mended.columns["label"].numpy(), mended.job.indices, mixing, source)
    return mended


def _nothing(world_size: int) -> None:
    """What was passed holds, whatever torch.distributed says."""


def _order(order: Any, shuffle: bool, source: Source) -> Order:
    """The order that the arguments mean for the source."""
    if order is None:
        return source.usual_order(shuffle)
    needed, size = samples_of(order), len(source)
    if needed > size:
        raise ConfigError(
            f"order {type(order).__name__} is for a dataset of {needed} samples or more, but this one has {size}; "
            "build the order for this dataset"
        )
    if isinstance(order, Buckets) and needed < size:
        raise ConfigError(
            f"order Buckets has the buckets of {needed} samples, and the other {size - needed} of this dataset would "
            "never come; give it the group or size of each sample, or leave those out by the dataset"
        )
    if shuffle:
        raise ConfigError("order and shuffle=True exclude each other, as sampler and shuffle do in DataLoader")
    if isinstance(order, Order):
        return order
    if isinstance(order, torch.utils.data.Sampler):
        return SamplerOrder(order)
    raise ConfigError(
        f"order={shortened(order)} must be a gpupipe order or a torch Sampler; indices become one by "
        "gpupipe.Subset(indices)"
    )
