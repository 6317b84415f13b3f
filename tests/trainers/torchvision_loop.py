"""A loop that touches of a loader what torchvision's references/classification/train.py does, on one process or DDP."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed
from common import EPOCHS, RANK, Run, classes, main, model, train_loader, val_loader

WORLD = int(os.environ.get("WORLD_SIZE", "1"))


def evaluate(network: torch.nn.Module, loader) -> None:
    network.eval()
    seen = torch.tensor(0)
    with torch.inference_mode():
        for images, _ in loader:
            network(images)
            seen += len(images) - loader.padding
    if WORLD > 1:
        torch.distributed.all_reduce(seen)
    assert seen == len(loader.dataset)


def train(run: Run) -> None:
    if WORLD > 1:
        rendezvous = (run.folder / f"{run.name}.rendezvous").absolute()
        torch.distributed.init_process_group("gloo", f"file://{rendezvous}", rank=RANK, world_size=WORLD)
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    with train_loader(4 // WORLD) as loader, val_loader(4 // WORLD) as val:
        parts = {"model": network, "optimizer": optimizer, "schedule": schedule, "loader": loader}
        if run.start:
            for name, state in torch.load(run.checkpoint(run.start)).items():
                parts[name].load_state_dict(state)
        parallel = torch.nn.parallel.DistributedDataParallel(network) if WORLD > 1 else network
        batch = run.start
        for epoch in range(loader.epoch, EPOCHS):
            loader.sampler.set_epoch(epoch)
            network.train()
            for images, labels in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(parallel(images), classes(labels)).backward()
                optimizer.step()
                batch += 1
                if RANK == 0:
                    torch.save({name: part.state_dict() for name, part in parts.items()}, run.checkpoint(batch))
                run.trained(labels, batch)
            schedule.step()
            evaluate(network, val)
        assert batch == EPOCHS * len(loader)
    run.finished(network)
    assert "accelerate" not in sys.modules


if __name__ == "__main__":
    main(train)
