"""The `gpupipe` command as a whole: help, version, and how errors and interruptions are told."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest
from images import write_folder

from gpupipe.tools.cli import COMMANDS, index, main

GPUPIPE = [sys.executable, "-m", "gpupipe"]
# A shell's background jobs, tests among them, inherit that SIGINT is ignored; a terminal's commands do not.
IN_A_TERMINAL = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
IN_A_TERMINAL += "; from gpupipe.tools.cli import main; sys.exit(main(sys.argv[1:]))"
WITHOUT_TORCH = (
    "import sys; sys.modules['torch'] = None; from gpupipe.tools.cli import main; sys.exit(main(sys.argv[1:]))"
)
OF_DATA = {
    "bench": [],
    "index": [],
    "pack": ["out"],
    "profile": ["--model", "tiny"],
    "show": ["-o", "sheet.png"],
    "tune": [],
}


def test_alone_it_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    out = capsys.readouterr().out
    for name in COMMANDS:
        assert f"\n    {name} " in out


def test_the_version_needs_no_torch() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"gpupipe {version('gpupipe')}\n", "")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    assert f"usage: gpupipe {name} " in capsys.readouterr().out


@pytest.mark.parametrize("name", OF_DATA)
def test_data_that_cannot_be_used_is_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("no shard")
    for data, reason in (("nowhere", "no folder at "), ("empty", "no class folders in "), ("text", "not a tar file")):
        assert main([name, data, *OF_DATA[name]]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"gpupipe {name}: ")
        assert err.count("\n") == 1
        assert reason in err
        assert data in err


@pytest.mark.parametrize("name", ["bench", "profile", "tune"])
def test_files_that_cannot_be_written_are_one_line_before_anything_is_measured(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpupipe.tools.profiling.rounds.measure", lambda *arguments: pytest.fail("it measures"))
    taken = tmp_path / "taken"
    taken.write_text("a file, where a folder is to be made")
    data = write_folder(tmp_path / "data", classes=1, per_class=4)
    assert main([name, str(data), "--output", str(taken), *OF_DATA[name]]) == 2
    err = capsys.readouterr().err.splitlines()
    assert err[-1].startswith(f"gpupipe {name}: ")
    assert str(taken) in err[-1]
    assert [line for line in err[:-1] if not line.startswith("gpupipe: ")] == []  # what the loader logs


def test_a_package_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    data = str(write_folder(tmp_path / "data", classes=1, per_class=2))
    command = [sys.executable, "-c", WITHOUT_TORCH, "show", data, "-o", str(tmp_path / "sheet.png")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("gpupipe show: ")
    assert "torch" in done.stderr
    assert "gpupipe doctor" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    data = str(write_folder(tmp_path / "data", classes=1, per_class=2))
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run([*GPUPIPE, "index", data], stdout=writing, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writing)
    assert done.stderr == ""


def test_ctrl_c_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(index, "run", interrupted)
    assert main(["index", "anything"]) == 130
    assert capsys.readouterr().err == "gpupipe index: interrupted\n"


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("name", ["tune", "profile"])
def test_ctrl_c_while_it_measures(name: str, tmp_path: Path) -> None:
    """As a terminal sends it: to the command, its children and theirs."""
    data = str(write_folder(tmp_path / "data", classes=2, per_class=6))
    options = [] if name == "tune" else ["--model", "tiny", "--steps", "1000000"]
    numbers = ["--size", "32", "--batch-size", "4", "--output", str(tmp_path / "out")]
    command = [sys.executable, "-c", IN_A_TERMINAL, name, data, *numbers, *options]
    environment = os.environ | {"GPUPIPE_CACHE": str(tmp_path / "cache")}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as running:
        while running.poll() is None and len(_children(running.pid)) < 1:  # it measures in a child, or loads in one
            time.sleep(0.05)
        time.sleep(1.0)
        os.killpg(running.pid, signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert out == ""
    assert err.splitlines()[-1] == f"gpupipe {name}: interrupted"
    assert "Traceback" not in err
    deadline = time.monotonic() + 10
    while alive := _living(running.pid):
        assert time.monotonic() < deadline, alive
        time.sleep(0.05)


def _children(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []


def _living(group: int) -> list[str]:
    """The processes of a group; those that have ended don't count, which an init may leave lying about."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(str(process))
    return found
