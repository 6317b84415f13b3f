"""Does this machine's DALI decode correctly? Asked in a child process, so that a crash is an answer and not the end.

Some decode plans are known to crash or to give wrong pixels on some GPUs and drivers. `run_selftest` starts
`python -m gpupipe.selftest --device D --plan P`. The child makes a few small images in memory, decodes them with DALI,
compares them with Pillow's pixels, and prints one JSON line. The parent turns that line, a signal, a timeout or an
exit code into a `SelfTest`. `machine_facts` asks a child for the versions and GPUs that torch and DALI see, and
`run_start_methods` for the multiprocessing start methods that work.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import io
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = ["ChildAnswer", "SelfTest", "ask_child", "machine_facts", "run_selftest", "run_start_methods"]

Pixels = npt.NDArray[np.uint8]
Device = Literal["cpu", "mixed"]
Plan = Literal["full", "crop"]
Outcome = Literal["passed", "wrong", "crashed", "hung", "failed"]

TIMEOUT = 120.0  # seconds; the first CUDA start on a node with many GPUs can take half a minute
MARKER = "decoding "  # the child names each image on stderr before it decodes it, so that a crash can be placed
START_METHODS = ("forkserver", "spawn")  # not fork: it fails once CUDA is initialized

# Largest mean and largest single difference from Pillow, in levels of 255. The CPU's full decode is bit-equal in the
# versions tried; its crop decode was up to 14 levels off at the borders of 4:2:0 crops, where the neighbours that
# chroma is interpolated from are cut away. nvJPEG has its own inverse transform and chroma upsampling. The bounds are
# there to catch garbage, shifted or mixed-up images; a wrong image differs by 30 levels in the mean.
TOLERANCE: dict[tuple[Device, Plan], tuple[float, int]] = {
    ("cpu", "full"): (0.5, 4),
    ("cpu", "crop"): (1.0, 32),
    ("mixed", "full"): (3.0, 96),
    ("mixed", "crop"): (3.0, 96),
}


@dataclass(frozen=True)
class ChildAnswer:
    """How a child process ended: its exit code (negative for a signal), None after a timeout, and what it wrote."""

    returncode: int | None
    stdout: str
    stderr: str

    def payload(self) -> dict[str, Any] | None:
        """The JSON object on the last line of stdout; None where there is none."""
        lines = self.stdout.strip().splitlines()
        try:
            value = json.loads(lines[-1])
        except (IndexError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    def last_words(self) -> str:
        """The last line of stderr, where Python puts the error's name."""
        lines = self.stderr.strip().splitlines()
        return lines[-1] if lines else "nothing on stderr"


@dataclass(frozen=True)
class SelfTest:
    """What a decode self-test found; `detail` is a sentence that names the image where one can be named."""

    device: Device
    plan: Plan
    outcome: Outcome
    detail: str

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"


def run_selftest(device: Device = "cpu", plan: Plan = "full", timeout: float = TIMEOUT) -> SelfTest:
    """Decode the made images with DALI on `device` in a child process and say how it went. Takes a few seconds.

    `plan` "full" uses `decoders.image`, "crop" `decoders.image_slice`. "mixed" needs a GPU. `timeout` is in seconds.
    """
    answer = ask_child(_command("--device", device, "--plan", plan), timeout)
    outcome, detail = _judge(answer, timeout)
    return SelfTest(device, plan, outcome, detail)


def _judge(answer: ChildAnswer, timeout: float) -> tuple[Outcome, str]:
    if answer.returncode is None:
        return "hung", f"no answer within {timeout:g} s{_place(answer)}"
    if answer.returncode < 0:
        return "crashed", f"killed by {_signal_name(-answer.returncode)}{_place(answer)}"
    payload = answer.payload()
    if answer.returncode != 0 or payload is None or "wrong" not in payload:
        return "failed", f"exit code {answer.returncode}: {answer.last_words()}{_place(answer)}"
    if payload["wrong"]:
        return "wrong", "; ".join(payload["wrong"])
    return "passed", f"{payload['images']} images agree with Pillow, at most {payload['worst']} levels off"


