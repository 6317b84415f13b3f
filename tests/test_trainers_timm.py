"""timm's train.py and validate.py with Loaders in the place of what its create_loader returns, in both of its modes.

`train` and `validate` do to a loader what the scripts do, line by line. What the model is handed is compared with the
loader's own batches, and with those of timm's create_loader on the same files under the same flags.
"""

from __future__ import annotations

import copy
import inspect
import logging
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images import Numbered, encode, picture, write_folder
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


# create_loader


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of three classes, whose names timm sorts by their numbers."""
    return write_folder(tmp_path_factory.mktemp("timm"), CLASSES, 11, ((40, 60), (33, 31), (30, 80)))


def loaders(folder: Path, **options: Any) -> tuple[Any, Any]:
    """timm's and gpupipe's, of a dataset each."""
    from timm.data import create_dataset, create_loader

    from gpupipe.integrations.timm import create_loader as own

    options = {"input_size": (3, SIZE, SIZE), "batch_size": BATCH, "num_workers": 0} | options
    options["device"] = torch.device("cpu")
    dataset = options.pop("dataset", None)
    return tuple(
        create(dataset or create_dataset("", folder), **options | {"collate_fn": copy.copy(options.get("collate_fn"))})
        for create in (create_loader, own)
    )


def taken(loader: Any) -> tuple[np.ndarray, np.ndarray]:
    """All images and labels of an epoch."""
    images, labels = zip(*((images.float().clone(), labels.clone()) for images, labels in loader), strict=True)
    return torch.cat(images).numpy(), torch.cat(labels).numpy()


def test_its_signature_is_timms() -> None:
    from timm.data import create_loader

    from gpupipe.integrations.timm import create_loader as own

    assert inspect.signature(own) == inspect.signature(create_loader)
    with pytest.raises(TypeError, match="scala"):
        own(None, 224, 8, scala=(0.1, 1))


def validate(loader: Any, no_prefetcher: bool) -> tuple[float, float]:
    """As the script does: loss and accuracy."""
    from timm.utils import AverageMeter, accuracy

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * SIZE * SIZE, CLASSES)).eval()
    criterion = torch.nn.CrossEntropyLoss()
    losses, top1 = AverageMeter(), AverageMeter()
    with torch.inference_mode():
        for batch_idx, (inputs, target) in enumerate(loader):
            if no_prefetcher:
                target = target.to(device="cpu")
                inputs = inputs.to(device="cpu", dtype=None)
            inputs = inputs.contiguous(memory_format=torch.channels_last)
            output = model(inputs)
            losses.update(criterion(output, target).item(), output.shape[0])
            top1.update(accuracy(output.detach(), target)[0].item(), output.shape[0])
            assert batch_idx < len(loader)
    return losses.avg, top1.avg


def collated(items: list[Any]) -> Any:
    """As in a script of one's own, of which gpupipe knows nothing."""
    return torch.utils.data.default_collate(items)


EVALUATIONS: dict[str, dict[str, Any]] = {
    "usual": {},
    "bicubic": {"interpolation": "bicubic", "crop_pct": 0.95},
    "workers": {"num_workers": 2, "crop_pct": 1.0},
    "no prefetcher": {"use_prefetcher": False},
    "as it is": {"crop_mode": "border"},
    "as it is, no prefetcher": {"crop_mode": "border", "use_prefetcher": False, "num_workers": 2},
    "a collate_fn of one's own": {"collate_fn": collated, "use_prefetcher": False},
}


@pytest.mark.parametrize("options", EVALUATIONS.values(), ids=EVALUATIONS.keys())
def test_evaluation_is_timms(folder: Path, options: dict[str, Any]) -> None:
    theirs, ours = loaders(folder, **options)
    assert len(ours) == len(theirs) == 9
    (images, labels), (expected, expected_labels) = taken(ours), taken(theirs)
    np.testing.assert_array_equal(labels, expected_labels)
    np.testing.assert_allclose(images, expected, atol=2e-6)
    no_prefetcher = not options.get("use_prefetcher", True)
    np.testing.assert_allclose(validate(ours, no_prefetcher), validate(theirs, no_prefetcher), rtol=1e-5)


