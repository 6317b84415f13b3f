"""Where videos lie: folders, shards, lists, datasets; video files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images import picture
from tars import write_tar
from videos import EVAL, EVEN, FIELDS, batches, numbered, told, write_videos

import gpupipe
from gpupipe import Frames, Scalar
from gpupipe.sources import open_source
from gpupipe.sources.videos.lists import in_list


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_videos(tmp_path_factory.mktemp("videos"))


def first_clips(data: Any, **fields: Any) -> dict[str, list[tuple[int, int]]]:
    """By key what the first clip of each video tells."""
    made = batches(data, fields={**FIELDS, "video": EVEN} | fields, shuffle=False, batch_size=1)
    return {batch["key"][0]: told(batch["video"][0]) for batch in made}


def members(root: Path) -> list[tuple[str, bytes]]:
    files = sorted(path for path in root.rglob("*.jpg"))
    return [(str(path.relative_to(root)), path.read_bytes()) for path in reversed(files)]


def test_frames_in_a_tar_of_the_folders_are_those_of_the_folders(videos, tmp_path):
    parts = members(videos)
    write_tar(tmp_path / "0.tar", [part for part in parts if "class0" in part[0]])
    write_tar(tmp_path / "1.tar", [part for part in parts if "class1" in part[0]])
    assert dict(sorted(first_clips(tmp_path).items())) == first_clips(videos)
    source = open_source(str(tmp_path / "{0,1}.tar"), fields=FIELDS)
    assert (source.classes, source.targets.tolist()) == (["class0", "class1"], [0, 0, 0, 1, 1, 1])
    gpupipe.check_source(source)
    assert "video 'class1/video2' in shard" in source.location(3)


def test_frames_of_a_key_are_a_video_as_in_webdataset(tmp_path):
    frames = [(f"v{video}.{number:03d}.jpg", numbered(video, number)) for video in range(2) for number in range(12)]
    labels = [(f"v{video}.cls", str(7 + video).encode()) for video in range(2)]
    write_tar(tmp_path / "a.tar", sorted(frames + labels))
    assert first_clips(tmp_path / "a.tar") == {
        f"v{video}": [(video, number) for number in (1, 4, 7, 10)] for video in range(2)
    }
    assert open_source(tmp_path / "a.tar", fields=FIELDS).targets.tolist() == [7, 8]


def test_a_shard_that_is_changed_later_has_bad_videos(videos, tmp_path):
    write_tar(tmp_path / "a.tar", members(videos))
    source = open_source(tmp_path / "a.tar", fields=FIELDS)
    data = bytearray((tmp_path / "a.tar").read_bytes())
    (tmp_path / "a.tar").write_bytes(data[: len(data) // 2])
    with pytest.raises(gpupipe.SampleError, match=r"the shard has .* bytes where the index says"):
        next(iter(gpupipe.Loader(source, EVAL, 2, num_workers=0, engine="torch")))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([("a.txt", b"")], r"no videos in .*a\.tar: no images"),
        ([("v.1.jpg", b"x"), ("v.cls", b"one")], "member 'v.cls' of shard .* holds no class number"),
        (
            [("v.1.jpg", b"x"), ("w.1.jpg", b"x"), ("v.cls", b"1")],
            r"video 'w' has no member 'w\.cls' with its class number",
        ),
        ([("v.1.jpg", b"x")], "video 'v' lies in no class folder, and has no .cls member"),
        ([("v.1.jpg", b"x"), ("v.mp4", b"x"), ("v.cls", b"1")], "video 'v' in shard .* is frames and a file"),
        ([("c/v/1.jpg", b"x"), ("c/v/1.jpg", b"x")], r"shard .* has '1\.jpg' twice, at offset \d+ again"),
    ],
)
def test_unfit_shards_are_refused(tmp_path, parts, message):
    with pytest.raises(gpupipe.DataError, match=message):
        open_source(write_tar(tmp_path / "a.tar", parts), fields=FIELDS)


def test_a_video_in_two_shards_is_refused(tmp_path):
    for name in "ab":
        write_tar(tmp_path / f"{name}.tar", [(f"c/v/{name}.jpg", numbered(0, 0))])
    with pytest.raises(gpupipe.DataError, match="video 'c/v' is in two shards"):
        open_source(tmp_path, fields=FIELDS)


def test_a_list_of_tsns_has_the_number_of_frames(videos, tmp_path):
    (tmp_path / "list.txt").write_text("class1/video0 12 5\nclass0/video2 16 3\n")
    made = first_clips(tmp_path / "list.txt", video=Frames(clip=(3, None), sampling="even", folder=str(videos)))
    assert made == {"class1/video0": [(3, 2), (3, 6), (3, 10)], "class0/video2": [(2, 2), (2, 8), (2, 13)]}
    (tmp_path / "long.txt").write_text("class1/video0 15 5\n")
    with pytest.raises(gpupipe.SampleError, match="its folder has 14 frames where the list says 15"):
        first_clips(tmp_path / "long.txt", video=Frames(clip=(3, None), folder=str(videos)))


@pytest.mark.parametrize("separator", [" ", ","])
def test_a_list_of_paths_and_labels(videos, tmp_path, separator):
    path = videos / "list.csv"
    path.write_text(f"class1/video0{separator}5\nclass0/video2{separator}3\n")
    source = open_source(path, fields=FIELDS)
    assert (source.targets.tolist(), source.key(1)) == ([5, 3], "class0/video2")
    assert first_clips(path)["class1/video0"] == [(3, number) for number in (2, 5, 8, 11)]
    path.write_text(f"class1/video0{separator}5\nclass0/gone{separator}3\n")
    field = Frames(clip=(4, 3), missing="skip")
    loader = gpupipe.Loader(path, EVAL, 1, num_workers=0, engine="torch", fields={**FIELDS, "video": field})
    assert [batch["label"].tolist() for batch in loader] == [[5], [5]]
    assert "no video file and no folder of this name" in str(loader.bad_samples[0])
    path.write_text("class1/video0\n")
    with pytest.raises(gpupipe.DataError, match=r"line 1 of the list .* is 'class1/video0'; each is a path"):
        open_source(path, fields=FIELDS)
    path.unlink()


def test_kinetics_own_list(videos, tmp_path):
    root = tmp_path / "clips" / "dancing ballet"
    root.mkdir(parents=True)
    (root / "-abc_000012_000022").symlink_to(videos / "class1" / "video0")
    (tmp_path / "clips" / "xyz").symlink_to(videos / "class0" / "video2")
    lines = ["label,youtube_id,time_start,time_end,split", "zumba,xyz,0,10,train"]
    lines += ["dancing ballet,-abc,12,22,train", "zumba,gone,1,11,train"]
    (tmp_path / "train.csv").write_text("\n".join(lines))
    field = Frames(clip=(4, 3), sampling="even", folder=str(tmp_path / "clips"), missing="skip")
    source = open_source(tmp_path / "train.csv", fields={**FIELDS, "video": field})
    assert (source.classes, source.targets.tolist()) == (["dancing ballet", "zumba"], [1, 0, 1])
    loader = gpupipe.Loader(source, EVAL, 3, num_workers=0, engine="torch", shuffle=False)
    (batch,) = loader
    assert [told(clip)[0][0] for clip in batch["video"]][:2] == [2, 3]
    assert loader.bad_samples[0].index == 2
    assert "no video file and no folder of this name" in str(loader.bad_samples[0])
    with pytest.raises(gpupipe.SampleError, match="has no 'video'"):
        first_clips(tmp_path / "train.csv", video=Frames(clip=(4, 3), folder=str(tmp_path / "clips")))


def test_other_files_in_the_folders_of_a_kinetics_list_hide_no_videos(tmp_path):
    names = [f"video{number:02}" for number in range(20)]
    (tmp_path / "clips" / "zumba").mkdir(parents=True)
    (tmp_path / "clips" / "cover.jpg").touch()
    for number, name in enumerate(names):
        (tmp_path / "clips" / "zumba" / f"{name}.mp4").touch()
        (tmp_path / "clips" / "zumba" / f"{number}.jpg").touch()
    rows = [f"zumba,{name},0,10,train" for name in names]
    (tmp_path / "train.csv").write_text("\n".join(["label,youtube_id,time_start,time_end,split", *rows]))
    listed = in_list(str(tmp_path / "train.csv"), str(tmp_path / "clips"), True)
    assert listed.paths == [f"zumba/{name}.mp4" for name in names]


def test_of_two_files_for_a_row_of_a_kinetics_list_the_first_by_path_is_taken(tmp_path, monkeypatch):
    for path in ("zumba/abc.mp4", "ballet/abc.webm", "ballet/abc.mp4", "ballet/xyz.mkv", "xyz/img_00001.jpg"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / "train.csv").write_text("youtube_id,time_start,time_end\nabc,0,10\nxyz,0,10\n")
    looked: list[str] = []
    scandir = os.scandir
    for turn in (1, -1):  # whatever the order is in which the file system has them

        class Turned(list):
            __enter__, __exit__ = (lambda self: self), (lambda *_: None)

        monkeypatch.setattr(os, "scandir", lambda path, t=turn: looked.append(path) or Turned(list(scandir(path))[::t]))
        assert in_list(str(tmp_path / "train.csv"), None, False).paths == ["ballet/abc.mp4", "ballet/xyz.mkv"]
    assert str(tmp_path / "xyz") not in looked  # it is a video of the list, of many frames


def test_a_pattern_chooses_the_frames(tmp_path):
    folder = write_videos(tmp_path, classes=1, videos=1) / "class0" / "video0"
    for number in range(14):
        (folder / f"flow_{number}.jpg").write_bytes(numbered(4, number))
    assert first_clips(tmp_path, video=Frames(clip=(4, 3), sampling="even", pattern="img_*.jpg")) == {
        "class0/video0": [(0, number) for number in (2, 5, 8, 11)]
    }
    with pytest.raises(gpupipe.SampleError, match=r"its folder has no files 'depth_\*', but flow_0"):
        first_clips(tmp_path, video=Frames(clip=(4, 3), pattern="depth_*"))


def test_only_frames_that_are_drawn_are_read(videos, monkeypatch):
    from gpupipe.sources.videos import frames

    read: list[str] = []
    plain = frames.read_file
    monkeypatch.setattr(frames, "read_file", lambda path: read.append(path) or plain(path))
    first_clips(videos)
    assert len(read) == 4 * 6


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"video": Frames(), "caption": gpupipe.Text()}, "'caption' is Text.*of videos there are"),
        ({"video": Frames(), "label": Scalar("cls")}, "'label' is Scalar"),
    ],
)
def test_fields_that_videos_do_not_have_are_refused(videos, fields, message):
    with pytest.raises(gpupipe.ConfigError, match=message):
        open_source(videos, fields=fields)


def test_data_that_holds_no_videos_is_refused(videos, tmp_path):
    for data, message in {
        "https://example.org/a.tar": "is a URL, and videos are read from local files",
        str(next(videos.rglob("*.jpg"))): "is no data of videos: pass a folder of videos by class",
    }.items():
        with pytest.raises(gpupipe.ConfigError, match=message):
            open_source(data, fields=FIELDS)
    for data, message in {
        tmp_path / "gone": "there is no .*gone",
        tmp_path: "no class folders in",
        videos / "class0": "is an image where videos belong",
    }.items():
        with pytest.raises(gpupipe.DataError, match=message):
            open_source(data, fields=FIELDS)
    source = open_source(videos / "class0", fields={"video": EVEN})
    assert [source.key(index) for index in range(3)] == ["video0", "video1", "video2"]
    source = open_source(videos, fields={"video": EVEN})
    assert (len(source), source.key(3), source.classes) == (6, "class1/video0", None)
    gpupipe.check_source(open_source(videos, fields=FIELDS))


def test_datasets_give_frames_pixels_paths_or_nothing_else(videos):
    folder = videos / "class0" / "video0"
    frames = [path.read_bytes() for path in sorted(folder.iterdir(), key=lambda path: (len(path.name), path.name))]
    pixels = np.stack([picture(48, 64, number) for number in range(12)])
    for given, same in [(str(folder), frames), (torch.from_numpy(pixels).permute(0, 3, 1, 2), pixels)]:
        one, other = (batches([(value, 1)], fields={"video": EVEN, "label": Scalar()}) for value in (given, same))
        assert torch.equal(one[0]["video"], other[0]["video"])
    for bad, message in {
        3: "it is int, and a video is a path",
        "http://a/b.mp4": "a URL, which is never opened",
    }.items():
        with pytest.raises(gpupipe.SampleError, match=message):
            batches([(bad, 1)], fields={"video": EVEN, "label": Scalar()})


def test_videos_of_a_class_of_ones_own(videos):
    class Own:
        rate = None

        def __init__(self, broken: bool) -> None:
            self.broken = broken

        def __len__(self) -> int:
            return 20

        def read(self, numbers: list[int]) -> list[np.ndarray]:
            if self.broken:
                raise KeyError("frame 3")
            return [np.frombuffer(numbered(2, number), np.uint8) for number in numbers]

    fields = {"video": EVEN, "label": Scalar()}
    (batch,) = batches([(Own(False), 1)], fields=fields)
    assert told(batch["video"][0]) == [(2, number) for number in (5, 8, 11, 14)]
    with pytest.raises(gpupipe.SampleError, match="KeyError: 'frame 3'"):
        batches([(Own(True), 1)], fields=fields)