def _place(answer: ChildAnswer) -> str:
    marks = [line for line in answer.stderr.splitlines() if line.startswith(MARKER)]
    return f" while {marks[-1]}" if marks else " before the first image"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@functools.lru_cache(maxsize=1)
def machine_facts(timeout: float = TIMEOUT) -> dict[str, Any]:
    """What torch and DALI say of this machine, asked once, in a child process that may crash.

    Keys: `torch`, `torch_cuda`, `dali`, `dali_cuda` (versions, None where absent), `errors` (texts of failed imports),
    `cuda_available`, `gpus` (a list of `name`, `total`, `free` in bytes).
    """
    answer = ask_child(_command("--facts"), timeout)
    payload = answer.payload()
    if answer.returncode == 0 and payload is not None:
        return payload
    _, detail = _judge(answer, timeout)
    reason = detail.removesuffix(_place(answer))
    return {"errors": [f"the child that imports torch and DALI: {reason}"], "cuda_available": False, "gpus": []}


def run_start_methods(timeout: float = 60.0) -> dict[str, str]:
    """Start method -> "ok" or what went wrong, tried with a process and a queue (which needs /dev/shm)."""
    answer = ask_child(_command("--start-methods"), timeout)
    payload = answer.payload()
    if payload is None:
        _, detail = _judge(answer, timeout)
        return dict.fromkeys(START_METHODS, detail.removesuffix(_place(answer)))
    return {str(name): str(result) for name, result in payload.items()}


def _command(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "gpupipe.selftest", *arguments)


