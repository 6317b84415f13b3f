"""timm's train.py with Loaders in the place of what its create_loader returns, in both of its modes.

`train` does to a loader what the script does, line by line. What it hands to the model is compared with the loader's
own batches, and their form with that of timm's loaders under the same flags.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from images import Numbered, encode, picture
from PIL import Image
from torch.nn import functional

import gpupipe

pytestmark = pytest.mark.trainers("timm")

CLASSES, SIZE, BATCH, EPOCHS = 3, 16, 4, 3
PLAIN = gpupipe.imagenet_train(SIZE)
MIXING = gpupipe.timm_a_train("A2", SIZE, num_classes=CLASSES)
FILES = [encode(picture(24, 30, seed)) for seed in range(4)]


@dataclass(frozen=True)
class Flags:
    """The script's arguments that have to do with its loaders, with its defaults."""

    mixup: float = 0.0
    cutmix: float = 0.0
    smoothing: float = 0.1
    bce_loss: bool = False
    mixup_off_epoch: int = 0
    no_prefetcher: bool = False

    @property
    def mixing(self) -> bool:
        return self.mixup > 0 or self.cutmix > 0


@dataclass(frozen=True)
class Step:
    """What the model was given, and what came of it."""

    epoch: int
    images: torch.Tensor
    targets: torch.Tensor
    outputs: torch.Tensor
    loss: torch.Tensor


class Labelled(Numbered):
    """Classes for labels."""

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        return super().__getitem__(index)[0], index % CLASSES


def open_loader(recipe: Any, **options: Any) -> gpupipe.Loader:
    options = {"shuffle": True, "drop_last": True, "seed": 3} | options
    return gpupipe.Loader(Labelled(18, FILES), recipe, BATCH, engine="torch", num_workers=0, device="cpu", **options)


def own_batches(recipe: Any, epoch: int, mixup_enabled: bool) -> list[tuple[torch.Tensor, torch.Tensor]]:
    with open_loader(recipe) as loader:
        loader.set_epoch(epoch)
        if mixup_enabled != loader.mixup_enabled:
            loader.mixup_enabled = mixup_enabled
        return [(images.clone(), labels.clone()) for images, labels in loader]


def until_1_0_28(loader: Any, epoch: int) -> None:
    """In one process the script called no set_epoch."""


def since_1_0_29(loader: Any, epoch: int) -> None:
    if hasattr(loader.dataset, "set_epoch"):
        loader.dataset.set_epoch(epoch)
    if hasattr(loader.batch_sampler, "set_epoch"):
        loader.batch_sampler.set_epoch(epoch)
    elif hasattr(loader.sampler, "set_epoch"):
        loader.sampler.set_epoch(epoch)


def mixer(flags: Flags, kind: str) -> Any:
    from timm import data

    return getattr(data, kind)(
        mixup_alpha=flags.mixup, cutmix_alpha=flags.cutmix, label_smoothing=flags.smoothing, num_classes=CLASSES
    )


def loss_function(flags: Flags) -> Any:
    from timm.loss import BinaryCrossEntropy, LabelSmoothingCrossEntropy, SoftTargetCrossEntropy

    if flags.mixing:
        return BinaryCrossEntropy() if flags.bce_loss else SoftTargetCrossEntropy()
    if flags.smoothing:
        smoothed = BinaryCrossEntropy if flags.bce_loss else LabelSmoothingCrossEntropy
        return smoothed(smoothing=flags.smoothing)
    return torch.nn.CrossEntropyLoss()


def train(loader: Any, flags: Flags, set_loader_epoch: Callable[[Any, int], None]) -> list[Step]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * SIZE * SIZE, CLASSES))
    loss_fn = loss_function(flags)
    mixup_fn = mixer(flags, "Mixup") if flags.mixing and flags.no_prefetcher else None
    steps = []
    for epoch in range(EPOCHS):
        set_loader_epoch(loader, epoch)
        if flags.mixup_off_epoch and epoch >= flags.mixup_off_epoch:
            if not flags.no_prefetcher and loader.mixup_enabled:
                loader.mixup_enabled = False
            elif mixup_fn is not None:
                mixup_fn.mixup_enabled = False
        for images, targets in loader:
            if flags.no_prefetcher:
                images, targets = images.to(device="cpu", dtype=None), targets.to(device="cpu")
                if mixup_fn is not None:
                    images, targets = mixup_fn(images, targets)
            outputs = model(images)
            loss = loss_fn(outputs, targets)
            loss.backward()
            steps.append(Step(epoch, images.clone(), targets.clone(), outputs.detach(), loss.detach()))
    return steps


