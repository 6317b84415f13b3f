"""torchvision's references/classification with one line changed: each DataLoader goes through `from_dataloader`.

`trained` does to its loaders what train.py there does, line by line, once with the DataLoaders and once with what they
became. Presets, samplers and collate_fn are made as they are there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from images import write_folder
from programs import RandomCutMix, RandomMixUp
from test_from_dataloader import RASampler
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler
from torch.utils.data.dataloader import default_collate
from torch.utils.data.distributed import DistributedSampler
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import gpupipe

CLASSES, PER_CLASS, BATCH, EPOCHS = 5, 52, 8, 2
SAMPLES = CLASSES * PER_CLASS  # 260: RASampler takes 256 of them
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Unlike(RandomMixUp):
    """Something else under that name."""

    def forward(self, batch: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        soft = torch.nn.functional.one_hot(target, CLASSES).to(batch.dtype)
        return batch * 0.7 + batch.roll(1, 0) * 0.3, soft * 0.7 + soft.roll(1, 0) * 0.3


Unlike.__name__ = "RandomMixUp"


@dataclass(frozen=True)
class Flags:
    """train.py's arguments that have to do with its loaders."""

    auto_augment: str | None = None
    random_erase: float = 0.0
    mixup_alpha: float = 0.0
    cutmix_alpha: float = 0.0
    ra_sampler: bool = False
    ranks: int = 1
    backend: str = "pil"
    use_v2: bool = False
    mixup: Any = RandomMixUp

    @property
    def transforms(self) -> Any:
        return v2 if self.use_v2 else v1


class Preset:
    """What calls a Compose, as both presets do."""

    def __init__(self, flags: Flags, *operations: Any) -> None:
        T = flags.transforms
        to_float = T.ToDtype(torch.float, scale=True) if flags.use_v2 else T.ConvertImageDtype(torch.float)
        parts = [*operations, to_float, T.Normalize(mean=MEAN, std=STD)]
        parts.insert(0 if flags.backend == "tensor" else len(operations), T.PILToTensor())
        parts += [T.RandomErasing(p=flags.random_erase)] if flags.random_erase > 0 else []
        parts += [T.ToPureTensor()] if flags.use_v2 else []
        self.transforms = T.Compose(parts)

    def __call__(self, img: Any) -> Any:
        return self.transforms(img)


def train_preset(flags: Flags) -> Preset:
    T = flags.transforms
    parts = [T.RandomResizedCrop(16, antialias=True), T.RandomHorizontalFlip(0.5)]
    if flags.auto_augment == "ra":
        parts.append(T.RandAugment(magnitude=9))
    elif flags.auto_augment == "ta_wide":
        parts.append(T.TrivialAugmentWide())
    elif flags.auto_augment == "augmix":
        parts.append(T.AugMix(severity=3, alpha=2.0))  # of other shares than a recipe's
    elif flags.auto_augment is not None:
        parts.append(T.AutoAugment(policy=T.AutoAugmentPolicy(flags.auto_augment)))
    return Preset(flags, *parts)


def eval_preset(flags: Flags) -> Preset:
    T = flags.transforms
    return Preset(flags, T.Resize(20, antialias=True), T.CenterCrop(16))


def collate_of(flags: Flags) -> Callable[[Any], Any]:
    T = flags.transforms
    options = []
    if flags.mixup_alpha > 0:
        options.append((v2.MixUp if flags.use_v2 else flags.mixup)(alpha=flags.mixup_alpha, num_classes=CLASSES))
    if flags.cutmix_alpha > 0:
        options.append((v2.CutMix if flags.use_v2 else RandomCutMix)(alpha=flags.cutmix_alpha, num_classes=CLASSES))
    if not options:
        return default_collate
    mixup_cutmix = T.RandomChoice(options)

    def collate_fn(batch):
        return mixup_cutmix(*default_collate(batch))

    return collate_fn


def loaders(flags: Flags, folder: Path, rank: int) -> tuple[DataLoader[Any], DataLoader[Any]]:
    dataset, dataset_test = ImageFolder(folder, train_preset(flags)), ImageFolder(folder, eval_preset(flags))
    sampler, test_sampler = RandomSampler(dataset), SequentialSampler(dataset_test)
    if flags.ranks > 1:
        sampler = DistributedSampler(dataset, flags.ranks, rank)
        test_sampler = DistributedSampler(dataset_test, flags.ranks, rank, shuffle=False)
    if flags.ra_sampler:
        sampler = RASampler(dataset, flags.ranks, rank, shuffle=True, repetitions=3)
    collate_fn = collate_of(flags)
    return (
        DataLoader(dataset, BATCH, sampler=sampler, num_workers=0, pin_memory=False, collate_fn=collate_fn),
        DataLoader(dataset_test, BATCH, sampler=test_sampler, num_workers=0, pin_memory=False),
    )


