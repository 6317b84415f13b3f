"""The libraries, one file for each, behind one small protocol."""

from __future__ import annotations

import importlib
import importlib.util

from reliability.contenders.base import Setup, Stream

__all__ = ["CONTENDERS", "Setup", "Stream", "contender"]

CONTENDERS = {
    "gpupipe": "gpupipe_loader:GpupipeStream",
    "gpupipe-dali": "gpupipe_loader:GpupipeDaliStream",
    "torch": "torch_loader:TorchStream",
    "stateful": "stateful:StatefulStream",
    "webdataset": "webdataset_shards:WebDatasetStream",
    "litdata": "stores:LitData",
    "streaming": "stores:Streaming",
    "dali": "dali_iterator:DaliIterator",
    "s3torchconnector": "stores:Connector",
}
"""Where each one's class lies."""


def contender(name: str) -> type[Stream]:
    """The class of a contender. Raises ImportError without its library."""
    module, _, attribute = CONTENDERS[name].partition(":")
    found: type[Stream] = getattr(importlib.import_module(f"reliability.contenders.{module}"), attribute)

    if found.library and importlib.util.find_spec(found.library) is None:
        raise ImportError(f"no module named {found.library}")
    return found
