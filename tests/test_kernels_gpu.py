"""The Triton kernels: on a GPU where there is one, else in Triton's interpreter, and compiled for a GPU without one."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_philox import KNOWN

from gpupipe.kernels import Erase, Mix, finish, finish_reference, gpu
from gpupipe.kernels.finish import empty_batch
from gpupipe.philox import philox4x32
from gpupipe.recipe import IMAGENET_MEAN, IMAGENET_STD

pytest.importorskip("triton", reason="Triton is not installed")
gpu_finish = importlib.import_module("gpupipe.kernels.gpu.finish")
noise = importlib.import_module("gpupipe.kernels.gpu.noise")
OFFSET = tuple(255 * m for m in IMAGENET_MEAN)
SCALE = tuple(1 / (255 * s) for s in IMAGENET_STD)
FLOATS = [torch.float32, torch.float16, torch.bfloat16]
# (N, height, width): words with one and with several programs, odd sizes, single pixels.
SHAPES = [(3, 8, 8), (1, 36, 32), (2, 13, 19), (3, 1, 1)]


@pytest.fixture(scope="module", autouse=True)
def compiling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str] | None]:
    """cross_compile.py at work beside the other tests; None where Triton's tools for that are missing."""
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    if not all((tools / tool).exists() for tool in ("ptxas", "cuobjdump")):
        yield None
        return
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    root = Path(__file__).resolve().parents[1]
    environment["PYTHONPATH"] = os.pathsep.join([str(root), environment.get("PYTHONPATH", "")])
    command = [sys.executable, str(Path(__file__).with_name("cross_compile.py"))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        yield process
        process.kill()


@pytest.fixture(scope="module")
def compiled(compiling: subprocess.Popen[str] | None) -> dict[str, dict[str, Any]]:
    """What cross_compile.py says of each kernel."""
    if compiling is None:
        pytest.skip("this Triton comes without ptxas or cuobjdump")
    said, errors = compiling.communicate(timeout=150)
    assert compiling.returncode == 0, errors
    return json.loads(said)


@pytest.fixture
def device() -> torch.device:
    """A GPU, or the CPU with kernels that Triton's interpreter runs."""
    from triton.runtime.interpreter import InterpretedFunction

    interpreted = isinstance(noise.philox, InterpretedFunction)
    assert interpreted != torch.cuda.is_available()
    return torch.device("cpu" if interpreted else "cuda")


def images_of(shape: tuple[int, int, int], device: torch.device | str = "cpu") -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(0, 256, (*shape, 3), dtype=torch.uint8, generator=generator).to(device)


def finished(
    images: torch.Tensor,
    dtype: torch.dtype,
    channels_last: bool = False,
    erase: Erase | None = None,
    mix: Mix | None = None,
) -> torch.Tensor:
    """By the Triton kernels, whatever the device; on the CPU."""
    out = empty_batch(images.shape, dtype, channels_last, images.device)
    gpu_finish.finish(images, OFFSET, SCALE, channels_last, out, erase, mix)
    return out.cpu()


def rounded(exact: torch.Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """float32 to dtype as a GPU does it; but Triton's interpreter cuts bfloat16 off."""
    if dtype == torch.bfloat16 and device.type == "cpu":
        return (exact.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)
    return exact.to(dtype)


def erase_and_mix(n: int, height: int, width: int, value: tuple[float, float, float] | None) -> tuple[Erase, Mix]:
    """Boxes of all kinds: none, one pixel, the whole image, and any; the first row has no partner."""
    rng = np.random.default_rng(n * height)
    lower = np.array([[0, 0, 0, 3], [height - 1, width - 1, 1, 1], [0, 0, height, width]])
    top, left = rng.integers(0, height, n), rng.integers(0, width, n)
    drawn = np.stack([top, left, rng.integers(0, height - top + 1), rng.integers(0, width - left + 1)], 1)
    boxes = np.concatenate([lower, drawn])[rng.permutation(n + 3)].astype(np.int32)
    keys = rng.integers(0, 2**32, (n, 2), dtype=np.uint32)
    partners = np.array([0, *np.roll(np.arange(1, n), 1)], np.int32)
    mix = Mix(partners, rng.random(n).astype(np.float32), boxes[::-1][:n].copy())
    return Erase(boxes[:n], value, keys), mix


@pytest.mark.parametrize("shape", SHAPES)
def test_finish_has_the_bits_of_the_cpu(shape: tuple[int, int, int], device: torch.device) -> None:
    images = images_of(shape)
    exact = finish(images, IMAGENET_MEAN, IMAGENET_STD)
    for dtype in FLOATS:
        for channels_last in (False, True):
            result = finished(images.to(device), dtype, channels_last)
            assert torch.equal(result, rounded(exact, dtype, device))
    for channels_last in (False, True):
        assert torch.equal(finished(images.to(device), torch.uint8, channels_last), images.permute(0, 3, 1, 2))


@pytest.mark.parametrize("channels_last", [False, True])
def test_finish_of_nothing_and_of_memory_that_is_not_aligned(channels_last: bool, device: torch.device) -> None:
    assert finished(images_of((0, 8, 8), device), torch.float32, channels_last).shape == (0, 3, 8, 8)
    room = images_of((3, 8, 8), device).flatten()
    images = room[3 : 3 + 2 * 8 * 8 * 3].view(2, 8, 8, 3)
    result = finished(images, torch.float32, channels_last)
    assert torch.equal(result, finish(images.cpu().contiguous(), IMAGENET_MEAN, IMAGENET_STD))


@pytest.mark.parametrize("value", [(0.5, -1.0, 2.0), None], ids=["constant", "noise"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_finish_erases_and_mixes(value: Any, channels_last: bool, device: torch.device) -> None:
    for shape, erasing, mixing in (
        ((3, 8, 12), True, False),
        ((3, 8, 12), False, True),
        ((1, 36, 32), True, True),
        ((3, 7, 9), True, True),
    ):
        images = images_of(shape)
        both = erase_and_mix(*shape, value)
        erase, mix = both[0] if erasing else None, both[1] if mixing else None
        exact = finish_reference(images, IMAGENET_MEAN, IMAGENET_STD, torch.float64, channels_last, erase, mix)
        result = finished(images.to(device), torch.float32, channels_last, erase, mix)
        # The noise differs from NumPy's in the last places of float32.
        torch.testing.assert_close(result.double(), exact, rtol=0, atol=1e-6 if value else 4e-6)
    half = finished(images.to(device), torch.bfloat16, channels_last, erase, mix)
    assert torch.equal(half, rounded(result, torch.bfloat16, device))


def test_an_image_without_a_partner_stays_as_it_is(device: torch.device) -> None:
    images = images_of((1, 8, 8))
    mix = Mix(np.zeros(1, np.int32), np.full(1, 0.3, np.float32), np.array([[1, 1, 3, 3]], np.int32))
    plain = finished(images.to(device), torch.float32)
    assert torch.equal(finished(images.to(device), torch.float32, mix=mix), plain)


def test_philox_is_numpys(device: torch.device) -> None:
    import triton
    import triton.language as tl

    @triton.jit
    def words(out, keys, counters, COUNT: tl.constexpr, philox: tl.constexpr):
        at = tl.arange(0, COUNT)
        first, second, third, fourth = philox(tl.load(counters + at), tl.load(keys), tl.load(keys + 1))
        tl.store(out + at, first.to(tl.int32, bitcast=True))
        tl.store(out + COUNT + at, second.to(tl.int32, bitcast=True))
        tl.store(out + 2 * COUNT + at, third.to(tl.int32, bitcast=True))
        tl.store(out + 3 * COUNT + at, fourth.to(tl.int32, bitcast=True))

    counters = np.array([0, 1, 50175, 2**31 - 1], np.int32)
    for key in [(0, 0), (0xFFFFFFFF, 0x80000001), (0xA4093822, 0x299F31D0)]:
        out = torch.zeros((4, 4), dtype=torch.int32, device=device)
        keys = torch.from_numpy(np.array(key, np.uint32).view(np.int32)).to(device)
        words[(1,)](out, keys, torch.from_numpy(counters).to(device), COUNT=4, philox=noise.philox)
        expected = philox4x32((counters, 0, 0, 0), key)
        assert out.cpu().numpy().view(np.uint32).tolist() == expected.tolist()
        if key == (0, 0):
            assert tuple(out.cpu().numpy().view(np.uint32)[:, 0].tolist()) == KNOWN[0][2]


def test_compiled_kernels_keep_everything_in_registers(compiled: dict[str, dict[str, Any]]) -> None:
    assert {name: facts["stack"] for name, facts in compiled.items() if facts["stack"]} == {}


def test_no_product_is_fused_with_a_sum(compiled: dict[str, dict[str, Any]]) -> None:
    """Nor is a division or a root anything but the rounded one."""
    for name, facts in compiled.items():
        loose = [
            i
            for i in facts["ptx"]
            if i.startswith("fma") or (i.startswith(("div", "sqrt")) and "f32" in i and ".rn" not in i)
        ]
        assert loose == [], name


def test_finish_reads_words_and_writes_vectors(compiled: dict[str, dict[str, Any]]) -> None:
    wanted = {"planes fp32": "v4.b32", "planes bf16": "v2.b32", "flat fp32": "v4.b32", "flat bf16": "v4.b32"}
    for name, width in wanted.items():
        memory = [i for i in compiled[name]["ptx"] if i.startswith(("ld.global", "st.global"))]
        assert [i for i in memory if i.startswith("st.")] == [f"st.global.{width}"], name
        assert not [i for i in memory if "b8" in i or "b16" in i], name
        assert compiled[name]["reg"] <= 32, "more would keep threads off the processors"


def test_where_triton_can_not_run_torch_does_it_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    assert not gpu.usable(torch.device("cpu"))
    missing = torch.device("cuda", 63)
    assert not gpu.usable(missing)
    assert not gpu.usable(missing)
    (record,) = caplog.records
    assert record.message.startswith("Triton kernels can't run on cuda:63 (")
    assert "pip install triton" in record.message
