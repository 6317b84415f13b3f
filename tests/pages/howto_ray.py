"""Photographs for the two workers of docs/howto/ray.md, and what it promises of their checkpoints and of packing."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from images import write_folder

import gpupipe
from gpupipe.tools import cli

NEEDS = ("ray",)


def setup(folder: Path, names: dict[str, Any]) -> Iterator[None]:
    write_folder(folder / "photos", 3, 14, ((40, 50),))
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ray") as short:  # as sockets lie in it
        settings = {
            "RAY_AUTH_TOKEN": secrets.token_hex(32),  # else one is written into the home folder
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": short,
            "RAY_memory_monitor_refresh_ms": "0",
        }
        with mock.patch.dict(os.environ, settings):
            yield


def check(folder: Path, names: dict[str, Any]) -> None:
    assert re.search(r"'step': 3\b", names["printed"])
    checkpoints = sorted((folder / "runs/photos").rglob("state.pt"))
    assert len(checkpoints) == 2  # of steps 2 and 4 of five, by one of the two workers
    saved = torch.load(checkpoints[-1], map_location="cpu")
    assert saved.keys() == {"model", "optimizer", "loader"}
    options: dict[str, Any] = {"shuffle": True, "drop_last": True, "num_workers": 0, "device": "cpu", "engine": "torch"}
    with gpupipe.Loader("photos", gpupipe.imagenet_train(32), 8, **options) as loader:
        whole = [labels.tolist() for _, labels in loader]
        loader.load_state_dict(saved["loader"])
        assert [labels.tolist() for _, labels in loader] == whole[4:]
    _commands()


def _commands() -> None:
    """Those that want a cluster have options that exist."""
    page = (Path(__file__).parents[2] / "docs/howto/ray.md").read_text()
    (block,) = re.findall(r"^```console\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    found = [cli.parser().parse_args(shlex.split(line)[1:]) for line in block.splitlines()]
    assert [(one.command, one.on) for one in found] == [("pack", "ray"), ("index", "ray")]
