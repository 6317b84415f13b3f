"""What docs/guide/trainers.md takes for granted, and what it promises."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning
import torch
from images import write_folder
from transformers import TrainingArguments

import gpupipe

NEEDS = ("lightning", "transformers")


class Classifier(lightning.LightningModule):
    """For Lightning and for transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layer(pixel_values.mean((2, 3)))
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    def training_step(self, batch: Any, step: int) -> torch.Tensor:
        return self(*batch)["loss"]

    def validation_step(self, batch: Any, step: int) -> None:
        self.log("loss", self(*batch)["loss"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def setup(folder: Path, names: dict[str, Any]) -> Iterator[None]:
    for part in ("train", "val"):
        write_folder(folder / "imagenet" / part)
    names["model"] = Classifier()
    names["arguments"] = TrainingArguments("out", max_steps=2, per_device_train_batch_size=4, use_cpu=True)
    names["train"] = gpupipe.Loader("imagenet/train", gpupipe.imagenet_train(32), 4, shuffle=True, device="cpu")
    names["val"] = gpupipe.Loader("imagenet/val", gpupipe.imagenet_eval(32), 4, device="cpu")
    yield
    if torch.distributed.is_initialized():  # by Lightning
        torch.distributed.destroy_process_group()


def check(folder: Path, names: dict[str, Any]) -> None:
    fitted = names["after"]["Lightning"]["Trainer"]
    assert fitted is lightning.Trainer
    assert names["data"].trainer.global_step == 2
    with names["train"], names["val"]:
        names["trainer"].train()
        assert names["trainer"].state.global_step == 2
        assert names["trainer"].evaluate()["eval_loss"] > 0
