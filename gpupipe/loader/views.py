"""What a model says of several views of a sample, as one."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from gpupipe.errors import ConfigError

__all__ = ["mean_over_views"]


def mean_over_views(outputs: Iterable[torch.Tensor]) -> torch.Tensor:
    """The mean of a model's outputs for each view of a batch, a row for each sample, at least float32: what
    `loader.gather` takes.

    outputs: of each view (N, ...), as from a generator, `model(view) for view in views`, so that one at a time is kept;
    those of one shape. Probabilities are merged by passing `.softmax(1)` of logits.

    Raises ConfigError where there is none, or shapes differ.
    """
    total, count = None, 0
    for output in outputs:
        output = output.float() if output.dtype in (torch.float16, torch.bfloat16) else output
        if total is not None and output.shape != total.shape:
            raise ConfigError(
                f"mean_over_views: view {count} has {tuple(output.shape)}, the first {tuple(total.shape)}; pass what "
                "the model makes of each view, a row for each sample"
            )
        total, count = output if total is None else total + output, count + 1
    if total is None:
        raise ConfigError("mean_over_views: there are no outputs; pass one tensor for each view")
    return total / count
