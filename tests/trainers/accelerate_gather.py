"""`python accelerate_gather.py OUT 2 3`: so many processes use gather_for_metrics; rank 0 notes what came."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path

import torch
from accelerate import Accelerator
from common import in_a_fork, train_loader, val_loader

import gpupipe


def labels(accelerator: Accelerator, loader: gpupipe.Loader) -> list[int]:
    """An epoch's labels, as a program gathers them."""
    return torch.cat([accelerator.gather_for_metrics(labels) for _, labels in loader]).tolist()


def evaluate(rank: int, world: int, port: int, out: Path) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    accelerator = Accelerator(cpu=True)
    train, val = accelerator.prepare(train_loader(4, num_workers=0), val_loader(2))
    dropping = accelerator.prepare(train_loader(4, num_workers=0, drop_last=True))
    nested = []
    for _ in train:
        nested.append(labels(accelerator, val))
        if len(nested) == 2:
            break
    for _ in val:
        break
    assert not accelerator.gradient_state.in_dataloader
    seen = {"train": labels(accelerator, train), "dropping": labels(accelerator, dropping), "nested": nested}
    if rank == 0:
        (out / f"{world}.json").write_text(json.dumps(seen | {"world": train.world_size}))
    accelerator.end_training()


def evaluate_on(world: int, out: Path) -> None:
    port = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False).port  # free again now
    with ExitStack() as ranks:
        for rank in range(world):
            ranks.enter_context(in_a_fork(lambda rank=rank: evaluate(rank, world, port, out)))


if __name__ == "__main__":
    for world in sys.argv[2:]:
        evaluate_on(int(world), Path(sys.argv[1]))
