"""What runs in a child: the project's own DALI graph over the made images, beside Pillow's pixels, quiet and loaded.

Loaded means that matrix products keep another stream of the GPU busy. DALI's kernels then lag behind the host's calls,
and a decoder that does not wait for its stream writes into memory that is still being read, or hands out pixels that
are not there yet (pytorch/vision issue 9606 shows such a fault of nvJPEG's hardware decoding on H100).
"""

from __future__ import annotations

import contextlib
import functools
import io
import signal
import threading
from collections import deque
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from gpupipe.decode.dali.draining import Draining
from gpupipe.decode.dali.feed import view_inputs
from gpupipe.decode.dali.graph import as_dali, build_pipeline
from gpupipe.decode.pixels import by_pillow, resized_by_pillow
from gpupipe.decode.selftest.verdict import MARKER, DecodePlan
from gpupipe.plan import cropping
from gpupipe.recipe import imagenet_train
from gpupipe.sources.headers import probe_bytes

__all__ = ["MadeBatch", "Pixels", "SelfTest", "made_images", "made_pixels", "make_batch"]

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


Pixels = npt.NDArray[np.uint8]

# Start of a baseline frame (ITU-T T.81, table B.1), whose payload holds precision, height, width, number of components
# and for each component its id, its sampling factors (horizontal in the high nibble) and its table.
SOF0 = b"\xff\xc0"


@dataclass
class Findings:
    """What the comparisons of a trial found: the worst differences with their images, and the first complaint of each
    image and part of the trial."""

    device: torch.device
    crop_decode: bool
    batches: int = 0
    mean: tuple[float, str] = (0.0, "")
    largest: tuple[int, str] = (0, "")
    complaints: dict[str, str] = field(default_factory=dict)

    def check(self, hw_decoder_load: float, batches: list[MadeBatch], doing: str = "") -> None:
        """Decode the batches and compare them, on the device and without waiting for it; look at the end. `doing` is
        said before, else each image's name."""
        if doing:
            print(MARKER + doing, flush=True)
        in_flight: deque[MadeBatch] = deque()
        fed = _fed(batches, in_flight, aloud=not doing)
        pipeline = build_pipeline(
            lambda: next(fed),
            batch_size=max(len(batch.names) for batch in batches),
            num_threads=4,
            device_id=self.device.index,
            prefetch_queue_depth=DEPTH if doing else 1,
            views=(RECIPE,),
            mixed=self.device.type == "cuda",
            crop_decode=self.crop_decode,
            hw_decoder_load=hw_decoder_load,
        )
        for batch, differences in _compared(pipeline, in_flight, self.device):
            self._note(batch, differences.tolist(), doing)

    def _note(self, batch: MadeBatch, differences: list[list[float]], doing: str) -> None:
        mean_bound, largest_bound = TOLERANCE[self.device.type]
        self.batches += 1
        for name, largest, mean in zip(batch.names, *differences, strict=True):
            self.mean = max(self.mean, (mean, name))
            self.largest = max(self.largest, (int(largest), name))
            if mean > mean_bound or largest > largest_bound:
                place = f"{name} in {doing}" if doing else name
                off = f"{mean:.1f} levels off in the mean (limit {mean_bound:g}), {largest:g} in a pixel"
                self.complaints.setdefault(place, f"{place}: {off} ({largest_bound})")


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
        findings, load = Findings(self._device, decode_plan.crop_decode), 1.0 if decode_plan.hardware else 0.0
        refused = self._refused(findings, load)
        full = [batch.on(self._device, without=refused) for batch in self._full]
        findings.check(load, full, "full batches")
        if self._device.type == "cuda":
            for share in (load, 0.65) if decode_plan.hardware else (load,):
                with _busy(self._device):
                    findings.check(share, full * LOADED_ROUNDS, f"full batches under load, hw_decoder_load={share:g}")
        return {
            "images": len(self._names) - len(refused),
            "batches": findings.batches,
            "mean": round(findings.mean[0], 2),
            "largest": findings.largest[0],
            "worst": [findings.mean[1], findings.largest[1]],
            "refused": sorted(refused),
            "wrong": list(findings.complaints.values())[:MOST_COMPLAINTS],
        }

    def _refused(self, findings: Findings, hw_decoder_load: float) -> set[str]:
        """Decodes each image alone; the rare ones that DALI refuses. Raises its error for any other."""
        singles = [batch.on(self._device) for batch in self._singles]
        rare = {batch.names[0]: batch for batch in singles if batch.names[0] in RARE}
        findings.check(hw_decoder_load, [batch for batch in singles if batch.names[0] not in rare])
        refused = set()
        for name, batch in rare.items():
            try:  # in a pipeline of its own, as an error ends it
                findings.check(hw_decoder_load, [batch])
            except RuntimeError:
                refused.add(name)
        return refused


