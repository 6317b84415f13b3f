"""What gpupipe.integrations.lightning adds to Lightning's Trainer, within this process."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from images import Numbered, encode, picture
from torch.utils.data import DataLoader

import gpupipe
from gpupipe.errors import ConfigError

SAMPLES, BATCH, STEPS = 18, 4, 5
OPTIONS: dict[str, Any] = {"batch_size": BATCH, "engine": "torch", "num_workers": 0, "shuffle": True}

lightning = pytest.mark.trainers("lightning")


def arguments(**options: Any) -> dict[str, Any]:
    """Of a Loader."""
    files = [encode(picture(20, 24, seed)) for seed in range(4)]
    return {"data": Numbered(SAMPLES, files), "recipe": gpupipe.imagenet_train(8)} | OPTIONS | options


def fit(steps: list[Any], epochs: int = 1, callbacks: tuple[Any, ...] = (), **options: Any) -> None:
    """Train by the loaders in `options`; `steps` gets the global step and what the loaders say of themselves then."""
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(()))

        def training_step(self, batch: Any, batch_index: int) -> torch.Tensor:
            return self.weight * 2

        def validation_step(self, batch: Any, batch_index: int) -> None:
            steps.append("val")

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_index: int) -> None:
            train = self.trainer.train_dataloader
            loaders = train if isinstance(train, list) else [train]
            steps.append(
                (self.global_step, [loader.stats() for loader in loaders if isinstance(loader, gpupipe.Loader)])
            )

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    to_fit = {name: options.pop(name) for name in ("train_dataloaders", "datamodule", "ckpt_path") if name in options}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=epochs,
        callbacks=list(callbacks),
        **{"logger": False} | quiet | options,
    )
    trainer.fit(Module(), **to_fit)


def saving(folder: Path) -> dict[str, Any]:
    """What makes a Trainer save a checkpoint after 3 steps."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    save = ModelCheckpoint(folder, "{step}", every_n_train_steps=3, save_top_k=-1)
    return {"callbacks": (save,), "enable_checkpointing": True}


def notebook() -> Any:
    """A logger that keeps what it is given."""
    from lightning.pytorch.loggers.logger import DummyLogger

    class Notebook(DummyLogger):
        def __init__(self) -> None:
            super().__init__()
            self.lines: list[tuple[int, dict[str, float]]] = []

        def log_metrics(self, metrics: dict[str, float], step: int) -> None:
            self.lines.append((step, metrics))

    return Notebook()


@lightning
class TestDataModule:
    def test_a_stage_that_was_not_given_has_no_loader(self) -> None:
        from gpupipe.integrations.lightning import DataModule

        steps: list[Any] = []
        fit(steps, datamodule=DataModule(arguments()))
        assert [step for step, _ in steps] == list(range(1, STEPS + 1))
        steps.clear()
        fit(steps, datamodule=DataModule(arguments(), arguments(shuffle=False)), num_sanity_val_steps=0)
        assert steps[STEPS:] == ["val"] * STEPS

    def test_each_stage_has_its_own(self) -> None:
        from gpupipe.integrations.lightning import DataModule

        made = [lambda size=size: gpupipe.Loader(**arguments(batch_size=size)) for size in range(1, 5)]
        module = DataModule(*made)
        opened = [getattr(module, f"{stage}_dataloader")() for stage in ("train", "val", "test", "predict")]
        assert [loader.batch_size for loader in opened] == [1, 2, 3, 4]
        module.teardown("fit")

    def test_a_dict_gets_the_trainers_device(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from gpupipe.integrations import lightning

        given: list[dict[str, Any]] = []
        monkeypatch.setattr(lightning, "Loader", lambda **options: given.append(options))
        module = lightning.DataModule({"data": "train"}, {"data": "val", "device": "cpu"})
        module.trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device("cuda:1")))
        module.train_dataloader()
        module.val_dataloader()
        assert given == [{"data": "train", "device": torch.device("cuda:1")}, {"data": "val", "device": "cpu"}]

    def test_workers_end_with_the_stage(self) -> None:
        import multiprocessing

        from gpupipe.integrations.lightning import DataModule

        made: list[gpupipe.Loader] = []
        at_work: list[int] = []

        def several() -> dict[str, gpupipe.Loader]:
            made.extend(gpupipe.Loader(**arguments(num_workers=1)) for _ in range(2))
            return dict(zip("ab", made, strict=True))

        class Count(list[Any]):
            def append(self, step: Any) -> None:
                at_work.append(len(multiprocessing.active_children()))

        before = len(multiprocessing.active_children())
        fit(Count(), datamodule=DataModule(several))
        assert {count - before for count in at_work} == {2}
        assert len(multiprocessing.active_children()) == before

    def test_the_place_is_in_the_checkpoint_once(self, tmp_path: Path) -> None:
        from gpupipe.integrations.lightning import DataModule

        fit([], datamodule=DataModule(arguments()), **saving(tmp_path))
        saved = torch.load(tmp_path / "step=3.ckpt", weights_only=False)
        (state,) = saved["loops"]["fit_loop"]["state_dict"]["combined_loader"]
        assert (state["epoch"], state["position"]) == (0, 3 * BATCH)
        assert DataModule.__qualname__ not in saved
        rest: list[Any] = []
        fit(rest, datamodule=DataModule(arguments()), ckpt_path=tmp_path / "step=3.ckpt")
        assert [(step, stats["images"]) for step, (stats,) in rest] == [(4, BATCH), (5, SAMPLES - 3 * BATCH)]

    def test_a_loader_that_is_built_already_is_refused(self) -> None:
        from gpupipe.integrations.lightning import DataModule

        with (
            gpupipe.Loader(**arguments()) as loader,
            pytest.raises(ConfigError, match=r"(?s)val=Loader.* must be a dict of Loader's arguments or a function"),
        ):
            DataModule(arguments(), loader)


