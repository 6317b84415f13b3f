"""Facts of the machine, against made /proc and /sys trees and against other tools' answers."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from gpupipe.errors import ConfigError
from gpupipe.host import system


def tree(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    """A made file system: proc/self/cgroup with the text `cgroup`, and `files` below sys/fs/cgroup."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        pytest.param("0::/\n", {"cpu.max": "250000 100000"}, 2.5, id="v2 at the mount, as in a container"),
        pytest.param("0::/\n", {"cpu.max": "max 100000"}, None, id="v2 without a limit"),
        pytest.param("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3.0, id="v2 parent"),
        pytest.param("0::/a/b\n", {"a/b/cpu.max": "50000 100000", "a/cpu.max": "300000 100000"}, 0.5, id="v2 tightest"),
        pytest.param("0::/../../pod\n", {"cpu.max": "400000 100000"}, 4.0, id="v2 outside the namespace"),
        pytest.param(
            "4:memory:/m\n3:cpu,cpuacct:/docker/abc\n",
            {"cpu,cpuacct/cpu.cfs_quota_us": "150000", "cpu,cpuacct/cpu.cfs_period_us": "50000"},
            3.0,
            id="v1 container that sees the host's path",
        ),
        pytest.param(
            "3:cpu:/job\n",
            {"cpu/job/cpu.cfs_quota_us": "-1", "cpu/job/cpu.cfs_period_us": "100000"},
            None,
            id="v1 without a limit",
        ),
        pytest.param(
            "3:cpuset:/job\n",
            {"cpuset/job/cpu.cfs_quota_us": "100000", "cpuset/job/cpu.cfs_period_us": "100000"},
            None,
            id="v1 other controller",
        ),
        pytest.param("0::/\n", {"cpu.max": "broken"}, None, id="unreadable text"),
        pytest.param("", {"cpu.max": "100000 100000"}, None, id="no cgroup"),
    ],
)
def test_cpu_quota(tmp_path: Path, cgroup: str, files: dict[str, str], expected: float | None) -> None:
    assert system.cgroup_cpu_quota(tree(tmp_path, cgroup, files)) == expected


def test_cpu_quota_without_proc(tmp_path: Path) -> None:
    assert system.cgroup_cpu_quota(tmp_path) is None


@pytest.mark.parametrize(
    ("affinity", "quota", "expected"),
    [(8, None, 8), (8, 2.5, 3), (8, 3.0, 3), (2, 64.0, 2), (8, 0.2, 1), (0, None, 1), (8, 3.0000000001, 3)],
)
def test_usable_is_the_smaller_of_affinity_and_quota(affinity: int, quota: float | None, expected: int) -> None:
    assert system._usable_cpus(affinity, quota) == expected


def test_usable_cpus_follow_the_affinity_mask() -> None:
    one = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, [{one}]); from gpupipe.host import system; print(system.usable_cpus())"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "1"


def test_host_cpus_and_memory_agree_with_psutil() -> None:
    assert system.host_cpus() == psutil.cpu_count()
    limit = system.memory_limit()
    assert limit is not None
    assert limit == min(psutil.virtual_memory().total, system.cgroup_memory_limit() or limit)


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/\n", {"memory.max": "1073741824"}, 1 << 30),
        ("0::/\n", {"memory.max": "max"}, None),
        ("0::/a\n", {"a/memory.max": "max", "memory.max": "2048"}, 2048),
        ("4:memory:/x\n", {"memory/x/memory.limit_in_bytes": "4096"}, 4096),
        ("4:memory:/x\n", {"memory/x/memory.limit_in_bytes": "9223372036854771712"}, None),
    ],
)
def test_memory_limit(tmp_path: Path, cgroup: str, files: dict[str, str], expected: int | None) -> None:
    assert system.cgroup_memory_limit(tree(tmp_path, cgroup, files)) == expected


def test_default_workers_share_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "usable_cpus", lambda: 16)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert system.default_workers() == 16
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert system.default_workers() == 5
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "64")
    assert system.default_workers() == 1
    assert system.default_workers(processes=4) == 4


