"""Recipes that augment, erase and mix, through the loader: the same draws on every engine, rank and resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpupipe
from gpupipe.kernels import augment_reference, finish_reference, soft_targets
from gpupipe.plan import augmentation, erasing, mixing

SEED, BATCH, CLASSES = 11, 8, 5
CROP = (gpupipe.RandomResizedCrop(24), gpupipe.RandomHorizontalFlip())
AUGMENTATIONS: dict[str, tuple[Any, ...]] = {
    "RandAugment": (gpupipe.RandAugment(),),
    "TrivialAugmentWide": (gpupipe.TrivialAugmentWide(interpolation="bilinear", fill=(124.0, 116.0, 104.0)),),
    "AutoAugment": (gpupipe.AutoAugment(),),
    "jitter and blur": (
        gpupipe.RandomApply((gpupipe.ColorJitter(0.4, 0.4, 0.2, 0.1),), p=0.8),
        gpupipe.RandomGrayscale(0.2),
        gpupipe.GaussianBlur(9),
        gpupipe.RandomSolarize(128, p=0.2),
    ),
    "ThreeAugment": (gpupipe.ThreeAugment(),),
}
ENGINES = [
    pytest.param({"engine": "torch", "num_workers": 0}, id="torch-0"),
    pytest.param({"engine": "torch", "num_workers": 2}, id="torch-2"),
    pytest.param({"engine": "dali", "num_workers": 1}, id="dali"),
]
MIXED = gpupipe.Recipe(
    (
        *CROP,
        gpupipe.RandAugment(),
        gpupipe.Normalize(),
        gpupipe.RandomErasing(0.6, value="random"),
        gpupipe.MixUpOrCutMix(CLASSES, 0.8, 1.0, label_smoothing=0.1),
    )
)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


def loader(folder: Path, recipe: gpupipe.Recipe, batch_size: int = BATCH, **options: Any) -> gpupipe.Loader:
    options = {"device": "cpu", "seed": SEED, "shuffle": True, "engine": "torch", "num_workers": 0} | options
    return gpupipe.Loader(folder, recipe, batch_size, **options)


def collect(batches: gpupipe.Loader) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(images.clone(), labels.clone()) for images, labels in batches]


def crops(folder: Path, **options: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What the engine decodes, uint8 (N, height, width, 3), and plain labels."""
    with loader(folder, gpupipe.Recipe(CROP, dtype="uint8"), **options) as plain:
        return [(images.permute(0, 2, 3, 1).contiguous(), labels) for images, labels in collect(plain)]


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_augmentations_are_what_was_drawn(folder: Path, engine: dict[str, Any], name: str) -> None:
    recipe = gpupipe.Recipe((*CROP, *AUGMENTATIONS[name]), dtype="uint8")
    changed = 0
    with loader(folder, recipe, **engine) as batches:
        made = collect(batches)
    for step, ((images, _), (plain, _)) in enumerate(zip(made, crops(folder, **engine), strict=True)):
        positions = step * BATCH + np.arange(len(images))
        drawn = augmentation(recipe, SEED, 0, positions)
        assert drawn is not None
        expected = augment_reference(plain, drawn.ops, drawn.values, drawn.fill)
        assert torch.equal(images.permute(0, 2, 3, 1), expected)
        changed += int((expected != plain).flatten(1).any(1).sum())
    assert changed > 10


