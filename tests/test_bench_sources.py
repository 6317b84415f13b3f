"""bench/sources.py: every kind is the folder's images to gpupipe and to the other; and the table."""

from __future__ import annotations

import csv
import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest
import torch
from images import write_folder

from gpupipe.tools.benchmark.contenders import load
from gpupipe.tools.benchmark.measurement import BenchSettings, Result, Round

BENCH = Path(__file__).parent.parent / "bench"


def kinds() -> list[str]:
    sys.path.insert(0, str(BENCH))
    try:
        from source_peers.kinds import KINDS
    finally:
        sys.path.remove(str(BENCH))
    return list(KINDS)


@pytest.fixture(autouse=True)
def script(monkeypatch: pytest.MonkeyPatch, data: Path) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setenv("GPUPIPE_PEERS", str(data.parent / "peers"))
    return importlib.import_module("sources")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("sources") / "data", classes=3, per_class=4)


@pytest.fixture
def settings(data: Path) -> BenchSettings:
    return BenchSettings(str(data), batch_size=4, size=64, workers=1, threads=1, dtype="uint8")


DATASETS = ("parquet", "parquet-snappy", "parquet-zstd", "hugging-face")  # whose others are of that library
MARKED = [pytest.param(kind, marks=[pytest.mark.trainers("datasets")] * (kind in DATASETS)) for kind in kinds()]


@pytest.mark.parametrize("kind", MARKED)
def test_both_have_the_images_of_the_folder(settings: BenchSettings, kind: str) -> None:
    from source_peers.agreement import check
    from source_peers.kinds import KINDS

    check(kind, settings)
    for reference in (f"source_peers.ours:Ours?kind={kind}", KINDS[kind].rival[1]):
        contender = load(reference)
        contender.prepare(settings)
        stream = contender.open(settings)
        seen = Counter()
        for images, labels in islice(stream, 2 * 3):  # two passes over 12 samples
            assert images.shape == (4, 3, 64, 64)
            assert images.dtype == torch.uint8
            seen.update(labels.tolist())
        stream.close()
        assert seen == {0: 8, 1: 8, 2: 8} or not getattr(contender, "exact_passes", True)


def test_a_difference_is_an_error(settings: BenchSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    from source_peers import agreement, rivals

    original = rivals.InTurn.__iter__
    monkeypatch.setattr(rivals.InTurn, "__iter__", lambda self: ((255 - image, n) for image, n in original(self)))
    with pytest.raises(agreement.Disagreement, match="tar, webdataset: sample 0 has other pixels"):
        agreement.check("tar", settings)
    monkeypatch.setattr(rivals.InTurn, "__iter__", lambda self: ((image, 7) for image, _ in original(self)))
    with pytest.raises(agreement.Disagreement, match="sample 0 has the label 7, not 0"):
        agreement.check("tar", settings)
    batches = agreement._batches
    monkeypatch.setattr(
        agreement, "_batches", lambda source, settings: batches(source, settings)[:: 1 if source.classes else -1]
    )
    with pytest.raises(agreement.Disagreement, match="tar: batch 0 is not that of the folder"):
        agreement.check("tar", settings)


def test_table(script: ModuleType, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measure(references: list[str], settings: BenchSettings, *_: object) -> list[Result]:
        asked.append((references, len(list(Path(settings.data).glob("*/*.jpg")))))
        rates = [1000, 950, 0]
        rounds = [[Round(rate * n, n, 1.0) for n in (1, 2, 3)] if rate else [] for rate in rates]
        return [
            Result(reference, None if some else "it broke", rounds=some)
            for reference, some in zip(references, rounds, strict=True)
        ]

    monkeypatch.setattr("in_turn.measure", measure)
    command = [str(data), "--out", str(tmp_path), "--size", "64", "--only", "tar", "--copies", "2", "--batch-size", "4"]
    assert script.main(command) == 0
    ours = "source_peers.ours:Ours?kind="
    assert asked == [([f"{ours}folder", f"{ours}tar", "source_peers.rivals:Tar"], 24)]
    text = (tmp_path / "results.md").read_text()
    assert "| tar shards | 950 (950 - 950) | 95.0% | webdataset: - | - | 0.50 / 0.53 / - |" in text
    assert "- tar shards, webdataset: it broke" in text
    with open(tmp_path / "sources.csv") as file:
        assert [row["to_folder"] for row in csv.DictReader(file)] == ["1.0", "0.95", ""]
    assert script.main([*command, "--only", "none"]) == 1
