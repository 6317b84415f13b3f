"""Building: with a compiler there are C++ kernels, without one it goes on without; what sdist and wheel hold."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from functools import lru_cache
from pathlib import Path

import pytest

from gpupipe.kernels import native

ROOT = Path(__file__).resolve().parents[1]
NO_COMPILER = {"CC": "/nonexistent", "CXX": "/nonexistent", "LDSHARED": "/nonexistent"}
LICENSES = {"LICENSE", "NOTICE", "THIRD_PARTY.md"}
COPIED = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", *sorted(LICENSES), "gpupipe", "kernels")

pytest.importorskip("setuptools", minversion="77", reason="the build needs setuptools 77 or newer")


@lru_cache(maxsize=1)
def obstacle() -> str | None:
    """Why the kernels can't be built here, found by the compiler itself; None where they can."""
    compiler = os.environ.get("CC", "cc").split()[0]
    if shutil.which(compiler) is None or shutil.which(os.environ.get("CXX", "c++").split()[0]) is None:
        return "no C++ compiler"
    command = [compiler, *os.environ.get("CFLAGS", "").split(), "-fsyntax-only", str(ROOT / "kernels/cpu/jpeg.c")]
    result = subprocess.run(command, capture_output=True, text=True)
    return None if result.returncode == 0 else f"jpeg.c can't be compiled: {result.stderr.splitlines()[0]}"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what the build reads, without anything built."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignore)
        else:
            shutil.copy(ROOT / name, folder)
    return folder


def setup_py(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "setup.py", *arguments]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def test_without_a_compiler_the_build_succeeds_and_there_is_no_library(project: Path, tmp_path: Path) -> None:
    result = setup_py(project, "build", "--build-base", str(tmp_path / "build"), **NO_COMPILER)
    assert result.returncode == 0, result.stderr
    built = tmp_path / "build"
    assert list(built.rglob("native.py")), "the Python files were not built either"
    assert list(built.rglob("*.so")) == []


def test_headers_of_another_libjpeg_are_refused(project: Path, tmp_path: Path) -> None:
    """As with IJG's, or with libjpeg-turbo 2.0: the names are there, the version is not."""
    headers = tmp_path / "include"
    headers.mkdir()
    version = "LIBJPEG_TURBO_VERSION_NUMBER"
    (headers / "jpeglib.h").write_text(f"#include_next <jpeglib.h>\n#undef {version}\n#define {version} 2000006\n")
    result = setup_py(project, "build", "--build-base", str(tmp_path / "build"), CFLAGS=f"-I{headers}")
    assert result.returncode == 0, result.stderr
    assert list((tmp_path / "build").rglob("*.so")) == []
    if obstacle() is None:
        assert "libjpeg-turbo 2.1 or later is needed" in result.stderr


@pytest.mark.slow
@pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))
def test_with_a_compiler_there_is_a_library_that_ctypes_opens(project: Path, tmp_path: Path) -> None:
    result = setup_py(project, "build", "--build-base", str(tmp_path / "build"))
    assert result.returncode == 0, result.stderr
    found = list((tmp_path / "build").rglob("*.so"))
    assert [path.name for path in found] == ["_cpu.so"], result.stderr
    assert found[0].parent.parts[-2:] == ("gpupipe", "kernels")
    library = ctypes.CDLL(str(found[0]))
    assert library.gp_abi() == native.ABI
    assert library.gp_libjpeg_version() >= 2_001_000


@pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))
def test_only_what_python_calls_is_exported() -> None:
    """A libjpeg that is linked statically must not take the place of another in the process."""
    if shutil.which("nm") is None or native.library() is None:
        pytest.skip("no nm, or the kernels were not built")
    table = subprocess.run(
        ["nm", "--dynamic", "--defined-only", native.library()._name], capture_output=True, text=True, check=True
    )
    strong = {line.split()[-1] for line in table.stdout.splitlines() if line.split()[-2] in "TDBR"}
    assert "gp_abi" in strong
    assert {name for name in strong if not name.startswith("gp_")} == set()


def test_the_sdist_holds_what_a_build_reads(project: Path, tmp_path: Path) -> None:
    (project / "kernels" / "_cpu.so").write_bytes(b"built for another machine")
    result = setup_py(project, "sdist", "--dist-dir", str(tmp_path))
    assert result.returncode == 0, result.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        packed = {member.name.partition("/")[2] for member in tar.getmembers() if member.isfile()}
    sources = {str(path.relative_to(project)) for path in (project / "kernels" / "cpu").iterdir()}
    written = [*(project / "kernels").glob("*.py"), *(project / "kernels" / "gpu").glob("*.py")]
    python = {f"gpupipe/{path.relative_to(project)}" for path in written}
    assert sources | python | LICENSES | {"setup.py", "pyproject.toml", "README.md"} <= packed
    assert {name for name in packed if name.endswith(".so") or name.startswith("tests/")} == set()


