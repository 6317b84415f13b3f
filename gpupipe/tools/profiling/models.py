"""Models by name, to train while loading is measured."""

from __future__ import annotations

import itertools

from torch import nn

from gpupipe.errors import ConfigError
from gpupipe.sources import Source

__all__ = ["build_model", "classes_of"]


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
    return build(weights=None, num_classes=classes)  # type: ignore[no-any-return]


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
