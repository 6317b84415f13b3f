"""Erasing and mixing in the finish, against torchvision v2 and double precision; noise; soft targets."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from gpupipe.kernels import Erase, Mix, finish, finish_reference, native, noise, soft_targets
from gpupipe.kernels.philox import philox4x32
from gpupipe.recipe import IMAGENET_MEAN as MEAN, IMAGENET_STD as STD

FLOATS = [torch.float32, torch.float16, torch.bfloat16]
LAYOUTS = [False, True]
# (N, height, width): empty, one pixel, odd, narrow, low, and wider than what is worked on at once.
SHAPES = [(0, 5, 7), (1, 1, 1), (7, 17, 31), (5, 33, 1), (4, 2, 601)]
both_paths = pytest.mark.usefixtures("cpu_path")


def images_of(shape: tuple[int, int, int]) -> torch.Tensor:
    return torch.randint(0, 256, (*shape, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(sum(shape)))


def boxes_of(shape: tuple[int, int, int], rng: np.random.Generator) -> NDArray[np.int32]:
    """Any boxes inside, the last image's the whole, the first one's without width."""
    n, height, width = shape
    ends = [np.sort(rng.integers(0, size + 1, (n, 2)), axis=1) for size in (height, width)]
    boxes = np.stack([ends[0][:, 0], ends[1][:, 0], *(end[:, 1] - end[:, 0] for end in ends)], axis=1)
    boxes[:1, 3] = 0
    boxes[-1:] = (0, 0, height, width)
    return boxes.astype(np.int32)


def erase_of(shape: tuple[int, int, int], rng: np.random.Generator, *, noisy: bool = False) -> Erase:
    keys = rng.integers(0, 2**32, (shape[0], 2), dtype=np.uint32)
    return Erase(boxes_of(shape, rng), None if noisy else (0.25, -1.7, 2.3), keys)


def mix_of(shape: tuple[int, int, int], rng: np.random.Generator) -> Mix:
    """MixUp, CutMix, both at once, and rows that are their own partners."""
    n = shape[0]
    partners, weights = rng.integers(0, max(n, 1), n), rng.random(n)
    weights[::3] = 1
    weights[1::5] = 0
    boxes = boxes_of(shape, rng)
    boxes[rng.random(n) < 0.4, 2] = 0
    return Mix(partners.astype(np.int32), weights.astype(np.float32), boxes)


def settings_of(shape: tuple[int, int, int], *, noisy: bool = False) -> list[dict[str, Any]]:
    rng = np.random.default_rng(sum(shape))
    erase, mix = erase_of(shape, rng, noisy=noisy), mix_of(shape, rng)
    return [{"erase": erase}, {"mix": mix}, {"erase": erase, "mix": mix}]


def without_box(n: int) -> NDArray[np.int32]:
    return np.zeros((n, 4), np.int32)


def shifted(n: int) -> NDArray[np.int32]:
    """The partners that torchvision's MixUp and CutMix take."""
    return np.roll(np.arange(n, dtype=np.int32), 1)


def normalized(images: torch.Tensor) -> torch.Tensor:
    """torchvision's."""
    return F.normalize(F.to_dtype(images.permute(0, 3, 1, 2), scale=True), list(MEAN), list(STD))


def without_kernels(images: torch.Tensor, *args: Any, **settings: Any) -> torch.Tensor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "_opened", lambda: (None, "not built"))
        return finish(images, *args, **settings)


@both_paths
@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_is_the_reference(shape: tuple[int, int, int], noisy: bool) -> None:
    images = images_of(shape)
    before = images.clone()
    cases = itertools.product(settings_of(shape, noisy=noisy), FLOATS, LAYOUTS)
    for settings, dtype, channels_last in cases:
        expected = finish_reference(images, MEAN, STD, dtype, channels_last, **settings)
        result = finish(images, MEAN, STD, dtype, channels_last, **settings)
        assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
        assert result.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
        step = 0 if dtype == torch.float32 else torch.finfo(dtype).eps  # where float32 and double round otherwise
        torch.testing.assert_close(result, expected, rtol=step, atol=1e-5 if noisy else 2e-6)
    assert torch.equal(images, before)


