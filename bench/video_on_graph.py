"""DALI's own video decoder beside torchcodec: whether frames that are asked for by number come, and what bad files do.

    python bench/video_on_graph.py --out results                # on the GPU where there is one, else DALI's CPU backend
    python bench/video_on_graph.py --out results --mutants 0    # good files alone

Made videos of 50 frames, in the codecs that the backend has, some of them in BT.709: for frames in any order, those of
torchcodec's that each is nearest to have to be those that were asked for, and the table says by how many gray levels
they differ; then the CPU time of a clip of 8 frames at the begin and at the end by each. After that files of which
bytes were changed: the end cut off, zeros, flipped bits, and MJPEG with a frame of another size amid the others. Each
library reads them in a process of its own, frames by torchcodec's count. Needs the command ffmpeg.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))

import numpy as np
from numpy.typing import NDArray

from gpupipe.host.children import Child, ChildError
from gpupipe.host.machine import machine

__all__ = ["main"]

Bytes = NDArray[np.uint8]

COUNT, SIZE = 50, "160x120"
PICTURE = f"testsrc2=size={SIZE}:rate=25:duration=2"
VP9 = ("-c:v", "libvpx-vp9", "-g", "12", "-deadline", "realtime", "-cpu-used", "8")
BT709 = ("-vf", "scale=out_color_matrix=bt709", "-colorspace", "bt709")
ANYWHERE = {
    "vp9.webm": VP9,
    "vp9, BT.709.webm": (*VP9, *BT709),
    "vp8.webm": ("-c:v", "libvpx", "-g", "12"),
    "mjpeg.avi": ("-c:v", "mjpeg", "-q:v", "3"),
}
ON_GPU = {
    "h264.mp4": ("-c:v", "libx264", "-g", "12"),
    "h264, BT.709.mp4": ("-c:v", "libx264", "-g", "12", *BT709),
    "hevc.mp4": ("-c:v", "libx265", "-g", "12"),
}
AMID = 25  # the frame that has another size
OTHER_SIZES = {"mjpeg, a smaller frame.avi": (16, 16), "mjpeg, a wider frame.avi": (120, 160 + 4096)}  # one bit
SOF = b"\xff\xc0\x00\x11\x08"  # of a baseline JPEG; its height and width follow
NEARLY = 8.0  # gray levels in the mean, by which the same frame may differ between decoders
PATIENCE = 60.0


class Dali:
    """In a process: clips by fn.decoders.video."""

    def __init__(self, on_gpu: bool) -> None:
        self._on_gpu = on_gpu

    def clip(self, data: Bytes, numbers: Sequence[int]) -> Bytes:
        """(frames, height, width, 3)"""
        from nvidia.dali import fn, pipeline_def, types

        @pipeline_def(batch_size=1, num_threads=1, device_id=0 if self._on_gpu else None)  # type: ignore[untyped-decorator]
        def graph() -> Any:
            given = fn.external_source(
                source=lambda: ([data], [np.array(numbers, np.int32)]),
                num_outputs=2,
                dtype=[types.UINT8, types.INT32],
                ndim=1,
            )
            return fn.decoders.video(given[0], frames=given[1], device="mixed" if self._on_gpu else "cpu")

        pipeline = graph()
        pipeline.build()
        (out,) = pipeline.run()
        return np.array((out.as_cpu() if self._on_gpu else out).at(0))

    def cost(self, data: Bytes, numbers: Sequence[int]) -> float:
        """Milliseconds of CPU time, once all is loaded."""
        return _cost(partial(self.clip, data, numbers))


class Torchcodec:
    """In a process: clips as gpupipe reads them."""

    def count(self, data: Bytes) -> int:
        """Frames; raises where it can't be opened."""
        return len(self._open(data))

    def clip(self, data: Bytes, numbers: Sequence[int]) -> Bytes:
        """(frames, height, width, 3)"""
        return np.stack(self._open(data).read(numbers))

    def cost(self, data: Bytes, numbers: Sequence[int]) -> float:
        """Milliseconds of CPU time, once all is loaded."""
        return _cost(partial(self.clip, data, numbers))

    def _open(self, data: Bytes) -> Any:
        from gpupipe.sources.videos.encoded import EncodedVideo

        return EncodedVideo(lambda: data)