# Batches, and what DALI makes of them.


def make_batch(images: dict[str, bytes], names: list[str], number: int) -> MadeBatch:
    """Images by name, each with a window that `number` and its row decide."""
    sizes = np.array([probe_bytes(images[name]) for name in names], np.int32)[:, :2]
    positions = np.arange(len(names)) + number * 1000
    drawn = cropping(RECIPE, 0, 0, positions, *sizes.T)
    arrays = [np.frombuffer(images[name], np.uint8) for name in names]
    whole = [by_pillow(data, tall, wide, False) for data, (tall, wide) in zip(arrays, sizes.tolist(), strict=True)]
    truth = np.stack([resized_by_pillow(image, drawn.row(row)) for row, image in enumerate(whole)])
    return MadeBatch(tuple(names), (arrays, *view_inputs(drawn)), torch.from_numpy(truth))


def _fed(batches: list[MadeBatch], in_flight: deque[MadeBatch], aloud: bool) -> Iterator[tuple[Any, ...]]:
    """What DALI is fed, one batch after the other."""
    for batch in batches:
        if aloud:
            print(MARKER + batch.names[0], flush=True)
        in_flight.append(batch)
        yield as_dali(batch.inputs)


def _compared(pipeline: Any, in_flight: deque[MadeBatch], device: torch.device) -> list[tuple[MadeBatch, torch.Tensor]]:
    """Each batch, and for its N images the largest and the mean difference from the truth: float32 (2, N).

    As the engine does it, outputs are taken on a stream of the consumer's own, without a wait of the host.
    """
    stream = None if device.type == "cpu" else torch.cuda.Stream(device)
    if stream is not None:
        stream.wait_stream(torch.cuda.default_stream(device))  # the truth came on that one
    found = []
    draining = Draining()
    with torch.cuda.stream(stream):
        pipeline.schedule_run()
        while in_flight:
            (output,) = pipeline.outputs() if stream is None else pipeline.outputs(cuda_stream=stream)
            batch = in_flight.popleft()
            pipeline.schedule_run()
            found.append((batch, _differences(draining.lent(output), batch.truth)))
            draining.sweep(keep=2)
    if stream is not None:
        stream.synchronize()
    return found


