"""bench/kernels.py with small batches on the CPU: contenders that can run there, and what is asked of their output."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from modules import bench_script

BENCH = Path(__file__).parent.parent / "bench"
SMALL = ("--batch-size", "4", "--size", "32", "--rounds", "2", "--milliseconds", "1")
SAME = ("gpupipe", "torch eager", "torchvision v2 (loop)")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return bench_script(monkeypatch, "kernels")


def table(folder: Path) -> dict[tuple[str, str], dict[str, str]]:
    with open(folder / "kernels.csv") as file:
        return {(row["work"], row["contender"]): row for row in csv.DictReader(file)}


def test_those_that_do_the_same_arithmetic(script: ModuleType, tmp_path: Path) -> None:
    from augmenters.work import works

    assert script.main([*SMALL, "--only", ",".join(SAME), "--out", str(tmp_path)]) == 0
    rows = table(tmp_path)
    assert {work for work, _ in rows} == {work.name for work in works(4, 32)}
    assert {work for (work, name), row in rows.items() if row["reason"]} == {"augment: SolarizeAdd alone"}
    for row in rows.values():
        if not row["reason"]:
            assert 0 < float(row["low_us"]) <= float(row["median_us"]) <= float(row["high_us"])
            assert float(row["images_per_s"]) == pytest.approx(4e6 / float(row["median_us"]))
    content = json.loads((tmp_path / "kernels.json").read_text())
    assert content["environment"]["settings"]["batch_size"] == 4
    assert len(content["rows"]) == len(rows)
    ours, eager = (float(rows["augment: RandAugment", name]["median_us"]) for name in ("gpupipe", "torch eager"))
    loop = float(rows["augment: RandAugment", "torchvision v2 (loop)"]["median_us"])
    (remark,) = (text for text in content["remarks"] if text.startswith("augment: RandAugment"))
    assert f": {min(eager, loop) / ours:.2f} times" in remark


@pytest.mark.parametrize(
    ("name", "library", "works", "lacking"),
    [
        ("torchvision v2 (batch)", "torchvision", "", {"augment: SolarizeAdd alone"}),
        ("kornia", "kornia", "", {"augment: SolarizeAdd alone", "finish: float32 NCHW + erase with noise"}),
        ("DALI", "nvidia.dali", "whole: bf,noise,Jitter,Blur,SolarizeAdd,TranslateX",
         {"finish: float32 NCHW + erase with noise"}),
    ],
)  # fmt: skip
def test_those_that_draw_for_themselves(
    script: ModuleType, tmp_path: Path, name: str, library: str, works: str, lacking: set[str]
) -> None:
    pytest.importorskip(library)
    assert (
        script.main([*SMALL, "--only", name, "--works", works.replace("bf", "bfloat16"), "--out", str(tmp_path)]) == 0
    )
    rows = {work: row for (work, contender), row in table(tmp_path).items() if contender == name}
    assert len(rows) > len(lacking)
    assert {work: row["reason"] for work, row in rows.items() if row["reason"] and work not in lacking} == {}
    assert {work for work, row in rows.items() if row["reason"]} == lacking


def test_wrong_output_is_told(script: ModuleType) -> None:
    from augmenters.work import works

    made = {work.name: work for work in works(4, 32)}
    ring = script.batches(4, 32, torch.device("cpu"))
    work = made["augment: Brightness alone"]
    truth = script.expected(work, ring[0])
    assert not torch.equal(truth, ring[0])
    assert script.problem(work, truth, truth, same=True) is None
    assert script.problem(work, truth.permute(0, 3, 1, 2).contiguous(), truth, same=True) is None
    assert "of the values are not those" in script.problem(work, ring[0], truth, same=True)
    assert script.problem(work, ring[0], truth, same=False) is None  # which may have drawn this
    assert "made (2, 32, 32, 3)" in script.problem(work, truth[:2], truth, same=False)
    assert "torch.float32, not torch.uint8" in script.problem(work, truth.float(), truth, same=True)
    assert "not in [-0.00, 1.00]" in script.problem(work, truth.float(), truth, same=False)
    work = made["finish: bfloat16 channels_last + MixUp"]
    truth = script.expected(work, ring[0])
    assert script.problem(work, truth, truth, same=True) is None
    assert "strides" in script.problem(work, truth.contiguous(), truth, same=True)
    unmixed = script.expected(replace(work, finish=replace(work.finish, mix=None)), ring[0])
    assert "of the values are not those" in script.problem(work, unmixed, truth, same=True)


def test_a_contender_without_its_library_is_named(
    script: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(script.CONTENDERS, "kornia", "no_such_library:Kornia")
    assert script.main([*SMALL, "--only", "gpupipe,kornia", "--works", "Invert"]) == 0
    assert "kornia is not measured: No module named 'no_such_library'" in capsys.readouterr().out