def ask_child(command: Sequence[str], timeout: float) -> ChildAnswer:
    """Run `command`, which can import gpupipe as this process does; never raises for what the child does."""
    package_parent = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(part for part in (package_parent, os.environ.get("PYTHONPATH", "")) if part)
    # Its own session: on a timeout the child's children (a forkserver) go with it.
    child = subprocess.Popen(
        list(command),
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        stdout, stderr = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        stdout, stderr = child.communicate()
        return ChildAnswer(None, stdout, stderr)
    except BaseException:  # Ctrl-C: leave nothing behind
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        raise
    return ChildAnswer(child.returncode, stdout, stderr)


# What runs in the child from here on.


def made_pixels(height: int, width: int, seed: int) -> Pixels:
    """RGB uint8 (height, width, 3): smooth waves whose colours and directions differ by `seed`."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    waves = [np.sin(x / (9 + 4 * c + seed) + y / (23 - 5 * c) + seed * (c + 1)) for c in range(3)]
    return np.asarray(128 + 100 * np.stack(waves, axis=-1), dtype=np.uint8)


def made_images() -> dict[str, bytes]:
    """Name -> encoded bytes: the JPEG kinds that datasets hold, odd and tiny sizes, PNG and WebP."""
    jpeg = functools.partial(_encode, kind="JPEG", quality=92)
    return {
        "jpeg 4:4:4": jpeg(made_pixels(96, 128, 1), subsampling=0),
        "jpeg 4:2:2": jpeg(made_pixels(96, 128, 2), subsampling=1),
        "jpeg 4:2:0": jpeg(made_pixels(96, 128, 3), subsampling=2),
        "jpeg 4:2:0 of odd size": jpeg(made_pixels(61, 83, 4), subsampling=2),
        "jpeg gray": jpeg(made_pixels(72, 80, 5), mode="L"),
        "jpeg progressive": jpeg(made_pixels(80, 72, 6), progressive=True),
        "jpeg cmyk": jpeg(made_pixels(64, 64, 7), mode="CMYK"),
        "jpeg 1x1": jpeg(made_pixels(1, 1, 8)),
        "jpeg 3x200": jpeg(made_pixels(3, 200, 9), subsampling=0),
        "png": _encode(made_pixels(50, 70, 10), kind="PNG"),
        "webp": _encode(made_pixels(70, 50, 11), kind="WEBP", lossless=True),
    }


def _encode(pixels: Pixels, kind: str, mode: str = "RGB", **options: Any) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


def decode_with_pillow(encoded: bytes) -> Pixels:
    """RGB uint8 (height, width, 3) as Pillow decodes it: what all other decoders are measured by."""
    from PIL import Image

    with Image.open(io.BytesIO(encoded)) as image:
        return np.array(image.convert("RGB"), dtype=np.uint8)


def crop_box(height: int, width: int) -> tuple[int, int, int, int]:
    """(top, left, height, width) of the window that plan "crop" decodes: off the block grid, at least 1 x 1."""
    top, left = height // 5, width // 7
    return top, left, max(1, height * 3 // 5), max(1, width * 3 // 5)


Decode = Callable[[list[bytes], list[tuple[int, int, int, int]]], list[Pixels]]


def dali_decoder(device: Device, plan: Plan, batch_size: int) -> Decode:
    """A function (encoded images, boxes) -> RGB uint8 arrays that decodes up to `batch_size` images with DALI."""
    dali: Any = importlib.import_module("nvidia.dali")  # Any: its stubs lag behind its arguments
    fn, types = dali.fn, dali.types

    def graph() -> Any:
        encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
        options = {"device": device, "output_type": types.RGB, "adjust_orientation": False}
        if plan == "full":
            return fn.decoders.image(encoded, **options)
        start = fn.external_source(name="start", dtype=types.INT32, ndim=1)
        shape = fn.external_source(name="shape", dtype=types.INT32, ndim=1)
        return fn.decoders.image_slice(encoded, start=start, shape=shape, axes=(0, 1), **options)

    device_id = None if device == "cpu" else 0
    settings = {"batch_size": batch_size, "num_threads": 2, "exec_dynamic": True, "prefetch_queue_depth": 1}
    pipe = dali.pipeline_def(graph, device_id=device_id, **settings)()
    pipe.build()

    def decode(encoded: list[bytes], boxes: list[tuple[int, int, int, int]]) -> list[Pixels]:
        pipe.feed_input("encoded", [np.frombuffer(data, np.uint8) for data in encoded])
        if plan == "crop":
            pipe.feed_input("start", [np.array(box[:2], np.int32) for box in boxes])
            pipe.feed_input("shape", [np.array(box[2:], np.int32) for box in boxes])
        pipe.schedule_run()
        (output,) = pipe.outputs()
        on_cpu = output if device == "cpu" else output.as_cpu()
        return [np.array(on_cpu[i]) for i in range(len(encoded))]  # a copy: DALI reuses its buffers

    return decode


def compare(decode: Decode, device: Device, plan: Plan, rounds: int = 4) -> dict[str, Any]:
    """Decode each image alone, then all of them together `rounds` times, and compare with Pillow.

    The full batches are there because decoders share a batch among CPU threads, hybrid and hardware engines, and
    because a fault of stream order shows only when work overlaps. Returns {"images", "worst", "wrong"}.
    """
    images = made_images()
    names, encoded = list(images), list(images.values())
    full = [decode_with_pillow(data) for data in encoded]
    boxes = [crop_box(*pixels.shape[:2]) if plan == "crop" else (0, 0, *pixels.shape[:2]) for pixels in full]
    truth = [_cut(pixels, box) for pixels, box in zip(full, boxes, strict=True)]
    batches = [[i] for i in range(len(names))] + [list(range(len(names)))] * rounds
    worst, wrong = 0, []
    for batch in batches:
        print(MARKER + (names[batch[0]] if len(batch) == 1 else "all images in one batch"), file=sys.stderr, flush=True)
        decoded = decode([encoded[i] for i in batch], [boxes[i] for i in batch])
        for i, pixels in zip(batch, decoded, strict=True):
            difference, complaint = _difference(pixels, truth[i], *TOLERANCE[device, plan])
            worst = max(worst, difference)
            if complaint:
                wrong.append(f"{names[i]}{' in a full batch' if len(batch) > 1 else ''}: {complaint}")
    return {"images": len(names), "worst": worst, "wrong": wrong}


def _cut(pixels: Pixels, box: tuple[int, int, int, int]) -> Pixels:
    top, left, height, width = box
    return pixels[top : top + height, left : left + width]


def _difference(pixels: Pixels, truth: Pixels, mean_bound: float, max_bound: int) -> tuple[int, str]:
    """(largest difference in levels, complaint); the complaint is empty where both bounds hold."""
    if pixels.shape != truth.shape:
        return 255, f"shape {pixels.shape} instead of {truth.shape}"
    off = np.abs(pixels.astype(np.int16) - truth)
    largest, mean = int(off.max()), float(off.mean())
    if largest <= max_bound and mean <= mean_bound:
        return largest, ""
    return largest, f"{mean:.2f} levels off in the mean (limit {mean_bound}), {largest} at most (limit {max_bound})"


def facts() -> dict[str, Any]:
    """The answer behind `machine_facts`, computed in this process."""
    errors: list[str] = []
    found: dict[str, Any] = {"cuda_available": False, "gpus": [], "errors": errors}
    for part in (_torch_facts, _dali_facts):
        try:
            found.update(part())
        except Exception as error:  # an import can fail in any way: a missing library, a driver's complaint
            errors.append(f"{part.__name__.strip('_').split('_')[0]}: {type(error).__name__}: {error}")
    return found


def _torch_facts() -> dict[str, Any]:
    import torch

    gpus = []
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(i)
            gpus.append({"name": torch.cuda.get_device_name(i), "total": total, "free": free})
    return {
        "torch": str(torch.__version__),
        "torch_cuda": torch.version.cuda,
        "cuda_available": torch.cuda.is_available(),
        "gpus": gpus,
    }


def _dali_facts() -> dict[str, Any]:
    from nvidia import dali

    digits = str(getattr(dali, "__cuda_version__", ""))  # 12.9.86 is written as 12986: major, minor, build run together
    return {"dali": dali.__version__, "dali_cuda": f"{digits[:2]}.{digits[2]}" if len(digits) >= 3 else None}


def start_methods() -> dict[str, str]:
    """The answer behind `run_start_methods`, computed in this process."""
    return {method: _try_start_method(method) for method in START_METHODS}


def _try_start_method(method: str) -> str:
    try:
        context: Any = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        process = context.Process(target=_say_hello, args=(queue,), daemon=True)
        process.start()
        process.join()
        return "ok" if process.exitcode == 0 and not queue.empty() else f"the process ended with {process.exitcode}"
    except (OSError, ValueError) as error:  # no such method, no /dev/shm for its semaphores, no file to open
        return f"{type(error).__name__}: {error}"


def _say_hello(queue: Any) -> None:
    queue.put("hello")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one question in this process and print its answer as one JSON line."""
    parser = argparse.ArgumentParser(prog="python -m gpupipe.selftest", description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "mixed"), default="cpu", help="where DALI decodes")
    parser.add_argument("--plan", choices=("full", "crop"), default="full", help="whole image, or only a window")
    parser.add_argument("--facts", action="store_true", help="print what torch and DALI see instead")
    parser.add_argument("--start-methods", action="store_true", help="try multiprocessing's start methods instead")
    args = parser.parse_args(argv)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # a crash is expected
    if args.facts:
        answer: dict[str, Any] = facts()
    elif args.start_methods:
        answer = dict(start_methods())
    else:
        decode = dali_decoder(args.device, args.plan, batch_size=len(made_images()))
        answer = compare(decode, args.device, args.plan)
    print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