def _differences(pixels: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    off = (pixels.to(torch.int16) - truth.to(torch.int16)).abs().flatten(1)
    return torch.stack([off.amax(1).float(), off.float().mean(1)])


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


# The made set: small images of every kind that datasets hold, encoded in memory.


def made_images() -> dict[str, bytes]:
    """Name -> encoded bytes: each sampling of JPEG, odd, tiny and large sizes, what hardware refuses, PNG and WebP."""
    jpeg = functools.partial(_encode, kind="JPEG", quality=92)
    return {
        "jpeg 4:4:4": jpeg(made_pixels(96, 128, 1), subsampling=0),
        "jpeg 4:2:2": jpeg(made_pixels(96, 128, 2), subsampling=1),
        "jpeg 4:2:0": jpeg(made_pixels(96, 128, 3), subsampling=2),
        "jpeg 4:4:0": _jpeg_440(made_pixels(96, 128, 4)),
        "jpeg 4:4:4 of odd size": jpeg(made_pixels(101, 67, 5), subsampling=0),
        "jpeg 4:2:2 of odd size": jpeg(made_pixels(97, 131, 6), subsampling=1),
        "jpeg 4:2:0 of odd size": jpeg(made_pixels(61, 83, 7), subsampling=2),
        "jpeg gray": jpeg(made_pixels(72, 80, 8), mode="L"),
        "jpeg progressive": jpeg(made_pixels(80, 72, 9), subsampling=2, progressive=True),
        "jpeg cmyk": jpeg(made_pixels(64, 64, 10), mode="CMYK"),
        "jpeg with restart markers": jpeg(made_pixels(88, 120, 11), subsampling=2, restart_marker_blocks=3),
        "jpeg of photo size": jpeg(made_pixels(375, 500, 12), subsampling=2),
        "jpeg 3000x4000": jpeg(_enlarged(made_pixels(375, 500, 13), 8), subsampling=2),
        "jpeg 1x1": jpeg(made_pixels(1, 1, 14)),
        "jpeg 3x200": jpeg(made_pixels(3, 200, 15), subsampling=0),
        "png": _encode(made_pixels(50, 70, 16), kind="PNG"),
        "webp": _encode(made_pixels(70, 50, 17), kind="WEBP", lossless=True),
    }


def made_pixels(height: int, width: int, seed: int) -> Pixels:
    """RGB uint8 (height, width, 3): waves whose colours and directions differ by `seed`.

    They are long, so that decoders that interpolate chroma in different ways differ little.
    """
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    waves = [np.sin(x / (45 + 10 * c + seed) + y / (80 - 12 * c) + seed * (c + 1)) for c in range(3)]
    return np.asarray(128 + 100 * np.stack(waves, axis=-1), dtype=np.uint8)


def _encode(pixels: Pixels, kind: str, mode: str = "RGB", **options: Any) -> bytes:
    return _saved(Image.fromarray(pixels).convert(mode), kind, **options)


def _saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _enlarged(pixels: Pixels, times: int) -> Pixels:
    height, width = pixels.shape[:2]
    return np.asarray(Image.fromarray(pixels).resize((width * times, height * times), Image.Resampling.BICUBIC))


def _jpeg_440(pixels: Pixels) -> bytes:
    """A JPEG whose chroma is halved from top to bottom; height in multiples of 16, width of 8.

    Pillow can't write that. But 4:2:2 has the same blocks in the same order: two of luma, one of each chroma, side by
    side in 4:2:2 and one above the other in 4:4:0. So luma is cut into blocks and laid out for 4:2:2, each chroma row
    is the mean of two, and the header says 4:4:0.
    """
    height, width = pixels.shape[:2]
    luma, *chroma = np.moveaxis(np.asarray(Image.fromarray(pixels).convert("YCbCr")), -1, 0)
    blocks = luma.reshape(height // 16, 2, 8, width // 8, 8)
    planes = [blocks.transpose(0, 2, 3, 1, 4).reshape(height // 2, 2 * width)]
    for plane in chroma:
        halved = plane.reshape(height // 2, 2, width).mean(axis=1).round().astype(np.uint8)
        planes.append(np.repeat(halved, 2, axis=1))  # 4:2:2 takes the mean of two columns
    wide = Image.merge("YCbCr", [Image.fromarray(plane) for plane in planes])
    encoded = bytearray(_saved(wide, "JPEG", quality=92, subsampling=1))
    frame = encoded.index(SOF0) + 5  # past marker, length and precision
    encoded[frame : frame + 4] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    encoded[frame + 6] = 0x12  # luma's factors: 2 x 1 becomes 1 x 2
    return bytes(encoded)
