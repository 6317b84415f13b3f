"""The finish of a batch against torchvision's ToTensor and Normalize, and against double precision."""

from __future__ import annotations

import importlib
import itertools

import numpy as np
import pytest
import torch
from torchvision.transforms import Compose, Normalize, ToTensor

from gpupipe.kernels import finish, finish_reference, native
from gpupipe.recipe import IMAGENET_MEAN, IMAGENET_STD

finish_module = importlib.import_module("gpupipe.kernels.finish")  # the package's attribute is the function
pytestmark = pytest.mark.usefixtures("cpu_path")
FLOATS = [torch.float32, torch.float16, torch.bfloat16]
DTYPES = [*FLOATS, torch.uint8]
STATISTICS = [(IMAGENET_MEAN, IMAGENET_STD), ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)), ((0.1, 0.9, -0.5), (0.01, 3.0, 0.7))]
# (N, height, width): empty, one pixel, odd, narrow, and one whose samples are cut into pieces for the cast.
SHAPES = [(0, 5, 7), (1, 1, 1), (1, 9, 4), (3, 17, 31), (2, 33, 1), (2, 1, 33), (2, 224, 224)]


def images_of(shape: tuple[int, int, int]) -> torch.Tensor:
    return torch.randint(0, 256, (*shape, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(sum(shape)))


def every_level() -> torch.Tensor:
    """(1, 16, 16, 3): each value that a pixel can have, in each channel."""
    return torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1).expand(1, 16, 16, 3).contiguous()


def memory_format(channels_last: bool) -> torch.memory_format:
    return torch.channels_last if channels_last else torch.contiguous_format


def strides_of(shape: tuple[int, ...], channels_last: bool) -> tuple[int, ...]:
    return torch.empty(shape).contiguous(memory_format=memory_format(channels_last)).stride()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_float32_is_torchvisions(shape: tuple[int, int, int], channels_last: bool) -> None:
    images = images_of(shape)
    for mean, std in STATISTICS:
        transform = Compose([ToTensor(), Normalize(mean, std)])
        result = finish(images, mean, std, channels_last=channels_last)
        assert (result.dtype, result.shape) == (torch.float32, (shape[0], 3, *shape[1:]))
        for row, image in zip(result, images.numpy(), strict=True):
            torch.testing.assert_close(row, transform(image), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("channels_last", [False, True])
def test_every_level_is_rounded_once(dtype: torch.dtype, channels_last: bool) -> None:
    """At most half a step of the dtype away from double precision, and what arithmetic on 255 in float32 may add."""
    images = every_level()
    for mean, std in STATISTICS:
        exact = finish_reference(images, mean, std, torch.float64)
        result = finish(images, mean, std, dtype, channels_last)
        half_step = torch.finfo(dtype).eps / 2 * torch.exp2(torch.floor(torch.log2(exact.abs() + 1e-30)))
        float32_error = 1e-7 / min(std) + 2e-7 * exact.abs()
        assert ((result.double() - exact).abs() <= half_step + float32_error).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_of_imagenets_statistics_is_the_rounded_reference(dtype: torch.dtype) -> None:
    images = every_level()
    result = finish(images, IMAGENET_MEAN, IMAGENET_STD, dtype)
    assert torch.equal(result, finish_reference(images, IMAGENET_MEAN, IMAGENET_STD, dtype))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_layout_and_size(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    images = images_of(shape)
    before = images.clone()
    tolerance = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.uint8: 0}[dtype]
    for (mean, std), channels_last in itertools.product(STATISTICS[:2], (False, True)):
        result = finish(images, mean, std, dtype, channels_last)
        expected = finish_reference(images, mean, std, dtype, channels_last)
        assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
        assert result.is_contiguous(memory_format=memory_format(channels_last))
        torch.testing.assert_close(result, expected, rtol=0, atol=tolerance)
    assert torch.equal(images, before)


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_reference_is_torchvisions(channels_last: bool) -> None:
    images = images_of((3, 17, 31))
    for mean, std in STATISTICS:
        transform = Compose([ToTensor(), Normalize(mean, std)])
        expected = torch.stack([transform(image) for image in images.numpy()])
        result = finish_reference(images, mean, std, channels_last=channels_last)
        torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6)
        assert result.stride() == strides_of((3, 3, 17, 31), channels_last)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_strides(dtype: torch.dtype, channels_last: bool) -> None:
    result = finish(images_of((2, 5, 7)), IMAGENET_MEAN, IMAGENET_STD, dtype, channels_last)
    assert result.stride() == strides_of((2, 3, 5, 7), channels_last)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_out_is_filled_and_returned(shape: tuple[int, int, int], dtype: torch.dtype, channels_last: bool) -> None:
    images = images_of(shape)
    out = torch.empty((shape[0], 3, *shape[1:]), dtype=dtype, memory_format=memory_format(channels_last))
    address, strides = out.data_ptr(), out.stride()
    result = finish(images, IMAGENET_MEAN, IMAGENET_STD, dtype, channels_last, out=out)
    assert result is out
    assert (out.data_ptr(), out.stride()) == (address, strides)
    assert torch.equal(out, finish(images, IMAGENET_MEAN, IMAGENET_STD, dtype, channels_last))


