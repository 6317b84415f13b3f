"""torchvision's MixUp and CutMix, and those of its references, which stand in a DataLoader's collate_fn."""

from __future__ import annotations

from typing import Any

from gpupipe.errors import TranslationError
from gpupipe.recipe.mixing import CutMix, Mixing, MixUp, MixUpOrCutMix
from gpupipe.recipe.translation.alike import mixing_like
from gpupipe.recipe.translation.code import mixed_with
from gpupipe.recipe.translation.untouched import check_made, check_own

__all__ = ["mixing_of"]

MIXING: dict[str, type[MixUp] | type[CutMix]] = {"MixUp": MixUp, "CutMix": CutMix}
WRITTEN = (
    "write it as `return mixup(*default_collate(batch))`, with MixUp, CutMix or RandomChoice of both of "
    "torchvision.transforms.v2 or RandomMixUp and RandomCutMix of its references, or pass that itself as collate_fn"
)


def mixing_of(collate_fn: Any) -> Mixing | None:
    """The mixing that a `collate_fn` does besides stacking samples: that of torchvision's MixUp, CutMix or RandomChoice
    of both, or of a function that only calls one; it draws once for a batch. Raises TranslationError."""
    import torch

    if collate_fn is None or collate_fn is torch.utils.data.default_collate:
        return None
    mixing = collate_fn if _options(collate_fn) else mixed_with(collate_fn)
    options = _options(mixing)
    if not options:
        name = getattr(collate_fn, "__qualname__", type(collate_fn).__qualname__)
        if mixing is None:
            raise TranslationError(f"collate_fn={name}", "gpupipe can't read what it does", WRITTEN)
        kinds = ", ".join(type(one).__name__ for one in (mixing, *getattr(mixing, "transforms", ())))
        raise TranslationError(f"collate_fn={name} with {kinds}", "gpupipe does not know these", WRITTEN)
    for one in (mixing, *options):
        check_own(one)
    read = [_settings(option) for option in options]
    alphas = {name: alpha for name, alpha, *_ in read}
    if len(alphas) < len(read) or len({common for *_, common in read}) > 1:
        names = ", ".join(f"{name}(alpha={alpha}, num_classes={one[0]}, p={one[1]})" for name, alpha, one in read)
        reason = "a recipe mixes by one of each, in the same classes and as often"
        raise TranslationError(f"RandomChoice of {names}", reason, WRITTEN)
    num_classes, p = read[0][2]
    if len(alphas) == 1:
        ((name, alpha),) = alphas.items()
        return MIXING[name](num_classes, alpha, p, alike=None)
    shares = dict(zip(alphas, mixing.p or (1.0, 1.0), strict=True))
    switch_p = shares["CutMix"] / sum(shares.values())
    return MixUpOrCutMix(num_classes, alphas["MixUp"], alphas["CutMix"], p, switch_p, alike=None)


def _options(mixing: Any) -> list[Any]:
    """The transforms of which one is taken for a batch; none if it is no such transform."""
    kind = type(mixing)
    ours = kind.__module__.startswith("torchvision.transforms.")
    if ours and kind.__name__ == "RandomChoice" and all(_options(option) == [option] for option in mixing.transforms):
        return list(mixing.transforms)
    return [mixing] if (ours and kind.__name__ in MIXING) or mixing_like(mixing) else []


def _settings(mixing: Any) -> tuple[str, float, tuple[int, float]]:
    """Its kind, alpha, and classes and probability."""
    name = type(mixing).__name__
    if name not in MIXING:
        return mixing_like(mixing), float(mixing.alpha), (int(mixing.num_classes), float(mixing.p))
    if mixing.num_classes is None:
        reason = "labels come as numbers of classes"
        raise TranslationError(f"{name}(num_classes=None)", reason, "give num_classes")
    if mixing._labels_getter is not type(mixing)(num_classes=1)._labels_getter:
        raise TranslationError(
            f"{name}(labels_getter=...)", "gpupipe can't read it", "leave it out: labels come second"
        )
    check_made(mixing, {"alpha": mixing.alpha, "num_classes": mixing.num_classes})
    return name, float(mixing.alpha), (int(mixing.num_classes), 1.0)
