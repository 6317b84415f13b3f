"""The engine on NVIDIA DALI: one pipeline definition, whose decoder runs on the GPU ("mixed") or on the CPU.

DALI gets bytes and boxes, and draws nothing itself. A sample that it refuses ends its pipeline object; the engine then
builds the pipeline anew where it stood, without that sample, and reports its row as a failure.
"""

from __future__ import annotations

import itertools
import logging
import re
import traceback
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.dlpack

from gpupipe.batch import Batch, Job
from gpupipe.decode.dali.feed import Feed, Feeder
from gpupipe.decode.dali.graph import as_dali, build_pipeline
from gpupipe.decode.decoders import Decoders
from gpupipe.decode.engine import Batches
from gpupipe.errors import SampleError
from gpupipe.host.tracing import Span, Stage
from gpupipe.recipe import Views
from gpupipe.workers.forks import guard_forks
from gpupipe.workers.lease import Draining

if TYPE_CHECKING:
    from gpupipe.sources import Source

__all__ = ["DaliEngine"]

log = logging.getLogger("gpupipe")

REFUSED = re.compile(r"Failed to decode sample #(\d+)")  # what DALI says of a row of its oldest batch


class DaliEngine:
    """Batches from a DALI pipeline, handed to torch without a copy.

    device:         cuda for "mixed" decoding and all pixel work on the GPU, or cpu.
    num_threads:    DALI's CPU threads.
    prefetch_depth: batches that DALI works on ahead of the consumer.
    decoders:       how DALI decodes; its share for the CPU is none of this engine's business.
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
    ) -> None:
        guard_forks()
        self.device = device
        self._source = source
        self._views = views
        self._on_gpu = device.type == "cuda"
        self._graph_options: dict[str, Any] = dict(
            batch_size=batch_size,
            num_threads=num_threads,
            device_id=_device_index(device),
            prefetch_queue_depth=prefetch_depth,
            views=views,
            mixed=self._on_gpu,
            crop_decode=len(views) == 1
            and (not self._on_gpu if decoders.crop_decode is None else decoders.crop_decode),
            hw_decoder_load=decoders.hw_decoder_load,
        )
        self._feeder = Feeder(source, views, num_threads)
        self._jobs: Iterator[Job] = iter(())
        self._in_flight: deque[Feed] = deque()
        self._pipeline: Any = None
        self._draining = Draining()
        self._failure: Exception | None = None  # why no inputs could be made of a job

    # The stream of batches.

    def stream(self, jobs: Iterable[Job]) -> Batches:
        """A uint8 batch for each job, not augmented."""
        self._start(jobs)
        self._schedule()
        return self._batches()

    def _batches(self) -> Generator[Batch, None, None]:
        while self._in_flight:
            with Stage("decode") as decode:  # as far as the consumer waited for it: DALI's threads tell no times
                outputs = self._outputs()
            feed = self._in_flight.popleft()
            self._schedule()  # keep DALI busy while the consumer works
            yield self._batch(outputs, feed, decode.span("DALI"))
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _start(self, jobs: Iterable[Job]) -> None:
        """Ready the pipeline for new jobs; what an abandoned stream left in it is dropped."""
        if self._pipeline is not None and self._in_flight:
            self._pipeline = None
        self._in_flight.clear()
        self._jobs = iter(jobs)
        self._failure = None
        if self._pipeline is None:
            self._build()
        else:
            self._pipeline.reset()

    def _build(self) -> None:
        self._pipeline = build_pipeline(self._next_inputs, **self._graph_options)

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
        job = next(self._jobs)
        try:
            feed = self._feeder(job)
        except Exception as error:  # raised when the batches before it have been given
            self._failure = error
            raise StopIteration from None
        self._in_flight.append(feed)
        return as_dali(feed.inputs)

    def _batch(self, outputs: Any, feed: Feed, decode: Span) -> Batch:
        if self._on_gpu:
            self._draining.sweep(keep=len(self._views) * self._graph_options["prefetch_queue_depth"])
        (name,) = self._source.fields.images
        images = {name: tuple(self._images(output, feed) for output in outputs)}
        return Batch(
            feed.job,
            feed.fetched.columns | images,
            feed.fetched.failures,
            bytes_read=feed.fetched.bytes_read,
            spans=(feed.read, decode),
        )

    def _images(self, output: Any, feed: Feed) -> torch.Tensor:
        """One view of a batch, in DALI's memory."""
        buffer = output.as_tensor()
        images = torch.utils.dlpack.from_dlpack(buffer)
        if self._on_gpu:
            stream = torch.cuda.current_stream(self.device)
            # The feed too: the decoder may still be copying from it.
            self._draining.watch(images, (buffer, feed), stream.record_event)
        return images

    # When DALI refuses.

    def _recover(self, error: RuntimeError) -> None:
        """Put the sample aside that ended the pipeline, and build it anew with the same jobs in flight.

        Raises the error itself where it blames no sample. Each call puts one more sample aside, so recovery ends.
        Building takes 4 ms on the CPU; what DALI had made of the jobs in flight is made again.
        """
        pending = list(self._in_flight)
        blamed = self._blamed(error, pending)
        self._pipeline = None  # before another is built: on a GPU each takes much memory
        traceback.clear_frames(error.__traceback__)  # DALI's own, which hold it too
        log.info("DALI refused sample %d; its pipeline is rebuilt without it", blamed.index)
        self._feeder.refused[blamed.index] = blamed
        self._in_flight.clear()
        self._jobs = itertools.chain([feed.job for feed in pending], self._jobs)
        self._build()
        self._schedule()

    def _blamed(self, error: RuntimeError, pending: list[Feed]) -> SampleError:
        """The sample that DALI says it can't decode. Raises the error where that is none of those it was given."""
        named = REFUSED.search(str(error))
        row = int(named.group(1)) if named else -1
        if not pending or row not in range(len(pending[0].job)) or row in pending[0].fetched.failures:
            raise error
        index = int(pending[0].job.indices[row])
        return SampleError(index, self._source.location(index), "DALI can't decode it")

    def ready(self) -> None:
        """None: DALI does not say which of the batches that it works on are made."""
        return

    def interrupt(self) -> None:
        """Nothing: what DALI waits for can't be ended."""
        return

    def close(self) -> None:
        """Gives back the pipeline. Batches that the consumer holds stay valid."""
        self._pipeline = None
        self._in_flight.clear()
        self._jobs = iter(())
        self._feeder.close()
        self._draining.finish()


def _device_index(device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    return torch.cuda.current_device() if device.index is None else device.index
