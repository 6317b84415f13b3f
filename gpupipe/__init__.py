"""gpupipe: a GPU-accelerated vision input pipeline on NVIDIA DALI, in the place of PyTorch's DataLoader."""

from __future__ import annotations

import importlib
import logging
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from gpupipe import batch, errors, recipe
from gpupipe.batch import *
from gpupipe.errors import *
from gpupipe.recipe import *
from gpupipe.texts import in_log

if TYPE_CHECKING:
    from gpupipe.decode.decoders import *
    from gpupipe.host.limits import Limits as Limits
    from gpupipe.integrations.transformers import *
    from gpupipe.loader.loader import *
    from gpupipe.loader.views import *
    from gpupipe.migration.dataloader import *
    from gpupipe.order import *
    from gpupipe.plan.crops import output_sizes as output_sizes
    from gpupipe.sources import (
        Manifest as Manifest,
        Mixture as Mixture,
        Parquet as Parquet,
        Query as Query,
        Source as Source,
        Stream as Stream,
        check_source as check_source,
        open_source as open_source,
    )
    from gpupipe.sources.remote.cache import Cache as Cache

# The rooms of names that are imported when they are first used: torch, which these rooms import, takes a second, and
# `gpupipe doctor` has to start where torch can't be imported at all.
_LATER = {"Decoders": "decode.decoders", "Loader": "loader.loader", "TrainerLoader": "integrations.transformers"}
_LATER |= {"from_dataloader": "migration.dataloader", "mean_over_views": "loader.views"}
_LATER |= dict.fromkeys(("Manifest", "Mixture", "Parquet", "Query", "Source", "Stream"), "sources")
_LATER |= dict.fromkeys(("check_source", "open_source"), "sources")
_LATER |= {"Cache": "sources.remote.cache", "Limits": "host.limits"}
_LATER |= dict.fromkeys(("BlockShuffled", "Order", "Repeated", "Sequential", "Shuffled", "Stratified"), "order")
_LATER |= dict.fromkeys(("NodeBlocks", "Subset", "VirtualEpochs", "Weighted", "split"), "order")
_LATER |= dict.fromkeys(("Buckets", "BudgetBatches"), "order") | {"output_sizes": "plan.crops"}

__all__ = sorted([*batch.__all__, *errors.__all__, *recipe.__all__, *_LATER])

logging.getLogger("gpupipe").addFilter(in_log)

try:
    __version__ = version("gpupipe")
except PackageNotFoundError:  # used from a checkout that was not installed
    __version__ = "0+unknown"


if not TYPE_CHECKING:  # for which any name would be there

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(f"module 'gpupipe' has no attribute {name!r}")
        return getattr(importlib.import_module(f"gpupipe.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
