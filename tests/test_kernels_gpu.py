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
from numpy.typing import NDArray
from test_augment import FILL, every_step, program
from test_philox import KNOWN

from gpupipe.kernels import (
    Erase,
    Mix,
    Op,
    affine_matrix,
    augment,
    augment_reference,
    finish,
    finish_reference,
    gpu,
    native,
)
from gpupipe.kernels.finish import empty_batch
from gpupipe.kernels.gpu.schedule import BLURS, FIELDS, READERS, STATISTICS, Pass, schedule
from gpupipe.kernels.philox import philox4x32
from gpupipe.recipe import IMAGENET_MEAN, IMAGENET_STD

triton = pytest.importorskip("triton", reason="Triton is not installed")
if not torch.cuda.is_available() and tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9):
    pytest.skip("interpreters before Triton 3.9 do not know all that the kernels use", allow_module_level=True)
gpu_augment = importlib.import_module("gpupipe.kernels.gpu.augment")
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
        torch.testing.assert_close(result.double(), exact, rtol=0, atol=1e-6)
    half = finished(images.to(device), torch.bfloat16, channels_last, erase, mix)
    assert torch.equal(half, rounded(result, torch.bfloat16, device))


def test_the_noise_has_the_bits_of_the_cpu(device: torch.device) -> None:
    if native.library() is None:
        pytest.skip(f"without the C++ kernels: {native.problem()}")
    images, keys = images_of((2, 24, 28)), np.array([[1, 2], [0xFFFFFFFF, 0x80000000]], np.uint32)
    erase = Erase(np.array([[0, 0, 24, 28]] * 2, np.int32), None, keys)
    for channels_last in (False, True):
        wanted = finish(images, IMAGENET_MEAN, IMAGENET_STD, channels_last=channels_last, erase=erase)
        assert torch.equal(finished(images.to(device), torch.float32, channels_last, erase), wanted)


def test_an_image_without_a_partner_stays_as_it_is(device: torch.device) -> None:
    images = images_of((1, 8, 8))
    mix = Mix(np.zeros(1, np.int32), np.full(1, 0.3, np.float32), np.array([[1, 1, 3, 3]], np.int32))
    plain = finished(images.to(device), torch.float32)
    assert torch.equal(finished(images.to(device), torch.float32, mix=mix), plain)


def test_philox_is_numpys(device: torch.device) -> None:
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


def augmented(
    images: torch.Tensor, ops: NDArray[np.int32], values: NDArray[np.float32], fill: Any, in_place: bool = False
) -> torch.Tensor:
    """By the Triton kernels, whatever the device; on the CPU."""
    out = images if in_place else torch.full_like(images, 7)
    gpu_augment.augment(images, ops, values, fill, out)
    return out.cpu()


def test_every_operation_has_the_references_bits(device: torch.device) -> None:
    every = every_step(8, 12)
    # Half of them, for the interpreter's sake; all whose only value is 0.
    steps = [step for number, step in enumerate(every) if number % 2 or (np.size(step[1]) == 1 and step[1] == 0)]
    assert {op for op, _ in steps} == set(Op)
    images = images_of((1, 8, 12)).expand(len(steps), 8, 12, 3).contiguous()
    wanted = augment_reference(images, *program(*steps), FILL)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # factors up to 3e38, in the interpreter
        result = augmented(images.to(device), *program(*steps), FILL)
    apart = (result.int() - wanted.int()).abs().flatten(1).amax(1).tolist()
    # A GPU's hue may differ in the last place of float32, and so by a level.
    on_gpu = device.type == "cuda"
    assert [step for step, most in zip(steps, apart, strict=True) if most > (step[0] is Op.HUE and on_gpu)] == []


