"""What runs in a child: the project's own DALI graph over the made images, beside Pillow's pixels, quiet and loaded.

Loaded means that matrix products keep another stream of the GPU busy. DALI's kernels then lag behind the host's calls,
and a decoder that does not wait for its stream writes into memory that is still being read, or hands out pixels that
are not there yet (pytorch/vision issue 9606 shows such a fault of nvJPEG's hardware decoding on H100).
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections import deque
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.utils.dlpack

from gpupipe.decode.dali.feed import view_inputs
from gpupipe.decode.dali.graph import as_dali, build_pipeline
from gpupipe.decode.reference import render_reference
from gpupipe.decode.selftest.made import image_size, made_images
from gpupipe.decode.selftest.plans import MARKER, DecodePlan
from gpupipe.plan import cropping
from gpupipe.recipe import imagenet_train

__all__ = ["MadeBatch", "SelfTest", "make_batch"]

RECIPE = imagenet_train(224)
DEPTH = 3  # of DALI's queue, as the engine's default
BATCHES = 5  # that differ: more than the queue holds, so that an earlier batch's pixels are wrong ones
COPIES = 4  # of each image in a batch, with windows of their own; of the large one only one
LARGE = "jpeg 3000x4000"
LOADED_ROUNDS = 16  # over all batches
LONGEST = 600  # seconds, more than those who ask have patience

# A decoder may refuse these with an error: the engine leaves such samples to the CPU. That costs time, but few are met.
RARE = {"jpeg cmyk", "jpeg 1x1", "jpeg 3x200", "png", "webp"}

# Largest mean and largest single difference from Pillow, in levels of 255, by the device's type. The CPU's decoders are
# bit-equal or, at the borders of crops with halved chroma, up to 14 levels off, and its resize within 1. nvJPEG has its
# own inverse transform and chroma upsampling. The bounds are there to catch garbage, shifted or mixed-up images; a
# wrong image differs by 30 levels in the mean.
TOLERANCE = {"cpu": (1.0, 32), "cuda": (3.0, 96)}

MOST_COMPLAINTS = 6


@dataclass(frozen=True)
class MadeBatch:
    """What DALI is fed, and what it should make of it.

    names: of the N images. inputs: see `build_pipeline`. truth: uint8 (N, 224, 224, 3), by Pillow.
    """

    names: tuple[str, ...]
    inputs: tuple[Any, ...]
    truth: torch.Tensor

    def on(self, device: torch.device, without: Collection[str] = ()) -> MadeBatch:
        """With the truth on that device, and without the images of these names."""
        rows = [row for row, name in enumerate(self.names) if name not in without]
        encoded, *geometry = self.inputs
        inputs = [encoded[row] for row in rows], *(array[rows] for array in geometry)
        return MadeBatch(tuple(self.names[row] for row in rows), inputs, self.truth[rows].to(device))


@dataclass
class Findings:
    """What the comparisons of a trial found: the worst differences with their images, each complaint once, in order."""

    batches: int = 0
    mean: tuple[float, str] = (0.0, "")
    largest: tuple[int, str] = (0, "")
    complaints: dict[str, None] = field(default_factory=dict)


class SelfTest:
    """The made images' batches, ready to be decoded on `device` ("cpu", "cuda:N").

    Making them leaves the GPU alone: one in exclusive mode takes one process at a time.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device("cuda:0" if device == "cuda" else device)
        torch.cuda.is_available()  # starts the driver, which can take long, but makes no context yet
        images = made_images()
        self._names = tuple(images)
        base = [name for name in images for _ in range(1 if name == LARGE else COPIES)]
        rolled = [base[number * 7 :] + base[: number * 7] for number in range(BATCHES)]  # a row's image changes, too
        self._singles = [make_batch(images, [name], number) for number, name in enumerate(images)]
        self._full = [make_batch(images, names, 100 + number) for number, names in enumerate(rolled)]

    def run(self, decode_plan: DecodePlan) -> dict[str, Any]:
        """Returns images, batches, mean, largest, worst, refused and wrong, of which `try_plans` reads an outcome.

        Each image alone, then full batches, then full batches many times under load. With hardware engines those take
        all that they can, which is the hardest for them, and at the end, sharing each batch with the others, DALI's
        default part of it.
        """
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        signal.alarm(LONGEST)  # ends even a decoder that hangs, where nobody is left to do that
        findings = Findings()
        crop, load = decode_plan.crop_decode, 1.0 if decode_plan.hardware else 0.0
        singles = [batch.on(self._device) for batch in self._singles]
        refused = self._check_singles(findings, crop, load, singles)
        full = [batch.on(self._device, without=refused) for batch in self._full]
        self._check(findings, crop, load, full)
        if self._device.type == "cuda":
            for share in (load, 0.65) if decode_plan.hardware else (load,):
                doing = f"full batches under load, hw_decoder_load={share:g}"
                with _busy(self._device):
                    self._check(findings, crop, share, full * LOADED_ROUNDS, doing=doing)
        return {
            "images": len(self._names) - len(refused),
            "batches": findings.batches,
            "mean": round(findings.mean[0], 2),
            "largest": findings.largest[0],
            "worst": [findings.mean[1], findings.largest[1]],
            "refused": sorted(refused),
            "wrong": list(findings.complaints)[:MOST_COMPLAINTS],
        }

    def _check_singles(
        self, findings: Findings, crop_decode: bool, hw_decoder_load: float, singles: list[MadeBatch]
    ) -> set[str]:
        """Each image alone; the rare ones that DALI refuses. Raises its error for any other."""
        common = [batch for batch in singles if batch.names[0] not in RARE]
        self._check(findings, crop_decode, hw_decoder_load, common, depth=1)
        refused = set()
        for batch in singles:
            (name,) = batch.names
            if name in RARE:
                try:  # in a pipeline of its own, as an error ends it
                    self._check(findings, crop_decode, hw_decoder_load, [batch], depth=1)
                except RuntimeError:
                    refused.add(name)
        return refused

    def _check(
        self,
        findings: Findings,
        crop_decode: bool,
        hw_decoder_load: float,
        batches: list[MadeBatch],
        depth: int = DEPTH,
        doing: str = "full batches",
    ) -> None:
        """Decode the batches and compare them, on the device and without waiting for it; look at the end."""
        if depth > 1:
            print(MARKER + doing, flush=True)
        in_flight: deque[MadeBatch] = deque()
        pipeline = build_pipeline(
            _feed(batches, in_flight, aloud=depth == 1),
            batch_size=max(len(batch.names) for batch in batches),
            num_threads=4,
            device_id=self._device.index,
            prefetch_queue_depth=depth,
            views=(RECIPE,),
            mixed=self._device.type == "cuda",
            crop_decode=crop_decode,
            hw_decoder_load=hw_decoder_load,
        )
        for batch, differences in _compared(pipeline, in_flight, self._device):
            _note(findings, batch, differences.tolist(), TOLERANCE[self._device.type], doing if depth > 1 else "")


