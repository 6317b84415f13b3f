"""bench/video.py: all make the same clips, a tiny run, and the table."""

from __future__ import annotations

import csv
import importlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from images import encode, picture, write_folder

BENCH = Path(__file__).parent.parent / "bench"
# Seconds in which each loader has some hundredths of CPU time, which is how the system counts it.
TINY = ["--size", "32", "--rounds", "2", "--seconds", "0.2", "--workers", "0", "--batch-size", "16"]


@pytest.fixture(autouse=True)
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setenv("GPUPIPE_PEERS", str(tmp_path / "peers"))
    return importlib.import_module("video")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("videos")
    for video in range(3):
        folder = root / "frames" / f"class{video % 2}" / f"{video}"
        folder.mkdir(parents=True)
        for frame in range(66):
            (folder / f"img_{frame:03d}.jpg").write_bytes(encode(picture(72, 90, 7 * video + frame % 5)))
    return root


def test_a_tiny_run(script: ModuleType, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main([str(root), "--out", str(tmp_path), "--only", "frames", *TINY]) == 0
    with open(tmp_path / "video.csv") as file:
        table = list(csv.DictReader(file))
    loaders = ["gpupipe", "Pillow + torchvision v2", "torchvision's decoder + v2"]
    assert [row["loader"] for row in table] == loaders
    assert all(float(row["frames_per_s"]) > 0 and float(row["apart"]) <= 1 for row in table)
    assert float(table[0]["gpupipe_to_it"]) == float(table[0]["cpu_to_gpupipe"]) == 1
    assert "| JPEG frames in folders | gpupipe |" in capsys.readouterr().out
    assert script.main([str(root), "--out", str(tmp_path), "--only", "gifs"]) == 1


def test_batches_are_alike(script: ModuleType, root: Path) -> None:
    from video_peers.plain import stream

    with script.ours(root / "frames", 32, 2, 0) as loader:
        one = next(iter(loader))
    other = next(stream(root / "frames", "pillow", 32, 2, 0))
    assert one["video"].shape == other[0].shape == (2, 8, 3, 32, 32)
    assert one["video"].dtype == other[0].dtype == torch.float32
    assert (one["label"].dtype, one["label"].shape) == (other[1].dtype, other[1].shape)


def test_other_clips_are_an_error(script: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from video_peers import agreement

    plain = agreement.read_clip
    monkeypatch.setattr(agreement, "read_clip", lambda *given: plain(*given).flip(-1))
    with pytest.raises(agreement.Disagreement, match=r"pillow: clips differ by .* gray levels, more than 1"):
        agreement.apart(root / "frames", "pillow", 32)


@pytest.mark.trainers("torchcodec")
def test_videos_are_made_once(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        importlib.import_module("torchcodec.decoders")
    except RuntimeError as error:
        pytest.skip(f"torchcodec can't be loaded: {str(error).splitlines()[0]}")
    from video_peers import data

    pictures = write_folder(tmp_path / "pictures", classes=1, per_class=2)
    monkeypatch.setattr(data, "sample_set", lambda: pictures)
    root = data.made(videos=2, frames=66)
    assert data.made(videos=2, frames=66) == root
    assert len(list((root / "frames").glob("*/*/*.jpg"))) == 2 * 66
    assert script.main([str(root), "--out", str(tmp_path), "--only", "files", *TINY]) == 0


@pytest.mark.trainers("torchcodec")
@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs the command ffmpeg")
def test_dalis_decoder_gives_the_frames_that_are_asked_for_and_others_too(tmp_path: Path) -> None:
    graph = importlib.import_module("video_on_graph")
    assert graph.main(["--mutants", "1", "--out", str(tmp_path)]) == 0
    content = json.loads((tmp_path / "video_on_graph.json").read_text())
    *good, smaller, wider = content["files"]
    assert {row["file"] for row in good} >= {"vp9.webm", "vp8.webm", "mjpeg.avi"}
    if content["environment"]["settings"]["device"] == "cpu":  # a GPU may lack a codec
        assert all(row["right"] and 0 < row["mean"] < 12 for row in good)
        assert smaller["outcomes"] == {"torchcodec refuses": 1}  # which keeps it off the graph
        assert set(wider["outcomes"]) <= {"dies", "torchcodec refuses"}  # as does this: it writes beyond its memory
    assert all(sum(row["outcomes"].values()) <= 1 for row in content["files"])
    assert "| mjpeg.avi | all |" in (tmp_path / "video_on_graph.md").read_text()
