"""What the programs share: tiny JPEGs whose labels are their numbers, a tiny model, runs that are killed and resumed.

`python PROGRAM OUT 9:6 18:15` trains once undisturbed, and once so that it is killed when 9 batches are done, goes on
from the checkpoint after 6, is killed again when 18 are done, and goes on from the checkpoint after 15.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch._dynamo
from PIL import Image

import gpupipe

EPOCHS = 2
SAMPLES = 41  # 11 batches of 4, the last of one sample
CLASSES = 3
SIZE = 8
RANK = int(os.environ.get("RANK", "0"))


class Pictures:
    """Noise of 16 by 16 pixels, as JPEGs."""

    def __init__(self, size: int = SAMPLES) -> None:
        self.files = [_jpeg(number) for number in range(size)]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        return self.files[index], index


def _jpeg(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")
    return buffer.getvalue()


def train_loader(batch_size: int = 4, **options: object) -> gpupipe.Loader:
    """The loader that all train with; its labels are the samples' numbers."""
    options = {"engine": "torch", "num_workers": 1, "shuffle": True, "seed": 3} | options
    return gpupipe.Loader(Pictures(), gpupipe.imagenet_train(SIZE), batch_size, **options)


def val_loader(batch_size: int = 4, **options: object) -> gpupipe.Loader:
    """Seven samples, as they come."""
    options = {"engine": "torch", "num_workers": 0} | options
    return gpupipe.Loader(Pictures(7), gpupipe.imagenet_eval(SIZE, resize=SIZE), batch_size, **options)


def classes(labels: torch.Tensor) -> torch.Tensor:
    """The class of each sample."""
    return labels % CLASSES


def model() -> torch.nn.Module:
    """The same weights in each run."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(3 * SIZE * SIZE, 8), torch.nn.ReLU(), torch.nn.Linear(8, CLASSES)
    )


@dataclass(frozen=True)
class Run:
    """One run of a program, from the start or a checkpoint to the end or its death. Batches count from the start.

    start: batches done in the checkpoint where it begins; 0: from scratch.
    death: batches after which it is killed; None: never.
    """

    folder: Path
    name: str
    start: int = 0
    death: int | None = None

    def checkpoint(self, batch: int) -> Path:
        """Where a program keeps its checkpoint after so many batches."""
        return self.folder / f"checkpoint-{batch}"

    def trained(self, labels: torch.Tensor, batch: int) -> None:
        """Note the samples of a batch when its step is done and saved, the `batch`-th (from 1); and die there."""
        with open(self.folder / f"{self.name}-{RANK}.jsonl", "a") as file:
            print(json.dumps([batch, labels.tolist()]), file=file)
        if batch == self.death:
            os.kill(os.getpid(), signal.SIGKILL)

    def finished(self, trained: torch.nn.Module) -> None:
        """Keep the final weights."""
        torch.save(trained.state_dict(), self.folder / f"{self.name}-{RANK}.pt")


def main(train: Callable[[Run], None]) -> None:
    """The runs of a program, each in a process of its own that begins when everything is imported."""
    out = Path(sys.argv[1])
    deaths, starts = zip(*(map(int, pair.split(":")) for pair in sys.argv[2:]), strict=True)
    for folder in (out / "killed", out / "whole"):
        folder.mkdir(parents=True, exist_ok=True)
    with in_a_fork(lambda: train(Run(out / "whole", "whole"))):
        for part, (start, death) in enumerate(zip((0, *starts), (*deaths, None), strict=True)):
            run = Run(out / "killed", f"part{part}", start, death)
            with in_a_fork(lambda run=run: train(run), dies=death is not None):
                pass


@contextmanager
def in_a_fork(work: Callable[[], None], dies: bool = False) -> Iterator[None]:
    """Do `work` in a forked process meanwhile; it has to end well, or by SIGKILL where it `dies`."""
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    try:
        yield
    finally:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != (-signal.SIGKILL if dies else 0):
        sys.exit(f"a run ended with status {status}")
