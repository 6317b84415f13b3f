"""Lightning with two processes: `python lightning_ddp.py OUT STRATEGY inside|before|datamodule`.

The loader is built in train_dataloader(), where torch.distributed runs, or before `fit`, where it does not yet, or by a
DataModule.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from common import EPOCHS, SIZE, Pictures, classes, model, train_loader, val_loader
from lightning.pytorch import LightningModule, Trainer

import gpupipe
from gpupipe.integrations.lightning import DataModule


class Module(LightningModule):
    def __init__(self, out: Path) -> None:
        super().__init__()
        self.network = model()
        self.out = out

    def train_dataloader(self) -> gpupipe.Loader:
        return train_loader(2)

    def val_dataloader(self) -> gpupipe.Loader:
        return val_loader(2)

    def note(self, kind: str, labels: torch.Tensor, padding: int) -> None:
        labels = labels[: len(labels) - padding].tolist()
        with open(self.out / f"{self.global_rank}.jsonl", "a") as file:
            print(json.dumps([kind, self.current_epoch, labels]), file=file)

    def training_step(self, batch: Any, batch_index: int) -> torch.Tensor:
        images, labels = batch
        self.note("train", labels, self.trainer.train_dataloader.padding)
        return torch.nn.functional.cross_entropy(self.network(images), classes(labels))

    def validation_step(self, batch: Any, batch_index: int) -> None:
        if not self.trainer.sanity_checking:
            self.note("val", batch[1], self.trainer.val_dataloaders.padding)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.05)


if __name__ == "__main__":
    out, strategy, when = sys.argv[1:]
    trainer = Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    train = {"data": Pictures(), "recipe": gpupipe.imagenet_train(SIZE), "batch_size": 2, "shuffle": True}
    data = DataModule(train | {"engine": "torch", "num_workers": 1}, lambda: val_loader(2))
    trainer.fit(
        Module(Path(out)),
        train_loader(2) if when == "before" else None,
        datamodule=data if when == "datamodule" else None,
    )
