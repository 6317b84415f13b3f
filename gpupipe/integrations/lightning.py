"""Loaders in PyTorch Lightning: a DataModule that builds them where they belong, and a callback that logs their stats.

Lightning's checkpoints hold the place of each training loader by themselves, so nothing here does. Both packages
serve, `lightning` and `pytorch_lightning`, but the classes of one are unknown to the other's Trainer: those here are of
the one that the program has imported before, else of `lightning`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

from gpupipe.errors import ConfigError
from gpupipe.host.checks import whole
from gpupipe.loader.loader import Loader

__all__ = ["DataModule", "LogStats"]


def _package() -> Any:
    """The one in use, or the first that is installed."""
    names = ("lightning.pytorch", "pytorch_lightning")
    found = [name for name in names if name in sys.modules] or [name for name in names if find_spec(name.split(".")[0])]
    return importlib.import_module((found or names)[0])


pl = _package()

Made = Mapping[str, Any] | Callable[[], Any]


class DataModule(pl.LightningDataModule):  # type: ignore[misc, name-defined]  # either package's
    """Loaders for each stage of a Trainer, built in each process of `strategy="ddp"` when the Trainer asks for them.

    train, val, test, predict: Loader's arguments as a dict, `data` among them, or a function that returns a Loader or
        several, in any form that Lightning takes. None: the stage has none. In a dict `device` is the Trainer's, if it
        is not given.

    The place in the epoch is in Lightning's checkpoints. When a stage ends its workers do, too.
    """

    def __init__(
        self, train: Made | None = None, val: Made | None = None, test: Made | None = None, predict: Made | None = None
    ) -> None:
        super().__init__()
        self._loaders: dict[str, Any] = {}
        for stage, made in {"train": train, "val": val, "test": test, "predict": predict}.items():
            if not isinstance(made, Mapping | None) and not callable(made):
                raise ConfigError(
                    f"DataModule: {stage}={made!r} must be a dict of Loader's arguments or a function that builds a "
                    "Loader: one that is built already was built outside of the Trainer's processes"
                )
            if made is not None:  # Lightning asks which of these a module has of its own
                setattr(self, f"{stage}_dataloader", partial(self._open, stage, made))

    def _open(self, stage: str, made: Made) -> Any:
        """What Lightning iterates; it takes the place of what it had for that stage before."""
        opened = made() if callable(made) else Loader(**{"device": self.trainer.strategy.root_device, **made})
        self._loaders[stage] = opened
        return opened

    def teardown(self, stage: str) -> None:
        """Lightning calls it at a stage's end."""
        for opened in self._loaders.values():
            for _, loader in _within(opened):
                loader.close()
        self._loaders.clear()


class LogStats(pl.Callback):  # type: ignore[misc, name-defined]
    """Logs `Loader.stats()` of the training loader by the Trainer's loggers; on several ranks that of rank 0.

    every_n_steps: of the optimizer's, `trainer.global_step`.
    prefix:        stands before the names: "loader/img_per_s". Of several loaders, in a list or a dict, each has its
                   place or key as well: "loader/0/img_per_s".

    Raises ConfigError when training begins without a Loader, or a logger.
    """

    def __init__(self, every_n_steps: int = 50, prefix: str = "loader") -> None:
        self.every_n_steps = whole("every_n_steps", every_n_steps, 1)
        self.prefix = prefix
        self._logged = 0  # how often, with what was before a resume

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Find out whether there is something to log, and where."""
        if not trainer.loggers:
            raise ConfigError("LogStats: the Trainer has no logger; leave LogStats out, or pass the Trainer a logger")
        if not list(_within(trainer.train_dataloader)):
            raise ConfigError("LogStats: the Trainer trains with no gpupipe.Loader, so there are no stats to log")
        self._logged = trainer.global_step // self.every_n_steps

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log once in so many steps; where gradients are accumulated several batches are one."""
        due = trainer.global_step // self.every_n_steps
        if due == self._logged:
            return
        self._logged = due
        stats = {
            "/".join([self.prefix, *path, name]): value
            for path, loader in _within(trainer.train_dataloader)
            for name, value in loader.stats().items()
        }
        for logger in trainer.loggers:
            logger.log_metrics(stats, step=trainer.global_step)


def _within(loaders: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Loader]]:
    """Each Loader in what a Trainer iterates, with the keys and places where it lies."""
    if isinstance(loaders, Loader):
        yield path, loaders
    loaders = getattr(loaders, "iterables", loaders)  # of a CombinedLoader
    if isinstance(loaders, Mapping | list | tuple):
        for key, one in loaders.items() if isinstance(loaders, Mapping) else enumerate(loaders):
            yield from _within(one, (*path, str(key)))
