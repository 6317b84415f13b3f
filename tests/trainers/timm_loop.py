"""A loop that touches of a loader what timm's train.py does by default, with timm's own parts around it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import timm
import torch
from common import CLASSES, EPOCHS, SIZE, Run, classes, main, train_loader, val_loader
from timm.models import resume_checkpoint
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, CheckpointSaver, accuracy


def set_loader_epoch(loader: Any, epoch: int) -> None:
    if hasattr(loader.dataset, "set_epoch"):
        loader.dataset.set_epoch(epoch)
    if hasattr(loader.batch_sampler, "set_epoch"):
        loader.batch_sampler.set_epoch(epoch)
    elif hasattr(loader.sampler, "set_epoch"):
        loader.sampler.set_epoch(epoch)


def validate(network: torch.nn.Module, loader: Any) -> float:
    network.eval()
    top1 = AverageMeter()
    with torch.inference_mode():
        for step, (images, labels) in enumerate(loader):
            assert step <= len(loader) - 1
            top1.update(accuracy(network(images), classes(labels))[0].item(), len(images))
    return top1.avg


def train(run: Run) -> None:
    torch.manual_seed(0)
    network = timm.create_model("test_vit", img_size=SIZE, patch_size=4, num_classes=CLASSES)
    optimizer = create_optimizer_v2(network, opt="adamw", lr=0.01)
    saver = CheckpointSaver(
        network,
        optimizer,
        SimpleNamespace(model="test_vit"),
        checkpoint_dir=str(run.folder),
        recovery_dir=str(run.folder),
    )
    with train_loader() as loader, val_loader() as val:
        updates, steps = run.start, len(loader)
        schedule, _ = create_scheduler_v2(
            optimizer, "cosine", num_epochs=EPOCHS, step_on_epochs=False, updates_per_epoch=steps
        )
        if run.start:
            epoch, step = divmod(run.start - 1, steps)
            resume_checkpoint(
                network, str(run.folder / f"recovery-{epoch}-{step}.pth.tar"), optimizer, weights_only=False
            )
            loader.load_state_dict(torch.load(run.checkpoint(run.start)))
            schedule.step_update(updates)
        for epoch in range(loader.epoch, EPOCHS):
            set_loader_epoch(loader, epoch)
            if epoch and loader.mixup_enabled:  # as with --mixup-off-epoch 1
                loader.mixup_enabled = False
            network.train()
            for step, (images, labels) in enumerate(loader, updates % steps):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(network(images), classes(labels)).backward()
                optimizer.step()
                updates += 1
                schedule.step_update(updates)
                saver.save_recovery(epoch, step)
                torch.save(loader.state_dict(), run.checkpoint(updates))
                run.trained(labels, updates)
            saver.save_checkpoint(epoch, validate(network, val))
            schedule.step(epoch + 1)
    assert updates == EPOCHS * steps
    run.finished(network)


if __name__ == "__main__":
    main(train)
