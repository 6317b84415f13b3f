"""bench/fields.py: both ways make the same of each case's samples, and the table; without contenders' processes."""

from __future__ import annotations

import csv
import importlib
import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from images import write_folder

from gpupipe.tools.benchmark.contenders import load
from gpupipe.tools.benchmark.measurement import BenchSettings, Result, Round

BENCH = Path(__file__).parent.parent / "bench"
CASES = ("label", "mask", "boxes", "cameras", "arrays")


@pytest.fixture(autouse=True)
def script(monkeypatch: pytest.MonkeyPatch, data: Path) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setenv("GPUPIPE_PEERS", str(data.parent / "peers"))
    return importlib.import_module("fields")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("fields") / "data", classes=3, per_class=4)


@pytest.fixture
def settings(data: Path) -> BenchSettings:
    return BenchSettings(str(data), batch_size=4, size=64, workers=1, threads=1, dtype="uint8")


@pytest.mark.parametrize("case", CASES)
def test_both_make_the_same(settings: BenchSettings, case: str) -> None:
    from field_peers.agreement import compare

    found = compare(case, settings)
    assert 0 < found.mean < 0.1  # of two decoders and resizes
    assert (found.boxes is None) == (case != "boxes")


@pytest.mark.parametrize(
    ("case", "name", "change", "words"),
    [
        ("label", "image", lambda image: image.flip(-1), "image \\+ label: .* is further than mean 0.1"),
        ("mask", "mask", lambda mask: mask.roll(1, 0), "mask of sample 0 differs"),
        ("boxes", "boxes", lambda boxes: boxes + 0.01, "boxes.*is further"),
        ("boxes", "caption", lambda text: text + " and more", "caption of sample 0 differs"),
        ("cameras", "second", lambda image: 255 - image, "two cameras: .* is further"),
        ("label", "label", lambda label: label + 1, "label of sample 0 differs"),
    ],
)
def test_a_difference_is_an_error(
    settings: BenchSettings, monkeypatch: pytest.MonkeyPatch, case: str, name: str, change: Any, words: str
) -> None:
    from field_peers import agreement

    original = agreement._by_torchvision

    def changed(*arguments: Any) -> list[dict[str, Any]]:
        samples = original(*arguments)
        samples[0][name] = change(samples[0][name])
        return samples

    monkeypatch.setattr(agreement, "_by_torchvision", changed)
    with pytest.raises(agreement.Disagreement, match=words):
        agreement.compare(case, settings)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", ["gpupipe", "torchvision v2, DataLoader"])
def test_streams(script: ModuleType, settings: BenchSettings, case: str, way: str) -> None:
    contender = load(script.WAYS[way] + case)
    contender.prepare(settings)
    stream = contender.open(settings)
    seen = Counter()
    for images, labels in islice(stream, 2 * 3):  # two passes over 12 samples
        assert images.shape == (4, 3, 64, 64)
        assert images.dtype == torch.uint8
        assert images.is_contiguous()
        seen.update(labels.tolist())
    stream.close()
    assert seen == {0: 8, 1: 8, 2: 8}


def test_more_images_than_are_stored_decoded_are_refused(
    settings: BenchSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from field_peers import data

    monkeypatch.setattr(data, "MOST", 11)
    with pytest.raises(ValueError, match="has 12 images, but at most 11 are stored decoded"):
        data.prepare(settings.data)


def test_table(script: ModuleType, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(references: list[str], settings: BenchSettings, *_: object) -> list[Result]:
        rates = [300, 0 if references[0].endswith("mask") else 100]
        rounds = [[Round(rate * n, n, 1.0) for n in (1, 2, 3)] if rate else [] for rate in rates]
        return [
            Result(reference, None if some else "it broke", rounds=some)
            for reference, some in zip(references, rounds, strict=True)
        ]

    monkeypatch.setattr("in_turn.measure", measure)
    command = [str(data), "--out", str(tmp_path), "--size", "64", "--only", "boxes,mask"]
    assert script.main(command) == 0
    text = (tmp_path / "results.md").read_text()
    assert "| image + boxes + caption | 300 (300 - 300) | 100 (100 - 100) | 3.00 |" in text
    assert "| image + mask | 300 (300 - 300) | - | - |" in text
    assert "- image + mask, torchvision v2, DataLoader: it broke" in text
    assert "- image + boxes + caption: images differ by 0.0" in text
    with open(tmp_path / "fields.csv") as file:
        assert [row["to_torchvision"] for row in csv.DictReader(file)] == ["3.0", "1.0", "", ""]
    content = json.loads((tmp_path / "fields.json").read_text())
    assert content["cases"]["boxes"]["agreement"]["boxes"] < 1e-3
    assert len(content["cases"]["boxes"]["results"][0]["rounds"]) == 3
    assert script.main([*command, "--only", "none"]) == 1
