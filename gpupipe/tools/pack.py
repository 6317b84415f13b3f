"""Write any source as WebDataset shards: shuffled once, optionally shrunk, shard by shard, resumable."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import ConfigError, DataError, SampleError
from gpupipe.host.checks import at_least
from gpupipe.host.files import folder_lock, read_regular, replacing
from gpupipe.host.progress import progress
from gpupipe.host.system import usable_cpus
from gpupipe.sources import FolderSource, ShardSource, Source, explain_damage
from gpupipe.sources.headers import FORMATS
from gpupipe.sources.opening import PLAN_NAME, SHARD_NAME
from gpupipe.sources.shards import CLASSES_NAME, open_shards
from gpupipe.sources.tar import BLOCK

__all__ = ["PLAN_NAME", "PackSettings", "Packed", "damage", "pack"]

Packable = FolderSource | ShardSource

VERSION = 1
KEY = re.compile(r"[^A-Za-z0-9_-]+")
KEY_NAME_LENGTH = 60  # with number and extension well below the 100 bytes of a plain tar header
MOST_LISTED = 10
MOST_PLAN_BYTES = 1 << 20


@dataclass(frozen=True)
class PackSettings:
    """How to pack; all of it but nothing else decides the bytes of the shards.

    A shard ends before `shard_size` bytes, or after `samples_per_shard` where that is given. Images whose shorter side
    exceeds `max_size` pixels are shrunk to it and written as RGB JPEGs of `quality` (1 to 95); all others are copied
    as they are. `seed` shuffles. `skip_bad` leaves damaged images out instead of raising.
    """

    shard_size: int = 256_000_000
    samples_per_shard: int | None = None
    max_size: int | None = None
    quality: int = 90
    seed: int = 0
    skip_bad: bool = False

    def __post_init__(self) -> None:
        at_least(self, "shard_size samples_per_shard max_size", 1)
        at_least(self, "seed", 0)
        if not 1 <= self.quality <= 95:
            raise ConfigError(f"quality={self.quality} must lie in 1 to 95: above, JPEGs only grow")


@dataclass(frozen=True)
class Packed:
    """What now lies in the destination: the shards as a source, and the source's samples that were left out."""

    shards: ShardSource
    left_out: list[int]


def pack(source: Packable, destination: str | os.PathLike[str], settings: PackSettings, workers: int = 0) -> Packed:
    """Write `source` into `destination` as shards, an index and, where there are class names, `classes.json`.

    Each shard appears under its name only when it is whole. Shards that an earlier run finished are kept if that run
    had the same source and settings; the result is the same, byte for byte, as that of one run. `workers` threads
    (0: one per usable CPU) encode.

    Raises ConfigError where the destination holds another packing or lies in the source, DataError where images are
    damaged (unless `settings.skip_bad`) or the disk can't take the shards.
    """
    folder = Path(destination).expanduser().absolute()
    _check_destination(source, folder)
    order = _order(source, settings)
    cuts = _cuts(source, order, settings)
    names = [folder / SHARD_NAME.format(number) for number in range(len(cuts))]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with folder_lock(folder, wait=False):
            _keep_plan(folder, source, settings, len(cuts))
            if source.classes is not None:
                _write(folder / CLASSES_NAME, json.dumps(source.classes, indent=0))
            _write_shards(source, settings, [order[start:end] for start, end in cuts], names, workers or usable_cpus())
    except BlockingIOError as error:
        raise ConfigError(f"another process is packing into {folder}: wait for it or write elsewhere") from error
    except OSError as error:
        raise DataError(f"can't write to {folder}: {error}; once that is mended, run it again to go on") from error
    shards = open_shards(names)
    packed = [int(shards.key(index).split("_")[0]) for index in range(len(shards))]
    return Packed(shards, np.setdiff1d(np.arange(len(source)), packed).tolist())


def _order(source: Packable, settings: PackSettings) -> NDArray[np.int64]:
    """The samples to pack in their order. Raises DataError for damaged ones that may not be left out."""
    from gpupipe.order import Shuffled

    order = Shuffled(len(source)).indices(settings.seed, 0, np.arange(len(source)))
    damaged: NDArray[np.bool_] = _shapes(source, order)[:, 0] == 0
    if damaged.all():
        raise DataError(f"all {len(source)} images are damaged, so nothing can be packed: see `gpupipe index`")
    if damaged.any() and not settings.skip_bad:
        some = np.sort(order[damaged])[:MOST_LISTED].tolist()
        listed = "; ".join(f"{source.location(index)} ({damage(source, index)})" for index in some)
        more = " and more" if damaged.sum() > MOST_LISTED else ""
        raise DataError(
            f"{damaged.sum()} of {len(source)} images are damaged: {listed}{more}; repair or remove them, "
            "or leave them out with --skip-bad (skip_bad=True)"
        )
    return order[~damaged]


def _shapes(source: Packable, indices: NDArray[np.int64]) -> NDArray[np.int32]:
    shapes = source.shapes(indices)
    assert shapes is not None, "the index of images has them"
    return shapes


def damage(source: Source, index: int) -> str:
    """What is wrong with a damaged image."""
    try:
        return explain_damage(source[index][0].data)
    except SampleError as error:
        return error.reason


def _cuts(source: Packable, order: NDArray[np.int64], settings: PackSettings) -> list[tuple[int, int]]:
    """First and last+1 position of each shard. Known before anything is written, so that a run can be resumed."""
    if settings.samples_per_shard is not None:
        starts = range(0, len(order), settings.samples_per_shard)
        return [(start, min(start + settings.samples_per_shard, len(order))) for start in starts]
    ends = np.cumsum(_expected_bytes(source, order, settings))
    cuts, start, before = [], 0, 0
    while start < len(order):
        end = max(start + 1, int(np.searchsorted(ends, before + settings.shard_size, side="right")))
        cuts.append((start, end))
        start, before = end, int(ends[end - 1])
    return cuts


