"""Decode everything once, ahead of training, and keep what was found in the index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from gpupipe.batch import Job
from gpupipe.decode.choose import PREFETCH, EngineSettings, made_by, open_engine
from gpupipe.decode.costs import check_limits
from gpupipe.decode.seeding import worker_seeds
from gpupipe.errors import REPAIR, DataError, SampleError, SkippedSampleError
from gpupipe.host.progress import progress
from gpupipe.host.system import default_workers
from gpupipe.recipe import Recipe, ResizeCenterCrop
from gpupipe.recipe.fields import check_fields
from gpupipe.sources import Source
from gpupipe.sources.indexed import IndexedSource
from gpupipe.sources.storage import open_index, with_verdict, write_index

__all__ = ["keep_verdict", "verify"]

# Whole images, so that all of a file is decoded; small ones, so that nothing else takes time.
RECIPE = Recipe((ResizeCenterCrop(32, 32),), dtype="uint8")
BATCH = 64
PATIENCE = 300.0  # seconds for a batch, as of a Loader


def verify(source: Source, workers: int | None = None) -> list[SampleError]:
    """What is bad of a source, by its samples' numbers, found by worker processes as a Loader's would find it.

    All fields are read and their images and masks decoded; an index's own verdict is dropped first. workers: processes;
    None: as many as a Loader has. Raises ConfigError for fields that make no batches.
    """
    if isinstance(source, IndexedSource) and source.verdict:
        keep_verdict(source, [])
    check_fields(RECIPE, source.fields)
    number = default_workers() if workers is None else workers
    settings = EngineSettings(
        "torch", torch.device("cpu"), BATCH, number, PREFETCH["torch"], False, False, PATIENCE, None
    )
    engine = open_engine(made_by(settings, source, (RECIPE,), None), settings, worker_seeds(0, 0))
    bad: list[SampleError] = []
    try:
        with progress("decoding", len(source)) as advance:
            for batch in engine.stream(_jobs(len(source))):
                bad += [batch.failures[row] for row in sorted(batch.failures)]
                advance(len(batch.job))
    finally:
        engine.close()
    return [error for error in bad if not isinstance(error, SkippedSampleError)]


def _jobs(count: int) -> Iterator[Job]:
    limits = check_limits(None)
    for step, start in enumerate(range(0, count, BATCH)):
        indices = np.arange(start, min(start + BATCH, count))
        yield Job(seed=0, epoch=0, positions=indices, indices=indices, step=step, limits=limits)


def keep_verdict(source: IndexedSource, bad: list[SampleError]) -> None:
    """Write into the index of a source which of its samples are bad, so that loaders know without reading them.

    Only what a change of the file mends is kept: not what can't be read today, nor what another limit would allow.
    Raises DataError where the index can't be written, or describes other data by now.
    """
    kept = {error.index: error.reason for error in bad if error.remedy == REPAIR}
    path = Path(source.index_path)
    try:
        index = open_index(path)
        if index.fingerprint != source.fingerprint:
            raise ValueError("the data were indexed again meanwhile")
        write_index(path, index.fingerprint, index.info, with_verdict(index.arrays, kept), index.folder)
    except (OSError, ValueError) as error:
        raise DataError(f"the verdict can't be kept in the index {path}: {error}; index and verify again") from error
    source.verdict = kept
