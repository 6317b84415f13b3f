"""The measurement: rounds of training with the real loader and with cached batches, in turn.

    round 1           round 2           round 3           ...
    real    perfect   perfect real      real    perfect
    ------- -------   ------- -------   ------- -------
    settling steps, then the measured ones; the real loader's workers end with its part of a round

The perfect loader gives a few batches of the real one again and again, from the model's device: what training would do
if loading cost nothing. Which of both comes first alternates, as a machine may become slower or faster from part to
part. Rounds go on until it is known well enough how they compare, or the time is over, and each part for some seconds:
on a busy machine five training steps of a millisecond take anything.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from gpupipe.errors import ConfigError
from gpupipe.host.checks import at_least
from gpupipe.host.tracing import Span, StageName
from gpupipe.loader.loader import Loader
from gpupipe.order import Shuffled, VirtualEpochs
from gpupipe.recipe import imagenet_train
from gpupipe.tools.profiling.training import TrainingStep, WaitClock

__all__ = [
    *("CONFIDENCE", "PRECISE", "Interval", "Profile", "ProfileSettings", "Stretch", "interval", "measure"),
    *("open_loader", "run_part", "training_step"),
]

CONFIDENCE = 0.95
CACHED = 4  # batches of the perfect loader: more would not change what a step costs
LEAST = 3  # rounds, whatever the time
LONG = 10**7  # samples of an epoch, from which a part takes what it needs: each round has other ones
PRECISE = 0.10  # relative width of the interval of the speedup at which it is known well enough

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class ProfileSettings:
    """One part of a round: the size of a step, and how often it is made.

    batch_size: images a step.
    size:       side of the square images in pixels.
    workers:    processes of the torch engine, threads of DALI.
    engine:     as in `Loader`.
    steps:      measured ones, a multiple of `workers` at best: workers that began together end together.
    """

    batch_size: int
    workers: int
    steps: int
    size: int = 224
    engine: Literal["auto", "dali", "torch"] = "auto"

    def __post_init__(self) -> None:
        at_least(self, "batch_size steps size", 1)
        at_least(self, "workers", 0)

    @property
    def settling(self) -> int:
        """Steps before those that are measured, so that each worker has made a batch and started on the next."""
        return self.workers + 1


class Interval(NamedTuple):
    """The value lies within `low` and `high` with this confidence, 0 to 1."""

    low: float
    high: float
    confidence: float

    @property
    def width(self) -> float:
        """Relative: 0.1 where the upper end is a tenth above the lower one."""
        return self.high / self.low - 1


def interval(values: Sequence[float]) -> Interval:
    """Of the median of what gives such values, whatever its distribution, with 95% confidence; of one value or more.

    Between the k-th smallest and the k-th largest it lies unless fewer than k values fall on one side of it, each with
    probability 1/2. Of fewer than six values it is their range, with the confidence that this has.

    >>> interval([5.0, 1.0, 2.0])
    Interval(low=1.0, high=5.0, confidence=0.75)
    >>> interval(range(1, 11))
    Interval(low=2, high=9, confidence=0.978515625)
    """
    ordered, n = sorted(values), len(values)
    outside, k = 2 / 2**n, 1  # the probability that the median lies outside of the k-th ones
    while 2 * (k + 1) <= n and (wider := outside + 2 * math.comb(n, k) / 2**n) <= 1 - CONFIDENCE:
        outside, k = wider, k + 1
    return Interval(ordered[k - 1], ordered[-k], 1 - outside)


@dataclass(frozen=True)
class Stretch:
    """The measured steps of one loader in one round; times are of `time.perf_counter`, in seconds.

    waits:  when the model's device stood still because the batch was not there, for each step.
    spans:  what the engine and the consumer did meanwhile; none for the perfect loader.
    """

    images: int
    start: float
    end: float
    waits: list[tuple[float, float]]
    spans: list[Span] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def rate(self) -> float:
        """Images a second."""
        return self.images / self.seconds

    @property
    def waited(self) -> float:
        """The share of the time in which the device waited, 0 to 1."""
        return sum(end - start for start, end in self.waits) / self.seconds

    def per_batch(self, stage: StageName) -> float:
        """Seconds of a stage for a batch, the mean; 0 where it was not seen."""
        return statistics.fmean([span.end - span.start for span in self.spans if span.stage == stage] or [0.0])


@dataclass(frozen=True)
class Profile:
    """What was measured: one part of each kind for each round.

    minutes: that were allowed for all rounds.
    """

    settings: ProfileSettings
    engine: str
    device: str
    real: list[Stretch]
    perfect: list[Stretch]
    minutes: float

    @property
    def speedup(self) -> float:
        """How many times as fast as the real loader's the perfect loader's training was, the median of the rounds.

        Below 1 it is noise: no loader makes training faster than one that costs nothing.
        """
        return statistics.median(self.speedups)

    @property
    def known(self) -> Interval:
        """What is known of the speedup."""
        return interval(self.speedups)

    @property
    def precise(self) -> bool:
        """Whether it is known well enough: to 10%, with 95% confidence."""
        return self.known.confidence >= CONFIDENCE and self.known.width <= PRECISE

    @property
    def speedups(self) -> list[float]:
        """The same for each round."""
        return [perfect.rate / real.rate for real, perfect in zip(self.real, self.perfect, strict=True)]

    @property
    def waited(self) -> float:
        """The share of the time in which the device waited, the median of the rounds."""
        return statistics.median(part.waited for part in self.real)

    def per_batch(self, stage: StageName) -> float:
        """Seconds of a stage for a batch, the median of the rounds."""
        return statistics.median(part.per_batch(stage) for part in self.real)


def open_loader(data: Any, settings: ProfileSettings, device: str | torch.device = "auto") -> Loader:
    """The loader to profile, with an epoch that is long enough for a round."""
    from gpupipe.sources import open_source

    source = open_source(data)
    # Beyond the measured steps too, so that the workers don't run out of work before the end.
    needed = (settings.settling + settings.steps + 4 * (settings.workers + 1)) * settings.batch_size
    return Loader(
        source,
        imagenet_train(settings.size),
        settings.batch_size,
        order=VirtualEpochs(Shuffled(len(source)), max(needed, LONG)),
        drop_last=True,
        num_workers=settings.workers,
        persistent_workers=False,  # else they would work for the next round while the perfect loader is measured
        engine=settings.engine,
        device=device,
        rank=0,
        world_size=1,
    )


def training_step(model: nn.Module, device: torch.device) -> TrainingStep:
    """As ImageNet is trained: bfloat16 autocast and channels_last on a GPU."""
    on_gpu = device.type == "cuda"
    layout = torch.channels_last if on_gpu else torch.contiguous_format
    model = model.to(device, memory_format=layout).train()  # type: ignore[call-overload]
    return TrainingStep(model, device, amp=on_gpu, layout=layout)


def measure(
    loader: Loader,
    step: Callable[..., object],
    settings: ProfileSettings,
    say: Callable[[str], None],
    *,
    minutes: float,
    seconds: float = 0.0,
) -> Profile:
    """Train for a part to warm up, then for rounds; `say` is called with a line before each part.

    minutes: for all rounds, about; three are measured whatever the time. seconds: a part has as many steps as take so
    long with the perfect loader, and those of `settings` at least.
    Raises ConfigError where there is no time, and what the loader and the step raise.
    """
    if minutes <= 0:
        raise ConfigError(f"minutes={minutes} must be above 0")
    say("warming up")
    cached = [(images.clone(), labels.clone()) for images, labels in itertools.islice(iter(loader), CACHED)]
    warm = run_part(step, itertools.cycle(cached), settings, loader.device)
    settings = _lasting(settings, warm.seconds / settings.steps, seconds)
    real: list[Stretch] = []
    perfect: list[Stretch] = []
    start = time.perf_counter()
    for turn in itertools.count(1):
        for kind in ("real", "perfect") if turn % 2 else ("perfect", "real"):
            say(f"round {turn}: {kind} loader")
            if kind == "real":
                real.append(_real(loader, step, settings, epoch=turn))
            else:
                perfect.append(run_part(step, itertools.cycle(cached), settings, loader.device))
        profile = Profile(settings, loader.engine, str(loader.device), real, perfect, minutes)
        spent = time.perf_counter() - start
        over = spent + spent / turn > 60 * minutes  # before one more round has ended
        if turn >= LEAST and (profile.precise or over):
            break
    return profile


def _lasting(settings: ProfileSettings, a_step: float, seconds: float) -> ProfileSettings:
    """The settings with as many steps as take so long, in whole turns of the workers."""
    turn = max(1, settings.workers)
    steps = min(math.ceil(seconds / max(a_step, 1e-6) / turn) * turn, LONG // (2 * settings.batch_size))
    return replace(settings, steps=max(settings.steps, steps))


def _real(loader: Loader, step: Callable[..., object], settings: ProfileSettings, epoch: int) -> Stretch:
    loader.set_epoch(epoch)
    spans: list[Span] = []
    loader.meter.spans = spans
    batches = iter(loader)
    try:
        part = run_part(step, batches, settings, loader.device)
        ahead = loader.settings.prefetch_factor * (1 if loader.engine == "dali" else loader.num_workers)
        for _ in itertools.islice(batches, ahead):
            pass  # what was made meanwhile comes now
    finally:
        loader.meter.spans = None
        batches.close()  # ends the workers
    return replace(part, spans=[span for span in spans if span.end > part.start and span.start < part.end])


def run_part(
    step: Callable[..., object], batches: Iterable[Batch], settings: ProfileSettings, device: torch.device
) -> Stretch:
    """The settling steps, then the measured ones: `step` is called with each of so many `batches`."""
    iterator = iter(batches)
    for batch in itertools.islice(iterator, settings.settling):
        step(*batch)
    clock, images = WaitClock(device), 0  # on a GPU it waits for the steps so far
    start = time.perf_counter()
    for batch in clock.timed(itertools.islice(iterator, settings.steps)):
        images += len(batch[1])
        step(*batch)
    waits = clock.waits()  # on a GPU it waits for the last step
    return Stretch(images, start, time.perf_counter(), waits)