def chains(count: int, length: int, images: torch.Tensor) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Several operations for each row, each row others; none that leaves little to see for the next one."""
    steps = every_step(*images.shape[1:3])
    ops, values = program(*steps)
    results = augment_reference(images[:1].expand(len(steps), -1, -1, -1).contiguous(), ops, values)
    good = [row for row, result in enumerate(results) if len(result.unique()) > len(images[0].unique()) // 3]
    assert set(Op) - {Op.GRAYSCALE, Op.MIX_ADD} <= set(ops[good, 0])
    picked = np.random.default_rng(count).choice(good, (count, length))
    return ops[picked, 0], values[picked, 0]


@pytest.mark.parametrize(("size", "in_place"), [((7, 9), True), ((10, 10), True), ((23, 24), False)])
def test_chains(size: tuple[int, int], in_place: bool, device: torch.device) -> None:
    """Odd sizes and words, black and filled, one block and more; on a GPU without hue, see above."""
    images = images_of((4, *size))
    ops, values = chains(4, 4, images)
    ops[0] = Op.IDENTITY
    if device.type == "cuda":
        ops[ops == Op.HUE] = Op.INVERT
    fill = FILL if in_place else None
    wanted = augment_reference(images, ops, values, fill)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        assert torch.equal(augmented(images.to(device), ops, values, fill, in_place), wanted)


@pytest.mark.parametrize("in_place", [False, True])
def test_mixes(in_place: bool, device: torch.device) -> None:
    """Of images that are changed between, by what needs passes of its own and by what does not."""
    images = images_of((3, 9, 12))
    matrix = affine_matrix((9, 12), angle=20)
    before, first = [(Op.INVERT, 0), (Op.EQUALIZE, 0)], [(Op.AFFINE_BILINEAR, matrix), (Op.POSTERIZE, 3)]
    rest = [(Op.MIX_ADD, 0.2), (Op.CONTRAST, 0.4), (Op.MIX_ADD, 0.1), (Op.MIX_END, 0.35), (Op.BRIGHTNESS, 1.1)]
    ops, values = program(*before, (Op.MIX_BEGIN, 0.3), *first, *rest)
    ops, values = ops.T.repeat(3, axis=0), values.transpose(1, 0, 2).repeat(3, axis=0)
    ops[1, [2, 5]], ops[2, 5:] = Op.IDENTITY, Op.IDENTITY  # without a beginning; without an end
    wanted = augment_reference(images, ops, values, FILL)
    for variant in native.variants():
        assert torch.equal(augment(images, ops, values, fill=FILL, variant=variant), wanted)
    assert torch.equal(augmented(images.to(device), ops, values, FILL, in_place), wanted)


def test_statistics_of_images_larger_than_a_block(device: torch.device) -> None:
    """Where a level stands for many pixels, and the last block of the image is not full."""
    steps = [(Op.EQUALIZE, 0), (Op.EQUALIZE, 0), (Op.AUTOCONTRAST, 0), (Op.CONTRAST, 0.4)]
    height, width = 71, 60
    assert gpu_augment.TABLE_PIXELS < height * width < 2 * gpu_augment.TABLE_PIXELS
    dark = (images_of((len(steps), height, width)).float() ** 2 / 400 + 20).to(torch.uint8)
    dark[1, :50] = 33  # so that one level has most of the pixels
    wanted = augment_reference(dark, *program(*steps))
    assert not torch.equal(wanted[0], dark[0])
    assert torch.equal(augmented(dark.to(device), *program(*steps), None), wanted)


def test_nothing_to_augment(device: torch.device) -> None:
    ops, values = np.zeros((2, 0), np.int32), np.zeros((2, 0, 6), np.float32)
    images = images_of((2, 3, 5))
    assert torch.equal(augmented(images.to(device), ops, values, None), images)
    assert augmented(images_of((0, 3, 5), device), ops[:0], values[:0], None).shape == (0, 3, 5, 3)


class Launches:
    """Takes the place of a kernel and counts its programs."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.programs = kernel, list[int]()

    def __getitem__(self, grid: tuple[int]) -> Any:
        self.programs.append(grid[0])
        return self.kernel[grid]


