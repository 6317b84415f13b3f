"""The operations of `augment` against torchvision's, and the C++ kernels against the reference, bit by bit."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision.transforms.functional import _get_inverse_affine_matrix, _get_perspective_coeffs
from torchvision.transforms.v2.functional._misc import _get_gaussian_kernel1d

from gpupipe.kernels import (
    Op,
    affine_matrix,
    augment,
    augment_reference,
    elastic_values,
    gaussian_weights,
    native,
    perspective_matrix,
)
from gpupipe.kernels.augment_reference import displacement

augment_module = importlib.import_module("gpupipe.kernels.augment")  # the package's attribute is the function
needs_kernels = pytest.mark.skipif(native.library() is None, reason="without the C++ kernels")
# One pixel, less than the filters need, narrow, odd, and wider than what the loops take at a time.
SIZES = [(1, 1), (2, 2), (3, 5), (9, 1), (1, 9), (33, 47), (14, 300)]
EXACT = {
    Op.BRIGHTNESS,
    Op.POSTERIZE,
    Op.SOLARIZE,
    Op.SOLARIZE_ADD,
    Op.AUTOCONTRAST,
    Op.EQUALIZE,
    Op.INVERT,
    Op.GRAYSCALE,
    Op.AFFINE_NEAREST,
    Op.CHANNELS,
    Op.NOISE,
    Op.PERSPECTIVE_NEAREST,
    Op.ELASTIC_NEAREST,
}
FILL = (124.0, 116.4, 103.5)


def _load_bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "augment_agreement", Path(__file__).parent.parent / "bench" / "augment_agreement.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


bench = _load_bench()


def program(*steps: tuple[Op, Any]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """One operation for each row."""
    length = max([6, *(np.size(values) for _, values in steps)])
    numbers = np.zeros((len(steps), 1, length), np.float32)
    for row, (_, values) in enumerate(steps):
        numbers[row, 0, : np.size(values)] = values
    return np.array([[op] for op, _ in steps], np.int32), numbers


def near_a_tie(matrix: NDArray[np.float32], height: int, width: int) -> torch.Tensor:
    """Where a coordinate lies in the middle between two pixels, so that its last bit decides which is the nearest, or
    whether it lies outside."""
    a, b, c, d, e, f, *more = matrix.astype(np.float64)
    y, x = np.mgrid[:height, :width]
    part = more[0] * x + more[1] * y + 1 if more else 1
    x, y = (a * x + b * y + c) / part, (d * x + e * y + f) / part
    return torch.from_numpy((np.abs(x % 1 - 0.5) < 1e-4) | (np.abs(y % 1 - 0.5) < 1e-4)).view(1, height, width, 1)


@pytest.mark.parametrize("size", SIZES)
def test_levels_are_torchvisions(size: tuple[int, int]) -> None:
    images = bench.made_images(*size)
    seen = set()
    for case in bench.cases(*size, steps=7):
        wanted = case.truth(images.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        got = augment_reference(images, *case.program(len(images)), case.fill)
        apart = (got.int() - wanted.int()).abs()
        if case.op in (Op.AFFINE_NEAREST, Op.AFFINE_BICUBIC, Op.PERSPECTIVE_NEAREST):
            apart = apart * ~near_a_tie(case.values, *size)
        if case.op is Op.ELASTIC_NEAREST:
            ties = (displacement(torch.from_numpy(case.values), *size) % 1 - 0.5).abs() < 1e-4
            apart = apart * ~ties.any(0).view(1, *size, 1)
        assert apart.max() <= (0 if case.op in EXACT else 1), case
        seen.add(case.op)
    # Which torchvision refuses for small images, or which are nothing of a line of pixels.
    large = {Op.GAUSSIAN_BLUR, Op.PERSPECTIVE_NEAREST, Op.PERSPECTIVE_BILINEAR}
    assert seen >= set(Op) - {Op.IDENTITY} - (large if min(size) < 2 else set())


def test_black_is_no_fill_where_nothing_is_interpolated() -> None:
    images = bench.made_images(33, 40)
    cases = [case for case in bench.cases(33, 40, steps=7) if "NEAREST" in case.op.name]
    assert {case.op for case in cases} == {Op.AFFINE_NEAREST, Op.PERSPECTIVE_NEAREST, Op.ELASTIC_NEAREST}
    for case in cases:
        black, none = (augment(images, *case.program(len(images)), fill=fill) for fill in ((0.0, 0.0, 0.0), None))
        assert torch.equal(black, none), case


def test_the_matrix_is_torchvisions() -> None:
    draw = np.random.default_rng(1)
    for angle, *rest in draw.uniform(-60, 60, (20, 5)):
        (shear, translate), center = (rest[:2], rest[2:4]), draw.uniform(0, 40, 2).tolist()
        height, width = 31, 44
        middle = [center[0] - width / 2, center[1] - height / 2]
        scale = draw.uniform(0.3, 3)
        a, b, c, d, e, f = _get_inverse_affine_matrix(middle, angle, translate, scale, shear)
        # Theirs maps pixel centres counted from the middle of the image.
        right, down = (width - 1) / 2, (height - 1) / 2
        wanted = [a, b, c + right - a * right - b * down, d, e, f + down - d * right - e * down]
        got = affine_matrix(
            (height, width), angle=angle, shear=tuple(shear), translate=tuple(translate), scale=scale, center=center
        )
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-4)


def test_matrices_of_arrays_are_those_of_numbers() -> None:
    angles, right = np.linspace(-30, 30, 5), np.arange(5)
    together = affine_matrix((20, 30), angle=angles, translate=(right, 2.0))
    assert together.shape == (5, 6)
    for row, angle, move in zip(together, angles, right, strict=True):
        assert np.array_equal(row, affine_matrix((20, 30), angle=angle, translate=(move, 2.0)))


def test_perspectives_are_torchvisions() -> None:
    """Their coefficients are those of halves."""
    height, width = 31, 44
    start = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    ends = np.random.default_rng(2).integers(-6, 7, (20, 4, 2)) + start
    made = perspective_matrix((height, width), ends).astype(np.float64)
    x, y = np.meshgrid([0, 7, 43], [0, 9, 30])
    for row, values in zip(ends.tolist(), made, strict=True):
        c = _get_perspective_coeffs(start, row)
        part = c[6] * (x + 0.5) + c[7] * (y + 0.5) + 1
        wanted = [(c[at] * (x + 0.5) + c[at + 1] * (y + 0.5) + c[at + 2]) / part - 0.5 for at in (0, 3)]
        ours = values[6] * x + values[7] * y + 1
        got = [(values[at] * x + values[at + 1] * y + values[at + 2]) / ours for at in (0, 3)]
        np.testing.assert_allclose(got, wanted, atol=1e-3)
    assert made.shape == (20, 8)


@pytest.mark.parametrize("size", [(1, 9), (9, 1), (9, 9)])
def test_perspectives_without_an_inverse_are_none(size: tuple[int, int]) -> None:
    on_a_line = [[0, 0], [4, 4], [8, 8], [2, 7]]
    assert not perspective_matrix(size, on_a_line).any()
    one_point = [[3, 3]] * 4
    assert not perspective_matrix(size, [one_point, one_point]).any()


@pytest.mark.parametrize("size", [1, 3, 13, 23])
def test_the_weights_are_torchvisions(size: int) -> None:
    sigmas = np.array([0.1, 0.7, 2.0])
    weights = gaussian_weights(size, sigmas)
    assert weights.shape == (3, max(6, size // 2 + 1))
    for row, sigma in zip(weights, sigmas, strict=True):
        wanted = _get_gaussian_kernel1d(size, sigma, torch.float32, torch.device("cpu")).numpy()
        np.testing.assert_allclose(row[: size // 2 + 1], wanted[size // 2 :], rtol=1e-5, atol=1e-7)
        assert not row[size // 2 + 1 :].any()


def test_a_blur_wider_than_the_image_is_reflected_on() -> None:
    """torchvision refuses it; NumPy's padding reflects as often as it takes."""
    image = bench.made_images(4, 3)[:1]
    weights = gaussian_weights(23, 4.0)
    kernel = np.concatenate([weights[:0:-1], weights]).astype(np.float64)
    padded = np.pad(image[0].numpy().astype(np.float64), ((11, 11), (11, 11), (0, 0)), "reflect")
    exact = np.einsum(
        "yxcij,i,j->yxc", np.lib.stride_tricks.sliding_window_view(padded, (23, 23), (0, 1)), kernel, kernel
    )
    got = augment_reference(image, *program((Op.GAUSSIAN_BLUR, weights)))
    assert np.abs(got[0].numpy() - exact).max() < 0.501


