"""JPEGs through the torch engine's decoding, whole and a crop, against Pillow: no other pixels, not slow, in bounds."""

from __future__ import annotations

import io
import random
import time
from collections.abc import Hashable, Sequence
from pathlib import Path

import hostile
import numpy as np
import torch
from PIL import Image

import gpupipe
from fuzz import mutators
from fuzz.harness import Finding, Target
from fuzz.odd_jpegs import mpo, odd_jpeg
from gpupipe.batch import Job
from gpupipe.decode.fetching import Fetched, fetch
from gpupipe.decode.rendering import decode_images
from gpupipe.kernels import Crops
from gpupipe.sources import open_source
from gpupipe.sources.headers import FORMATS, orientation_of
from gpupipe.sources.rgb import as_rgb

ODD = 150
LARGE = 1 << 22  # pixels from which on the whole image is not compared, but only the crop
REFERENCE = 40 << 20  # pixels up to which Pillow decodes it for that
SLOW = 50  # times the clean file, of as many pixels
CLEAN = 1e-3  # seconds that a clean file is allowed at least, as clocks are coarse and three decoders may look at it
AGAIN = 4  # times that what was slow is tried: a collection of garbage, or a busy machine, made 60 ms of a file's 4
FIXED, EACH = 32 << 20, 32  # bytes of memory that decoding may take, and for each pixel

UPRIGHT = gpupipe.Recipe(gpupipe.imagenet_eval(32).operations, exif_orientation=True)
STORED = gpupipe.Recipe(gpupipe.imagenet_eval(32).operations)


class Slot:
    """A dataset of one sample, which changes."""

    data = b""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        return self.data, 0


class Decoding:
    """What each file came to: pixels equal to Pillow's, or who refuses it. slow: seconds for 100,000 pixels."""

    def __init__(self, slow: float = SLOW * CLEAN) -> None:
        self.slow = slow
        self.slot = Slot()
        self.source = open_source(self.slot)

    def __call__(self, data: bytes) -> Hashable:
        draw = random.Random(data)
        self.slot.data = data
        upright = draw.random() < 0.3
        before = _memory_now()
        took, pixels, made = self._timed(draw, upright)
        grown = _peak() - before
        if grown > FIXED + EACH * pixels:
            raise Finding(f"memory: {grown >> 20} MiB for {pixels} pixels")
        for _ in range(AGAIN):
            if self._is_slow(took, pixels):
                took = min(took, self._timed(draw, upright)[0])
        if self._is_slow(took, pixels):
            raise Finding(f"slow: {took:.2f} s for {pixels} pixels in {len(data)} bytes")
        reasons = {area: one for area, one in made.items() if isinstance(one, str)}
        if reasons and len(reasons) < len(made):
            raise Finding(f"refused whole or in part alone: {reasons}")
        if pixels > REFERENCE:
            return "too large to compare"
        expected = _by_pillow(data, upright)
        return self._compared(made, expected, reasons)

    def _timed(
        self, draw: random.Random, upright: bool
    ) -> tuple[float, int, dict[tuple[int, int, int, int], np.ndarray | str]]:
        """Seconds of CPU time for a box and, if not too large, the whole; pixels of the whole; what came of either."""
        began = time.process_time()
        fetched = fetch(self.source, Job(0, 0, *np.zeros((2, 1), np.int64)))
        height, width, turn = fetched.columns["image"].sizes[0].tolist()
        if upright and turn >= 5:
            height, width = width, height
        box = _box(draw, height, width)
        whole = (0, 0, height, width) if 0 < height * width <= LARGE else None
        made = {area: self._made(fetched, area, upright) for area in (box, whole) if area is not None}
        return time.process_time() - began, height * width, made

    def _is_slow(self, took: float, pixels: int) -> bool:
        limit = self.slow * max(1.0, pixels / 100_000)
        return took > limit and took > self.slow * max(1.0, _claimed(self.slot.data) / 100_000)

    def _made(self, fetched: Fetched, area: tuple[int, int, int, int], upright: bool) -> np.ndarray | str:
        """The pixels of a part, or why there are none."""
        size = area[2:]
        out = {"image": (torch.empty((1, *size, 3), dtype=torch.uint8),)}
        one = fetched.part(np.array([0]), dict(fetched.failures))
        decode_images(one, (UPRIGHT if upright else STORED,), {"image": [Crops.of([area], size)]}, out)
        return one.failures[0].reason if one.failures else out["image"][0][0].numpy()

    def _compared(
        self,
        made: dict[tuple[int, ...], np.ndarray | str],
        expected: np.ndarray | str,
        reasons: dict[tuple[int, ...], str],
    ) -> str:
        if reasons:
            reason = next(iter(reasons.values()))
            kind = "both refuse" if isinstance(expected, str) else "only we refuse"
            return f"{kind}: {reason}"
        if isinstance(expected, str):
            return f"only Pillow refuses: {expected}"
        for (top, left, height, width), pixels in made.items():
            there = expected[top : top + height, left : left + width]
            if there.shape != pixels.shape:
                raise Finding(f"another size: {pixels.shape} for {there.shape}")
            off = np.abs(there.astype(int) - pixels)
            if off.any():
                where = "whole" if (height, width) == expected.shape[:2] else "crop"
                kind = "a little" if off.max() <= 2 else "far"
                count = (off.max(axis=2) > 0).sum()
                raise Finding(
                    f"other pixels, {kind}, {where}: {off.max()} levels in {count} of {height * width} pixels"
                )
        return "equal"


def _claimed(data: bytes) -> int:
    """Pixels that its header claims, whatever follows."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return image.width * image.height
    except Exception:
        return 0


def _memory_now() -> int:
    """Bytes that this process has, from which on its peak is counted."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    """The most that it has had since."""
    text = Path("/proc/self/status").read_text()
    return int(text[text.index("VmHWM:") + 6 :].split()[0]) << 10


def _box(draw: random.Random, height: int, width: int) -> tuple[int, int, int, int]:
    if height * width == 0:
        return 0, 0, 1, 1
    top, left = draw.randrange(height), draw.randrange(width)
    return top, left, draw.randint(1, min(height - top, 200)), draw.randint(1, min(width - left, 200))


def _by_pillow(data: bytes, upright: bool) -> np.ndarray | str:
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            turn = orientation_of(image) if upright else 1
            pixels = np.asarray(as_rgb(image))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if turn >= 5:
        pixels = pixels.swapaxes(0, 1)
    if turn in (3, 4, 6, 7):
        pixels = pixels[::-1] if turn in (3, 4) else pixels[:, ::-1]
    if turn in (2, 3, 7, 8):
        pixels = pixels[:, ::-1] if turn in (2, 3) else pixels[::-1]
    return pixels


def seeds(scratch: Path) -> Sequence[bytes]:
    kinds = hostile.good_kinds() | hostile.bad_kinds()
    return [
        *(data for data in kinds.values() if len(data) > 100),
        mpo(),
        *(odd_jpeg(random.Random(n)) for n in range(ODD)),
    ]


TARGETS = [Target("jpeg", seeds, lambda scratch: Decoding(), mutators.jpeg)]