@lightning
class TestLogStats:
    @pytest.mark.parametrize(
        ("options", "logged"), [({}, [2, 4, 6, 8, 10]), ({"accumulate_grad_batches": 2}, [2, 4, 6])]
    )
    def test_logs_what_stats_says_once_in_so_many_steps(self, options: dict[str, Any], logged: list[int]) -> None:
        from gpupipe.integrations.lightning import LogStats

        steps: list[Any] = []
        loggers = [notebook(), notebook()]
        with gpupipe.Loader(**arguments()) as loader:
            fit(steps, 2, (LogStats(2),), train_dataloaders=loader, logger=loggers, **options)
        expected = {}
        for step, (stats,) in steps:
            expected.setdefault(step, {f"loader/{name}": value for name, value in stats.items()})
        for logger in loggers:
            assert logger.lines == [(step, expected[step]) for step in logged]

    def test_of_several_loaders(self) -> None:
        from gpupipe.integrations.lightning import LogStats

        steps: list[Any] = []
        logger = notebook()
        with gpupipe.Loader(**arguments()) as one, gpupipe.Loader(**arguments(batch_size=6)) as other:
            train = [one, DataLoader(list(range(SAMPLES))), other]
            fit(steps, callbacks=(LogStats(3, "data"),), train_dataloaders=train, logger=logger, max_steps=5)
        ((step, found),) = logger.lines
        _, (first, last) = steps[2]
        expected = {f"data/0/{name}": value for name, value in first.items()}
        assert (step, found) == (3, expected | {f"data/2/{name}": value for name, value in last.items()})

    def test_goes_on_after_a_resume(self, tmp_path: Path) -> None:
        from gpupipe.integrations.lightning import LogStats

        with gpupipe.Loader(**arguments()) as loader:
            fit([], train_dataloaders=loader, **saving(tmp_path))
        logger = notebook()
        with gpupipe.Loader(**arguments()) as loader:
            options = {"train_dataloaders": loader, "ckpt_path": tmp_path / "step=3.ckpt", "logger": logger}
            fit([], 2, (LogStats(3),), **options)
        assert [step for step, _ in logger.lines] == [6, 9]

    @pytest.mark.parametrize(
        ("train", "logger", "match"),
        [
            (lambda: gpupipe.Loader(**arguments()), False, "the Trainer has no logger"),
            (lambda: DataLoader(list(range(4))), True, "trains with no gpupipe.Loader"),
        ],
    )
    def test_nothing_to_log_or_nowhere(self, train: Callable[[], Any], logger: bool, match: str) -> None:
        from gpupipe.integrations.lightning import LogStats

        with pytest.raises(ConfigError, match=match):
            fit([], callbacks=(LogStats(),), train_dataloaders=train(), logger=logger and notebook())

    def test_settings(self) -> None:
        from gpupipe.integrations.lightning import LogStats

        with pytest.raises(ConfigError, match="every_n_steps=0"):
            LogStats(0)


@pytest.mark.parametrize("name", ["lightning.pytorch", "pytorch_lightning"])
def test_classes_are_of_the_package_in_use(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in ("lightning.pytorch", "pytorch_lightning", "gpupipe.integrations.lightning"):
        monkeypatch.delitem(sys.modules, other, raising=False)
    package = SimpleNamespace(LightningDataModule=type("Theirs", (), {}), Callback=type("Callback", (), {}))
    monkeypatch.setitem(sys.modules, name, package)
    made = runpy.run_module("gpupipe.integrations.lightning")
    assert made["DataModule"].__base__ is package.LightningDataModule
    assert made["LogStats"].__base__ is package.Callback
