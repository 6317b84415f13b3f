"""`python lightning_options.py OUT`: Lightning's options about loaders, with a DataLoader and with a Loader.

OUT is JSON: for each option what the module was given: epochs, steps and samples, in their order, or the error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import EPOCHS, SAMPLES, classes, model, train_loader, val_loader
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils.data import DataLoader, TensorDataset

Make = Callable[..., Any]


class Module(LightningModule):
    """Notes what it is given. `make` gives a loader, `train` makes of it what Lightning trains on."""

    def __init__(self, make: Make, train: Callable[[Make], Any]) -> None:
        super().__init__()
        self.network = model()
        self.make, self.train_of = make, train
        self.made = 0
        self.seen: list[Any] = []

    def train_dataloader(self) -> Any:
        self.made += 1
        return self.train_of(self.make)

    def val_dataloader(self) -> Any:
        return self.make("val")

    def predict_dataloader(self) -> Any:
        return self.make("val")

    test_dataloader = predict_dataloader

    def training_step(self, batch: Any, batch_index: int) -> torch.Tensor:
        several = isinstance(batch, dict) or isinstance(batch[0], list | tuple)
        batches = [batch] if not several else list(batch.values()) if isinstance(batch, dict) else batch
        self.seen.append(["train", self.current_epoch, [labels.tolist() for _, labels in batches]])
        images, labels = batches[0]
        return torch.nn.functional.cross_entropy(self.network(images), classes(labels))

    def validation_step(self, batch: Any, batch_index: int) -> None:
        if not self.trainer.sanity_checking:
            self.seen.append(["val", self.global_step, [batch[1].tolist()]])

    def test_step(self, batch: Any, batch_index: int) -> None:
        self.seen.append(["test", batch_index, [batch[1].tolist()]])

    def predict_step(self, batch: Any, batch_index: int) -> torch.Tensor:
        return batch[1]

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.05)


def theirs(kind: str = "train", batch_size: int = 4, shuffle: bool = True) -> DataLoader[Any]:
    size = 7 if kind == "val" else SAMPLES
    samples = TensorDataset(torch.zeros(size, 3, 8, 8), torch.arange(size))
    return DataLoader(samples, batch_size=batch_size, shuffle=shuffle and kind == "train")


def ours(kind: str = "train", batch_size: int = 4, shuffle: bool = True) -> Any:
    if kind == "val":
        return val_loader(batch_size)
    return train_loader(batch_size, num_workers=0, shuffle=shuffle)


def shuffled(make: Make) -> Any:
    return make()


def in_turn(make: Make) -> Any:
    return make(shuffle=False)


def combined(mode: str) -> Callable[[Make], Any]:
    return lambda make: CombinedLoader([make(), make(batch_size=8)], mode)


CASES: dict[str, tuple[Callable[[Make], Any], dict[str, Any]]] = {
    "limit_train_batches=3": (shuffled, {"limit_train_batches": 3, "limit_val_batches": 1}),
    "limit_train_batches=0.3": (shuffled, {"limit_train_batches": 0.3}),
    "val_check_interval=0.5": (shuffled, {"val_check_interval": 0.5}),
    "val_check_interval=4": (shuffled, {"val_check_interval": 4}),
    "reload_dataloaders_every_n_epochs=1": (shuffled, {"reload_dataloaders_every_n_epochs": 1}),
    "overfit_batches=2": (in_turn, {"overfit_batches": 2}),
    "overfit_batches=2, shuffled": (shuffled, {"overfit_batches": 2}),
    "fast_dev_run": (shuffled, {"fast_dev_run": True}),
    "min_size": (combined("min_size"), {}),
    "max_size_cycle": (combined("max_size_cycle"), {}),
    "a dict": (lambda make: {"one": make(), "other": make(batch_size=8)}, {}),
}
QUIET = {
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
}


def fitted(train: Callable[[Make], Any], options: dict[str, Any], make: Make) -> dict[str, Any]:
    module = Module(make, train)
    try:
        Trainer(max_epochs=EPOCHS, **QUIET, **options).fit(module)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"seen": module.seen, "made": module.made}


def evaluated(make: Make) -> dict[str, Any]:
    module, trainer = Module(make, shuffled), Trainer(**QUIET)
    predicted = [labels.tolist() for labels in trainer.predict(module)]
    trainer.test(module, verbose=False)
    trainer.validate(module, verbose=False)
    return {"seen": module.seen, "predicted": predicted}


def set_up_by_fabric(make: Make) -> dict[str, Any]:
    try:
        Fabric(accelerator="cpu", devices=1).setup_dataloaders(make())
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {}


def main(out: Path) -> None:
    made = {
        kind: {name: fitted(train, options, make) for name, (train, options) in CASES.items()}
        | {"evaluated": evaluated(make), "Fabric": set_up_by_fabric(make)}
        for kind, make in (("theirs", theirs), ("ours", ours))
    }
    out.write_text(json.dumps(made))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
