"""Builds the C++ kernels. Where that fails, for want of a compiler or of libjpeg-turbo's headers, gpupipe installs
without them and says so when it runs; everything else stands in pyproject.toml."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

SOURCES = sorted(str(path) for path in Path("kernels/cpu").glob("*.c*"))
HEADERS = sorted(str(path) for path in Path("kernels/cpu").glob("*.h"))


class BuildLibrary(build_ext):
    """A plain shared library, which ctypes opens: the same file serves every version of Python."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"


class WheelForEveryPython(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]

    def egg2dist(self, egginfo_path: str, distinfo_path: str) -> None:
        """Pack the lists of what is linked in where PEP 770 wants them; setuptools has no setting for these."""
        super().egg2dist(egginfo_path, distinfo_path)
        for path in Path().glob("*.cdx.json"):
            target = Path(distinfo_path, "sboms", path.name)
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target)


kernels = Extension(
    "gpupipe.kernels._cpu",
    sources=SOURCES,
    depends=HEADERS,
    libraries=["jpeg"],
    # Without contraction, so that the weights of a resize and the levels of an augmentation are the same on every CPU;
    # without errno and traps, so that square roots and choices between numbers may be parts of a vector.
    extra_compile_args=[
        *("-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
        *("-fvisibility=hidden", "-pthread", "-g0"),
    ],
    # A libjpeg that is linked statically stays inside, out of the way of others in the process; what can't be
    # resolved fails here, not when the library is opened.
    extra_link_args=["-pthread", "-Wl,--exclude-libs,ALL", "-Wl,-z,defs"],
    optional=True,
)

setup(
    ext_modules=[kernels] if sys.platform.startswith("linux") else [],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": WheelForEveryPython},
)
