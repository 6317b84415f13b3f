"""What can be read of a loader as of a `torch.utils.data.DataLoader`, and what can't be set any more."""

from __future__ import annotations

from typing import Any, Literal, NoReturn

from gpupipe.decode.choose import EngineSettings
from gpupipe.errors import ConfigError
from gpupipe.loader.place import Place
from gpupipe.order import RankBatches
from gpupipe.workers.worker import WorkerInit

__all__ = ["DataLoaderAttributes"]

# What a loader is built of, with the arguments of a new one that would change it.
_NAMES = (
    "batch_size cache collate_fn decoders device drop_last engine fields generator in_order limits "
    "max_bad multiprocessing_context num_workers on_error order persistent_workers pin_memory pin_memory_device "
    "prefetch_factor rank recipe seed shuffle timeout worker_init_fn world_size"
)
FIXED = {name: name for name in _NAMES.split()} | {
    "batch_sampler": "order and batch_size",
    "dataset": "data",
    "sampler": "order",
    "source": "data",
}


class DataLoaderAttributes:
    """DataLoader's attributes for a loader that has `settings` and a `Place`.

    Those that the loader has been built of are read-only once `_built` is set: DataLoader raises a ValueError for some
    of them, and takes others, which here would change nothing.
    """

    settings: EngineSettings
    _place: Place
    _built = False

    in_order: Literal[True] = True
    pin_memory_device: Literal[""] = ""
    translation: Any = None
    """What `gpupipe.from_dataloader` says of how the loader came about, for print()."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in FIXED and self._built:
            raise ConfigError(
                f"{name} can't be set on a Loader that is built, as its workers and threads have it already; "
                f"build another one with {FIXED[name]}"
            )
        super().__setattr__(name, value)

    @staticmethod
    def collate_fn(samples: Any) -> NoReturn:
        """Raises ConfigError: engines make whole batches. A DataLoader that was built of a loader's parts calls it."""
        raise ConfigError(
            "a DataLoader has been built of the parts of a gpupipe.Loader, as accelerate.skip_first_batches and "
            "ray.train.torch.prepare_data_loader do, but only the Loader itself makes batches: iterate that. To go on "
            "within an epoch use its load_state_dict, in Accelerate register_for_checkpointing(loader) and load_state; "
            "for transformers.Trainer wrap it in a gpupipe.TrainerLoader"
        )

    def __getitems__(self, indices: Any) -> NoReturn:
        """Raises ConfigError: a loader is no dataset. A DataLoader that was given one as its dataset calls it."""
        raise ConfigError(
            "a DataLoader was given a gpupipe.Loader as its dataset, as transformers.Trainer does with its datasets, "
            "those of evaluate() and predict() too, but a Loader stands in the place of the DataLoader: return "
            "gpupipe.TrainerLoader(loader) from the Trainer's get_train_dataloader, get_eval_dataloader and "
            "get_test_dataloader; single samples are in loader.dataset"
        )

    @property
    def batches(self) -> RankBatches:
        """How the current epoch is cut into steps and ranks."""
        return self._place.batches

    @property
    def batch_size(self) -> int:
        """Samples per batch of this rank."""
        return self.batches.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether a last batch that is not full is left out."""
        return self.batches.drop_last

    @property
    def num_workers(self) -> int:
        """Worker processes, or DALI's CPU threads and the worker processes beside it."""
        return self.settings.num_workers

    @property
    def prefetch_factor(self) -> int | None:
        """Batches ahead, per worker or for DALI in all; None where num_workers is 0, as in DataLoader."""
        return self.settings.prefetch_factor if self.settings.num_workers else None

    @property
    def pin_memory(self) -> bool:
        """Whether batches pass through page-locked memory."""
        return self.settings.pin_memory

    @property
    def persistent_workers(self) -> bool:
        """Whether worker processes live on between epochs, and the next one's batches are made before it begins."""
        return self.settings.persistent_workers

    @property
    def timeout(self) -> float:
        """Seconds to wait for a batch, 0 for ever; 0 where num_workers is 0, as nothing is waited for."""
        return self.settings.timeout if self.settings.num_workers else 0.0

    @property
    def worker_init_fn(self) -> WorkerInit | None:
        """What is called in each worker process with its number."""
        return self.settings.worker_init_fn

    @property
    def multiprocessing_context(self) -> Any:
        """The context that starts worker processes, None for the default one."""
        return self.settings.multiprocessing_context