@pytest.mark.trainers("timm")
def test_solarize_add_is_timms() -> None:
    from timm.data.auto_augment import solarize_add

    image = bench.made_images(16, 16)[:1]
    for more in (0, 33, 110):
        wanted = np.asarray(solarize_add(Image.fromarray(image[0].numpy()), more))
        assert np.array_equal(augment_reference(image, *program((Op.SOLARIZE_ADD, more)))[0], wanted)


def every_step(height: int, width: int) -> list[tuple[Op, Any]]:
    """Every operation with usual values, those at the ends of its range, and those that could lead outside."""
    size = height, width
    draw = np.random.default_rng(height)
    turned = [
        affine_matrix(size, angle=angle, shear=tuple(shear), translate=tuple(move))
        for angle, *both in draw.uniform(-40, 40, (5, 5))
        for shear, move in [(both[:2], both[2:])]
    ]
    halves = [[1, 0, 0.5, 0, 1, 0.5], [1, 0, -0.5, 0, 1, 1.5], [0.5, 0, -1, 0, 0.5, -1], [0, 0, 1.5, 0, 0, -0.5]]
    rows = [[1, 0, 0, 0, -1, height - 1], [1, 0, 0, 0, 1, 2], [1, 0, 0, 0, 0.4, -0.7], [1, 0, 0, 0, 3e38, 3e38]]
    # Coordinates that overflow to infinity, that are no numbers, that no int32 holds.
    wild = [[1e38] * 6, [3e38, -3e38, 1, -3e38, 3e38, 1], [3e38, 3e38, -3e38, 0, 1, 0], [1, 0, 2**31, 0, 1, -(2**31)]]
    steps: list[tuple[Op, Any]] = [
        (op, matrix)
        for op in (Op.AFFINE_NEAREST, Op.AFFINE_BILINEAR, Op.AFFINE_BICUBIC)
        for matrix in [*turned, *halves, *rows, *wild]
    ]
    corners = np.array([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]])
    seen = [perspective_matrix(size, corners * share + draw.uniform(-3, 3, (4, 2))) for share in (0.5, 0.8, 1.1)]
    # Over the horizon, divided by 0, and what is no perspective.
    odd = [[*halves[0], -1, 0], [*halves[0], -0.3, 0.1], [*wild[0], 0, 0], [*turned[0], -1e38, 3e38], turned[0]]
    steps += [(op, values) for op in (Op.PERSPECTIVE_NEAREST, Op.PERSPECTIVE_BILINEAR) for values in (*seen, *odd)]
    far = [
        [*scale, 5, 9, 65535, 0, *weights] for scale in ((30, 14), (3e38, -3e38)) for weights in ([1], [0.4, 0.2, 0.1])
    ]
    own = elastic_values((9.0, 5.0), 2.2, np.array([7, 2**32 - 1], np.uint32))
    steps += [(op, values) for op in (Op.ELASTIC_NEAREST, Op.ELASTIC_BILINEAR) for values in (own, *far)]
    for op in (Op.BRIGHTNESS, Op.CONTRAST, Op.SATURATION, Op.SHARPNESS):
        steps += [(op, factor) for factor in (0, 0.1, 0.73, 1, 1.9, 17, 1e30)]
    steps += [(Op.HUE, turn) for turn in (*np.linspace(-0.5, 0.5, 7), 0.1)]
    steps += [(Op.POSTERIZE, bits) for bits in (0, 1, 3.7, 8)]
    steps += [(Op.SOLARIZE, level) for level in (-3, 0, 100.5, 128, 255, 256, 3e38)]
    steps += [(Op.SOLARIZE_ADD, level) for level in (-3e38, -50, 0, 30.5, 110, 256, 3e38)]
    steps += [(op, 0) for op in (Op.IDENTITY, Op.AUTOCONTRAST, Op.EQUALIZE, Op.INVERT, Op.GRAYSCALE)]
    steps += [(op, share) for op in (Op.MIX_BEGIN, Op.MIX_ADD, Op.MIX_END) for share in (0, 0.3, 1)]
    steps += [(Op.GAMMA, power) for power in (0.01, 0.5, 0.83, 1, 1.21, 2.2, 17.5, 100)]
    factors = [(0, 1, 1), (2.7, 1.7, 0.6), (-179.5, 0, 1.4), (180, 3e38, -1), (-0.3, 0.3, 3e38), (77.2, -3, 0.97)]
    steps += [(Op.HSV, some) for some in factors]
    holes = [
        [1, 0, 0, height, 2],
        [3, 1, 2, 4, 3, 0, 0, 1, 1, height - 1, width - 2, 9, 9],
        [9, 0, 1, 1, 1],
        [-1, 0, 0, 5, 5],
    ]
    steps += [(Op.HOLES, some) for some in (*holes, [1.9, 0.7, 3e38, 2, 3e38], [2, -5, 1.5, 3e38, 2.5])]
    steps += [(Op.CHANNELS, order) for order in (*range(6), 3.9)]
    keys = [[1, 2, 3, 4], [65535] * 4, [-3e38, 3e38, 0.5, 70000]]
    steps += [(Op.NOISE, [*scale, *key]) for scale in ((0, 25.5), (-40.2, 3), (3e38, 3e38), (0, -1e6)) for key in keys]
    weights = [gaussian_weights(*blur) for blur in ((1, 1.0), (3, 0.5), (13, 0.1), (13, 2.0), (23, 2.0), (55, 20.0))]
    steps += [(Op.GAUSSIAN_BLUR, some) for some in [*weights, [2, 3], [-1, -1]]]
    assert {op for op, _ in steps} == set(Op)
    return steps


