"""`python accelerate_options.py OUT`: settings and functions of Accelerate that are about its own loaders.

OUT is JSON: for each whether prepare gave back the loader itself and how many rows its batches have, or the error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DataLoaderConfiguration
from common import train_loader

import gpupipe


def prepared(**settings: Any) -> Any:
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**settings))
    with train_loader(num_workers=0) as loader:
        same = accelerator.prepare(loader) is loader
        return [same, [len(labels) for _, labels in loader]]


def rebuilt(build: Callable[[gpupipe.Loader], Any], **options: Any) -> Any:
    with train_loader(**options) as loader:
        return next(iter(build(loader)))


def skipped_by_its_state() -> Any:
    """What serves instead of skip_first_batches."""
    with train_loader(num_workers=0) as loader:
        whole = [labels.tolist() for _, labels in loader]
    with train_loader(num_workers=0) as loader:
        for step, _ in enumerate(loader):
            if step == 2:
                state = loader.state_dict()
                break
    with train_loader(num_workers=0) as loader:
        loader.load_state_dict(state)
        return [labels.tolist() for _, labels in loader] == whole[3:]


CASES: dict[str, Callable[[], Any]] = {
    "split_batches": lambda: prepared(split_batches=True),
    "dispatch_batches": lambda: prepared(dispatch_batches=True),
    "even_batches": lambda: prepared(even_batches=False),
    "use_seedable_sampler": lambda: prepared(use_seedable_sampler=True),
    "skip_first_batches": lambda: rebuilt(lambda loader: skip_first_batches(loader, 3), num_workers=0),
    "skip_first_batches, a worker": lambda: rebuilt(lambda loader: skip_first_batches(loader, 3), num_workers=1),
    "accelerator.skip_first_batches": lambda: rebuilt(
        lambda loader: Accelerator(cpu=True).skip_first_batches(loader, 3), num_workers=0
    ),
    "prepare_data_loader": lambda: rebuilt(Accelerator(cpu=True).prepare_data_loader, num_workers=0),
    "state_dict": skipped_by_its_state,
}


def outcome(case: Callable[[], Any]) -> Any:
    try:
        return case()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps({name: outcome(case) for name, case in CASES.items()}))