@both_paths
@pytest.mark.parametrize("noisy", [False, True])
def test_is_rounded_once_by_torchs_rule(noisy: bool) -> None:
    shape = (7, 17, 31)
    for settings, dtype, channels_last in itertools.product(settings_of(shape, noisy=noisy), FLOATS, LAYOUTS):
        exact = finish(images_of(shape), MEAN, STD, torch.float32, channels_last, **settings)
        result = finish(images_of(shape), MEAN, STD, dtype, channels_last, **settings)
        assert torch.equal(result, exact.to(dtype))


@both_paths
@pytest.mark.parametrize("dtype", FLOATS)
def test_extreme_values_are_rounded_by_torchs_rule(dtype: torch.dtype) -> None:
    """Ties, float16's subnormals and largest numbers, beyond them; in vectors and in what these leave over."""
    edges = [0.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1 + 3 * 2**-11, 65519.99, 65520.0, 1e9, 3.4e38]
    edges += [2**-14, 2**-14 - 2**-26, 2**-24, 2**-25, 2**-25 * 1.001, 3 * 2**-25, 5.5 * 2**-24, 1e-30]
    values = [sign * edge for edge in edges for sign in (1, -1)]
    for value, width in itertools.product(values, (8, 5)):
        erase = Erase(np.array([[0, 0, 1, width]], np.int32), (value, value, value))
        result = finish(images_of((1, 1, width)), MEAN, STD, dtype, erase=erase)
        assert torch.equal(result, torch.full((1, 3, 1, width), value).to(dtype))


@pytest.mark.skipif(native.library() is None, reason="without the C++ kernels")
@pytest.mark.parametrize("shape", SHAPES)
def test_all_variants_and_thread_counts_give_the_same_bits(shape: tuple[int, int, int]) -> None:
    for noisy, dtype, channels_last in itertools.product((False, True), FLOATS, LAYOUTS):
        for settings in settings_of(shape, noisy=noisy):
            arguments = (images_of(shape), MEAN, STD, dtype, channels_last)
            one = finish(*arguments, **settings, threads=1)
            assert torch.equal(finish(*arguments, **settings, threads=3), one)
            for variant in native.variants():
                assert torch.equal(finish(*arguments, **settings, variant=variant), one)
            if not noisy:
                assert torch.equal(without_kernels(*arguments, **settings), one)


@both_paths
def test_erasing_is_torchvisions() -> None:
    shape = (7, 17, 31)
    erase = erase_of(shape, np.random.default_rng(3))
    result = finish(images_of(shape), MEAN, STD, erase=erase)
    for own, image, box in zip(result, normalized(images_of(shape)), erase.boxes.tolist(), strict=True):
        expected = F.erase(image, *box, torch.tensor(erase.value).view(3, 1, 1))
        torch.testing.assert_close(own, expected, rtol=1e-6, atol=1e-6)


@both_paths
@pytest.mark.parametrize("erased", [False, True])
def test_mixup_is_torchvisions(monkeypatch: pytest.MonkeyPatch, erased: bool) -> None:
    """Of images that were erased before, if they were."""
    shape, classes = (6, 17, 31), torch.tensor([4, 1, 1, 0, 3, 4])
    erase = erase_of(shape, np.random.default_rng(5))
    images = normalized(images_of(shape))
    if erased:
        value = torch.tensor(erase.value).view(3, 1, 1)
        images = torch.stack([F.erase(i, *box, value) for i, box in zip(images, erase.boxes.tolist(), strict=True)])
    for weight in (0.0, 0.3, 0.87, 1.0):
        monkeypatch.setattr(v2.MixUp, "make_params", lambda *_, weight=weight: {"lam": weight})
        expected, targets = v2.MixUp(num_classes=5)(images, classes)
        weights = np.full(6, weight, np.float32)
        mix = Mix(shifted(6), weights, without_box(6))
        result = finish(images_of(shape), MEAN, STD, erase=erase if erased else None, mix=mix)
        torch.testing.assert_close(result, expected, rtol=1e-6, atol=2e-6)
        torch.testing.assert_close(soft_targets(classes, mix.partners, weights, 5), targets)


