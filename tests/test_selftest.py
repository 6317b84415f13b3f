"""The decode self-test; crashes, hangs, wrong pixels and verdicts are made here."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import json
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from living import lives
from PIL import Image

import gpupipe
from gpupipe import Decoders, EngineUnavailableError
from gpupipe.decode import selftest
from gpupipe.decode.selftest import facts, trial, verdict
from gpupipe.decode.selftest.trial import made_images, made_pixels
from gpupipe.decode.selftest.verdict import CPU_PLANS, GPU_PLANS, DecodePlan, Outcome, PlanTrial, Verdict
from gpupipe.host import cache
from gpupipe.host.children import Child, ChildError
from gpupipe.sources.headers import probe_bytes

FULL, CROP = DecodePlan(), DecodePlan(crop_decode=True)
FULL_HARDWARE, CROP_HARDWARE = DecodePlan(hardware=True), DecodePlan(crop_decode=True, hardware=True)
GPU = torch.device("cuda", 0)

# The made set


def test_made_images_are_of_the_kinds_that_they_are_named() -> None:
    images = made_images()
    sampling = {"4:4:4": (1, 1), "4:2:2": (2, 1), "4:2:0": (2, 2), "4:4:0": (1, 2)}
    for name in [name for name in images if name.startswith("jpeg 4:")]:
        layers = Image.open(io.BytesIO(images[name])).layer  # (id, horizontal, vertical, table) of each component
        assert layers[0][1:3] == sampling[name.split()[1]]
        assert {layer[1:3] for layer in layers[1:]} == {(1, 1)}
        assert any(side % 8 for side in probe_bytes(images[name])[:2]) == name.endswith("odd size")
    assert Image.open(io.BytesIO(images["jpeg cmyk"])).mode == "CMYK"
    assert Image.open(io.BytesIO(images["jpeg gray"])).mode == "L"
    assert [name for name in images if "progressive" in Image.open(io.BytesIO(images[name])).info] == [
        "jpeg progressive"
    ]
    assert [name for name, data in images.items() if b"\xff\xdd\x00\x04\x00\x03" in data and b"\xff\xd7" in data] == [
        "jpeg with restart markers"
    ]
    assert probe_bytes(images["jpeg 1x1"])[:2] == (1, 1)
    assert probe_bytes(images["jpeg 3x200"])[:2] == (3, 200)
    assert probe_bytes(images["jpeg 3000x4000"])[:2] == (3000, 4000)
    assert {Image.open(io.BytesIO(images[name])).format for name in ("png", "webp")} == {"PNG", "WEBP"}


def test_chroma_of_440_lies_where_it_belongs() -> None:
    wanted = made_pixels(96, 128, 4)
    decoded = np.asarray(Image.open(io.BytesIO(made_images()["jpeg 4:4:0"])).convert("RGB"))
    off = np.abs(decoded.astype(int) - wanted)
    assert decoded.shape == wanted.shape
    assert (off.mean() < 1.5, off.max() < 10) == (True, True)


# Comparison in the child


class FakePipeline:
    """DALI's face over pixels that `spoil` makes of the true ones and of those of the batch before."""

    def __init__(self, feed: Callable[[], tuple[Any, ...]], spoil: Spoil, batches: list[trial.MadeBatch]) -> None:
        self.feed, self.spoil = feed, spoil
        self.truths = {_geometry(batch.inputs): batch.truth for batch in batches}
        self.coming: list[torch.Tensor] = []
        self.before: torch.Tensor | None = None

    def schedule_run(self) -> None:
        with contextlib.suppress(StopIteration):
            self.coming.append(self.truths[_geometry(self.feed())])

    def outputs(self) -> tuple[Any]:
        truth = self.coming.pop(0)
        before = self.before if self.before is not None and self.before.shape == truth.shape else truth
        self.before = truth
        pixels = self.spoil(truth, before).contiguous()
        return (SimpleNamespace(as_tensor=lambda: pixels),)