BESIDE = """
import importlib.util, site, sys
site.addsitedir(sys.argv[1])  # as of an environment's site-packages: files of paths are read
sys.path.insert(0, "")
print(importlib.util.find_spec("gpupipe").origin)
"""


def test_an_editable_install_is_found_from_the_folder_that_the_clone_lies_in(project: Path, tmp_path: Path) -> None:
    """There Python sees a folder of the package's name first."""
    clone = tmp_path / "holds" / "gpupipe"
    clone.parent.mkdir()
    project.rename(clone)
    environment = {**os.environ, **NO_COMPILER}
    environment.pop("PYTHONPATH", None)
    build = "import sys, setuptools.build_meta as meta; meta.build_editable(sys.argv[1])"
    made = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)], cwd=clone, env=environment, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    found = subprocess.run(
        [sys.executable, "-S", "-c", BESIDE, str(tmp_path / "installed")],
        cwd=clone.parent, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert found.stdout.strip() == str(clone / "gpupipe" / "__init__.py"), found.stderr


def archive_of_libjpeg_turbo(folder: Path) -> Path:
    """What libjpeg_turbo.sh reads of the sources, of a version that never was."""
    source = folder / "libjpeg-turbo-9.8.7"
    source.mkdir()
    (source / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 2.8.12)\nset(VERSION 9.8.7)\n")
    (source / "LICENSE.md").write_text("the terms of libjpeg-turbo\n")
    (source / "README.ijg").write_text("the terms of IJG\n")
    with tarfile.open(folder / "source.tar.gz", "w:gz") as tar:
        tar.add(source, source.name)
    return folder / "source.tar.gz"


def link_libjpeg_turbo(project: Path, folder: Path) -> Path:
    """Run libjpeg_turbo.sh in `project` with a cmake that builds nothing; the archive that it took."""
    archive = archive_of_libjpeg_turbo(folder)
    (folder / "bin").mkdir()
    (folder / "bin" / "cmake").write_text("#!/bin/sh\n")
    (folder / "bin" / "cmake").chmod(0o755)
    command = ["bash", str(project / "kernels" / "wheel" / "libjpeg_turbo.sh"), str(folder / "prefix"), str(archive)]
    environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return archive


def test_the_list_of_what_is_linked_in_is_cyclonedx_and_names_the_sources(project: Path, tmp_path: Path) -> None:
    validation = pytest.importorskip("cyclonedx.validation.json", reason="it needs cyclonedx-python-lib")
    versions = pytest.importorskip("cyclonedx.schema").SchemaVersion
    archive = link_libjpeg_turbo(project, tmp_path)
    assert (project / "LICENSE.libjpeg-turbo").read_text() == "the terms of libjpeg-turbo\nthe terms of IJG\n"
    text = (project / "libjpeg-turbo.cdx.json").read_text()
    assert validation.JsonStrictValidator(versions.V1_6).validate_str(text) is None
    bill = json.loads(text)
    stated = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert stated is not None
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/gpupipe@{stated[1]}"
    (component,) = bill["components"]
    assert (component["name"], component["version"]) == ("libjpeg-turbo", "9.8.7")
    ((digest,),) = [one["hashes"] for one in component["externalReferences"]]
    assert digest == {"alg": "SHA-256", "content": hashlib.sha256(archive.read_bytes()).hexdigest()}


def test_a_wheel_holds_the_licenses_and_the_list_of_what_is_in_it(project: Path, tmp_path: Path) -> None:
    """libjpeg-turbo's are laid there by kernels/wheel/libjpeg_turbo.sh, for the wheels that it is linked into."""
    (project / "LICENSE.libjpeg-turbo").write_text("as it stands in the sources")
    (project / "libjpeg-turbo.cdx.json").write_text("{}")
    result = setup_py(project, "bdist_wheel", "--dist-dir", str(tmp_path), **NO_COMPILER)
    assert result.returncode == 0, result.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        information = f"gpupipe-{wheel.name.split('-')[1]}.dist-info"
        texts = {name: archive.read(name).decode() for name in archive.namelist() if name.startswith(information)}
    packed = {name: text for name, text in texts.items() if "/licenses/" in name}
    read = {f"{information}/licenses/{name}": (project / name).read_text() for name in LICENSES}
    assert packed == read | {f"{information}/licenses/LICENSE.libjpeg-turbo": "as it stands in the sources"}
    assert "License-Expression: Apache-2.0\n" in texts[f"{information}/METADATA"]
    assert texts[f"{information}/sboms/libjpeg-turbo.cdx.json"] == "{}"  # where PEP 770 has it
    assert f"{information}/sboms/libjpeg-turbo.cdx.json,sha256=" in texts[f"{information}/RECORD"]


def test_the_license_is_apaches_to_the_letter_and_the_jpeg_group_is_named() -> None:
    digest = hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest()
    assert digest == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
    for name in ("NOTICE", "THIRD_PARTY.md"):
        text = " ".join((ROOT / name).read_text().split())
        assert "this software is based in part on the work of the independent jpeg group." in text.lower()
