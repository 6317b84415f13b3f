"""The engine on NVIDIA DALI: one pipeline definition, whose decoder runs on the GPU ("mixed") or on the CPU.

DALI gets bytes and boxes, and draws nothing itself. A sample that it refuses ends its pipeline object; the engine then
builds the pipeline anew where it stood, without that sample, which the CPU makes.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import cycle
from typing import Any

import torch

from gpupipe.batch import Batch, Coming, Frames, Job
from gpupipe.batch.coming import looking_ahead
from gpupipe.decode.dali.draining import Draining
from gpupipe.decode.dali.feed import Feed, Feeder, frames_of
from gpupipe.decode.dali.graph import as_dali, build_pipeline
from gpupipe.decode.decoders import Decoders
from gpupipe.decode.engine import Batches, Engine
from gpupipe.errors import GpupipeError
from gpupipe.host.tracing import Stage
from gpupipe.recipe import Views
from gpupipe.sources import Source
from gpupipe.workers.forks import guard_forks

__all__ = ["DaliEngine"]

log = logging.getLogger("gpupipe")

REFUSED = re.compile(r"Failed to decode sample #(\d+)")  # what DALI says of a row of its oldest batch
SURROUNDING = ("Current pipeline", "Critical error", "Error in", "which was used", "encountered:", "File ", "return ")


class DaliError(GpupipeError, RuntimeError):
    """DALI failed, and blames no sample."""


class DaliEngine(Engine):
    """Batches from a DALI pipeline, handed to torch without a copy. DALI does not say which of those that it works on
    are made.

    device:         cuda with its number for "mixed" decoding and all pixel work on the GPU, or cpu.
    num_threads:    DALI's CPU threads.
    prefetch_depth: batches that DALI works on ahead of the consumer. ahead: how many before each is read its source is
                    told of it.
    decoders:       how DALI decodes; its share for the CPU is none of this engine's business.
    timeout:        seconds for what is read for a batch, 0: as long as it takes.
    """

    name = "dali"

    def __init__(
        self,
        source: Source,
        views: Views,
        device: torch.device,
        batch_size: int,
        num_threads: int,
        prefetch_depth: int,
        decoders: Decoders,
        ahead: int = 0,
        timeout: float = 0,
    ) -> None:
        guard_forks()
        self.device = device
        self._images = source.fields.images
        self._clips = bool(source.fields.of_kind(Frames))
        self._varies = [recipe.crop.varies for recipe in views]
        self._on_gpu = device.type == "cuda"
        self._graph_options: dict[str, Any] = dict(
            batch_size=batch_size * frames_of(source.fields) * len(views[0].parts),
            num_threads=num_threads,
            device_id=device.index,
            prefetch_queue_depth=prefetch_depth,
            views=views,
            fields=len(self._images),
            mixed=self._on_gpu,
            crop_decode=len(views) == 1
            and (not self._on_gpu if decoders.crop_decode is None else decoders.crop_decode),
            hw_decoder_load=decoders.hw_decoder_load,
        )
        self._feeder = Feeder(source, views, num_threads, pinned=self._on_gpu, timeout=timeout)
        self._source = source
        self._ahead = ahead
        self._jobs: Iterator[Job] = iter(())
        self._again: deque[Feed] = deque()  # what a pipeline had that was ended
        self._in_flight: deque[Feed] = deque()
        self._pipeline: Any = None
        self._turn = 0  # of the stream that there is
        self._draining = Draining()
        self._failure: Exception | None = None  # why there is no further job, or are no inputs of it

    # The stream of batches.

    def stream(self, jobs: Iterable[Job]) -> Batches:
        """A uint8 batch for each job, not augmented. A new stream ends an older one."""
        self._end()
        if self._in_flight or self._again:  # of the older one
            self._drop()
        told = looking_ahead(jobs, lambda job: job.coming, 1, self._ahead)
        self._jobs = (job.telling(ahead) for job, ahead in told)
        if self._pipeline is None:
            self._build()
        else:
            self._pipeline.reset()
        self._schedule()
        return Batches(partial(self._next, self._turn), partial(self._leave, self._turn))

    def _next(self, turn: int) -> Batch:
        """The stream's next batch. Raises StopIteration at its end, or what kept its next job from being fed."""
        if turn != self._turn:
            raise StopIteration
        if not self._in_flight:
            failure = self._failure
            self._end()
            try:
                raise StopIteration if failure is None else failure
            finally:
                del failure  # else it and this frame would hold each other
        with Stage("decode") as decode:  # as far as the consumer waited for it: DALI's threads tell no times
            outputs = self._outputs()
        feed = self._in_flight.popleft()
        self._schedule()  # keep DALI busy while the consumer works
        return self._batch(outputs, feed, decode)

    def _leave(self, turn: int) -> None:
        """No more of the stream is wanted."""
        if turn == self._turn:
            self._end()

    def _build(self) -> None:
        self._pipeline = build_pipeline(self._next_inputs, **self._graph_options)

    def _end(self) -> None:
        """End the stream, if there is one; what made the jobs is let go."""
        self._turn += 1
        self._failure = None
        self._jobs = iter(())
        for feed in (*self._in_flight, *self._again):
            feed.drop()
        self._source.ahead(Coming.nothing())

    def _drop(self) -> None:
        """Give back the pipeline, with what is under way in it."""
        self._pipeline = None
        self._in_flight.clear()
        self._again.clear()

    def _schedule(self) -> None:
        """Fill the pipeline's queue, or add one batch to it."""
        try:
            self._pipeline.schedule_run()
        except RuntimeError as error:
            self._recover(error)

    def _outputs(self) -> Any:
        """The next batch's outputs, on the consumer's stream."""
        stream = {"cuda_stream": torch.cuda.current_stream(self.device)} if self._on_gpu else {}
        while True:
            try:
                return self._pipeline.outputs(**stream)
            except RuntimeError as error:
                self._recover(error)

    def _next_inputs(self) -> tuple[Any, ...]:
        """DALI's callback: the inputs of the next job. Its StopIteration ends the epoch."""
        try:
            feed = self._again.popleft() if self._again else self._feeder(next(self._jobs))
        except StopIteration:
            raise
        except Exception as error:  # raised when the batches before it have been given
            self._failure, self._jobs = error, iter(())
            raise StopIteration from None
        self._in_flight.append(feed)
        return as_dali(feed.inputs)

    def _batch(self, outputs: Any, feed: Feed, decode: Stage) -> Batch:
        if self._on_gpu:
            self._draining.sweep(keep=len(outputs) * self._graph_options["prefetch_queue_depth"])
        made = [self._draining.lent(output, feed.inputs) for output in outputs]  # from which it may still be copying
        for place, varies in zip(range(len(made)), cycle(self._varies), strict=False):
            made[place] = made[place].unflatten(1, (-1, 3)) if varies else made[place]
        if self._clips:
            made = [images.unflatten(0, (len(feed.job), feed.frames)) for images in made]
        count = len(self._varies)
        views = {name: tuple(made[field * count :][:count]) for field, name in enumerate(self._images)}
        return feed.batch(views, decode.span("DALI"))

    # When DALI refuses.

    def _recover(self, error: RuntimeError) -> None:
        """Leave the sample that ended the pipeline to the CPU, and build it anew with the same feeds.

        Raises DaliError where it blames no sample. Each call puts one more sample aside, so recovery ends.
        Building takes 4 ms on the CPU; what DALI had made of the jobs in flight is made again.
        """
        try:
            index = self._blamed(error)
        except DaliError:
            self._drop()  # it can't be used any more
            raise
        self._pipeline = None  # before another is built: on a GPU each takes much memory
        traceback.clear_frames(error.__traceback__)  # DALI's own, which hold it too
        log.info("gpupipe: DALI refused sample %d; its pipeline is rebuilt without it", index)
        self._again.extendleft(reversed(self._in_flight))
        self._in_flight.clear()
        self._feeder.refuse(index, self._again)
        self._build()
        self._schedule()

    def _blamed(self, error: RuntimeError) -> int:
        """The sample that DALI says it can't decode. Raises DaliError where that is none of those it was given."""
        named = REFUSED.search(str(error))
        oldest = self._in_flight[0] if self._in_flight else None
        row = int(named.group(1)) // (oldest.frames if oldest else 1) if named else -1
        if oldest is None or row not in range(len(oldest.job)) or row in oldest.hidden:
            raise self._failed(str(error)) from error
        return int(oldest.job.indices[row])

    def _failed(self, said: str) -> DaliError:
        reasons = [line for line in map(str.strip, said.splitlines()) if line and not line.startswith(SURROUNDING)]
        what = f"DALI failed: {reasons[-1] if reasons else said}"
        advice = "read what it said above"
        if "bad_alloc" in said or "memory" in said:
            advice = "memory ran out: raise the limit, or lower batch_size, prefetch_factor or num_workers"
        if self._in_flight:
            what = f"{self._in_flight[0].job.told}: {what}"
        return DaliError(f"{what}; {advice}")

    def close(self) -> None:
        """Gives back the pipeline and the threads. Batches that the consumer holds stay valid."""
        self._end()
        self._drop()
        self._feeder.close()
        self._draining.sweep(keep=0)