@needs_kernels
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("fill", [None, FILL])
def test_the_kernels_give_the_references_bits(size: tuple[int, int], fill: tuple[float, ...] | None) -> None:
    steps = every_step(*size)
    extremes = torch.randint(0, 2, (*size, 3), generator=torch.Generator().manual_seed(1)).to(torch.uint8) * 255
    for image in (*bench.made_images(*size)[:3], extremes):
        images = image.expand(len(steps), *image.shape).contiguous()
        before = images.clone()
        wanted = augment_reference(images, *program(*steps), fill)
        for variant in native.variants():
            got = augment(images, *program(*steps), fill=fill, variant=variant)
            wrong = {steps[row][0].name for row in range(len(steps)) if not torch.equal(got[row], wanted[row])}
            assert not wrong, (variant, wrong)
        assert torch.equal(images, before)


def chains(count: int, length: int, size: tuple[int, int]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Several operations for each row, each row others."""
    steps = every_step(*size)
    draw = np.random.default_rng(count)
    parts = [program(*[steps[i] for i in draw.integers(len(steps), size=count)]) for _ in range(length)]
    longest = max(values.shape[2] for _, values in parts)
    values = [np.pad(values, ((0, 0), (0, 0), (0, longest - values.shape[2]))) for _, values in parts]
    return np.concatenate([ops for ops, _ in parts], axis=1), np.concatenate(values, axis=1)


@needs_kernels
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("where", ["new", "out", "in place"])
def test_chains(threads: int, where: str) -> None:
    size = (21, 30)
    ops, values = chains(24, 5, size)
    images = bench.made_images(*size).repeat(6, 1, 1, 1)
    wanted = augment_reference(images, ops, values, FILL)
    for variant in native.variants():
        source = images.clone()
        out = {"new": None, "out": torch.empty_like(images), "in place": source}[where]
        got = augment(source, ops, values, fill=FILL, out=out, threads=threads, variant=variant)
        assert torch.equal(got, wanted)
        assert got is out or where == "new"
        assert torch.equal(source, wanted if where == "in place" else images)


@needs_kernels
def test_nothing_is_written_beyond_an_image() -> None:
    """Rows of one batch, of which every other one alone is worked on."""
    size = (5, 7)
    buffer = bench.made_images(*size).repeat(2, 1, 1, 1)
    before = buffer.clone()
    for step in every_step(*size):
        augment(buffer[3:4], *program(step), out=buffer[3:4], threads=1)
        assert torch.equal(buffer[:3], before[:3])
        assert torch.equal(buffer[4:], before[4:])


def test_arrays_that_are_no_blocks_of_memory(cpu_path: str) -> None:
    images = bench.made_images(9, 8)
    ops, values = chains(4, 4, (9, 8))
    wanted = augment(images, np.ascontiguousarray(ops[:, ::2]), np.ascontiguousarray(values[:, ::2]))
    assert torch.equal(augment(images, ops[:, ::2], values[:, ::2]), wanted)


@pytest.mark.parametrize("shape", [(0, 4, 5, 3), (2, 0, 5, 3), (2, 4, 0, 3)])
def test_nothing_to_do(cpu_path: str, shape: tuple[int, ...]) -> None:
    images = torch.zeros(shape, dtype=torch.uint8)
    for op in Op:
        ops, values = np.full((shape[0], 2), op, np.int32), np.zeros((shape[0], 2, 6), np.float32)
        assert augment(images, ops, values).shape == shape
        assert augment(images, ops, values, out=images) is images


def test_no_operations(cpu_path: str) -> None:
    images = bench.made_images(4, 5)
    made = augment(images, np.zeros((4, 0), np.int32), np.zeros((4, 0, 6), np.float32))
    assert torch.equal(made, images)
    assert made.data_ptr() != images.data_ptr()


def test_which_path_runs(cpu_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference only where there are no kernels; the same levels both ways."""
    images = bench.made_images(6, 7)
    ops, values = chains(4, 3, (6, 7))
    wanted = augment_reference(images, ops, values, FILL)
    calls = []

    def reference(*arguments: Any) -> torch.Tensor:
        calls.append(arguments)
        return augment_reference(*arguments)

    monkeypatch.setattr(augment_module, "augment_reference", reference)
    out = torch.empty_like(images)
    assert augment(images, ops, values, fill=FILL, out=out) is out
    assert torch.equal(out, wanted)
    assert len(calls) == (cpu_path == "plain")


ONE = program((Op.BRIGHTNESS, 0.5))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"images": torch.zeros(1, 4, 5, 3)}, r"images are torch.float32 \(1, 4, 5, 3\)"),
        ({"images": torch.zeros(1, 3, 4, 5, dtype=torch.uint8)}, r"\(1, 3, 4, 5\); give contiguous"),
        ({"images": torch.zeros(1, 5, 4, 3, dtype=torch.uint8).transpose(1, 2)}, "contiguous"),
        ({"images": torch.zeros(1, 1, 16385, 3, dtype=torch.uint8)}, "longer than 16384"),
        ({"out": torch.zeros(1, 5, 4, 3, dtype=torch.uint8)}, r"out is torch.uint8 \(1, 5, 4, 3\)"),
        ({"out": torch.zeros(1, 4, 5, 3)}, "out is torch.float32"),
        ({"out": torch.zeros(1, 4, 5, 3, dtype=torch.uint8, device="meta")}, "out is on meta, images are on cpu"),
        ({"ops": ONE[0].astype(np.int64)}, r"ops are int64 \(1, 1\), but int32 \(1, K\)"),
        ({"ops": ONE[0][0]}, r"ops are int32 \(1,\)"),
        ({"ops": np.full((1, 1), 17, np.int32)}, "ops hold 17, which is the number of no operation"),
        ({"ops": np.full((1, 1), -1, np.int32)}, "ops hold -1"),
        ({"values": ONE[1][..., :5]}, r"values are float32 \(1, 1, 5\), but float32 \(1, 1, 6\)"),
        ({"values": ONE[1].astype(np.float64)}, "values are float64"),
        ({"values": np.concatenate([ONE[1]] * 2)}, r"values are float32 \(2, 1, 6\)"),
        ({"values": -ONE[1]}, r"values\[0, 0\]: BRIGHTNESS takes 0 to 1e\+30, not -0.5"),
        ({"values": ONE[1] * np.nan}, r"values\[0, 0\] of BRIGHTNESS are \[nan, nan"),
        ({"ops": np.array([[6]], np.int32), "values": ONE[1] + 0.1}, "HUE takes -0.5 to 0.5, not 0.6"),
        ({"ops": np.array([[8]], np.int32), "values": ONE[1] * 20}, "POSTERIZE takes 0 to 8, not 10"),
        ({"fill": (1.0, 2.0)}, r"fill=\(1.0, 2.0\) must be three levels"),
        ({"fill": (1.0, 2.0, 256.0)}, "256"),
        ({"fill": (1.0, 2.0, float("nan"))}, "nan"),
        ({"variant": "sse9"}, "variant='sse9'"),
    ],
)
def test_bad_arguments_are_named(changed: dict[str, Any], message: str) -> None:
    if "variant" in changed and native.library() is None:
        pytest.skip("there are no variants without the C++ kernels")
    arguments = {"images": torch.zeros(1, 4, 5, 3, dtype=torch.uint8), "ops": ONE[0], "values": ONE[1]} | changed
    with pytest.raises(ValueError, match=message):
        augment(**arguments)


def test_memory_that_overlaps_in_part_is_refused() -> None:
    memory = torch.zeros((5, 4, 4, 3), dtype=torch.uint8)
    ops, values = np.zeros((4, 1), np.int32), np.zeros((4, 1, 6), np.float32)
    with pytest.raises(ValueError, match="share a part of their memory"):
        augment(memory[:4], ops, values, out=memory[1:])
    assert augment(memory[:4], ops, values, out=memory[:4]).data_ptr() == memory.data_ptr()
