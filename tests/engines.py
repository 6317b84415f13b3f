"""Settings of a Loader by which each engine is tried."""

from __future__ import annotations

from typing import Any

import pytest

import gpupipe

ENGINES = [
    pytest.param({"engine": "torch", "num_workers": 0}, id="torch-0"),
    pytest.param({"engine": "torch", "num_workers": 2}, id="torch-2"),
    pytest.param({"engine": "dali", "num_workers": 1}, id="dali"),
    pytest.param(
        {"engine": "dali", "num_workers": 2, "decoders": gpupipe.Decoders(cpu_share=0.5, cpu_workers=1)},
        id="dali-shared",
    ),
]


def forked(workers: int) -> dict[str, Any]:
    """Workers that have what no pickle can carry, and the program's state; from Python 3.14 on others are the usual."""
    return {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
