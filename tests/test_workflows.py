"""The workflows: whole, with pinned actions and few rights, and CI's machine has what .ci/run would have to install."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
PUBLISHED = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())


def parsed(path: Path) -> dict[str, Any]:
    workflow: dict[str, Any] = yaml.load(path.read_text(), Loader=yaml.BaseLoader)  # `on` stays a word
    return workflow


def release() -> dict[str, Any]:
    jobs: dict[str, Any] = parsed(GITHUB / "workflows" / "release.yml")["jobs"]
    return jobs


def commands(job: dict[str, Any]) -> str:
    return "\n".join(step.get("run", "") for step in job["steps"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_few_rights_and_ends(path: Path) -> None:
    workflow = parsed(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert [name for name, job in workflow["jobs"].items() if "timeout-minutes" not in job] == []
    needed = {need for job in workflow["jobs"].values() for need in [job.get("needs", [])] if isinstance(need, str)}
    needed |= {
        one for job in workflow["jobs"].values() for one in job.get("needs", []) if isinstance(job["needs"], list)
    }
    assert needed <= set(workflow["jobs"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_of_others_are_pinned(path: Path) -> None:
    """A tag can be moved to other code; PyPI's own action is followed as its guide says."""
    used = [step["uses"] for job in parsed(path)["jobs"].values() for step in job["steps"] if "uses" in step]
    loose = [one for one in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", one)]
    assert set(loose) <= {"pypa/gh-action-pypi-publish@release/v1"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_tools_are_pinned(path: Path) -> None:
    run = "\n".join(commands(job) for job in parsed(path)["jobs"].values())
    tools = re.findall(r"pipx run (?:--spec )?(\S+)", run)
    assert [tool for tool in tools if "==" not in tool] == []


def test_cis_machine_has_what_the_script_would_have_to_install() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    lines = re.findall(r"apt-get install (.*?)\)", script, re.DOTALL)
    (programs,) = re.findall(r"for program in (.*); do", script)
    wanted = {word for line in lines for word in line.split() if not word.startswith(("-", '"', "\\", ">"))}
    wanted |= set(programs.split()) | set(re.findall(r"command -v (npm)\b", script))
    assert {"g++", "nginx-light", "chromium", "npm"} <= wanted  # this test reads the script as it is
    (job,) = parsed(GITHUB / "workflows" / "ci.yml")["jobs"].values()
    installed = set(re.search(r"apt-get install (.*)", commands(job))[1].split())  # type: ignore[index]
    assert wanted <= installed


def test_wheels_are_tried_on_the_oldest_and_newest_python_of_each_architecture() -> None:
    built = {one["architecture"]: one["runner"] for one in release()["wheels"]["strategy"]["matrix"]["include"]}
    matrix = release()["install"]["strategy"]["matrix"]
    assert set(matrix["architecture"]) == set(built) == {"x86_64", "aarch64"}
    assert {one["architecture"]: one["runner"] for one in matrix["include"]} == built
    assert {PUBLISHED[0], PUBLISHED[-1]} <= set(matrix["python"]) <= set(PUBLISHED)
    run = commands(release()["install"])
    assert [path for path in re.findall(r"tests/\w+\.py", run) if not (ROOT / path).is_file()] == []
    assert "tests/wheel_check.py" in run
    assert run.index("rm -r gpupipe kernels") < run.index("tests/wheel_check.py")  # what is tried is the wheel


def test_only_a_tag_publishes_and_without_a_password() -> None:
    publish = release()["publish"]
    assert publish["if"] == "github.ref_type == 'tag'"
    assert set(publish["needs"]) == {"wheels", "sdist", "install", "notes"}
    assert publish["permissions"] == {"id-token": "write"}
    assert release()["page"]["needs"] == "publish"
    others = [job for name, job in release().items() if name not in ("publish", "page")]
    assert [job for job in others if "permissions" in job] == []
    assert "secrets." not in (GITHUB / "workflows" / "release.yml").read_text()


def test_dependabot_follows_the_pinned_actions() -> None:
    (update,) = parsed(GITHUB / "dependabot.yml")["updates"]
    assert update["package-ecosystem"] == "github-actions"
