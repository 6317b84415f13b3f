"""The sample set that `gpupipe bench` runs on without data of its own: made JPEGs that cost what ImageNet's cost.

Their distribution is that of ImageNet's training JPEGs, as a short table of sizes, chroma subsampling, quality and
bytes per pixel. Measured on 500 training images: mean 110 kB and 467 x 397 pixels; 76% are 4:4:4, 21% 4:2:0, 1% 4:2:2,
2% gray; seven in ten have a longer side of 500 pixels. Draws are stratified, so that a few hundred images already have
these means.

The pictures have the statistics of photographs, made from noise: smooth shading, edges, and texture of uneven strength.
The spectrum of natural images falls as 1/f; their detail is not spread evenly (sky beside grass), which an envelope
that varies over the picture copies. One number, the detail's amplitude, sets how many bytes a JPEG of it takes.
"""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from gpupipe.errors import ConfigError
from gpupipe.host.cache import cache_folder, digest
from gpupipe.host.progress import progress
from gpupipe.host.system import usable_cpus

__all__ = ["CLASSES", "ImageSpec", "Look", "NoiseBank", "fit_jpeg", "imagenet_like_specs", "make_folder", "sample_set"]

CLASSES = 16
SEED = 5  # of 40 tried, the one whose 512 images come nearest to ImageNet's mean bytes and sides
VERSION = 1  # raise it when the code draws differently from the same parameters

Quantiles = tuple[float, ...]  # values at evenly spaced ranks from 0 to 1


@dataclass(frozen=True)
class ImageSpec:
    """What one made JPEG shall be: pixels, Pillow's `subsampling` (None for gray) and `quality`, size in bytes."""

    width: int
    height: int
    subsampling: int | None
    quality: int
    target_bytes: int


@dataclass(frozen=True)
class JpegKind:
    """A share of all images that have the same chroma subsampling (0: 4:4:4, 1: 4:2:2, 2: 4:2:0, None: gray)."""

    share: float
    subsampling: int | None
    bytes_per_pixel: Quantiles
    quality: Quantiles


@dataclass(frozen=True)
class SizeTable:
    """Sides of the images: those whose longer side is 500 pixels, and all others by longer side and aspect."""

    share_500: float = 0.70
    share_landscape: float = 0.754
    short_of_500: Quantiles = (238, 333, 333, 334, 353, 375, 375, 375, 375, 390, 500)
    long_side: Quantiles = (110, 223, 285, 347, 400, 420, 484, 600, 640, 800, 1250)
    aspect: Quantiles = (0.35, 0.66, 0.68, 0.72, 0.75, 0.75, 0.75, 0.78, 0.85, 0.99, 1.0)


# Quality follows bytes per pixel in rank only loosely: the measured correlation of their logarithms is 0.6.
KINDS = (
    JpegKind(
        share=0.765,
        subsampling=0,
        bytes_per_pixel=(0.126, 0.347, 0.469, 0.537, 0.606, 0.672, 0.75, 0.82, 0.898, 1.007, 1.25),
        quality=(80, 93, 95, 96, 96, 96, 96, 96, 96, 96, 98),
    ),
    JpegKind(
        share=0.205,
        subsampling=2,
        bytes_per_pixel=(0.087, 0.127, 0.146, 0.169, 0.187, 0.223, 0.267, 0.283, 0.321, 0.438, 0.7),
        quality=(60, 69, 73, 75, 77, 80, 82, 84, 87, 92, 98),
    ),
    JpegKind(share=0.01, subsampling=1, bytes_per_pixel=(0.15, 0.27, 0.5), quality=(80, 85, 93)),
    JpegKind(share=0.02, subsampling=None, bytes_per_pixel=(0.15, 0.34, 0.7), quality=(84, 95, 96)),
)
RANK_NOISE = 0.35  # of the range of ranks: how loosely quality follows bytes per pixel


def imagenet_like_specs(count: int, seed: int) -> list[ImageSpec]:
    """`count` specifications in shuffled order; the same for the same `count` and `seed`."""
    rng = np.random.default_rng(seed)
    sides = draw_sides(rng, SizeTable(), count)
    rng.shuffle(sides)
    specs: list[ImageSpec] = []
    rest = [round(kind.share * count) for kind in KINDS[1:]]
    for kind, share in zip(KINDS, [count - sum(rest), *rest], strict=True):  # the first takes what rounding leaves
        start = len(specs)
        specs += kind_specs(rng, kind, sides[start : start + share])
    return [specs[i] for i in rng.permutation(count)]


