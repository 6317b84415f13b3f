"""Contenders of kernels.py: one file for each library that augments and normalizes batches of images."""

from __future__ import annotations

import importlib

from augmenters.work import Contender

__all__ = ["CONTENDERS", "load"]

CONTENDERS = {
    "gpupipe": "augmenters.ours:Ours",
    "torch eager": "augmenters.torch_batched:Eager",
    "torch.compile": "augmenters.torch_batched:Compiled",
    "torchvision v2 (batch)": "augmenters.torchvision_v2:Batch",
    "torchvision v2 (loop)": "augmenters.torchvision_v2:Loop",
    "kornia": "augmenters.kornia_classes:Kornia",
    "DALI": "augmenters.dali_auto_aug:Dali",
}


def load(name: str) -> Contender:
    """Import the contender's file and make one. Raises ImportError where its library is missing."""
    module, _, attribute = CONTENDERS[name].partition(":")
    contender: Contender = getattr(importlib.import_module(module), attribute)()
    return contender
