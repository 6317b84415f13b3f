"""Whether an installed wheel decodes as Pillow does, and holds the licenses and the list of what is in it.

NumPy and Pillow are all this needs: torch and DALI are large.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import io
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
from PIL import Image


def without_torch() -> None:
    """Give `gpupipe.kernels` without what it imports at once, which needs torch; its decoder does not."""
    spec = importlib.util.find_spec("gpupipe")
    assert spec is not None, "gpupipe is not installed"
    assert spec.origin is not None
    package = ModuleType("gpupipe.kernels")
    package.__path__ = [str(Path(spec.origin).parent / "kernels")]
    sys.modules["gpupipe.kernels"] = package


def missing_licenses() -> list[str]:
    needed = ("LICENSE", "LICENSE.libjpeg-turbo", "NOTICE", "THIRD_PARTY.md")
    packed = {path.name for path in importlib.metadata.files("gpupipe") or () if "licenses" in path.parts}
    return [name for name in needed if name not in packed]


def listed(name: str) -> list[str]:
    """The versions of a component in the CycloneDX lists of the wheel, `*.dist-info/sboms/*`."""
    files = [path for path in importlib.metadata.files("gpupipe") or () if "sboms" in path.parts]
    components = [component for path in files for component in json.loads(path.read_text())["components"]]
    return [component["version"] for component in components if component["name"] == name]


def dotted(number: int) -> str:
    """A version as libjpeg-turbo numbers it: 3001003 is 3.1.3, and 3001090 the beta 3.1.90."""
    return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"


def made_jpeg() -> bytes:
    rows, columns = np.mgrid[:300, :400]
    pixels = np.stack([columns % 256, rows % 256, rows * columns % 251], axis=-1)
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def main() -> int:
    if missing := missing_licenses():
        print(f"the wheel lacks {', '.join(missing)}")
        return 1
    without_torch()
    native = importlib.import_module("gpupipe.kernels.native")
    decode = importlib.import_module("gpupipe.kernels.decode")
    if native.library() is None:
        print(f"the wheel's kernels can't be used: {native.problem()}")
        return 1
    encoded, (top, left, height, width), size = made_jpeg(), (21, 30, 200, 251), (224, 224)
    expected = Image.open(io.BytesIO(encoded)).crop((left, top, left + width, top + height))
    expected = expected.resize(size, Image.Resampling.BILINEAR)
    crops = importlib.import_module("gpupipe.kernels.crops").Crops.of([(top, left, height, width)], size)
    version = dotted(native.library().gp_libjpeg_version())
    said = listed("libjpeg-turbo")
    if not said or any(not f"{one}.".startswith(f"{version}.") for one in said):
        print(f"libjpeg-turbo {version} is linked in, but the wheel's sboms say {said or 'nothing of it'}")
        return 1
    for variant in native.variants():
        decoded = decode.decode_crops([encoded], [crops], variant=variant)
        if decoded.failures or not np.array_equal(decoded.images[0][0], np.asarray(expected)):
            print(f"{variant}, libjpeg-turbo {version}: not Pillow's pixels; failures: {decoded.failures}")
            return 1
        print(f"{variant}, libjpeg-turbo {version}: Pillow's pixels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