def test_no_more_is_launched_than_the_samples_need(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = {}
    for name in ("make_tables", "filter_rows", "apply"):
        launches[name] = Launches(getattr(gpu_augment, name))
        monkeypatch.setattr(gpu_augment, name, launches[name])

    def run(*rows: list[Op], in_place: bool = False) -> dict[str, list[int]]:
        for launch in launches.values():
            launch.programs.clear()
        ops, values = np.array(rows, np.int32), np.ones((len(rows), len(rows[0]), 6), np.float32)
        images = images_of((len(rows), 4, 4))
        wanted = augment_reference(images, ops, values)
        assert torch.equal(augmented(images.to(device), ops, values, None, in_place), wanted)
        return {name: launch.programs for name, launch in launches.items() if launch.programs}

    plain, invert, move, equalize = Op.IDENTITY, Op.INVERT, Op.AFFINE_NEAREST, Op.EQUALIZE
    assert run([plain, plain], [plain, plain], in_place=True) == {}
    assert run([plain, plain], [invert, invert]) == {"apply": [2]}
    assert run([plain, plain], [invert, invert], in_place=True) == {"apply": [1]}
    assert run([move, invert], [invert, invert]) == {"apply": [2]}
    assert run([move, invert], [invert, invert], in_place=True) == {"apply": [2, 1]}
    assert run([equalize, move], [invert, equalize], [plain, move]) == {"make_tables": [3, 3], "apply": [3, 2]}
    assert run([Op.GAUSSIAN_BLUR, plain], [plain, invert]) == {"filter_rows": [1], "apply": [2]}


def done(step: Pass) -> list[tuple[int, bool, list[tuple[int, float]]]]:
    """The row of each task of a pass, whether it is the last, and the operations with their first values."""
    tasks = []
    for row, last, lead, first, count, _, *values in step.tasks.tolist():
        bits = [(lead, values[0])] if lead else []
        ops = [*bits, *map(tuple, step.steps[first : first + count].tolist())]
        tasks.append((row, bool(last), [(op, float(np.array(word, np.int32).view(np.float32))) for op, word in ops]))
    return tasks


@pytest.mark.parametrize("in_place", [False, True])
def test_the_schedule_does_every_operation_once_and_in_order(in_place: bool) -> None:
    draw = np.random.default_rng(3)
    for count, steps in ((60, 4), (40, 1), (3, 7), (5, 0), (0, 3)):
        ops = (draw.choice(list(Op), (count, steps)) * (draw.random((count, steps)) < 0.7)).astype(np.int32)
        values = draw.random((count, steps, 6)).astype(np.float32)
        passes = schedule(ops, values, in_place)
        wanted = [
            [(op, float(value)) for op, value in zip(row, numbers, strict=True) if op]
            for row, numbers in zip(ops.tolist(), values[..., 0], strict=True)
        ]
        got: list[list[tuple[int, float]]] = [[] for _ in range(count)]
        left = {row for row in range(count) if wanted[row] or not in_place}
        for number, step in enumerate(passes):
            tasks = done(step)
            assert len({row for row, _, _ in tasks}) == len(tasks)
            assert {row for row, _, _ in tasks} == left
            for row, last, operations in tasks:
                got[row] += operations
                # Only the first may look beyond a pixel.
                assert not [op for op, _ in operations[1:] if op in (*READERS, *STATISTICS)]
                # The first pass reads the images, which the last one writes if in place.
                assert not (in_place and number == 0 and last and operations[0][0] in READERS)
                left -= {row} if last else set()
            leads = step.tasks[:, 2].tolist()
            assert all(lead in STATISTICS for lead in leads[: step.tables])
            assert all(lead in BLURS for lead in leads[step.tables : step.tables + step.blurs])
            assert not {*STATISTICS, *BLURS} & set(leads[step.tables + step.blurs :])
        assert not left
        assert got == wanted


def test_a_task_says_how_far_its_lead_reads_and_with_which_values() -> None:
    leads = [
        Op.GAUSSIAN_BLUR,
        Op.ELASTIC_NEAREST,
        Op.AFFINE_BILINEAR,
        Op.AFFINE_BICUBIC,
        Op.SHARPNESS,
        Op.NOISE,
        Op.INVERT,
    ]
    ops = np.array(leads, np.int32)[:, None]
    blur, elastic = [0.5, 0.2, 0.1, 0, 0.01, *[0] * 5], [*range(6), 0.5, 0.2, 0.1, 0]
    values = np.array([blur, elastic, *[range(10)] * 5], np.float32)[:, None]
    (step,) = schedule(ops, values)
    assert step.tasks[:, 5].tolist() == [4, 2, 1, 2, 1, 0, 0]
    assert np.array_equal(step.tasks[:6, FIELDS:].view(np.float32), values[:6, 0])
    assert step.reach == 4
    alone = [schedule(ops[row : row + 1], values[row : row + 1])[0] for row in range(7)]
    assert [step.elastic for step in alone] == [lead is Op.ELASTIC_NEAREST for lead in leads]
    assert [step.bicubic for step in alone] == [lead is Op.AFFINE_BICUBIC for lead in leads]
    assert [step.own for step in alone] == [lead is Op.NOISE for lead in leads]


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
    wanted = {"planes float32": "v4.b32", "planes bfloat16": "v2.b32", "flat bfloat16": "v4.b32"}
    for name, width in wanted.items():
        memory = [i for i in compiled[name]["ptx"] if i.startswith(("ld.global", "st.global"))]
        assert [i for i in memory if i.startswith("st.")] == [f"st.global.{width}"], name
        assert not [i for i in memory if "b8" in i or "b16" in i], name
        assert compiled[name]["reg"] <= 32, "more would keep threads off the processors"


def test_where_triton_can_not_run_torch_does_it_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    assert not gpu.usable(torch.device("cpu"), "finish")
    missing = torch.device("cuda", 63)
    assert not gpu.usable(missing, "finish")
    assert not gpu.usable(missing, "finish")
    (record,) = caplog.records
    assert record.message.startswith("Triton kernels of finish can't run on cuda:63 (")
    assert "pip install triton" in record.message


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def random_batch(seed: int) -> tuple[NDArray[np.int32], NDArray[np.float32], Erase, Mix]:
    """16 programs without wild values or hue, and what `finish` takes, for images of 32 x 32."""
    draw = np.random.default_rng(seed)
    ops = draw.choice([op for op in Op if op != Op.HUE], (16, 3)).astype(np.int32)
    values = draw.random((16, 3, 6)).astype(np.float32)
    return ops, values, *erase_and_mix(16, 32, 32, None)


@pytest.mark.gpu
@needs_gpu
def test_the_faces_take_these_kernels_on_a_gpu() -> None:
    images = images_of((16, 32, 32))
    ops, values, erase, mix = random_batch(0)
    assert all(gpu.usable(torch.device("cuda"), face) for face in ("finish", "augment"))
    assert torch.equal(augment(images.cuda(), ops, values, fill=FILL).cpu(), augment(images, ops, values, fill=FILL))
    on_gpu = finish(images.cuda(), IMAGENET_MEAN, IMAGENET_STD, torch.bfloat16, True, erase=erase, mix=mix)
    assert torch.equal(on_gpu.cpu(), finished(images.cuda(), torch.bfloat16, True, erase, mix))
    gray = Erase(erase.boxes, (0.5, 0.25, -1.0))  # the CPU's noise differs in the last place
    on_gpu = finish(images.cuda(), IMAGENET_MEAN, IMAGENET_STD, torch.bfloat16, erase=gray, mix=mix)
    on_cpu = finish(images, IMAGENET_MEAN, IMAGENET_STD, torch.bfloat16, erase=gray, mix=mix)
    assert torch.equal(on_gpu.cpu(), on_cpu)


@pytest.mark.gpu
@needs_gpu
def test_a_warm_call_neither_waits_nor_asks_the_driver_for_memory() -> None:
    images = images_of((16, 32, 32), "cuda")
    out = empty_batch(images.shape, torch.bfloat16, False, "cuda")

    def run(seed: int) -> None:
        ops, values, erase, mix = random_batch(seed)
        levels = augment(images, ops, values)
        finish(levels, IMAGENET_MEAN, IMAGENET_STD, torch.bfloat16, out=out, erase=erase, mix=mix)

    run(0)
    before = torch.cuda.memory_stats()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for seed in range(1, 9):
            run(seed)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    after = torch.cuda.memory_stats()
    for name in ("num_device_alloc", "segment.all.allocated"):
        assert after.get(name, 0) == before.get(name, 0), name