def _expected_bytes(source: Packable, order: NDArray[np.int64], settings: PackSettings) -> NDArray[np.int64]:
    """Bytes of each sample in a shard; for images to be shrunk an estimate by their pixels."""
    sizes = source.sizes[order]
    if settings.max_size is not None:
        shorter = _shapes(source, order)[:, :2].min(axis=1)
        sizes = (sizes * np.minimum(1.0, settings.max_size / shorter) ** 2).astype(np.int64)
    padded: NDArray[np.int64] = -(-sizes // BLOCK) * BLOCK + 3 * BLOCK  # two headers and the label
    return padded


def _check_destination(source: Packable, folder: Path) -> None:
    if isinstance(source, FolderSource) and folder.resolve().is_relative_to(Path(source.root).resolve()):
        raise ConfigError(f"{folder} lies in the image folder {source.root} and would become a class: write elsewhere")
    if not (folder / PLAN_NAME).exists() and any(folder.glob("shard-*.tar")):
        raise ConfigError(f"{folder} has shards but no {PLAN_NAME}, so not of this tool: write to a new folder")


def _keep_plan(folder: Path, source: Packable, settings: PackSettings, shards: int) -> None:
    """Store what is being packed, or compare with what an earlier run stored. Raises ConfigError on a difference."""
    plan = {"version": VERSION, "source": source.fingerprint, "samples": len(source), **asdict(settings)}
    plan["shards"] = shards  # tells an interrupted packing from a whole one
    path = folder / PLAN_NAME
    if not path.exists():
        _write(path, json.dumps(plan, indent=1))
        return
    try:
        stored = json.loads(read_regular(path, MOST_PLAN_BYTES))
        changed = [(name, stored.get(name), value) for name, value in plan.items() if stored.get(name) != value]
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path} can't be read ({error}): write to a new folder") from error
    if changed:
        how = "; ".join(f"{name} {before!r}, now {value!r}" for name, before, value in changed)
        raise ConfigError(f"{folder} holds another packing ({how}): write to a new folder or remove it")


def _write(path: Path, text: str) -> None:
    with replacing(path, stale=0) as file:
        file.write(f"{text}\n".encode())


def _write_shards(
    source: Packable, settings: PackSettings, parts: list[NDArray[np.int64]], names: list[Path], workers: int
) -> None:
    pool = ThreadPoolExecutor(workers, thread_name_prefix="gpupipe-pack")  # Pillow releases the lock where it works
    try:
        with progress("packing", sum(map(len, parts))) as advance:
            for part, name in zip(parts, names, strict=True):
                if not name.exists():
                    _write_shard(name, pool.map(partial(_members, source, settings), part.tolist()))
                advance(len(part))
    finally:
        pool.shutdown(cancel_futures=True)


def _write_shard(path: Path, samples: Iterator[list[tuple[str, bytes]]]) -> None:
    with replacing(path, stale=0) as file, tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in chain.from_iterable(samples):
            member = tarfile.TarInfo(name)  # time, user, mode keep their fixed defaults: equal inputs give equal bytes
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def _members(source: Packable, settings: PackSettings, index: int) -> list[tuple[str, bytes]]:
    """Names and bytes of one sample in a shard, the label first; none of a damaged one that is left out."""
    height, width, orientation = _shapes(source, np.array([index]))[0].tolist()
    try:
        data = source[index][0].tobytes()
        if settings.max_size is not None and min(height, width) > settings.max_size:
            extension, encoded = "jpg", _shrunk(data, settings.max_size, settings.quality, orientation)
        else:
            extension, encoded = _copied(data)
    except Exception as error:  # SampleError, and nearly every other kind from Pillow for damaged files
        if settings.skip_bad:
            return []
        if isinstance(error, SampleError):
            raise
        reason = f"can't be decoded: {type(error).__name__}: {error}"
        remedy = "repair it, or leave it out with --skip-bad"
        raise SampleError(index, source.location(index), reason, remedy) from error
    stem = source.key(index).rpartition("/")[2].partition(".")[0]
    key = f"{index:08d}_{KEY.sub('_', stem)[:KEY_NAME_LENGTH]}"
    return [(f"{key}.cls", str(int(source.targets[index])).encode()), (f"{key}.{extension}", encoded)]


def _copied(data: bytes) -> tuple[str, bytes]:
    """Extension and bytes of an image that stays as it is; kinds that shards don't have become PNG, without loss."""
    from PIL import Image

    for magic, extension in ((b"\xff\xd8", "jpg"), (b"\x89PNG", "png")):
        if data.startswith(magic):
            return extension, data
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp", data
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        buffer = io.BytesIO()
        image.convert("RGB").save(buffer, "PNG")
        return "png", buffer.getvalue()


def _shrunk(data: bytes, shorter: int, quality: int, orientation: int) -> bytes:
    """An RGB JPEG whose shorter side is `shorter`, with the original's chroma subsampling and EXIF orientation."""
    from PIL import ExifTags, Image, JpegImagePlugin

    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        # -1 (gray, CMYK) and other formats: full chroma, as nothing says that it may go
        sampling = JpegImagePlugin.get_sampling(image) if image.format in ("JPEG", "MPO") else 0
        scale = shorter / min(image.size)
        size = (max(shorter, round(image.width * scale)), max(shorter, round(image.height * scale)))
        small = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    exif = Image.Exif()
    if orientation != 1:
        exif[ExifTags.Base.Orientation] = orientation
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=quality, subsampling=max(0, sampling), exif=exif)
    return buffer.getvalue()
