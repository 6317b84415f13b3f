"""`gpupipe doctor`: what this machine has, what the settings need, and whether decoding works."""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gpupipe.decode import selftest
from gpupipe.decode.tuned import kept
from gpupipe.errors import ConfigError
from gpupipe.host import system
from gpupipe.host.checks import at_least
from gpupipe.host.machine import DALI, NVIMAGECODEC, driver_version, installed
from gpupipe.texts import MOST_MESSAGE, printable
from gpupipe.tools.cli.options import Subparsers, add_command, add_fields, data_of, fields_of, option, say
from gpupipe.tools.cli.readiness import next_step, verdict

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["CHECKS", "Check", "Finding", "RunSettings", "add_parser", "check_shm", "diagnose"]

Status = Literal["ok", "warn", "fail"]
STYLES: dict[str, str] = {"ok": "green", "warn": "yellow", "fail": "bold red"}
GIB = 1 << 30
MIB = 1 << 20
LOW_GPU_MEMORY = 2 * GIB  # 256 decoded images of 500 x 400 and their float crops take 0.3 GiB; several are in flight

# Distribution names, tried in turn, and the oldest version that gpupipe supports. pyproject.toml has the same floors.
PACKAGES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("torch", ("torch",), "2.4"),
    ("DALI", DALI, "2.3"),
    ("nvImageCodec", NVIMAGECODEC, "0.9"),
    ("Pillow", ("pillow",), "10.3"),
    ("numpy", ("numpy",), "1.26"),
)
PYTHON_FLOOR = "3.10"
REINSTALL = "reinstall the package that fails to import"
BY_TORCH = 'use Loader(..., engine="torch") here'
OTHER_VERSION = "try another version of DALI and nvImageCodec"

HELP = "check GPU, driver, versions, CPUs, shared memory, open files, C++ kernels, and try decoding"
EPILOG = """\
exit code:
  0   no finding is 'fail' ('warn' does not count)
  1   at least one finding is 'fail'
  2   an option has a value that can't work

The settings say what the torch engine's workers will need in /dev/shm; the defaults are the Loader's, for batches of
256 images of 224 x 224. Decoding is tried in child processes, so a crash or a hang there is a finding; what it gives on
a GPU is kept for later loaders, which leave out what was ruled out. The last line says what it comes to, and the next
step; --json has both as "verdict" and "next".
"""


@dataclass(frozen=True)
class Finding:
    """What one check found: `status` is "ok", "warn" or "fail"; `remedy` says what to do, empty where nothing is."""

    name: str
    status: Status
    detail: str
    remedy: str = ""


def judged(name: str, detail: str, *problems: tuple[bool, Status, str]) -> Finding:
    """The first problem that there is, with its status and remedy; else all is well."""
    for there, status, remedy in problems:
        if there:
            return Finding(name, status, detail, remedy)
    return Finding(name, "ok", detail)


@dataclass(frozen=True)
class RunSettings:
    """What a training run on this machine will ask for.

    `size` is the side of the (square) crop in pixels, `workers` and `prefetch_factor` are per process, `processes`
    counts the training processes on this machine, `shm_path` is where shared memory is mounted.
    Raises ConfigError for a count below 1 (below 0 for `workers`).
    """

    batch_size: int = 256
    size: int = 224
    workers: int = 1
    prefetch_factor: int = 2
    processes: int = 1
    shm_path: str = "/dev/shm"

    def __post_init__(self) -> None:
        at_least(self, "batch_size size prefetch_factor processes", 1)
        at_least(self, "workers", 0)

    @property
    def shm_needed(self) -> int:
        """Bytes that all processes together keep in shared memory."""
        one = system.shm_bytes_needed(self.batch_size, self.size**2, self.workers, self.prefetch_factor)
        return self.processes * one


Check = Callable[[RunSettings], "Finding | tuple[Finding, ...]"]


