"""Batches from pinned memory to the GPU, one ahead, on a stream of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from gpupipe.engines.base import EngineBatch

__all__ = ["to_device", "transferred"]


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`tensor` on `device`, without waiting for the copy; tensors that are there come back as they are."""
    if tensor.device == device:
        return tensor
    if device.type == "cuda" and not tensor.is_pinned():
        tensor = tensor.pin_memory()  # from pageable memory the copy would hold up the host
    return tensor.to(device, non_blocking=True)


def transferred(batches: Iterable[EngineBatch], stream: torch.cuda.Stream) -> Iterator[EngineBatch]:
    """The batches on the device of `stream`, which copies. While the consumer works on one, the next is being copied.

    copy stream:      |copy 1|copy 2|       |copy 3|
    consumer stream:         | work 1 |wait for 2| work 2 |
    """
    device = stream.device
    ahead: tuple[EngineBatch, torch.cuda.Event] | None = None
    for batch in batches:
        with torch.cuda.stream(stream):
            images, labels = tuple(to_device(view, device) for view in batch.images), to_device(batch.labels, device)
            copied = replace(batch, images=images, labels=labels)
            copied_event = stream.record_event()
        if ahead is not None:
            yield _arrived(*ahead)
        ahead = copied, copied_event
    if ahead is not None:
        yield _arrived(*ahead)


def _arrived(batch: EngineBatch, event: torch.cuda.Event) -> EngineBatch:
    """The batch, safe to use on the consumer's current stream."""
    consumer = torch.cuda.current_stream(batch.labels.device)
    consumer.wait_event(event)
    for tensor in (*batch.images, batch.labels):
        tensor.record_stream(consumer)  # else its memory could be given to a later copy while it is still read
    return batch
