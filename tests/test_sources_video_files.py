"""Video files by torchcodec: its frames by their number, and what is no video."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images import picture
from PIL import Image
from tars import write_tar
from torchvision.transforms import v2
from videos import EVEN, FIELDS, batches

import gpupipe
from gpupipe import Frames, Scalar
from gpupipe.sources import open_source

pytestmark = pytest.mark.trainers("torchcodec")
COUNT = 30


@pytest.fixture(scope="module", autouse=True)
def torchcodec() -> Any:
    """It finds FFmpeg and fits torch, or the tests are skipped."""
    try:
        import torchcodec
        from torchcodec import decoders, encoders
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"torchcodec can't be loaded: {str(error).splitlines()[0]}")
    del decoders, encoders
    return torchcodec


def write_video(path: Path, frames: np.ndarray, **options: Any) -> Path:
    """frames: (frames, height, width, 3)."""
    from torchcodec.encoders import VideoEncoder

    path.parent.mkdir(parents=True, exist_ok=True)
    VideoEncoder(torch.from_numpy(frames).permute(0, 3, 1, 2), frame_rate=25).to_file(path, **options)
    return path


def levels(video: int) -> np.ndarray:
    """Frames that tell their video and number, see `told`."""
    frames = np.full((COUNT, 48, 64, 3), 100, np.uint8)
    frames[..., 0] = 40 * video
    frames[..., 1] = 8 * np.arange(COUNT)[:, None, None]
    return frames


def number_of(clip: torch.Tensor) -> list[tuple[int, int]]:
    return [(video, round(level * 12 / 8)) for video, level in told_exactly(clip)]


def told_exactly(clip: torch.Tensor) -> list[tuple[int, float]]:
    means = clip.float().mean(dim=(2, 3))
    return [(round(float(red) / 40), float(green) / 12) for red, green, _ in means]


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files")
    for video in range(4):
        name = f"class{video // 2}/v{video}.{('mp4', 'mkv', 'avi', 'mov')[video]}"
        write_video(root / name, levels(video))
    return root


def test_frames_are_those_of_their_numbers_in_every_container(videos):
    fields = {**FIELDS, "video": Frames(clip=(4, 5))}
    from gpupipe.plan import clips

    draw = clips(fields["video"], 7, 0, np.arange(4))
    made = batches(videos, fields=fields, shuffle=False)
    shown = torch.cat([batch["video"] for batch in made])
    for row in range(4):
        assert number_of(shown[row]) == [(row, number) for number in draw(row, COUNT, 25.0)]
    assert torch.cat([batch["label"] for batch in made]).tolist() == [0, 0, 1, 1]
    gpupipe.check_source(open_source(videos, fields=FIELDS))


def test_pixels_are_torchcodecs_cropped_as_torchvision_does(tmp_path):
    from torchcodec.decoders import VideoDecoder

    moving = np.stack([picture(50, 70, number // 4) for number in range(20)])
    path = write_video(tmp_path / "a" / "b.mp4", moving)
    (batch,) = batches(tmp_path, fields={"video": EVEN, "label": Scalar()}, batch_size=1)
    frames = VideoDecoder(path, dimension_order="NHWC").get_frames_at([5, 8, 11, 14]).data.numpy()
    wanted = v2.Compose([v2.Resize(40), v2.CenterCrop(32), v2.PILToTensor()])
    for clip, frame in zip(batch["video"][0], frames, strict=True):
        assert torch.equal(clip, wanted(Image.fromarray(frame)))


def test_a_clip_by_time_has_fewer_frames_of_a_slower_video(tmp_path):
    write_video(tmp_path / "a" / "1.mp4", levels(1))  # 25 frames a second
    fields = {"video": Frames(clip=(4, 5), fps=50, sampling="even"), "label": Scalar()}
    (batch,) = batches(tmp_path, fields=fields)
    assert number_of(batch["video"][0]) == [(1, number) for number in (10, 13, 16, 19)]  # 10 frames from 20 // 2 on


def test_a_rate_that_varies_does_not_move_frames(tmp_path):
    """Frames are numbered as they come, not by time."""
    plain = write_video(tmp_path / "plain.mp4", levels(1))
    (tmp_path / "a").mkdir()
    varied = tmp_path / "a" / "varied.mp4"
    slower = "setpts='if(lt(N,10),N,N*3)/25/TB'"
    command = ["ffmpeg", "-v", "error", "-i", str(plain), "-vf", slower, "-fps_mode", "passthrough", str(varied)]
    try:
        subprocess.run(command, check=True)
    except FileNotFoundError:
        pytest.skip("there is no ffmpeg to make such a video with")
    assert len(open_source(tmp_path, fields={"video": EVEN})) == 2  # beside a folder of videos
    (batch,) = batches(tmp_path, fields={"video": Frames(clip=(6, None), sampling="even")})
    for clip in batch["video"]:
        assert number_of(clip) == [(1, number) for number in (2, 7, 12, 17, 22, 27)]


@pytest.mark.parametrize("engine", [{"engine": "torch", "num_workers": 2}, {"engine": "dali", "num_workers": 1}])
def test_workers_and_dali_make_the_same(videos, engine):
    views = gpupipe.imagenet_train(32, dtype="uint8")
    for one, other in zip(batches(videos, views), batches(videos, views, **engine), strict=True):
        assert torch.equal(one["video"], other["video"])  # the CPU makes both


def test_files_in_a_tar_and_bytes_and_paths_of_a_dataset(videos, tmp_path):
    files = sorted(path for path in videos.rglob("*.*"))
    write_tar(tmp_path / "a.tar", [(str(path.relative_to(videos)), path.read_bytes()) for path in files])
    fields = {**FIELDS, "video": EVEN}
    wanted = torch.cat([batch["video"] for batch in batches(videos, fields=fields, shuffle=False)])
    made = torch.cat([batch["video"] for batch in batches(tmp_path, fields=fields, shuffle=False)])
    assert torch.equal(made, wanted)
    for given in ([path.read_bytes() for path in files], [str(path) for path in files]):
        dataset = [(value, number) for number, value in enumerate(given)]
        two = {"video": EVEN, "label": Scalar()}
        made = torch.cat([batch["video"] for batch in batches(dataset, fields=two, shuffle=False)])
        assert torch.equal(made, wanted)


MPD = b'<MPD profiles="urn:mpeg:dash:profile:isoff-live:2011"><BaseURL>http://127.0.0.1:9/</BaseURL></MPD>'
PLAYLIST = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nhttp://127.0.0.1:9/secret.ts\n#EXT-X-ENDLIST\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it begins with the bytes b''"),
        (PLAYLIST, r"it begins with the bytes b'#EXTM3U.*as no MP4, MOV, Matroska, WebM or AVI file does"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", "it begins with the bytes b'ffconcat"),
        (b"\x1a\x45\xdf\xa3\x84webm" + PLAYLIST, "the video can't be opened"),
        (b"\x1a\x45\xdf\xa3\xff" + MPD, "it begins with the bytes"),
        (b"\x1a\x45\xdf\xa3\x40\xffwebm" + MPD, "it begins with the bytes"),
        (b"1234free" + MPD, "it begins with the bytes b'1234free"),
        (b"\0\0\0\x18ftypisom" + bytes(100), "the video can't be opened"),
    ],
)
@pytest.mark.parametrize("as_bytes", [False, True])
def test_what_is_no_video_is_a_bad_sample_with_its_name(tmp_path, content, message, as_bytes):
    path = tmp_path / "a" / "b.mp4"
    path.parent.mkdir()
    path.write_bytes(content)
    data = [(content, 0)] if as_bytes else tmp_path
    with pytest.raises(gpupipe.SampleError, match=message) as raised:
        batches(data, fields={"video": EVEN, "label": Scalar()})
    assert as_bytes or raised.value.location == str(path)


def test_a_cut_video_is_a_bad_sample(tmp_path):
    path = write_video(tmp_path / "a" / "b.mkv", np.stack([picture(64, 96, number) for number in range(COUNT)]))
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(gpupipe.SampleError, match=r"has \d+ frames, and a clip|can't be (opened|decoded)|no frames"):
        batches(tmp_path, fields={"video": Frames(clip=(8, 3)), "label": Scalar()})


def test_without_torchcodec_the_extra_is_named(videos, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torchcodec.decoders", None)
    with pytest.raises(gpupipe.ConfigError, match=r"needs torchcodec.*pip install 'gpupipe\[video\]'"):
        open_source(videos, fields=FIELDS)
    with pytest.raises(gpupipe.ConfigError, match="needs torchcodec"):
        batches([(b"\0\0\0\x18ftypisom", 0)], fields={"video": EVEN, "label": Scalar()})