@pytest.mark.parametrize("value", ["0", "-1", "two", ""])
def test_local_world_size_must_be_a_count(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", value)
    with pytest.raises(ConfigError, match=f"LOCAL_WORLD_SIZE='{value}'"):
        system.local_world_size()


def test_shm_needed_by_hand() -> None:
    batch = 256 * 224 * 224 * 3
    assert batch == 38_535_168
    # 8 workers x 2 batches waiting, 2 with the consumer: 18 batches, a tenth more, 16 MiB more.
    assert system.shm_bytes_needed(256, 224 * 224, 8, 2) == pytest.approx(18 * batch * 1.1 + 2**24, abs=1)
    assert system.shm_bytes_needed(256, 224 * 224, 0, 2) == 0
    assert system.shm_bytes_needed(1, 1, 1, 0) == system.shm_bytes_needed(1, 1, 1, 1)


class Crops(Dataset[torch.Tensor]):
    """Made uint8 crops of the size that the torch engine moves between processes."""

    def __len__(self) -> int:
        return 16 * 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((96, 96, 3), index % 256, dtype=torch.uint8)


def test_shm_needed_covers_what_a_data_loader_really_takes() -> None:
    """Batches of torch's own DataLoader, measured as the kernel counts their mappings of shared memory."""
    workers, factor, batch = 2, 2, 16
    loader = DataLoader(Crops(), batch_size=batch, num_workers=workers, prefetch_factor=factor)
    batches = list(loader)  # held, so that each keeps its segment alive
    segments = shared_segments()
    held = sum(size for name, size in segments.items() if "torch_" in name)
    assert len(batches) == 12
    one = batch * 96 * 96 * 3
    assert 12 * one <= held < 12 * one * 1.1  # the margin is more than the page rounding
    needed = system.shm_bytes_needed(batch, 96 * 96, workers, factor)
    assert needed >= held * (workers * factor + 2) / 12


SLOW_CONSUMER = """
import time, torch
from torch.utils.data import DataLoader, Dataset

class Crops(Dataset):
    def __len__(self):
        return 64 * 16
    def __getitem__(self, index):
        return torch.full((224, 224, 3), index % 256, dtype=torch.uint8)

count, before = 0, None
for batch in DataLoader(Crops(), batch_size=64, num_workers=2, prefetch_factor=3):
    time.sleep(0.5 if count == 0 else 0.05)  # the first wait fills all queues
    count, before = count + 1, batch  # one batch being finished, one being consumed
print("batches", count)
"""


@pytest.mark.parametrize("share", [1.0, 0.4])
def test_a_mount_of_the_size_needed_is_enough_and_less_is_not(share: float) -> None:
    """torch's DataLoader on a /dev/shm of its own, in a mount namespace: the formula neither over- nor understates."""
    size = int(system.shm_bytes_needed(64, 224 * 224, 2, 3) * share)
    mount = f"mount -t tmpfs -o size={size} tmpfs /dev/shm || exit 77"
    command = ["unshare", "--mount", "sh", "-c", f'{mount}; exec "$0" -c "$1"', sys.executable, SLOW_CONSUMER]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except OSError as error:
        pytest.skip(f"no unshare: {error}")
    if answer.returncode == 77 or "unshare:" in answer.stderr:
        pytest.skip("this user may not mount a tmpfs in a namespace of its own")
    if share == 1.0:
        assert answer.stdout == "batches 16\n", answer.stderr
    else:
        assert answer.returncode != 0
        assert "shm" in answer.stderr


def shared_segments() -> dict[str, int]:
    """Mapping -> bytes of every mapping of shared memory in this process."""
    segments: dict[str, int] = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith("/dev/shm/"):
            start, end = (int(part, 16) for part in fields[0].split("-"))
            segments[f"{fields[0]} {fields[5]}"] = end - start
    return segments


def test_shm_free_agrees_with_psutil(tmp_path: Path) -> None:
    usage = psutil.disk_usage(str(tmp_path))
    assert system.shm_bytes_total(tmp_path) == usage.total
    free = system.shm_bytes_free(tmp_path)
    assert free is not None
    assert 0 <= free <= usage.total
    assert system.shm_bytes_free(tmp_path / "missing") is None
    assert system.shm_bytes_total(tmp_path / "missing") is None


def test_open_file_limit_follows_the_soft_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
        assert system.open_file_limit() == soft - 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_open_files_needed_covers_what_a_data_loader_really_opens() -> None:
    loader = DataLoader(Crops(), batch_size=16, num_workers=2, prefetch_factor=2)
    process = psutil.Process()
    before = process.num_fds()
    opened = 0
    kept = []
    for batch in loader:
        kept.append(batch)
        opened = max(opened, process.num_fds() - before)
    assert opened > 0
    assert opened <= system.open_files_needed(2, 2)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "1m"), (1, "1m"), (1 << 20, "1m"), ((1 << 20) + 1, "2m"), (1 << 30, "1g"), (5 << 29, "3g")]
)
def test_docker_size_rounds_up(size: int, text: str) -> None:
    assert system.docker_size(size) == text