def package_check(title: str, distributions: tuple[str, ...], floor: str) -> Callable[[RunSettings], Finding]:
    """A check that one of `distributions` is installed at `floor` or newer; nothing is imported."""

    def check(_: RunSettings) -> Finding:
        remedy = f'pip install "{distributions[0]}>={floor}"'
        found = {name: version for name in distributions if (version := installed(name))}
        if not found:
            return Finding(title, "fail", f"not installed ({' or '.join(distributions)})", remedy)
        if len(found) > 1:
            detail = f"{' and '.join(found)} are both installed, into one folder: which one is used is chance"
            return Finding(title, "warn", detail, "keep one, as docs/start/install.md says")
        return _against_floor(title, next(iter(found.values())), floor, remedy)

    return check


def _against_floor(title: str, version: str, floor: str, remedy: str) -> Finding:
    if _release(version) < _release(floor):
        return Finding(title, "fail", f"{version} is older than {floor}", remedy)
    return Finding(title, "ok", f"{version} (at least {floor})")


def _release(version: str) -> tuple[int, ...]:
    """The leading numbers: "2.15.0+cu132" -> (2, 15, 0), "2.4.0rc1" -> (2, 4, 0)."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def check_cuda(_: RunSettings) -> Finding:
    """torch's and DALI's CUDA builds beside what the driver supports; no driver at all is fine."""
    facts = selftest.machine_facts()
    if facts["errors"]:
        return Finding("CUDA", "fail", "; ".join(facts["errors"]), REINSTALL)
    builds = f"torch {facts['torch']} is built for CUDA {facts['torch_cuda']}, DALI for CUDA {facts['dali_cuda']}"
    driver = driver_cuda()
    if driver is None:
        return _without_driver(builds)
    built = max(_release(facts[key] or "") for key in ("torch_cuda", "dali_cuda"))
    release = driver_version()
    supports = f"the driver{f' {release}' if release else ''} supports up to CUDA {driver[0]}.{driver[1]}"
    if built and built[0] > driver[0]:  # within one major version newer builds run on older drivers
        remedy = f"install a driver for CUDA {built[0]}, or builds of torch and DALI for CUDA {driver[0]}"
        return Finding("CUDA", "fail", f"{builds}; {supports}", remedy)
    if facts["torch_cuda"] is None:
        return Finding("CUDA", "warn", f"{builds}; {supports}", "install a CUDA build of torch to use the GPU")
    if not facts["cuda_available"] and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1"):
        remedy = "run nvidia-smi; in a container pass --gpus all; look at CUDA_VISIBLE_DEVICES"
        return Finding("CUDA", "fail", f"torch sees no GPU; {builds}; {supports}", remedy)
    return Finding("CUDA", "ok", f"{builds}; {supports}")


def _without_driver(builds: str) -> Finding:
    if any(Path("/dev").glob("nvidia[0-9]*")):
        detail = f"/dev/nvidia* exists, but libcuda.so.1 can't be loaded; {builds}"
        remedy = "in a container set NVIDIA_DRIVER_CAPABILITIES=compute,utility,video; else reinstall the driver"
        return Finding("CUDA", "fail", detail, remedy)
    return Finding("CUDA", "ok", f"no NVIDIA driver here, the CPU engine is used; {builds}")


def driver_cuda() -> tuple[int, int] | None:
    """(major, minor) of the newest CUDA that the installed driver supports; None without a driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int(0)
    if library.cuDriverGetVersion(ctypes.byref(version)) != 0 or version.value == 0:
        return None
    return version.value // 1000, version.value % 1000 // 10


def check_gpus(_: RunSettings) -> Finding:
    """Names and memory of the GPUs that torch sees; none is fine."""
    gpus: list[dict[str, Any]] = selftest.machine_facts()["gpus"]
    if not gpus:
        return Finding("GPUs", "ok", "none, the CPU engine is used")
    detail = "; ".join(f"{i}: {g['name']}, {_size(g['total'])}, {_size(g['free'])} free" for i, g in enumerate(gpus))
    low = min(g["free"] for g in gpus) < LOW_GPU_MEMORY
    return judged(
        "GPUs", detail, (low, "warn", f"free at least {_size(LOW_GPU_MEMORY)}: nvidia-smi lists who holds it")
    )


