"""Pictures with the statistics of photographs, made from noise: smooth shading, edges, and texture of uneven strength.

The spectrum of natural images falls as 1/f; their detail is not spread evenly (sky beside grass), which an envelope
that varies over the picture copies. One number, the detail's amplitude, sets how many bytes a JPEG of it takes.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image

from gpupipe.tools.benchmark.imagenet_like import ImageSpec

__all__ = ["Look", "NoiseBank", "Scene", "encode_scene", "fit_jpeg"]

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

    def pixels(self, amplitude: float) -> np.ndarray:
        """uint8 (height, width, planes)."""
        planes = self.detail * np.float32(amplitude)
        planes += self.base
        np.clip(planes, 0, 255, out=planes)
        return np.ascontiguousarray(np.moveaxis(planes.astype(np.uint8), 0, -1))


def noise_field(rng: np.random.Generator, side: int, exponent: float, cutoff: float) -> Plane:
    """A periodic (side, side) field of mean 0 and variance 1 whose amplitude falls as 1/f**exponent above `cutoff`."""
    rows, columns = np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None, :]
    frequency = np.hypot(rows, columns)
    gain = np.where(frequency > cutoff, np.maximum(frequency, 1 / side) ** -exponent, 0)
    field = np.fft.irfft2(np.fft.rfft2(rng.standard_normal((side, side))) * gain, s=(side, side))
    return np.asarray((field - field.mean()) / field.std(), dtype=np.float32)


def window(rng: np.random.Generator, field: Plane, height: int, width: int) -> Plane:
    """A (height, width) piece of a periodic field from a random place, perhaps mirrored or turned."""
    field = field.T if rng.random() < 0.5 else field
    step = -1 if rng.random() < 0.5 else 1
    top, left = rng.integers(0, field.shape[0], 2)
    rows = (top + step * np.arange(height)) % field.shape[0]
    columns = (left + np.arange(width)) % field.shape[1]
    piece: Plane = field[rows[:, None], columns]
    return piece


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


def encode_scene(scene: Scene, amplitude: float, spec: ImageSpec) -> bytes:
    """The scene at this amplitude as a baseline JPEG with the quality and subsampling of `spec`."""
    pixels = scene.pixels(amplitude)
    gray = spec.subsampling is None
    image = Image.frombytes("L" if gray else "YCbCr", (spec.width, spec.height), pixels.tobytes())
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=spec.quality, **({} if gray else {"subsampling": spec.subsampling}))
    return buffer.getvalue()


def fit_jpeg(bank: NoiseBank, spec: ImageSpec, seed: tuple[int, ...], tolerance: float = 0.04, tries: int = 7) -> bytes:
    """A JPEG whose size is within `tolerance` of the specification's where the size can be reached; else the nearest.

    Bytes grow about as a power of the amplitude, so a secant step on logarithms gets there in two or three encodings.
    """
    scene = compose(np.random.default_rng(seed), bank, spec)
    target = np.log(spec.target_bytes)
    points: list[tuple[float, float]] = []
    log_amplitude, best, best_error = np.log(10.0), b"", np.inf
    for _ in range(tries):
        data = encode_scene(scene, float(np.exp(log_amplitude)), spec)
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