@both_paths
def test_cutmix_is_torchvisions(monkeypatch: pytest.MonkeyPatch) -> None:
    shape, classes = (6, 17, 31), torch.tensor([4, 1, 1, 0, 3, 4])
    for top, left, height, width in ((0, 0, 0, 0), (3, 5, 9, 20), (0, 0, 17, 31), (16, 0, 1, 31)):
        share = 1 - height * width / (17 * 31)
        params = {"box": (left, top, left + width, top + height), "lam_adjusted": share}
        monkeypatch.setattr(v2.CutMix, "make_params", lambda *_, params=params: params)
        expected, targets = v2.CutMix(num_classes=5)(normalized(images_of(shape)), classes)
        boxes = np.tile(np.array([[top, left, height, width]], np.int32), (6, 1))
        result = finish(images_of(shape), MEAN, STD, mix=Mix(shifted(6), np.ones(6, np.float32), boxes))
        torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(soft_targets(classes, shifted(6), np.full(6, share, np.float32), 5), targets)


@both_paths
@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_not_asked_for_leaves_the_bits_of_a_plain_finish(dtype: torch.dtype) -> None:
    shape = (7, 17, 31)
    rng = np.random.default_rng(9)
    erase, mix = erase_of(shape, rng, noisy=True), mix_of(shape, rng)
    own_row = np.arange(7, dtype=np.int32)
    for channels_last in LAYOUTS:
        plain = finish(images_of(shape), MEAN, STD, dtype, channels_last)
        some = finish(images_of(shape), MEAN, STD, dtype, channels_last, erase=erase)
        empty = ~erase.boxes[:, 2:].all(axis=1)
        assert 0 < empty.sum() < 7
        assert torch.equal(some[empty], plain[empty])
        for idle in (
            {"erase": Erase(without_box(7), None, erase.keys)},
            {"mix": Mix(own_row, mix.weights, mix.boxes)},
            {"mix": Mix(shifted(7), np.ones(7, np.float32), without_box(7))},
        ):
            assert torch.equal(finish(images_of(shape), MEAN, STD, dtype, channels_last, **idle), plain)


@both_paths
def test_out_is_filled_and_images_are_mixed_not_rows_of_out() -> None:
    """Partners that were written before and that come later."""
    shape = (7, 17, 31)
    (settings,) = settings_of(shape)[2:]
    expected = finish(images_of(shape), MEAN, STD, **settings)
    out = torch.full_like(expected, torch.nan)
    assert finish(images_of(shape), MEAN, STD, out=out, **settings) is out
    assert torch.equal(out, expected)


@both_paths
def test_arrays_need_not_be_contiguous() -> None:
    shape = (7, 17, 31)
    (settings,) = settings_of(shape, noisy=True)[2:]
    erase, mix = settings["erase"], settings["mix"]
    spread = {
        "erase": Erase(np.asfortranarray(erase.boxes), None, np.asfortranarray(erase.keys)),
        "mix": Mix(*(np.repeat(array, 2, axis=0)[::2] for array in (mix.partners, mix.weights, mix.boxes))),
    }
    assert not spread["mix"].weights.flags.contiguous
    assert not spread["erase"].boxes.flags.c_contiguous
    expected = finish(images_of(shape), MEAN, STD, **settings)
    assert torch.equal(finish(images_of(shape), MEAN, STD, **spread), expected)


def noise_of(keys: NDArray[np.uint32], height: int, width: int) -> NDArray[np.float32]:
    """(N, height, width, 3), from images that are erased altogether."""
    n = len(keys)
    boxes = np.tile(np.array([[0, 0, height, width]], np.int32), (n, 1))
    images = torch.zeros((n, height, width, 3), dtype=torch.uint8)
    return finish(images, MEAN, STD, channels_last=True, erase=Erase(boxes, None, keys)).permute(0, 2, 3, 1).numpy()


@both_paths
def test_noise_is_that_of_the_definition() -> None:
    keys = np.random.default_rng(1).integers(0, 2**32, (8, 2), dtype=np.uint32)
    for numbers, key in zip(noise_of(keys, 70, 130), keys.tolist(), strict=True):
        np.testing.assert_array_equal(numbers, noise((key[0], key[1]), 70, 130))


def test_noise_is_box_and_mullers() -> None:
    words = philox4x32((np.arange(70 * 130).reshape(70, 130), 0, 0, 0), (3, 4))
    first, second, third, fourth = ((words >> np.uint64(9)) + 0.5) * 2.0**-23
    radius, other = np.sqrt(-2 * np.log(first)), np.sqrt(-2 * np.log(third))
    turns, last = 2 * np.pi * second, 2 * np.pi * fourth
    channels = radius * np.cos(turns), radius * np.sin(turns), other * np.cos(last)
    np.testing.assert_allclose(noise((3, 4), 70, 130), np.stack(channels, -1), rtol=0, atol=1e-5)