def _cost(call: Callable[[], Any], times: int = 5) -> float:
    call()
    begun = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - begun) / times * 1e3


class Asked:
    """A child that is started anew when it has died."""

    def __init__(self, what: str, *arguments: Any) -> None:
        self._what, self._arguments = f"video_on_graph:{what}", arguments
        self._child: Child | None = None

    def __call__(self, question: str, *arguments: Any) -> Any:
        """The answer. Raises ChildError."""
        with open(os.devnull, "wb") as log:
            self._child = self._child or Child(self._what, self._arguments, log, PATIENCE)
        try:
            return self._child.ask(question, *arguments)
        except ChildError as error:
            if error.code is not None or error.hangs:
                self.end()
            raise

    def end(self) -> None:
        """It."""
        if self._child is not None:
            self._child.kill()
            self._child = None


def made(folder: Path, on_gpu: bool) -> dict[str, Bytes]:
    """The good files."""
    found = {}
    for name, options in (ANYWHERE | ON_GPU if on_gpu else ANYWHERE).items():
        path = folder / name
        command = ["ffmpeg", "-loglevel", "error", "-f", "lavfi", "-i", PICTURE, *options, "-pix_fmt", "yuv420p", path]
        if name.startswith("mjpeg"):
            command[-2] = "yuvj420p"
        subprocess.run(command, check=True)
        found[name] = np.fromfile(path, np.uint8)
    return found


def compared(name: str, data: Bytes, dali: Asked, torchcodec: Asked) -> dict[str, Any]:
    """Of a good file: whether the frames are those that were asked for, how far they are apart, what they cost."""
    numbers = np.random.default_rng(0).integers(0, COUNT, 12).tolist()
    every = torchcodec("clip", data, list(range(COUNT))).astype(np.int16)
    got = dali("clip", data, numbers).astype(np.int16)
    nearest = [int(np.abs(every - frame).mean((1, 2, 3)).argmin()) for frame in got]
    apart = np.abs(every[numbers] - got)
    row = {"file": name, "right": nearest == numbers, "mean": float(apart.mean()), "largest": int(apart.max())}
    for place, first in (("begin", 0), ("end", COUNT - 8)):
        clip = list(range(first, first + 8))
        row |= {f"{place}_dali_ms": dali("cost", data, clip), f"{place}_torchcodec_ms": torchcodec("cost", data, clip)}
    return row