def log_every(loader: Any) -> Iterator[Any]:
    """As train.py's, which asks for the length meanwhile."""
    for step, batch in enumerate(loader):
        assert step < len(loader)
        yield batch


def trained(flags: Flags, folder: Path, rank: int, replace: Callable[[Any], Any]) -> Any:
    """The loaders, the form of each batch, and the samples of each epoch where they are known."""
    torch.manual_seed(0)
    theirs, theirs_test = loaders(flags, folder, rank)
    sampler = theirs.sampler
    loader, loader_test = replace(theirs), replace(theirs_test)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    forms, samples = [], [[] for _ in range(EPOCHS)]
    for epoch in range(EPOCHS):
        if flags.ranks > 1:
            sampler.set_epoch(epoch)
        model.train()
        for image, target in log_every(loader):
            image, target = image.to("cpu"), target.to("cpu")
            loss = criterion(model(image), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            assert loss.isfinite()
            forms.append((image.shape, image.dtype, target.shape, target.dtype))
            samples[epoch] += getattr(loader, "last_indices", torch.empty(0)).tolist()
        model.eval()
        with torch.inference_mode():
            seen = [target for _, target in log_every(loader_test)]
        assert len(loader_test.dataset) == SAMPLES
        assert sum(map(len, seen)) == SAMPLES // flags.ranks
    return SimpleNamespace(loader=loader, test=loader_test, forms=forms, samples=samples)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = ((24, 30), (32, 20), (26, 26))
    return write_folder(tmp_path_factory.mktemp("references"), CLASSES, PER_CLASS, sizes)


def as_it_is(loader: Any) -> Any:
    return loader


WHOLE = {
    "the defaults": Flags(),
    "two ranks": Flags(ranks=2),
    "tensor": Flags(backend="tensor"),
    "v2 tensor": Flags(backend="tensor", use_v2=True, ranks=2),
    "RandAugment, erasing": Flags(auto_augment="ra", random_erase=0.25),
    "AutoAugment": Flags(auto_augment="imagenet", use_v2=True),
    "the recipe of IMAGENET1K_V2": Flags("ta_wide", 0.1, 0.2, 1.0, ra_sampler=True, ranks=2, use_v2=True),
    "mixing for v1": Flags("ta_wide", 0.1, 0.2, 1.0, ra_sampler=True, ranks=2),
    "MixUp for v1": Flags(mixup_alpha=0.2),
    "CutMix alone": Flags(cutmix_alpha=1.0, use_v2=True),
}


@pytest.mark.parametrize("flags", WHOLE.values(), ids=WHOLE.keys())
def test_is_translated_whole_and_trains(flags: Flags, images: Path) -> None:
    ours = [trained(flags, images, rank, gpupipe.from_dataloader) for rank in range(flags.ranks)]
    assert all(one.loader.translation.complete and one.test.translation.complete for one in ours)
    assert all(one.loader.recipe is not None and one.loader.world_size == flags.ranks for one in ours)
    assert trained(flags, images, 0, as_it_is).forms == ours[0].forms
    epochs = [[sample for one in ours for sample in one.samples[epoch]] for epoch in range(EPOCHS)]
    assert epochs[0] != epochs[1]
    for epoch in epochs:
        if flags.ra_sampler:
            assert len(epoch) == SAMPLES // 256 * 256
            assert Counter(Counter(epoch).values())[3] >= 85 - 1  # 256 / 3, but for what is cut off at the end
        else:
            assert sorted(epoch) == list(range(SAMPLES))


def test_evaluation_has_the_same_pixels(images: Path) -> None:
    _, theirs = loaders(Flags(), images, 0)
    for (image, target), (their_image, their_target) in zip(gpupipe.from_dataloader(theirs), theirs, strict=True):
        torch.testing.assert_close(image, their_image, rtol=0, atol=1e-6)
        assert torch.equal(target, their_target)


AS_WRITTEN = {
    "AugMix": (Flags(auto_augment="augmix"), "transform", "AugMix"),
    "another mixing": (
        Flags(mixup_alpha=0.2, mixup=Unlike),
        "collate_fn",
        "MixUp, CutMix or RandomChoice of both of torchvision",
    ),
}


@pytest.mark.parametrize(("flags", "part", "why"), AS_WRITTEN.values(), ids=AS_WRITTEN.keys())
def test_what_has_no_counterpart_runs_as_it_is_written_and_is_named(
    flags: Flags, part: str, why: str, images: Path
) -> None:
    ours = trained(flags, images, 0, gpupipe.from_dataloader)
    assert ours.test.translation.complete
    (line,) = ours.loader.translation.untranslated
    assert line.part == part
    assert why in line.why
    assert trained(flags, images, 0, as_it_is).forms == ours.forms
    assert [sorted(epoch) for epoch in ours.samples] == [list(range(SAMPLES))] * EPOCHS