@both_paths
def test_noise_is_standard_normal_and_independent() -> None:
    numbers = noise_of(np.array([[7, 0], [8, 0], [7, 1]], np.uint32), 100, 150).astype(np.float64)
    size = numbers[0].size
    for row in numbers:
        assert abs(row.mean()) < 4 / np.sqrt(size)
        assert abs(row.std() - 1) < 4 / np.sqrt(2 * size)
        assert stats.kstest(row.ravel(), "norm").pvalue > 1e-3
    streams = [numbers[row, :, :, channel].ravel() for row in range(3) for channel in range(3)]
    streams += [np.roll(stream, 1) for stream in streams]
    # Of numbers, and of their sizes: what Box and Muller's two share is a radius.
    for made in (np.array(streams), np.abs(streams)):
        assert np.abs(np.corrcoef(made) - np.eye(len(made))).max() < 5 / np.sqrt(len(streams[0]))


@both_paths
def test_noise_does_not_depend_on_the_box() -> None:
    keys = np.array([[1, 2]], np.uint32)
    whole = noise_of(keys, 40, 90)
    erase = Erase(np.array([[3, 41, 20, 47]], np.int32), None, keys)
    part = finish(torch.zeros((1, 40, 90, 3), dtype=torch.uint8), MEAN, STD, erase=erase)
    np.testing.assert_array_equal(part[0, :, 3:23, 41:88].permute(1, 2, 0).numpy(), whole[0, 3:23, 41:88])


BOXES = np.array([[0, 0, 5, 7], [1, 2, 3, 4]], np.int32)
KEYS = np.zeros((2, 2), np.uint32)
PARTNERS, WEIGHTS = np.array([1, 0], np.int32), np.array([0.5, 1], np.float32)


@both_paths
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"erase": Erase(BOXES[:1])}, r"erase.boxes are int32 \(1, 4\), but int32 \(2, 4\) is needed"),
        ({"erase": Erase(BOXES.astype(np.int64))}, r"erase.boxes are int64"),
        ({"erase": Erase(BOXES + np.int32([0, 0, 0, 2]))}, r"erase.boxes\[0\] is \[0, 0, 5, 9\].*5 x 7"),
        ({"erase": Erase(BOXES - np.int32([0, 1, 0, 0]))}, r"erase.boxes\[0\] is \[0, -1, 5, 7\]"),
        ({"erase": Erase(BOXES - np.int32([0, 0, 4, 0]))}, r"erase.boxes\[1\] is \[1, 2, -1, 4\]"),
        ({"erase": Erase(BOXES * np.int32([1, 1, 1, 2**29]))}, r"erase.boxes\[0\] is"),
        ({"erase": Erase(BOXES, None)}, "noise, which erase.keys decide"),
        ({"erase": Erase(BOXES, None, KEYS.astype(np.int64))}, "erase.keys are int64"),
        ({"erase": Erase(BOXES, None, KEYS[:1])}, r"erase.keys are uint32 \(1, 2\)"),
        ({"erase": Erase(BOXES, (0.0, np.nan, 0.0))}, "erase.value="),
        ({"erase": Erase(BOXES, (0.0, 0.0))}, "three finite numbers"),  # type: ignore[arg-type]
        (
            {"mix": Mix(PARTNERS + np.int32(1), WEIGHTS, BOXES)},
            r"mix.partners\[0\] is 2; give rows.* 0 to 1",
        ),
        ({"mix": Mix(PARTNERS - np.int32(1), WEIGHTS, BOXES)}, r"mix.partners\[1\] is -1"),
        ({"mix": Mix(PARTNERS[:1], WEIGHTS, BOXES)}, r"mix.partners are int32 \(1,\)"),
        ({"mix": Mix(PARTNERS, WEIGHTS * 2, BOXES)}, r"mix.weights\[1\] is 2.0; give 0 to 1"),
        ({"mix": Mix(PARTNERS, WEIGHTS * np.float32(np.nan), BOXES)}, r"mix.weights\[0\] is nan"),
        ({"mix": Mix(PARTNERS, WEIGHTS.astype(np.float64), BOXES)}, "mix.weights are float64"),
        ({"mix": Mix(PARTNERS, WEIGHTS, BOXES + np.int32([3, 0, 0, 0]))}, r"mix.boxes\[0\] is \[3, 0, 5, 7\]"),
    ],
)
def test_bad_arrays_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        finish(images_of((2, 5, 7)), MEAN, STD, **settings)


