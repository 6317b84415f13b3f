"""Models by name, a training step, and how long its device waited for data."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from gpupipe.errors import ConfigError
from gpupipe.sources import Source
from gpupipe.sources.raised import form_of

__all__ = ["TrainingStep", "WaitClock", "build_model", "check_model", "classes_of"]

# Of torchvision's: without their further heads, whose scores training them would take besides.
PLAIN = {name: {"aux_logits": False} for name in ("googlenet", "inception_v3")}


class TrainingStep:
    """One update of `model`: cross entropy, SGD with Nesterov's momentum.

    device, layout: where the model lies, and in which memory layout; images are brought there.
    amp:            bfloat16 autocast.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        *,
        amp: bool,
        layout: torch.memory_format,
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        label_smoothing: float = 0.1,
    ) -> None:
        self.model = model
        self.device = device
        self.amp = amp
        self.layout = layout
        self.criterion = nn.CrossEntropyLoss(label_smoothing=label_smoothing)
        parameters = list(model.parameters())
        self.optimizer = torch.optim.SGD(parameters, lr, momentum, weight_decay=weight_decay, nesterov=True)

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss; it stays on the device, so the host can run ahead."""
        images, labels = self.to_device(images, labels)
        with self.autocast():
            loss: torch.Tensor = self.criterion(self.model(images), labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def autocast(self) -> AbstractContextManager[Any]:
        """bfloat16 where it is asked for."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.amp)

    def to_device(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch on the model's device, in its memory layout."""
        images = images.to(self.device, non_blocking=True, memory_format=self.layout)
        return images, labels.to(self.device, non_blocking=True)


class WaitClock:
    """When the device of a model worked on steps, and for how long it stood still because a batch was not there.

    On a GPU two events enclose each wait on the stream of the model: the first passes when the step before is done,
    the second when the batch is there. While the host runs ahead of the GPU they pass together and nothing is counted.
    It waits for this stream alone: what a loader makes ahead on others goes on, and counts neither way.
    """

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self._waits: list[tuple[Any, Any]] = []
        self._begin, self._begin_at = self._mark(), 0.0
        if self.on_gpu:
            torch.cuda.current_stream().synchronize()
        self._begin_at = time.perf_counter()

    def timed(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches, with the time that each takes to come noted."""
        iterator = iter(batches)
        while True:
            before = self._mark()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            self._waits.append((before, self._mark()))
            yield batch

    def _mark(self) -> Any:
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self) -> float:
        """All waits so far; waits for the steps so far."""
        return float(sum(end - start for start, end in self.waits()))

    def waits(self) -> list[tuple[float, float]]:
        """Start and end of each wait, in seconds of `time.perf_counter`; waits for the steps so far."""
        if not self.on_gpu:
            return list(self._waits)
        torch.cuda.current_stream().synchronize()
        return [(self._at(before), self._at(after)) for before, after in self._waits]

    def _at(self, event: Any) -> float:
        return self._begin_at + float(self._begin.elapsed_time(event)) / 1000


def classes_of(source: Source) -> int:
    """How many classes the data has. Raises DataError where that is known only by reading every sample."""
    return len(source.classes) if source.classes is not None else int(source.targets.max()) + 1


def build_model(name: str, classes: int) -> nn.Module:
    """A new model by name: 'tiny', 'timm:NAME', or one of torchvision's. Raises ConfigError for a name that is none."""
    if name == "tiny":
        return _tiny(classes)
    if name.startswith("timm:"):
        return _of_timm(name.removeprefix("timm:"), classes)
    import torchvision

    try:
        build = torchvision.models.get_model_builder(name)
    except ValueError:
        raise ConfigError(
            f"model={name!r} is not one of torchvision's, see torchvision.models.list_models(); for timm's write "
            f"'timm:{name}'"
        ) from None
    return build(weights=None, num_classes=classes, **PLAIN.get(name, {}))  # type: ignore[no-any-return]


def check_model(model: nn.Module, name: str, classes: int, size: int) -> None:
    """Raise ConfigError for one that does not make scores (N, classes) of images (N, 3, size, size)."""
    images = torch.zeros(2, 3, size, size, device=next(model.parameters()).device)
    try:
        with torch.no_grad():
            scores = model(images)
    except Exception as error:  # each model has checks of its own, or none
        raise ConfigError(
            f"model={name!r} can't take images of size={size}: {type(error).__name__}: {error}; pass the size that it "
            "is made for, or another model"
        ) from error
    if not isinstance(scores, torch.Tensor) or scores.shape != (2, classes):
        raise ConfigError(
            f"model={name!r} is no classifier of images: of {tuple(images.shape)} it makes {form_of(scores)}, not "
            f"scores (2, {classes}); pass another model"
        )


def _of_timm(name: str, classes: int) -> nn.Module:
    try:
        import timm
    except ModuleNotFoundError:
        raise ConfigError(f"model='timm:{name}' needs timm; pip install timm") from None
    if not timm.is_model(name):
        raise ConfigError(f"model='timm:{name}' is not one of timm's, see timm.list_models()")
    return timm.create_model(name, num_classes=classes)  # type: ignore[no-any-return]


def _tiny(classes: int) -> nn.Module:
    """Five convolutions: enough for the made classes, and quick on a CPU."""
    widths = (3, 24, 48, 96, 128, 160)
    layers: list[nn.Module] = []
    for narrow, wide in itertools.pairwise(widths):
        layers += [nn.Conv2d(narrow, wide, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(wide), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))