def test_its_report_speaks_of_its_arguments(folder: Path) -> None:
    """Not of overrides, which the script does not pass."""
    made = loaders(folder)[1].translation
    (line,) = [line for line in made.lines if line.part == "transform"]
    assert (line.was, made.complete) == ("create_transform's, of the arguments", True)
    assert line.now == "Recipe of ResizeCenterCrop, Normalize, float32"
    made = loaders(folder, crop_mode="border")[1].translation
    (line,) = made.untranslated
    assert (line.part, line.why.partition(" can't")[0]) == ("dataset", "ResizeKeepRatio(crop_mode='border')")
    assert "overrides" not in str(made)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_batches_have_the_dtype_that_is_asked_for(folder: Path, dtype: torch.dtype) -> None:
    theirs, ours = loaders(folder, img_dtype=dtype)
    for (images, _), (expected, _) in zip(ours, theirs, strict=True):
        assert images.dtype == expected.dtype == dtype
        torch.testing.assert_close(images, expected, rtol=0, atol=0.05)


def test_images_in_a_tar_and_with_features(folder: Path, tmp_path: Path) -> None:
    import tarfile

    from timm.data import ImageDataset

    with tarfile.open(tmp_path / "images.tar", "w") as tar:
        tar.add(folder, arcname=".")
    for made in (lambda: ImageDataset(str(tmp_path / "images.tar"), reader="tar"), lambda: further(folder)):
        theirs, ours = (loaders(folder, dataset=made())[number] for number in (0, 1))
        (images, labels), (expected, expected_labels) = taken(ours), taken(theirs)
        np.testing.assert_array_equal(labels, expected_labels)
        np.testing.assert_allclose(images, expected, atol=2e-6)


def further(folder: Path) -> Any:
    """Whose samples have more than an image and a label."""
    from timm.data import ImageDataset

    class Reader:
        def __init__(self) -> None:
            self.files = sorted(folder.rglob("*.jpg"))

        def __len__(self) -> int:
            return len(self.files)

        def __getitem__(self, index: int) -> tuple[Any, int, str]:
            return self.files[index].open("rb"), index % CLASSES, self.files[index].name

    return ImageDataset(str(folder), reader=Reader(), additional_features=["name"])


SMOOTH = {"mixup": 0.8, "cutmix": 1.0}