@both_paths
def test_uint8_is_not_erased_or_mixed() -> None:
    for settings in ({"erase": Erase(BOXES)}, {"mix": Mix(PARTNERS, WEIGHTS, BOXES)}):
        with pytest.raises(ValueError, match=r"torch.uint8 leaves the pixels as they are.*take torch.bfloat16"):
            finish(images_of((2, 5, 7)), MEAN, STD, torch.uint8, **settings)  # type: ignore[arg-type]


@both_paths
def test_images_and_dtypes_of_another_kind_are_refused() -> None:
    images = images_of((2, 5, 7))
    for wrong in (images.float(), images[0], images[..., :2], images.permute(0, 3, 1, 2)):
        with pytest.raises(ValueError, match=r"give uint8 \(N, height, width, 3\)"):
            finish(wrong, MEAN, STD)
    with pytest.raises(ValueError, match=r"dtype=torch.float64; give one of"):
        finish(images, MEAN, STD, torch.float64)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_soft_targets_give_crossentropys_loss(smoothing: float) -> None:
    """That of both labels, weighed by the shares; labels that are the same, and images that are their own partners."""
    rng = np.random.default_rng(0)
    labels = torch.tensor([3, 0, 3, 9, 4, 9, 9])
    partners = np.array([1, 0, 0, 3, 6, 6, 4], np.int32)
    shares = np.array([0.2, 1, 0.7, 0.1, 0, 0.4, 0.6], np.float32)
    targets = soft_targets(labels, partners, shares, 10, smoothing)
    assert (targets.dtype, targets.shape) == (torch.float32, (7, 10))
    torch.testing.assert_close(targets.sum(1), torch.ones(7))
    logits = torch.from_numpy(rng.standard_normal((7, 10)))
    own, other = (
        torch.nn.functional.cross_entropy(logits, classes, reduction="none", label_smoothing=smoothing)
        for classes in (labels, labels[partners])
    )
    expected = torch.from_numpy(shares) * own + (1 - torch.from_numpy(shares)) * other
    loss = torch.nn.functional.cross_entropy(logits, targets.double(), reduction="none")
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)


def test_soft_targets_are_float32_whatever_torchs_default_is() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        shares, partners = np.array([0.5, 1], np.float32), np.array([1, 0], np.int32)
        assert soft_targets(torch.tensor([0, 1]), partners, shares, 3).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_soft_targets_of_one_class_hold_all_of_it() -> None:
    """Exactly, whatever the share."""
    shares = np.random.default_rng(0).random(500).astype(np.float32)
    labels, partners = torch.full((500,), 2), np.random.default_rng(1).integers(0, 500, 500).astype(np.int32)
    assert torch.equal(soft_targets(labels, partners, shares, 4), torch.nn.functional.one_hot(labels, 4).float())


def test_soft_targets_of_no_labels() -> None:
    nothing = np.zeros(0, np.int32)
    assert soft_targets(torch.zeros(0, dtype=torch.int64), nothing, nothing.astype(np.float32), 5).shape == (0, 5)


@pytest.mark.parametrize(
    ("labels", "partners", "shares", "smoothing", "message"),
    [
        (torch.zeros(2), PARTNERS, WEIGHTS, 0.0, r"labels are torch.float32 \(2,\)"),
        (torch.zeros(3, dtype=torch.int64), PARTNERS, WEIGHTS, 0.0, r"partners are int32 \(2,\), but int32 \(3,\)"),
        (torch.zeros(2, dtype=torch.int64), PARTNERS * np.int32(2), WEIGHTS, 0.0, r"partners\[0\] is 2"),
        (torch.zeros(2, dtype=torch.int64), PARTNERS, -WEIGHTS, 0.0, r"shares\[0\] is -0.5; give 0 to 1"),
        (torch.zeros(2, dtype=torch.int64), PARTNERS, WEIGHTS, 1.5, "label_smoothing=1.5"),
    ],
)
def test_bad_targets_are_refused(
    labels: torch.Tensor, partners: Any, shares: Any, smoothing: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        soft_targets(labels, partners, shares, 5, smoothing)