def draw_sides(rng: np.random.Generator, table: SizeTable, count: int) -> np.ndarray:
    """(count, 2) widths and heights."""
    of_500 = round(table.share_500 * count)
    short = stratified(rng, table.short_of_500, of_500)
    long = stratified(rng, table.long_side, count - of_500)
    other_short = long * stratified(rng, table.aspect, count - of_500)
    pairs = np.stack([np.r_[np.full(of_500, 500.0), long], np.r_[short, other_short]], axis=1)
    portrait = stratified(rng, (0.0, 1.0), count) >= table.share_landscape
    pairs[portrait] = pairs[portrait, ::-1]
    return np.asarray(np.maximum(pairs.round(), 16), np.int64)


def kind_specs(rng: np.random.Generator, kind: JpegKind, sides: np.ndarray) -> list[ImageSpec]:
    """Specifications of one kind, one for each row of `sides`."""
    count = len(sides)
    density = stratified(rng, kind.bytes_per_pixel, count)
    noisy_rank = density.argsort().argsort() + rng.normal(0, RANK_NOISE * max(count, 1), count)
    quality = np.sort(stratified(rng, kind.quality, count))[noisy_rank.argsort().argsort()]
    return [
        ImageSpec(int(w), int(h), kind.subsampling, round(q), round(d * w * h))
        for (w, h), q, d in zip(sides, quality, density, strict=True)
    ]


def stratified(rng: np.random.Generator, quantiles: Quantiles, count: int) -> np.ndarray:
    """`count` values of the distribution with these quantiles: one from each equal slice of it, in random order."""
    ranks = (rng.permutation(count) + 0.5) / max(count, 1)
    return np.interp(ranks, np.linspace(0, 1, len(quantiles)), quantiles)


Plane = np.ndarray  # (height, width) float32


@dataclass(frozen=True)
class Look:
    """What photographs look like, in gray levels; tuned until their JPEGs decode as fast as photographs' do."""

    tile: int = 1024  # side of the noise fields in pixels
    smooth_exponent: float = 2.2  # amplitude falls as 1/f to this power
    detail_exponents: tuple[float, ...] = (1.0, 1.3, 1.6)
    detail_cutoff: float = 1 / 40  # detail holds no wave longer than 40 pixels
    shading: float = 72.0  # standard deviation of luma's smooth part
    tint: float = 14.0  # the same for chroma
    envelope: float = 1.0  # standard deviation of the logarithm of the detail's local strength
    edge: float = 1.5  # height of edges in units of the detail's amplitude
    chroma_detail: float = 0.23  # chroma's detail in units of luma's


class NoiseBank:
    """Periodic noise fields of unit variance from which pictures cut their windows; read-only, so threads share one."""

    def __init__(self, look: Look, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.look = look
        self.smooth = [noise_field(rng, look.tile, look.smooth_exponent, 0.0) for _ in range(2)]
        self.detail = [noise_field(rng, look.tile, e, look.detail_cutoff) for e in look.detail_exponents]


@dataclass(frozen=True)
class Scene:
    """A picture before its detail has a strength: YCbCr is `base + amplitude * detail`; (planes, height, width)."""

    base: np.ndarray
    detail: np.ndarray

    def encoded(self, amplitude: float, spec: ImageSpec) -> bytes:
        """The scene at this amplitude as a baseline JPEG with the quality and subsampling of `spec`."""
        planes = self.detail * np.float32(amplitude)
        planes += self.base
        pixels = np.moveaxis(np.clip(planes, 0, 255, out=planes).astype(np.uint8), 0, -1)
        gray = spec.subsampling is None
        image = Image.frombytes("L" if gray else "YCbCr", (spec.width, spec.height), pixels.tobytes())
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=spec.quality, **({} if gray else {"subsampling": spec.subsampling}))
        return buffer.getvalue()


def noise_field(rng: np.random.Generator, side: int, exponent: float, cutoff: float) -> Plane:
    """A periodic (side, side) field of mean 0 and variance 1 whose amplitude falls as 1/f**exponent above `cutoff`."""
    rows, columns = np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None, :]
    frequency = np.hypot(rows, columns)
    gain = np.where(frequency > cutoff, np.maximum(frequency, 1 / side) ** -exponent, 0)
    field = np.fft.irfft2(np.fft.rfft2(rng.standard_normal((side, side))) * gain, s=(side, side))
    return np.asarray((field - field.mean()) / field.std(), dtype=np.float32)


def window(rng: np.random.Generator, field: Plane, height: int, width: int) -> Plane:
    """A (height, width) piece of a periodic field from a random place, perhaps mirrored or turned."""
    field, step = (field.T if rng.random() < 0.5 else field), (-1 if rng.random() < 0.5 else 1)
    top, left = rng.integers(0, field.shape[0], 2)
    rows = (top + step * np.arange(height)) % field.shape[0]
    columns = (left + np.arange(width)) % field.shape[1]
    return np.asarray(field[rows[:, None], columns])


