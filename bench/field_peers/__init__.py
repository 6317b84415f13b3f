"""Contenders of fields.py: samples of several fields, by gpupipe and by torchvision v2 on tv_tensors."""

from __future__ import annotations

__all__ = ["OURS", "THEIRS", "WAYS"]

OURS, THEIRS = "gpupipe", "torchvision v2, DataLoader"
WAYS = {OURS: "field_peers.ours:Ours?case=", THEIRS: "field_peers.torchvision_v2:TorchvisionV2?case="}
