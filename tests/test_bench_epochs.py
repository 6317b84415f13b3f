"""bench/epochs.py: whole epochs of each loader, and the table; without contenders' processes."""

from __future__ import annotations

import csv
import importlib
import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest
from images import write_folder

from gpupipe.tools.benchmark.contenders import load
from gpupipe.tools.benchmark.measurement import BenchSettings, Result, Round

BENCH = Path(__file__).parent.parent / "bench"


@pytest.fixture(autouse=True)
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("epochs")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("epochs") / "data", classes=3, per_class=4)


@pytest.mark.parametrize("name", ["torch", "dali", "persistent", "plain"])
def test_epochs_follow_each_other(script: ModuleType, data: Path, name: str) -> None:
    settings = BenchSettings(str(data), batch_size=2, size=16, workers=1, threads=1, dtype="uint8")
    way = load(f"epoch_peers:{script.WAYS[name].__name__}?batches=3")
    assert way.cycle(settings) == 3
    stream = way.open(settings)
    seen = Counter()
    for images, labels in islice(stream, 4 * 3):  # of 6 samples each: two passes over 12
        assert images.shape == (2, 3, 16, 16)
        seen.update(labels.tolist())
    stream.close()
    assert seen == {0: 8, 1: 8, 2: 8}


def test_an_endless_epoch_counts_turns_of_the_workers(script: ModuleType) -> None:
    assert script.GpupipeTorch(script.ENDLESS).cycle(BenchSettings("", workers=2)) == 2


def test_table(script: ModuleType, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(references: list[str], settings: BenchSettings, *_: object) -> list[Result]:
        results = []
        for reference in references:
            way = load(reference)
            rate = 50 if way.batches == 3 else 100
            reason = "no reason" if way.name == "torchvision v2, DataLoader" else None
            rounds = [] if reason else [Round(rate * n, n, 1.0) for n in (1, 2, 3)]
            results.append(Result(reference, reason, rounds=rounds))
        return results

    monkeypatch.setattr("in_turn.measure", measure)
    command = [str(data), "--out", str(tmp_path), "--only", "torch,plain", "--batches", "3,7"]
    assert script.main(command) == 0
    text = (tmp_path / "results.md").read_text()
    assert "| gpupipe, torch engine | 50 (50 - 50): 50.0% | 100 (100 - 100): 100.0% | 100 (100 - 100) |" in text
    assert "- torchvision v2, DataLoader, epochs of 3: no reason" in text
    with open(tmp_path / "epochs.csv") as file:
        assert [row["to_steady"] for row in csv.DictReader(file)] == ["0.5", "1.0", "1.0", "", "", ""]
    content = json.loads((tmp_path / "epochs.json").read_text())
    assert content["environment"]["settings"]["dtype"] == "uint8"
    assert len(content["results"]["gpupipe, torch engine"]) == 3
    assert script.main([*command, "--only", "torch,none"]) == 1