@pytest.mark.parametrize("dtype", FLOATS)
def test_out_may_be_a_permuted_buffer(dtype: torch.dtype) -> None:
    """The way in which a loader keeps memory for channels_last batches."""
    images = images_of((3, 17, 31))
    out = torch.empty((3, 17, 31, 3), dtype=dtype).permute(0, 3, 1, 2)
    finish(images, IMAGENET_MEAN, IMAGENET_STD, dtype, channels_last=True, out=out)
    assert torch.equal(out, finish(images, IMAGENET_MEAN, IMAGENET_STD, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_out_of_another_kind_is_refused(dtype: torch.dtype, channels_last: bool) -> None:
    other_layout = torch.empty((2, 3, 5, 7), dtype=dtype, memory_format=memory_format(not channels_last))
    for wrong, message in [
        (other_layout, "strides"),
        (torch.empty((2, 3, 7, 5), dtype=dtype), r"\(2, 3, 7, 5\), but .* \(2, 3, 5, 7\)"),
        (torch.empty((1, 3, 5, 7), dtype=dtype), r"\(1, 3, 5, 7\), but"),
        (torch.empty((2, 3, 5, 7), dtype=torch.float64), "float64"),
    ]:
        with pytest.raises(ValueError, match=message):
            finish(images_of((2, 5, 7)), IMAGENET_MEAN, IMAGENET_STD, dtype, channels_last, out=wrong)


def test_uint8_channels_last_shares_memory() -> None:
    images = images_of((2, 5, 7))
    result = finish(images, IMAGENET_MEAN, IMAGENET_STD, torch.uint8, channels_last=True)
    assert result.data_ptr() == images.data_ptr()
    assert torch.equal(result.permute(0, 2, 3, 1), images)


@pytest.mark.parametrize("channels_last", [False, True])
def test_uint8_is_left_as_it_is(channels_last: bool) -> None:
    images = every_level()
    result = finish(images, (9.0, 9.0, 9.0), (9.0, 9.0, 9.0), torch.uint8, channels_last)
    np.testing.assert_array_equal(result.numpy(), images.numpy().transpose(0, 3, 1, 2))


def test_uint8_nchw_has_its_own_memory() -> None:
    images = images_of((2, 5, 7))
    before = images.clone()
    finish(images, IMAGENET_MEAN, IMAGENET_STD, torch.uint8).zero_()
    assert torch.equal(images, before)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
@pytest.mark.parametrize("dtype", DTYPES)
def test_cuda_gives_what_the_cpu_gives(dtype: torch.dtype) -> None:
    for images, channels_last in itertools.product([every_level(), *map(images_of, SHAPES)], (False, True)):
        expected = finish_reference(images, IMAGENET_MEAN, IMAGENET_STD, dtype, channels_last)
        result = finish(images.cuda(), IMAGENET_MEAN, IMAGENET_STD, dtype, channels_last)
        out = torch.empty_like(result)
        assert finish(images.cuda(), IMAGENET_MEAN, IMAGENET_STD, dtype, channels_last, out=out) is out
        assert (result.device.type, result.dtype, result.stride()) == ("cuda", dtype, expected.stride())
        assert torch.equal(out, result)
        tolerance = 1e-6 if dtype == torch.float32 else 0
        torch.testing.assert_close(result.cpu(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_all_variants_and_thread_counts_give_the_same_bits(
    shape: tuple[int, int, int], dtype: torch.dtype, channels_last: bool, cpu_path: str
) -> None:
    """Those of plain torch too, which rounds in the same places."""
    images = images_of(shape)
    for mean, std in STATISTICS:
        results = [finish(images, mean, std, dtype, channels_last, threads=threads) for threads in (1, 3, None)]
        if cpu_path == "kernels":
            results += [finish(images, mean, std, dtype, channels_last, variant=name) for name in native.variants()]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "_opened", lambda: (None, "not built"))
            plain = finish(images, mean, std, dtype, channels_last)
        assert all(torch.equal(result, plain) for result in results)


def test_which_path_ran(cpu_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("_finish_native", "_finish_plain"):
        own = getattr(finish_module, name)
        monkeypatch.setattr(finish_module, name, lambda *args, own=own, name=name: (calls.append(name), own(*args)))
    finish(images_of((2, 5, 7)), IMAGENET_MEAN, IMAGENET_STD)
    assert calls == ["_finish_native" if cpu_path == "kernels" else "_finish_plain"]


def test_an_unknown_variant_is_refused(cpu_path: str) -> None:
    if cpu_path == "plain":
        pytest.skip("there are no variants without the C++ kernels")
    with pytest.raises(ValueError, match=r"variant=.sse9.: this CPU has .*portable"):
        finish(images_of((1, 5, 7)), IMAGENET_MEAN, IMAGENET_STD, variant="sse9")