def mutants(data: Bytes, count: int) -> Iterator[Bytes]:
    """Files of which something was changed."""
    for number in range(count):
        rng, changed = np.random.default_rng(number), data.copy()
        kind = number % 4
        if kind == 0:
            changed = changed[: rng.integers(len(data) // 4, len(data))]
        elif kind == 1:
            at = rng.integers(200, len(data) - 64)
            changed[at : at + 64] = 0
        else:
            places = rng.integers(200, len(data), 20 if kind == 2 else 1)
            changed[places] ^= (1 << rng.integers(0, 8, len(places))).astype(np.uint8)
        yield changed


def with_size(data: Bytes, size: tuple[int, int]) -> Bytes:
    """An MJPEG file, of which a frame says to be of another height and width."""
    changed, at = bytearray(data.tobytes()), 0
    for _ in range(AMID + 1):
        at = changed.index(SOF, at) + len(SOF)
    changed[at : at + 4] = b"".join(side.to_bytes(2, "big") for side in size)
    return np.frombuffer(bytes(changed), np.uint8)


def outcome(data: Bytes, numbers: Sequence[int], dali: Asked, torchcodec: Asked) -> str:
    """What becomes of a changed file, frame by frame; one of `OUTCOMES`."""
    theirs = ours = None
    with suppress(ChildError):
        theirs = torchcodec("clip", data, numbers)
    try:
        ours = dali("clip", data, numbers)
    except ChildError as error:
        if error.hangs:
            return "hangs"
        if error.code is not None:
            return "dies"
    if ours is None:
        return "both refuse" if theirs is None else "DALI refuses"
    if theirs is None:
        return "torchcodec refuses"
    alike = ours.shape == theirs.shape and np.abs(ours.astype(np.int16) - theirs).mean((1, 2, 3)).max() < NEARLY
    return "the same" if alike else "other pixels"


OUTCOMES = {
    "the same": "both decode the same",
    "both refuse": "both refuse it",
    "DALI refuses": "DALI refuses it, torchcodec decodes",
    "other pixels": "both decode, other pixels",
    "torchcodec refuses": "torchcodec refuses it, DALI gives pixels all the same",
    "dies": "DALI's process dies",
    "hangs": "DALI hangs",
}


def tried(data: Bytes, count: int, dali: Asked, torchcodec: Asked) -> Counter[str]:
    """The outcomes of changed files that torchcodec opens."""
    found: Counter[str] = Counter()
    for number, one in enumerate(mutants(data, count)):
        with suppress(ChildError):
            frames = torchcodec("count", one)
            numbers = np.random.default_rng(number).integers(0, frames, 6).tolist()
            found[outcome(one, sorted(numbers), dali, torchcodec)] += 1
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Make, compare, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=100, metavar="N", help="changed files of each (default: 100)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the results")
    args = parser.parse_args(argv)
    import torch

    on_gpu = torch.cuda.is_available()
    dali, torchcodec = Asked("Dali", on_gpu), Asked("Torchcodec")
    with tempfile.TemporaryDirectory() as folder:
        files = made(Path(folder), on_gpu)
    rows = []
    for name, data in files.items():
        try:
            row = compared(name, data, dali, torchcodec)
        except ChildError as error:  # of a codec that this GPU has not
            row = {"file": name, "failed": str(error)}
        rows.append(row | {"outcomes": tried(data, args.mutants, dali, torchcodec)})
        print(rows[-1], flush=True)
    for name, size in OTHER_SIZES.items():
        odd = with_size(files["mjpeg.avi"], size)
        rows.append({"file": name, "outcomes": Counter([outcome(odd, [0, AMID], dali, torchcodec)])})
    dali.end()
    torchcodec.end()
    text = table(rows)
    print(text)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "video_on_graph.md").write_text(text)
    settings = {"mutants": args.mutants, "device": "mixed" if on_gpu else "cpu"}
    content = {"environment": machine() | {"settings": settings}, "files": rows}
    (args.out / "video_on_graph.json").write_text(json.dumps(content, indent=1) + "\n")
    return 0


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown."""
    names = (
        "file",
        "frames asked for",
        "apart: mean, largest",
        "CPU ms of a first clip: DALI, torchcodec",
        "of a last one",
    )
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for row in rows:
        if "failed" in row:
            lines.append(f"| {row['file']} | {row['failed']} |" + " |" * (len(names) - 2))
        if "right" not in row:
            continue
        costs = (f"{row[f'{place}_dali_ms']:.1f}, {row[f'{place}_torchcodec_ms']:.1f}" for place in ("begin", "end"))
        cells = ("all" if row["right"] else "others came", f"{row['mean']:.2f}, {row['largest']}", *costs)
        lines.append(f"| {row['file']} | {' | '.join(cells)} |")
    lines += ["", f"| changed files | {' | '.join(row['file'] for row in rows)} |", "|---" * (len(rows) + 1) + "|"]
    for key, words in OUTCOMES.items():
        lines.append(f"| {words} | {' | '.join(str(row['outcomes'][key]) for row in rows)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
