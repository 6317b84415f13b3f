"""The doctor's findings. The self-test behind some of them has tests of its own."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import random
import re
from pathlib import Path
from typing import Any, cast

import nvidia.dali
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from gpupipe.decode import selftest
from gpupipe.decode.decoders import Decoders
from gpupipe.decode.selftest.trial import made_images
from gpupipe.decode.selftest.verdict import GPU_PLANS, DecodePlan, Outcome, PlanTrial, Verdict
from gpupipe.decode.tuned import Tuned, keep
from gpupipe.errors import ConfigError
from gpupipe.host import system
from gpupipe.kernels import gpu, native
from gpupipe.tools.cli import doctor

ROOT = Path(__file__).resolve().parents[1]
NO_GPU: dict[str, Any] = {
    "errors": [],
    "torch": "2.15.0+cu132",
    "torch_cuda": "13.2",
    "dali": "2.4.0",
    "dali_cuda": "12.9",
    "cuda_available": False,
    "gpus": [],
}
ONE_GPU = {**NO_GPU, "cuda_available": True, "gpus": [{"name": "H200", "total": 140 << 30, "free": 139 << 30}]}


def run_doctor(*arguments: str) -> int:
    top = argparse.ArgumentParser(prog="gpupipe")
    doctor.add_parser(top.add_subparsers(required=True))
    args = top.parse_args(["doctor", *arguments])
    return int(args.run(args))


def pretend(monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], driver: tuple[int, int] | None) -> None:
    monkeypatch.setattr(selftest, "machine_facts", lambda: facts)
    monkeypatch.setattr(doctor, "driver_cuda", lambda: driver)
    monkeypatch.setattr(doctor, "driver_version", lambda: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


# Versions


def test_floors_are_those_of_the_project_file() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    declared = dict(re.findall(r'^ {4}"([a-z0-9-]+)>=([0-9.]+)",$', text, re.MULTILINE))
    for _, distributions, floor in doctor.PACKAGES:
        assert declared[distributions[0]] == floor
    assert f'requires-python = ">={doctor.PYTHON_FLOOR}"' in text


@pytest.mark.parametrize(
    ("installed", "status"),
    [("2.3.0", "ok"), ("2.3", "ok"), ("2.10.0", "ok"), ("3.0.0rc1", "ok"), ("2.2.9", "fail"), ("1.53.0", "fail")],
)
def test_package_floor(monkeypatch: pytest.MonkeyPatch, installed: str, status: str) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: installed)
    finding = doctor.package_check("DALI", ("nvidia-dali-cuda120",), "2.3")(doctor.RunSettings())
    assert (finding.status, finding.detail.split()[0]) == (status, installed)
    assert finding.remedy == ("" if status == "ok" else 'pip install "nvidia-dali-cuda120>=2.3"')


def test_package_for_the_other_cuda_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name != "nvidia-dali-cuda130":
            raise importlib.metadata.PackageNotFoundError(name)
        return "2.4.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    check = doctor.package_check("DALI", ("nvidia-dali-cuda120", "nvidia-dali-cuda130"), "2.3")
    assert check(doctor.RunSettings()).status == "ok"
    missing = doctor.package_check("DALI", ("nvidia-dali-cuda120",), "2.3")(doctor.RunSettings())
    assert (missing.status, missing.detail) == ("fail", "not installed (nvidia-dali-cuda120)")


# CUDA and GPUs


@pytest.mark.parametrize(
    ("facts", "driver", "status", "part"),
    [
        (NO_GPU, None, "ok", "the CPU engine is used"),
        (ONE_GPU, (13, 0), "ok", "supports up to CUDA 13.0"),
        (ONE_GPU, (12, 9), "fail", "supports up to CUDA 12.9"),
        (NO_GPU, (13, 0), "fail", "torch sees no GPU"),
        ({**NO_GPU, "torch_cuda": None}, (13, 0), "warn", "built for CUDA None"),
        ({**NO_GPU, "errors": ["dali: ImportError: libX.so"]}, None, "fail", "libX.so"),
    ],
)
def test_cuda(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], driver: tuple[int, int] | None, status: str, part: str
) -> None:
    pretend(monkeypatch, facts, driver)
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter(()))
    finding = doctor.check_cuda(doctor.RunSettings())
    assert finding.status == status
    assert part in finding.detail
    assert bool(finding.remedy) == (status != "ok")


def test_hidden_gpus_are_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, NO_GPU, (13, 0))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert doctor.check_cuda(doctor.RunSettings()).status == "ok"


def test_device_files_without_a_driver_library_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, NO_GPU, None)
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter([Path("/dev/nvidia0")]))
    finding = doctor.check_cuda(doctor.RunSettings())
    assert finding.status == "fail"
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video" in finding.remedy


def test_gpu_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, ONE_GPU, (13, 0))
    assert doctor.check_gpus(doctor.RunSettings()).detail == "0: H200, 140.0 GiB, 139.0 GiB free"
    full = {**ONE_GPU, "gpus": [*ONE_GPU["gpus"], {"name": "H200", "total": 140 << 30, "free": 1 << 30}]}
    pretend(monkeypatch, full, (13, 0))
    assert doctor.check_gpus(doctor.RunSettings()).status == "warn"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_driver_is_absent_where_torch_sees_no_gpu() -> None:
    assert doctor.check_gpus(doctor.RunSettings()).detail == "none, the CPU engine is used"
    assert [f.detail for f in doctor.check_gpu_decoding(doctor.RunSettings())] == ["skipped: torch sees no GPU"]


def test_machine_facts_are_what_the_libraries_say() -> None:
    facts = selftest.machine_facts()
    assert facts["errors"] == []
    assert facts["torch"] == str(torch.__version__)
    assert facts["torch_cuda"] == torch.version.cuda
    assert facts["cuda_available"] == torch.cuda.is_available()
    assert len(facts["gpus"]) == torch.cuda.device_count()
    assert facts["dali"] == nvidia.dali.__version__
    assert re.fullmatch(r"1[0-9]\.[0-9]", facts["dali_cuda"])


# CPUs, memory, shared memory, files


def test_too_many_workers_for_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "usable_cpus", lambda: 4)
    assert doctor.check_cpus(doctor.RunSettings(workers=4, processes=2)).status == "ok"
    finding = doctor.check_cpus(doctor.RunSettings(workers=5, processes=2))
    assert (finding.status, finding.remedy[:35]) == ("warn", "use 2 workers per process, or grant")


@pytest.mark.parametrize(("limit", "status"), [(None, "ok"), (1 << 40, "ok"), (400 << 20, "warn"), (100 << 20, "fail")])
def test_memory(monkeypatch: pytest.MonkeyPatch, limit: int | None, status: str) -> None:
    settings = doctor.RunSettings(workers=2)
    assert settings.shm_needed == 6 * 38_535_168 * 11 // 10 + 1 + (16 << 20)  # 258.6 MiB
    monkeypatch.setattr(system, "memory_limit", lambda: limit)
    assert doctor.check_memory(settings).status == status


def test_shm_too_small_names_the_size_and_the_flag(tmp_path: Path) -> None:
    free = psutil.disk_usage(str(tmp_path)).free
    batch = free // (224 * 224 * 3)  # one batch alone takes all there is, and two workers keep six
    finding = doctor.check_shm(doctor.RunSettings(batch_size=batch, workers=2, shm_path=str(tmp_path)))
    assert finding.status == "fail"
    flag = re.search(r"--shm-size=(\d+)g", finding.remedy)
    assert flag is not None
    needed = system.shm_bytes_needed(batch, 224 * 224, 2, 2)
    assert needed <= int(flag[1]) << 30 < needed + (1 << 30)


def test_shm_counts_all_processes() -> None:
    one = doctor.RunSettings(workers=3).shm_needed
    assert doctor.RunSettings(workers=3, processes=8).shm_needed == 8 * one


def test_shm_missing_is_a_fault_only_with_workers(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    assert doctor.check_shm(doctor.RunSettings(workers=1, shm_path=missing)).status == "fail"
    assert doctor.check_shm(doctor.RunSettings(workers=0, shm_path=missing)).status == "ok"


@pytest.mark.parametrize(("limit", "status"), [(64, "fail"), (1024, "ok"), (None, "ok")])
def test_open_files(monkeypatch: pytest.MonkeyPatch, limit: int | None, status: str) -> None:
    monkeypatch.setattr(system, "open_file_limit", lambda: limit)
    assert doctor.check_open_files(doctor.RunSettings(workers=2)).status == status


def test_start_methods_work_here() -> None:
    finding = doctor.check_start_methods(doctor.RunSettings())
    assert (finding.status, finding.detail) == ("ok", "forkserver: ok, spawn: ok")


@pytest.mark.parametrize(
    ("results", "status"),
    [({"forkserver": "OSError: x", "spawn": "ok"}, "warn"), ({"forkserver": "x", "spawn": "OSError: x"}, "fail")],
)
def test_start_methods_that_fail(monkeypatch: pytest.MonkeyPatch, results: dict[str, str], status: str) -> None:
    monkeypatch.setattr(selftest, "run_start_methods", lambda: results)
    assert doctor.check_start_methods(doctor.RunSettings()).status == status


class FakeLibrary:
    """What the doctor asks of the library, with the answer given."""

    def __init__(self, version: int) -> None:
        self.version = version

    def gp_libjpeg_version(self) -> int:
        return self.version


@pytest.mark.parametrize(
    ("version", "variants", "detail"),
    [
        (2001005, ["avx2", "portable"], "built with libjpeg-turbo 2.1.5, avx2 in use; this CPU also has: portable"),
        (3001004, ["portable"], "built with libjpeg-turbo 3.1.4, portable in use"),
        (3010012, ["avx512", "avx2", "portable"], "3.10.12, avx512 in use; this CPU also has: avx2, portable"),
    ],
)
def test_kernels_say_what_they_are_built_of(
    monkeypatch: pytest.MonkeyPatch, version: int, variants: list[str], detail: str
) -> None:
    monkeypatch.setattr(native, "library", lambda: FakeLibrary(version))
    monkeypatch.setattr(native, "variants", lambda: variants)
    finding = doctor.check_kernels(doctor.RunSettings())
    assert (finding.status, finding.remedy) == ("ok", "")
    assert finding.detail.endswith(detail)


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "were not built"), (b"no library", "can't be loaded"), (b"", "can't be loaded")]
)
def test_missing_kernels_are_a_warning_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None, reason: str
) -> None:
    if content is not None:
        (tmp_path / "_cpu.so").write_bytes(content)
    monkeypatch.setattr(native, "__file__", str(tmp_path / "native.py"))
    native._opened.cache_clear()
    try:
        finding = doctor.check_kernels(doctor.RunSettings())
    finally:
        native._opened.cache_clear()
    assert finding.status == "warn"
    assert reason in finding.detail
    assert "install a C++ compiler" not in finding.detail
    assert finding.remedy.startswith("install a C++ compiler and the headers of libjpeg-turbo 2.1 or later")


@pytest.mark.skipif(native.library() is None, reason=str(native.problem()))
@pytest.mark.parametrize(
    ("problems", "status", "detail"),
    [
        ([], "ok", "not needed: torch sees no GPU"),
        ([None, None], "ok", "compiled and run on 2 GPUs"),
        (
            [None, f"Triton kernels can't run on cuda:1 (OSError: no cc); {gpu.REMEDY}"],
            "warn",
            "(OSError: no cc); plain",
        ),
    ],
)
def test_triton_kernels_are_tried_on_each_gpu(
    monkeypatch: pytest.MonkeyPatch, problems: list[str | None], status: str, detail: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(problems))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(problems))
    monkeypatch.setattr(gpu, "problem", lambda device, face: problems[device.index] if face == "augment" else None)
    finding = doctor.check_triton(doctor.RunSettings())
    assert finding.status == status
    assert detail in finding.detail
    assert finding.remedy == (gpu.REMEDY if status == "warn" else "")


def test_kernels_here_name_a_release_that_can_decode_windows() -> None:
    finding = doctor.check_kernels(doctor.RunSettings())
    match = re.match(r"built with libjpeg-turbo (\d+)\.(\d+)\.\d+, (avx512|avx2|portable) in use", finding.detail)
    assert match is not None
    assert (int(match[1]), int(match[2])) >= (2, 1)


@pytest.mark.parametrize(
    ("field", "value"), [("batch_size", 0), ("size", 0), ("workers", -1), ("prefetch_factor", 0), ("processes", 0)]
)
def test_settings_out_of_range(field: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{field}={value} must be at least"):
        doctor.RunSettings(**{field: value})


# The command


def test_command_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    code = run_doctor("--json", "--workers", "1", "--batch-size", "2", "--size", "32")
    answer = json.loads(capsys.readouterr().out)
    assert [finding["name"] for finding in answer["findings"]][:2] == ["Python", "torch"]
    failed = [finding for finding in answer["findings"] if finding["status"] == "fail"]
    assert (code, answer["healthy"]) == ((1, False) if failed else (0, True))
    assert answer["verdict"].startswith("not ready: " if failed else "ready: ")
    assert answer["next"]
    statuses = {finding["name"]: finding["status"] for finding in answer["findings"]}
    assert statuses["decode cpu full"] == statuses["decode cpu crop"] == "ok"
    details = {finding["name"]: finding["detail"] for finding in answer["findings"]}
    assert details["decode cpu crop"].startswith(f"{len(made_images())} images agree with Pillow")


def test_table_shows_each_finding_and_the_exit_code_counts_failures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(status: doctor.Status) -> doctor.Check:
        return lambda settings: doctor.Finding(f"name-{status}", status, f"[{status}] here", "do it")

    monkeypatch.setattr(doctor, "CHECKS", (check("ok"), check("warn")))
    assert run_doctor() == 0
    monkeypatch.setattr(doctor, "CHECKS", (check("ok"), check("fail")))
    assert run_doctor() == 1
    out = capsys.readouterr().out
    for text in ("name-ok", "name-warn", "name-fail", "[fail] here", "-> do it"):
        assert text in out


@pytest.mark.parametrize(
    ("statuses", "last"),
    [
        ("ok ok", "ready: 2 checks passed; next: gpupipe new DATA -o train.py"),
        ("ok+ ok", "ready: 2 checks passed; next: remedy 0"),
        ("ok+ warn+ ok warn+", "ready: 4 checks, none failed; look at: check 1, check 3; next: remedy 1"),
        ("warn+ ok fail+ fail+", "not ready: 2 of 4 checks failed: check 2, check 3; next: remedy 2"),
    ],
)
def test_the_last_line_is_the_verdict_and_the_next_step(
    statuses: str, last: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = tuple(
        doctor.Finding(f"check {number}", cast(Any, text.rstrip("+")), "", f"remedy {number}" * text.endswith("+"))
        for number, text in enumerate(statuses.split())
    )
    monkeypatch.setattr(doctor, "CHECKS", (lambda settings: findings,))
    code = run_doctor()
    assert capsys.readouterr().out.splitlines()[-1] == last
    assert run_doctor("--json") == code == ("fail" in statuses)
    answer = json.loads(capsys.readouterr().out)
    assert f"{answer['verdict']}; next: {answer['next']}" == last


def test_shm_only_prints_whole_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_doctor("--shm-only", "--workers", "0") == 0
    assert run_doctor("--shm-only", "--workers", "2", "--batch-size", str(10**9)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[1].strip() for line in lines if line.startswith("shared memory:")] == ["ok", "fail"]
    assert re.match(r"-> start the container with --shm-size=\d+g ", lines[-1])


def test_workers_default_to_the_loaders(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(system, "usable_cpus", lambda: 24)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    run_doctor("--shm-only")
    assert "processes: 4, workers in each: 6, prefetch factor: 2" in capsys.readouterr().out
    run_doctor("--shm-only", "--processes", "2")
    assert "processes: 2, workers in each: 12, prefetch factor: 2" in capsys.readouterr().out


def test_help_says_what_the_exit_code_means(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_doctor("--help")
    out = capsys.readouterr().out
    assert "exit code:" in out
    assert "--shm-path" not in out  # for tests and entry points of images only


def test_what_was_tuned_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path))
    pretend(monkeypatch, NO_GPU, None)
    nothing = doctor.check_tuning(doctor.RunSettings())
    assert (nothing.detail, nothing.remedy) == ("nothing is kept", "gpupipe tune DATA")
    assert keep(torch.device("cpu"), Tuned("torch", 7, 2), cpus=9)
    found = doctor.check_tuning(doctor.RunSettings())
    assert (found.status, found.remedy) == ("ok", "")
    assert found.detail.startswith("engine='torch', num_workers=7, prefetch_factor=2, for processes with 9 CPUs, ")
    pretend(monkeypatch, ONE_GPU, (13, 0))
    assert "nothing is kept" in doctor.check_tuning(doctor.RunSettings()).detail


# Decoding


def pretend_trials(monkeypatch: pytest.MonkeyPatch, outcomes: dict[DecodePlan, Outcome]) -> None:
    """A machine with one GPU whose plans end like that."""
    trials = tuple(PlanTrial(plan, outcome, f"why it {outcome}", 1.5) for plan, outcome in outcomes.items())
    pretend(monkeypatch, ONE_GPU, (13, 0))
    monkeypatch.setattr(selftest, "new_verdict", lambda device: Verdict("H200", trials, 0.0, 7.1))
    monkeypatch.setattr("gpupipe.decode.tuned.tuned", lambda device: None)


def test_each_plan_is_a_line_and_the_last_says_what_loaders_use(monkeypatch: pytest.MonkeyPatch) -> None:
    hardware = [plan for plan in GPU_PLANS if plan.hardware]
    pretend_trials(monkeypatch, {plan: "crashed" if plan in hardware else "passed" for plan in reversed(GPU_PLANS)})
    findings = doctor.check_gpu_decoding(doctor.RunSettings())
    assert [finding.status for finding in findings] == ["ok", "warn", "ok", "warn", "ok"]
    assert findings[1].name == "decode gpu 0: crop decode, with hardware engines"
    assert findings[1].detail == "crashed: why it crashed"
    chosen = Decoders(hw_decoder_load=0.0)
    assert findings[-1].detail == f"loaders use {chosen} instead of {Decoders()}; tried just now, in 7 s"


def test_what_was_tuned_is_what_loaders_use(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_trials(monkeypatch, dict.fromkeys(GPU_PLANS, "passed"))
    best = Decoders(cpu_share=0.25, cpu_workers=6, hw_decoder_load=0.9, crop_decode=True)
    monkeypatch.setattr("gpupipe.decode.tuned.tuned", lambda device: Tuned("dali", 16, 3, best))
    assert doctor.check_gpu_decoding(doctor.RunSettings())[-1].detail.startswith(f"loaders use {best}; tried")


def test_a_gpu_without_a_plan_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_trials(monkeypatch, dict.fromkeys(GPU_PLANS, "wrong"))
    last = doctor.check_gpu_decoding(doctor.RunSettings())[-1]
    assert (last.status, last.detail) == ("fail", "no decode plan passed on H200")
    assert 'engine="torch"' in last.remedy


def test_a_cpu_plan_that_fails_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = [
        PlanTrial(DecodePlan(), "passed", "fine", 1.0),
        PlanTrial(DecodePlan(crop_decode=True), "crashed", "killed by SIGSEGV", 1.0),
    ]
    monkeypatch.setattr(selftest, "try_plans", lambda device, plans: trials)
    full, crop = doctor.check_cpu_decoding(doctor.RunSettings())
    assert (full.name, full.status, full.detail) == ("decode cpu full", "ok", "fine")
    assert (crop.name, crop.status, crop.detail) == ("decode cpu crop", "fail", "crashed: killed by SIGSEGV")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_this_gpu_has_a_plan_that_doctor_prints() -> None:
    findings = doctor.check_gpu_decoding(doctor.RunSettings())
    assert findings[-1].status == "ok", findings
    assert any(": " in finding.name and finding.status == "ok" for finding in findings)


def test_two_builds_of_dali_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.4.0")
    check = doctor.package_check("DALI", ("nvidia-dali-cuda120", "nvidia-dali-cuda130"), "2.3")
    finding = check(doctor.RunSettings())
    assert finding.status == "warn"
    assert "nvidia-dali-cuda120 and nvidia-dali-cuda130" in finding.detail


@pytest.mark.parametrize("option", [["--fields", "/nowhere/x.py:y"], ["--field", "image=Image:path"]])
def test_fields_without_data_are_refused(option: list[str]) -> None:
    with pytest.raises(ConfigError, match="--field and --fields are those of data: pass --data DATA, too"):
        run_doctor("--shm-only", *option)


def test_what_is_slow_about_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Row groups of Parquet that are read whole and are large, with what to do."""
    monkeypatch.setattr("gpupipe.sources.tables.parquet.default_memory", lambda: 100_000)
    table = pa.table({"picture": [random.Random(0).randbytes(30_000)]})
    found = {}
    for name, compression in (("zstd", "zstd"), ("plain", "none")):
        pq.write_table(table, tmp_path / f"{name}.parquet", compression=compression)
        data = ["--data", str(tmp_path / f"{name}.parquet"), "--field", "image=Image:picture"]
        assert run_doctor("--shm-only", *data) == 0
        found[name] = capsys.readouterr().out
    assert "data: warn: 1 of 1 row groups" in found["zstd"]
    assert "gpupipe pack" in found["zstd"]
    assert "data: ok: ParquetSource" in found["plain"]
