"""Models by name, to train while loading is measured."""

from __future__ import annotations

import itertools

from torch import nn

from gpupipe.sources import Source

__all__ = ["build_model", "classes_of"]


def classes_of(source: Source) -> int:
    """How many classes the data has. Raises DataError where that is known only by reading every sample."""
    return len(source.classes) if source.classes is not None else int(source.targets.max()) + 1


def build_model(name: str, classes: int) -> nn.Module:
    """A new model by name: 'tiny', 'timm:NAME', or one of torchvision's."""
    if name == "tiny":
        return _tiny(classes)
    if name.startswith("timm:"):
        import timm

        return timm.create_model(name.removeprefix("timm:"), num_classes=classes)  # type: ignore[no-any-return]
    import torchvision

    return torchvision.models.get_model(name, weights=None, num_classes=classes)  # type: ignore[no-any-return]


def _tiny(classes: int) -> nn.Module:
    """Five convolutions: enough for the made classes, and quick on a CPU."""
    widths = (3, 24, 48, 96, 128, 160)
    layers: list[nn.Module] = []
    for narrow, wide in itertools.pairwise(widths):
        layers += [nn.Conv2d(narrow, wide, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(wide), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))
