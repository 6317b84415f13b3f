"""Operations of the user's own: PerImage and OnBatch."""

from __future__ import annotations

import io
import pickle
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engines import ENGINES, forked
from images import encode, picture
from PIL import Image
from pillow_reference import render_reference
from test_dataset_draws import Lane
from torchvision import transforms as v1
from torchvision.transforms import v2

import gpupipe
from gpupipe import ColorJitter, MixUp, Normalize, OnBatch, PerImage, RandomErasing, RandomHorizontalFlip, Recipe
from gpupipe.batch import Job
from gpupipe.decode.choose import served
from gpupipe.decode.rendering import Rendering, runs_of_workers
from gpupipe.device.finishing import Finisher
from gpupipe.kernels import augment_reference, finish_reference
from gpupipe.kernels.philox import philox4x32, split64
from gpupipe.plan import augmentation, cropping
from gpupipe.tools.showing.shown import read_shown

SEED, SIZE = 5, 24
CROP = gpupipe.RandomResizedCrop(SIZE)
CENTRE = gpupipe.ResizeCenterCrop(SIZE, 32)
TORCH = ENGINES[:2]


# Functions of a user's.


def noisy(image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """In place."""
    assert image.flags.c_contiguous
    assert image.flags.writeable
    image += generator.integers(0, 30, image.shape, np.uint8)
    return image


def stamp(image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """All of the image becomes four numbers that are drawn, in the first row's R."""
    image[...] = 0
    image[0, :4, 0] = generator.bit_generator.random_raw(4) >> 56  # the bits that no version of NumPy changes
    return image


def grown(image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Another size, of memory that is not contiguous."""
    return np.pad(image, ((0, int(generator.integers(1, 50))), (3, 0), (0, 0)))[::-1]


def scaled(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Each image by a number of its own."""
    factors = torch.rand(len(images), 1, 1, 1, generator=generator, device=images.device)
    return (images * factors).to(images.dtype)


def same(given: Any, generator: Any) -> Any:
    return given


class Drawing(torch.nn.Module):
    """From each of the global generators."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        drawn = int(torch.randint(9, ())) + int(np.random.randint(9)) + random.randrange(9)  # noqa: NPY002
        return image // 2 + drawn


# What is expected, by other means.


def words(kind: int, place: int, position: int, epoch: int = 0, view: int = 0, field: int = 0) -> list[int]:
    counter = (position, field << 24, epoch, kind << 16 | view << 8 | place)
    return [int(word) for word in philox4x32(counter, split64(SEED))]


def for_image(place: int, position: int, **where: int) -> np.random.Generator:
    first, second, third, fourth = words(7, place, position, **where)
    return np.random.Generator(np.random.Philox(key=first | second << 32 | third << 64 | fourth << 96))


def for_batch(place: int, position: int, **where: int) -> torch.Generator:
    first, second, _, _ = words(8, place, position, **where)
    return torch.Generator().manual_seed((second << 31) ^ first)


def seed_globals(kind: int, place: int, position: int) -> None:
    first, second, third, fourth = words(kind, place, position)
    torch.manual_seed((second << 31) ^ first)
    np.random.seed(third)  # noqa: NPY002
    random.seed(second | fourth << 32)


def files_of(folder: Path, count: int | None = None) -> list[bytes]:
    return [file.read_bytes() for file in sorted(folder.glob("*/*.jpg"))[:count]]


def cropped(recipe: Recipe, file: bytes, position: int, epoch: int = 0, view: int = 0) -> np.ndarray:
    """By Pillow."""
    width, height = Image.open(io.BytesIO(file)).size
    sizes = np.array([height], np.int32), np.array([width], np.int32)
    crops = cropping(recipe, SEED, epoch, np.array([position]), *sizes, view)
    return np.array(render_reference(file, crops))


def open_loader(data: Any, recipe: Any, batch_size: int = 4, **options: Any) -> gpupipe.Loader:
    options = {"device": "cpu", "seed": SEED, "num_workers": 0} | options
    return gpupipe.Loader(data, recipe, batch_size, **options)


def uint8(*operations: Any, **options: Any) -> Recipe:
    return Recipe(operations, dtype="uint8", **options)


def images_of(loader: gpupipe.Loader) -> list[torch.Tensor]:
    with loader:
        return [images.clone() for images, _ in loader]


def all_of(loader: gpupipe.Loader) -> np.ndarray:
    """An epoch's images (N, height, width, 3)."""
    return torch.cat(images_of(loader)).permute(0, 2, 3, 1).numpy()


def first_of(loader: gpupipe.Loader) -> np.ndarray:
    """The first batch's."""
    with loader:
        return next(iter(loader))[0].permute(0, 2, 3, 1).numpy()


def stamps(images: torch.Tensor) -> list[tuple[int, ...]]:
    return [tuple(row) for row in images[:, 0, 0, :4].tolist()]


class TestPerImage:
    RECIPE = uint8(
        CROP, RandomHorizontalFlip(), PerImage(noisy), ColorJitter(0.4), PerImage(noisy, version=2), ColorJitter(0.4)
    )

    @pytest.mark.parametrize("engine", TORCH)
    def test_is_done_at_its_place(self, folder: Path, engine: dict[str, Any]) -> None:
        recipe = self.RECIPE
        plain = replace(recipe, operations=(*recipe.operations[:2], ColorJitter(0.4), ColorJitter(0.4)))
        made = all_of(open_loader(folder, recipe, **engine))
        for position, file in enumerate(files_of(folder)):
            drawn = augmentation(plain, SEED, 0, np.array([position]))  # as if nothing stood between
            assert drawn is not None
            image = cropped(recipe, file, position)
            for place in range(2):
                image = noisy(image, for_image(place, position))
                jitter = torch.from_numpy(image[None])
                each = drawn.ops.shape[1] // 2
                steps = slice(place * each, (place + 1) * each)
                image = augment_reference(jitter, drawn.ops[:, steps], drawn.values[:, steps], None)[0].numpy()
            np.testing.assert_array_equal(made[position], image)

    @pytest.mark.usefixtures("cpu_path")
    def test_before_the_crop_it_has_the_whole_image_and_decides_its_size(self, folder: Path) -> None:
        seen = []

        def kept(image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
            assert image.flags.writeable
            seen.append(image.copy())
            return grown(image, generator)

        recipe = uint8(PerImage(kept), PerImage(noisy), CROP, RandomHorizontalFlip())
        made = first_of(open_loader(folder, recipe))
        for position, file in enumerate(files_of(folder, 4)):
            image = np.array(Image.open(io.BytesIO(file)).convert("RGB"))
            np.testing.assert_array_equal(seen[position], image)
            image = noisy(grown(image, for_image(0, position)).copy(), for_image(1, position))
            np.testing.assert_array_equal(made[position], cropped(recipe, encode(image, "PNG"), position))

    @pytest.mark.parametrize("engine", TORCH)
    def test_before_the_crop_in_workers_and_views(self, folder: Path, engine: dict[str, Any]) -> None:
        recipe = uint8(PerImage(noisy), PerImage(grown), CROP, views=2)
        plain = uint8(CROP)
        with open_loader(folder, gpupipe.MultiCrop((recipe, plain)), **engine) as loader:
            views, _ = next(iter(loader))
        for position, file in enumerate(files_of(folder, 4)):
            image = np.array(Image.open(io.BytesIO(file)).convert("RGB"))
            for view in range(3):
                changed = image
                if view < 2:
                    changed = noisy(image.copy(), for_image(0, position, view=view))
                    changed = grown(changed, for_image(1, position, view=view))
                expected = cropped(plain, encode(changed, "PNG"), position, view=view)
                np.testing.assert_array_equal(views[view][position].permute(1, 2, 0).numpy(), expected)

    def test_whole_images_stand_upright_where_the_recipe_turns_them(self) -> None:
        exif = Image.Exif()
        exif[0x0112] = 6
        file = encode(picture(20, 30), exif=exif)
        shapes = []

        def noted(image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
            shapes.append(image.shape)
            return image

        for turns in (False, True):
            own, plain = (uint8(*first, CENTRE, exif_orientation=turns) for first in ((PerImage(noted),), ()))
            np.testing.assert_array_equal(
                *(all_of(open_loader([(file, 0)], recipe, engine="torch")) for recipe in (own, plain))
            )
        assert shapes == [(20, 30, 3), (30, 20, 3)]

    @pytest.mark.parametrize("pixels", [False, True])
    def test_pixels_of_a_dataset_are_left_as_they_are(self, pixels: bool) -> None:
        image = picture(40, 40)
        given = image.copy()
        data = [(given if pixels else encode(image, "PNG"), 0)]
        made = all_of(open_loader(data, uint8(PerImage(noisy), CENTRE)))
        expected = noisy(image.copy(), for_image(0, 0))
        np.testing.assert_array_equal(made[0], cropped(uint8(CENTRE), encode(expected, "PNG"), 0))
        np.testing.assert_array_equal(given, image)

    def test_draws_differ_between_samples_epochs_places_views_and_fields(self) -> None:
        file = encode(picture(40, 40))
        fields = {
            "a": gpupipe.Image(source=0),
            "b": gpupipe.Image(source=0),
            "c": gpupipe.Image(source=0, geometry="a"),
        }
        found = set()
        for first in ((), (PerImage(same),)):
            recipe = uint8(CENTRE, *first, PerImage(stamp), views=2)
            with open_loader([(file,)] * 12, recipe, fields=fields) as loader:
                for _ in range(2):
                    for batch in loader:
                        found |= {(name, *one) for name in "ab" for view in batch[name] for one in stamps(view)}
                        assert all(torch.equal(*views) for views in zip(batch["a"], batch["c"], strict=True))
        assert len(found) == len({one[1:] for one in found}) == 2 * 2 * 12 * 2 * 2

    def test_draws_are_pinned(self) -> None:
        data = [(encode(picture(40, 40)), 0)] * 3
        assert stamps(images_of(open_loader(data, uint8(CENTRE, PerImage(stamp))))[0]) == GOLDEN

    @pytest.mark.parametrize("recipe", [RECIPE, uint8(PerImage(grown), CROP, PerImage(noisy))])
    def test_ranks_workers_and_resumed_runs_agree(self, folder: Path, recipe: Recipe) -> None:
        whole = images_of(open_loader(folder, recipe, 6, shuffle=True, drop_last=True))
        for count in (2, 3):
            ranks = [
                images_of(
                    open_loader(
                        *(folder, recipe, 6 // count),
                        **dict(shuffle=True, drop_last=True, rank=rank, world_size=count, num_workers=count - 2),
                    )
                )
                for rank in range(count)
            ]
            assert [torch.equal(torch.cat(parts), one) for *parts, one in zip(*ranks, whole, strict=True)] == [True] * 4
        for step in range(len(whole)):
            with open_loader(folder, recipe, 6, shuffle=True, drop_last=True) as loader:
                batches = iter(loader)
                for _ in range(step):
                    next(batches)
                state = loader.state_dict()
            with open_loader(folder, recipe, 6, shuffle=True, drop_last=True, num_workers=1) as loader:
                loader.load_state_dict(state)
                assert torch.equal(next(iter(loader))[0], whole[step])

    def test_a_gpu_does_what_workers_need_not(self, folder: Path) -> None:
        """There is none here: the rest is done by a finisher on the CPU."""
        recipe = Recipe(
            (
                PerImage(grown),
                CROP,
                ColorJitter(0.4),
                PerImage(noisy),
                ColorJitter(0.4),
                OnBatch(scaled),
                ColorJitter(0.4),
            )
        )
        views = (recipe, replace(recipe, operations=recipe.operations[1:3]))
        source = gpupipe.open_source(str(folder))
        job = Job(SEED, 0, np.arange(6), np.arange(6))
        done = [[len(runs_of_workers(view, augmented)) for view in views] for augmented in (True, False)]
        assert done == [[3, 1], [2, 0]]
        finish = Finisher(source.fields, views, torch.device("cpu"))
        whole, parts = (finish(Rendering(source, views, augmented=one)(job), True).output[0] for one in (True, False))
        assert all(torch.equal(*both) for both in zip(whole, parts, strict=True))

    def test_beside_masks_it_has_to_say_that_it_moves_nothing(self) -> None:
        image, mask = picture(40, 40), picture(40, 40)[..., 0]
        fields = {"image": gpupipe.Image(), "mask": gpupipe.Mask()}
        data = [(encode(image, "PNG"), mask)] * 2
        for recipe in (uint8(PerImage(noisy), CROP), uint8(CROP, PerImage(noisy)), uint8(CROP, OnBatch(scaled))):
            with pytest.raises(
                gpupipe.ConfigError, match=r"(PerImage 'noisy'|OnBatch 'scaled').*'mask'.*geometric=False"
            ):
                open_loader(data, recipe, fields=fields)
        recipe = uint8(PerImage(noisy, geometric=False), CROP)
        with open_loader(data, recipe, fields=fields) as loader, open_loader(data, uint8(CROP), fields=fields) as plain:
            assert torch.equal(next(iter(loader))["mask"], next(iter(plain))["mask"])
        with (
            open_loader(data, uint8(PerImage(grown, geometric=False), CROP), fields=fields) as loader,
            pytest.raises(gpupipe.SampleError, match=r"sample 0 .*PerImage 'grown' returned .*geometric=False"),
        ):
            next(iter(loader))

    @pytest.mark.parametrize("place", ["before", "behind"])
    @pytest.mark.parametrize("engine", TORCH)
    def test_what_it_raises_is_the_samples(self, folder: Path, place: str, engine: dict[str, Any]) -> None:
        def sometimes(image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
            if tuple(image[0, 0]) == marks[6]:
                raise KeyError("a bad one")
            return stamp(image, generator)

        operation = PerImage(sometimes)
        plain = all_of(open_loader(folder, uint8(CENTRE)))
        wholes = [np.array(Image.open(io.BytesIO(file))) for file in files_of(folder)]
        marks = [tuple(image[0, 0]) for image in (wholes if place == "before" else plain)]
        assert marks.count(marks[6]) == 1
        recipe = uint8(operation, CENTRE) if place == "before" else uint8(CENTRE, operation)
        engine = engine | forked(engine["num_workers"])
        with open_loader(folder, recipe, **engine) as loader:
            batches = iter(loader)
            next(batches)
            with pytest.raises(KeyError) as raised:
                next(batches)
            assert isinstance(raised.value, gpupipe.SampleError)
            assert raised.value.index == 6
            assert "img_1.jpg" in str(raised.value)
            assert "PerImage 'TestPerImage" in str(raised.value)
            assert "raised KeyError: 'a bad one'" in str(raised.value)
        with open_loader(folder, recipe, on_error="skip", **engine) as loader:
            found = [images.clone() for images, _ in loader]
            assert [bad.index for bad in loader.bad_samples] == [6]
        if place == "behind":  # the substitute has the numbers of the place
            assert stamps(found[1])[2] == tuple(stamp(np.zeros((SIZE, SIZE, 3), np.uint8), for_image(0, 6))[0, :4, 0])

    @pytest.mark.parametrize(
        ("made", "said"),
        [
            (lambda image: image[:-1], r"returned ndarray uint8 \(23, 24, 3\)"),
            (lambda image: image / 255, r"returned ndarray float64 \(24, 24, 3\)"),
            (lambda image: image[..., 0], r"returned ndarray uint8 \(24, 24\)"),
            (lambda image: None, "returned NoneType"),
        ],
    )
    def test_what_can_not_go_on_names_operation_sample_and_shape(self, folder: Path, made: Any, said: str) -> None:
        recipe = uint8(CENTRE, PerImage(lambda image, generator: made(image), name="wrong"))
        with (
            open_loader(folder, recipe) as loader,
            pytest.raises(gpupipe.SampleError, match=rf"sample 0 \(.*PerImage 'wrong' {said}.*must return uint8 \(24"),
        ):
            next(iter(loader))

    def test_before_the_crop_it_must_return_an_image(self, folder: Path) -> None:
        recipe = uint8(PerImage(lambda image, generator: image[:0], name="nothing"), CENTRE)
        with (
            open_loader(folder, recipe) as loader,
            pytest.raises(gpupipe.SampleError, match=r"ndarray uint8 \(0, .*must return uint8 \(height, width, 3\)"),
        ):
            next(iter(loader))

    @pytest.mark.parametrize("before", [True, False])
    def test_damaged_files_are_told_as_ever(self, before: bool) -> None:
        def of_good_ones(image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
            assert (image == 255).all(), "called for what could not be decoded"
            return image

        good = encode(np.full((40, 40, 3), 255, np.uint8))
        data = [(good, 0), (good[:200], 1), (b"no image", 2), (good, 3)]
        reasons = []
        for first, last in (((PerImage(of_good_ones),) * before, (PerImage(of_good_ones),) * (not before)), ((), ())):
            with open_loader(data, uint8(*first, CENTRE, *last), on_error="skip") as loader:
                next(iter(loader))
                reasons.append([str(bad) for bad in loader.bad_samples])
        assert reasons[0] == reasons[1]
        assert len(reasons[0]) == 2

    def test_whole_images_beyond_the_limit_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
        buffer = io.BytesIO()
        Image.new("1", (20000, 10000)).save(buffer, "PNG")
        with (
            open_loader([(buffer.getvalue(), 0)], uint8(PerImage(same), CROP), 1) as loader,
            pytest.raises(gpupipe.SampleError, match="it has 20000 x 10000 pixels, more than the 178,956,970"),
        ):
            next(iter(loader))

    def test_images_of_one_geometry_must_keep_one_size(self) -> None:
        def by_content(image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
            return image if image[0, 0, 0] else image[:-5]

        fields = {"a": gpupipe.Image(), "b": gpupipe.Image(geometry="a")}
        white, black = (encode(np.full((40, 40, 3), level, np.uint8), "PNG") for level in (255, 0))
        with (
            open_loader([(white, black)], uint8(PerImage(by_content), CENTRE), 1, fields=fields) as loader,
            pytest.raises(gpupipe.SampleError, match=r"'b' has 35 x 40 pixels, 'a' 40 x 40"),
        ):
            next(iter(loader))

    def test_dali_does_not_call_it(self, folder: Path) -> None:
        recipe = uint8(CENTRE, PerImage(same))
        with pytest.raises(gpupipe.ConfigError, match=r"'dali' can't call PerImage 'same'.*engine='torch'.*OnBatch"):
            open_loader(folder, recipe, engine="dali")
        assert served("auto", recipe.view_recipes) == "torch"
        assert served("auto", uint8(CENTRE, OnBatch(same)).view_recipes) == "auto"

    def test_auto_says_where_it_costs_a_gpu(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        served("auto", uint8(CENTRE, PerImage(same)).view_recipes)
        assert "DALI can't call PerImage 'same'" in caplog.text

    def test_spawned_workers_need_what_can_be_pickled(self, folder: Path) -> None:
        options: dict[str, Any] = dict(num_workers=1, multiprocessing_context="spawn")
        with pytest.raises(gpupipe.ConfigError, match=r"work\.views.*\.operations.*\.fn \(function\) can't be pickled"):
            open_loader(folder, uint8(CENTRE, PerImage(lambda image, generator: image, name="lambda")), **options)
        recipe = uint8(CENTRE, PerImage(noisy), OnBatch(v2.RandomErasing(), whole=True))
        sent = pickle.loads(pickle.dumps(recipe))
        assert (repr(sent), sent.operations[1].fn) == (repr(recipe), noisy)

    def test_spawned_workers_need_no_function_on_batches(self, folder: Path) -> None:
        recipe = uint8(CENTRE, PerImage(noisy), OnBatch(lambda images, generator: 255 - images, name="negative"))
        with open_loader(folder, recipe, num_workers=1, multiprocessing_context="spawn") as loader:
            found = images_of(loader)
        expected = images_of(open_loader(folder, uint8(CENTRE, PerImage(noisy))))
        assert len(found) > 1
        assert all(torch.equal(255 - one, other) for one, other in zip(found, expected, strict=True))


class TestOnBatch:
    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("layout", ["NCHW", "channels_last"])
    def test_is_done_before_and_behind_normalize(self, folder: Path, engine: dict[str, Any], layout: Any) -> None:
        parts = (CROP, RandomHorizontalFlip())
        recipe = Recipe((*parts, OnBatch(scaled), ColorJitter(0.4), Normalize(), OnBatch(scaled)), layout=layout)
        pixels = images_of(open_loader(folder, uint8(*parts), **engine))
        made = images_of(open_loader(folder, recipe, **engine))
        for step, images in enumerate(pixels):
            positions = np.arange(len(images)) + 4 * step
            expected = scaled(images, for_batch(0, 4 * step)).permute(0, 2, 3, 1).contiguous()
            drawn = augmentation(Recipe((CROP, ColorJitter(0.4))), SEED, 0, positions)
            assert drawn is not None
            expected = augment_reference(expected, drawn.ops, drawn.values, None)
            finished = finish_reference(expected, *recipe.statistics, torch.float64)
            torch.testing.assert_close(made[step].double(), scaled(finished.float(), for_batch(1, 4 * step)).double())
            assert made[step].dtype == torch.float32

    @pytest.mark.parametrize("engine", ENGINES)
    def test_erasing_and_mixing_are_the_same_by_themselves(self, folder: Path, engine: dict[str, Any]) -> None:
        parts = (CROP, RandomHorizontalFlip(), ColorJitter(0.4))
        last = (Normalize(), RandomErasing(0.9, value=(1, 2, 3)), MixUp(num_classes=5))
        seen = []

        def kept(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
            seen.append(images.clone())
            return images

        own = OnBatch(kept)
        apart = Recipe((*parts, own, last[0], own, last[1], own, last[2], own))
        with (
            open_loader(folder, Recipe(parts + last), **engine) as loader,
            open_loader(folder, apart, **engine) as other,
        ):
            for (images, labels), (others, targets) in zip(loader, other, strict=True):
                assert torch.equal(images, others)
                assert torch.equal(labels, targets)
        for place, count in ((1, 1), (2, 2)):  # what it gets between is neither erased nor mixed yet
            plain = images_of(open_loader(folder, Recipe(parts + last[:count]), **engine))
            assert all(torch.equal(*both) for both in zip(seen[place::4], plain, strict=True))

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_has_the_recipes_dtype_and_layout(self, folder: Path, dtype: str) -> None:
        seen = []

        def noted(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
            seen.append((images.dtype, images.is_contiguous(memory_format=torch.channels_last), tuple(images.shape)))
            assert not torch.is_grad_enabled()
            return images

        own = OnBatch(noted, name="noted")
        normalized = Recipe((CROP, own, Normalize(), own, RandomErasing(), own), dtype=dtype, layout="channels_last")
        without = Recipe((CROP, own), dtype=dtype, layout="channels_last")
        for recipe in (normalized, without):
            with open_loader(folder, recipe) as loader:
                images, _ = next(iter(loader))
            assert images.is_contiguous(memory_format=torch.channels_last)
        shape, wanted = (4, 3, SIZE, SIZE), getattr(torch, dtype)
        assert seen == [(torch.uint8, True, shape), *[(wanted, True, shape)] * 3]

    @pytest.mark.parametrize("engine", ENGINES)
    def test_resumed_runs_agree_and_ranks_have_their_own(self, folder: Path, engine: dict[str, Any]) -> None:
        recipe = Recipe((CROP, Normalize(), OnBatch(scaled)))
        whole = images_of(open_loader(folder, recipe, shuffle=True, **engine))
        for step in range(1, len(whole), 2):
            with open_loader(folder, recipe, shuffle=True, num_workers=0) as loader:
                batches = iter(loader)
                for _ in range(step):
                    next(batches)
                state = loader.state_dict()
            with open_loader(folder, recipe, shuffle=True, **engine) as loader:
                loader.load_state_dict(state)
                assert torch.equal(next(iter(loader))[0], whole[step])
        plain = images_of(open_loader(folder, Recipe((CROP, Normalize())), shuffle=True, **engine))
        for rank in range(2):
            own = images_of(open_loader(folder, recipe, 2, shuffle=True, rank=rank, world_size=2, **engine))
            for step, images in enumerate(own[:-1]):
                first = 4 * step + 2 * rank
                rows = plain[step][2 * rank : 2 * rank + 2]
                assert torch.equal(images, scaled(rows, for_batch(0, first)))

    def test_draws_differ_between_steps_epochs_places_views_and_fields(self) -> None:
        def drawn(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
            return torch.randint(0, 2**40, (len(images), 1), generator=generator)

        data = [(encode(picture(40, 40)), encode(picture(40, 40)))] * 12
        fields = {"a": gpupipe.Image(), "b": gpupipe.Image()}
        found = []
        for first in ((), (OnBatch(same),)):
            with open_loader(
                data, Recipe((CENTRE, *first, OnBatch(drawn, name="d")), views=2), fields=fields
            ) as loader:
                for _ in range(2):
                    found += [view[0].item() for batch in loader for name in "ab" for view in batch[name]]
        assert len(set(found)) == len(found) == 2 * 2 * 3 * 2 * 2

    def test_whole_takes_and_gives_what_the_loader_gives(self, folder: Path) -> None:
        def mixed(batch: Any, generator: torch.Generator) -> Any:
            images, labels = batch
            order = torch.randperm(len(images), generator=generator)
            return {"x": (images + images[order]) / 2, "y": (labels, labels[order])}

        plain = Recipe((CROP, Normalize(), MixUp(num_classes=5)))
        recipe = replace(plain, operations=(*plain.operations, OnBatch(mixed, name="mixed", whole=True)))
        with open_loader(folder, plain) as loader, open_loader(folder, recipe) as own:
            for step, ((images, labels), batch) in enumerate(zip(loader, own, strict=True)):
                order = torch.randperm(len(images), generator=for_batch(0, 4 * step))
                assert torch.equal(batch["x"], (images + images[order]) / 2)
                assert torch.equal(batch["y"][1], labels[order])

    def test_whole_has_a_dict_and_lists_of_views_where_the_loader_gives_them(self) -> None:
        data = [(encode(picture(40, 40)), picture(40, 40)[..., 0])] * 2
        fields = {"image": gpupipe.Image(), "mask": gpupipe.Mask()}
        recipe = Recipe((CROP, OnBatch(lambda batch, generator: [batch], name="listed", whole=True)), views=2)
        with open_loader(data, recipe, 2, fields=fields) as loader:
            ((batch,),) = list(loader)
        assert {name: [tuple(one.shape) for one in views] for name, views in batch.items()} == {
            "image": [(2, 3, SIZE, SIZE)] * 2,
            "mask": [(2, SIZE, SIZE)] * 2,
        }

    def test_at_the_end_shape_and_dtype_are_free(self, folder: Path) -> None:
        recipe = Recipe((CROP, OnBatch(lambda images, generator: images.mean((2, 3)).double(), name="means")))
        assert [images.shape for images in images_of(open_loader(folder, recipe, 10))] == [(10, 3), (10, 3), (5, 3)]

    @pytest.mark.parametrize(
        ("made", "last", "said"),
        [
            (lambda images: images[1:], True, r"Tensor float32 \(3, 3, 24, 24\) at .* a tensor of 4 rows"),
            (lambda images: images.numpy(), True, r"ndarray float32 \(4, 3, 24, 24\) at .* a tensor of 4 rows"),
            (
                lambda images: images.double(),
                False,
                r"Tensor float64 .* torch.float32 \(4, 3, 24, 24\) on cpu",
            ),
            (lambda images: images.to("meta"), False, r"Tensor float32 \(4, 3, 24, 24\) on meta at .* on cpu"),
            (lambda images: None, False, "NoneType at .*"),
        ],
    )
    def test_what_can_not_go_on_names_operation_and_step(self, folder: Path, made: Any, last: bool, said: str) -> None:
        own = OnBatch(lambda images, generator: made(images), name="wrong")
        recipe = Recipe((CROP, Normalize(), own, *(() if last else (RandomErasing(),))))
        said = said.replace(" at ", " at step 0 of epoch 0, ")
        with (
            open_loader(folder, recipe) as loader,
            pytest.raises(gpupipe.ConfigError, match=f"^OnBatch 'wrong' returned {said} \\(docs"),
        ):
            next(iter(loader))

    @pytest.mark.parametrize(("whole", "kind"), [(False, KeyError), (True, StopIteration)])
    @pytest.mark.parametrize("engine", TORCH)
    def test_what_it_raises_takes_the_batchs_place(
        self, folder: Path, engine: dict[str, Any], whole: bool, kind: type[Exception]
    ) -> None:
        calls = []

        def once(given: Any, generator: torch.Generator) -> Any:
            calls.append(1)
            if len(calls) == 2:
                raise kind("that")
            return given

        recipe = Recipe((CROP, OnBatch(once, name="once", whole=whole)))
        with open_loader(folder, recipe, 10, **engine) as loader:
            batches = iter(loader)
            next(batches)
            with pytest.raises(gpupipe.DataError, match=r"OnBatch 'once' raised \w+ at step 1 of epoch 0") as raised:
                next(batches)
            assert isinstance(raised.value, kind) == (kind is not StopIteration)
            assert len(next(batches)[0]) == 5

    def test_a_contact_sheet_needs_images(self, folder: Path) -> None:
        with (
            open_loader(folder, Recipe((CROP, OnBatch(same, whole=True)))) as loader,
            pytest.raises(gpupipe.ConfigError, match="OnBatch 'same' may give batches of any form"),
        ):
            next(read_shown(loader, 1))

    def test_in_a_thread_of_the_loaders_as_for_a_gpu(self, folder: Path) -> None:
        threads = set()

        def noted(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
            threads.add(threading.current_thread())
            return scaled(images, generator)

        recipe = Recipe((CROP, OnBatch(noted, name="noted")))
        expected = images_of(open_loader(folder, recipe))
        with open_loader(folder, recipe) as loader:
            loader._supply.lane = Lane()  # type: ignore[assignment]
            assert all(torch.equal(*both) for both in zip((images for images, _ in loader), expected, strict=True))
        assert len(threads) == 2


class TestTransforms:
    def test_of_an_image_draws_from_the_generators_of_its_position(self, folder: Path) -> None:
        elastic = v2.ElasticTransform(50.0)
        recipe = uint8(CROP, PerImage(v2.RandomRotation(30)), PerImage(elastic))
        made = first_of(open_loader(folder, recipe))
        for position, file in enumerate(files_of(folder, 4)):
            image = torch.from_numpy(cropped(recipe, file, position)).permute(2, 0, 1)
            for place, transform in enumerate((v2.RandomRotation(30), elastic)):
                seed_globals(7, place, position)
                image = transform(image)
            np.testing.assert_array_equal(made[position], image.permute(1, 2, 0).numpy())

    def test_of_a_whole_image_may_change_its_size(self, folder: Path) -> None:
        recipe = uint8(PerImage(v2.Compose([v2.ScaleJitter((50, 50)), v2.RandomPhotometricDistort()])), CENTRE)
        made = first_of(open_loader(folder, recipe))
        for position, file in enumerate(files_of(folder, 4)):
            image = torch.from_numpy(np.array(Image.open(io.BytesIO(file)))).permute(2, 0, 1)
            seed_globals(7, 0, position)
            changed = recipe.operations[0].fn(image).permute(1, 2, 0).numpy()
            np.testing.assert_array_equal(made[position], cropped(recipe, encode(changed, "PNG"), position))

    @pytest.mark.parametrize("transform", [v1.Compose([v1.ColorJitter(0.5)]), Drawing()])
    def test_of_the_first_version_and_modules_of_your_own(self, folder: Path, transform: Any) -> None:
        recipe = uint8(CROP, PerImage(transform, name="own"))
        made = first_of(open_loader(folder, recipe))
        for position, file in enumerate(files_of(folder, 4)):
            seed_globals(7, 0, position)
            image = transform(torch.from_numpy(cropped(recipe, file, position)).permute(2, 0, 1))
            np.testing.assert_array_equal(made[position], image.permute(1, 2, 0).numpy())

    def test_of_a_batch_with_its_labels(self, folder: Path) -> None:
        parts = (CROP, Normalize())
        recipe = Recipe((*parts, OnBatch(v2.RandomErasing(1.0)), OnBatch(v2.MixUp(num_classes=5), whole=True)))
        with (
            open_loader(folder, Recipe(parts), shuffle=True) as loader,
            open_loader(folder, recipe, shuffle=True) as own,
        ):
            for step, (batch, made) in enumerate(zip(loader, own, strict=True)):
                images, labels = batch
                seed_globals(8, 0, 4 * step)
                images = v2.RandomErasing(1.0)(images)
                seed_globals(8, 1, 4 * step)
                expected = v2.MixUp(num_classes=5)(images, labels)
                assert all(torch.equal(*both) for both in zip(made, expected, strict=True))

    @pytest.mark.parametrize("engine", TORCH)
    def test_leave_the_consumers_generators_alone(self, folder: Path, engine: dict[str, Any]) -> None:
        def drawn() -> tuple[float, float, float, int]:
            return float(torch.rand(())), float(np.random.rand()), random.random(), torch.initial_seed()  # noqa: NPY002

        def draws(step: Callable[[], Any]) -> list[Any]:
            torch.manual_seed(1)
            np.random.seed(2)  # noqa: NPY002
            random.seed(3)
            return [(step(), drawn())[1] for _ in range(5)]

        recipe = Recipe(
            (PerImage(v2.ScaleJitter((50, 50))), CROP, PerImage(v2.ColorJitter(0.5)), OnBatch(v2.RandomErasing()))
        )
        with open_loader(folder, recipe, **engine) as loader:
            batches = iter(loader)
            assert draws(lambda: next(batches)) == draws(lambda: None)

    @pytest.mark.parametrize("own", [OnBatch(v2.RandomErasing()), PerImage(v2.ColorJitter())])
    def test_draw_beside_no_other_thread(self, folder: Path, own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """As a loader for a GPU has it, where there is none."""
        monkeypatch.setattr("gpupipe.loader.loader.HandOver", lambda device: Lane())
        monkeypatch.setattr("gpupipe.loader.loader.choose", lambda wish, device: ("torch", torch.device("cuda")))
        for operations, beside in (((CROP, own), False), ((CROP, PerImage(same), OnBatch(same)), True)):
            loader = open_loader(folder, Recipe(operations), num_workers=1, engine="torch")
            assert (loader._supply.lane is not None) == beside
            loader.close()

    def test_what_gives_floats_is_refused(self, folder: Path) -> None:
        recipe = uint8(CROP, PerImage(v2.ToDtype(torch.float32, scale=True)))
        with (
            open_loader(folder, recipe) as loader,
            pytest.raises(gpupipe.SampleError, match=r"PerImage 'ToDtype.*ndarray float32 \(24, 24, 3\).*OnBatch"),
        ):
            next(iter(loader))


class TestNames:
    def test_are_those_of_functions_and_what_transforms_print(self) -> None:
        assert repr(PerImage(noisy)) == "PerImage(name='noisy', version=1)"
        assert repr(OnBatch(noisy, name="mine", version="b")) == "OnBatch(name='mine', version='b', whole=False)"
        assert PerImage(v2.Compose([v2.RandomInvert(p=0.25)])).name == "Compose( RandomInvert(p=0.25))"

    @pytest.mark.parametrize("fn", [lambda image, generator: image, v2.Lambda(lambda image: image), partial(same)])
    def test_have_to_be_given_where_there_are_none(self, fn: Any) -> None:
        for kind in (PerImage, OnBatch):
            with pytest.raises(gpupipe.ConfigError, match=rf"{kind.__name__}\(fn, name=\.\.\., version=\.\.\.\)"):
                kind(fn)
            assert kind(fn, name="mine").name == "mine"

    def test_other_settings_are_refused(self) -> None:
        refused: list[tuple[Callable[[], Any], str]] = [
            (lambda: PerImage(3), "fn=3"),
            (lambda: PerImage(same, name=""), "name=''"),
            (lambda: PerImage(same, version=1.5), "version=1.5"),
            (lambda: PerImage(same, geometric=1), "geometric=1"),
            (lambda: OnBatch(same, whole=1), "whole=1"),
        ]
        for build, said in refused:
            with pytest.raises(gpupipe.ConfigError, match=said):
                build()

    def test_stand_in_the_fingerprint_with_version_and_place(self) -> None:
        def one(*operations: Any) -> str:
            return Recipe(operations).fingerprint

        recipes = [
            (CROP, Normalize()),
            (CROP, PerImage(same), Normalize()),
            (PerImage(same), CROP, Normalize()),
            (CROP, PerImage(noisy, name="other"), Normalize()),
            (CROP, PerImage(same, version=2), Normalize()),
            (CROP, OnBatch(same), Normalize()),
            (CROP, Normalize(), OnBatch(same)),
            (CROP, Normalize(), OnBatch(same, whole=True)),
        ]
        assert len({one(*recipe) for recipe in recipes}) == len(recipes)
        assert one(CROP, PerImage(noisy, name="same"), Normalize((0, 0, 0))) == one(*recipes[1])

    def test_a_state_of_another_version_is_refused(self, folder: Path) -> None:
        with open_loader(folder, uint8(CROP, PerImage(same))) as loader:
            state = loader.state_dict()
        with (
            open_loader(folder, uint8(CROP, PerImage(same, version=2))) as loader,
            pytest.raises(gpupipe.StateError, match=r"recipe is .*version of your own operations"),
        ):
            loader.load_state_dict(state)
        with open_loader(folder, uint8(CROP, PerImage(noisy, name="same"))) as loader:
            loader.load_state_dict(state)


FLIP = RandomHorizontalFlip()
MISPLACED = [
    ((CROP, PerImage(same), FLIP), "PerImage 'same' is operation 2 of 3, between crop and flip.*before the crop"),
    ((CROP, OnBatch(same), FLIP), "OnBatch 'same' is operation 2 of 3, between crop and flip.*behind the flip \\(docs"),
    ((OnBatch(same), CROP), "OnBatch 'same' is operation 1 of 2, before the crop.*take PerImage"),
    ((CROP, Normalize(), PerImage(same)), "operation 3 of 3, behind Normalize.*take OnBatch"),
    ((CROP, RandomErasing(), MixUp(), PerImage(same)), "behind RandomErasing, MixUp, where images are floats"),
    ((CROP, OnBatch(scaled), PerImage(same)), "PerImage 'same' is operation 3 of 3, behind OnBatch 'scaled'"),
    ((CROP, OnBatch(same, whole=True), Normalize()), "OnBatch 'same' .*before Normalize.*whole=True.*last"),
    ((PerImage(same), Normalize()), "must be one crop"),
    ((CROP, *[PerImage(same)] * 16), "16 PerImage in one recipe"),
]


@pytest.mark.parametrize(("operations", "said"), MISPLACED)
def test_places_where_they_can_not_stand(operations: tuple[Any, ...], said: str) -> None:
    with pytest.raises(gpupipe.ConfigError, match=said):
        Recipe(operations)


def test_views_of_several_recipes_have_no_one_end() -> None:
    with pytest.raises(gpupipe.ConfigError, match="OnBatch 'same' is one recipe's"):
        gpupipe.MultiCrop((Recipe((CROP, OnBatch(same, whole=True))),))


# A change here would change the data of every run that is resumed.
GOLDEN = [(251, 48, 2, 214), (37, 179, 236, 196), (143, 161, 206, 66)]