def _geometry(inputs: tuple[Any, ...]) -> tuple[bytes, ...]:
    return tuple(array.tobytes() for array in inputs[1:])


Spoil = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@pytest.fixture(scope="module")
def trials() -> trial.SelfTest:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "COPIES", 1)
        patch.setattr(trial, "RECIPE", gpupipe.imagenet_train(64))
        return trial.SelfTest("cpu")


def blank_corner(truth: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """One block of 8 x 8 that was not written."""
    spoilt = truth.clone()
    spoilt[:, -8:, -8:] = 255 - spoilt[:, -8:, -8:]
    return spoilt


@pytest.mark.parametrize(
    ("spoil", "alone", "together"),
    [
        (lambda truth, before: truth, False, False),
        (lambda truth, before: truth.flip(-1), True, True),  # BGR
        (lambda truth, before: truth.roll(8, dims=2), True, True),
        (blank_corner, True, True),
        (lambda truth, before: truth if len(truth) == 1 else truth * 0, False, True),
        (lambda truth, before: truth if len(truth) == 1 else before, False, True),  # read too early
        (lambda truth, before: truth if len(truth) == 1 else truth.roll(1, dims=0), False, True),
    ],
    ids=["as it should be", "BGR", "shifted", "blank corner", "blank", "stale", "mixed up"],
)
def test_wrong_pixels_are_noticed(
    monkeypatch: pytest.MonkeyPatch, trials: trial.SelfTest, spoil: Spoil, alone: bool, together: bool
) -> None:
    batches = trials._singles + trials._full
    monkeypatch.setattr(trial, "build_pipeline", lambda feed, **options: FakePipeline(feed, spoil, batches))
    monkeypatch.setattr(trial, "MOST_COMPLAINTS", 1000)
    found = trials.run(CROP)
    assert (found["images"], found["batches"]) == (len(made_images()), len(batches))
    complaints = [complaint.split(":") for complaint in found["wrong"]]
    assert any(" in full batches" not in ":".join(complaint) for complaint in complaints) == alone
    assert any(" in full batches" in ":".join(complaint) for complaint in complaints) == together
    assert (found["largest"] == 0) == (not found["wrong"])


def test_rare_kinds_that_are_refused_are_left_out(monkeypatch: pytest.MonkeyPatch, trials: trial.SelfTest) -> None:
    def build(feed: Any, **options: Any) -> FakePipeline:
        made = FakePipeline(feed, lambda truth, before: truth, [])
        made.truths = Refusing(batches, refused)  # type: ignore[assignment]
        return made

    batches = trials._singles + trials._full
    monkeypatch.setattr(trial, "build_pipeline", build)
    refused = {"jpeg cmyk", "webp"}
    found = trials.run(CROP)
    assert (found["refused"], found["images"], found["wrong"]) == (sorted(refused), len(made_images()) - 2, [])
    refused = {"jpeg 4:2:2"}
    with pytest.raises(RuntimeError, match="4:2:2 can't be decoded"):
        trials.run(CROP)


class Refusing:
    """Truths by geometry, where batches with some images raise."""

    def __init__(self, batches: list[trial.MadeBatch], refused: set[str]) -> None:
        self.batches = batches
        self.refused = refused
        self.cpu = torch.device("cpu")

    def __getitem__(self, geometry: tuple[bytes, ...]) -> torch.Tensor:
        for batch in self.batches:
            for left_out in (set(), self.refused):
                fed = batch.on(self.cpu, without=left_out)
                if _geometry(fed.inputs) == geometry:
                    for name in self.refused.intersection(fed.names):
                        raise RuntimeError(f"{name} can't be decoded")
                    return fed.truth
        raise AssertionError("not one of the batches")


def test_pixels_of_another_batch_are_wrong_ones(trials: trial.SelfTest) -> None:
    for number, batch in enumerate(trials._full):
        for other in trials._full[:number]:
            off = (batch.truth.float() - other.truth.float()).abs().mean((1, 2, 3))
            assert (off > trial.TOLERANCE["cuda"][0]).float().mean() > 0.8


# The child's end


def children_that(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    def child(what: str, arguments: tuple[Any, ...], log: Any, timeout: float) -> Child:
        return Child("selftest_fakes:Coded", (code,), log, timeout)

    monkeypatch.setattr(verdict, "Child", child)
    monkeypatch.setattr(facts, "Child", child)


SAY = "say('decoding jpeg 4:2:0'); "
GOOD = {"images": 17, "batches": 9, "mean": 0.25, "largest": 4, "worst": ["png", "webp"], "wrong": []}
GOOD["refused"] = ["jpeg cmyk"]
GOOD_DETAIL = (
    "17 images agree with Pillow in 9 batches, at most 0.2 levels off in the mean (png), 4 in a pixel (webp); "
    "left to the CPU: jpeg cmyk"
)


@pytest.mark.parametrize(
    ("code", "outcome", "detail"),
    [
        (SAY + "os.kill(os.getpid(), 11)", "crashed", "died during 'run': SIGSEGV while decoding jpeg 4:2:0"),
        ("os.abort()", "crashed", "died during 'run': SIGABRT before the first image"),
        (SAY + "os.kill(os.getpid(), 9)", "starved", "died during 'run': SIGKILL while decoding jpeg 4:2:0"),
        (SAY + "say('std::bad_alloc'); os.abort()", "starved", "died during 'run': SIGABRT while"),
        (SAY + "raise RuntimeError('no nvJPEG')", "failed", "RuntimeError: no nvJPEG while decoding"),
        (SAY + "raise RuntimeError('CUDA error: out of memory')", "starved", "RuntimeError: CUDA error"),
        (SAY + "os._exit(0)", "failed", "died during 'run': exit code 0 while decoding jpeg 4:2:0"),
        ("os._exit(3)", "failed", "died during 'run': exit code 3 before the first image"),
        (f"answer = {GOOD | {'wrong': ['png: off', 'webp: off']}}", "wrong", "png: off; webp: off"),
        (f"answer = {GOOD}", "passed", GOOD_DETAIL),
    ],
)
def test_outcomes_of_a_child(monkeypatch: pytest.MonkeyPatch, code: str, outcome: str, detail: str) -> None:
    children_that(monkeypatch, code)
    (result,) = selftest.try_plans("cpu", (FULL,))
    assert (result.plan, result.outcome, result.passed) == (FULL, outcome, outcome == "passed")
    assert result.detail.startswith(detail)
    assert (result.mean, result.largest) == ((0.25, 4) if outcome in ("passed", "wrong") else (None, None))


def test_children_decode_in_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    turns = tmp_path / "turns"
    work = f"f = open({str(turns)!r}, 'a'); f.write('in '); f.flush(); time.sleep(0.1); f.write('out ')"
    children_that(monkeypatch, f"{work}; f.close(); answer = {GOOD}")
    assert all(result.passed for result in selftest.try_plans("cuda:0", GPU_PLANS))
    assert turns.read_text().split() == ["in", "out"] * 4


def gone(pid: int) -> bool:
    """Whether a process that was killed is gone or dead within a moment."""
    for _ in range(100):
        if not lives(pid):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("ending", ["kill", "end"])
def test_a_child_that_hangs_is_ended_with_its_children(ending: str, tmp_path: Path) -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '99']).pid, flush=True); time.sleep(99)"
    with (tmp_path / "log").open("wb") as log:
        child = Child("selftest_fakes:Coded", (code,), log, timeout=3)
        with pytest.raises(ChildError, match="no answer to 'work' within 3 s") as caught:
            child.ask("work")
        assert (caught.value.hangs, caught.value.code) == (True, None)
        getattr(child, ending)()
        child.kill()
    assert gone(child.pid)
    assert gone(int((tmp_path / "log").read_text()))


