"""The sample set that `gpupipe bench` runs on without data of its own: made JPEGs that cost what ImageNet's cost."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from gpupipe.errors import ConfigError
from gpupipe.host.cache import cache_folder
from gpupipe.host.progress import progress
from gpupipe.host.system import usable_cpus
from gpupipe.tools.benchmark.imagenet_like import ImageSpec, imagenet_like_specs, table_parameters
from gpupipe.tools.benchmark.synthesis import Look, NoiseBank, fit_jpeg

__all__ = ["CLASSES", "make_folder", "sample_set"]

CLASSES = 16
SEED = 5  # of 40 tried, the one whose 512 images come nearest to ImageNet's mean bytes and sides
VERSION = 1  # raise it when the code draws differently from the same parameters


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
    parameters = {"version": VERSION, "seed": SEED, "look": asdict(Look()), "table": table_parameters()}
    return hashlib.sha256(json.dumps(parameters, sort_keys=True).encode()).hexdigest()[:8]


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

    def write_one(job: tuple[int, ImageSpec]) -> None:
        index, spec = job
        data = fit_jpeg(bank, spec, seed=(SEED, index))
        (root / f"class_{index % CLASSES:02d}" / f"{index:05d}.jpg").write_bytes(data)

    # NumPy and Pillow release the GIL.
    with ThreadPoolExecutor(usable_cpus()) as pool, progress("Making the sample set (once)", count) as advance:
        for _ in pool.map(write_one, enumerate(specs)):
            advance(1)
