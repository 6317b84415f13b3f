"""What CI runs: README's commands, in an environment that grows, and a failure of any step is one of the whole."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
SERVERS = "npm install --silent --no-audit --no-fund azurite"
STEPS = [
    "pip install -e .[bench]",
    "gpupipe bench",
    "pip install -e .[test]",
    "pytest -n 2",
    "pip install --quiet -e .[dev]",
    "python -c import sys; from gpupipe.kernels import native; sys.exit(native.problem())",
    "ruff check .",
    "ruff format --check .",
    "mypy",
    "mkdocs build --strict --quiet",
    "pytest -n 2 -m trainers",
]
NOTE = """#!/bin/sh
words="$(basename "$0")${*:+ $*}"
echo "$words" >> "$NOTES"
if [ "$words" = "gpupipe bench" ]; then
  mkdir bench-out && printf '%s' "$MEASURED" > bench-out/results.csv
fi
[ "$words" != "$FAILS" ]
"""
VENV = """#!/bin/sh
[ "$1 $2" = "-m venv" ] && [ ! -e "$3" ] && mkdir -p "$3/bin" || exit 1
for name in pip python ruff mypy mkdocs pytest gpupipe; do cp "$(dirname "$0")/note" "$3/bin/$name"; done
"""
MEASURED = "".join(
    f"{name},1.5,1.0\n"
    for name in ("gpupipe-torch", "gpupipe-dali-cpu", "torchvision-pillow", "torchvision-v2", "dali-native-cpu")
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """README.md and .ci/run, beside programs that only note how they were called."""
    programs = {"note": NOTE, "npm": NOTE, "python3": VENV} | dict.fromkeys(("c++", "cc", "apt-get"), "#!/bin/sh\n")
    (tmp_path / "bin").mkdir()
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "project" / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", tmp_path / "project" / ".ci")
    shutil.copy(ROOT / "README.md", tmp_path / "project")
    return tmp_path / "project"


def run(project: Path, fails: str = "", measured: str = MEASURED) -> tuple[int, list[str], str]:
    """The exit code, what was called, and what was printed."""
    notes, scratch = project.parent / "notes", project.parent / "scratch"
    scratch.mkdir()
    settings = {"PATH": f"{project.parent / 'bin'}:{os.environ['PATH']}", "TMPDIR": str(scratch)}
    settings |= {"NOTES": str(notes), "FAILS": fails, "MEASURED": measured}
    done = subprocess.run(
        ["bash", str(project / ".ci" / "run")], env=os.environ | settings, capture_output=True, text=True, check=False
    )
    assert list(scratch.iterdir()) == [], "an environment was left behind"
    return done.returncode, notes.read_text().splitlines() if notes.exists() else [], done.stdout


def test_runs_the_checks_and_readmes_commands(project: Path) -> None:
    code, called, printed = run(project)
    assert (code, called) == (0, [SERVERS, *STEPS])
    assert len(re.findall(r"^== \d\d:\d\d:\d\d ", printed, re.MULTILINE)) == 3  # extras


def requirements(extra: str) -> set[str]:
    """Of an extra of pyproject.toml, and of those that it names."""
    (listed,) = re.findall(rf"^{extra} = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    named = set(re.findall(r'"([^"]+)"', listed))
    inner = {name for each in named for name in re.findall(r"^gpupipe\[(.*)\]$", each)}
    return named.union(*(requirements(name) for names in inner for name in names.split(",")))


def test_each_extra_has_all_of_the_one_before() -> None:
    """Or a command of README's would run beside what it does not install, and hide what is missing there."""
    first, second, third = (requirements(extra) for step in STEPS for extra in re.findall(r" -e \.\[(.*)\]", step))
    assert "pytest>=8" in second
    assert first < second < third


@pytest.mark.parametrize("step", STEPS)
def test_stops_at_a_step_that_fails(project: Path, step: str) -> None:
    code, called, _ = run(project, fails=step)
    assert code != 0
    assert called == [SERVERS, *STEPS[: STEPS.index(step) + 1]]


def test_goes_on_without_servers_that_can_not_be_installed(project: Path) -> None:
    code, called, printed = run(project, fails=SERVERS)
    assert (code, called) == (0, [SERVERS, *STEPS])
    assert "npm could not install azurite" in printed


def test_a_contender_that_was_not_measured_is_a_failure(project: Path) -> None:
    code, called, printed = run(project, measured=MEASURED.replace("gpupipe-torch,1.5,1.0", "gpupipe-torch,,"))
    assert (code, called[-1]) == (1, "gpupipe bench")
    assert "gpupipe bench did not measure gpupipe-torch" in printed


def test_a_readme_without_the_two_commands_is_a_failure(project: Path) -> None:
    readme = project / "README.md"
    readme.write_text(re.sub(r"^    pip install -e .*&& pytest.*\n", "", readme.read_text(), flags=re.MULTILINE))
    code, called, printed = run(project)
    assert (code, called) == (1, [SERVERS])
    assert "README.md gives 1 commands" in printed


def test_the_workflow_runs_it_on_the_oldest_and_the_newest_python() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    (job,) = workflow["jobs"].values()
    assert job["steps"][-1] == {"run": ".ci/run"}
    versions = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert job["strategy"]["matrix"]["python"] == [versions[0], versions[-1]]


def test_what_needs_a_trainer_names_libraries_of_the_extra(request: pytest.FixtureRequest) -> None:
    """A name that no extra brings would be skipped for ever."""
    text = (ROOT / "pyproject.toml").read_text()
    extras = re.findall(r"^(?:dev|docs|metrics|trainers|video) = \[(.*)\]$", text, re.MULTILINE)
    assert len(extras) == 5
    marks = [mark for item in request.session.items for mark in item.iter_markers("trainers")]
    assert all(mark.args for mark in marks)
    named = {library.partition("_")[0] for mark in marks for library in mark.args}
    assert named <= set(re.findall(r'"([a-z]+)', " ".join(extras)))


def test_what_needs_a_trainer_is_marked() -> None:
    """Without the mark it would be skipped in every environment of CI's."""
    sources = {path.name: path.read_text() for path in (ROOT / "tests").glob("*.py")}
    skipped = r"importorskip\(\s*[\"'](timm|accelerate|lightning|ray|torchcodec|transformers)"
    assert [name for name, text in sources.items() if re.search(skipped, text)] == []
