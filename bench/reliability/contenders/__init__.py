"""The libraries, one file for each, behind one small protocol."""

from __future__ import annotations

import importlib

from reliability.contenders.base import Setup, Stream

__all__ = ["CONTENDERS", "Setup", "Stream", "contender"]

CONTENDERS = {
    "gpupipe": "gpupipe_loader:GpupipeStream",
    "torch": "torch_loader:TorchStream",
    "stateful": "stateful:StatefulStream",
    "webdataset": "webdataset_shards:WebDatasetStream",
}
"""Where each one's class lies."""


def contender(name: str) -> type[Stream]:
    """The class of a contender; its library is imported now."""
    module, _, attribute = CONTENDERS[name].partition(":")
    found: type[Stream] = getattr(importlib.import_module(f"reliability.contenders.{module}"), attribute)
    return found
