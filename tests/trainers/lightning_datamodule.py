"""PyTorch Lightning's Trainer, which a DataModule gives its loaders."""

from __future__ import annotations

from common import Run, main, train_loader, val_loader
from lightning_fit import fit

from gpupipe.integrations.lightning import DataModule


def train(run: Run) -> None:
    fit(run, datamodule=DataModule(train_loader, val_loader if run.name != "whole" else None))


if __name__ == "__main__":
    main(train)
