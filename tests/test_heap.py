"""Memory that a worker has freed stays its own."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import gpupipe

PAGES = 100 * 110_000 // os.sysconf("SC_PAGE_SIZE")


def faults() -> int:
    """Pages that the system had to give this process for arrays like a batch's, after the first time."""

    def batch() -> None:
        arrays = [np.ones(110_000, np.uint8) for _ in range(100)]  # each is below the threshold of glibc's mmap
        del arrays

    batch()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        batch()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 10


class Faults(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return faults()


def test_a_worker_does_not_ask_the_system_for_the_memory_of_each_batch() -> None:
    loader = gpupipe.from_dataloader(torch.utils.data.DataLoader(Faults(), 1, num_workers=1))
    assert all(int(found) < PAGES // 10 for found in loader)


CODE = "import sys; sys.path.insert(0, {folder!r}); {asking}; import test_heap; print(test_heap.faults())"
ASKING = "from gpupipe.host.heap import keep_freed; keep_freed()"


def test_users_settings_hold() -> None:
    def found(asking: str, **variables: str) -> int:
        code = CODE.format(folder=str(Path(__file__).parent), asking=asking)
        ran = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | variables, capture_output=True, text=True, check=True
        )
        return int(ran.stdout)

    if found("pass", MALLOC_TRIM_THRESHOLD_="65536") < PAGES // 2:
        pytest.skip("this C library keeps it anyhow")
    assert found(ASKING) < PAGES // 10
    assert found(ASKING, MALLOC_TRIM_THRESHOLD_="65536") > PAGES // 2
    assert found(ASKING, GLIBC_TUNABLES="glibc.malloc.trim_threshold=65536") > PAGES // 2
