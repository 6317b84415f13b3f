"""What is hot and no library does as well. Plain tensors in and out; imported as `gpupipe.kernels`."""

from __future__ import annotations

from gpupipe.kernels.finish import finish, finish_reference

__all__ = ["finish", "finish_reference"]