def check_cpus(settings: RunSettings) -> Finding:
    """CPUs that this process may use beside what the host has and what the settings ask for."""
    usable, host = system.usable_cpus(), system.host_cpus()
    asked = settings.processes * settings.workers
    detail = f"{usable} usable of {host} on the host; workers asked for: {asked}"
    few = asked > 2 * usable  # up to twice as many still hides waits for files
    remedy = f"use {system.default_workers(settings.processes)} workers per process, or grant more CPUs"
    return judged("CPUs", detail, (few, "warn", remedy))


def check_memory(settings: RunSettings) -> Finding:
    """The memory limit against what shared memory alone will take of it."""
    limit, needed = system.memory_limit(), settings.shm_needed
    if limit is None:
        return Finding("memory", "ok", "no limit found")
    source = "of the cgroup" if limit == system.cgroup_memory_limit() else "of the host"
    detail = f"{_size(limit)} {source}; the batches in flight take {_size(needed)} of it"
    more = "raise the limit (docker --memory, Kubernetes resources.limits.memory), or use fewer workers"
    fewer = "little is left for the training process; use fewer workers"
    return judged("memory", detail, (needed > limit, "fail", more), (needed > limit // 2, "warn", fewer))


def check_shm(settings: RunSettings) -> Finding:
    """Free shared memory against what the settings need."""
    name, needed = "shared memory", settings.shm_needed
    free, total = system.shm_bytes_free(settings.shm_path), system.shm_bytes_total(settings.shm_path)
    asked = (
        f"{_size(needed)} needed for batches of {settings.batch_size} x {settings.size} x {settings.size} x 3 bytes, "
        f"processes: {settings.processes}, workers in each: {settings.workers}, "
        f"prefetch factor: {settings.prefetch_factor}"
    )
    flag = f"--shm-size={system.docker_size(needed)}"
    if free is None or total is None:
        remedy = f"mount a tmpfs there, in docker with {flag}"
        return Finding(name, "fail" if needed else "ok", f"{settings.shm_path} is missing; {asked}", remedy)
    detail = f"{settings.shm_path} has {_size(free)} free of {_size(total)}; {asked}"
    remedy = (
        f"start the container with {flag} (compose: shm_size; Kubernetes: a memory-backed emptyDir at /dev/shm), "
        f"or ask for less: fewer workers, a smaller batch, prefetch factor 1"
    )
    return judged(name, detail, (free < needed, "fail", remedy))


def _size(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.0f} MiB"


def check_open_files(settings: RunSettings) -> Finding:
    """The soft limit of open files against what one process needs."""
    limit = system.open_file_limit()
    needed = system.open_files_needed(settings.workers, settings.prefetch_factor)
    if limit is None:
        return Finding("open files", "ok", f"no limit, {needed} needed")
    remedy = f"ulimit -n {needed} or more (docker --ulimit nofile=65536)"
    return judged("open files", f"limit {limit}, {needed} needed", (limit < needed, "fail", remedy))


def check_start_methods(_: RunSettings) -> Finding:
    """Whether worker processes can be started at all, tried in a child process."""
    results = selftest.run_start_methods()
    detail = ", ".join(f"{method}: {result}" for method, result in results.items())
    working = [method for method, result in results.items() if result == "ok"]
    limits, other = "look at the limits on processes and at /dev/shm", f"use {' or '.join(working)}"
    some = len(working) < len(results)
    return judged("start methods", detail, (not working, "fail", limits), (some, "warn", other))


def check_kernels(_: RunSettings) -> Finding:
    """Whether the C++ kernels were built, with which libjpeg-turbo, and for which instruction sets of this CPU."""
    name = "C++ kernels"
    try:
        from gpupipe.kernels import native  # imports torch, which --shm-only does not need
    except (ImportError, OSError) as error:
        return Finding(name, "warn", f"not looked at: {error}", REINSTALL)
    library = native.library()
    if library is None:
        reason = (native.problem() or "").removesuffix(f"; {native.REMEDY}")
        return Finding(name, "warn", f"{reason}; the torch engine decodes with Pillow, more slowly", native.REMEDY)
    used, *others = native.variants()
    number = library.gp_libjpeg_version()  # 2001005 is 2.1.5
    turbo = f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"
    detail = f"built with libjpeg-turbo {turbo}, {used} in use"
    return Finding(name, "ok", f"{detail}; this CPU also has: {', '.join(others)}" if others else detail)


def check_triton(_: RunSettings) -> Finding:
    """Whether the Triton kernels compile and run on each GPU. Initializes CUDA in this process."""
    name = "Triton kernels"
    try:
        import torch

        from gpupipe.kernels import gpu
    except (ImportError, OSError) as error:
        return Finding(name, "warn", f"not looked at: {error}", REINSTALL)
    if not torch.cuda.is_available():
        return Finding(name, "ok", "not needed: torch sees no GPU")
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    problems = [gpu.problem(device, face) for device in devices for face in gpu.TRIALS]
    first = next((problem for problem in problems if problem is not None), None)
    if first is not None:
        reason = first.removesuffix(f"; {gpu.REMEDY}")
        return Finding(name, "warn", f"{reason}; plain PyTorch does their work, slower", gpu.REMEDY)
    return Finding(name, "ok", f"compiled and run on {len(devices)} GPUs")


def check_tuning(_: RunSettings) -> Finding:
    """What `gpupipe tune` has left for loaders on each kind of GPU here, or on the CPU."""
    names = sorted({gpu["name"] for gpu in selftest.machine_facts()["gpus"]}) or [""]
    found = "; ".join(one.text for name in names for one in kept(name))
    return Finding("tuning", "ok", found or "nothing is kept", "" if found else "gpupipe tune DATA")


def check_cpu_decoding(_: RunSettings) -> tuple[Finding, ...]:
    """Whether DALI decodes the made images on the CPU, by each plan."""
    trials = selftest.try_plans("cpu", selftest.CPU_PLANS)
    return tuple(
        _of_trial(f"decode cpu {'crop' if trial.plan.crop_decode else 'full'}", trial, "fail", BY_TORCH)
        for trial in trials
    )


def _of_trial(name: str, trial: selftest.PlanTrial, status: Status, remedy: str) -> Finding:
    if trial.passed:
        return Finding(name, "ok", trial.detail)
    return Finding(name, status, f"{trial.outcome}: {trial.detail}", f"{remedy}; {OTHER_VERSION}")


def check_gpu_decoding(_: RunSettings) -> tuple[Finding, ...]:
    """Whether DALI decodes the made images on each kind of GPU here, by each plan, and which plan loaders will use.

    Tries anew, and keeps the verdicts for later loaders.
    """
    names = [gpu["name"] for gpu in selftest.machine_facts()["gpus"]]
    if not names:
        return (Finding("decode gpu", "ok", "skipped: torch sees no GPU"),)
    kinds = sorted(names.index(name) for name in set(names))
    return tuple(finding for index in kinds for finding in _gpu_findings(index))


def _gpu_findings(index: int) -> Iterator[Finding]:
    import torch  # --shm-only does not need it

    from gpupipe.decode.decoders import Decoders
    from gpupipe.decode.tuned import tuned

    name, device = f"decode gpu {index}", torch.device("cuda", index)
    verdict = selftest.new_verdict(device)
    for trial in verdict.trials:
        yield _of_trial(f"{name}: {trial.plan.name}", trial, "warn", "loaders won't use it")
    settings = tuned(device)
    wish = (settings.decoders if settings else None) or Decoders()
    found = selftest.fitted(wish, verdict)  # what loaders will make of their default settings, or of what was tuned
    if found is None:
        yield Finding(name, "fail", f"no decode plan passed on {verdict.gpu}", f"{BY_TORCH}; {OTHER_VERSION}")
    else:
        asked = "" if found == wish else f" instead of {wish}"
        yield Finding(name, "ok", f"loaders use {found}{asked}; tried just now, in {verdict.seconds:.0f} s")


CHECKS: tuple[Check, ...] = (
    lambda _: _against_floor("Python", platform.python_version(), PYTHON_FLOOR, "use a newer Python"),
    *(package_check(title, distributions, floor) for title, distributions, floor in PACKAGES),
    check_cuda,
    check_gpus,
    check_cpus,
    check_memory,
    check_shm,
    check_open_files,
    check_start_methods,
    check_kernels,
    check_tuning,
    check_cpu_decoding,
    check_gpu_decoding,
    check_triton,
)


def diagnose(settings: RunSettings, checks: Iterable[Check] = CHECKS) -> list[Finding]:
    """Run `checks` in turn and return what they found."""
    results = (check(settings) for check in checks)
    return [finding for result in results for finding in (result if isinstance(result, tuple) else (result,))]


def table(findings: Iterable[Finding]) -> Table:
    """The findings as a rich table."""
    from rich.markup import escape
    from rich.table import Table

    result = Table("check", "status", "finding", title="gpupipe doctor", title_justify="left")
    for finding in findings:
        detail = "\n-> ".join(printable(text, MOST_MESSAGE) for text in (finding.detail, finding.remedy) if text)
        result.add_row(finding.name, f"[{STYLES[finding.status]}]{finding.status}[/]", escape(detail))
    return result


def add_parser(subparsers: Subparsers) -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = add_command(subparsers, "doctor", run, HELP, description=HELP, epilog=EPILOG, formatter_class=form)
    option(parser, "--batch-size", 256, "N", "images per batch")
    option(parser, "--size", 224, "PX", "side of the crop in pixels")
    parser.add_argument("--workers", type=int, metavar="N", help="of a process (default: usable CPUs / processes)")
    option(parser, "--prefetch-factor", 2, "N", "batches per worker")
    processes = "training processes on this machine (default LOCAL_WORLD_SIZE or 1)"
    parser.add_argument("--processes", type=int, metavar="N", help=processes)
    parser.add_argument("--data", nargs="+", metavar="DATA", help="what is slow about this data, too")
    add_fields(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--shm-only", action="store_true", help="check only the shared memory, for entry points")
    parser.add_argument("--shm-path", default="/dev/shm", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Check and print; returns 0, or 1 where a finding is "fail"."""
    if not args.data and (args.field or args.fields):
        raise ConfigError("--field and --fields are those of data: pass --data DATA, too")
    findings = diagnose(settings_from(args), (check_shm,) if args.shm_only else CHECKS)
    if args.data:
        findings += data_findings(args)
    healthy = all(finding.status != "fail" for finding in findings)
    if args.json:
        told = {"healthy": healthy, "verdict": verdict(findings), "next": next_step(findings)}
        print(json.dumps(told | {"findings": [dataclasses.asdict(finding) for finding in findings]}, indent=2))
    elif args.shm_only:  # for entry points and logs: whole lines, no table that wraps
        for finding in findings:
            print(f"{finding.name}: {finding.status}: {finding.detail}")
            if finding.remedy:
                print(f"-> {finding.remedy}")
    else:
        from rich.console import Console

        Console(file=sys.stdout).print(table(findings))
        say(f"{verdict(findings)}; next: {next_step(findings)}")
    return 0 if healthy else 1


def data_findings(args: argparse.Namespace) -> list[Finding]:
    """What the data's source remarks."""
    from gpupipe.batch import Image
    from gpupipe.sources import open_source

    source = open_source(data_of(args), fields=fields_of(args) or {"image": Image()})
    return [Finding("data", "warn", *remark) for remark in source.remarks()] or [Finding("data", "ok", repr(source))]


def settings_from(args: argparse.Namespace) -> RunSettings:
    """The settings that the options give, with the Loader's defaults for what is left out."""
    processes = system.local_world_size() if args.processes is None else args.processes
    workers = system.default_workers(max(1, processes)) if args.workers is None else args.workers
    return RunSettings(args.batch_size, args.size, workers, args.prefetch_factor, processes, args.shm_path)
