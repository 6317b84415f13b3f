"""PyTorch Lightning's Trainer. The undisturbed run has no validation, so it is the same with and without."""

from __future__ import annotations

from typing import Any

import torch
from common import EPOCHS, Run, classes, main, model, train_loader, val_loader
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint


class Module(LightningModule):
    def __init__(self, run: Run) -> None:
        super().__init__()
        self.network = model()
        self.run = run

    def training_step(self, batch: Any, batch_index: int) -> torch.Tensor:
        images, labels = batch
        return torch.nn.functional.cross_entropy(self.network(images), classes(labels))

    def validation_step(self, batch: Any, batch_index: int) -> None:
        self.network(batch[0])

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_index: int) -> None:
        self.run.trained(batch[1], self.global_step)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.05, momentum=0.9)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)}


def fit(run: Run, **data: Any) -> None:
    module = Module(run)
    trainer = Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(run.folder, "{step}", every_n_train_steps=1, save_top_k=-1)],
    )
    trainer.fit(module, ckpt_path=run.folder / f"step={run.start}.ckpt" if run.start else None, **data)
    assert trainer.current_epoch == EPOCHS
    run.finished(module)


def train(run: Run) -> None:
    with train_loader() as loader, val_loader() as val:
        fit(run, train_dataloaders=loader, val_dataloaders=val if run.name != "whole" else None)


if __name__ == "__main__":
    main(train)
