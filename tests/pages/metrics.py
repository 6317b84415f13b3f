"""What docs/metrics.md takes for granted, two folders of images and free ports, and what it promises."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from images import write_folder

NEEDS = ("prometheus_client", "opentelemetry")


def setup(folder: Path, names: dict[str, Any]) -> Iterator[None]:
    from prometheus_client import REGISTRY

    write_folder(folder / "photos" / "train")
    write_folder(folder / "photos" / "val", classes=3, per_class=2)
    with socket.socket() as free, pytest.MonkeyPatch.context() as patch:
        free.bind(("", 0))
        patch.setenv("METRICS_PORT", str(free.getsockname()[1]))
        free.close()
        try:
            yield
        finally:
            if "server" in names:
                names["server"].shutdown()
                names["server"].server_close()
            if "collector" in names:
                REGISTRY.unregister(names["collector"])
            if "provider" in names:
                names["provider"].shutdown()


def check(folder: Path, names: dict[str, Any]) -> None:
    url = f"http://127.0.0.1:{names['port']}/metrics"
    text = urllib.request.urlopen(url, timeout=30).read().decode()
    assert names["train"].stats()["images"] == 36  # three epochs, the last for TensorBoard
    assert '\ngpupipe_images_total{loader="train",rank="0"} 36.0\n' in text
    assert '\ngpupipe_images_total{loader="val",rank="0"} 12.0\n' in text
    file = (folder / "textfile" / "gpupipe-0.prom").read_text()
    assert '\ngpupipe_images_total{loader="train",rank="0"} 24.0\n' in file
    assert set(names["instruments"]._loaders._loaders) == {"train", "val"}
    assert list((folder / "runs").glob("events.*"))
    assert len(list((folder / "runs").iterdir())) == 1
    shown = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    for kind in ("HELP", "TYPE"):
        (line,) = [line for line in text.splitlines() if line.startswith(f"# {kind} gpupipe_images_total ")]
        assert f"\n{line}\n" in shown