@pytest.mark.parametrize("layout", ["NCHW", "channels_last"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_batch_is_erased_and_mixed_as_drawn(folder: Path, engine: dict[str, Any], dtype: str, layout: Any) -> None:
    recipe = gpupipe.Recipe(MIXED.operations, dtype=dtype, layout=layout)
    with loader(folder, recipe, **engine) as batches:
        made = collect(batches)
    assert len(made) == 4  # three full batches and one image
    for step, ((images, targets), (plain, labels)) in enumerate(zip(made, crops(folder, **engine), strict=True)):
        positions, full = step * BATCH + np.arange(len(images)), step < 3
        drawn = augmentation(recipe, SEED, 0, positions)
        mixed = mixing(recipe, SEED, 0, positions, full)
        assert drawn is not None
        assert mixed is not None
        pixels = augment_reference(plain, drawn.ops, drawn.values, drawn.fill)
        erased = erasing(recipe, SEED, 0, positions)
        expected = finish_reference(pixels, *recipe.statistics, torch.float32, erase=erased, mix=mixed.mix)
        torch.testing.assert_close(images.float(), expected, atol=0.02 if dtype == "bfloat16" else 1e-4, rtol=0.01)
        assert images.is_contiguous(memory_format=torch.channels_last if layout != "NCHW" else torch.contiguous_format)
        assert torch.equal(targets, soft_targets(labels, mixed.mix.partners, mixed.shares, CLASSES, 0.1))
        assert (targets.argmax(1) == labels).all() or full
        assert targets.sum(1).tolist() == pytest.approx([1.0] * len(targets))


def test_the_number_of_ranks_changes_nothing(folder: Path) -> None:
    """Not even in the last batch, where pairs of neighbours could be apart, and which is not mixed."""
    with loader(folder, MIXED) as alone:
        whole = collect(alone)
    parts = []
    for rank in range(2):
        with loader(folder, MIXED, BATCH // 2, rank=rank, world_size=2) as one:
            parts.append(collect(one))
    for step, (images, targets) in enumerate(whole):
        together = [torch.cat([part[step][kind] for part in parts]) for kind in (0, 1)]
        assert torch.equal(together[0][: len(images)], images)
        assert torch.equal(together[1][: len(targets)], targets)


def test_a_resumed_run_mixes_the_same(folder: Path) -> None:
    with loader(folder, MIXED) as whole, loader(folder, MIXED, num_workers=2) as half:
        everything = collect(whole)
        iterator = iter(half)
        next(iterator)
        state = half.state_dict()
    with loader(folder, MIXED, engine="torch", num_workers=1) as rest:
        rest.load_state_dict(state)
        for (images, targets), (others, wanted) in zip(collect(rest), everything[1:], strict=True):
            assert torch.equal(images, others)
            assert torch.equal(targets, wanted)
    without = gpupipe.Recipe(MIXED.operations[:-1])
    with loader(folder, without) as other, pytest.raises(gpupipe.StateError, match="recipe"):
        other.load_state_dict(state)


def test_epochs_and_views_are_drawn_apart(folder: Path) -> None:
    recipe = gpupipe.Recipe((gpupipe.ResizeCenterCrop(24, 24), gpupipe.RandAugment()), dtype="uint8", views=2)
    with loader(folder, recipe, shuffle=False) as batches:
        epochs = [[[view.clone() for view in views] for views, _ in batches] for _ in range(2)]
    kinds = [torch.cat([batch[view] for batch in epoch]) for epoch in epochs for view in range(2)]
    for first in range(4):
        for second in range(first):
            different = (kinds[first] != kinds[second]).flatten(1).any(1).sum()
            assert different > 15  # of 25 images that differ in nothing but their augmentation


def test_each_view_is_augmented_and_erased_by_its_own_draws(folder: Path, engine: dict[str, Any]) -> None:
    crop = gpupipe.ResizeCenterCrop(24, 24)
    operations = (crop, gpupipe.RandAugment(), gpupipe.Normalize(), gpupipe.RandomErasing(0.7, value="random"))
    recipe = gpupipe.Recipe(operations, views=3)
    plain = gpupipe.Recipe((crop,), dtype="uint8")
    with loader(folder, recipe, **engine) as batches, loader(folder, plain, **engine) as pixels:
        made = [[view.clone() for view in views] for views, _ in batches]
        levels = [images.permute(0, 2, 3, 1).contiguous() for images, _ in collect(pixels)]
    for step, (views, images) in enumerate(zip(made, levels, strict=True)):
        positions = step * BATCH + np.arange(len(images))
        for number, (one, view) in enumerate(zip(recipe.view_recipes, views, strict=True)):
            drawn = augmentation(one, SEED, 0, positions, number)
            assert drawn is not None
            augmented = augment_reference(images, drawn.ops, drawn.values, drawn.fill)
            erase = erasing(one, SEED, 0, positions, number)
            expected = finish_reference(augmented, *one.statistics, torch.float32, erase=erase)
            torch.testing.assert_close(view, expected, atol=1e-4, rtol=0.01)


def test_bad_samples_are_augmented_erased_and_mixed_like_good_ones(folder: Path, engine: dict[str, Any]) -> None:
    """A substitute gets the numbers of the position where it stands."""
    recipe = gpupipe.Recipe((gpupipe.ResizeCenterCrop(24, 24), *MIXED.operations[2:]))
    drawn, erase = augmentation(recipe, SEED, 0, np.arange(8)), erasing(recipe, SEED, 0, np.arange(8))
    assert drawn is not None
    assert erase is not None
    row = next(row for row in range(7) if drawn.ops[row].any() and erase.boxes[row, 2] > 0)
    files = [file.read_bytes() for file in sorted(folder.glob("*/*.jpg"))][:8]
    good = [(data, number % CLASSES) for number, data in enumerate(files)]
    good[row] = good[row + 1]
    bad = [*good]
    bad[row] = (files[row][:100], 0)
    results = []
    for data in (good, bad):
        with loader(data, recipe, shuffle=False, on_error="skip", **engine) as batches:  # type: ignore[arg-type]
            results.append(collect(batches)[0])
    (images, targets), (others, repaired) = results
    assert torch.equal(targets, repaired)
    if engine["engine"] == "torch":
        assert torch.equal(images, others)
    else:  # the CPU's decoders make the substitute
        assert (images - others).abs().mean() < 0.02


@pytest.mark.parametrize("label", [-1, CLASSES])
def test_a_label_outside_the_classes_is_named(folder: Path, engine: dict[str, Any], label: int) -> None:
    file = next(folder.glob("*/*.jpg")).read_bytes()
    data: Any = [(file, 0), (file, label)]
    named = rf"sample 1 .* has the label {label}, but .* num_classes=5"
    with loader(data, MIXED, 2, shuffle=False, **engine) as batches, pytest.raises(gpupipe.ConfigError, match=named):
        collect(batches)


@pytest.mark.parametrize("label", [torch.tensor([0, 1, 0]), 1.5], ids=["several", "a float"])
def test_labels_that_are_no_class_numbers_are_not_mixed(folder: Path, engine: dict[str, Any], label: Any) -> None:
    data: Any = [(next(folder.glob("*/*.jpg")).read_bytes(), label)] * 2
    named = r"MixUp of the recipe mixes class numbers, int64 \(N,\), but the labels are"
    with loader(data, mixed(3), 2, **engine) as batches, pytest.raises(gpupipe.ConfigError, match=named):
        collect(batches)


def mixed(num_classes: int | None = None) -> gpupipe.Recipe:
    return gpupipe.Recipe((*CROP, gpupipe.Normalize(), gpupipe.MixUp(num_classes)))


class TestNumClasses:
    def test_without_one_it_is_the_datas(self, folder: Path, shards: str, engine: dict[str, Any]) -> None:
        with loader(folder, mixed(CLASSES), **engine) as given:
            expected, state = collect(given), given.state_dict()
        for data in (folder, shards):
            with loader(data, mixed(), **engine) as found:
                assert found.recipe == mixed(CLASSES)
                assert found.state_dict()["recipe"] == state["recipe"] == mixed(CLASSES).fingerprint
                for some, others in zip(collect(found), expected, strict=True):
                    assert torch.equal(some[0], others[0])
                    assert torch.equal(some[1], others[1])

    def test_presets_leave_it_open(self, folder: Path) -> None:
        for preset in (gpupipe.resnet50_v2_train(24), gpupipe.timm_a_train("A3", 24), gpupipe.deit3_train(24)):
            with loader(folder, preset) as batches:
                assert next(iter(batches))[1].shape == (BATCH, CLASSES)

    def test_names_count_that_have_no_sample(self, shards: str, folder: Path, tmp_path: Path) -> None:
        for number in range(3):
            name = shards.replace("{0..2}", str(number))
            (tmp_path / Path(name).name).symlink_to(name)
        (tmp_path / "classes.json").write_text(json.dumps(list("abcdefg")))
        with loader(tmp_path / "part-{0..2}.tar", mixed()) as batches:
            assert batches.recipe == mixed(7)
        (tmp_path / "classes.json").write_text(json.dumps(["a"]))  # nor do labels need a name
        with loader(tmp_path / "part-{0..2}.tar", mixed()) as batches:
            assert batches.recipe == mixed(CLASSES)

    def test_a_users_dataset_has_to_say(self, folder: Path) -> None:
        class Own(list[tuple[bytes, int]]):
            pass

        data: Any = Own([(next(folder.glob("*/*.jpg")).read_bytes(), 1)] * 8)
        with pytest.raises(gpupipe.ConfigError, match=r"MixUp\(num_classes=None\).* pass num_classes, or .* `classes`"):
            loader(data, mixed())
        data.classes = ["cat", "dog", "bird"]
        with loader(data, mixed()) as batches:
            assert next(iter(batches))[1].tolist() == [[0, 1, 0]] * 8

    @pytest.mark.parametrize("number", [1, CLASSES - 1])
    def test_too_few_are_said_when_the_loader_is_built(self, folder: Path, shards: str, number: int) -> None:
        first = 5 * number  # of each class there are five
        for data in (folder, shards):
            with pytest.raises(
                gpupipe.ConfigError, match=rf"sample {first} \(.*class_{number}.*has the label {number}, .*={number},"
            ):
                loader(data, mixed(number))

    def test_an_order_may_leave_the_others_out(self, folder: Path) -> None:
        with loader(folder, mixed(2), shuffle=False, order=gpupipe.Subset(range(10)), batch_size=10) as batches:
            assert next(iter(batches))[1].shape == (10, 2)

    def test_explicit_numbers_draw_as_ever(self) -> None:
        """The fingerprint that states of earlier versions hold."""
        assert mixed(1000).fingerprint == "5d4d8782cf268823"
        assert mixed().fingerprint != mixed(1000).fingerprint


def test_a_batch_is_mixed_alike_where_that_is_asked_for(folder: Path) -> None:
    recipe = gpupipe.Recipe((*CROP, gpupipe.Normalize(), gpupipe.CutMix(CLASSES, alike=None)))
    number = gpupipe.Recipe((*CROP, gpupipe.Normalize(), gpupipe.CutMix(CLASSES, alike=BATCH)))
    with loader(folder, recipe, drop_last=True) as filled, loader(folder, number, drop_last=True) as given:
        assert filled.recipe == number
        assert filled.state_dict() == given.state_dict()
        batches = collect(filled)
    shares = [tuple(sorted(set(targets.amax(1).tolist()) - {1.0})) for _, targets in batches]
    assert all(len(one) <= 1 for one in shares)  # of pairs of one class, 1
    assert len(set(shares)) > 1


def test_mixing_can_be_turned_off_for_the_last_epochs(folder: Path, engine: dict[str, Any]) -> None:
    """As timm's --mixup-off-epoch does: labels keep their form."""
    plain = gpupipe.Recipe(MIXED.operations[:-1])
    with loader(folder, MIXED, **engine) as batches, loader(folder, plain, **engine) as without:
        assert batches.mixup_enabled
        assert not without.mixup_enabled
        first = collect(batches)
        batches.mixup_enabled = False
        assert not batches.mixup_enabled
        batches.set_epoch(0)
        second, unmixed = collect(batches), collect(without)
        with pytest.raises(gpupipe.ConfigError, match="the recipe mixes nothing"):
            without.mixup_enabled = True
    assert not torch.equal(first[0][0], second[0][0])
    for (images, targets), (expected, labels) in zip(second, unmixed, strict=True):
        assert torch.equal(images, expected)
        hard = torch.nn.functional.one_hot(labels, CLASSES)
        torch.testing.assert_close(targets, hard * 0.9 + 0.1 / CLASSES)
