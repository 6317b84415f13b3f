"""Videos that are made once, as folders of JPEGs and as H.264 in MP4: a window that moves over a made picture."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from peers.common import cache
from PIL import Image

import gpupipe
from gpupipe.host.system import usable_cpus
from gpupipe.tools.benchmark.sample_set import make_folder, sample_set

__all__ = ["CLIP", "FIELDS", "made"]

HEIGHT, WIDTH = 256, 340  # of TSN's frames of Kinetics
CLASSES, CLIP = 4, (8, 8)
FIELDS = {"video": gpupipe.Frames(clip=CLIP), "label": gpupipe.Scalar(dtype="int64")}


def made(videos: int = 32, frames: int = 90) -> Path:
    """The folder that has `frames` and `files`, in each a folder for each class."""
    root = cache() / "data" / f"videos-1-{videos}-{frames}"
    if not root.is_dir():
        make_folder(root, partial(_write, videos, frames))
    return root


def _write(videos: int, frames: int, root: Path) -> None:
    pictures = sorted(Path(sample_set()).rglob("*.jpg"))
    with ThreadPoolExecutor(usable_cpus()) as pool:
        list(pool.map(lambda number: _video(root, number, frames, pictures[number % len(pictures)]), range(videos)))


def _video(root: Path, number: int, frames: int, picture: Path) -> None:
    import torch
    from torchcodec.encoders import VideoEncoder

    name = f"class{number % CLASSES}/{number:03d}"
    folder = root / "frames" / name
    folder.mkdir(parents=True)
    (root / "files" / name).parent.mkdir(parents=True, exist_ok=True)
    with Image.open(picture) as opened:
        whole = np.asarray(opened.convert("RGB").resize((2 * WIDTH, 2 * HEIGHT)))
    shown = []
    for frame in range(frames):
        top, left = (round(room * (0.5 - 0.5 * np.cos(frame / 30 + number))) for room in (HEIGHT, WIDTH))
        shown.append(whole[top : top + HEIGHT, left : left + WIDTH])
        Image.fromarray(shown[-1]).save(folder / f"img_{frame + 1:05d}.jpg", quality=90)
    VideoEncoder(torch.from_numpy(np.stack(shown)).permute(0, 3, 1, 2), frame_rate=30).to_file(
        f"{root}/files/{name}.mp4"
    )