# In the same session as what inherits the orphans, as in a container: no SIGHUP of the kernel's.
ORPHAN = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
if os.fork():
    while True:
        os.wait()  # until it has no child
from gpupipe.host.children import Child
code = "import subprocess; print(subprocess.Popen(['sleep', '99']).pid, flush=True)"
child = Child("selftest_fakes:Coded", (code,), open(sys.argv[1], "wb"), 60)
child.ask("work")
print(child.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_child_that_stands_still_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", f"import sys; sys.path.append({str(Path(__file__).parent)!r})\n{ORPHAN}"]
    done = subprocess.run([*command, str(tmp_path / "log")], capture_output=True, text=True, check=False, timeout=60)
    assert "ChildProcessError" in done.stderr  # it has waited for all
    assert gone(int(done.stdout))
    assert gone(int((tmp_path / "log").read_text()))


def test_no_child_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(psutil.Process().children())  # other tests' resource tracker may live on
    children_that(monkeypatch, "time.sleep(99)")
    first, second = selftest.try_plans("cpu", CPU_PLANS, timeout=0.5)
    assert (first.outcome, first.detail) == ("starved", "no answer to 'run' within 0.5 s before the first image")
    assert second.outcome == "starved"
    assert set(psutil.Process().children()) <= before


def test_a_decoder_that_hangs_is_told_from_a_slow_start(monkeypatch: pytest.MonkeyPatch) -> None:
    children_that(monkeypatch, SAY + "time.sleep(99)")
    (result,) = selftest.try_plans("cpu", (FULL,), timeout=3)
    assert (result.outcome, result.detail) == ("hung", "no answer to 'run' within 3 s while decoding jpeg 4:2:0")


def test_facts_of_a_child_that_crashes_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    children_that(monkeypatch, f"os.kill(os.getpid(), {int(signal.SIGSEGV)})")
    found = selftest.machine_facts.__wrapped__(30.0)
    assert found["errors"] == ["the child that imports torch and DALI died during 'of_machine': SIGSEGV"]
    assert set(selftest.run_start_methods().values()) == {"died during 'of_start_methods': SIGSEGV"}


def test_what_a_child_raises_is_told_in_one_line(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        child = Child("selftest_fakes:Coded", ("raise RuntimeError('first line\\n\\nsecond line')",), log, timeout=30)
        with pytest.raises(ChildError, match=r"^RuntimeError: first line second line$") as caught:
            child.ask("work")
        assert (caught.value.hangs, caught.value.code) == (False, None)
        child.end()
    assert "Traceback" in (tmp_path / "log").read_text()


def test_a_child_knows_where_what_it_is_made_of_lies(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        child = Child("fractions:Fraction", (6, 4), log, timeout=30)
        assert child.ask("limit_denominator", 4) == Fraction(3, 2)
        child.end()


@pytest.mark.parametrize(("outcomes", "code"), [(("passed", "crashed"), 0), (("wrong", "crashed"), 1)])
def test_by_itself_it_writes_what_it_found(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    outcomes: tuple[Outcome, ...],
    code: int,
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "bench"))
    main = importlib.import_module("gpu.selftest")
    made = [PlanTrial(plan, outcome, "why", 1.5, 0.25, 4) for plan, outcome in zip(CPU_PLANS, outcomes, strict=True)]
    monkeypatch.setattr(main, "try_plans", lambda device, wanted: made)
    assert main.main(["--device", "cpu", "--out", str(tmp_path / "new")]) == code
    assert f"crop decode, no hardware engines: {outcomes[1]} in 1.5 s: why" in capsys.readouterr().out
    written = json.loads((tmp_path / "new" / "selftest.json").read_text())
    assert [trial["outcome"] for trial in written["trials"]] == list(outcomes)
    assert written["trials"][1]["plan"] == {"crop_decode": True, "hardware": False}
    assert written["trials"][1]["largest"] == 4
    assert {"gpu", "driver", "dali", "nvimagecodec"} <= set(written)


# The verdict


def made_verdict(ruled_out: dict[DecodePlan, Outcome], when: float | None = None) -> Verdict:
    trials = tuple(PlanTrial(plan, ruled_out.get(plan, "passed"), f"why {plan.name}", 1.0) for plan in GPU_PLANS)
    return Verdict("H200", trials, time.time() if when is None else when, 4.0)


ALL = Decoders(cpu_share=0.25, cpu_workers=4, hw_decoder_load=0.9, crop_decode=True)


@pytest.mark.parametrize(
    ("ruled_out", "wish", "found"),
    [
        ([], ALL, ALL),
        ([], Decoders(), Decoders()),
        ([FULL, FULL_HARDWARE], ALL, ALL),
        ([CROP_HARDWARE], ALL, dataclasses.replace(ALL, crop_decode=False)),
        ([CROP_HARDWARE, FULL_HARDWARE], ALL, dataclasses.replace(ALL, hw_decoder_load=0.0)),
        ([CROP_HARDWARE, FULL_HARDWARE, CROP], ALL, dataclasses.replace(ALL, crop_decode=False, hw_decoder_load=0.0)),
        ([FULL_HARDWARE], Decoders(), Decoders(hw_decoder_load=0.0)),
        (
            [CROP],
            Decoders(hw_decoder_load=0.0, crop_decode=True),
            Decoders(hw_decoder_load=0.0, crop_decode=False),
        ),
        ([FULL, FULL_HARDWARE], Decoders(), None),
        (list(GPU_PLANS), ALL, None),
    ],
)
def test_a_wish_is_fitted_to_the_verdict(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    ruled_out: list[DecodePlan],
    wish: Decoders,
    found: Decoders | None,
) -> None:
    made = made_verdict(dict.fromkeys(ruled_out, "crashed"))
    monkeypatch.setattr(verdict, "find_verdict", lambda device: made)
    if found is None:
        with pytest.raises(EngineUnavailableError, match=r"on H200: .*crashed, why full decode, with hardware"):
            selftest.fit(wish, GPU)
        return
    assert selftest.fit(wish, GPU) == found
    assert len(caplog.records) == (found != wish)
    assert all(f"{plan.name}: crashed, why" in caplog.text for plan in ruled_out if found != wish)


def test_a_cpu_needs_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "find_verdict", lambda device: pytest.fail("not to be asked"))
    assert selftest.fit(ALL, torch.device("cpu")) is ALL


@pytest.mark.parametrize(
    ("outcomes", "kept"),
    [
        ({}, 1e9),
        ({CROP: "crashed", FULL: "wrong"}, 1e9),
        ({CROP: "failed"}, 86_400.0),
        ({CROP: "failed", FULL: "hung"}, 3_600.0),
        ({CROP: "starved"}, 300.0),
    ],
)
def test_circumstances_are_not_believed_for_ever(outcomes: dict[DecodePlan, Outcome], kept: float) -> None:
    made = made_verdict(outcomes, when=1000.0)
    assert made.holds(1000.0 + 0.99 * kept)
    assert made.holds(1000.0 + 1.01 * kept) == (kept == 1e9)


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The devices that were tried; there is one GPU, with driver "1" until a test says otherwise."""
    tried: list[str] = []

    def try_plans(device: str, wanted: tuple[DecodePlan, ...]) -> list[PlanTrial]:
        tried.append(device)
        return list(made_verdict({CROP: "crashed"}).trials)

    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(verdict, "try_plans", try_plans)
    monkeypatch.setattr(cache, "_kept", {})
    monkeypatch.setattr(verdict, "_key", lambda device: {"gpu": "H200", "driver": "1"})
    return tried


def other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_kept", {})


def test_a_gpu_is_tried_once(
    monkeypatch: pytest.MonkeyPatch, tries: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gpupipe")
    first = selftest.find_verdict(GPU)
    assert "H200 with this driver and this DALI is new here" in caplog.messages[0]
    assert "3 of 4 decode plans passed" in caplog.messages[1]
    assert selftest.find_verdict(GPU) == first
    other_process(monkeypatch)
    assert selftest.find_verdict(GPU) == first
    assert (tries, len(caplog.messages)) == (["cuda:0"], 2)
    (stored,) = (tmp_path / "cache").glob("selftest-*.json")
    assert json.loads(stored.read_text())["key"] == {"gpu": "H200", "driver": "1"}


def test_another_driver_is_tried_again(monkeypatch: pytest.MonkeyPatch, tries: list[str]) -> None:
    selftest.find_verdict(GPU)
    monkeypatch.setattr(verdict, "_key", lambda device: {"gpu": "H200", "driver": "2"})
    selftest.find_verdict(GPU)
    assert len(tries) == 2


def test_a_new_verdict_replaces_the_old_one(monkeypatch: pytest.MonkeyPatch, tries: list[str]) -> None:
    selftest.find_verdict(GPU)
    second = selftest.new_verdict(GPU)
    other_process(monkeypatch)
    assert selftest.find_verdict(GPU) == second
    assert len(tries) == 2


def test_a_verdict_that_no_longer_holds_is_tried_again(monkeypatch: pytest.MonkeyPatch, tries: list[str]) -> None:
    starved = made_verdict({CROP: "starved"}).trials
    monkeypatch.setattr(verdict, "try_plans", lambda device, wanted: tries.append(device) or list(starved))
    start = time.time()
    for seconds in (0, 200, 400):
        monkeypatch.setattr(time, "time", lambda seconds=seconds: start + seconds)
        selftest.find_verdict(GPU)
    assert len(tries) == 2


@pytest.mark.parametrize(
    "damage", ["{}", '{"key": {"gpu": "H200", "driver": "1"}, "value": {"trials": []}}', "no JSON"]
)
def test_a_stored_verdict_that_is_none_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tries: list[str], tmp_path: Path, damage: str
) -> None:
    selftest.find_verdict(GPU)
    (stored,) = (tmp_path / "cache").glob("selftest-*.json")
    stored.write_text(damage)
    other_process(monkeypatch)
    selftest.find_verdict(GPU)
    assert len(tries) == 2


def test_without_a_cache_folder_a_process_tries_once(
    monkeypatch: pytest.MonkeyPatch, tries: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "file" / "cache"))
    assert selftest.find_verdict(GPU) == selftest.find_verdict(GPU)
    assert len(tries) == 1
    assert "set GPUPIPE_CACHE" in caplog.text


RANK = """
import sys, time
from gpupipe.decode.selftest import verdict
from gpupipe.decode.selftest.verdict import GPU_PLANS, PlanTrial

def try_plans(device, plans):
    with open(sys.argv[1], "a") as out:
        out.write("tried ")
    time.sleep(0.5)
    return [PlanTrial(plan, "passed", "", 1.0) for plan in plans]

verdict.try_plans = try_plans
verdict._key = lambda device: {"gpu": "H200"}
input()
assert verdict.find_verdict("cuda:0").allows(GPU_PLANS[0])
"""


def test_ranks_that_start_together_try_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "cache"))
    command = [sys.executable, "-c", RANK, str(tmp_path / "tries")]
    ranks = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(3)]
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write(b"go\n")
        rank.stdin.close()
    assert [rank.wait(60) for rank in ranks] == [0, 0, 0]
    assert (tmp_path / "tries").read_text() == "tried "


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_this_gpu_has_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    found = selftest.find_verdict(GPU)
    assert any(trial.passed for trial in found.trials), found.summary()
    other_process(monkeypatch)
    assert selftest.find_verdict(GPU) == found