def make_batch(images: dict[str, bytes], names: list[str], number: int) -> MadeBatch:
    """Images by name, each with a window that `number` and its row decide."""
    encoded = [images[name] for name in names]
    heights, widths = np.array([image_size(data) for data in encoded], np.int32).T
    positions = np.arange(len(names)) + number * 1000
    drawn = cropping(RECIPE, 0, 0, positions, heights, widths)
    truth = np.stack([render_reference(data, drawn.row(row)) for row, data in enumerate(encoded)])
    arrays = [np.frombuffer(data, np.uint8) for data in encoded]
    return MadeBatch(tuple(names), (arrays, *view_inputs(drawn)), torch.from_numpy(truth))


def _feed(batches: list[MadeBatch], in_flight: deque[MadeBatch], aloud: bool) -> Any:
    """DALI's callback over the batches."""
    coming = iter(batches)

    def feed() -> tuple[Any, ...]:
        batch = next(coming)
        if aloud:
            print(MARKER + batch.names[0], flush=True)
        in_flight.append(batch)
        return as_dali(batch.inputs)

    return feed


def _compared(pipeline: Any, in_flight: deque[MadeBatch], device: torch.device) -> list[tuple[MadeBatch, torch.Tensor]]:
    """Each batch, and for its N images the largest and the mean difference from the truth: float32 (2, N).

    As the engine does it, outputs are taken on a stream of the consumer's own, without a wait of the host.
    """
    if device.type == "cpu":
        return list(_taken(pipeline, in_flight, None))
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.default_stream(device))  # the truth came on that one
    with torch.cuda.stream(stream):
        found = list(_taken(pipeline, in_flight, stream))
    stream.synchronize()
    return found


def _taken(
    pipeline: Any, in_flight: deque[MadeBatch], stream: torch.cuda.Stream | None
) -> Iterator[tuple[MadeBatch, torch.Tensor]]:
    held: deque[tuple[Any, torch.cuda.Event]] = deque()  # DALI may reuse a buffer once its event has passed
    pipeline.schedule_run()
    while in_flight:
        (output,) = pipeline.outputs() if stream is None else pipeline.outputs(cuda_stream=stream)
        batch = in_flight.popleft()
        pipeline.schedule_run()
        buffer = output.as_tensor()
        yield batch, _differences(torch.utils.dlpack.from_dlpack(buffer), batch.truth)
        if stream is not None:
            held.append((buffer, stream.record_event()))
            if len(held) > 2:
                held.popleft()[1].synchronize()
    if stream is not None:
        stream.synchronize()


def _differences(pixels: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    off = (pixels.to(torch.int16) - truth.to(torch.int16)).abs().flatten(1)
    return torch.stack([off.amax(1).float(), off.float().mean(1)])


def _note(
    findings: Findings, batch: MadeBatch, differences: list[list[float]], bounds: tuple[float, int], doing: str
) -> None:
    mean_bound, largest_bound = bounds
    findings.batches += 1
    for name, largest, mean in zip(batch.names, *differences, strict=True):
        findings.mean = max(findings.mean, (mean, name))
        findings.largest = max(findings.largest, (int(largest), name))
        if mean > mean_bound or largest > largest_bound:
            off = f"{mean:.1f} levels off in the mean (limit {mean_bound:g}), {largest:g} in a pixel ({largest_bound})"
            place = f"{name} in {doing}" if doing else name
            if not any(complaint.startswith(f"{place}: ") for complaint in findings.complaints):
                findings.complaints[f"{place}: {off}"] = None


@contextlib.contextmanager
def _busy(device: torch.device) -> Iterator[None]:
    """Matrix products on a stream of their own for as long as the block runs; theirs is most of the GPU."""
    stop, started = threading.Event(), threading.Event()

    def work() -> None:
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):
            factors = torch.randn(4096, 4096, device=device, dtype=torch.float16)
            while not stop.is_set():
                for _ in range(20):
                    torch.mm(factors, factors)
                started.set()
                torch.cuda.current_stream(device).synchronize()

    with ThreadPoolExecutor(1) as pool:
        products = pool.submit(work)
        try:
            while not started.wait(0.01) and not products.done():
                pass
            yield
        finally:
            stop.set()
            products.result()