@pytest.mark.parametrize("no_prefetcher", [False, True])
@pytest.mark.parametrize(
    ("options", "warning"),
    [
        ({"interpolation": "random"}, ""),
        ({"auto_augment": "original"}, "policy=.*timm's own AutoAugment"),
        ({"train_crop_mode": "rkrc"}, "train_crop_mode='rkrc.*transform and collate_fn run"),
    ],
    ids=["recipe", "timm's augmentation", "as it is"],
)
def test_training_is_timms(
    folder: Path, options: dict[str, Any], warning: str, no_prefetcher: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The same samples and labels, in an order of its own that is new in each epoch, in batches of the same form."""
    flags = Flags(**SMOOTH, no_prefetcher=no_prefetcher, mixup_off_epoch=2)
    steps = []
    with caplog.at_level(logging.WARNING, "gpupipe"):
        made = loaders(
            folder,
            is_training=True,
            num_workers=2,
            use_prefetcher=not no_prefetcher,
            collate_fn=None if no_prefetcher else mixer(flags, "FastCollateMixup"),
            **options,
        )
    warned = [record.message for record in caplog.records]
    assert len(warned) == bool(warning)
    assert all(re.search(warning, message) for message in warned)
    for loader in made:
        assert len(loader) == 8
        steps.append(train(loader, flags, since_1_0_29))
        assert not getattr(loader, "mixup_enabled", False)
    theirs, ours = steps
    assert [step.epoch for step in ours] == [step.epoch for step in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert (one.images.dtype, one.images.shape) == (other.images.dtype, other.images.shape)
        assert (one.targets.dtype, one.targets.shape) == (other.targets.dtype, other.targets.shape)
    mixed = [
        [bool((step.targets.amax(1) < 0.85).any()) for step in ours if step.epoch == epoch] for epoch in range(EPOCHS)
    ]
    assert any(mixed[0] + mixed[1])
    assert not any(mixed[2])  # where timm's own workers, which live on, never hear of --mixup-off-epoch
    for made in steps:
        epochs = [torch.cat([step.targets for step in made if step.epoch == epoch]) for epoch in range(EPOCHS)]
        assert not torch.equal(epochs[0], epochs[1])
        assert epochs[2].argmax(1).bincount().min() >= 11 - 1  # one sample of 33 is left out


# What train.py passes on where none of its flags is given, and changes of that.
DEFAULTS = {
    "is_training": True,
    "interpolation": "random",
    "scale": [0.08, 1.0],
    "ratio": [3 / 4, 4 / 3],
    "hflip": 0.5,
    "vflip": 0.0,
    "color_jitter": 0.4,
    "color_jitter_prob": None,
    "grayscale_prob": None,
    "gaussian_blur_prob": None,
    "auto_augment": None,
    "re_prob": 0.0,
    "re_mode": "pixel",
    "re_count": 1,
    "re_split": False,
    "num_aug_repeats": 0,
    "num_aug_splits": 0,
    "train_crop_mode": None,
}
CROP = (gpupipe.RandomResizedCrop(SIZE, interpolation="random"), gpupipe.RandomHorizontalFlip())


@pytest.mark.parametrize(
    ("options", "behind"),
    [
        ({}, (gpupipe.ColorJitter(0.4, 0.4, 0.4), gpupipe.Normalize())),
        (
            {"auto_augment": "rand-m9-mstd0.5-inc1", "re_prob": 0.25},
            (
                gpupipe.TimmRandAugment(9, magnitude_std=0.5, interpolation="random"),
                gpupipe.Normalize(),
                gpupipe.RandomErasing(0.25, (0.02, 1 / 3), (0.3, round(10 / 3, 12)), "random"),
            ),
        ),
    ],
)
def test_the_scripts_defaults_become_a_recipe(
    folder: Path, options: dict[str, Any], behind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "gpupipe"):
        theirs, ours = loaders(folder, **DEFAULTS | options)
    assert not caplog.records
    assert ours.recipe == gpupipe.Recipe((*CROP, *behind))
    assert len(ours) == len(theirs)
    images, labels = taken(ours)  # not theirs: of 0 bits, to which '-m9-mstd0.5' may come, Pillow 13 makes an error
    assert images.shape == (32, 3, SIZE, SIZE)
    assert len(labels) == 32


def test_the_seed_is_that_of_torch(folder: Path) -> None:
    def first(seed: int) -> np.ndarray:
        torch.manual_seed(seed)
        return taken(loaders(folder, is_training=True)[1])[0]

    with torch.random.fork_rng(devices=[]):
        np.testing.assert_array_equal(first(3), first(3))
        assert (first(3) != first(4)).any()


def test_images_of_more_than_8_bits_are_timms_own(folder: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(folder, tmp_path / "own"))
    levels = np.linspace(0, 65535, 40 * 60).reshape(40, 60).astype(np.uint16)
    Image.fromarray(levels).save(own / "class_0" / "deep.png")
    theirs, ours = loaders(own)
    np.testing.assert_array_equal(taken(ours)[0], taken(theirs)[0])


def test_a_broken_file_is_replaced(folder: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(folder, tmp_path / "own"))
    next(own.rglob("img_3.jpg")).write_bytes(b"no image")
    for loader in loaders(own):
        assert len(taken(loader)[0]) == 33


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_size_choices": [16, 32], "is_training": True}, r"input_size_choices=\[16, 32\].*train-img-sizes"),
        ({"dataset": "iterable"}, r"dataset \(Stream\) is read in an order of its own.*timm's own create_loader"),
    ],
)
def test_what_create_loader_refuses(folder: Path, options: dict[str, Any], message: str) -> None:
    from timm.data import IterableImageDataset

    from gpupipe.integrations.timm import create_loader

    class Stream:
        pass

    dataset = IterableImageDataset(folder, reader=Stream()) if "dataset" in options else pictures(0)
    with pytest.raises(gpupipe.ConfigError, match=message):
        create_loader(**{"input_size": SIZE, "batch_size": 4} | options | {"dataset": dataset})


def in_world(rank: int, size: int, store: str, folder: Path, results: Any) -> None:
    """One of the ranks: the labels of a training epoch and of an evaluation."""
    torch.manual_seed(rank)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    train_loader = loaders(folder, is_training=True, distributed=True, num_aug_repeats=3, hflip=0)[1]
    theirs, ours = loaders(folder, distributed=True)
    results.put(
        (rank, len(train_loader), list(train_loader.sampler), taken(theirs)[1].tolist(), taken(ours)[1].tolist())
    )
    torch.distributed.destroy_process_group()


def test_ranks_share_an_epoch_as_with_timm(folder: Path, tmp_path: Path) -> None:
    context = torch.multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    arguments = (2, str(tmp_path / "store"), folder, results)
    children = [context.Process(target=in_world, args=(rank, *arguments)) for rank in range(2)]
    for child in children:
        child.start()
    found = sorted(results.get() for _ in children)
    for child in children:
        child.join()
    (_, steps, *first), (_, other_steps, *second) = found
    assert steps == other_steps == 33 // 2 // BATCH
    copies = np.bincount(first[0] + second[0], minlength=33)
    assert copies.max() == 3
    assert (copies[copies > 0] == 3).sum() >= (copies > 0).sum() - 2
    assert sorted(first[1] + second[1]) == sorted(first[2] + second[2])  # with the same one of padding
    assert len(first[2] + second[2]) == 34