def compose(rng: np.random.Generator, bank: NoiseBank, spec: ImageSpec) -> Scene:
    """A random scene of the size in `spec`, with one plane when it is gray and three otherwise."""
    look, size = bank.look, (spec.height, spec.width)

    def smooth() -> Plane:
        return window(rng, bank.smooth[int(rng.integers(len(bank.smooth)))], *size)

    envelope = np.exp(look.envelope * smooth())
    edges = np.sign(smooth()) * np.float32(look.edge)
    base, detail = [], []
    for plane in range(1 if spec.subsampling is None else 3):
        strength = 1.0 if plane == 0 else look.chroma_detail
        texture = window(rng, bank.detail[int(rng.integers(len(bank.detail)))], *size)
        base.append(128 + (look.shading if plane == 0 else look.tint) * smooth())
        detail.append(strength * (envelope * texture + edges))
    return Scene(np.stack(base).astype(np.float32), np.stack(detail).astype(np.float32))


def fit_jpeg(bank: NoiseBank, spec: ImageSpec, seed: tuple[int, ...], tolerance: float = 0.04, tries: int = 7) -> bytes:
    """A JPEG whose size is within `tolerance` of the specification's where the size can be reached; else the nearest.

    Bytes grow about as a power of the amplitude, so a secant step on logarithms gets there in two or three encodings.
    """
    scene = compose(np.random.default_rng(seed), bank, spec)
    target = np.log(spec.target_bytes)
    points: list[tuple[float, float]] = []
    log_amplitude, best, best_error = np.log(10.0), b"", np.inf
    for _ in range(tries):
        data = scene.encoded(float(np.exp(log_amplitude)), spec)
        error = np.log(len(data)) - target
        if abs(error) < best_error:
            best, best_error = data, abs(error)
        if best_error < tolerance:
            break
        points.append((log_amplitude, error))
        log_amplitude = next_amplitude(points)
    return best


def next_amplitude(points: list[tuple[float, float]]) -> float:
    """Where the line through the last two (log amplitude, log error) points meets zero; steps are kept short."""
    slope = 0.6  # bytes grow about as amplitude to this power
    if len(points) > 1:
        (x0, y0), (x1, y1) = points[-2:]
        slope = float(np.clip((y1 - y0) / (x1 - x0), 0.2, 2.0)) if x1 != x0 else slope
    x, y = points[-1]
    return float(np.clip(x - np.clip(y / slope, -2.0, 2.0), np.log(0.05), np.log(200.0)))


def sample_set(folder: str | Path | None = None, count: int = 512) -> Path:
    """The image folder with the sample set of `count` JPEGs in 16 classes; made now if it is not there yet.

    It lies in `folder`, or in gpupipe's cache folder, under a name that carries a hash of all parameters. The same
    parameters give the same pixels; it takes about 5 seconds on 2 cores for 512 images. Raises ConfigError if `count`
    is less than the number of classes.
    """
    if count < CLASSES:
        raise ConfigError(f"count={count}: the sample set has {CLASSES} classes, so ask for at least {CLASSES} images")
    parent = Path(folder) if folder is not None else cache_folder() / "samples"
    target = parent / f"imagenet-like-{count}-{parameters_hash()}"
    if sum(1 for _ in target.glob("*/*.jpg")) != count:  # someone may have cleared a part of the cache
        shutil.rmtree(target, ignore_errors=True)
        make_folder(target, lambda root: write_samples(root, count))
    return target


def parameters_hash() -> str:
    """Eight hex digits that change with whatever decides the images."""
    table = {"sizes": asdict(SizeTable()), "kinds": [asdict(kind) for kind in KINDS], "rank_noise": RANK_NOISE}
    parameters = {"version": VERSION, "seed": SEED, "look": asdict(Look()), "table": table}
    return digest(parameters)[:8]


def make_folder(target: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary folder beside `target`, then rename it: `target` is whole or not there.

    If another process finishes first, its folder stays and this one is dropped.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        write(work)
        work.chmod(0o755)  # mkdtemp's 0700 would hide a shared set from other users
        os.rename(work, target)
    except OSError:
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def write_samples(root: Path, count: int) -> None:
    """Write `count` JPEGs as `class_XX/XXXXX.jpg` below `root`."""
    bank = NoiseBank(Look(), SEED)
    specs = imagenet_like_specs(count, SEED)
    for i in range(CLASSES):
        (root / f"class_{i:02d}").mkdir()

    def write_one(index: int) -> None:
        data = fit_jpeg(bank, specs[index], seed=(SEED, index))
        (root / f"class_{index % CLASSES:02d}" / f"{index:05d}.jpg").write_bytes(data)

    # NumPy and Pillow release the GIL.
    with ThreadPoolExecutor(usable_cpus()) as pool, progress("Making the sample set (once)", count) as advance:
        for _ in pool.map(write_one, range(count)):
            advance(1)