def expected_loss(step: Step, flags: Flags) -> torch.Tensor:
    """By torch's own functions; what soft targets are smoothed by is in them already."""
    soft = step.targets.ndim == 2
    if flags.bce_loss:
        targets = step.targets if soft else functional.one_hot(step.targets, CLASSES) * (1 - flags.smoothing)
        targets = targets if soft else targets + flags.smoothing / CLASSES
        return functional.binary_cross_entropy_with_logits(step.outputs, targets)
    return functional.cross_entropy(step.outputs, step.targets, label_smoothing=0.0 if soft else flags.smoothing)


MIXED = Flags(mixup=0.1, cutmix=1.0)
RIGHT = {
    "plain": (PLAIN, Flags()),
    "plain, no prefetcher": (PLAIN, Flags(no_prefetcher=True)),
    "plain, bce": (PLAIN, Flags(bce_loss=True)),
    "plain, no smoothing": (PLAIN, Flags(smoothing=0.0)),
    "mixing": (MIXING, MIXED),
    "mixing, bce": (MIXING, replace(MIXED, bce_loss=True)),
    "mixing, off from epoch 1": (MIXING, replace(MIXED, mixup_off_epoch=1)),
    "plain, off from epoch 1": (PLAIN, Flags(mixup_off_epoch=1)),
    "mixing, no prefetcher": (MIXING, Flags(smoothing=0.0, no_prefetcher=True)),
}


@pytest.mark.parametrize("set_loader_epoch", [until_1_0_28, since_1_0_29])
@pytest.mark.parametrize(("recipe", "flags"), RIGHT.values(), ids=RIGHT.keys())
def test_the_model_is_given_what_the_loader_makes(
    recipe: Any, flags: Flags, set_loader_epoch: Callable[[Any, int], None]
) -> None:
    with open_loader(recipe) as loader:
        steps = train(loader, flags, set_loader_epoch)
    for epoch in range(EPOCHS):
        enabled = recipe is MIXING and not 0 < flags.mixup_off_epoch <= epoch
        own = own_batches(recipe, epoch, enabled)
        given = [step for step in steps if step.epoch == epoch]
        for step, (images, targets) in zip(given, own, strict=True):
            assert torch.equal(step.images, images)
            assert torch.equal(step.targets, targets)
            torch.testing.assert_close(step.loss, expected_loss(step, flags))
        assert any(step.targets.ndim == 2 and bool((step.targets.amax(1) < 1).any()) for step in given) == enabled


@pytest.mark.parametrize(
    ("recipe", "flags"),
    [
        (MIXING, Flags()),
        (MIXING, Flags(no_prefetcher=True)),
        (MIXING, replace(MIXED, no_prefetcher=True)),
        (PLAIN, MIXED),
    ],
    ids=str,
)
def test_flags_for_other_labels_fail_at_the_first_batch(recipe: Any, flags: Flags) -> None:
    with open_loader(recipe) as loader, pytest.raises(RuntimeError, match=r"gather|must match"):
        train(loader, flags, since_1_0_29)


def pictures(seed: int) -> Any:
    """What timm's create_loader takes: it sets the transform."""

    class Pictures(torch.utils.data.Dataset[Any]):
        transform: Any = None

        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> tuple[Any, int]:
            return self.transform(Image.fromarray(picture(24, 30, seed + index))), index % CLASSES

    return Pictures()


FORMS = [RIGHT[name] for name in ("plain", "plain, no prefetcher", "mixing")]


@pytest.mark.parametrize(("recipe", "flags"), FORMS, ids=["plain", "plain, no prefetcher", "mixing"])
def test_batches_have_the_form_of_timms_own(recipe: Any, flags: Flags) -> None:
    from timm.data import create_loader

    theirs, _ = next(
        zip(
            create_loader(
                pictures(0),
                (3, SIZE, SIZE),
                BATCH,
                is_training=True,
                num_workers=0,
                device=torch.device("cpu"),
                use_prefetcher=not flags.no_prefetcher,
                collate_fn=mixer(flags, "FastCollateMixup") if flags.mixing else None,
            ),
            "1",
            strict=False,
        )
    )
    with open_loader(recipe) as loader:
        ours = next(iter(loader))
        for one, other in zip(ours, theirs, strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert ours[0].min() < 0  # normalized, as theirs
        assert theirs[0].min() < 0


def test_the_validation_loader_is_taken_as_it_is() -> None:
    from timm.utils import accuracy

    with open_loader(gpupipe.timm_a_eval(SIZE), shuffle=False, drop_last=False) as loader:
        whole = [labels.tolist() for _, labels in loader]
        assert whole == [
            [index % CLASSES for index in range(start, min(start + BATCH, 18))] for start in range(0, 18, 4)
        ]
        for _ in range(2):  # once for the model, once for its moving average
            for step, (images, labels) in enumerate(loader):
                assert step <= len(loader) - 1
                outputs = functional.one_hot(labels, CLASSES).float()
                assert torch.nn.CrossEntropyLoss()(outputs, labels) > 0
                assert accuracy(outputs, labels)[0].item() == 100
                assert images.dtype == torch.float32
